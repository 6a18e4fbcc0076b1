//! TLBs by clusters of references (SMARTS: Wunderlich, Wenisch, Falsafi, Hoe, ISCA 2003).
//!
//! The trace is cut into strata of equally many records, and of each a cluster of [`CLUSTER`] is
//! measured at a place of chance, after a warm-up that begins with an empty TLB. What the TLB holds is
//! then also held by one that had seen everything, so a hit is a hit. A miss is one for certain when
//! its set was full; before that it is open. An interval reaches from no open one being a miss to all,
//! and by two standard errors of the mean over clusters beyond; the estimate is in the middle of the open ones.
//! With two levels that holds for the second as far as the first hands it the same references.
//!
//! A trace too short for clusters enough, with their warm-ups, is simulated whole. Clusters do not see
//! what ends, so a page that is unmapped and mapped again within one stays in the TLB.

use std::ops::Range;

use nearfar_hardware::tlb::{Buffer, Level, TlbSpec};
use nearfar_trace::hash::{PageMap, mix};
use nearfar_trace::{Batch, KindSet, last_byte};

use super::estimate;

/// Records that are measured together.
pub const CLUSTER: u64 = 1000;
/// Least and most clusters.
const COUNT: Range<u64> = 50..2000;
/// Half of a 95 % interval in standard errors of a mean of at least 50 values.
const HALF: f64 = 2.01;

/// What a TLB of all the trace comes to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Page walks.
    pub misses: f64,
    /// Misses of the first level that the second held.
    pub second_hits: f64,
    /// 95 % interval of the page walks; none where all of the trace was simulated.
    pub interval: Option<(f64, f64)>,
}

/// Where clusters lie.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    records: u64,
    warm: u64,
    /// Clusters; 0: one of all the trace.
    pub count: u64,
    seed: u64,
}

impl Schedule {
    /// For a trace of so many records.
    pub fn new(records: u64, rate: f64, tlb: TlbSpec, seed: u64) -> Self {
        let entries = u64::from(tlb.first.entries + tlb.second.map_or(0, |level| level.entries));
        let warm = (4 * entries).max(2 * CLUSTER);
        let count = ((records as f64 * rate / CLUSTER as f64) as u64).clamp(COUNT.start, COUNT.end);
        // No more than half of the trace.
        let count = count.min(records / (2 * (warm + CLUSTER)));
        let count = if count < COUNT.start { 0 } else { count };
        Self { records, warm, count, seed: mix(seed) }
    }

    /// The records of a cluster, with its warm-up, and the first that is measured.
    pub fn cluster(&self, number: u64) -> (Range<u64>, u64) {
        if self.count == 0 {
            return (0..self.records, 0);
        }
        let edge = |number| (u128::from(self.records) * number as u128 / self.count as u128) as u64;
        let (from, to) = (edge(number), edge(number + 1));
        let length = self.warm + CLUSTER;
        let start = from + mix(self.seed ^ number) % (to - from - length + 1);
        (start..start + length, start + self.warm)
    }
}

/// One level of a TLB, and how full its sets are.
struct Warming {
    buffer: Buffer,
    ways: u32,
    held: Vec<u32>,
}

impl Warming {
    fn new(level: Level) -> Self {
        let ways = level.ways.unwrap_or(level.entries);
        let held = vec![0; (level.entries / ways) as usize];
        Self { buffer: Buffer::new(level), ways, held }
    }

    /// Whether a reference hits; a miss is open while its set has room.
    fn access(&mut self, page: u32, number: u64) -> Found {
        if self.buffer.access(page, number) {
            return Found::Hit;
        }
        let sets = self.held.len() as u64;
        let held = &mut self.held[(number % sets) as usize];
        if *held == self.ways {
            return Found::Miss;
        }
        *held += 1;
        Found::Open
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Found {
    Hit,
    Miss,
    Open,
}

/// What was counted in a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    misses: u64,
    open: u64,
    second_hits: u64,
}

/// The TLB at one page size.
struct Translation {
    shift: u32,
    tlb: TlbSpec,
    first: Warming,
    second: Option<Warming>,
    ids: PageMap<u32>,
    /// A repeat is a hit and leaves the order as it is.
    previous: u64,
    /// Of each cluster.
    counts: Vec<Counts>,
}

impl Translation {
    fn new(shift: u32, tlb: TlbSpec) -> Self {
        Self {
            shift,
            tlb,
            first: Warming::new(tlb.first),
            second: tlb.second.map(Warming::new),
            ids: PageMap::default(),
            previous: u64::MAX,
            counts: Vec::new(),
        }
    }

