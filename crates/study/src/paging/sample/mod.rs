//! A part of the trace in place of all of it, and how far off that may be.
//!
//! **Memories** by pages (SHARDS: Waldspurger, Park, Garthwaite, Ahmad, FAST 2015): a page takes part
//! if a hash of its number falls in a range. The pages are split into [`GROUPS`] by ranges of their
//! own, and each group is simulated apart. How many pages there are is counted over the whole trace
//! ([`touched`]), so a group knows its true share of them: its memory has that share of the frames,
//! and its faults stand for that share of all. A memory that holds every page is therefore exact.
//! The groups' mean is the estimate, and their spread its error.
//!
//! **TLBs** by clusters of references with warm-up ([`clusters`]).
//!
//! Few pages are mostly chance: a page size whose groups would hold fewer than [`MIN_GROUP_PAGES`] is
//! left out, and the result says so, with the least rate that would do.

pub mod clusters;
pub mod read;
mod touched;

use nearfar_trace::hash::mix;
use nearfar_trace::{Error, Reader, Result};
use rayon::ThreadPool;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::cell::{Cell, FaultKinds, Memory};
use super::engine::Outcome;
use super::options::Options;
use super::page_size::PageSize;
use super::window::{Chunk, Windower};
use crate::lifetimes::{self, Blocks, SPACE_SHIFT};
use read::{Kept, Part};

/// Disjoint groups of sampled pages.
pub const GROUPS: u32 = 8;
/// Fewest expected pages in a group.
pub const MIN_GROUP_PAGES: f64 = 125.0;
/// Half of a 95 % interval in standard errors of a mean of [`GROUPS`] values (Student's t).
const HALF: f64 = 2.365;
/// Records that a group's windows are made of at a time.
const CHUNK: usize = 1 << 18;

/// Pages of one size whose hash is in a range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    low: u64,
    high: u64,
    /// Bits of a page's number that are its address; a page has the same ones in every process.
    mask: u64,
    seed: u64,
}

impl Sample {
    /// A sample of `rate` (0 to 1) of all pages of 2^`shift` bytes.
    pub fn new(shift: u32, rate: f64, seed: u64) -> Self {
        let (high, mask) = ((rate * 2f64.powi(64)) as u64, ((1 << SPACE_SHIFT) - 1) >> shift);
        Self { low: 0, high, mask, seed: mix(seed) }
    }

    /// Group `group` (0..[`GROUPS`]) of it.
    pub fn group(self, group: u32) -> Self {
        let edge = |group| (u128::from(self.high) * u128::from(group) / u128::from(GROUPS)) as u64;
        Self { low: edge(group), high: edge(group + 1), ..self }
    }

    /// Whether the page of this number takes part.
    #[inline]
    pub fn takes(&self, page_number: u64) -> bool {
        (self.low..self.high).contains(&mix(page_number & self.mask ^ self.seed))
    }
}

/// A page size that a sample has too few pages of.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Page size, bytes.
    pub page_bytes: u64,
    /// The least rate that would do; `None` where only all pages do.
    pub least: Option<f64>,
}

/// Page sizes of a study that is to be sampled.
pub struct Chosen {
    /// Those that may have pages enough.
    pub sizes: Vec<u64>,
    /// Those that have not, and the most pages that they were given.
    few: Vec<(u64, u64)>,
}

/// The page sizes of `options` that may have pages enough to be sampled at `rate`: the footprint can be
/// cut into so many, and large pages, which need not be full, into twice that.
///
/// # Errors
/// There are none.
pub fn choose(options: &Options, rate: f64, footprint_bytes: u64) -> Result<Chosen> {
    let pages = |page: u64| (footprint_bytes / page) << u32::from(page > 4096);
    let (sizes, few): (Vec<u64>, Vec<u64>) =
        options.page_sizes.iter().partition(|&&page| least(pages(page)) <= rate);
    if sizes.is_empty() {
        let what = format!("{rate} of {} pages of 4 KiB is too few", footprint_bytes / 4096);
        return Err(too_few(what, least(pages(options.page_sizes[0]))));
    }
    Ok(Chosen { sizes, few: few.into_iter().map(|page| (page, pages(page))).collect() })
}

