//! The result of one cell of the `ssd` study: one policy with one size of DRAM.

use nearfar_hardware::flash::Conditioned;
use serde::Serialize;

use super::histogram::Bin;
use super::timeline::Timeline;

nearfar_schema::columns! {
    /// Counts and times of one policy with one size of DRAM. Times of the CPU are sums over its
    /// cores.
    #[derive(Default)]
    pub struct Cell {
        /// Policy for embedded page faults.
        epf: String as "EPF",
        /// DRAM in the device.
        dram_bytes: u64 ["bytes"] as "DRAM",
        /// Time from the first reference to the last.
        seconds: f64 ["s"] as "time",
        /// References replayed.
        references: u64,
        /// Instructions executed.
        instructions: u64,
        /// Accesses to the device: lines that the CPU caches read from it or write to it.
        accesses: u64 ["lines"],
        /// Page-table walks, one per TLB miss.
        tlb_misses: u64 as "TLB misses",
        /// Page-table walks that found the page outside the device's DRAM, or arriving for another thread.
        embedded_faults: u64 as "embedded faults",
        /// Embedded page faults per access to the device.
        embedded_fault_rate: f64 ["per access"] as "faults",
        /// Embedded page faults on a page that was arriving for another thread.
        joined_faults: u64,
        /// Embedded page faults passed to the kernel, without those that `overruns` counts.
        passed_to_kernel: u64,
        /// Share of embedded page faults passed to the kernel.
        passed_share: f64 as "passed on",
        /// Times that a thread slept for an embedded page fault; atomic sections never sleep.
        slept: u64,
        /// How often a thread woke before its page was there, and raised the fault again.
        overruns: u64,
        /// Ordinary page faults: first touches.
        page_faults: u64,
        /// Reads of files from the disk.
        disk_reads: u64,
        /// Time of executing and waiting for DRAM, summed over the cores.
        cpu_busy: f64 ["s"] as "busy",
        /// Time that cores wait for the device's flash, or for the bus (`--bus held`), and run no thread.
        cpu_stall: f64 ["s"] as "stall",
        /// Time of exceptions and context switches, summed over the cores.
        cpu_switch: f64 ["s"] as "switch",
        /// Time of cores without a thread to run.
        cpu_idle: f64 ["s"] as "idle",
        /// Services of the device: loads of a page that take time, for an eviction, a flash read or both.
        services: u64,
        /// Mean of the predicted service times.
        predicted_us_mean: f64 ["us"] as "predicted",
        /// Mean of the actual service times.
        actual_us_mean: f64 ["us"] as "actual",
        /// Mean of the actual minus the predicted service time; the difference is never negative.
        prediction_error_us_mean: f64 ["us"] as "mean error",
        /// Largest actual minus predicted service time.
        prediction_error_us_max: f64 ["us"] as "largest error",
        /// Pages read from flash, for the host and by garbage collection.
        flash_reads: u64 ["pages"] as "reads",
        /// Pages programmed into flash, for the host and by garbage collection.
        flash_programs: u64 ["pages"] as "programs",
        /// Flash blocks that garbage collection freed.
        gc_collections: u64 ["blocks"] as "GC",
        /// Pages that garbage collection moved, each a read and a program of flash.
        gc_moved: u64 ["pages"] as "moved",
        /// Write amplification: pages programmed per dirty page evicted from the device's DRAM.
        write_amplification: f64 as "WA",
        /// Pages that left the device's DRAM.
        evictions: u64 ["pages"],
        /// Evicted pages that were dirty.
        dirty_evictions: u64 ["pages"],
        /// Erases of the block erased least, preconditioning included.
        erases_least: u32,
        /// Erases of the block erased most, preconditioning included.
        erases_most: u32,
        /// Busy time of the flash dies, summed over the dies.
        die_busy: f64 ["s"],
        /// Walks of the page table and the device's mapping table; part of `cpu_busy`.
        cpu_walk: f64 ["s"] as "walks",
        /// Services that read the page from flash; other services only make room for a new page.
        from_flash: u64 as "from flash",
        /// Embedded page faults while the device's DRAM had free frames.
        faults_while_filling: u64,
        /// Services that took longer than predicted.
        late_services: u64 as "late",
        /// Total delay of services while dies worked for other services.
        late_die: f64 ["s"] as "die",
        /// Total delay of services while channels carried other pages.
        late_channel: f64 ["s"] as "channel",
        /// Total delay of services by erases, which predictions omit.
        late_erase: f64 ["s"] as "erasing",
    }
    keys [dram_bytes, epf]
    metrics [
        seconds less,
        embedded_faults less,
        embedded_fault_rate less,
        passed_share less,
        cpu_idle less,
        cpu_stall less,
        cpu_switch less,
        actual_us_mean less,
        prediction_error_us_mean less,
        flash_reads less,
        flash_programs less,
        gc_collections less,
        write_amplification less,
    ]
    seed [seed]
}

/// Results that do not fit in a row.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Detail {
    /// State of the flash at the start.
    pub conditioned: Option<Conditioned>,
    /// Predicted and actual times of services.
    pub service: Vec<Bin>,
    /// Actual less predicted times, in the field `actual` of the bins.
    pub error: Vec<Bin>,
    /// States of the threads over time.
    pub timeline: Timeline,
}
