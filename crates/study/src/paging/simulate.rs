//! Passes over the trace: one task cuts records into windows while others simulate the page sizes.

use nearfar_kernel::replacement::{Replacement, Setup, Visitor};
use nearfar_trace::{Error, PageSample, Reader, Result};
use rayon::ThreadPool;
use rayon::prelude::*;

use super::cell::{Cell, Size, TooFewFrames};
use super::engine::{Engine, SIZES};
use super::memory::Memories;
use super::options::Options;
use super::page_size::{Job, PageSize};
use super::sample::records::TraceSample;
use super::sample::{self, Larger, LeftOut, PAGE, Sample, Sampled};
use super::source::{Source, cached_chunks};
use super::stack::Stack;
use super::window::Chunk;
use crate::jobs;
use crate::lifetimes::{self, ResidentSet};

/// Counts of a whole study.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulated {
    /// By page size, then in the order of the memory sizes given.
    pub cells: Vec<Cell>,
    /// Records of the selected kinds; for a sample, the references that the program made.
    pub records: u64,
    /// Bytes of the distinct 4 KiB pages that these records touched.
    pub footprint_bytes: u64,
    /// Pages were freed according to the trace's events.
    pub lifetimes: bool,
    /// The memory size of 100 %: the peak resident set if pages have lifetimes and a memory size is a
    /// fraction, else the footprint.
    pub whole_bytes: u64,
    /// Page sizes without cells, because a sampled trace lacks the references that they need.
    pub left_out: Vec<LeftOut>,
    /// Cells that were not simulated, by page size.
    pub too_few_frames: Vec<TooFewFrames>,
}

/// Creates the engines of a policy.
struct Engines(Vec<Setup>);

impl Visitor for Engines {
    type Output = Vec<Box<dyn Engine>>;

    /// Engines of policies that see only faults, each for up to [`SIZES`] memory sizes.
    fn faults<P: Replacement>(self) -> Self::Output {
        let engine = |memories: &[_]| Box::new(Memories::<P>::new(memories)) as Box<dyn Engine>;
        self.0.chunks(SIZES).map(engine).collect()
    }

    fn lru(self) -> Self::Output {
        vec![Box::new(Stack::new(&self.0))]
    }
}

/// The footprint in bytes.
///
/// # Errors
/// If the trace has no records of the selected kinds.
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

/// Whether pages have lifetimes, and the memory size of 100 %: with lifetimes and a memory size that
/// is a fraction, the peak resident set, which takes a pass over the trace; else the footprint.
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

