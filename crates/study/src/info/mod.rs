//! What a trace holds: counts, footprint, working set, hottest regions, reuse, heat map.
//!
//! One streaming pass answers all but the heat map, which takes a second one; memory grows with
//! the distinct pages, never with the records. A record touches every 4 KiB page it overlaps; it
//! is counted in the region of its first byte. See `docs/info.md`.

mod heat;
pub(crate) mod names;
mod pages;
mod resident;
mod reuse;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use nearfar_trace::{Batch, Columns, Error, Kind, Reader, Result, Source, ThreadInfo, last_byte};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

pub use heat::{AddressBin, HeatMap, ROWS};
use names::Names;
use pages::Pages;
use resident::Resident;
use reuse::Reuse;

use crate::lifetimes;

const PAGE_SHIFT: u32 = 12;
const PAGE: u64 = 1 << PAGE_SHIFT;
/// Most intervals of time that a trace is divided into.
pub const BINS: u64 = 256;
/// Maximum number of regions listed one by one.
pub const REGIONS: usize = 100;
/// Records between two calls of [`OnProgress`].
const PROGRESS_STEP: u64 = 1 << 22;

/// Called now and then with the records done in this pass; an error ends the run.
pub type OnProgress<'a> = &'a mut dyn FnMut(u64) -> Result<()>;

nearfar_schema::options! {
    /// The options of `nearfar info` as they are written, but for those of the view.
    pub struct Asked {
        /// Compute reuse distances, the slowest part.
        reuse: bool = true,
        /// First read all files and compare checksums and counts with trace.json.
        verify: bool = false,
    }
}

/// What to work out beyond the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The histogram of stack distances: the most expensive part.
    pub reuse: bool,
    /// The heat map: a second pass.
    pub heat_map: bool,
}

nearfar_schema::columns! {
    /// Pages touched in one interval of time.
    #[derive(Copy, Eq)]
    pub struct WorkingSet {
        /// Records up to the end of the interval.
        record: u64 as "at record",
        /// Bytes of the distinct 4 KiB pages touched in the interval.
        bytes: u64 ["bytes"] as "bytes touched",
        /// Bytes of the distinct 4 KiB pages touched since the start.
        footprint_bytes: u64 ["bytes"],
        /// Bytes of 4 KiB frames that the program has at the end of the interval; null where the trace
        /// does not say when pages end.
        resident_bytes: Option<u64> ["bytes"] as "bytes resident",
    }
    keys [record]
    metrics [bytes less, footprint_bytes less]
    seed []
}

nearfar_schema::columns! {
    /// One named part of the address space.
    #[derive(Eq)]
    pub struct Region {
        /// File, `[heap]`, `[stack]`, `(anonymous) 0x...`, `page cache: FILE`, `(unnamed)`, or a range.
        name: String as "region",
        /// First byte of the lowest page last touched under this name; null where regions were taken
        /// together.
        addr_low: Option<u64>,
        /// Byte after the highest one; may be 2^64.
        addr_high: Option<u128>,
        /// Distinct 4 KiB pages touched under this name.
        pages: u64 ["pages"],
        /// Records that begin here.
        records: u64,
        /// Of these, loads of the program.
        loads: u64,
        /// Stores of the program.
        stores: u64,
        /// Fetches of instructions.
        fetches: u64,
        /// Loads of the kernel for the program.
        kernel_loads: u64,
        /// Stores of the kernel for the program.
        kernel_stores: u64,
    }
    keys [name]
    metrics [records less, pages less]
    seed []
}

nearfar_schema::columns! {
    /// References with a stack distance d, 2^k <= d < 2^(k+1).
    #[derive(Copy, Eq)]
    pub struct ReuseBin {
        /// k; null for first touches, which have no distance.
        distance_log2: Option<u32> as "distance",
        /// Page touches.
        count: u64 as "references",
    }
    keys [distance_log2]
    metrics [count less]
    seed []
}

/// Reads and writes of data, fetches left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Mix {
    /// Loads and kernel loads.
    pub reads: u64,
    /// Stores and kernel stores.
    pub writes: u64,
    /// writes / (reads + writes); 0 when there are neither.
    pub write_share: f64,
}

