//! Passes over the trace of a sample: counts of the whole, and the records of sampled pages.

use std::ops::Range;

use nearfar_trace::reader::Batches;
use nearfar_trace::sample::PAGE_SHIFT;
use nearfar_trace::{Batch, Columns, KindSet, RegionEvent, Result, last_byte};

use rustc_hash::FxHashSet;

use super::block_set::BlockSet;
use super::clusters::{Clusters, Schedule};
use super::{GROUPS, Sample, Sampled, Simulation};
use crate::lifetimes::{Events, Next, Recent, ResidentSet};

/// The numbers of the pages that a record touches.
fn pages_of(addr: u64, size: u16) -> impl Iterator<Item = u64> {
    addr >> PAGE_SHIFT..=last_byte(addr, size) >> PAGE_SHIFT
}

/// What the sampled pages, and the whole trace, have.
pub struct TraceSample {
    /// The sampled pages that were touched.
    sampled: FxHashSet<u64>,
    /// All touched blocks.
    pub touched: BlockSet,
    /// Samples for the TLB.
    pub clusters: Clusters,
    /// References that the program made, of the selected kinds. How many of them cross a page is
    /// not known.
    pub references: u64,
    /// With lifetimes, the 4 KiB pages that had a frame, and how many of them are file pages: the
    /// first references to all pages are recorded.
    pub born: (u64, u64),
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
    on_piece: &mut (dyn FnMut(Piece<'_>, &mut ResidentSet) + Send),
) -> Result<()> {
    let Sampled { reader, options, lives, .. } = *study;
    // Without pages, it tracks address spaces only.
    let mut set = ResidentSet::new(options.spaces(reader), options.files);
    let mut events = if lives { Events::new(reader)? } else { Events::none() };
    // Bursts are of one thread each.
    let thread = reader.info().threads.len() > 1 || lives && set.spaces().several();
    let mut groups = reader.groups(Columns { thread, ..Columns::PAGING });
    let (mut batch, mut at) = (Batch::default(), 0);
    let mut group = groups.next()?;
    while let Some(mut current) = group {
        // Decompress the next row group while processing this one.
        let mut process = || -> Result<()> {
            while current.next_into(Batches::MAX, &mut batch)? {
                for next in events.among(batch.len()) {
                    match next {
                        Next::Event(event) => on_piece(Piece::Event(event), &mut set),
                        Next::Records(range) => {
                            if lives {
                                set.spaces().place_records(&mut batch, range.clone());
                            }
                            on_piece(Piece::Records(&batch, range.clone(), at), &mut set);
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
    /// Read the trace; the TLB has pages of `page_sizes`.
    ///
    /// # Errors
    /// If the trace cannot be read; errors of `on_progress`.
    pub fn read(
        study: &Sampled<'_>,
        page_sizes: &[u64],
        on_progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Self> {
        let Sampled { reader, options, lives, .. } = *study;
        let (kinds, tlb, sample) = (options.kinds, options.tlb, Sample::new(study.sample));
        let references = reader.info().references_of(kinds);
        let schedule = Schedule::new(study.sample, references, tlb);
        let mut found = Self {
            sampled: FxHashSet::default(),
            touched: BlockSet::new(PAGE_SHIFT),
            clusters: Clusters::new(schedule, kinds, tlb, page_sizes),
            references,
            born: (0, 0),
        };
        let mut recent = Recent::default();
        pieces(study, on_progress, &mut |piece, set| match piece {
            Piece::Event(event) => {
                if set.event(&event) {
                    recent.clear();
                }
            }
            Piece::Records(batch, range, at) => {
                found.clusters.records(batch, range.clone(), at);
                found.records(batch, range.clone(), kinds, sample);
                if lives {
                    set.records(&mut recent, kinds, batch, range);
                    found.born = set.peak().pages();
                }
            }
        })?;
        Ok(found)
    }

    fn records(&mut self, batch: &Batch, range: Range<usize>, kinds: KindSet, sample: Sample) {
        let mut previous = u64::MAX;
        for i in range.filter(|&i| kinds.0 >> batch.kind[i] & 1 == 1) {
            for page in pages_of(batch.addr[i], batch.size[i]) {
                if page != previous {
                    self.touched.touch(page << PAGE_SHIFT);
                    if sample.contains(page) {
                        self.sampled.insert(page);
                    }
                }
                previous = page;
            }
        }
    }

    /// Distinct pages of each group of `sample`.
    pub fn pages_by_group(&self, sample: Sample) -> Vec<u64> {
        let pages = |group| {
            let group = sample.group(group);
            self.sampled.iter().filter(|&&page| group.contains(page)).count() as u64
        };
        (0..GROUPS).map(pages).collect()
    }
}

/// Simulate the records of sampled pages, and the events between them.
///
/// # Errors
/// If the trace cannot be read again; errors of `on_progress`.
pub fn simulate(
    study: &Sampled<'_>,
    sample: Sample,
    simulation: &mut Simulation<'_>,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    let (kinds, mut own) = (study.options.kinds, Batch::default());
    pieces(study, on_progress, &mut |piece, set| match piece {
        Piece::Event(event) => {
            set.event(&event);
            simulation.event(&event);
        }
        Piece::Records(batch, range, _) => {
            for i in range.filter(|&i| kinds.0 >> batch.kind[i] & 1 == 1) {
                let (addr, size) = (batch.addr[i], batch.size[i]);
                if pages_of(addr, size).any(|page| sample.contains(page)) {
                    own.addr.push(addr);
                    own.kind.push(batch.kind[i]);
                    own.size.push(size);
                }
            }
            simulation.records(&own, 0..own.len());
            own.clear();
        }
    })?;
    simulation.end();
    Ok(())
}
