//! One pass over the trace that collects the sampled records.

use std::ops::Range;

use nearfar_trace::reader::Batches;
use nearfar_trace::{Batch, Columns, Error, KindSet, RegionEvent, Result, last_byte};

use rustc_hash::FxHashSet;

use super::block_set::BlockSet;
use super::clusters::{Clusters, Schedule};
use super::{GROUPS, Sample, Sampled, Simulation};
use crate::lifetimes::{Events, Next, Recent, ResidentSet};

/// Bytes per sampled record.
const RECORD_BYTES: u64 = (size_of::<u64>() + size_of::<u16>() + size_of::<u8>()) as u64;

/// The records that touch sampled pages of one size.
pub struct SampledRecords {
    /// log2 of the page size.
    pub shift: u32,
    /// The sampled pages.
    pub sample: Sample,
    /// The records; of a captured sample, which is read again instead, those of the current batch.
    pub batch: Batch,
    /// For each event, the number of these records before it.
    pub events_at: Vec<usize>,
    /// Sampled pages of a captured sample.
    pages: FxHashSet<u64>,
}

impl SampledRecords {
    fn new(shift: u32, rate: f64, seed: u64) -> Self {
        let sample = Sample::new(shift, rate, seed);
        let (batch, events_at, pages) = (Batch::default(), Vec::new(), FxHashSet::default());
        Self { shift, sample, batch, events_at, pages }
    }

    /// Add the records that touch a sampled page.
    fn add(&mut self, records: &Records) {
        let Self { shift, sample, batch, .. } = self;
        for (at, (&addr, &last)) in records.addr.iter().zip(&records.last).enumerate() {
            let (first, last) = (addr >> *shift, last >> *shift);
            if sample.contains(first)
                || first != last && (first + 1..=last).any(|page| sample.contains(page))
            {
                batch.addr.push(addr);
                batch.kind.push(records.kind[at]);
                batch.size.push(records.size[at]);
            }
        }
    }

    /// Forget the records of the current batch, but not their pages.
    fn forget_records(&mut self) {
        let mut previous = u64::MAX;
        for (&addr, &size) in self.batch.addr.iter().zip(&self.batch.size) {
            for page in addr >> self.shift..=last_byte(addr, size) >> self.shift {
                if page != previous && self.sample.contains(page) {
                    self.pages.insert(page);
                }
                previous = page;
            }
        }
        self.batch.clear();
    }

    /// Distinct pages of each group.
    pub fn pages_by_group(&self) -> Vec<u64> {
        let records = self.batch.addr.iter().zip(&self.batch.size);
        let pages = records
            .flat_map(|(&addr, &size)| addr >> self.shift..=last_byte(addr, size) >> self.shift);
        let pages = pages.filter(|&page| self.sample.contains(page));
        let mut pages: Vec<u64> = pages.chain(self.pages.iter().copied()).collect();
        pages.sort_unstable();
        pages.dedup();
        let groups = (0..GROUPS).map(|group| self.sample.group(group));
        groups
            .map(|group| pages.iter().filter(|&&page| group.contains(page)).count() as u64)
            .collect()
    }
}

/// Records of a batch, of the selected kinds.
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

/// The sampled records of a trace, and counts of the whole trace.
pub struct TraceSample {
    /// For each page size.
    pub by_size: Vec<SampledRecords>,
    /// Events, with lifetimes.
    pub events: Vec<RegionEvent>,
    /// All touched blocks.
    pub touched: BlockSet,
    /// TLB samples.
    pub clusters: Clusters,
    /// Records of the selected kinds.
    pub records: u64,
    /// References beyond one per record, for records that cross page borders, by log2 of the page
    /// size.
    pub crossings: [u64; 64],
    /// The 4 KiB pages that had a frame, and how many of them are file pages, where they are known:
    /// with lifetimes, in a captured sample, which has the first references to all pages.
    pub born: Option<(u64, u64)>,
}

/// A piece of a trace.
enum Piece<'a> {
    Event(RegionEvent),
    /// Records of a batch, and the number of records before them.
    Records(&'a Batch, Range<usize>, u64),
}

