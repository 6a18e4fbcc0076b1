//! Parameters and counters of the simulated machine.

use nearfar_hardware::node::{KernelCosts, NodeModel};

/// Maximum number of nodes: a page-table entry has two bits for its node.
pub const MAX_NODES: usize = 4;

/// The parameters of a machine, in the units of the simulation.
#[derive(Clone, Debug)]
pub struct Hardware {
    /// Nodes, fastest first.
    pub nodes: Vec<NodeModel>,
    pub costs: KernelCosts,
    /// Cost of a first touch, picoseconds.
    pub first_touch: f64,
    /// Entries of the TLB; 0 = no TLB.
    pub tlb_entries: u64,
    /// One program, or several tenants in the order of their page numbers.
    pub programs: Vec<Program>,
}

/// A program on the machine.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its first page number.
    pub first: u32,
    /// Share of the fastest node up to which the program's pages are not demoted for others; 0: none.
    pub share: f64,
    /// Threads of the program. With several, removing translations costs a TLB shootdown.
    pub threads: u32,
    pub access_bytes: u64,
    /// Threads to simulate, each with a clock and a TLB. With one thread on the machine, accesses take
    /// the idle latency; with more, latency follows the load.
    pub parallel: u32,
    /// Divisor of the access latency: the lines that a thread has in flight, or the pages that it streams.
    pub overlap: f64,
    /// Processor time of an access besides its latency, picoseconds.
    pub work: f64,
}

impl Program {
    /// Picoseconds of an access to `node` while the share `busy` of its bandwidth is in use.
    pub fn access_ps(&self, node: &NodeModel, write: bool, busy: f64) -> f64 {
        node.access_ps(self.access_bytes, write, busy, self.overlap)
    }
}

/// Counts of events. Pages are counted in frames of 4 KiB, so a huge page counts 512.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames allocated on the fastest node.
    pub fast_allocated: u64,
    /// Frames on the fastest node that the program freed.
    pub fast_freed: u64,
    /// Frames moved to a faster node.
    pub promotions: u64,
    /// Frames moved to a slower node.
    pub demotions: u64,
    /// Demotions onto the page's shadow, without a copy.
    pub demotions_remapped: u64,
    /// Demotions by copying.
    pub demotions_copied: u64,
    /// Promotions that kept the old frame as a shadow.
    pub shadow_copies: u64,
    /// Shadows freed because their page was written.
    pub shadow_faults: u64,
    /// Shadows freed to reclaim their frames.
    pub shadow_reclaims: u64,
    /// Copies aborted because the page was written during the copy.
    pub aborts: u64,
    pub hint_faults: u64,
    /// Write-protect faults, on shadowed pages and others.
    pub write_faults: u64,
    /// Frames copied between nodes, including failed migrations.
    pub frames_copied: u64,
    /// Huge pages split.
    pub splits: u64,
    /// Program accesses by node and load or store.
    pub accesses: [[u64; 2]; MAX_NODES],
    pub tlb_misses: u64,
}
