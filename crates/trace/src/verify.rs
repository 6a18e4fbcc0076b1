//! Whether a trace is whole: every file read, every page decoded, every count compared.

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

/// A file that was found whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// Its name in the trace folder.
    pub file: String,
    /// Bytes in it.
    pub bytes: u64,
    /// Records of a part, events of `regions.parquet`.
    pub rows: u64,
    /// The checksum that it has and `trace.json` states; absent where that states none.
    pub checksum: Option<Checksum>,
}

/// Called now and then with the records done; an error ends the run.
pub type OnProgress<'a> = &'a mut dyn FnMut(u64) -> Result<()>;

/// Records between two calls of [`OnProgress`].
const PROGRESS_STEP: u64 = 1 << 22;

/// What to do about a file that is not as it was written.
const FIX: &str = "copy it again from where it is whole, or capture or import the trace again";

/// Read every file of the trace and compare it with `trace.json`: size and checksum; records by
/// kind and thread, instructions, pages by the kinds that touched them; events. Returns the files,
/// parts first. Memory grows with the distinct pages, about a byte each.
///
/// # Errors
/// The first file that is not what `trace.json` says, or that cannot be read.
pub fn verify(reader: &Reader, on_progress: OnProgress<'_>) -> Result<Vec<Verified>> {
    let (dir, info) = (reader.path(), reader.info());
    let mut files = Vec::new();
    for part in &info.parts {
        let bytes = compare(&dir.join(&part.file), Some(part.bytes), part.checksum)?;
        let (file, rows, checksum) = (part.file.clone(), part.records, part.checksum);
        files.push(Verified { file, bytes, rows, checksum });
        on_progress(0)?;
    }
    let regions = dir.join(region::FILE);
    if regions.exists() {
        let listed = info.regions.as_ref();
        let (size, checksum) = (listed.map(|of| of.bytes), listed.map(|of| of.checksum));
        let bytes = compare(&regions, size, checksum)?;
        let rows = events(reader, &regions)?;
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
    match counts.differs(info) {
        None => Ok(files),
        Some(what) => Err(Error::input(
            dir.join("trace.json").display().to_string(),
            what,
            "capture or import the trace again",
        )),
    }
}

/// Compare a file with what `trace.json` says of it; returns its size.
fn compare(path: &Path, size: Option<u64>, checksum: Option<Checksum>) -> Result<u64> {
    let (found, bytes) = Checksum::of_file(path)?;
    let differs = |what: String| Err(Error::input(path.display().to_string(), what, FIX));
    match (size, checksum) {
        (Some(size), _) if size != bytes => {
            differs(format!("has {bytes} bytes where trace.json says {size}"))
        }
        (_, Some(checksum)) if checksum != found => {
            differs(format!("has the checksum {found} where trace.json says {checksum}"))
        }
        _ => Ok(bytes),
    }
}

/// Read the table of events; returns how many there are.
fn events(reader: &Reader, path: &Path) -> Result<u64> {
    let info = reader.info();
    let events = reader.regions()?;
    let known = |index: u32| info.threads.iter().any(|thread| thread.index == index);
    for (row, event) in events.iter().enumerate() {
        let what = if info.complete && event.at > info.records {
            format!("row {row} comes after {} records, trace.json says {}", event.at, info.records)
        } else if info.complete && !known(event.thread) {
            format!("row {row} is of thread {}, which trace.json has not", event.thread)
        } else if event.addr.checked_add(event.length.saturating_sub(1)).is_none() {
            format!("the range in row {row} goes beyond the end of memory")
        } else {
            continue;
        };
        return Err(Error::input(path.display().to_string(), what, FIX));
    }
    Ok(events.len() as u64)
}

/// What the parts hold.
#[derive(Default)]
struct Counts {
    by_kind: [u64; Kind::ALL.len()],
    /// Records and instructions.
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
        let mut from = 0;
        while let Some(&thread) = batch.thread.get(from) {
            let run = batch.thread[from..].iter().take_while(|&&other| other == thread).count();
            let instructions = &batch.instr[from..from + run];
            let sums = self.threads.entry(thread).or_default();
            sums.0 += run as u64;
            sums.1 += instructions.iter().map(|&count| u64::from(count)).sum::<u64>();
            from += run;
        }
    }

    /// What `trace.json` says otherwise.
    fn differs(&self, info: &Info) -> Option<String> {
        for kind in Kind::ALL {
            let said = info.records_by_kind.get(&kind).copied().unwrap_or(0);
            let found = self.by_kind[kind as usize];
            if said != found {
                let kind = kind.name();
                return Some(format!(
                    "`records_by_kind` says {said} of `{kind}`, the parts have {found}"
                ));
            }
        }
        for thread in &info.threads {
            let (records, instructions) =
                self.threads.get(&thread.index).copied().unwrap_or_default();
            let (index, said) = (thread.index, thread.records);
            if said != records {
                return Some(format!(
                    "`threads` says {said} records of thread {index}, the parts have {records}"
                ));
            }
            // A thread may have gone on after its last record.
            if thread.instructions < instructions {
                return Some(format!(
                    "`threads` says {} instructions of thread {index}, the parts have \
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
        let (said, found) = (touched(&info.pages_by_kinds), touched(&self.pages.by_kinds()));
        let keys = said.keys().chain(found.keys());
        let of = |pages: &BTreeMap<String, u64>, key: &str| pages.get(key).copied().unwrap_or(0);
        keys.map(|key| (key, of(&said, key), of(&found, key)))
            .find(|(_, said, found)| said != found)
            .map(|(key, said, found)| {
                format!("`pages_by_kinds` says {said} pages of `{key}`, the parts have {found}")
            })
    }
}
