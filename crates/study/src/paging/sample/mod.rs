//! Sampling: estimates from a part of the trace, with their errors.
//!
//! **Memories** sample pages (SHARDS: Waldspurger, Park, Garthwaite, Ahmad, FAST 2015): those with
//! the hash of their number in a range. The range is split into [`GROUPS`] groups, which are
//! simulated separately. The number of distinct pages is counted over the whole trace
//! ([`block_set`]), so the share of each group is known: its memory has this share of the frames,
//! and its counts are divided by it. A memory large enough for all pages is therefore exact. Their
//! variance gives the error.
//!
//! Where the pages that were born are counted as well, only further faults are estimated: all
//! pages without lifetimes, and in captured samples.
//!
//! Few pages share a memory less well than many do, so groups fault too often, by an amount that falls
//! as 1 / pages. The sample as a whole, which is simulated as well, has an eighth of this bias: the
//! estimate is extrapolated from both (Richardson), and the extrapolated amount is part of the error.
//!
//! **TLBs** sample clusters of references with warm-up ([`clusters`]).
//!
//! A trace that was captured with `--sample` is such a sample already, of 4 KiB pages ([`captured`]).
//!
//! A page size with fewer than [`MIN_GROUP_PAGES`] pages per group is omitted; the result has the
//! minimum rate for it.

mod block_set;
pub mod clusters;
pub mod records;

use std::ops::Range;

use nearfar_trace::hash::mix;
use nearfar_trace::sample::PAGE_SHIFT;
use nearfar_trace::{Batch, Error, Reader, RegionEvent, Result};
use rayon::ThreadPool;
use rayon::prelude::*;

use super::cell::{Cell, FaultKinds, Memory};
use super::engine::Outcome;
use super::options::Options;
use super::page_size::PageSize;
use super::window::{Chunk, Windower};
use crate::lifetimes::{self, Blocks, SPACE_SHIFT};
use records::{SampledRecords, TraceSample};

/// Disjoint groups of sampled pages.
pub const GROUPS: u32 = 8;
/// Minimum number of expected pages per group.
pub const MIN_GROUP_PAGES: f64 = 125.0;
/// The largest rate that [`chosen_rate`] chooses.
const WORTH: f64 = 0.5;
/// Half-width of a 95 % interval in standard errors of a mean of [`GROUPS`] values (Student's t).
const HALF_WIDTH: f64 = 2.365;
/// Records per chunk of a group.
const CHUNK: usize = 1 << 18;

/// Pages of one size whose hash is in a range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    low: u64,
    high: u64,
    /// Address bits of a page number. They do not depend on the process.
    mask: u64,
    seed: u64,
}

impl Sample {
    /// A sample of `rate` (0 to 1) of all pages of 2^`shift` bytes.
    pub fn new(shift: u32, rate: f64, seed: u64) -> Self {
        let (high, mask) = ((rate * 2f64.powi(64)) as u64, ((1 << SPACE_SHIFT) - 1) >> shift);
        Self { low: 0, high, mask, seed: mix(seed) }
    }

    /// Group number `group` (0..[`GROUPS`]) of this sample.
    pub fn group(self, group: u32) -> Self {
        let edge = |group| (u128::from(self.high) * u128::from(group) / u128::from(GROUPS)) as u64;
        Self { low: edge(group), high: edge(group + 1), ..self }
    }

    /// Whether the sample contains the page of this number.
    #[inline]
    pub fn contains(&self, page_number: u64) -> bool {
        (self.low..self.high).contains(&mix(page_number & self.mask ^ self.seed))
    }
}

/// A page size with too few sampled pages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OmittedSize {
    /// Page size, bytes.
    pub page_bytes: u64,
    /// The minimum rate for this page size; `None` if it cannot be sampled.
    pub min_rate: Option<f64>,
}

