//! TLB misses from bursts of references (SMARTS: Wunderlich, Wenisch, Falsafi, Hoe, ISCA 2003).
//!
//! A trace that was captured with `--sample` has bursts: all references of a thread for a while. Each burst
//! is measured after a warm-up that starts with an empty TLB. A TLB simulated over the whole run would
//! contain all entries of this one, so a hit is certain. A miss is certain if its set is full, otherwise it
//! is *uncertain*. The lower end of the interval counts no uncertain miss, the upper end all; the estimate is
//! the middle. Both ends are then extended by two standard errors and by an upper bound on misses too rare to
//! occur in a burst. For the second level, this assumes that the first level passes on the same references as
//! in the whole run.
//!
//! All bursts have the same number of code blocks. Each represents a part of the run, and parts differ in
//! their number of references: misses are a ratio estimate, weighted by this number (Cochran, Sampling
//! Techniques, 6.4). With fewer than [`MIN_BURSTS`] bursts, the interval extends from no miss to a miss
//! in every reference.
//!
//! Bursts ignore events, so a page that is unmapped and mapped again within a burst stays in the TLB.

use std::cmp::Reverse;
use std::ops::Range;

use nearfar_hardware::tlb::{Buffer, Level, TlbSpec};
use nearfar_trace::hash::PageMap;
use nearfar_trace::sample::Burst;
use nearfar_trace::{Batch, KindSet, PageSample, last_byte};

/// Half-width of a 95 % interval in standard errors of a mean of [`MIN_BURSTS`] values (Student's t).
const HALF_WIDTH: f64 = 2.01;
/// Minimum number of bursts for an interval.
const MIN_BURSTS: usize = 50;

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

/// Number of records that warm the TLB up.
fn warm_up(tlb: TlbSpec) -> u64 {
    let entries = tlb.first.entries + tlb.second.map_or(0, |level| level.entries);
    (4 * u64::from(entries)).max(2000)
}

/// One level of a TLB, with the number of entries filled so far in each set.
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

/// Counts of the measured records of a burst.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    misses: u64,
    uncertain: u64,
    second_hits: u64,
}

/// The TLB at one page size, in a burst.
struct Translation {
    shift: u32,
    first: WarmingLevel,
    second: Option<WarmingLevel>,
    ids: PageMap<u32>,
    /// The previous page's number. A repeated page is a hit and does not change the LRU order.
    previous: u64,
    counts: Counts,
}

impl Translation {
    fn new(shift: u32, tlb: TlbSpec) -> Self {
        Self {
            shift,
            first: WarmingLevel::new(tlb.first),
            second: tlb.second.map(WarmingLevel::new),
            ids: PageMap::default(),
            previous: u64::MAX,
            counts: Counts::default(),
        }
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
        let first = self.first.access(page, number);
        let (mut lookup, mut second_hit) = (first, false);
        if let (Some(second), false) = (&mut self.second, first == Lookup::Hit) {
            lookup = second.access(page, number);
            second_hit = lookup == Lookup::Hit;
            if lookup == Lookup::Miss {
                // The miss is certain only if that of the first level is.
                lookup = first;
            }
        }
        if measured {
            self.counts.misses += u64::from(lookup == Lookup::Miss);
            self.counts.uncertain += u64::from(lookup == Lookup::Uncertain);
            self.counts.second_hits += u64::from(second_hit);
        }
    }
}

/// A burst that is being read.
struct Open {
    burst: Burst,
    /// Records that warm the TLB up: at most half of the burst.
    warm: u64,
    /// Records of the selected kinds so far.
    records: u64,
    sizes: Vec<Translation>,
}

/// The counts of a burst.
struct Measured {
    /// Proportional to the references that it represents: its records, times the code blocks that it
    /// represents, because all bursts have the same number of code blocks.
    weight: f64,
    /// Records after the warm-up.
    records: u64,
    counts: Vec<Counts>,
}

