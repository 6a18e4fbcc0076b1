//! One pass over the trace: decoding and windows in one task, page sizes in others.

use nearfar_kernel::replacement::{Replacement, Setup, Visitor};
use nearfar_trace::{Batch, Columns, Error, Reader, RegionEvent, Result};
use rayon::prelude::*;

use super::clock::Clocks;
use super::direct::Direct;
use super::engine::{Engine, Outcome, SIZES};
use super::memory::Memories;
use super::options::{ClockInsert, Options};
use super::page_size::{Job, PageSize};
use super::sample::{self, GROUPS, Sample};
use super::stack::Stack;
use super::window::{Chunk, MAX_BLOCKS, Windower};
use crate::lifetimes::{self, Blocks, Spaces};

/// Records in a chunk: enough to keep both cores busy, few enough to stay in the shared cache.
const CHUNK: u64 = 1 << 20;

/// One page size x memory size.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Page size, bytes.
    pub page_bytes: u64,
    /// Memory size, bytes.
    pub memory_bytes: u64,
    /// Memory size as a part of [`Simulated::whole_bytes`], where it was given so.
    pub memory_fraction: Option<f64>,
    /// Frames: memory / page, at least 1.
    pub frames: u64,
    /// References at this page size: a record that lies over a border counts on both sides.
    pub references: u64,
    /// Page walks.
    pub tlb_misses: u64,
    /// First-level TLB misses that the second level held.
    pub tlb_second_hits: u64,
    /// Page faults; an estimate when sampled.
    pub faults: u64,
    /// Standard error of the faults when sampled.
    pub faults_error: Option<f64>,
    /// Evictions of written pages.
    pub dirty_evictions: u64,
    /// Distinct pages of this size: no memory can fault less.
    pub pages: u64,
    /// How many of the pages are of files.
    pub file_pages: u64,
    /// Kinds of faults and evictions; `None` for a memory of fewer than [`MIN_FRAMES`] frames.
    pub kinds: Option<FaultKinds>,
}

/// Frames below which a memory thrashes whatever the program does.
pub const MIN_FRAMES: u64 = 8;

/// Faults by what the kernel does for them, and evictions of written pages by where they are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultKinds {
    /// Pages filled with zeros, or with a copy.
    pub zero_fills: u64,
    /// First reads of pages of files.
    pub file_reads: u64,
    /// Pages read back from swap.
    pub swap_ins: u64,
    /// Pages of files read again.
    pub file_rereads: u64,
    /// Pages written to swap.
    pub swap_outs: u64,
    /// Pages written to files.
    pub write_backs: u64,
}

impl FaultKinds {
    /// Of an outcome, when `pages` were referenced, `files` of them of files. Estimates of a sample may
    /// contradict one another by their rounding.
    fn of(outcome: Outcome, pages: u64, files: u64) -> Self {
        let zero_fills = (pages - files + outcome.void_faults).min(outcome.faults);
        let file_reads = files.min(outcome.faults - zero_fills);
        let again = outcome.faults - zero_fills - file_reads;
        let file_rereads = outcome.file_faults.saturating_sub(file_reads).min(again);
        let write_backs = outcome.file_dirty_evictions.min(outcome.dirty_evictions);
        Self {
            zero_fills,
            file_reads,
            swap_ins: again - file_rereads,
            file_rereads,
            swap_outs: outcome.dirty_evictions - write_backs,
            write_backs,
        }
    }
}

/// Counts of a whole study.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulated {
    /// By page size, then in the order of the memory sizes given.
    pub cells: Vec<Cell>,
    /// Records that counted.
    pub records: u64,
    /// Bytes of the distinct 4 KiB pages they touched.
    pub footprint_bytes: u64,
    /// Pages ended, as the trace's events say.
    pub lifetimes: bool,
    /// What memory sizes are parts of, where some were: the peak resident set, or the footprint of
    /// pages that never end.
    pub whole_bytes: u64,
}

/// Makes the engines of a policy.
struct Engines {
    memories: Vec<Setup>,
    clock_insert: ClockInsert,
}

impl Engines {
    /// An engine for every [`SIZES`] memories.
    fn each<E: Engine + 'static>(self, make: impl Fn(&[Setup]) -> E) -> Vec<Box<dyn Engine>> {
        let engine = |memories| Box::new(make(memories)) as Box<dyn Engine>;
        self.memories.chunks(SIZES).map(engine).collect()
    }
}

impl Visitor for Engines {
    type Output = Vec<Box<dyn Engine>>;

    fn faults<P: Replacement>(self) -> Self::Output {
        self.each(Memories::<P>::new)
    }

