//! Contents of a trace: counts, footprint, working set, hottest regions, reuse, heat map.
//!
//! One streaming pass, and a second one for the heat map. Memory grows with the distinct pages, not
//! with the records. A record touches every 4 KiB page it overlaps and is counted in the region of
//! its first byte. See `docs/info.md`.

mod heat;
mod hot;
mod locked;
pub(crate) mod names;
mod pages;
mod pass;
mod regions;
mod resident_set;
mod reuse;
mod rows;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use nearfar_trace::{Batch, Columns, Kind, Reader, Result, Source, ThreadInfo, last_byte};
use serde::Serialize;

pub use heat::{AddressBin, HeatMap, ROWS};
pub use hot::{HotCode, HotPart};
use names::Names;
use pass::Pass;
use regions::{hottest, regions};
use resident_set::ResidentTracker;
use reuse::Reuse;
pub use rows::{Region, ReuseBin, WorkingSet};

use crate::lifetimes::{self, PAGE_SHIFT};

const PAGE: u64 = 1 << PAGE_SHIFT;
/// Maximum number of intervals that a trace is divided into.
pub const BINS: u64 = 256;
/// Maximum window of a working set, in records: enough for random accesses to touch most of the set.
const WINDOW: u64 = 1 << 20;
/// The window is at most 1/8 of the trace.
const WINDOW_PART: u64 = 8;
/// Maximum number of regions listed one by one.
pub const REGIONS: usize = 100;
/// Records between two calls of [`OnProgress`].
const PROGRESS_STEP: u64 = 1 << 22;

/// Called periodically with the records done in this pass; an error ends the run.
pub type OnProgress<'a> = &'a mut dyn FnMut(u64) -> Result<()>;

nearfar_schema::options! {
    /// The options of `nearfar info` as they are written, without those of [`crate::filter::View`].
    pub struct Request {
        /// Compute reuse distances, the slowest part of the summary.
        reuse: bool = true,
        /// First read all files and compare checksums and counts with trace.json.
        verify: bool = false,
    }
}

/// What to compute in addition to the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The histogram of stack distances, the most expensive part.
    pub reuse: bool,
    /// The heat map, which takes a second pass.
    pub heat_map: bool,
}

/// Reads and writes of data, without fetches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Mix {
    /// Loads and kernel loads.
    pub reads: u64,
    /// Stores and kernel stores.
    pub writes: u64,
    /// writes / (reads + writes); 0 without any.
    pub write_share: f64,
}

/// Contents of a trace, as `nearfar info --format json` prints them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Trace folder.
    pub trace: String,
    /// Origin of the trace.
    pub source: Source,
    /// Version of nearfar that wrote the trace.
    pub tool: String,
    /// False if the writer was stopped before the end.
    pub complete: bool,
    /// Why it is incomplete, if known.
    pub incomplete_reason: Option<String>,
    pub records: u64,
    /// Instructions executed by all threads.
    pub instructions: u64,
    /// Maximum number of instructions of a thread: the duration of the program.
    pub duration_instructions: u64,
    pub records_by_kind: BTreeMap<Kind, u64>,
    pub mix: Mix,
    /// Bytes of the distinct 4 KiB pages touched.
    pub footprint_bytes: u64,
    /// Peak resident set ([`lifetimes::peak_resident`]); `None` unless [`lifetimes::known`].
    pub peak_resident_bytes: Option<u64>,
    /// Peak bytes locked in memory (`mlock`).
    pub locked_bytes: u64,
    /// Footprint by kind; a page touched by two kinds counts in both.
    pub footprint_by_kind_bytes: BTreeMap<Kind, u64>,
    /// Size of the trace on disk.
    pub file_bytes: u64,
    /// Threads, by index.
    pub threads: Vec<ThreadInfo>,
    /// One per interval; at most [`BINS`].
    pub working_set: Vec<WorkingSet>,
    /// Records in the window of a working set; a window ends with its interval.
    pub working_set_records: u64,
    /// Hottest first; at most [`REGIONS`], then the sum of all others.
    pub regions: Vec<Region>,
    /// Neighbouring 4 KiB pages with at least 8 times as many data references as the average page,
    /// most references first.
    pub hot: Vec<HotPart>,
    /// The code that makes the references of `hot`.
    pub hot_code: Vec<HotCode>,
    /// Page touches by stack distance (Mattson et al. 1970): distinct pages since the last touch of
    /// the page, including the page itself. Empty unless requested.
    pub reuse: Vec<ReuseBin>,
}

