//! Python functions for `nearfar_live`, which `nearfar/live` calls.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use nearfar_live::Counters;
use nearfar_live::options::RunOptions;
use nearfar_live::program;
use nearfar_live::remote::Provider;
use nearfar_live::setup::Setup;
use nearfar_live::supervise::{Summary, run};
use nearfar_live::watch::Watched;
use nearfar_schema::Options as _;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::policy::live::Objects;
use crate::policy::{Raised, declared};
use crate::raise;

/// A policy that is not built in: its name, and a callable that returns a policy object.
type CustomPolicy = (String, Py<PyAny>);

/// Read the options. `private`, the largest process's peak private memory in bytes, resolves a
/// percentage as `fast`.
fn read(options: &Bound<'_, PyDict>, private: Option<u64>) -> PyResult<RunOptions> {
    let request: RunOptions = crate::given::read(options)?;
    private.map_or(Ok(request.clone()), |private| request.resolved(private)).map_err(raise)
}

/// The setup, and the first object of a custom policy.
fn set_up(
    py: Python<'_>,
    request: &RunOptions,
    policy: Option<&CustomPolicy>,
    knobs: BTreeMap<String, String>,
) -> PyResult<(Setup, Option<Py<PyAny>>)> {
    let Some((name, make)) = policy else {
        return request.setup(knobs).map(|setup| (setup, None)).map_err(raise);
    };
    let first = make.call0(py)?;
    let declared = declared(first.bind(py))?;
    let setup = request.setup_with(name, &declared, knobs).map_err(raise)?;
    Ok((setup, Some(first)))
}

fn to_json(summary: &Summary) -> String {
    // Plain data cannot fail to serialize.
    serde_json::to_string(summary).unwrap_or_default()
}

fn result_json(request: &RunOptions, setup: &Setup, summary: &Summary) -> String {
    let result = serde_json::json!({
        "summary": summary,
        "options": request.plain(),
        "setup": {
            "budget_bytes": setup.fast,
            "far_size_bytes": setup.far_size,
            "far_latency_ns": setup.far_latency_ns,
        },
    });
    result.to_string()
}

/// Run a program. Returns `{"summary", "options", "setup"}` as JSON: the result, the parsed options, and the
/// sizes and far latency that follow from them. `progress` is called a few times a second with the summary so
/// far as JSON; an exception kills the run.
///
/// `policy` replaces the option `policy`: its callable makes a `nearfar.tiering.Policy` for each process of
/// the program, which is called in a separate thread. `resident`: the largest process's peak private memory
/// in bytes, if `fast` is a percentage.
#[pyfunction]
#[pyo3(signature = (command, library, *, options, knobs, progress, policy=None, resident=None))]
#[allow(clippy::too_many_arguments)]
pub(crate) fn live_run(
    py: Python<'_>,
    command: Vec<String>,
    library: PathBuf,
    options: &Bound<'_, PyDict>,
    knobs: BTreeMap<String, String>,
    progress: Py<PyAny>,
    policy: Option<CustomPolicy>,
    resident: Option<u64>,
) -> PyResult<String> {
    let request = read(options, resident)?;
    let (setup, first) = set_up(py, &request, policy.as_ref(), knobs)?;
    let policy_raised = Raised::default();
    let provider = policy
        .zip(first)
        .map(|((_, make), first)| Arc::new(Objects::new(make, first, policy_raised.clone())));
    let mut raised = None;
    let objects = provider.clone().map(|objects| objects as Arc<dyn Provider>);
    let summary = py.detach(|| {
        run(&setup, &library, &command, objects, |summary| {
            let done = Python::attach(|py| {
                py.check_signals().and_then(|()| progress.call1(py, (to_json(summary),)))
            });
            done.map_err(|error| raised.get_or_insert(error)).is_ok()
        })
    });
    if let Some(objects) = provider {
        objects.end(py);
    }
    match raised.or_else(|| policy_raised.take()) {
        Some(error) => Err(error),
        None => summary.map(|summary| result_json(&request, &setup, &summary)).map_err(raise),
    }
}

/// Raise the errors that [`live_run`] would raise for these arguments, without running anything. A percentage
/// as `fast` counts as the minimum, because the peak private memory is not yet measured.
#[pyfunction]
#[pyo3(signature = (command, *, options, knobs, policy=None))]
pub(crate) fn live_check(
    py: Python<'_>,
    command: &str,
    options: &Bound<'_, PyDict>,
    knobs: BTreeMap<String, String>,
    policy: Option<CustomPolicy>,
) -> PyResult<()> {
    let request: RunOptions = crate::given::read(options)?;
    let (setup, _) = set_up(py, &request.with_min_fast(), policy.as_ref(), knobs)?;
    py.detach(|| program::check_all(&setup, command)).map(|_| ()).map_err(raise)
}

/// Raise an error if userfaultfd lacks what `nearfar run` needs.
#[pyfunction]
pub(crate) fn live_probe() -> PyResult<()> {
    // 1: room for one frame in the parking area, which the program cannot reach.
    nearfar_live::linux::Linux::open(1).map(|_| ()).map_err(raise)
}

/// Current runs: process number of the launcher, and command line.
#[pyfunction]
pub(crate) fn live_runs(py: Python<'_>) -> Vec<(u32, String)> {
    py.detach(Watched::all)
}

/// Names and meanings of the counters.
#[pyfunction]
pub(crate) fn live_counters() -> Vec<(&'static str, String)> {
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    Counters::NAMES.iter().map(|(name, text)| (*name, one_line(text))).collect()
}

/// A current run: that of the launcher or managed process `pid`, or the only one.
#[pyclass]
pub(crate) struct LiveWatch(Watched);

#[pymethods]
impl LiveWatch {
    #[new]
    fn new(py: Python<'_>, pid: Option<u32>) -> PyResult<Self> {
        py.detach(|| Watched::find(pid)).map(Self).map_err(raise)
    }

    fn is_over(&self) -> bool {
        self.0.is_over()
    }

    /// The run's current state as JSON. Rates are over the time since the previous call.
    fn look(&mut self) -> String {
        serde_json::to_string(&self.0.snapshot()).unwrap_or_default()
    }
}