impl LeftOut {
    fn new(page_bytes: u64, pages: u64) -> Self {
        Self { page_bytes, least: Some(least(pages)).filter(|rate| *rate <= 1.0).map(rounded_up) }
    }
}

/// The least rate that takes pages enough of so many.
fn least(pages: u64) -> f64 {
    f64::from(GROUPS) * MIN_GROUP_PAGES / pages as f64
}

fn too_few(what: String, least: f64) -> Error {
    let fix = match least <= 1.0 {
        true => format!("give {} or more, or leave it out", rounded_up(least)),
        false => "leave it out: all of them are quickly done".to_owned(),
    };
    Error::input("--sample", what, fix)
}

/// A rate to two digits, no less than it was.
fn rounded_up(rate: f64) -> f64 {
    let digits = 10f64.powf(1.0 - rate.log10().floor());
    ((rate * digits).ceil() / digits).min(1.0)
}

/// Mean of some estimates, and its standard error.
pub fn estimate(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, (variance / count).sqrt())
}

/// What is the same at every page size.
pub struct Sampled<'a> {
    /// The trace.
    pub reader: &'a Reader,
    /// What was asked.
    pub options: &'a Options,
    /// Pages end.
    pub lives: bool,
    /// Memory sizes, and the parts of the whole that they were given as.
    pub memory: &'a [(u64, Option<f64>)],
    /// Where to work.
    pub pool: &'a ThreadPool,
}

