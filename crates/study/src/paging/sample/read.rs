//! One pass over the trace, which keeps what a sample needs of it.

use std::ops::Range;

use nearfar_trace::reader::Batches;
use nearfar_trace::{Batch, Columns, Error, KindSet, RegionEvent, Result, last_byte};

use super::clusters::{Clusters, Schedule};
use super::touched::Touched;
use super::{GROUPS, Sample, Sampled};
use crate::lifetimes::{Blocks, Events, Next, PAGE};

/// Bytes that a record takes that is kept.
const KEPT_BYTES: u64 = (size_of::<u64>() + size_of::<u16>() + size_of::<u8>()) as u64;

/// The records that touch sampled pages of one size.
pub struct Kept {
    /// log2 of the page size.
    pub shift: u32,
    /// The pages.
    pub sample: Sample,
    /// Their records.
    pub batch: Batch,
    /// For each event, how many of them come before it.
    pub before: Vec<usize>,
}

impl Kept {
    /// Keep those of `records` that touch a sampled page.
    fn take(&mut self, records: &Records) {
        let Self { shift, sample, batch, .. } = self;
        for (at, (&addr, &last)) in records.addr.iter().zip(&records.last).enumerate() {
            let (first, last) = (addr >> *shift, last >> *shift);
            if sample.takes(first)
                || first != last && (first + 1..=last).any(|page| sample.takes(page))
            {
                batch.addr.push(addr);
                batch.kind.push(records.kind[at]);
                batch.size.push(records.size[at]);
            }
        }
    }

    /// Distinct pages of each group.
    pub fn pages_by_group(&self) -> Vec<u64> {
        let records = self.batch.addr.iter().zip(&self.batch.size);
        let pages = records
            .flat_map(|(&addr, &size)| addr >> self.shift..=last_byte(addr, size) >> self.shift);
        let mut pages: Vec<u64> = pages.filter(|&page| self.sample.takes(page)).collect();
        pages.sort_unstable();
        pages.dedup();
        let groups = (0..GROUPS).map(|group| self.sample.group(group));
        groups.map(|group| pages.iter().filter(|&&page| group.takes(page)).count() as u64).collect()
    }
}

/// Records of a batch that count.
#[derive(Default)]
struct Records {
    addr: Vec<u64>,
    /// Last byte.
    last: Vec<u64>,
    kind: Vec<u8>,
    size: Vec<u16>,
}

impl Records {
    fn fill(&mut self, batch: &Batch, range: Range<usize>, kinds: KindSet) {
        self.addr.clear();
        self.last.clear();
        self.kind.clear();
        self.size.clear();
        for i in range.filter(|&i| kinds.0 >> batch.kind[i] & 1 == 1) {
            self.addr.push(batch.addr[i]);
            self.last.push(last_byte(batch.addr[i], batch.size[i]));
            self.kind.push(batch.kind[i]);
            self.size.push(batch.size[i]);
        }
    }
}

/// What was kept of a trace, and what was counted over all of it.
pub struct Part {
    /// For each page size.
    pub kept: Vec<Kept>,
    /// Events of the address space, where pages end.
    pub events: Vec<RegionEvent>,
    /// Every block that was touched.
    pub touched: Touched,
    /// What TLBs came to.
    pub clusters: Clusters,
    /// Records that count.
    pub records: u64,
    /// References beyond one a record, for borders crossed, by log2 of the page size.
    pub crossings: [u64; 64],
}

impl Part {
    /// Read the trace.
    ///
    /// # Errors
    /// It cannot be read; what is kept needs too much memory; the error of `on_progress`.
    pub fn read(
        of: &Sampled<'_>,
        page_sizes: &[u64],
        rate: f64,
        on_progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Self> {
        let Sampled { reader, options, lives, .. } = *of;
        let (kinds, tlb, seed) = (options.kinds, options.tlb, options.sample_seed);
        let kept = |&page: &u64| {
            let shift = page.trailing_zeros();
            let sample = Sample::new(shift, rate, seed);
            Kept { shift, sample, batch: Batch::default(), before: Vec::new() }
        };
        let schedule = Schedule::new(reader.info().records, rate, tlb, seed);
        let mut part = Self {
            kept: page_sizes.iter().map(kept).collect(),
            events: Vec::new(),
            touched: Touched::new(page_sizes[0].trailing_zeros()),
            clusters: Clusters::new(schedule, kinds, tlb, page_sizes),
            records: 0,
            crossings: [0; 64],
        };
        // Nothing is touched here: they only say whose address space a thread is in.
        let mut blocks = Blocks::new(PAGE, PAGE, options.spaces(reader));
        let mut events = if lives { Events::new(reader)? } else { Events::none() };
        let thread = lives && blocks.spaces().several();
        let mut groups = reader.groups(Columns { thread, ..Columns::PAGING });
        let (mut batch, mut records, mut at) = (Batch::default(), Records::default(), 0);
        let mut group = groups.next()?;
        while let Some(mut current) = group {
            // One row group is decompressed while the one before is looked at.
            let mut look = || -> Result<()> {
                while current.next_into(Batches::MAX, &mut batch)? {
                    for next in events.among(batch.len()) {
                        match next {
                            Next::Event(event) => {
                                blocks.apply(&event);
                                part.event(event);
                            }
                            Next::Records(range) => {
                                if lives {
                                    blocks.spaces().tell_apart(&mut batch, range.clone());
                                }
                                part.clusters.records(&batch, range.clone(), at);
                                at += range.len() as u64;
                                records.fill(&batch, range, kinds);
                                part.records(&records);
                            }
                        }
                    }
                }
                Ok(())
            };
            let (next, looked) = of.pool.install(|| rayon::join(|| groups.next(), &mut look));
            looked?;
            group = next?;
            part.check(rate, at, reader.info().records, options.max_memory)?;
            on_progress(at)?;
        }
        Ok(part)
    }

    fn event(&mut self, event: RegionEvent) {
        self.kept.iter_mut().for_each(|kept| kept.before.push(kept.batch.len()));
        self.events.push(event);
    }

    fn records(&mut self, records: &Records) {
        self.records += records.addr.len() as u64;
        let block = self.kept[0].shift;
        for (&addr, &last) in records.addr.iter().zip(&records.last) {
            self.touched.touch(addr);
            if addr >> block != last >> block {
                for block in (addr >> block) + 1..=last >> block {
                    self.touched.touch(block << self.kept[0].shift);
                }
                for shift in block..64 {
                    self.crossings[shift as usize] += (last >> shift) - (addr >> shift);
                }
            }
        }
        self.kept.iter_mut().for_each(|kept| kept.take(records));
    }

    /// Refuse a sample that will not fit, as early as that can be known.
    fn check(&self, rate: f64, at: u64, records: u64, most: u64) -> Result<()> {
        let kept: u64 = self.kept.iter().map(|kept| kept.batch.len() as u64 * KEPT_BYTES).sum();
        if kept <= most / 2 {
            return Ok(());
        }
        let all = kept as f64 / at as f64 * records as f64;
        let what = format!("{rate} of this trace takes about {:.0} GiB", all / 2f64.powi(30));
        let fits = super::rounded_up(rate * most as f64 / 2.0 / all * 0.9);
        Err(Error::input("--sample", what, format!("give {fits}, or raise --max-memory")))
    }
}
