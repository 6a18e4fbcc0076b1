//! Traces captured with `--sample`: estimates from a part of the references, with their errors.
//!
//! **Memories of 4 KiB pages** are simulated with a sample of the pages, whose hashes lie in a range
//! (SHARDS: Waldspurger, Park, Garthwaite, Ahmad, FAST 2015). The range is split into [`GROUPS`]
//! groups, which are simulated separately. The first references to every page are recorded, so the
//! number of pages and the share of each group are known: the group's memory has this share of the
//! frames, and its counts are divided by the share. The variance of the quotients gives the error.
//! Only repeated faults on a page are estimated; a memory large enough for all pages is exact.
//!
//! A group has so few pages that it faults too often, by a bias that falls as 1 / pages. The sample as
//! a whole, which is simulated as well, has an eighth of this bias: the estimate is extrapolated from
//! both (Richardson), and the extrapolated amount is part of the error.
//!
//! **Memories of larger pages** are simulated if they hold all pages: they fault exactly once for each
//! ([`Larger`]). Smaller memories have no estimate, because references to a larger page are recorded
//! only in part.
//!
//! **TLBs** are simulated in bursts of references with warm-up ([`bursts`]).

mod block_set;
mod bursts;
pub mod records;

use nearfar_trace::hash::mix;
use nearfar_trace::sample::PAGE_SHIFT;
use nearfar_trace::{Batch, Error, PageSample, Reader, RegionEvent, Result};
use rayon::ThreadPool;

use super::cell::{Cell, FaultKinds, Memory};
use super::engine::Outcome;
use super::options::Options;
use super::page_size::PageSize;
use super::window::{Chunk, Windower};
use crate::lifetimes::{Blocks, SPACE_SHIFT};
use records::TraceSample;

/// The sampled page size, bytes.
pub const PAGE: u64 = 1 << PAGE_SHIFT;
/// Disjoint groups of sampled pages.
const GROUPS: u32 = 8;
/// Minimum number of pages expected in a group.
const MIN_GROUP_PAGES: f64 = 125.0;
/// Half-width of a 95 % interval in standard errors of a mean of [`GROUPS`] values (Student's t).
const HALF_WIDTH: f64 = 2.365;
/// Maximum number of records that a simulation collects before it applies them.
const CHUNK: usize = 1 << 18;

/// Pages of 4 KiB whose hash is in a range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    low: u64,
    high: u64,
    seed: u64,
}

impl Sample {
    /// Bits of a page number below the number of its address space.
    const MASK: u64 = ((1 << SPACE_SHIFT) - 1) >> PAGE_SHIFT;

    pub fn new(sample: &PageSample) -> Self {
        Self { low: 0, high: sample.limit(), seed: mix(sample.seed) }
    }

    /// Group number `group` (0..[`GROUPS`]) of this sample.
    pub fn group(self, group: u32) -> Self {
        let edge = |group| (u128::from(self.high) * u128::from(group) / u128::from(GROUPS)) as u64;
        Self { low: edge(group), high: edge(group + 1), ..self }
    }

    #[inline]
    pub fn contains(&self, page_number: u64) -> bool {
        (self.low..self.high).contains(&self.hash(page_number))
    }

    pub fn group_of(&self, page_number: u64) -> Option<u32> {
        let hash = self.hash(page_number);
        let group = || (0..GROUPS).find(|&group| hash < self.group(group).high);
        (self.low..self.high).contains(&hash).then(group).flatten()
    }

    #[inline]
    fn hash(&self, page_number: u64) -> u64 {
        mix(page_number & Self::MASK ^ self.seed)
    }
}

/// A page size without results (cells).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeftOut {
    pub page_bytes: u64,
    /// A lower bound of the memory that holds all of its pages, bytes; `None` if the trace lacks the
    /// references that the page size needs.
    pub least_memory: Option<u64>,
}

impl LeftOut {
    /// A page size that has no results, however large the memory.
    pub fn without(page_bytes: u64) -> Self {
        Self { page_bytes, least_memory: None }
    }
}

/// The sample of a trace, the options with the page sizes that it supports, and the page sizes below
/// 4 KiB, which it does not; `None` if the trace is not a sample.
///
/// # Errors
/// If the options lack the page size of 4 KiB, or the trace was cut off.
pub fn captured<'a>(
    reader: &'a Reader,
    options: &Options,
) -> Result<Option<(&'a PageSample, Options, Vec<LeftOut>)>> {
    let Some(sample) = &reader.info().source.sample else { return Ok(None) };
    if sample.references.is_empty() {
        let place = reader.path().display().to_string();
        let what = "was cut off before the number of references was recorded";
        return Err(Error::input(place, what, "capture again"));
    }
    if !options.page_sizes.contains(&PAGE) {
        let what = format!(
            "the trace holds {} of the 4 KiB pages, so the study needs that size",
            sample.share()
        );
        return Err(Error::input("--page-sizes", what, "include 4K, or capture without --sample"));
    }
    let (page_sizes, smaller): (Vec<u64>, Vec<u64>) =
        options.page_sizes.iter().partition(|&&size| size >= PAGE);
    let options = Options { finest: PAGE, page_sizes, ..options.clone() };
    Ok(Some((sample, options, smaller.into_iter().map(LeftOut::without).collect())))
}