    /// Begin a cluster with nothing held.
    fn begin(&mut self) {
        let counts = std::mem::take(&mut self.counts);
        *self = Self { counts, ..Self::new(self.shift, self.tlb) };
        self.counts.push(Counts::default());
    }

    /// A record, measured or to warm up.
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
        let mut found = self.first.access(page, number);
        let mut second_hit = false;
        if let (Some(second), false) = (&mut self.second, found == Found::Hit) {
            found = second.access(page, number);
            second_hit = found == Found::Hit;
        }
        if let (true, Some(counts)) = (measured, self.counts.last_mut()) {
            counts.misses += u64::from(found == Found::Miss);
            counts.open += u64::from(found == Found::Open);
            counts.second_hits += u64::from(second_hit);
        }
    }
}

/// The clusters of a trace, at several page sizes.
pub struct Clusters {
    schedule: Schedule,
    kinds: KindSet,
    sizes: Vec<Translation>,
    /// The next cluster, or the one that goes on.
    number: u64,
    inside: bool,
}

impl Clusters {
    /// Before the first record.
    pub fn new(schedule: Schedule, kinds: KindSet, tlb: TlbSpec, page_sizes: &[u64]) -> Self {
        let size = |page: &u64| Translation::new(page.trailing_zeros(), tlb);
        let sizes = page_sizes.iter().map(size).collect();
        Self { schedule, kinds, sizes, number: 0, inside: false }
    }

    /// The records of `batch` in `range`, whose first is number `at` of the trace.
    pub fn records(&mut self, batch: &Batch, range: Range<usize>, at: u64) {
        while self.number < self.schedule.count.max(1) {
            let (cluster, measured) = self.schedule.cluster(self.number);
            let place =
                |number: u64| range.start + (number.max(at) - at).min(range.len() as u64) as usize;
            let (from, to) = (place(cluster.start), place(cluster.end));
            if from < to {
                if !std::mem::replace(&mut self.inside, true) {
                    self.sizes.iter_mut().for_each(Translation::begin);
                }
                let warm = place(measured);
                for size in &mut self.sizes {
                    for i in (from..to).filter(|&i| self.kinds.0 >> batch.kind[i] & 1 == 1) {
                        let addr = batch.addr[i];
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

    /// What the TLB at pages of 2^`shift` bytes comes to.
    pub fn outcome(&self, shift: u32) -> Estimate {
        let counts = self.sizes.iter().find(|size| size.shift == shift);
        let counts = counts.map_or(&[][..], |size| &size.counts);
        if self.schedule.count == 0 {
            let all = counts.first().copied().unwrap_or_default();
            let misses = (all.misses + all.open) as f64;
            return Estimate { misses, second_hits: all.second_hits as f64, interval: None };
        }
        let whole = |of: fn(&Counts) -> u64| {
            let values: Vec<f64> = counts.iter().map(|count| of(count) as f64).collect();
            let (mean, error) = estimate(&values);
            let scale = self.schedule.records as f64 / CLUSTER as f64;
            (mean * scale, error * scale)
        };
        // What happens once in a while, a miss or a hit, may not have in any cluster: the rule of three.
        let rare = 3.0 * self.schedule.records as f64 / (counts.len() as u64 * CLUSTER) as f64;
        let (least, below) = whole(|of| of.misses);
        let (most, above) = whole(|of| of.misses + of.open);
        Estimate {
            misses: f64::midpoint(least, most),
            second_hits: whole(|of| of.second_hits).0,
            interval: Some(((least - HALF * below - rare).max(0.0), most + HALF * above + rare)),
        }
    }
}
