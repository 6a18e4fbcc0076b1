//! One pass over the trace: decoding and windows in one task, page sizes in others.

use nearfar_kernel::replacement::clock::Clock;
use nearfar_kernel::replacement::{Replacement, Setup, Visitor};
use nearfar_trace::{Error, Reader, Result};
use rayon::ThreadPool;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::cell::{Cell, Size, TooFewFrames};
use super::direct::Direct;
use super::engine::{Engine, SIZES, Thresholds};
use super::memory::Memories;
use super::options::{ClockInsert, Options};
use super::page_size::{Job, PageSize};
use super::sample::{self, LeftOut, Sample, Sampled};
use super::source::{Kept, Source};
use super::stack::Stack;
use super::window::Chunk;
use crate::lifetimes::{self, ResidentSet};

/// Counts of a whole study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// Page sizes that a sample has too few pages of: they have no cells.
    pub left_out: Vec<LeftOut>,
    /// Cells that are not simulated, by page size.
    pub too_few_frames: Vec<TooFewFrames>,
}

/// Makes the engines of a policy.
struct Engines {
    memories: Vec<Setup>,
    clock_insert: ClockInsert,
    thresholds: Thresholds,
}

impl Engines {
    /// An engine for every [`SIZES`] memories.
    fn each<E: Engine + 'static>(
        memories: &[Setup],
        make: impl Fn(&[Setup]) -> E,
    ) -> Vec<Box<dyn Engine>> {
        let engine = |memories| Box::new(make(memories)) as Box<dyn Engine>;
        memories.chunks(SIZES).map(engine).collect()
    }
}

impl Visitor for Engines {
    type Output = Vec<Box<dyn Engine>>;

    fn faults<P: Replacement>(self) -> Self::Output {
        Self::each(&self.memories, |memories| Memories::<P>::new(memories, self.thresholds))
    }

    fn clock(self) -> Self::Output {
        match self.clock_insert {
            ClockInsert::Set => self.faults::<Clock>(),
            ClockInsert::Clear => Self::each(&self.memories, Direct::new),
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
    if !lifetimes || !options.has_fractions() {
        return Ok((lifetimes, footprint_bytes));
    }
    let set = ResidentSet::new(options.spaces(reader), options.files);
    Ok((true, lifetimes::peak_resident(reader, options.kinds, set, on_progress)?))
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
    let lifetimes = options.lifetimes && lifetimes::known(reader)?;
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(options.threads)
        .build()
        .map_err(|e| Error::input("--threads", e.to_string(), "ask for fewer threads"))?;
    let mut study =
        Study { reader, options, lifetimes, whole_bytes: footprint_bytes, footprint_bytes, pool };

    if let Some(rate) = options.sample {
        return study.sampled(rate, records, on_progress);
    }
    if lifetimes && options.has_fractions() {
        if let [all] = passes(&study, &options.page_sizes, records)[..] {
            let source = study.source(all)?;
            let block_shift = source.block_shift;
            let mut progress = |done| on_progress(done / 2);
            if let Some(kept) = Kept::new(source, options, records, &study.pool, &mut progress)? {
                study.whole_bytes = kept.peak_bytes;
                let chunks = Chunks::Kept { chunks: kept.chunks.into_iter(), block_shift };
                let cells =
                    study.pass(all, chunks, &mut |done| on_progress((records + done) / 2))?;
                return Ok(study.simulated(cells, records));
            }
        }
        let progress = &mut |_| on_progress(0);
        (_, study.whole_bytes) = whole_bytes(reader, options, footprint_bytes, progress)?;
    }
    let mut cells = Vec::new();
    let simulated = options.simulated_pages(&options.memory_bytes(study.whole_bytes));
    for (pass, page_sizes) in (0..).zip(passes(&study, simulated, records)) {
        let chunks = Chunks::Cut(Box::new(study.source(page_sizes)?));
        let mut progress = |done| on_progress(pass * records + done);
        cells.extend(study.pass(page_sizes, chunks, &mut progress)?);
    }
    Ok(study.simulated(cells, records))
}

/// What is the same in every pass.
struct Study<'a> {
    reader: &'a Reader,
    options: &'a Options,
    lifetimes: bool,
    whole_bytes: u64,
    footprint_bytes: u64,
    pool: ThreadPool,
}

/// Bytes a page takes in the window cutter: its id and where it was last seen.
const BLOCK_BYTES: u64 = 40;
/// Bytes a page takes at a page size that is not the blocks' own: id, state, TLB slot.
const PAGE_BYTES: u64 = 60;
/// The same where pages are blocks, so that one id serves both.
const OWN_BYTES: u64 = 20;
/// Bytes that a page takes besides where pages end.
const LIFE_BYTES: u64 = 120;

/// The page sizes of each pass over the trace, of these: as many together as are estimated to fit in
/// `options.max_memory`, at least one.
fn passes<'a>(study: &Study<'a>, page_sizes: &'a [u64], records: u64) -> Vec<&'a [u64]> {
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
    while start < page_sizes.len() {
        let block = page_sizes[start];
        let mut bytes = pages(block).saturating_mul(BLOCK_BYTES);
        let mut end = start;
        while let Some(&page) = page_sizes.get(end) {
            bytes = bytes.saturating_add(cost(page, block));
            if end > start && bytes > options.max_memory {
                break;
            }
            end += 1;
        }
        passes.push(&page_sizes[start..end]);
        start = end;
    }
    passes
}

impl<'a> Study<'a> {
    fn source(&self, page_sizes: &[u64]) -> Result<Source> {
        Source::new(self.reader, self.options, page_sizes, self.lifetimes)
    }