/// The options that fit a trace that was captured with `--sample`, and the page sizes to omit; `None`
/// if the trace holds everything.
///
/// # Errors
/// If the options ask for what such a trace does not have, or it was cut off.
pub fn captured(reader: &Reader, options: &Options) -> Result<Option<(Options, Vec<OmittedSize>)>> {
    let Some(sample) = &reader.info().source.sample else { return Ok(None) };
    let place = || reader.path().display().to_string();
    if options.sample.is_some() {
        let what = format!("the trace is a sample of {} already", sample.share());
        return Err(Error::input("--sample", what, "leave it out"));
    }
    if sample.references.is_empty() {
        let what = "was cut off before it said how many references the program made";
        return Err(Error::input(place(), what, "capture again"));
    }
    let page = 1u64 << PAGE_SHIFT;
    if !options.page_sizes.contains(&page) {
        let what = format!("the trace holds {} of the 4 KiB pages, and no others", sample.share());
        return Err(Error::input("--page-sizes", what, "include 4K, or capture without --sample"));
    }
    let omitted = |&&page_bytes: &&u64| page_bytes != page;
    let omitted = options.page_sizes.iter().filter(omitted);
    let omitted = omitted.map(|&page_bytes| OmittedSize { page_bytes, min_rate: None }).collect();
    let page_sizes = vec![page];
    let options = Options { finest: page, sample_seed: sample.seed, page_sizes, ..options.clone() };
    Ok(Some((options.sampled(Some(sample.rate))?, omitted)))
}

/// Page sizes that can be sampled.
pub struct Candidates {
    /// Page sizes that may have enough pages.
    pub sizes: Vec<u64>,
    /// Page sizes that do not, with the maximum number of their pages.
    too_few: Vec<(u64, u64)>,
}

/// The page sizes of `options` that may have enough pages at `rate`: at most footprint / page size
/// pages, twice that for large pages, which may be partly used.
///
/// # Errors
/// If no page size has enough pages.
pub fn candidates(
    options: &Options,
    rate: f64,
    footprint_bytes: u64,
    reader: &Reader,
) -> Result<Candidates> {
    let pages = |page: u64| (footprint_bytes / page) << u32::from(page > 4096);
    let (sizes, too_few): (Vec<u64>, Vec<u64>) =
        options.page_sizes.iter().partition(|&&page| min_rate(pages(page)) <= rate);
    if sizes.is_empty() {
        let what = format!("{rate} of {} pages of 4 KiB is too few", footprint_bytes / 4096);
        return Err(rate_error(what, min_rate(pages(options.page_sizes[0])), reader));
    }
    let too_few = too_few.into_iter().map(|page| (page, pages(page))).collect();
    Ok(Candidates { sizes, too_few })
}

/// The smallest rate with enough pages of every page size of `options`; `None` if sampling is not
/// worth it.
pub fn chosen_rate(options: &Options, footprint_bytes: u64) -> Option<f64> {
    let rates = options.page_sizes.iter().map(|page| min_rate(footprint_bytes / page));
    Some(round_up(rates.fold(0.0, f64::max))).filter(|&rate| rate <= WORTH)
}

impl OmittedSize {
    fn new(page_bytes: u64, pages: u64) -> Self {
        let min_rate = Some(min_rate(pages)).filter(|rate| *rate <= 1.0).map(round_up);
        Self { page_bytes, min_rate }
    }
}

/// The minimum rate that samples enough of this number of pages.
fn min_rate(pages: u64) -> f64 {
    f64::from(GROUPS) * MIN_GROUP_PAGES / pages as f64
}

fn rate_error(what: String, min_rate: f64, reader: &Reader) -> Error {
    let captured = reader.info().source.sample.is_some();
    let fix = match (min_rate <= 1.0, captured) {
        (true, false) => format!("give {} or more, or leave it out", round_up(min_rate)),
        (true, true) => format!("capture with {} or more, or with auto", round_up(min_rate)),
        (false, false) => "leave it out: all of them are quickly done".to_owned(),
        (false, true) => "capture without it".to_owned(),
    };
    Error::input("--sample", what, fix)
}

/// Round a rate up to two digits.
fn round_up(rate: f64) -> f64 {
    let digits = 10f64.powf(1.0 - rate.log10().floor());
    ((rate * digits).ceil() / digits).min(1.0)
}

/// Mean of estimates, and its standard error.
pub fn estimate(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, (variance / count).sqrt())
}

/// A sampled study.
pub struct Sampled<'a> {
    /// The trace.
    pub reader: &'a Reader,
    /// Options of the study.
    pub options: &'a Options,
    /// Pages have lifetimes.
    pub lives: bool,
    /// Memory sizes in bytes, with the fractions that they were given as.
    pub memory: &'a [(u64, Option<f64>)],
    /// The threads to use.
    pub pool: &'a ThreadPool,
}