    fn clock(self) -> Self::Output {
        match self.clock_insert {
            ClockInsert::Set => self.each(Clocks::new),
            ClockInsert::Clear => self.each(Direct::new),
        }
    }

    fn lru(self) -> Self::Output {
        vec![Box::new(Stack::new(&self.memories))]
    }
}

/// Refuse an empty or impossible trace; answers the footprint in bytes.
pub fn footprint_bytes(reader: &Reader, options: &Options) -> Result<u64> {
    let place = || reader.path().display().to_string();
    if reader.info().records_of(options.kinds) == 0 {
        return Err(Error::input(
            place(),
            format!("holds no {} records", options.kinds.label()),
            "capture again, or choose other --kinds",
        ));
    }
    Ok(reader.info().footprint_pages(options.kinds).max(1).saturating_mul(4096))
}

/// Whether pages end, and the bytes that memory sizes are parts of: the peak resident set then, which
/// takes a pass over the trace unless no size is a part, else the footprint.
///
/// # Errors
/// The trace cannot be read; what `on_progress` raises.
pub fn whole_bytes(
    reader: &Reader,
    options: &Options,
    footprint_bytes: u64,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<(bool, u64)> {
    let lifetimes = options.lifetimes && lifetimes::known(reader)?;
    Ok(match lifetimes && options.has_fractions() {
        true => {
            (true, lifetimes::peak_resident(reader, options.kinds, options.files, on_progress)?)
        }
        false => (lifetimes, footprint_bytes),
    })
}

/// Simulate every page size and memory size of `options`: in one pass over the trace, or in as few
/// as keep within `options.max_memory` (see [`passes`]). The passes change no result.
///
/// `on_progress` is called now and then with the records done so far; its error ends the run.
pub fn simulate(
    reader: &Reader,
    options: &Options,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Simulated> {
    let footprint_bytes = footprint_bytes(reader, options)?;
    let records = reader.info().records_of(options.kinds);
    let (lifetimes, whole_bytes) =
        whole_bytes(reader, options, footprint_bytes, &mut |_| on_progress(0))?;
    let study = Study { reader, options, lifetimes, whole_bytes, footprint_bytes };
    let mut cells = Vec::new();
    let mut done = 0;
    for page_sizes in passes(&study, records) {
        let (some, read) = study.pass(page_sizes, &mut |records| on_progress(done + records))?;
        cells.extend(some);
        done += read;
    }
    Ok(Simulated { cells, records, footprint_bytes, lifetimes, whole_bytes })
}

/// What is the same in every pass.
struct Study<'a> {
    reader: &'a Reader,
    options: &'a Options,
    lifetimes: bool,
    whole_bytes: u64,
    footprint_bytes: u64,
}

/// Bytes a page takes in the window cutter: its id and where it was last seen.
const BLOCK_BYTES: u64 = 40;
/// Bytes a page takes at a page size that is not the blocks' own: id, state, TLB slot.
const PAGE_BYTES: u64 = 60;
/// The same where pages are blocks, so that one id serves both.
const OWN_BYTES: u64 = 20;
/// Bytes that a page takes besides where pages end.
const LIFE_BYTES: u64 = 120;

/// Page sizes of each pass over the trace: as many together as are estimated to fit in
/// `options.max_memory`, at least one.
fn passes<'a>(study: &Study<'a>, records: u64) -> Vec<&'a [u64]> {
    let Study { options, footprint_bytes: footprint, .. } = *study;
    let memory = options.memory_bytes(study.whole_bytes);
    // No more pages than the footprint has room for, nor than references to touch them.
    let pages = |page: u64| (footprint / page.min(4096)).min(records.saturating_mul(2));
    let cost = |page: u64, block: u64| {
        let pages = pages(page);
        let rings = memory.iter().map(|(bytes, _)| (bytes / page).min(pages));
        let each = match study.lifetimes {
            // Every memory knows in which frame a page is.
            true => PAGE_BYTES + LIFE_BYTES + 4 * memory.len() as u64,
            false if page == block => OWN_BYTES,
            false => PAGE_BYTES,
        };
        pages.saturating_mul(each).saturating_add(rings.sum::<u64>().saturating_mul(4))
    };
    let mut passes = Vec::new();
    let mut start = 0;
    while start < options.page_sizes.len() {
        let block = options.page_sizes[start];
        let mut bytes = pages(block).saturating_mul(BLOCK_BYTES);
        let mut end = start;
        while let Some(&page) = options.page_sizes.get(end) {
            bytes = bytes.saturating_add(cost(page, block));
            if end > start && bytes > options.max_memory {
                break;
            }
            end += 1;
        }
        passes.push(&options.page_sizes[start..end]);
        start = end;
    }
    passes
}