/// The bursts of a trace, at several page sizes.
pub struct Bursts {
    kinds: KindSet,
    tlb: TlbSpec,
    /// log2 of the page sizes.
    shifts: Vec<u32>,
    /// References that the program made.
    references: u64,
    /// Bursts that have not started, the next one last.
    coming: Vec<Burst>,
    open: Vec<Open>,
    measured: Vec<Measured>,
}

impl Bursts {
    pub fn new(
        sample: &PageSample,
        references: u64,
        kinds: KindSet,
        tlb: TlbSpec,
        page_sizes: &[u64],
    ) -> Self {
        let mut coming = sample.bursts.clone();
        coming.sort_by_key(|burst| Reverse((burst.start, burst.thread)));
        let shifts = page_sizes.iter().map(|page| page.trailing_zeros()).collect();
        Self { kinds, tlb, shifts, references, coming, open: Vec::new(), measured: Vec::new() }
    }

    /// Apply the records of `batch` in `range`; the first is number `at` of the trace.
    pub fn records(&mut self, batch: &Batch, range: Range<usize>, at: u64) {
        let end = at + range.len() as u64;
        while let Some(burst) = self.coming.pop_if(|burst| burst.start < end) {
            let sizes =
                self.shifts.iter().map(|&shift| Translation::new(shift, self.tlb)).collect();
            let warm = warm_up(self.tlb).min((burst.end - burst.start) / 2);
            self.open.push(Open { burst, warm, records: 0, sizes });
        }
        let place = |number: u64| range.start + (number.clamp(at, end) - at) as usize;
        for open in &mut self.open {
            for i in place(open.burst.start)..place(open.burst.end) {
                // A trace of one thread is read without the thread column.
                let is_of_thread =
                    batch.thread.get(i).is_none_or(|&thread| thread == open.burst.thread);
                if is_of_thread && self.kinds.has(batch.kind[i]) {
                    open.record(batch.addr[i], batch.size[i]);
                }
            }
        }
        let ended = self.open.extract_if(.., |open| open.burst.end <= end);
        self.measured.extend(ended.map(Open::measured).filter(|burst| burst.records > 0));
    }

    /// The estimate for pages of 2^`shift` bytes.
    pub fn outcome(&self, shift: u32) -> Estimate {
        let Self { measured, references, .. } = self;
        let (bursts, references) = (measured.len() as f64, *references as f64);
        let size = self.shifts.iter().position(|&other| other == shift).unwrap_or(0);
        let weights = measured.iter().map(|burst| burst.weight).sum::<f64>().max(1.0);
        // Estimated total of a count, and its standard error.
        let total = |count: fn(&Counts) -> u64| {
            let rate = |burst: &Measured| count(&burst.counts[size]) as f64 / burst.records as f64;
            let ratio =
                measured.iter().map(|burst| burst.weight * rate(burst)).sum::<f64>() / weights;
            let residual = |burst: &Measured| burst.weight * (rate(burst) - ratio);
            let squares = measured.iter().map(|burst| residual(burst).powi(2)).sum::<f64>();
            let error = (squares * bursts / (bursts - 1.0)).sqrt() / weights;
            (ratio * references, error * references)
        };
        // The rule of three bounds single misses outside the bursts, but not those of a phase without bursts.
        let records = measured.iter().map(|burst| burst.records).sum::<u64>().max(1);
        let rare = 3.0 * references / records as f64;
        let (low, low_error) = total(|burst| burst.misses);
        let (high, high_error) = total(|burst| burst.misses + burst.uncertain);
        let interval = if measured.len() < MIN_BURSTS {
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

impl Open {
    fn record(&mut self, addr: u64, size: u16) {
        let measured = self.records >= self.warm;
        self.records += 1;
        for translation in &mut self.sizes {
            translation.record(addr, last_byte(addr, size), measured);
        }
    }

    fn measured(self) -> Measured {
        Measured {
            weight: self.records as f64 * self.burst.blocks as f64,
            records: self.records.saturating_sub(self.warm),
            counts: self.sizes.iter().map(|size| size.counts).collect(),
        }
    }
}
