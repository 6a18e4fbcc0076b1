//! TLBs by clusters of references (SMARTS: Wunderlich, Wenisch, Falsafi, Hoe, ISCA 2003).
//!
//! A trace that was captured with `--sample` has bursts of references of a thread. Each is a cluster,
//! without the records of other threads: it is measured after a warm-up that starts with an empty
//! TLB. All entries of this TLB are also in one that has seen the whole run, so a hit is certain. A
//! miss is certain if its set is full, otherwise it is *uncertain*. The interval extends from no
//! uncertain miss being real to all being real, plus two standard errors on both sides; the estimate
//! is the middle. For the second level of a TLB, this assumes that the first level passes on the same
//! references.
//!
//! Bursts have different numbers of records, so misses are estimated by a ratio (Cochran, Sampling
//! Techniques, 6.4). Fewer than [`MIN_BURSTS`] say nothing of the error: the interval is then from no
//! miss to a miss in every reference.
//!
//! Clusters ignore events, so a page that is unmapped and mapped again within one stays in the TLB.

use std::ops::Range;

use nearfar_hardware::tlb::{Buffer, Level, TlbSpec};
use nearfar_trace::hash::PageMap;
use nearfar_trace::{Batch, KindSet, PageSample, last_byte};

/// Minimum number of measured records of a cluster.
const CLUSTER: u64 = 1000;
/// Half-width of a 95 % interval in standard errors of a mean of at least 50 values.
const HALF_WIDTH: f64 = 2.01;
/// Minimum number of bursts for an interval.
const MIN_BURSTS: u64 = 50;

/// Estimated misses of the TLB over the whole trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Page walks.
    pub misses: f64,
    /// First-level misses that hit the second level.
    pub second_hits: f64,
    /// 95 % interval of the page walks.
    pub interval: (f64, f64),
}

/// The bursts that are clusters.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// References that the program made.
    references: u64,
    /// Records of each burst that warm the TLB up.
    warm: u64,
    /// The records of each burst, and its thread.
    bursts: Vec<(Range<u64>, u32)>,
}

impl Schedule {
    /// The bursts of `sample`, for a program that made `references`. Those that overlap an earlier
    /// one or are too short to warm up are not used.
    pub fn new(sample: &PageSample, references: u64, tlb: TlbSpec) -> Self {
        let warm = warm_up(tlb);
        let mut all: Vec<_> =
            sample.bursts.iter().map(|burst| (burst.start..burst.end, burst.thread)).collect();
        all.sort_by_key(|(range, _)| range.start);
        let mut bursts: Vec<(Range<u64>, u32)> = Vec::new();
        for (range, thread) in all {
            let behind = bursts.last().is_none_or(|(last, _)| last.end <= range.start);
            if behind && range.end - range.start >= warm + CLUSTER {
                bursts.push((range, thread));
            }
        }
        Self { references, warm, bursts }
    }
}

/// Records before a cluster that fill the TLB.
fn warm_up(tlb: TlbSpec) -> u64 {
    let entries = u64::from(tlb.first.entries + tlb.second.map_or(0, |level| level.entries));
    (4 * entries).max(2 * CLUSTER)
}

/// One level of a TLB, with the number of entries in each set.
struct WarmingLevel {
    buffer: Buffer,
    ways: u32,
    entries: Vec<u32>,
}

impl WarmingLevel {
    fn new(level: Level) -> Self {
        let ways = level.ways.unwrap_or(level.entries);
        let entries = vec![0; (level.entries / ways) as usize];
        Self { buffer: Buffer::new(level), ways, entries }
    }

    /// Look up a page. A miss is uncertain while its set has room.
    fn access(&mut self, page: u32, number: u64) -> Lookup {
        if self.buffer.access(page, number) {
            return Lookup::Hit;
        }
        let sets = self.entries.len() as u64;
        let entries = &mut self.entries[(number % sets) as usize];
        if *entries == self.ways {
            return Lookup::Miss;
        }
        *entries += 1;
        Lookup::Uncertain
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Lookup {
    Hit,
    Miss,
    Uncertain,
}

/// Counts of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    /// Measured records of the selected kinds.
    records: u64,
    misses: u64,
    uncertain: u64,
    second_hits: u64,
}

/// The TLB at one page size.
struct Translation {
    shift: u32,
    tlb: TlbSpec,
    first: WarmingLevel,
    second: Option<WarmingLevel>,
    ids: PageMap<u32>,
    /// A repeat is a hit and does not change the order.
    previous: u64,
    /// Counts of each cluster.
    counts: Vec<Counts>,
}

impl Translation {
    fn new(shift: u32, tlb: TlbSpec) -> Self {
        Self {
            shift,
            tlb,
            first: WarmingLevel::new(tlb.first),
            second: tlb.second.map(WarmingLevel::new),
            ids: PageMap::default(),
            previous: u64::MAX,
            counts: Vec::new(),
        }
    }