impl Sampled<'_> {
    /// The cells of the page sizes with enough pages, and the other page sizes. `job` creates the
    /// simulation of a page size, block size and group of pages with its share of all pages, for
    /// memories of these numbers of frames.
    ///
    /// # Errors
    /// If the trace cannot be read, or the sample is too large for memory or has too few pages;
    /// errors of `on_progress`.
    pub fn cells(
        &self,
        candidates: &Candidates,
        rate: f64,
        on_progress: &mut dyn FnMut(u64) -> Result<()>,
        job: impl Fn(u64, u32, (Sample, f64), &[u64]) -> PageSize + Sync,
    ) -> Result<(Vec<Cell>, Vec<OmittedSize>)> {
        // A captured sample, which can be large, is read twice and not kept.
        let captured = self.reader.info().source.sample.is_some();
        let (records, passes) = (self.reader.info().records, 1 + u64::from(captured));
        let first = &mut |at| on_progress(at / passes);
        let sample = TraceSample::read(self, &candidates.sizes, rate, first)?;
        let (enough, too_few): (Vec<&SampledRecords>, Vec<&SampledRecords>) = sample
            .by_size
            .iter()
            .partition(|records| min_rate(sample.touched.pages(records.shift)) <= rate);
        if let ([], Some(records)) = (&enough[..], too_few.first()) {
            let pages = sample.touched.pages(records.shift);
            let page_bytes = 1u64 << records.shift;
            let what = format!("{rate} of {pages} pages of {page_bytes} bytes is too few");
            return Err(rate_error(what, min_rate(pages), self.reader));
        }
        let omitted = too_few
            .iter()
            .map(|records| (1 << records.shift, u64::MAX))
            .chain(candidates.too_few.iter().copied())
            .map(|(page_bytes, max_pages): (u64, u64)| {
                let touched = sample.touched.pages(page_bytes.trailing_zeros());
                OmittedSize::new(page_bytes, max_pages.min(touched))
            });
        let omitted = omitted.collect();
        let cells: Vec<Vec<Cell>> = if captured {
            let second = &mut |at| on_progress((records + at) / passes);
            let cells = enough.iter().map(|records| self.cells_of(&sample, records, &job, second));
            cells.collect::<Result<_>>()?
        } else {
            let cells =
                |records: &&SampledRecords| self.cells_of(&sample, records, &job, &mut |_| Ok(()));
            self.pool.install(|| enough.par_iter().map(cells).collect::<Result<_>>())?
        };
        Ok((cells.into_iter().flatten().collect(), omitted))
    }

    /// The cells of one page size.
    fn cells_of(
        &self,
        sample: &TraceSample,
        records: &SampledRecords,
        job: &(impl Fn(u64, u32, (Sample, f64), &[u64]) -> PageSize + Sync),
        on_progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Vec<Cell>> {
        let (shift, page_bytes) = (records.shift, 1 << records.shift);
        let block_shift = if self.lives { shift.min(lifetimes::PAGE) } else { shift };
        let pages = sample.touched.pages(shift);
        let counts = records.pages_by_group();
        // At least 1: an empty group is possible, but unlikely.
        let shares: Vec<f64> = counts.iter().map(|&n| n.max(1) as f64 / pages as f64).collect();
        let memories = self.options.memories(page_bytes, self.memory);
        let make = |sample: Sample, share: f64| {
            let scaled = |memory: &Memory| ((memory.frames as f64 * share).round() as u64).max(1);
            let frames: Vec<u64> = memories.iter().map(scaled).collect();
            job(page_bytes, block_shift, (sample, share), &frames)
        };
        let in_groups = (0..GROUPS).zip(&shares);
        // The groups, then all of them as one.
        let mut groups: Vec<PageSize> =
            in_groups.map(|(group, &share)| make(records.sample.group(group), share)).collect();
        let all = groups.len();
        let share_of_all = shares.iter().sum();
        groups.push(make(records.sample, share_of_all));
        let mut simulation = Simulation::new(self, block_shift, shift, &mut groups);
        sample.simulate(self, records, &mut simulation, on_progress)?;

        let outcomes: Vec<Vec<Outcome>> = groups.iter().map(PageSize::outcomes).collect();
        let mean_of = |count: &dyn Fn(usize) -> u64| {
            let values =
                shares.iter().enumerate().map(|(group, share)| count(group) as f64 / share);
            let (mean, error) = estimate(&values.collect::<Vec<f64>>());
            let whole = count(all) as f64 / share_of_all;
            let bias = (mean - whole) / f64::from(GROUPS - 1);
            ((whole - bias).max(0.0), error.hypot(bias))
        };
        let total = |count: &dyn Fn(usize) -> u64| mean_of(count).0.round() as u64;
        // With lifetimes, an address can have several pages.
        let born = if self.lives { sample.born } else { Some((pages, 0)) };
        let (pages, file_pages) = born.unwrap_or_else(|| {
            let pages = total(&|group| groups[group].pages());
            (pages, total(&|group| groups[group].file_pages()).min(pages))
        });
        let references = sample.records + sample.crossings[shift as usize];
        let tlb = sample.clusters.outcome(shift);
        let cell = |(memory, &Memory { bytes, fraction, frames }): (usize, &Memory)| {
            let sum_of =
                |count: fn(&Outcome) -> u64| total(&|group| count(&outcomes[group][memory]));
            let faults = |group: usize| outcomes[group][memory].faults;
            let (min_faults, (faults, error)) = match born {
                Some((born, _)) => {
                    let again = |group: usize| faults(group).saturating_sub(groups[group].pages());
                    let (again, error) = mean_of(&again);
                    (born as f64, (born as f64 + again, error))
                }
                None => (0.0, mean_of(&faults)),
            };
            let outcome = Outcome {
                faults: faults.round() as u64,
                dirty_evictions: sum_of(|outcome| outcome.dirty_evictions),
                file_faults: sum_of(|outcome| outcome.file_faults),
                file_dirty_evictions: sum_of(|outcome| outcome.file_dirty_evictions),
                void_faults: sum_of(|outcome| outcome.void_faults),
            };
            // The rule of three, for events that no sampled page had. Without lifetimes, a memory
            // for all pages is exact.
            let is_exact = !self.lives && frames >= pages;
            let rare = if is_exact { 0.0 } else { 3.0 / shares.iter().sum::<f64>() };
            Cell {
                page_bytes,
                memory_bytes: bytes,
                memory_fraction: fraction,
                frames,
                references,
                tlb_misses: tlb.misses.round() as u64,
                tlb_second_hits: tlb.second_hits.round() as u64,
                tlb_interval: tlb.interval,
                faults: outcome.faults,
                faults_error: Some(error),
                faults_interval: Some((
                    (faults - HALF_WIDTH * error).max(min_faults),
                    faults + HALF_WIDTH * error + rare,
                )),
                dirty_evictions: outcome.dirty_evictions,
                pages,
                file_pages,
                kinds: FaultKinds::of(outcome, pages, file_pages),
            }
        };
        Ok(memories.iter().enumerate().map(cell).collect())
    }
}

