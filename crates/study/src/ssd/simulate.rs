//! Simulates every cell of an SSD study. A cell is a policy for embedded page faults (EPF) and a DRAM size.

use nearfar_hardware::Machine;
use nearfar_hardware::umd::Umd;
use nearfar_kernel::epf;
use nearfar_trace::{Columns, Error, Reader, Result};

use crate::jobs::{self, Advance};

use super::cell::{Cell, Detail};
use super::host::Run;
use super::options::{Options, Setting};

/// Simulate every cell of `options`. Returns the cells in the same order. Each reads the trace separately.
///
/// `on_progress` is called periodically with the references read so far in all cells; its error
/// ends the run.
///
/// # Errors
/// Input errors: an empty or damaged trace, one that does not fit the device, a size of DRAM that
/// the device cannot have.
pub fn simulate(
    reader: &Reader,
    machine: &Machine,
    options: &Options,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Vec<(Cell, Detail)>> {
    if reader.info().records == 0 {
        return Err(Error::input(
            reader.path().display().to_string(),
            "holds no records",
            "capture again",
        ));
    }
    jobs::run(&options.settings, options.threads, on_progress, |setting, advance| {
        cell(reader, machine, options, setting, advance)
    })
}

/// Simulate one cell on this thread, with a new, preconditioned device. `advance` is called with the
/// references read since its last call.
///
/// # Errors
/// As [`simulate`], and the error of `advance`.
pub fn cell(
    reader: &Reader,
    machine: &Machine,
    options: &Options,
    setting: &Setting,
    advance: &mut Advance<'_>,
) -> Result<(Cell, Detail)> {
    let mut umd = Umd::new(machine, setting.dram_bytes)?;
    let conditioned = umd.precondition(&options.precondition);
    let policy = epf::parse(&setting.epf).map_err(|what| Error::input("--epf", what, ""))?;
    let run = Run::new(&options.host, policy, options.replay, umd, conditioned);
    let mut batches = reader.batches(Columns::ALL);
    let (cell, detail) = run.run(&mut |batch| batches.next_into(batch), advance)?;
    Ok((Cell { epf: setting.epf.clone(), dram_bytes: setting.dram_bytes, ..cell }, detail))
}
