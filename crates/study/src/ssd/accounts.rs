//! Completes the row of a finished run.

use nearfar_hardware::flash::Conditioned;

use super::cell::{Cell, Detail};
use super::core::Core;
use super::faults::Faults;
use super::histogram::Histogram;
use super::scheduler::Scheduler;

/// Complete the row of a run from `counts`, its events. `read`: references read from the trace.
///
/// # Panics
/// If the counts are inconsistent.
pub fn finish(
    counts: Cell,
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
        seconds: end as f64 / 1e9,
        embedded_fault_rate: share(counts.embedded_faults, counts.accesses),
        passed_share: share(counts.passed_to_kernel, counts.embedded_faults),
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
        cpu_walk: seconds(|core| core.walking),
        from_flash: device.from_flash,
        late_services: device.late_services,
        late_die: device.late.die as f64 / 1e9,
        late_channel: device.late.channel as f64 / 1e9,
        late_erase: device.late.erase as f64 / 1e9,
        ..counts
    };
    let detail = Detail {
        conditioned: Some(conditioned),
        service: Histogram::bins(&device.predicted, &device.actual),
        // The bins' field `predicted` stays 0.
        error: Histogram::bins(&Histogram::default(), &device.error),
        timeline,
    };
    (cell, detail)
}