/// What a trace holds. Serialised, it is what `nearfar info --format json` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The trace folder.
    pub trace: String,
    /// Where it came from.
    pub source: Source,
    /// Version of nearfar that wrote it.
    pub tool: String,
    /// False when the writer was stopped before the end.
    pub complete: bool,
    /// Why it is not complete, where that is known.
    pub incomplete_reason: Option<String>,
    /// Records in all parts.
    pub records: u64,
    /// Instructions executed, all threads.
    pub instructions: u64,
    /// Instructions of the thread that executed most: how long the program ran.
    pub duration_instructions: u64,
    /// Records by kind.
    pub records_by_kind: BTreeMap<Kind, u64>,
    /// Reads and writes of data.
    pub mix: Mix,
    /// Bytes of the distinct 4 KiB pages touched.
    pub footprint_bytes: u64,
    /// Most bytes of 4 KiB frames at once ([`lifetimes::peak_resident`]), where the trace's events say
    /// when pages end.
    pub peak_resident_bytes: Option<u64>,
    /// Of the footprint, by kind; a page touched by two kinds counts for both.
    pub footprint_by_kind_bytes: BTreeMap<Kind, u64>,
    /// Bytes of the parts on disk.
    pub file_bytes: u64,
    /// Threads, by index.
    pub threads: Vec<ThreadInfo>,
    /// At most [`BINS`] intervals of time.
    pub working_set: Vec<WorkingSet>,
    /// Hottest first; at most [`REGIONS`], then one for all others.
    pub regions: Vec<Region>,
    /// Page touches by stack distance (Mattson et al. 1970): distinct pages touched since the last
    /// touch of this page, itself included, so 1 is a repeat. Empty unless asked for.
    pub reuse: Vec<ReuseBin>,
}

