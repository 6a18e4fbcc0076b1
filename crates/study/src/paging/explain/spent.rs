//! What a machine spends, reference by reference, and the private memory of each region.

use nearfar_trace::{Batch, Reader, Result};

use super::tally::Tally;
use super::{Counts, OnMachine};
use crate::lifetimes::Change;
use crate::paging::machine::SoFar;
use crate::paging::machine::reference::{OneByOne, Watch};
use crate::paging::options::Options;

/// TLBs, caches and pages of a processor, at one page size.
pub struct Spent<'a> {
    machine: OneByOne<'a>,
    held: Held,
}

/// Whose private memory is there.
#[derive(Default)]
struct Held {
    /// Region that each block was born in.
    region_of: Vec<u32>,
    /// Bytes now and the most at once, by region.
    bytes: Vec<(i64, i64)>,
}

impl<'a> Spent<'a> {
    /// Nothing was referenced yet.
    ///
    /// # Errors
    /// The events cannot be read.
    pub fn new(
        reader: &Reader,
        options: &Options,
        machine: OnMachine<'a>,
        lives: bool,
    ) -> Result<Self> {
        let OnMachine { processor, page_bytes } = machine;
        let machine = OneByOne::new(reader, options, processor, lives, page_bytes)?;
        Ok(Self { machine, held: Held::default() })
    }

    /// Apply the events that come before record number `at`.
    pub fn events(&mut self, at: u64) {
        self.machine.events(at, &mut self.held);
    }

    /// The record at this place of a batch.
    pub fn record(&mut self, batch: &Batch, at: usize, tally: &mut Tally) {
        let (thread, held) = (batch.thread[at], &mut self.held);
        self.machine.record(batch, at, &mut Here { thread, addr: 0, region: 0, tally, held });
    }

    /// The most bytes of private memory of each region.
    pub fn into_resident(self) -> Vec<u64> {
        self.held.bytes.into_iter().map(|(_, most)| most as u64).collect()
    }
}

impl Held {
    fn add(&mut self, region: u32, bytes: i64) {
        let index = region as usize;
        if self.bytes.len() <= index {
            self.bytes.resize(index + 1, (0, 0));
        }
        let (now, most) = &mut self.bytes[index];
        *now += bytes;
        *most = (*now).max(*most);
    }

    fn region(&mut self, block: u32) -> &mut u32 {
        let index = block as usize;
        if self.region_of.len() <= index {
            self.region_of.resize(index + 1, 0);
        }
        &mut self.region_of[index]
    }
}

impl Watch for Held {
    /// Blocks that end or move together are of one region, but where a process ends.
    fn changed(&mut self, change: &Change, bytes: i64) {
        let first = match change {
            Change::Ended { blocks, .. } | Change::Freed(blocks) => blocks.first().copied(),
            Change::Moved { blocks, .. } => blocks.first().map(|(block, _)| *block),
            Change::Forked(blocks) => {
                for &(block, copy, _) in blocks {
                    *self.region(copy) = *self.region(block);
                }
                None
            }
            Change::Born { block, .. } | Change::Written(block) => Some(*block),
        };
        if let Some(first) = first
            && bytes != 0
        {
            let region = *self.region(first);
            self.add(region, bytes);
        }
    }
}

/// Where a reference is made.
struct Here<'a> {
    thread: u32,
    addr: u64,
    region: u32,
    tally: &'a mut Tally,
    held: &'a mut Held,
}

impl Watch for Here<'_> {
    fn begins(&mut self, addr: u64) {
        (self.addr, self.region) = (addr, self.tally.at(addr));
    }

    fn changed(&mut self, change: &Change, bytes: i64) {
        if let Change::Born { block, .. } = change {
            *self.held.region(*block) = self.region;
        }
        self.held.changed(change, bytes);
    }

    fn met(&mut self, met: SoFar) {
        let counts = Counts {
            tlb_misses: met.walks,
            tlb_second_hits: met.second_hits,
            given: met.given,
            given_ps: met.given_ps,
            walk_ps: met.walk_ps,
            tlb_ps: met.tlb_ps,
            ..Counts::default()
        };
        self.tally.reference(self.thread, self.addr, counts, 0);
    }
}