impl Study<'_> {
    /// One pass over the trace for some page sizes; answers their cells and the records read.
    fn pass(
        &self,
        page_sizes: &[u64],
        on_progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<(Vec<Cell>, u64)> {
        let Self { reader, options, lifetimes: lives, .. } = *self;
        let memory = options.memory_bytes(self.whole_bytes);
        let smallest = page_sizes[0].trailing_zeros();
        // What ends, ends by pages of 4 KiB.
        let block_shift = if lives { smallest.min(lifetimes::PAGE) } else { smallest };
        // Memories with equally many frames are one memory: large pages leave few different ones.
        let frames: Vec<Vec<u64>> = page_sizes
            .iter()
            .map(|page| memory.iter().map(|(bytes, _)| (bytes / page).max(1)).collect())
            .collect();
        let different: Vec<Vec<u64>> = frames
            .iter()
            .map(|frames| {
                let mut frames = frames.clone();
                frames.sort_unstable();
                frames.dedup();
                frames
            })
            .collect();
        let mut jobs: Vec<PageSize> = Vec::new();
        // Jobs of each page size: one, or the TLB's and one a sampled group.
        let mut places = Vec::new();
        for (&page, frames) in page_sizes.iter().zip(&different) {
            let start = jobs.len();
            let shift = page.trailing_zeros();
            let mut push = |sample, tlb, frames: &[u64]| {
                let setup = |&frames| options.setup(frames, page, lives);
                let memories: Vec<Setup> = frames.iter().map(setup).collect();
                let engines = match memories.is_empty() {
                    true => Vec::new(),
                    false => options
                        .replacement
                        .visit(Engines { memories, clock_insert: options.clock_insert }),
                };
                let files = options.files;
                jobs.push(PageSize::new(Job {
                    shift,
                    block_shift,
                    tlb,
                    sample,
                    lives,
                    files,
                    engines,
                }));
            };
            let pages = self.footprint_bytes as f64 / page.max(4096) as f64;
            match options.sample.filter(|&rate| sample::worth_it(pages, rate)) {
                Some(rate) => {
                    push(None, Some(options.tlb), &[]);
                    for group in 0..GROUPS {
                        let sample = Sample::group(rate, group);
                        let frames: Vec<u64> = frames.iter().map(|&f| sample.frames(f)).collect();
                        push(Some(sample), None, &frames);
                    }
                }
                None => push(None, Some(options.tlb), frames),
            }
            places.push(start..jobs.len());
        }

        let first = options.tlb.first;
        let held = if first.ways.is_none_or(|ways| ways == first.entries) {
            first.entries as usize
        } else {
            MAX_BLOCKS
        };
        let mut windower = Windower::new(block_shift, held.min(MAX_BLOCKS), options.kinds);
        if options.clock_insert == ClockInsert::Clear {
            windower = windower.keeping_all();
        }
        let mut events = Vec::new();
        if lives {
            let largest = page_sizes.iter().max().map_or(block_shift, |page| page.trailing_zeros());
            let spaces = Spaces::new(&reader.info().threads);
            windower = windower.with_lives(Blocks::new(block_shift, largest, spaces));
            events = reader.regions()?;
            events.sort_by_key(|event| event.at);
        }
        let mut source = Source {
            batches: reader.batches(Columns { thread: lives, ..Columns::PAGING }),
            windower,
            batch: Batch::default(),
            events: events.into_iter().peekable(),
            at: 0,
        };
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(options.threads)
            .build()
            .map_err(|e| Error::input("--threads", e.to_string(), "ask for fewer threads"))?;

        let (mut records, mut crossings) = (0, vec![0u64; 64]);
        let (mut current, mut next) = (Chunk::default(), Chunk::default());
        let mut more = source.fill(&mut current)?;
        while more {
            records += current.records;
            crossings.iter_mut().zip(&current.crossings).for_each(|(sum, n)| *sum += n);
            let (filled, ()) = pool.install(|| {
                rayon::join(
                    || source.fill(&mut next),
                    || jobs.par_iter_mut().with_max_len(1).for_each(|job| job.chunk(&current)),
                )
            });
            more = filled?;
            std::mem::swap(&mut current, &mut next);
            on_progress(records)?;
        }

        let mut cells = Vec::new();
        for ((place, frames), different) in places.into_iter().zip(&frames).zip(&different) {
            let first = &jobs[place.start];
            let outcomes: Vec<Counted> = match place.len() {
                1 => first
                    .outcomes()
                    .into_iter()
                    .map(|outcome| Counted::exact(outcome, first))
                    .collect(),
                _ => sampled_outcomes(&jobs[place.start + 1..place.end]),
            };
            let tlb = first.tlb();
            for (&frames, &(memory_bytes, memory_fraction)) in frames.iter().zip(&memory) {
                let index = different.binary_search(&frames).unwrap_or(0);
                let Counted { outcome, faults_error, pages, files } = outcomes[index];
                let kinds = (frames >= MIN_FRAMES).then(|| FaultKinds::of(outcome, pages, files));
                cells.push(Cell {
                    page_bytes: 1 << first.shift,
                    memory_bytes,
                    memory_fraction,
                    frames,
                    references: records + crossings[first.shift as usize],
                    tlb_misses: tlb.misses,
                    tlb_second_hits: tlb.second_hits,
                    faults: outcome.faults,
                    faults_error,
                    dirty_evictions: outcome.dirty_evictions,
                    pages: first.pages(),
                    file_pages: first.pages_of_files(),
                    kinds,
                });
            }
        }
        Ok((cells, records))
    }
}

