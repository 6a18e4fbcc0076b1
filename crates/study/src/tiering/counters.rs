//! Parameters and counters of the simulated machine.

use nearfar_hardware::node::{KernelCosts, NodeModel};

/// Maximum number of nodes: two bits of a page-table byte.
pub const MAX_NODES: usize = 4;

/// What a machine is made of, in the units of the simulation.
#[derive(Clone, Debug)]
pub struct Hardware {
    /// Nodes, fastest first.
    pub nodes: Vec<NodeModel>,
    /// What the kernel's primitives cost.
    pub costs: KernelCosts,
    /// What a first touch costs, picoseconds.
    pub first_touch: f64,
    /// Entries of the TLB; 0 = no TLB.
    pub tlb_entries: u64,
    /// Threads of the program: with one, its own page-table changes interrupt nobody.
    pub program_threads: u32,
    /// Bytes of an access.
    pub access_bytes: u64,
    /// Threads of the program that run at the same time, each with a clock and a TLB. With one,
    /// accesses take the idle latency; with more, latency follows the load.
    pub parallel: u32,
    /// What the latency of an access is divided by: the lines that a thread has under way at once,
    /// or the pages that it streams.
    pub overlap: f64,
    /// Processor time of an access, picoseconds.
    pub work: f64,
}

/// How often things happened. Pages are counted in frames of 4 KiB, so a huge page counts 512.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames of the fastest node that new pages got.
    pub fast_allocated: u64,
    /// Frames of the fastest node that pages had when the program released them.
    pub fast_freed: u64,
    /// Frames moved to a faster node.
    pub promotions: u64,
    /// Frames moved to a slower node.
    pub demotions: u64,
    /// Of these, by mapping the shadow again.
    pub demotions_remapped: u64,
    /// Of these, by copying.
    pub demotions_copied: u64,
    /// Promotions that kept a shadow.
    pub shadow_copies: u64,
    /// Shadows freed because their master was written.
    pub shadow_faults: u64,
    /// Shadows freed for their frames.
    pub shadow_reclaims: u64,
    /// Copies given up because the page was written meanwhile.
    pub aborts: u64,
    /// Hint faults.
    pub hint_faults: u64,
    /// Write-protect faults, on shadowed pages and others.
    pub write_faults: u64,
    /// Frames copied between nodes, including failed migrations.
    pub frames_copied: u64,
    /// Huge pages split.
    pub splits: u64,
    /// Program accesses by node and load or store.
    pub accesses: [[u64; 2]; MAX_NODES],
    /// TLB misses.
    pub tlb_misses: u64,
}