/// Summarise a trace.
///
/// # Errors
/// If the trace cannot be read; errors of `on_progress`.
pub fn summarize(
    reader: &Reader,
    options: Options,
    on_progress: OnProgress<'_>,
) -> Result<(Summary, Option<HeatMap>)> {
    let info = reader.info();
    let several_processes =
        info.threads.windows(2).any(|threads| threads[0].process != threads[1].process);
    let per_bin = info.records.div_ceil(BINS).max(1);

    let resident =
        if lifetimes::known(reader)? { Some(ResidentTracker::new(reader)?) } else { None };
    let window = WINDOW.min(info.records / WINDOW_PART).div_ceil(per_bin).max(1);
    let mut pass = Pass::new(Names::new(reader)?, resident, window as usize);
    let mut reuse = options.reuse.then(Reuse::new);
    let mut touched = Vec::new();
    let threads = TwoThreads::new();
    let mut batches = reader.batches(Columns { thread: info.threads.len() > 1, ..Columns::PAGING });
    let mut batch = Batch::default();
    let (mut done, mut next_progress) = (0u64, 0);
    loop {
        // Compute the distances of the previous batch while counting this one.
        std::mem::swap(&mut pass.touched, &mut touched);
        pass.touched.clear();
        let count = || -> Result<bool> {
            if !batches.next_into(&mut batch)? {
                return Ok(false);
            }
            let mut from = 0;
            while from < batch.len() {
                let at = done + from as u64;
                if pass.names.advance(at) {
                    pass.epoch += 1;
                    if let Some(resident) = &mut pass.resident {
                        resident.events(at);
                    }
                }
                // Process records up to the next event, interval or thread.
                let end_of_bin = (at / per_bin + 1) * per_bin;
                let until = end_of_bin.min(pass.names.next_event) - at;
                let until = from.saturating_add(usize::try_from(until).unwrap_or(usize::MAX));
                let mut to = until.min(batch.len());
                if several_processes {
                    let thread = batch.thread[from];
                    to = from + batch.thread[from..to].iter().take_while(|&&t| t == thread).count();
                    pass.names.switch_to(thread);
                }
                if let Some(resident) = &mut pass.resident {
                    resident.switch_to(batch.thread.get(from).copied().unwrap_or(0));
                }
                pass.records(&batch, from..to)?;
                from = to;
                let at = done + from as u64;
                if at.is_multiple_of(per_bin) || at == info.records {
                    pass.end_of_bin(at);
                }
            }
            Ok(true)
        };
        let distances = || {
            if let Some(reuse) = &mut reuse {
                reuse.touch(&touched);
            }
        };
        let (has_batch, ()) = threads.join(count, distances);
        if !has_batch? {
            break;
        }
        done += batch.len() as u64;
        if done >= next_progress {
            on_progress(done)?;
            next_progress = done + PROGRESS_STEP;
        }
    }

    let mut by_kind = BTreeMap::new();
    let mut footprint = BTreeMap::new();
    for kind in Kind::ALL {
        let count: u64 = pass.counts.iter().map(|counts| counts[kind as usize]).sum();
        if count > 0 {
            by_kind.insert(kind, count);
            let pages = pass.state.iter().filter(|page| page.kinds & kind.bit() != 0).count();
            footprint.insert(kind, pages as u64 * PAGE);
        }
    }
    let count = |kind| by_kind.get(&kind).copied().unwrap_or(0);
    let reads = count(Kind::Load) + count(Kind::KernelLoad);
    let writes = count(Kind::Store) + count(Kind::KernelStore);
    let write_share = if writes == 0 { 0.0 } else { writes as f64 / (reads + writes) as f64 };

    let reuse = reuse.map_or_else(Vec::new, |reuse| reuse.bins(pass.repeats));
    let Pass { names, pages, state, counts, working_set, touched_pages, resident, code, .. } = pass;
    let locked_bytes = locked::peak(&reader.regions()?, |thread| names.process_of(thread));
    let programs = names.programs().to_vec();
    let (merged, names) = names.finish();
    let final_region = |id: u32| merged.get(id as usize).copied().unwrap_or(0);
    let all_regions = regions(&state, &counts, &touched_pages, &final_region, names);
    let region_name =
        |region: u32| all_regions.get(region as usize).map_or("", |r| &r.name).to_owned();
    let hot = hot::parts(&state, |page| final_region(page.region), region_name);
    let hot_code = code.of(&hot, &programs, |id| region_name(final_region(id)));
    let heat_map = if options.heat_map {
        let touched: Vec<(u64, u32)> =
            state.iter().map(|page| (page.number, final_region(page.region))).collect();
        drop(state);
        Some(heat::fill(reader, &threads, touched, region_name, on_progress)?)
    } else {
        None
    };
    let summary = Summary {
        trace: reader.path().display().to_string(),
        source: info.source.clone(),
        tool: info.tool.clone(),
        complete: info.complete,
        incomplete_reason: info.incomplete_reason.clone(),
        records: info.records,
        instructions: info.instructions,
        duration_instructions: info.threads.iter().map(|t| t.instructions).max().unwrap_or(0),
        records_by_kind: by_kind,
        mix: Mix { reads, writes, write_share },
        footprint_bytes: pages.len() as u64 * PAGE,
        peak_resident_bytes: resident.map(|resident| resident.set.peak().bytes()),
        locked_bytes,
        footprint_by_kind_bytes: footprint,
        file_bytes: info.parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.bytes)),
        threads: info.threads.clone(),
        working_set,
        working_set_records: window * per_bin,
        regions: hottest(all_regions),
        hot,
        hot_code,
        reuse,
    };
    Ok((summary, heat_map))
}

/// Two threads, or none if they cannot be started: closures then run one after the other.
pub(crate) struct TwoThreads(Option<rayon::ThreadPool>);

impl TwoThreads {
    fn new() -> Self {
        Self(rayon::ThreadPoolBuilder::new().num_threads(2).build().ok())
    }

    fn join<A: Send, B: Send>(
        &self,
        one: impl FnOnce() -> A + Send,
        other: impl FnOnce() -> B + Send,
    ) -> (A, B) {
        match &self.0 {
            Some(pool) => pool.install(|| rayon::join(one, other)),
            None => (one(), other()),
        }
    }
}

/// Last page that a record overlaps.
#[inline]
fn last_page(addr: u64, size: u16) -> u64 {
    last_byte(addr, size) >> PAGE_SHIFT
}
