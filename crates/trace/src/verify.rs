//! Verifies a trace: reads every file, decodes every record, compares every count.

use std::collections::BTreeMap;
use std::path::Path;

use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::checksum::Checksum;
use crate::error::{Error, Result};
use crate::footprint::{Footprint, PAGE_SHIFT};
use crate::info::Info;
use crate::reader::{Columns, Reader};
use crate::record::{Batch, Kind, last_byte};
use crate::region;

/// A file that passed verification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// Its name in the trace folder.
    pub file: String,
    pub bytes: u64,
    /// Number of records of a part (a Parquet file of records), or of events in `regions.parquet`.
    pub rows: u64,
    /// Its checksum; absent if `trace.json` has none.
    pub checksum: Option<Checksum>,
}

/// Called regularly with the number of records done. An error stops the verification.
pub type OnProgress<'a> = &'a mut dyn FnMut(u64) -> Result<()>;

/// Records between two calls of [`OnProgress`].
const PROGRESS_STEP: u64 = 1 << 22;

/// The remedy for a changed file.
const FIX: &str = "copy it again from an intact trace, or capture or import the trace again";

/// Read every file of the trace and compare it with `trace.json`: sizes and checksums; records by
/// kind and thread, instructions, pages by kinds; events. Returns the files, parts first. Takes
/// about one byte of memory per distinct page.
///
/// # Errors
/// A file differs from `trace.json` or cannot be read.
pub fn verify(reader: &Reader, on_progress: OnProgress<'_>) -> Result<Vec<Verified>> {
    let (dir, info) = (reader.path(), reader.info());
    let mut files = Vec::new();
    for part in &info.parts {
        let bytes = compare(&dir.join(&part.file), Some(part.bytes), part.checksum)?;
        let (file, rows, checksum) = (part.file.clone(), part.records, part.checksum);
        files.push(Verified { file, bytes, rows, checksum });
        // No records are done yet, but the caller may stop the verification.
        on_progress(0)?;
    }
    let regions = dir.join(region::FILE);
    if regions.exists() {
        let listed = info.regions.as_ref();
        let (size, checksum) = (listed.map(|info| info.bytes), listed.map(|info| info.checksum));
        let bytes = compare(&regions, size, checksum)?;
        let rows = check_events(reader, &regions)?;
        files.push(Verified { file: region::FILE.to_owned(), bytes, rows, checksum });
    }
    let mut counts = Counts::default();
    let (mut batches, mut batch) = (reader.batches(Columns::ALL), Batch::default());
    let (mut done, mut next_progress) = (0, PROGRESS_STEP);
    while batches.next_into(&mut batch)? {
        counts.add(&batch);
        done += batch.len() as u64;
        if done >= next_progress {
            on_progress(done)?;
            next_progress = done + PROGRESS_STEP;
        }
    }
    match counts.difference(info) {
        None => Ok(files),
        Some(what) => Err(Error::input(
            dir.join("trace.json").display().to_string(),
            what,
            "capture or import the trace again",
        )),
    }
}

/// Compare a file with its size and checksum in `trace.json`. Returns its size.
fn compare(path: &Path, size: Option<u64>, checksum: Option<Checksum>) -> Result<u64> {
    let (actual, bytes) = Checksum::of_file(path)?;
    let differs = |what: String| Err(Error::input(path.display().to_string(), what, FIX));
    match (size, checksum) {
        (Some(size), _) if size != bytes => {
            differs(format!("has {bytes} bytes, but {size} in trace.json"))
        }
        (_, Some(checksum)) if checksum != actual => {
            differs(format!("has the checksum {actual}, but {checksum} in trace.json"))
        }
        _ => Ok(bytes),
    }
}