impl Sampled<'_> {
    /// The cells of those page sizes that have pages enough, and which have not. `job` makes what
    /// simulates memories of so many frames at a page size, for a group of its pages and blocks of that
    /// size.
    ///
    /// # Errors
    /// The trace cannot be read; what was taken needs too much memory, or is too little; the error of
    /// `on_progress`.
    pub fn cells(
        &self,
        chosen: &Chosen,
        rate: f64,
        on_progress: &mut dyn FnMut(u64) -> Result<()>,
        job: impl Fn(u64, u32, Sample, &[u64]) -> PageSize + Sync,
    ) -> Result<(Vec<Cell>, Vec<LeftOut>)> {
        let part = Part::read(self, &chosen.sizes, rate, on_progress)?;
        let (kept, few): (Vec<&Kept>, Vec<&Kept>) =
            part.kept.iter().partition(|kept| least(part.touched.pages(kept.shift)) <= rate);
        if let ([], Some(one)) = (&kept[..], few.first()) {
            let pages = part.touched.pages(one.shift);
            let what = format!("{rate} of {pages} pages of {} bytes is too few", 1u64 << one.shift);
            return Err(too_few(what, least(pages)));
        }
        let few =
            few.iter().map(|few| (1 << few.shift, u64::MAX)).chain(chosen.few.iter().copied());
        let few = few.map(|(page_bytes, most): (u64, u64)| {
            LeftOut::new(page_bytes, most.min(part.touched.pages(page_bytes.trailing_zeros())))
        });
        let cells = |kept: &&Kept| self.cells_of(&part, kept, &job);
        let cells = self.pool.install(|| kept.par_iter().flat_map_iter(cells).collect());
        Ok((cells, few.collect()))
    }

    /// The cells of one page size.
    fn cells_of(
        &self,
        part: &Part,
        kept: &Kept,
        job: &(impl Fn(u64, u32, Sample, &[u64]) -> PageSize + Sync),
    ) -> Vec<Cell> {
        let (shift, page_bytes) = (kept.shift, 1 << kept.shift);
        let block_shift = if self.lives { shift.min(lifetimes::PAGE) } else { shift };
        let pages = part.touched.pages(shift);
        let counts = kept.pages_by_group();
        // A group that has no page, which only chance could bring about, stands for nothing.
        let shares: Vec<f64> = counts.iter().map(|&n| n.max(1) as f64 / pages as f64).collect();
        let memories = self.options.memories(page_bytes, self.memory);
        let mut groups: Vec<PageSize> = (0..GROUPS)
            .zip(&shares)
            .map(|(group, share)| {
                let scaled = |all: &Memory| ((all.frames as f64 * share).round() as u64).max(1);
                let frames: Vec<u64> = memories.iter().map(scaled).collect();
                job(page_bytes, block_shift, kept.sample.group(group), &frames)
            })
            .collect();
        self.run(part, kept, block_shift, &mut groups);

        let outcomes: Vec<Vec<Outcome>> = groups.iter().map(PageSize::outcomes).collect();
        let whole = |of: &dyn Fn(usize) -> u64| {
            let values = shares.iter().enumerate().map(|(group, share)| of(group) as f64 / share);
            estimate(&values.collect::<Vec<f64>>())
        };
        let count = |of: &dyn Fn(usize) -> u64| whole(of).0.round() as u64;
        // Where pages end, and come again, there are more of them than addresses.
        let pages = if self.lives { count(&|group| groups[group].pages()) } else { pages };
        let file_pages = count(&|group| groups[group].pages_of_files()).min(pages);
        let references = part.records + part.crossings[shift as usize];
        let tlb = part.clusters.outcome(shift);
        let cell = |(memory, &Memory { bytes, fraction, frames }): (usize, &Memory)| {
            let all = |of: fn(&Outcome) -> u64| count(&|group| of(&outcomes[group][memory]));
            let (faults, error) = whole(&|group| outcomes[group][memory].faults);
            let outcome = Outcome {
                faults: faults.round() as u64,
                dirty_evictions: all(|of| of.dirty_evictions),
                file_faults: all(|of| of.file_faults),
                file_dirty_evictions: all(|of| of.file_dirty_evictions),
                void_faults: all(|of| of.void_faults),
            };
            // That no page did what few do does not say that none does: the rule of three. A memory
            // that holds pages that never end is exact.
            let all_held = !self.lives && frames >= pages;
            let rare = if all_held { 0.0 } else { 3.0 / shares.iter().sum::<f64>() };
            let least = if self.lives { 0.0 } else { pages as f64 };
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
                    (faults - HALF * error).max(least),
                    faults + HALF * error + rare,
                )),
                dirty_evictions: outcome.dirty_evictions,
                pages,
                file_pages,
                kinds: FaultKinds::of(outcome, pages, file_pages),
            }
        };
        memories.iter().enumerate().map(cell).collect()
    }

    /// Let the groups see what was kept for them, and the events in their places.
    fn run(&self, part: &Part, kept: &Kept, block_shift: u32, groups: &mut [PageSize]) {
        let mut windower =
            Windower::new(block_shift, super::window::MAX_BLOCKS, self.options.kinds);
        if self.lives {
            let spaces = self.options.spaces(self.reader);
            windower = windower.with_lives(Blocks::new(block_shift, kept.shift, spaces));
        }
        let mut chunk = Chunk::default();
        let mut events = part.events.iter().zip(&kept.before).peekable();
        let mut at = 0;
        while at < kept.batch.len() {
            windower.begin(&mut chunk);
            let end = kept.batch.len().min(at + CHUNK);
            while at < end {
                while let Some((event, _)) = events.next_if(|(_, before)| **before <= at) {
                    windower.event(event, &mut chunk);
                }
                let until = events.peek().map_or(end, |(_, before)| end.min(**before));
                windower.add(&kept.batch, at..until, &mut chunk);
                at = until;
            }
            windower.end(&mut chunk);
            groups.iter_mut().for_each(|group| group.chunk(&chunk));
        }
    }
}

#[cfg(test)]
mod tests;
