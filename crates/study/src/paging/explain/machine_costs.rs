//! Costs on a machine, reference by reference, and the private memory of each region.

use nearfar_trace::{Batch, Reader, Result};

use super::tally::Tally;
use super::{Counts, OnMachine};
use crate::lifetimes::Change;
use crate::paging::machine::Costs;
use crate::paging::machine::reference::{OneByOne, Watch};
use crate::paging::options::Options;

/// TLBs, caches and pages of a processor, at one page size.
pub struct MachineCosts<'a> {
    machine: OneByOne<'a>,
    memory: RegionMemory,
}

/// Private memory by region.
#[derive(Default)]
struct RegionMemory {
    /// Region of the first reference to each block.
    region_of: Vec<u32>,
    /// Current and peak bytes by region.
    bytes: Vec<(i64, i64)>,
}

impl<'a> MachineCosts<'a> {
    /// Before the first reference.
    ///
    /// # Errors
    /// If the events cannot be read.
    pub fn new(
        reader: &Reader,
        options: &Options,
        machine: OnMachine<'a>,
        lives: bool,
    ) -> Result<Self> {
        let OnMachine { processor, page_bytes } = machine;
        let machine = OneByOne::new(reader, options, (processor, &[]), lives, page_bytes)?;
        Ok(Self { machine, memory: RegionMemory::default() })
    }

    /// Apply the events before record number `at`.
    pub fn events(&mut self, at: u64) {
        self.machine.events(at, &mut self.memory);
    }

    /// Apply the record at index `at` of a batch.
    pub fn record(&mut self, batch: &Batch, at: usize, tally: &mut Tally) {
        let (thread, memory) = (batch.thread[at], &mut self.memory);
        let mut current = CurrentReference { thread, addr: 0, region: 0, tally, memory };
        self.machine.record(batch, at, &mut current);
    }

    /// Peak bytes of private memory by region.
    pub fn into_resident(self) -> Vec<u64> {
        self.memory.bytes.into_iter().map(|(_, peak)| peak as u64).collect()
    }
}

impl RegionMemory {
    fn add(&mut self, region: u32, bytes: i64) {
        let index = region as usize;
        if self.bytes.len() <= index {
            self.bytes.resize(index + 1, (0, 0));
        }
        let (now, peak) = &mut self.bytes[index];
        *now += bytes;
        *peak = (*now).max(*peak);
    }

    fn region(&mut self, block: u32) -> &mut u32 {
        let index = block as usize;
        if self.region_of.len() <= index {
            self.region_of.resize(index + 1, 0);
        }
        &mut self.region_of[index]
    }
}

impl Watch for RegionMemory {
    /// Assumes that blocks which end or move together are of one region (not exact when a process
    /// ends).
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

/// The current reference.
struct CurrentReference<'a> {
    thread: u32,
    addr: u64,
    region: u32,
    tally: &'a mut Tally,
    memory: &'a mut RegionMemory,
}

impl Watch for CurrentReference<'_> {
    fn begins(&mut self, addr: u64) {
        (self.addr, self.region) = (addr, self.tally.enter(addr));
    }

    fn changed(&mut self, change: &Change, bytes: i64) {
        if let Change::Born { block, .. } = change {
            *self.memory.region(*block) = self.region;
        }
        self.memory.changed(change, bytes);
    }

    fn ends(&mut self, costs: Costs) {
        let counts = Counts {
            tlb_misses: costs.walks,
            tlb_second_hits: costs.second_hits,
            given: costs.given,
            given_ps: costs.given_ps,
            walk_ps: costs.walk_ps,
            tlb_ps: costs.tlb_ps,
            ..Counts::default()
        };
        self.tally.reference(self.thread, self.addr, counts, 0);
    }
}
