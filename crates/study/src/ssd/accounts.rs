//! Counters of a run, and its row.

use nearfar_hardware::flash::Conditioned;

use super::cell::{Cell, Detail};
use super::core::Core;
use super::faults::Faults;
use super::histogram::Histogram;
use super::scheduler::Scheduler;

/// Event counts; see the fields of [`Cell`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// See [`Cell::references`].
    pub references: u64,
    /// See [`Cell::instructions`].
    pub instructions: u64,
    /// See [`Cell::accesses`].
    pub accesses: u64,
    /// See [`Cell::tlb_misses`].
    pub tlb_misses: u64,
    /// See [`Cell::embedded_faults`].
    pub embedded_faults: u64,
    /// See [`Cell::joined_faults`].
    pub joined_faults: u64,
    /// See [`Cell::passed_to_kernel`].
    pub passed_to_kernel: u64,
    /// See [`Cell::slept`].
    pub slept: u64,
    /// See [`Cell::overruns`].
    pub overruns: u64,
    /// See [`Cell::page_faults`].
    pub page_faults: u64,
    /// See [`Cell::cpu_walk`], nanoseconds.
    pub walk_ns: u64,
    /// See [`Cell::faults_while_filling`].
    pub faults_while_filling: u64,
}

/// The row of a run that is over. `read` is how many references its trace had.
///
/// # Panics
/// Where something does not add up.
pub fn finish(
    counts: &Counts,
    read: u64,
    scheduler: Scheduler<'_>,
    mut faults: Faults<'_>,
    conditioned: Conditioned,
) -> (Cell, Detail) {
    let die_ns: u64 = faults.device.umd.array().die_ns().sum();
    let (device, umd) = (&faults.device, &faults.device.umd);
    assert_eq!(counts.references, read, "references replayed and read");
    assert_eq!(device.predicted.count(), device.actual.count(), "services begun and finished");
    umd.ftl().verify();
    let (dirty, clean) = umd.evictions();
    let tally = umd.ftl().tally();
    assert_eq!(tally.host_programs, dirty, "programs for the host are dirty evictions");
    let (end, cores, timeline) = scheduler.finish();
    let seconds =
        |of: fn(&Core) -> u64| cores.iter().map(|core| of(core) as f64).sum::<f64>() / 1e9;
    let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
    let wear = umd.ftl().wear();
    let cell = Cell {
        // The caller knows the setting.
        epf: String::new(),
        dram_bytes: 0,
        seconds: end as f64 / 1e9,
        references: counts.references,
        instructions: counts.instructions,
        accesses: counts.accesses,
        tlb_misses: counts.tlb_misses,
        embedded_faults: counts.embedded_faults,
        embedded_fault_rate: share(counts.embedded_faults, counts.accesses),
        joined_faults: counts.joined_faults,
        passed_to_kernel: counts.passed_to_kernel,
        passed_share: share(counts.passed_to_kernel, counts.embedded_faults),
        slept: counts.slept,
        overruns: counts.overruns,
        page_faults: counts.page_faults,
        disk_reads: faults.disk.reads(),
        cpu_busy: seconds(|core| core.busy),
        cpu_stall: seconds(|core| core.stall),
        cpu_switch: seconds(|core| core.switch),
        cpu_idle: seconds(|core| core.idle),
        services: device.actual.count(),
        predicted_us_mean: device.predicted.mean() / 1e3,
        actual_us_mean: device.actual.mean() / 1e3,
        prediction_error_us_mean: device.error.mean() / 1e3,
        prediction_error_us_max: device.error_max as f64 / 1e3,
        flash_reads: tally.reads(),
        flash_programs: tally.programs(),
        gc_collections: tally.collections,
        gc_moved: tally.moved,
        write_amplification: tally.write_amplification(),
        evictions: dirty + clean,
        dirty_evictions: dirty,
        erases_least: wear.least,
        erases_most: wear.most,
        die_busy: die_ns as f64 / 1e9,
        cpu_walk: counts.walk_ns as f64 / 1e9,
        from_flash: device.from_flash,
        faults_while_filling: counts.faults_while_filling,
        late_services: device.late_services,
        late_die: device.late.die as f64 / 1e9,
        late_channel: device.late.channel as f64 / 1e9,
        late_erase: device.late.erase as f64 / 1e9,
    };
    let detail = Detail {
        conditioned: Some(conditioned),
        service: Histogram::bins(&device.predicted, &device.actual),
        error: Histogram::bins(&Histogram::default(), &device.error),
        timeline,
    };
    (cell, detail)
}
