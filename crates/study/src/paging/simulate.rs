//! One pass over the trace: decoding and windows in one task, page sizes in others.

use nearfar_kernel::replacement::{Replacement, Visitor};
use nearfar_trace::{Batch, Columns, Error, Reader, Result};
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

/// Records in a chunk: enough to keep both cores busy, few enough to stay in the shared cache.
const CHUNK: u64 = 1 << 20;

/// One page size x memory size.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Page size, bytes.
    pub page_bytes: u64,
    /// Memory size, bytes.
    pub memory_bytes: u64,
    /// Memory size as a part of the footprint, where it was given so.
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
}

/// Makes the engines of a policy: memories of `frames` frames each, all of `page_bytes`.
struct Engines<'a> {
    frames: &'a [u64],
    page_bytes: u64,
    options: &'a Options,
}

impl Engines<'_> {
    /// An engine for every [`SIZES`] memories.
    fn each<E: Engine + 'static>(self, make: impl Fn(&[u64]) -> E) -> Vec<Box<dyn Engine>> {
        let engine = |frames| Box::new(make(frames)) as Box<dyn Engine>;
        self.frames.chunks(SIZES).map(engine).collect()
    }
}

impl Visitor for Engines<'_> {
    type Output = Vec<Box<dyn Engine>>;

    fn faults<P: Replacement>(self) -> Self::Output {
        let page_bytes = self.page_bytes;
        self.each(|frames| Memories::<P>::new(frames, page_bytes))
    }

    fn clock(self) -> Self::Output {
        let Self { page_bytes, options, .. } = self;
        match options.clock_insert {
            ClockInsert::Set => self.each(|frames| Clocks::new(frames, page_bytes)),
            ClockInsert::Clear => {
                self.each(|frames| Direct::new(frames, page_bytes, options.kinds))
            }
        }
    }

    fn lru(self) -> Self::Output {
        vec![Box::new(Stack::new(self.frames))]
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
    let mut cells = Vec::new();
    let mut done = 0;
    for page_sizes in passes(options, footprint_bytes, records) {
        let (some, read) = pass(reader, options, page_sizes, footprint_bytes, &mut |records| {
            on_progress(done + records)
        })?;
        cells.extend(some);
        done += read;
    }
    Ok(Simulated { cells, records, footprint_bytes })
}

/// Bytes a page takes in the window cutter: its id and where it was last seen.
const BLOCK_BYTES: u64 = 40;
/// Bytes a page takes at a page size that is not the blocks' own: id, state, TLB slot.
const PAGE_BYTES: u64 = 60;
/// The same where pages are blocks, so that one id serves both.
const OWN_BYTES: u64 = 20;

/// Page sizes of each pass over the trace: as many together as are estimated to fit in
/// `options.max_memory`, at least one.
fn passes(options: &Options, footprint: u64, records: u64) -> Vec<&[u64]> {
    let memory = options.memory_bytes(footprint);
    // No more pages than the footprint has room for, nor than references to touch them.
    let pages = |page: u64| (footprint / page.min(4096)).min(records.saturating_mul(2));
    let cost = |page: u64, block: u64| {
        let pages = pages(page);
        let rings = memory.iter().map(|(bytes, _)| bytes / page).filter(|&frames| frames < pages);
        let each = if page == block { OWN_BYTES } else { PAGE_BYTES };
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

/// One pass over the trace for some page sizes; answers their cells and the records read.
fn pass(
    reader: &Reader,
    options: &Options,
    page_sizes: &[u64],
    footprint: u64,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<(Vec<Cell>, u64)> {
    let memory = options.memory_bytes(footprint);
    let block_shift = page_sizes[0].trailing_zeros();
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
            let engines = Engines { frames, page_bytes: page, options };
            let engines =
                if frames.is_empty() { Vec::new() } else { options.replacement.visit(engines) };
            jobs.push(PageSize::new(Job { shift, block_shift, tlb, sample, engines }));
        };
        let pages = footprint as f64 / page.max(4096) as f64;
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
    let mut source = Source {
        batches: reader.batches(Columns::PAGING),
        windower: Windower::new(block_shift, held.min(MAX_BLOCKS), options.kinds),
        batch: Batch::default(),
        keep: options.clock_insert == ClockInsert::Clear,
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
        let outcomes: Vec<(Outcome, Option<f64>)> = match place.len() {
            1 => first.outcomes().into_iter().map(|outcome| (outcome, None)).collect(),
            _ => sampled_outcomes(&jobs[place.start + 1..place.end]),
        };
        let tlb = first.tlb();
        for (&frames, &(memory_bytes, memory_fraction)) in frames.iter().zip(&memory) {
            let index = different.binary_search(&frames).unwrap_or(0);
            let (Outcome { faults, dirty_evictions }, faults_error) = outcomes[index];
            cells.push(Cell {
                page_bytes: 1 << first.shift,
                memory_bytes,
                memory_fraction,
                frames,
                references: records + crossings[first.shift as usize],
                tlb_misses: tlb.misses,
                tlb_second_hits: tlb.second_hits,
                faults,
                faults_error,
                dirty_evictions,
                pages: first.pages(),
            });
        }
    }
    Ok((cells, records))
}

/// Estimates of the whole from the groups' outcomes: faults, dirty evictions, and the standard
/// error of the faults.
fn sampled_outcomes(groups: &[PageSize]) -> Vec<(Outcome, Option<f64>)> {
    let outcomes: Vec<(f64, Vec<Outcome>)> =
        groups.iter().map(|group| (group.rate(), group.outcomes())).collect();
    let memories = outcomes.first().map_or(0, |(_, outcomes)| outcomes.len());
    (0..memories)
        .map(|memory| {
            let scaled = |count: fn(&Outcome) -> u64| -> Vec<f64> {
                outcomes.iter().map(|(rate, o)| count(&o[memory]) as f64 / rate).collect()
            };
            let (faults, error) = sample::estimate(&scaled(|o| o.faults));
            let (dirty, _) = sample::estimate(&scaled(|o| o.dirty_evictions));
            let outcome =
                Outcome { faults: faults.round() as u64, dirty_evictions: dirty.round() as u64 };
            (outcome, Some(error))
        })
        .collect()
}

struct Source {
    batches: nearfar_trace::reader::Batches,
    windower: Windower,
    batch: Batch,
    keep: bool,
}

impl Source {
    /// The next chunk; false at the end of the trace.
    fn fill(&mut self, chunk: &mut Chunk) -> Result<bool> {
        self.windower.begin(chunk);
        let mut read = 0;
        while read < CHUNK && self.batches.next_into(&mut self.batch)? {
            self.windower.add(&self.batch, chunk);
            read += self.batch.len() as u64;
            if self.keep {
                chunk.batches.push(std::mem::take(&mut self.batch));
            }
        }
        self.windower.end(chunk);
        Ok(read > 0)
    }
}