/// Read the trace and say what it holds.
pub fn summarize(
    reader: &Reader,
    options: Options,
    on_progress: OnProgress<'_>,
) -> Result<(Summary, Option<HeatMap>)> {
    let info = reader.info();
    let process: FxHashMap<u32, u32> = info.threads.iter().map(|t| (t.index, t.process)).collect();
    let several = {
        let mut all = info.threads.iter().map(|thread| thread.process);
        let first = all.next();
        all.any(|process| Some(process) != first)
    };
    let process_of = |thread: u32| process.get(&thread).copied().unwrap_or(0);
    let per_bin = info.records.div_ceil(BINS).max(1);

    let resident = if lifetimes::known(reader)? { Some(Resident::new(reader)?) } else { None };
    let mut pass = Pass::new(Names::new(reader.regions()?), resident);
    let mut reuse = options.reuse.then(Reuse::new);
    let mut touched = Vec::new();
    let both = Both::new();
    let mut batches = reader.batches(Columns { thread: several, ..Columns::PAGING });
    let mut batch = Batch::default();
    let (mut done, mut next_progress) = (0u64, 0);
    let mut running = info.threads.first().map_or(0, |thread| thread.process);
    loop {
        // While a batch is counted, distances are worked out of the one before.
        std::mem::swap(&mut pass.touched, &mut touched);
        pass.touched.clear();
        let count = || -> Result<bool> {
            if !batches.next_into(&mut batch)? {
                return Ok(false);
            }
            let mut from = 0;
            while from < batch.len() {
                let at = done + from as u64;
                if pass.names.next_event() <= at {
                    pass.names.advance(at, process_of, running);
                    pass.epoch += 1;
                    if let Some(resident) = &mut pass.resident {
                        resident.events(at);
                    }
                }
                // Up to the next event, end of an interval, or change of process, nothing else changes.
                let end_of_bin = (at / per_bin + 1) * per_bin;
                let until = end_of_bin.min(pass.names.next_event()) - at;
                let mut to =
                    from + usize::try_from(until).map_or(batch.len(), |n| n.min(batch.len()));
                to = to.min(batch.len());
                if several {
                    let thread = batch.thread[from];
                    let same = batch.thread[from..to].iter().take_while(|&&t| t == thread).count();
                    to = from + same;
                    running = process_of(thread);
                }
                pass.process = running;
                if let Some(resident) = &mut pass.resident {
                    resident.runs(batch.thread.get(from).copied().unwrap_or(0));
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
        let (more, ()) = both.at_once(count, distances);
        if !more? {
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
    let of = |kind| by_kind.get(&kind).copied().unwrap_or(0);
    let reads = of(Kind::Load) + of(Kind::KernelLoad);
    let writes = of(Kind::Store) + of(Kind::KernelStore);
    let write_share = if writes == 0 { 0.0 } else { writes as f64 / (reads + writes) as f64 };

    let reuse = reuse.map_or_else(Vec::new, |reuse| reuse.bins(pass.repeats));
    let Pass { names, pages, state, counts, working_set, touched_pages, resident, .. } = pass;
    let (merged, names) = names.finish();
    let final_region = |id: u32| merged.get(id as usize).copied().unwrap_or(0);
    let all = regions(&state, &counts, &touched_pages, &final_region, names);
    let heat_map = if options.heat_map {
        let touched: Vec<(u64, u32)> =
            state.iter().map(|page| (page.number, final_region(page.region))).collect();
        drop(state);
        let name = |region: u32| all.get(region as usize).map_or("", |r| &r.name).to_owned();
        Some(heat::fill(reader, &both, touched, name, on_progress)?)
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
        footprint_by_kind_bytes: footprint,
        file_bytes: info.parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.bytes)),
        threads: info.threads.clone(),
        working_set,
        regions: hottest(all),
        reuse,
    };
    Ok((summary, heat_map))
}

/// Two threads, or one where no other can be started.
pub(crate) struct Both(Option<rayon::ThreadPool>);

impl Both {
    fn new() -> Self {
        Self(rayon::ThreadPoolBuilder::new().num_threads(2).build().ok())
    }

    /// Do both at once, if there are two.
    fn at_once<A: Send, B: Send>(
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

/// Last page that a record overlaps; addresses end at 2^64.
#[inline]
fn last_page(addr: u64, size: u16) -> u64 {
    last_byte(addr, size) >> PAGE_SHIFT
}

/// What is known of a page.
struct PageState {
    number: u64,
    /// Region at its last touch, right for `epoch` and `process`.
    region: u32,
    epoch: u32,
    process: u32,
    /// Interval of its last touch; intervals count from 1.
    bin: u16,
    kinds: u8,
    /// Which further touches by `process` leave the resident set as it is: see [`Resident::touch`].
    mark: u32,
}

/// Records by number of the kind (5 used; 8 so that a mask is in range).
type Counts = [u64; 8];

struct Pass {
    names: Names,
    pages: Pages,
    state: Vec<PageState>,
    /// By region id.
    counts: Vec<Counts>,
    touched_pages: Vec<u64>,
    /// Every (page, region) of the pages that were touched under several regions.
    several: FxHashSet<(u32, u32)>,
    epoch: u32,
    process: u32,
    bin: u16,
    in_bin: u64,
    working_set: Vec<WorkingSet>,
    resident: Option<Resident>,
    /// Pages touched in this batch, but for touches of the one just touched.
    touched: Vec<u32>,
    last: u32,
    repeats: u64,
}

impl Pass {
    fn new(names: Names, resident: Option<Resident>) -> Self {
        Self {
            names,
            pages: Pages::default(),
            state: Vec::new(),
            counts: Vec::new(),
            touched_pages: Vec::new(),
            several: FxHashSet::default(),
            epoch: 0,
            process: 0,
            bin: 1,
            in_bin: 0,
            working_set: Vec::new(),
            resident,
            touched: Vec::new(),
            last: u32::MAX,
            repeats: 0,
        }
    }

    fn records(&mut self, batch: &Batch, range: std::ops::Range<usize>) -> Result<()> {
        let records = batch.addr[range.clone()].iter().zip(&batch.kind[range.clone()]);
        for ((&addr, &kind), &size) in records.zip(&batch.size[range]) {
            let first = addr >> PAGE_SHIFT;
            let region = self.touch(first, kind);
            self.counts[region as usize][usize::from(kind & 7)] += 1;
            for page in first + 1..=last_page(addr, size) {
                self.touch(page, kind);
            }
        }
        if self.pages.len() >= pages::MAX_PAGES {
            return Err(Error::input(
                "trace",
                format!("touches over {} pages of 4 KiB", pages::MAX_PAGES),
                "look at a part of it",
            ));
        }
        Ok(())
    }

    /// Touch a page; returns its region.
    #[inline]
    fn touch(&mut self, number: u64, kind: u8) -> u32 {
        let (id, new) = self.pages.intern(number);
        if new {
            let (epoch, process) = (self.epoch, self.process);
            let region = self.names.region(process, number);
            self.grow(region);
            self.touched_pages[region as usize] += 1;
            self.state.push(PageState {
                number,
                region,
                epoch,
                process,
                bin: 0,
                kinds: 0,
                mark: 0,
            });
        }
        let page = &mut self.state[id as usize];
        page.kinds |= 1 << (kind & 7);
        if page.bin != self.bin {
            page.bin = self.bin;
            self.in_bin += 1;
        }
        if let Some(resident) = &mut self.resident {
            let mark = if page.process == self.process { page.mark } else { 0 };
            page.mark = resident.touch(mark, number, kind);
        }
        if id == self.last {
            self.repeats += 1;
        } else {
            self.last = id;
            self.touched.push(id);
        }
        if page.epoch == self.epoch && page.process == self.process {
            page.region
        } else {
            self.look_again(id)
        }
    }

    /// The mappings, or the process that looks, changed since the page was touched.
    #[cold]
    fn look_again(&mut self, id: u32) -> u32 {
        let page = &mut self.state[id as usize];
        let region = self.names.region(self.process, page.number);
        let before = std::mem::replace(&mut page.region, region);
        (page.epoch, page.process) = (self.epoch, self.process);
        if region != before {
            self.several.insert((id, before));
            let first = self.several.insert((id, region));
            self.grow(region);
            self.touched_pages[region as usize] += u64::from(first);
        }
        region
    }

    fn grow(&mut self, region: u32) {
        if self.counts.len() <= region as usize {
            self.counts.resize(region as usize + 1, [0; 8]);
            self.touched_pages.resize(region as usize + 1, 0);
        }
    }

    fn end_of_bin(&mut self, record: u64) {
        let bytes = self.in_bin * PAGE;
        let footprint_bytes = self.pages.len() as u64 * PAGE;
        let resident_bytes = self.resident.as_ref().map(|resident| resident.set.peak().now_bytes());
        self.working_set.push(WorkingSet { record, bytes, footprint_bytes, resident_bytes });
        self.in_bin = 0;
        self.bin += 1;
    }
}

/// All regions by final number, touched or not.
fn regions(
    state: &[PageState],
    counts: &[Counts],
    touched_pages: &[u64],
    final_region: &impl Fn(u32) -> u32,
    names: Vec<Option<String>>,
) -> Vec<Region> {
    let mut bounds = vec![(u64::MAX, 0u64); names.len()];
    for page in state {
        let (low, high) = &mut bounds[final_region(page.region) as usize];
        *low = page.number.min(*low);
        *high = page.number.max(*high);
    }
    let mut all: Vec<Region> = names
        .into_iter()
        .zip(bounds)
        .map(|(name, (low, high))| {
            // A region whose pages all went over to another has no place at the end.
            let known = low <= high;
            let addr_low = known.then_some(low << PAGE_SHIFT);
            let addr_high = known.then_some(u128::from(high + 1) << PAGE_SHIFT);
            let range = || format!("{:#x}-{:#x}", addr_low.unwrap_or(0), addr_high.unwrap_or(0));
            Region { addr_low, addr_high, ..empty(name.unwrap_or_else(range)) }
        })
        .collect();
    for (id, (counts, pages)) in counts.iter().zip(touched_pages).enumerate() {
        let region = &mut all[final_region(id as u32) as usize];
        let [loads, stores, fetches, kernel_loads, kernel_stores, ..] = *counts;
        add(
            region,
            &Region {
                pages: *pages,
                records: counts.iter().sum(),
                loads,
                stores,
                fetches,
                kernel_loads,
                kernel_stores,
                ..empty(String::new())
            },
        );
    }
    all
}

fn empty(name: String) -> Region {
    Region {
        name,
        addr_low: None,
        addr_high: None,
        pages: 0,
        records: 0,
        loads: 0,
        stores: 0,
        fetches: 0,
        kernel_loads: 0,
        kernel_stores: 0,
    }
}

fn add(to: &mut Region, more: &Region) {
    to.pages += more.pages;
    to.records += more.records;
    to.loads += more.loads;
    to.stores += more.stores;
    to.fetches += more.fetches;
    to.kernel_loads += more.kernel_loads;
    to.kernel_stores += more.kernel_stores;
}

/// Touched regions, most records first, the tail taken together.
fn hottest(mut all: Vec<Region>) -> Vec<Region> {
    all.retain(|region| region.pages > 0);
    // A stable sort: equally hot regions stay in the order in which they were mapped.
    all.sort_by_key(|region| std::cmp::Reverse(region.records));
    if all.len() > REGIONS {
        let rest = all.split_off(REGIONS);
        let mut others = empty(format!("({} others)", rest.len()));
        rest.iter().for_each(|region| add(&mut others, region));
        all.push(others);
    }
    all
}
