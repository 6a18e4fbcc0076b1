//! `nearfar_study::ssd` as one function: options in, JSON out.

use std::path::PathBuf;

use nearfar_hardware::flash::{Overwrite, Precondition};
use nearfar_kernel::epf::POLICIES;
use nearfar_study::ssd::options::{Host, parse_atomic};
use nearfar_study::ssd::{Background, FirstTouch, Options, Replay, simulate};
use nearfar_trace::Reader;
use pyo3::prelude::*;

use crate::machine::Machine;
use crate::raise;

/// Policies for embedded page faults: name, how it is written, a line on each.
#[pyfunction]
fn ssd_policies() -> Vec<(&'static str, &'static str, &'static str)> {
    POLICIES.iter().map(|policy| (policy.name, policy.usage, policy.what)).collect()
}

/// Run the study; answers `{"rows": [...], "details": [...]}` as JSON text, in the same order.
#[pyfunction]
#[pyo3(signature = (
    trace, machine, *, epf, dram_bytes, disk, sequential, random, overwrite,
    seed, sleep_granularity_ns, atomic, first_touch, background_bytes, background_written, window,
    threads, progress
))]
#[allow(clippy::too_many_arguments)]
fn ssd(
    py: Python<'_>,
    trace: PathBuf,
    machine: &Machine,
    epf: Vec<String>,
    dram_bytes: Vec<u64>,
    disk: Option<String>,
    sequential: f64,
    random: f64,
    overwrite: &str,
    seed: u64,
    sleep_granularity_ns: Option<u64>,
    atomic: &str,
    first_touch: &str,
    background_bytes: u64,
    background_written: f64,
    window: u64,
    threads: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let machine = machine.hardware();
    let mut host = Host::new(machine, disk.as_deref()).map_err(raise)?;
    host.sleep_granularity_ns = sleep_granularity_ns.unwrap_or(host.sleep_granularity_ns);
    let overwrite = Overwrite::parse(overwrite).map_err(raise)?;
    let precondition = Precondition { sequential, random, overwrite, seed };
    let replay = Replay {
        atomic: parse_atomic(atomic).map_err(raise)?,
        first_touch: FirstTouch::parse(first_touch).map_err(raise)?,
        background: Background { bytes: background_bytes, written: background_written },
        window,
    };
    let mut options = Options::new(&epf, &dram_bytes, host, precondition, replay).map_err(raise)?;
    options.threads = threads;
    crate::progress::run(py, progress, move |pulse| {
        let reader = Reader::open(&trace)?;
        let (rows, details): (Vec<_>, Vec<_>) =
            simulate(&reader, machine, &options, pulse)?.into_iter().unzip();
        Ok(serde_json::json!({ "rows": rows, "details": details }).to_string())
    })
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(ssd_policies, module)?)?;
    module.add_function(wrap_pyfunction!(ssd, module)?)
}