/// Refuse a sample of too few pages.
fn check(sample: &PageSample, pages: u64, reader: &Reader) -> Result<()> {
    let least = f64::from(GROUPS) * MIN_GROUP_PAGES / pages as f64;
    if sample.rate >= least {
        return Ok(());
    }
    let what = format!("{} of {pages} pages of 4 KiB is too few", sample.share());
    let fix = match least <= 1.0 {
        true => format!("capture with --sample {} or more, or with auto", round_up(least)),
        false => "capture without --sample".to_owned(),
    };
    Err(Error::input(reader.path().display().to_string(), what, fix))
}

/// Round a rate up to two significant digits.
fn round_up(rate: f64) -> f64 {
    let digits = 10f64.powf(1.0 - rate.log10().floor());
    ((rate * digits).ceil() / digits).min(1.0)
}

/// Mean of values, and its standard error.
fn estimate(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, (variance / count).sqrt())
}

/// A study of a sample.
pub struct Sampled<'a> {
    pub reader: &'a Reader,
    /// The sample that the trace holds.
    pub sample: &'a PageSample,
    pub options: &'a Options,
    /// Pages end with the trace's events ([`crate::lifetimes`]).
    pub lives: bool,
    /// Memory sizes in bytes, each with its fraction if it was given as one.
    pub memory: &'a [(u64, Option<f64>)],
    pub pool: &'a ThreadPool,
}

impl Sampled<'_> {
    /// The cells (results) of 4 KiB pages, one per memory size. `job` creates a simulation; it takes a
    /// group of pages with its share of all pages, and the memory sizes in frames.
    ///
    /// # Errors
    /// If the trace cannot be read, or the sample has too few pages; errors of `on_progress`.
    pub fn cells(
        &self,
        trace: &TraceSample,
        on_progress: &mut dyn FnMut(u64) -> Result<()>,
        job: impl Fn((Sample, f64), &[u64]) -> PageSize + Sync,
    ) -> Result<Vec<Cell>> {
        let (shift, sample) = (PAGE_SHIFT, Sample::new(self.sample));
        let pages = trace.touched.pages(shift);
        check(self.sample, pages, self.reader)?;
        let counts = trace.pages_by_group(sample);
        // At least 1: an empty group is possible, but unlikely.
        let shares: Vec<f64> = counts.iter().map(|&n| n.max(1) as f64 / pages as f64).collect();
        let memories = self.options.memories(PAGE, self.memory);
        let make = |sample: Sample, share: f64| {
            let scaled = |memory: &Memory| ((memory.frames as f64 * share).round() as u64).max(1);
            let frames: Vec<u64> = memories.iter().map(scaled).collect();
            job((sample, share), &frames)
        };
        let in_groups = (0..GROUPS).zip(&shares);
        // The groups, then the whole sample.
        let mut groups: Vec<PageSize> =
            in_groups.map(|(group, &share)| make(sample.group(group), share)).collect();
        let whole_sample = groups.len();
        let share_of_all = shares.iter().sum();
        groups.push(make(sample, share_of_all));
        let simulations = groups.iter_mut().map(|group| Simulation::new(self, group));
        records::simulate(self, sample, simulations.collect(), on_progress)?;

        let outcomes: Vec<Vec<Outcome>> = groups.iter().map(PageSize::outcomes).collect();
        let extrapolated = |count: &dyn Fn(usize) -> u64| {
            let values =
                shares.iter().enumerate().map(|(group, share)| count(group) as f64 / share);
            let (mean, error) = estimate(&values.collect::<Vec<f64>>());
            let whole = count(whole_sample) as f64 / share_of_all;
            let bias = (mean - whole) / f64::from(GROUPS - 1);
            ((whole - bias).max(0.0), error.hypot(bias))
        };
        let total = |count: &dyn Fn(usize) -> u64| extrapolated(count).0.round() as u64;
        // With lifetimes, an address can have several pages.
        let (born, file_pages) = if self.lives { trace.born } else { (pages, 0) };
        let tlb = trace.bursts.outcome(shift);
        let cell = |(memory, &Memory { bytes, fraction, frames }): (usize, &Memory)| {
            // A memory of the peak size evicts nothing, although a group can need more than its share.
            let is_exact = frames >= if self.lives { trace.peak_pages } else { pages };
            let sum_of =
                |count: fn(&Outcome) -> u64| total(&|group| count(&outcomes[group][memory]));
            let evictions = |count| if is_exact { 0 } else { sum_of(count) };
            let repeats =
                |group: usize| outcomes[group][memory].faults.saturating_sub(groups[group].pages());
            let (repeated, error) = if is_exact { (0.0, 0.0) } else { extrapolated(&repeats) };
            // The rule of three, for events that no sampled page had.
            let rare = if is_exact { 0.0 } else { 3.0 / share_of_all };
            let faults = born as f64 + repeated;
            let outcome = Outcome {
                faults: faults.round() as u64,
                dirty_evictions: evictions(|outcome| outcome.dirty_evictions),
                file_faults: sum_of(|outcome| outcome.file_faults),
                file_dirty_evictions: evictions(|outcome| outcome.file_dirty_evictions),
                void_faults: sum_of(|outcome| outcome.void_faults),
            };
            Cell {
                page_bytes: PAGE,
                memory_bytes: bytes,
                memory_fraction: fraction,
                frames,
                references: trace.references,
                tlb_misses: tlb.misses.round() as u64,
                tlb_second_hits: tlb.second_hits.round() as u64,
                tlb_interval: Some(tlb.interval),
                faults: outcome.faults,
                faults_error: Some(error),
                faults_interval: Some((
                    (faults - HALF_WIDTH * error).max(born as f64),
                    (faults + HALF_WIDTH * error + rare).min(trace.references as f64),
                )),
                dirty_evictions: outcome.dirty_evictions,
                pages: born,
                file_pages,
                kinds: FaultKinds::of(outcome, born, file_pages),
            }
        };
        Ok(memories.iter().enumerate().map(cell).collect())
    }
}