/// Groups of pages that are being simulated.
pub struct Simulation<'a> {
    windower: Windower,
    chunk: Chunk,
    /// Records in the chunk.
    count: usize,
    groups: &'a mut [PageSize],
}

impl<'a> Simulation<'a> {
    fn new(study: &Sampled<'_>, block_shift: u32, shift: u32, groups: &'a mut [PageSize]) -> Self {
        let kinds = study.options.kinds;
        let mut windower = Windower::new(block_shift, super::window::MAX_BLOCKS, kinds);
        if study.lives {
            let spaces = study.options.spaces(study.reader);
            windower = windower.with_lives(Blocks::new(block_shift, shift, spaces));
        }
        let mut chunk = Chunk::default();
        windower.begin(&mut chunk);
        Self { windower, chunk, count: 0, groups }
    }

    fn event(&mut self, event: &RegionEvent) {
        self.windower.event(event, &mut self.chunk);
    }

    fn records(&mut self, batch: &Batch, mut range: Range<usize>) {
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

    /// Simulate what has been added.
    fn end(&mut self) {
        self.windower.end(&mut self.chunk);
        let Self { groups, chunk, .. } = self;
        groups.par_iter_mut().for_each(|group| group.chunk(chunk));
    }
}

#[cfg(test)]
mod tests;