/// Simulate every page size and memory size of `options`, in as few passes over the trace as
/// `options.max_memory` allows (see [`passes`]). The number of passes changes no result.
///
/// `on_progress` is called periodically with the records done so far; its error ends the run.
///
/// # Errors
/// If the trace is empty or cannot be read; errors of `on_progress`.
pub fn simulate(
    reader: &Reader,
    options: &Options,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Simulated> {
    let captured = sample::captured(reader, options)?;
    let options = captured.as_ref().map_or(options, |(_, of_sample, _)| of_sample);
    let footprint_bytes = footprint_bytes(reader, options)?;
    let records = reader.info().references_of(options.kinds);
    let lifetimes = options.lifetimes && lifetimes::known(reader)?;
    let pool = jobs::pool(options.threads)?;
    let mut study =
        Study { reader, options, lifetimes, whole_bytes: footprint_bytes, footprint_bytes, pool };

    if let Some((sample, _, below_4k)) = &captured {
        let simulated = study.sampled(sample, on_progress)?;
        let left_out = [below_4k, &simulated.left_out[..]].concat();
        return Ok(Simulated { left_out, ..simulated });
    }
    if lifetimes && options.has_fractions() {
        // If one pass suffices, read the trace once: find the peak and cache the chunks, unless too large.
        if let [all] = passes(&study, &options.page_sizes, records)[..] {
            let source = study.source(all)?;
            let block_shift = source.block_shift;
            let mut progress = |done| on_progress(done / 2);
            if let Some((chunks, peak_bytes)) =
                cached_chunks(source, options, records, &study.pool, &mut progress)?
            {
                study.whole_bytes = peak_bytes;
                let chunks = Chunks::Cached { chunks: chunks.into_iter(), block_shift };
                let cells =
                    study.pass(all, chunks, &mut |done| on_progress((records + done) / 2))?;
                return Ok(study.simulated(cells, records));
            }
        }
        // A pass for the peak does not count as progress.
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

/// State shared by all passes.
struct Study<'a> {
    reader: &'a Reader,
    options: &'a Options,
    lifetimes: bool,
    /// As in [`Simulated`]; the footprint until the peak is known.
    whole_bytes: u64,
    footprint_bytes: u64,
    pool: ThreadPool,
}

/// Estimated bytes per block while the trace is cut into windows: its id and its index in its last window.
const BLOCK_BYTES: u64 = 40;
/// Bytes per page of a size larger than the blocks: id, state, TLB slot.
const PAGE_BYTES: u64 = 60;
/// Bytes per page if pages are blocks and share their ids.
const IDENTITY_BYTES: u64 = 20;
/// Additional bytes per page with lifetimes.
const LIFE_BYTES: u64 = 120;

/// Split page sizes into passes over the trace: as many per pass as should fit in
/// `options.max_memory`, at least one.
fn passes<'a>(study: &Study<'a>, page_sizes: &'a [u64], records: u64) -> Vec<&'a [u64]> {
    let Study { options, footprint_bytes: footprint, .. } = *study;
    let memory = options.memory_bytes(study.whole_bytes);
    // The smaller of: one page per 4 KiB (or smaller page) of the footprint, two pages per record.
    let pages = |page: u64| (footprint / page.min(4096)).min(records.saturating_mul(2));
    let cost = |page: u64, block: u64| {
        let pages = pages(page);
        let frames = memory.iter().map(|(bytes, _)| (bytes / page).min(pages));
        let each = match study.lifetimes {
            // Every memory stores the frame of each page.
            true => PAGE_BYTES + LIFE_BYTES + 4 * memory.len() as u64,
            false if page == block => IDENTITY_BYTES,
            false => PAGE_BYTES,
        };
        // Every memory also stores the page of each frame.
        pages.saturating_mul(each).saturating_add(frames.sum::<u64>().saturating_mul(4))
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
        let mut has_current = chunks.next_into(&mut current)?;
        while has_current {
            records += current.records;
            crossings.iter_mut().zip(&current.crossings).for_each(|(sum, n)| *sum += n);
            let (filled, ()) = self.pool.install(|| {
                rayon::join(
                    || chunks.next_into(&mut next),
                    || jobs.par_iter_mut().with_max_len(1).for_each(|job| job.chunk(&current)),
                )
            });
            has_current = filled?;
            std::mem::swap(&mut current, &mut next);
            on_progress(records)?;
        }
        let references = |size: &Size| records + crossings[size.job.shift as usize];
        Ok(sizes.iter().flat_map(|size| size.cells(references(size))).collect())
    }

    /// The simulation of a page size; `None` if all its memories have too few frames.
    fn size(
        &self,
        page_bytes: u64,
        block_shift: u32,
        memory: &[(u64, Option<f64>)],
    ) -> Option<Size> {
        let memories = self.options.memories(page_bytes, memory);
        // Memories with the same number of frames are simulated once: large pages leave few
        // different numbers.
        let mut frames: Vec<u64> = memories.iter().map(|memory| memory.frames).collect();
        frames.sort_unstable();
        frames.dedup();
        if frames.is_empty() {
            return None;
        }
        // A sample simulates the TLB only in its bursts (`sample/bursts.rs`).
        let is_whole = self.reader.info().source.sample.is_none();
        let job = PageSize::new(Job {
            tlb: is_whole.then_some(self.options.tlb),
            ..self.job(page_bytes, block_shift, None, &frames)
        });
        Some(Size { job, memories, frames })
    }

    /// A job with a memory for each number of frames. `sample`: the pages to simulate and their share
    /// of all pages; `None`: all pages.
    fn job(
        &self,
        page_bytes: u64,
        block_shift: u32,
        sample: Option<(Sample, f64)>,
        frames: &[u64],
    ) -> Job {
        let Self { options, lifetimes: lives, .. } = *self;
        let (sample, share) = sample.unzip();
        let share = share.unwrap_or(1.0);
        let setup = |&frames| Setup { share, ..options.setup(frames, page_bytes, lives) };
        let memories: Vec<Setup> = frames.iter().map(setup).collect();
        let engines = options.replacement.visit(Engines(memories));
        let (shift, files) = (page_bytes.trailing_zeros(), options.files);
        let prefetch_pages = options.prefetch_pages;
        Job { shift, block_shift, tlb: None, sample, lives, files, engines, prefetch_pages }
    }

    fn sampled(
        &mut self,
        sample: &PageSample,
        on_progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Simulated> {
        let Self { reader, options, lifetimes: lives, footprint_bytes, .. } = *self;
        let (recorded, references) =
            (reader.info().records, reader.info().references_of(options.kinds));
        (_, self.whole_bytes) =
            whole_bytes(reader, options, footprint_bytes, &mut |_| on_progress(0))?;
        let memory = options.memory_bytes(self.whole_bytes);
        let simulated = options.simulated_pages(&memory);
        if simulated.is_empty() {
            return Ok(self.simulated(Vec::new(), references));
        }
        // The trace is read up to three times.
        let mut progress = |times: u64, at| on_progress((times * recorded + at) / 3);
        let study = Sampled { reader, sample, options, lives, memory: &memory, pool: &self.pool };
        let trace = TraceSample::read(&study, simulated, &mut |at| progress(0, at))?;
        let mut cells = study.cells(&trace, &mut |at| progress(1, at), |sample, frames| {
            PageSize::new(self.job(PAGE, PAGE.trailing_zeros(), Some(sample), frames))
        })?;
        // Pages above 4 KiB are counted from what was recorded, which is exact only if memory holds them all.
        let larger = Larger::of(&trace, simulated, &memory);
        let mut counted = Vec::new();
        for page_sizes in passes(self, &larger.sizes, recorded) {
            let chunks = Chunks::Cut(Box::new(self.source(page_sizes)?));
            counted.extend(self.pass(page_sizes, chunks, &mut |at| progress(2, at))?);
        }
        let (exact, left_out) = larger.exact(&trace, counted);
        cells.extend(exact);
        Ok(Simulated { left_out, ..self.simulated(cells, references) })
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

enum Chunks {
    /// Read from the trace.
    Cut(Box<Source>),
    /// Cached by an earlier pass.
    Cached { chunks: std::vec::IntoIter<Chunk>, block_shift: u32 },
}

impl Chunks {
    fn block_shift(&self) -> u32 {
        match self {
            Chunks::Cut(source) => source.block_shift,
            Chunks::Cached { block_shift, .. } => *block_shift,
        }
    }

    /// Fill the next chunk. Returns false at the end.
    fn next_into(&mut self, chunk: &mut Chunk) -> Result<bool> {
        match self {
            Chunks::Cut(source) => source.fill(chunk),
            Chunks::Cached { chunks, .. } => {
                let next = chunks.next();
                let has_next = next.is_some();
                *chunk = next.unwrap_or_default();
                Ok(has_next)
            }
        }
    }
}