/// What a memory came to, and of how many pages.
#[derive(Clone, Copy)]
struct Counted {
    outcome: Outcome,
    /// Standard error of the faults, of a sample.
    faults_error: Option<f64>,
    pages: u64,
    files: u64,
}

impl Counted {
    fn exact(outcome: Outcome, job: &PageSize) -> Self {
        Self { outcome, faults_error: None, pages: job.pages(), files: job.pages_of_files() }
    }
}

/// Estimates of the whole from the groups' outcomes.
fn sampled_outcomes(groups: &[PageSize]) -> Vec<Counted> {
    let outcomes: Vec<(&PageSize, Vec<Outcome>)> =
        groups.iter().map(|group| (group, group.outcomes())).collect();
    let memories = outcomes.first().map_or(0, |(_, outcomes)| outcomes.len());
    (0..memories)
        .map(|memory| {
            let estimate = |count: &dyn Fn(&PageSize, &Outcome) -> u64| {
                let scaled = |(group, outcomes): &(&PageSize, Vec<Outcome>)| {
                    count(group, &outcomes[memory]) as f64 / group.rate()
                };
                sample::estimate(&outcomes.iter().map(scaled).collect::<Vec<f64>>())
            };
            let mean = |count: fn(&Outcome) -> u64| {
                estimate(&|_, outcome| count(outcome)).0.round() as u64
            };
            let outcome = Outcome {
                faults: mean(|o| o.faults),
                dirty_evictions: mean(|o| o.dirty_evictions),
                file_faults: mean(|o| o.file_faults),
                file_dirty_evictions: mean(|o| o.file_dirty_evictions),
                void_faults: mean(|o| o.void_faults),
            };
            let (_, error) = estimate(&|_, outcome| outcome.faults);
            let pages = estimate(&|group, _| group.pages()).0.round() as u64;
            let files = estimate(&|group, _| group.pages_of_files()).0.round() as u64;
            Counted { outcome, faults_error: Some(error), pages, files: files.min(pages) }
        })
        .collect()
}

struct Source {
    batches: nearfar_trace::reader::Batches,
    windower: Windower,
    batch: Batch,
    /// Events of the address spaces that are still to come, where pages end.
    events: std::iter::Peekable<std::vec::IntoIter<RegionEvent>>,
    /// Records read so far.
    at: u64,
}

impl Source {
    /// The next chunk; false at the end of the trace.
    fn fill(&mut self, chunk: &mut Chunk) -> Result<bool> {
        self.windower.begin(chunk);
        let mut read = 0;
        while read < CHUNK && self.batches.next_into(&mut self.batch)? {
            let mut place = 0;
            while place < self.batch.len() {
                while let Some(event) = self.events.next_if(|event| event.at <= self.at) {
                    self.windower.event(&event, chunk);
                }
                let left = self.batch.len() - place;
                let until = self.events.peek().map_or(u64::MAX, |event| event.at - self.at);
                let range = place..place + until.min(left as u64) as usize;
                if let Some(blocks) = self.windower.lives() {
                    blocks.spaces().tell_apart(&mut self.batch, range.clone());
                }
                self.windower.add(&self.batch, range.clone(), chunk);
                self.at += range.len() as u64;
                place = range.end;
            }
            read += self.batch.len() as u64;
        }
        self.windower.end(chunk);
        Ok(read > 0)
    }
}
