//! Spatial sampling of pages (SHARDS: Waldspurger, Park, Garthwaite, Ahmad, FAST 2015).
//!
//! A page takes part if a hash of its number falls in a range; a memory of F frames becomes one of
//! F x rate. Faults are scaled by 1 / rate, which is the paper's SHARDS-adj: the denominator is the
//! expected number of sampled references, not the actual one. The rate asked for is split into
//! [`GROUPS`] disjoint groups of pages simulated apart; their spread gives the standard error.
//!
//! Sampling fails on few pages (a group of tens of pages is mostly chance), so a page size whose
//! groups would hold fewer than [`MIN_GROUP_PAGES`] pages is simulated whole; so are TLBs, always.

use nearfar_trace::hash::mix;

/// Disjoint groups of sampled pages.
pub const GROUPS: u32 = 4;
/// Fewest expected pages in a group for sampling to be worth it.
pub const MIN_GROUP_PAGES: f64 = 500.0;

/// A group of pages: those whose hash is in a range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    low: u64,
    high: u64,
    /// Part of all pages in the group.
    pub rate: f64,
}

impl Sample {
    /// Group `group` (0..[`GROUPS`]) of a sample of `rate` (0 to 1) of all pages.
    pub fn group(rate: f64, group: u32) -> Self {
        let width = rate / f64::from(GROUPS);
        let edge = |group: u32| (width * f64::from(group) * 2f64.powi(64)) as u64;
        Self { low: edge(group), high: edge(group + 1), rate: width }
    }

    /// Whether the page of this number takes part.
    pub fn takes(&self, page_number: u64) -> bool {
        (self.low..self.high).contains(&mix(page_number))
    }

    /// Frames that stand for `frames`.
    pub fn frames(&self, frames: u64) -> u64 {
        ((frames as f64 * self.rate).round() as u64).max(1)
    }
}

/// Whether a study of `pages` pages can be sampled at `rate`.
pub fn worth_it(pages: f64, rate: f64) -> bool {
    pages * rate / f64::from(GROUPS) >= MIN_GROUP_PAGES
}

/// Mean of the groups' estimates and its standard error.
pub fn estimate(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, (variance / count).sqrt())
}