    /// Start a cluster with an empty TLB.
    fn begin(&mut self) {
        let counts = std::mem::take(&mut self.counts);
        *self = Self { counts, ..Self::new(self.shift, self.tlb) };
        self.counts.push(Counts::default());
    }

    /// Apply a record; `measured` is false during warm-up.
    #[inline]
    fn record(&mut self, first: u64, last: u64, measured: bool) {
        for number in first >> self.shift..=last >> self.shift {
            if number != self.previous {
                self.previous = number;
                self.page(number, measured);
            }
        }
    }

    fn page(&mut self, number: u64, measured: bool) {
        let next = self.ids.len() as u32;
        let page = *self.ids.entry(number).or_insert(next);
        let mut lookup = self.first.access(page, number);
        let mut second_hit = false;
        if let (Some(second), false) = (&mut self.second, lookup == Lookup::Hit) {
            lookup = second.access(page, number);
            second_hit = lookup == Lookup::Hit;
        }
        if let (true, Some(counts)) = (measured, self.counts.last_mut()) {
            counts.misses += u64::from(lookup == Lookup::Miss);
            counts.uncertain += u64::from(lookup == Lookup::Uncertain);
            counts.second_hits += u64::from(second_hit);
        }
    }
}

/// The clusters of a trace, at several page sizes.
pub struct Clusters {
    schedule: Schedule,
    kinds: KindSet,
    sizes: Vec<Translation>,
    /// The current cluster, or the next one.
    number: usize,
    inside: bool,
}

impl Clusters {
    /// Before the first record.
    pub fn new(schedule: Schedule, kinds: KindSet, tlb: TlbSpec, page_sizes: &[u64]) -> Self {
        let size = |page: &u64| Translation::new(page.trailing_zeros(), tlb);
        let sizes = page_sizes.iter().map(size).collect();
        Self { schedule, kinds, sizes, number: 0, inside: false }
    }

    /// Apply the records of `batch` in `range`; the first is number `at` of the trace.
    pub fn records(&mut self, batch: &Batch, range: Range<usize>, at: u64) {
        while let Some((cluster, own)) = self.schedule.bursts.get(self.number) {
            let place =
                |number: u64| range.start + (number.max(at) - at).min(range.len() as u64) as usize;
            let (from, to) = (place(cluster.start), place(cluster.end));
            if from < to {
                if !std::mem::replace(&mut self.inside, true) {
                    self.sizes.iter_mut().for_each(Translation::begin);
                }
                let warm = place(cluster.start + self.schedule.warm);
                for size in &mut self.sizes {
                    for i in (from..to).filter(|&i| self.kinds.0 >> batch.kind[i] & 1 == 1) {
                        if batch.thread.get(i).is_some_and(|thread| thread != own) {
                            continue;
                        }
                        let addr = batch.addr[i];
                        if let (true, Some(counts)) = (i >= warm, size.counts.last_mut()) {
                            counts.records += 1;
                        }
                        size.record(addr, last_byte(addr, batch.size[i]), i >= warm);
                    }
                }
            }
            if cluster.end > at + range.len() as u64 {
                return;
            }
            self.number += 1;
            self.inside = false;
        }
    }

    /// The estimate for pages of 2^`shift` bytes.
    pub fn outcome(&self, shift: u32) -> Estimate {
        let counts = self.sizes.iter().find(|size| size.shift == shift);
        let counts = counts.map_or(&[][..], |size| &size.counts);
        let (bursts, references) = (counts.len() as f64, self.schedule.references as f64);
        let measured = counts.iter().map(|burst| burst.records).sum::<u64>().max(1) as f64;
        // The total and its standard error.
        let total = |count: fn(&Counts) -> u64| {
            let ratio = counts.iter().map(count).sum::<u64>() as f64 / measured;
            let residual = |burst: &Counts| count(burst) as f64 - ratio * burst.records as f64;
            let squares = counts.iter().map(|burst| residual(burst).powi(2)).sum::<f64>();
            let error = (squares * bursts / (bursts - 1.0)).sqrt() / measured;
            (ratio * references, error * references)
        };
        // The rule of three, for rare hits or misses that no burst has.
        let rare = 3.0 * references / measured;
        let (low, low_error) = total(|burst| burst.misses);
        let (high, high_error) = total(|burst| burst.misses + burst.uncertain);
        let interval = if (self.schedule.bursts.len() as u64) < MIN_BURSTS {
            (0.0, references)
        } else {
            (
                (low - HALF_WIDTH * low_error - rare).max(0.0),
                (high + HALF_WIDTH * high_error + rare).min(references),
            )
        };
        Estimate {
            misses: f64::midpoint(low, high),
            second_hits: total(|burst| burst.second_hits).0,
            interval,
        }
    }
}