/// Page sizes above 4 KiB.
pub struct Larger {
    /// Page sizes whose pages may fit in the largest memory.
    pub sizes: Vec<u64>,
    /// Page sizes whose pages do not fit.
    left_out: Vec<LeftOut>,
}

impl Larger {
    /// Classify the page sizes of `simulated` above 4 KiB.
    pub fn of(trace: &TraceSample, simulated: &[u64], memory: &[(u64, Option<f64>)]) -> Self {
        let mut larger = Self { sizes: Vec::new(), left_out: Vec::new() };
        let largest = memory.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0);
        for &page_bytes in simulated.iter().filter(|&&size| size > PAGE) {
            let needed = trace.touched.pages(page_bytes.trailing_zeros()) * page_bytes;
            if needed <= largest {
                larger.sizes.push(page_bytes);
            } else {
                larger.left_out.push(LeftOut { page_bytes, least_memory: Some(needed) });
            }
        }
        larger
    }

    /// Split `cells`, which were counted from the recorded references. Those whose memory holds all pages
    /// are exact, and get TLB misses from bursts. A page size without an exact cell is left out.
    pub fn exact(self, trace: &TraceSample, cells: Vec<Cell>) -> (Vec<Cell>, Vec<LeftOut>) {
        let (exact, others): (Vec<Cell>, Vec<Cell>) =
            cells.into_iter().partition(|cell| cell.frames >= cell.pages);
        let mut left_out = self.left_out;
        for page_bytes in self.sizes {
            let of_size = |cell: &&Cell| cell.page_bytes == page_bytes;
            if let (None, Some(cell)) = (exact.iter().find(of_size), others.iter().find(of_size)) {
                let least_memory = Some(cell.pages * page_bytes);
                left_out.push(LeftOut { page_bytes, least_memory });
            }
        }
        left_out.sort_by_key(|size| size.page_bytes);
        let estimated = |cell: Cell| {
            let tlb = trace.bursts.outcome(cell.page_bytes.trailing_zeros());
            Cell {
                references: trace.references,
                tlb_misses: tlb.misses.round() as u64,
                tlb_second_hits: tlb.second_hits.round() as u64,
                tlb_interval: Some(tlb.interval),
                faults_error: Some(0.0),
                faults_interval: Some((cell.faults as f64, cell.faults as f64)),
                ..cell
            }
        };
        (exact.into_iter().map(estimated).collect(), left_out)
    }
}

/// A group of pages that is being simulated.
pub struct Simulation<'a> {
    windower: Windower,
    chunk: Chunk,
    /// Records in the chunk.
    count: usize,
    group: &'a mut PageSize,
}

impl<'a> Simulation<'a> {
    fn new(study: &Sampled<'_>, group: &'a mut PageSize) -> Self {
        let kinds = study.options.kinds;
        let mut windower = Windower::new(PAGE_SHIFT, super::window::MAX_BLOCKS, kinds);
        if study.lives {
            let spaces = study.options.spaces(study.reader);
            windower = windower.with_lives(Blocks::new(PAGE_SHIFT, PAGE_SHIFT, spaces));
        }
        let mut chunk = Chunk::default();
        windower.begin(&mut chunk);
        Self { windower, chunk, count: 0, group }
    }

    fn event(&mut self, event: &RegionEvent) {
        self.windower.event(event, &mut self.chunk);
    }

    fn records(&mut self, batch: &Batch) {
        let mut range = 0..batch.len();
        while !range.is_empty() {
            let end = range.end.min(range.start + CHUNK - self.count);
            self.windower.add(batch, range.start..end, &mut self.chunk);
            self.count += end - range.start;
            range.start = end;
            if self.count == CHUNK {
                self.end();
                self.windower.begin(&mut self.chunk);
                self.count = 0;
            }
        }
    }

    /// End the chunk and simulate it.
    fn end(&mut self) {
        self.windower.end(&mut self.chunk);
        self.group.chunk(&self.chunk);
    }
}

#[cfg(test)]
mod tests;