/// Read the pieces of a trace in order. `on_piece` gets the address spaces, and with lifetimes places
/// of records in them.
fn pieces(
    study: &Sampled<'_>,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
    on_piece: &mut (dyn FnMut(Piece<'_>, &mut ResidentSet) -> Result<()> + Send),
) -> Result<()> {
    let Sampled { reader, options, lives, .. } = *study;
    // Without pages, it tracks address spaces only.
    let mut set = ResidentSet::new(options.spaces(reader), options.files);
    let mut events = if lives { Events::new(reader)? } else { Events::none() };
    // Bursts are of one thread each.
    let threads = reader.info().source.sample.is_some() && reader.info().threads.len() > 1;
    let thread = threads || lives && set.spaces().several();
    let mut groups = reader.groups(Columns { thread, ..Columns::PAGING });
    let (mut batch, mut at) = (Batch::default(), 0);
    let mut group = groups.next()?;
    while let Some(mut current) = group {
        // Decompress the next row group while processing this one.
        let mut process = || -> Result<()> {
            while current.next_into(Batches::MAX, &mut batch)? {
                for next in events.among(batch.len()) {
                    match next {
                        Next::Event(event) => on_piece(Piece::Event(event), &mut set)?,
                        Next::Records(range) => {
                            if lives {
                                set.spaces().place_records(&mut batch, range.clone());
                            }
                            on_piece(Piece::Records(&batch, range.clone(), at), &mut set)?;
                            at += range.len() as u64;
                        }
                    }
                }
            }
            Ok(())
        };
        let (next, processed) = study.pool.install(|| rayon::join(|| groups.next(), &mut process));
        processed?;
        group = next?;
        on_progress(at)?;
    }
    Ok(())
}

impl TraceSample {
    /// Read the trace. Of a captured sample, no record is kept: [`Self::simulate`] reads it again.
    ///
    /// # Errors
    /// If the trace cannot be read or the sample needs too much memory; errors of `on_progress`.
    pub fn read(
        study: &Sampled<'_>,
        page_sizes: &[u64],
        rate: f64,
        on_progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Self> {
        let Sampled { reader, options, lives, .. } = *study;
        let (kinds, tlb, seed) = (options.kinds, options.tlb, options.sample_seed);
        let captured = reader.info().source.sample.as_ref();
        let references = reader.info().references_of(kinds);
        let schedule = match captured {
            Some(sample) => Schedule::of_bursts(sample, references, tlb),
            None => Schedule::new(reader.info().records, rate, tlb, seed),
        };
        let records_of = |page: &u64| SampledRecords::new(page.trailing_zeros(), rate, seed);
        let mut sample = Self {
            by_size: page_sizes.iter().map(records_of).collect(),
            events: Vec::new(),
            touched: BlockSet::new(page_sizes[0].trailing_zeros()),
            clusters: Clusters::new(schedule, kinds, tlb, page_sizes),
            records: 0,
            crossings: [0; 64],
            born: None,
        };
        let (mut records, mut recent) = (Records::default(), Recent::default());
        let mut born = (0, 0);
        pieces(study, on_progress, &mut |piece, set| {
            match piece {
                Piece::Event(event) => {
                    if set.event(&event) {
                        recent.clear();
                    }
                    if captured.is_none() {
                        sample.event(event);
                    }
                }
                Piece::Records(batch, range, at) => {
                    sample.clusters.records(batch, range.clone(), at);
                    records.fill(batch, range.clone(), kinds);
                    sample.records(&records);
                    if captured.is_none() {
                        return sample.check(rate, at, reader.info().records, options.max_memory);
                    }
                    sample.by_size.iter_mut().for_each(SampledRecords::forget_records);
                    if lives {
                        set.records(&mut recent, kinds, batch, range);
                        born = set.peak().pages();
                    }
                }
            }
            Ok(())
        })?;
        if captured.is_some() {
            // Of the references that were not recorded, those that cross a border are not known.
            (sample.records, sample.crossings) = (references, [0; 64]);
            sample.born = lives.then_some(born);
        }
        Ok(sample)
    }

    /// Simulate the sampled records of a page size, and the events between them.
    ///
    /// # Errors
    /// If a captured sample cannot be read again; errors of `on_progress`.
    pub fn simulate(
        &self,
        study: &Sampled<'_>,
        records: &SampledRecords,
        simulation: &mut Simulation<'_>,
        on_progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        if study.reader.info().source.sample.is_none() {
            let mut at = 0;
            for (event, &event_at) in self.events.iter().zip(&records.events_at) {
                simulation.records(&records.batch, at..event_at);
                simulation.event(event);
                at = event_at;
            }
            simulation.records(&records.batch, at..records.batch.len());
        } else {
            let SampledRecords { shift, sample, .. } = *records;
            let mut own = SampledRecords { sample, ..SampledRecords::new(shift, 0.0, 0) };
            let mut wanted = Records::default();
            pieces(study, on_progress, &mut |piece, set| {
                match piece {
                    Piece::Event(event) => {
                        set.event(&event);
                        simulation.event(&event);
                    }
                    Piece::Records(batch, range, _) => {
                        wanted.fill(batch, range, study.options.kinds);
                        own.add(&wanted);
                        simulation.records(&own.batch, 0..own.batch.len());
                        own.batch.clear();
                    }
                }
                Ok(())
            })?;
        }
        simulation.end();
        Ok(())
    }

    fn event(&mut self, event: RegionEvent) {
        for records in &mut self.by_size {
            records.events_at.push(records.batch.len());
        }
        self.events.push(event);
    }

    fn records(&mut self, records: &Records) {
        self.records += records.addr.len() as u64;
        let block = self.by_size[0].shift;
        for (&addr, &last) in records.addr.iter().zip(&records.last) {
            self.touched.touch(addr);
            if addr >> block != last >> block {
                for block in (addr >> block) + 1..=last >> block {
                    self.touched.touch(block << self.by_size[0].shift);
                }
                for shift in block..64 {
                    self.crossings[shift as usize] += (last >> shift) - (addr >> shift);
                }
            }
        }
        self.by_size.iter_mut().for_each(|sampled| sampled.add(records));
    }

    /// Refuse a sample that will not fit into half of `max_memory`, as soon as it exceeds that.
    fn check(&self, rate: f64, at: u64, records: u64, max_memory: u64) -> Result<()> {
        let bytes: u64 =
            self.by_size.iter().map(|records| records.batch.len() as u64 * RECORD_BYTES).sum();
        if bytes <= max_memory / 2 {
            return Ok(());
        }
        let estimate = bytes as f64 / at as f64 * records as f64;
        let what = format!("{rate} of this trace takes about {:.0} GiB", estimate / 2f64.powi(30));
        let fits = super::round_up(rate * max_memory as f64 / 2.0 / estimate * 0.9);
        Err(Error::input("--sample", what, format!("give {fits}, or raise --max-memory")))
    }
}
