//! A program in two tiers of memory, for `nearfar/live`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use nearfar_live::Counters;
use nearfar_live::options::Asked;
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

/// A policy that is not built in: what it is called, and what makes an object of it.
type Given = (String, Py<PyAny>);

/// What was asked for; with the bytes of the program's resident set, where they are known.
fn read(options: &Bound<'_, PyDict>, resident: Option<u64>) -> PyResult<Asked> {
    let asked: Asked = crate::given::read(options)?;
    resident.map_or(Ok(asked.clone()), |resident| asked.resolved(resident)).map_err(raise)
}

/// How to run, with a policy that was given; its first object.
fn set_up(
    py: Python<'_>,
    asked: &Asked,
    given: Option<&Given>,
    knobs: BTreeMap<String, String>,
) -> PyResult<(Setup, Option<Py<PyAny>>)> {
    let Some((name, make)) = given else {
        return asked.setup(knobs).map(|setup| (setup, None)).map_err(raise);
    };
    let first = make.call0(py)?;
    let said = declared(first.bind(py))?;
    let setup = asked.setup_with(name, &said, knobs).map_err(raise)?;
    Ok((setup, Some(first)))
}

fn text(summary: &Summary) -> String {
    // Plain data: there is nothing in it that could fail to print.
    serde_json::to_string(summary).unwrap_or_default()
}

fn answer(asked: &Asked, setup: &Setup, summary: &Summary) -> String {
    let whole = serde_json::json!({
        "summary": summary,
        "options": asked.plain(),
        "setup": {
            "budget_bytes": setup.fast,
            "far_size_bytes": setup.far_size,
            "far_latency_ns": setup.far_latency_ns,
        },
    });
    whole.to_string()
}

/// Run a program; returns as JSON `{"summary", "options", "setup"}`: what it came to, the options as they
/// were read, and what they came to where that depends on others. `progress` is called a few times a second with
/// what it has come to so far, and ends the program by raising. `policy`: a name and what makes an object
/// (`nearfar.tiering.Policy`), in place of the option; each process has one, called in a thread of its own.
/// `resident`: bytes of the program's peak resident set, which the fast memory may be a share of.
#[pyfunction]
#[pyo3(signature = (command, library, *, options, knobs, progress, policy=None, resident=None))]
#[allow(clippy::too_many_arguments)]
fn live_run(
    py: Python<'_>,
    command: Vec<String>,
    library: PathBuf,
    options: &Bound<'_, PyDict>,
    knobs: BTreeMap<String, String>,
    progress: Py<PyAny>,
    policy: Option<Given>,
    resident: Option<u64>,
) -> PyResult<String> {
    let asked = read(options, resident)?;
    let (setup, first) = set_up(py, &asked, policy.as_ref(), knobs)?;
    let of_policy = Raised::default();
    let provider = policy
        .zip(first)
        .map(|((_, make), first)| Arc::new(Objects::new(make, first, of_policy.clone())));
    let mut raised = None;
    let objects = provider.clone().map(|objects| objects as Arc<dyn Provider>);
    let summary = py.detach(|| {
        run(&setup, &library, &command, objects, |summary| {
            let done = Python::attach(|py| {
                py.check_signals().and_then(|()| progress.call1(py, (text(summary),)))
            });
            done.map_err(|error| raised.get_or_insert(error)).is_ok()
        })
    });
    if let Some(objects) = provider {
        objects.end(py);
    }
    match raised.or_else(|| of_policy.take()) {
        Some(error) => Err(error),
        None => summary.map(|summary| answer(&asked, &setup, &summary)).map_err(raise),
    }
}

/// Refuse what [`live_run`] would refuse of these, without running anything: before the program is run alone to
/// measure it. Of a fast memory that is a share, the least is taken.
#[pyfunction]
#[pyo3(signature = (command, *, options, knobs, policy=None))]
fn live_check(
    py: Python<'_>,
    command: &str,
    options: &Bound<'_, PyDict>,
    knobs: BTreeMap<String, String>,
    policy: Option<Given>,
) -> PyResult<()> {
    let asked: Asked = crate::given::read(options)?;
    let (setup, _) = set_up(py, &asked.least(), policy.as_ref(), knobs)?;
    py.detach(|| program::check_all(&setup, command)).map(|_| ()).map_err(raise)
}

/// Whether userfaultfd can be had as `nearfar run` needs it; an error says why not.
#[pyfunction]
fn live_probe() -> PyResult<()> {
    nearfar_live::linux::Linux::open(1).map(|_| ()).map_err(raise)
}

/// Runs that are under way: launchers and their command lines.
#[pyfunction]
fn live_runs(py: Python<'_>) -> Vec<(u32, String)> {
    py.detach(Watched::all)
}

/// What is counted, by name.
#[pyfunction]
fn live_counters() -> Vec<(&'static str, String)> {
    let what = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    Counters::NAMES.iter().map(|(name, text)| (*name, what(text))).collect()
}

/// A run that is under way: of a launcher, of a program that it manages, or the only one.
#[pyclass]
struct LiveWatch(Watched);

#[pymethods]
impl LiveWatch {
    #[new]
    fn new(py: Python<'_>, pid: Option<u32>) -> PyResult<Self> {
        py.detach(|| Watched::find(pid)).map(Self).map_err(raise)
    }

    /// Whether it is over.
    fn is_over(&self) -> bool {
        self.0.is_over()
    }

    /// What it looks like now, as JSON; rates are over the time since the last look.
    fn look(&mut self) -> String {
        serde_json::to_string(&self.0.look()).unwrap_or_default()
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<LiveWatch>()?;
    module.add_function(wrap_pyfunction!(live_run, module)?)?;
    module.add_function(wrap_pyfunction!(live_check, module)?)?;
    module.add_function(wrap_pyfunction!(live_probe, module)?)?;
    module.add_function(wrap_pyfunction!(live_runs, module)?)?;
    module.add_function(wrap_pyfunction!(live_counters, module)?)
}
