//! What one cell of the study found.

use nearfar_hardware::flash::Conditioned;
use serde::Serialize;

use super::histogram::Bin;
use super::timeline::Timeline;

/// Counts and times of one policy with one size of DRAM. Times of the CPU are sums over its cores.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Cell {
    /// The policy.
    pub epf: String,
    /// Bytes of DRAM in the device.
    pub dram_bytes: u64,
    /// From the first reference to the last, seconds.
    pub seconds: f64,
    /// References replayed.
    pub references: u64,
    /// Instructions executed.
    pub instructions: u64,
    /// Accesses to the device: lines that the CPU caches read from it or write to it.
    pub accesses: u64,
    /// Page-table walks.
    pub tlb_misses: u64,
    /// Page-table walks that found the page in need of a move, or on its way for another thread.
    pub embedded_faults: u64,
    /// Embedded faults an access.
    pub embedded_fault_rate: f64,
    /// Embedded faults on a page that was on its way for another thread.
    pub joined_faults: u64,
    /// Embedded faults that went to the kernel; those raised anew are in `overruns`.
    pub passed_to_kernel: u64,
    /// Their share of all embedded faults.
    pub passed_share: f64,
    /// How often a thread slept; not where it was in a section that may not.
    pub slept: u64,
    /// How often a thread woke before its page was there, and raised the fault anew.
    pub overruns: u64,
    /// Ordinary page faults: first touches.
    pub page_faults: u64,
    /// Reads of the disk.
    pub disk_reads: u64,
    /// Executing and waiting for DRAM, seconds.
    pub cpu_busy: f64,
    /// Waiting for the device's flash with the core held, seconds.
    pub cpu_stall: f64,
    /// Exceptions and context switches, seconds.
    pub cpu_switch: f64,
    /// Nothing to run, seconds.
    pub cpu_idle: f64,
    /// Services of the device: pages moved in or out, and waited for.
    pub services: u64,
    /// Mean of what the device predicted, microseconds.
    pub predicted_us_mean: f64,
    /// Mean of what it took, microseconds.
    pub actual_us_mean: f64,
    /// Mean of actual less predicted, microseconds: the bias. It is also the mean error, as a
    /// service never takes less than predicted.
    pub prediction_error_us_mean: f64,
    /// Largest of actual less predicted, microseconds.
    pub prediction_error_us_max: f64,
    /// Pages read from flash, for the host and by collection.
    pub flash_reads: u64,
    /// Pages programmed, for the host and by collection.
    pub flash_programs: u64,
    /// Blocks collected.
    pub gc_collections: u64,
    /// Pages that collection moved.
    pub gc_moved: u64,
    /// Programs for each page that left the device's DRAM written to.
    pub write_amplification: f64,
    /// Pages that left the device's DRAM.
    pub evictions: u64,
    /// Those that had been written to.
    pub dirty_evictions: u64,
    /// Erases of the block erased least, preconditioning included.
    pub erases_least: u32,
    /// Erases of the block erased most.
    pub erases_most: u32,
    /// Working time of the dies, all together, seconds.
    pub die_busy: f64,
}

/// What is too long for a row.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Detail {
    /// State the flash was in at the start.
    pub conditioned: Option<Conditioned>,
    /// Predicted and actual times of services.
    pub service: Vec<Bin>,
    /// How far actual times lay above predicted ones (in the field `actual`).
    pub error: Vec<Bin>,
    /// What the threads did when.
    pub timeline: Timeline,
}
