//! Hot parts of the address space: neighbouring pages with many more data references than the
//! average page, and the code that makes these references.

use nearfar_schema::columns;
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::PAGE_SHIFT;
use super::names::{Code, Names};
use super::pass::PageState;
use crate::slot;

/// A hot page has at least this many times the data references of the average page.
const HOT: u64 = 8;
/// Hot pages of a region with fewer than this many pages between them are one part.
const GAP: u64 = 16;
/// Maximum number of parts.
const MAX_PARTS: usize = 100;
/// One of this many data references is attributed to code. A prime, so that sampling is out of step
/// with loops.
const SAMPLE_PERIOD: u32 = 61;
/// log2 of the pages per cell; code is counted by cell.
const CELL_SHIFT: u32 = 4;
/// Maximum number of sample counters (cell, code and its address).
const MAX_COUNTERS: usize = 1 << 22;
/// Maximum number of code addresses per part.
const MAX_SITES: usize = 256;

columns! {
    /// A hot part of the address space.
    pub struct HotPart {
        /// Region that contains the hot part.
        name: String as "region",
        /// Address of the hot part's first byte.
        addr_low: u64,
        /// Address after the hot part's last byte; may be 2^64.
        addr_high: u128,
        /// Pages of 4 KiB with data references.
        pages: u64 ["pages"],
        /// Data references whose first byte is in the hot part.
        records: u64,
        /// The hot part's share of all data references of the trace.
        share: f64 ["share"],
        /// Function that makes most data references to the hot part; null without fetches in the trace.
        function: Option<String>,
        /// Share of the hot part's data references that `function` makes, from a sample.
        function_share: Option<f64> ["share"],
    }
    keys [name, addr_low]
    metrics [records less]
    seed []
}

/// A code address that touches a hot part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HotCode {
    /// Index of the part.
    pub part: usize,
    /// Region of the code.
    pub name: String,
    /// The program that ran the code; empty for the first program of the trace.
    pub program: String,
    /// File offset of `addr`, if the region is a file.
    pub offset: Option<u64>,
    /// Address of the last fetch before the references.
    pub addr: u64,
    /// Number of sampled references.
    pub samples: u64,
}

/// Samples the code that makes data references.
#[derive(Default)]
pub struct CodeSample {
    /// The last fetch by thread.
    fetched: Vec<Option<u64>>,
    since_sample: u32,
    /// Number of samples by cell, code and its address.
    samples: FxHashMap<(u64, Code, u64), u64>,
}

impl CodeSample {
    #[inline]
    pub fn fetch(&mut self, thread: u32, addr: u64) {
        *slot(&mut self.fetched, thread) = Some(addr);
    }

    #[inline]
    pub fn data(&mut self, thread: u32, page: u64, names: &mut Names) {
        self.since_sample += 1;
        if self.since_sample < SAMPLE_PERIOD {
            return;
        }
        self.since_sample = 0;
        let Some(addr) = self.fetched.get(thread as usize).copied().flatten() else { return };
        let key = (page >> CELL_SHIFT, names.code(addr), addr);
        if self.samples.len() < MAX_COUNTERS {
            *self.samples.entry(key).or_default() += 1;
        } else if let Some(count) = self.samples.get_mut(&key) {
            *count += 1;
        }
    }

    /// The code of each part, most samples first. `name` returns the name of a region.
    pub fn of(
        self,
        parts: &[HotPart],
        programs: &[String],
        name: impl Fn(u32) -> String,
    ) -> Vec<HotCode> {
        let mut order: Vec<(u64, u64, usize)> = parts.iter().enumerate().map(cells).collect();
        order.sort_unstable();
        let mut by_part: Vec<Vec<(Code, u64, u64)>> = vec![Vec::new(); parts.len()];
        for ((cell, code, addr), samples) in self.samples {
            let after = order.partition_point(|&(low, _, _)| low <= cell);
            if let Some(&(_, high, part)) = order[..after].last()
                && cell <= high
            {
                by_part[part].push((code, addr, samples));
            }
        }
        let mut found = Vec::new();
        for (part, mut sites) in by_part.into_iter().enumerate() {
            sites.sort_unstable_by_key(|&(code, addr, n)| {
                (std::cmp::Reverse(n), addr, code.program, code.region, code.offset)
            });
            found.extend(sites.into_iter().take(MAX_SITES).map(|(code, addr, samples)| HotCode {
                part,
                name: name(code.region),
                program: programs.get(code.program as usize).cloned().unwrap_or_default(),
                offset: code.offset,
                addr,
                samples,
            }));
        }
        found
    }
}

/// First and last cell of a part, and its index.
fn cells((index, part): (usize, &HotPart)) -> (u64, u64, usize) {
    let last = (part.addr_high - 1) as u64;
    let cell = |addr: u64| addr >> (PAGE_SHIFT + CELL_SHIFT);
    (cell(part.addr_low), cell(last), index)
}

/// The hot parts, most references first. `region` returns the number of the region of a page,
/// `name` its name.
pub fn parts(
    state: &[PageState],
    region: impl Fn(&PageState) -> u32,
    name: impl Fn(u32) -> String,
) -> Vec<HotPart> {
    let mut pages: Vec<(u32, u64, u64)> = state
        .iter()
        .filter(|page| page.data > 0)
        .map(|page| (region(page), page.number, page.data))
        .collect();
    pages.sort_unstable();
    let total: u64 = pages.iter().map(|page| page.2).sum();
    let is_hot = |records: u64| {
        u128::from(records) * pages.len() as u128 >= u128::from(HOT) * u128::from(total)
    };
    let mut parts: Vec<(u32, u64, u64, u64, u64)> = Vec::new();
    // Pages and records after the last hot page.
    let mut since = (0, 0);
    for &(region, number, records) in &pages {
        since = (since.0 + 1, since.1 + records);
        if !is_hot(records) {
            continue;
        }
        match parts.last_mut() {
            Some((last_region, _, high, count, sum))
                if *last_region == region && number - *high <= GAP =>
            {
                (*high, *count, *sum) = (number, *count + since.0, *sum + since.1);
            }
            _ => parts.push((region, number, number, 1, records)),
        }
        since = (0, 0);
    }
    parts.sort_by_key(|part| (std::cmp::Reverse(part.4), part.1));
    parts.truncate(MAX_PARTS);
    parts
        .into_iter()
        .map(|(region, low, high, pages, records)| HotPart {
            name: name(region),
            addr_low: low << PAGE_SHIFT,
            addr_high: u128::from(high + 1) << PAGE_SHIFT,
            pages,
            records,
            share: records as f64 / total as f64,
            function: None,
            function_share: None,
        })
        .collect()
}
