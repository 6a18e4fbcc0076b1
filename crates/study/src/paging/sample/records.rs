//! Passes over a trace captured with `--sample`: one counts pages and simulates the TLB in bursts, one
//! simulates memories with the sampled pages.

use std::ops::Range;

use nearfar_trace::reader::Batches;
use nearfar_trace::sample::PAGE_SHIFT;
use nearfar_trace::{Batch, Columns, KindSet, RegionEvent, Result, last_byte};
use rayon::prelude::*;
use rustc_hash::FxHashSet;

use super::block_set::BlockSet;
use super::bursts::Bursts;
use super::{GROUPS, Sample, Sampled, Simulation};
use crate::lifetimes::{Events, Next, Recent, ResidentSet};

/// Minimum number of records that several threads simulate.
const MIN_PARALLEL: usize = 1 << 10;

fn pages_of(addr: u64, size: u16) -> impl Iterator<Item = u64> {
    addr >> PAGE_SHIFT..=last_byte(addr, size) >> PAGE_SHIFT
}

/// Counts of the sampled pages and of the whole trace.
pub struct TraceSample {
    /// The sampled pages that were touched.
    sampled: FxHashSet<u64>,
    /// All touched pages, as blocks of 4 KiB.
    pub touched: BlockSet,
    /// TLBs, simulated in *bursts*: stretches of the trace with every reference of one thread.
    pub bursts: Bursts,
    /// References of the selected kinds that the program made. One that crosses a page border counts
    /// once, because the number of crossings is unknown.
    pub references: u64,
    /// With lifetimes, the number of 4 KiB pages that had a frame, and of file pages among them; exact,
    /// because the first references to all pages are recorded.
    pub born: (u64, u64),
    /// With lifetimes, the peak number of 4 KiB pages that had a frame.
    pub peak_pages: u64,
}

enum Piece<'a> {
    Event(RegionEvent),
    /// Records of a batch, and the number of records before them.
    Records(&'a Batch, Range<usize>, u64),
}

/// Pass the pieces of a trace to `on_piece` in order, with a resident set, to which `on_piece` must apply
/// the events. With lifetimes, addresses of records are combined with the number of their address space.
fn pieces(
    study: &Sampled<'_>,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
    on_piece: &mut (dyn FnMut(Piece<'_>, &mut ResidentSet) + Send),
) -> Result<()> {
    let Sampled { reader, options, lives, .. } = *study;
    // Tracks address spaces; resident pages only if `on_piece` adds records.
    let mut set = ResidentSet::new(options.spaces(reader), options.files);
    let mut events = if lives { Events::new(reader)? } else { Events::none() };
    // The thread selects the records of a burst, and determines the address space of a record.
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
    /// Read the trace, and simulate the bursts at `page_sizes`.
    pub fn read(
        study: &Sampled<'_>,
        page_sizes: &[u64],
        on_progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Self> {
        let Sampled { reader, options, lives, .. } = *study;
        let (kinds, tlb, sample) = (options.kinds, options.tlb, Sample::new(study.sample));
        let references = reader.info().references_of(kinds);
        let mut counts = Self {
            sampled: FxHashSet::default(),
            touched: BlockSet::new(PAGE_SHIFT),
            bursts: Bursts::new(study.sample, references, kinds, tlb, page_sizes),
            references,
            born: (0, 0),
            peak_pages: 0,
        };
        // Pages to which further references change nothing in `set`.
        let mut recent = Recent::default();
        pieces(study, on_progress, &mut |piece, set| match piece {
            Piece::Event(event) => {
                if set.event(&event) {
                    recent.clear();
                }
            }
            Piece::Records(batch, range, at) => {
                counts.bursts.records(batch, range.clone(), at);
                counts.records(batch, range.clone(), kinds, sample);
                if lives {
                    set.records(&mut recent, kinds, batch, range);
                    counts.born = set.peak().pages();
                    counts.peak_pages = set.peak().bytes() >> PAGE_SHIFT;
                }
            }
        })?;
        Ok(counts)
    }

    fn records(&mut self, batch: &Batch, range: Range<usize>, kinds: KindSet, sample: Sample) {
        let mut previous = u64::MAX;
        for i in range.filter(|&i| kinds.has(batch.kind[i])) {
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

    pub fn pages_by_group(&self, sample: Sample) -> Vec<u64> {
        let mut pages = vec![0; GROUPS as usize];
        for group in self.sampled.iter().filter_map(|&page| sample.group_of(page)) {
            pages[group as usize] += 1;
        }
        pages
    }
}

/// Apply the records of sampled pages, and the events between them, to `simulations`: one for each group
/// of the sampled pages, and the last for the whole sample.
pub fn simulate(
    study: &Sampled<'_>,
    sample: Sample,
    mut simulations: Vec<Simulation<'_>>,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    let kinds = study.options.kinds;
    let mut batches = vec![Batch::default(); simulations.len()];
    let mut runs: Vec<_> = simulations.iter_mut().zip(&mut batches).collect();
    pieces(study, on_progress, &mut |piece, set| match piece {
        Piece::Event(event) => {
            set.event(&event);
            runs.iter_mut().for_each(|(simulation, _)| simulation.event(&event));
        }
        Piece::Records(batch, range, _) => {
            let min_per_thread = if range.len() < MIN_PARALLEL { runs.len() } else { 1 };
            for i in range.filter(|&i| kinds.has(batch.kind[i])) {
                let (addr, size) = (batch.addr[i], batch.size[i]);
                // A record that crosses a page border can belong to two groups.
                let mut groups = 0u32;
                for group in pages_of(addr, size).filter_map(|page| sample.group_of(page)) {
                    groups |= 1 << group | 1 << GROUPS;
                }
                while groups != 0 {
                    let selected = &mut runs[groups.trailing_zeros() as usize].1;
                    selected.addr.push(addr);
                    selected.kind.push(batch.kind[i]);
                    selected.size.push(size);
                    groups &= groups - 1;
                }
            }
            runs.par_iter_mut().with_min_len(min_per_thread).for_each(|(simulation, batch)| {
                simulation.records(batch);
                batch.clear();
            });
        }
    })?;
    study.pool.install(|| simulations.par_iter_mut().for_each(Simulation::end));
    Ok(())
}
