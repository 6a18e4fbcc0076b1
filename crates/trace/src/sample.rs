//! Traces that hold a sample of the program's pages (`nearfar capture --sample`).
//!
//! Such a trace has every reference to the sampled pages, every kernel reference, and every event.
//! Of any other page it has the first load, store and fetch since the page was mapped.
//! So the footprint, the resident set and the lifetimes of pages are exact, and the number of
//! references is known. Page replacement can be simulated on the sampled pages.
//!
//! In *bursts*, it has every reference of one thread, so that TLBs can be simulated.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::hash::mix;
use crate::record::{Kind, KindSet};

/// log2 of the size of sampled pages.
pub const PAGE_SHIFT: u32 = 12;
/// Address bits that determine whether a page is sampled. The kernel addresses that stand for files
/// in the page cache have more bits, which are ignored.
const ADDR_BITS: u32 = 48;

/// The sample that a trace holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageSample {
    /// Share of the 4 KiB pages that is sampled, above 0 and up to 1: the pages whose
    /// [`PageSample::hash`] is below `rate` * 2^64.
    pub rate: f64,
    pub seed: u64,
    /// References that the program made, by kind; empty in a trace that was cut off.
    #[serde(deserialize_with = "crate::info::unique")]
    pub references: BTreeMap<Kind, u64>,
    /// The bursts, in order of their ends.
    pub bursts: Vec<Burst>,
}

/// A burst: the records `start..end` hold every reference of `thread`. Records of other threads among
/// them are part of the sample of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "(u32, u64, u64, u64)", from = "(u32, u64, u64, u64)")]
pub struct Burst {
    pub thread: u32,
    /// Number of its first record in the trace.
    pub start: u64,
    /// Number of the record after its last one.
    pub end: u64,
    /// Weight: blocks of code executed in the part of the run that the burst represents.
    pub blocks: u64,
}

impl From<Burst> for (u32, u64, u64, u64) {
    fn from(burst: Burst) -> Self {
        (burst.thread, burst.start, burst.end, burst.blocks)
    }
}

impl From<(u32, u64, u64, u64)> for Burst {
    fn from((thread, start, end, blocks): (u32, u64, u64, u64)) -> Self {
        Self { thread, start, end, blocks }
    }
}

impl PageSample {
    pub fn hash(&self, page_number: u64) -> u64 {
        mix((page_number & ((1 << (ADDR_BITS - PAGE_SHIFT)) - 1)) ^ mix(self.seed))
    }

    /// Upper limit (exclusive) of the hashes of sampled pages.
    pub fn limit(&self) -> u64 {
        limit(self.rate)
    }

    /// The rate as a percentage.
    pub fn share(&self) -> String {
        format!("{} %", (self.rate * 1e6).round() / 1e4)
    }

    /// Whether the sample contains the page of this number.
    pub fn contains(&self, page_number: u64) -> bool {
        self.hash(page_number) < self.limit()
    }

    /// References of the program of any of `kinds`.
    pub fn references_of(&self, kinds: KindSet) -> u64 {
        let counts = self.references.iter().filter(|(kind, _)| kinds.contains(**kind));
        counts.fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// A message if the sample contradicts the number of records by kind.
    pub(crate) fn contradiction(&self, records: &BTreeMap<Kind, u64>) -> Option<String> {
        let total = records.values().fold(0u64, |sum, count| sum.saturating_add(*count));
        if let Some(burst) = self.bursts.iter().find(|b| b.start > b.end || b.end > total) {
            let Burst { start, end, .. } = burst;
            return Some(format!("`sample` has a burst from {start} to {end} of {total} records"));
        }
        if !(self.rate > 0.0 && self.rate <= 1.0) {
            return Some(format!("`sample` has the rate {}, which is not a share", self.rate));
        }
        let too_few = self
            .references
            .iter()
            .find(|(kind, made)| records.get(kind).is_some_and(|records| records > *made));
        too_few.map(|(kind, made)| {
            let kind = kind.name();
            format!("`sample` has {made} references of `{kind}`, fewer than its records")
        })
    }
}

/// Upper limit (exclusive) of the hashes of pages sampled at `rate`.
pub fn limit(rate: f64) -> u64 {
    (rate * 2f64.powi(64)) as u64
}

/// The inverse of [`limit`]. Exact for `u64::MAX` (all pages) and for powers of two.
pub fn rate(limit: u64) -> f64 {
    // A limit of 0 would give a rate that `PageSample::contradiction` rejects.
    if limit == u64::MAX { 1.0 } else { limit.max(1) as f64 / 2f64.powi(64) }
}