/// Read and check the table of events. Returns the number of events.
fn check_events(reader: &Reader, path: &Path) -> Result<u64> {
    let info = reader.info();
    let events = reader.regions()?;
    let known = |index: u32| info.threads.iter().any(|thread| thread.index == index);
    for (row, event) in events.iter().enumerate() {
        // In an incomplete trace, events may be later than the last finished part.
        let what = if info.complete && event.at > info.records {
            format!("row {row} is after {} records, but trace.json has {}", event.at, info.records)
        } else if info.complete && !known(event.thread) {
            format!("row {row} is of thread {}, which is not in trace.json", event.thread)
        } else if event.addr.checked_add(event.length.saturating_sub(1)).is_none() {
            format!("the range in row {row} exceeds the address space")
        } else {
            continue;
        };
        return Err(Error::input(path.display().to_string(), what, FIX));
    }
    Ok(events.len() as u64)
}

/// Totals over the records of all parts.
#[derive(Default)]
struct Counts {
    by_kind: [u64; Kind::ALL.len()],
    /// Records and instructions by thread.
    threads: FxHashMap<u32, (u64, u64)>,
    pages: Footprint,
}

impl Counts {
    fn add(&mut self, batch: &Batch) {
        let mut latest = (u64::MAX, 0);
        for record in batch.iter() {
            self.by_kind[record.kind as usize] += 1;
            let last = last_byte(record.addr, record.size) >> PAGE_SHIFT;
            for page in record.addr >> PAGE_SHIFT..=last {
                if latest != (page, record.kind.bit()) {
                    latest = (page, record.kind.bit());
                    self.pages.touch(page, record.kind.bit());
                }
            }
        }
        let mut instr = batch.instr.as_slice();
        for run in batch.thread.chunk_by(|a, b| a == b) {
            let instructions = instr.split_off(..run.len()).unwrap_or_default();
            let sums = self.threads.entry(run[0]).or_default();
            sums.0 += run.len() as u64;
            sums.1 += instructions.iter().map(|&count| u64::from(count)).sum::<u64>();
        }
    }

    /// The first difference from `trace.json`.
    fn difference(&self, info: &Info) -> Option<String> {
        for kind in Kind::ALL {
            let listed = info.records_by_kind.get(&kind).copied().unwrap_or(0);
            let counted = self.by_kind[kind as usize];
            if listed != counted {
                let kind = kind.name();
                return Some(format!(
                    "`records_by_kind` has {listed} of `{kind}`, the parts have {counted}"
                ));
            }
        }
        for thread in &info.threads {
            let (records, instructions) =
                self.threads.get(&thread.index).copied().unwrap_or_default();
            let (index, listed) = (thread.index, thread.records);
            if listed != records {
                return Some(format!(
                    "`threads` has {listed} records of thread {index}, the parts have {records}"
                ));
            }
            // A thread may execute instructions after its last record.
            if thread.instructions < instructions {
                return Some(format!(
                    "`threads` has {} instructions of thread {index}, the parts have \
                     {instructions}",
                    thread.instructions
                ));
            }
        }
        let listed = |index| info.threads.iter().any(|thread| thread.index == index);
        if let Some(index) = self.threads.keys().copied().filter(|&index| !listed(index)).min() {
            return Some(format!("`threads` has no thread {index}, the parts have records of it"));
        }
        let touched = |pages: &BTreeMap<String, u64>| {
            let mut pages = pages.clone();
            pages.retain(|_, pages| *pages > 0);
            pages
        };
        let (listed, counted) = (touched(&info.pages_by_kinds), touched(&self.pages.by_kinds()));
        let keys = listed.keys().chain(counted.keys());
        let get = |pages: &BTreeMap<String, u64>, key: &str| pages.get(key).copied().unwrap_or(0);
        keys.map(|key| (key, get(&listed, key), get(&counted, key)))
            .find(|(_, listed, counted)| listed != counted)
            .map(|(key, listed, counted)| {
                format!("`pages_by_kinds` has {listed} pages of `{key}`, the parts have {counted}")
            })
    }
}