    /// One pass over the trace for some page sizes.
    fn pass(
        &self,
        page_sizes: &[u64],
        mut chunks: Chunks,
        on_progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Vec<Cell>> {
        let memory = self.options.memory_bytes(self.whole_bytes);
        let block_shift = chunks.block_shift();
        let mut sizes: Vec<Size> =
            page_sizes.iter().filter_map(|&page| self.size(page, block_shift, &memory)).collect();
        let mut jobs: Vec<&mut PageSize> = sizes.iter_mut().map(|size| &mut size.job).collect();
        let (mut records, mut crossings) = (0, [0u64; 64]);
        let (mut current, mut next) = (Chunk::default(), Chunk::default());
        let mut more = chunks.next_into(&mut current)?;
        while more {
            records += current.records;
            crossings.iter_mut().zip(&current.crossings).for_each(|(sum, n)| *sum += n);
            let (filled, ()) = self.pool.install(|| {
                rayon::join(
                    || chunks.next_into(&mut next),
                    || jobs.par_iter_mut().with_max_len(1).for_each(|job| job.chunk(&current)),
                )
            });
            more = filled?;
            std::mem::swap(&mut current, &mut next);
            on_progress(records)?;
        }
        let references = |size: &Size| records + crossings[size.shift() as usize];
        Ok(sizes.iter().flat_map(|size| size.cells(references(size))).collect())
    }

    /// What is simulated at a page size, if anything.
    fn size(
        &self,
        page_bytes: u64,
        block_shift: u32,
        memory: &[(u64, Option<f64>)],
    ) -> Option<Size> {
        let memories = self.options.memories(page_bytes, memory);
        // Memories with equally many frames are one memory: large pages leave few different ones.
        let mut frames: Vec<u64> = memories.iter().map(|memory| memory.frames).collect();
        frames.sort_unstable();
        frames.dedup();
        if frames.is_empty() {
            return None;
        }
        let job = PageSize::new(Job {
            tlb: Some(self.options.tlb),
            ..self.job(page_bytes, block_shift, None, &frames)
        });
        Some(Size { job, memories, frames })
    }

    /// Memories of so many frames at a page size.
    fn job(
        &self,
        page_bytes: u64,
        block_shift: u32,
        sample: Option<Sample>,
        frames: &[u64],
    ) -> Job {
        let Self { options, lifetimes: lives, .. } = *self;
        let setup = |&frames| options.setup(frames, page_bytes, lives);
        let memories: Vec<Setup> = frames.iter().map(setup).collect();
        let Options { clock_insert, thresholds, .. } = *options;
        let engines = options.replacement.visit(Engines { memories, clock_insert, thresholds });
        let prefetch_pages = thresholds.prefetch_pages;
        let (shift, files) = (page_bytes.trailing_zeros(), options.files);
        Job { shift, block_shift, tlb: None, sample, lives, files, engines, prefetch_pages }
    }

    /// The study of a part of the trace.
    fn sampled(
        &mut self,
        rate: f64,
        records: u64,
        on_progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Simulated> {
        let Self { reader, options, lifetimes: lives, footprint_bytes, .. } = *self;
        let mut chosen = sample::choose(options, rate, footprint_bytes)?;
        (_, self.whole_bytes) =
            whole_bytes(reader, options, footprint_bytes, &mut |_| on_progress(0))?;
        let memory = options.memory_bytes(self.whole_bytes);
        let simulated = options.simulated_pages(&memory);
        chosen.sizes.retain(|page| simulated.contains(page));
        if chosen.sizes.is_empty() {
            return Ok(self.simulated(Vec::new(), records));
        }
        let sampled = Sampled { reader, options, lives, memory: &memory, pool: &self.pool };
        let job = |page_bytes, block_shift, sample, frames: &[u64]| {
            PageSize::new(self.job(page_bytes, block_shift, Some(sample), frames))
        };
        let (cells, left_out) = sampled.cells(&chosen, rate, on_progress, job)?;
        let mut simulated = self.simulated(cells, records);
        simulated
            .too_few_frames
            .retain(|cell| left_out.iter().all(|out| out.page_bytes != cell.page_bytes));
        Ok(Simulated { left_out, ..simulated })
    }

    fn simulated(&self, cells: Vec<Cell>, records: u64) -> Simulated {
        let Self { footprint_bytes, lifetimes, whole_bytes, .. } = *self;
        let too_few_frames = self.options.too_few_frames(&self.options.memory_bytes(whole_bytes));
        Simulated {
            cells,
            records,
            footprint_bytes,
            lifetimes,
            whole_bytes,
            left_out: Vec::new(),
            too_few_frames,
        }
    }
}

/// Where the chunks of a pass come from.
enum Chunks {
    /// From the trace.
    Cut(Box<Source>),
    /// They were kept.
    Kept { chunks: std::vec::IntoIter<Chunk>, block_shift: u32 },
}

impl Chunks {
    fn block_shift(&self) -> u32 {
        match self {
            Chunks::Cut(source) => source.block_shift,
            Chunks::Kept { block_shift, .. } => *block_shift,
        }
    }

    /// The next chunk; false when there is none.
    fn next_into(&mut self, chunk: &mut Chunk) -> Result<bool> {
        match self {
            Chunks::Cut(source) => source.fill(chunk),
            Chunks::Kept { chunks, .. } => {
                let next = chunks.next();
                let more = next.is_some();
                *chunk = next.unwrap_or_default();
                Ok(more)
            }
        }
    }
}
