//! `nearfar_study::tiering` as functions: options in, JSON out.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use nearfar_kernel::tiering::{POLICIES, Settings, find, make};
use nearfar_study::tiering::options::Size;
use nearfar_study::tiering::trace::TracePages;
use nearfar_study::tiering::workload::{Mix, Prepared, Shape, WORKLOADS, generated};
use nearfar_study::tiering::{Options, PolicySource, run};
use nearfar_trace::Error;
use pyo3::prelude::*;

use crate::machine::Machine;
use crate::policy::{MemoryHandle, Raised, ThreadHandle, policy};
use crate::raise;

/// Policies as JSON text: `[{"name", "what", "follows", "leaves_out", "not_for", "foresees",
/// "knobs": [{"name", "kind", "default", "what", "source"}]}]`.
#[pyfunction]
fn tiering_policies() -> String {
    let policies = POLICIES.iter().map(|(name, policy)| {
        let knobs = (policy.knobs)().into_iter().map(|knob| {
            serde_json::json!({
                "name": knob.name, "kind": knob.kind, "default": knob.default,
                "what": knob.what, "source": knob.source,
            })
        });
        serde_json::json!({
            "name": name, "what": policy.what, "follows": policy.follows,
            "leaves_out": policy.leaves_out, "not_for": policy.not_for,
            "foresees": policy.foresees,
            "knobs": knobs.collect::<Vec<_>>(),
        })
    });
    serde_json::Value::Array(policies.collect()).to_string()
}

/// Names of the generated workloads, with a line on each.
#[pyfunction]
fn tiering_workloads() -> Vec<(&'static str, &'static str)> {
    WORKLOADS.iter().map(|workload| (workload.name, workload.what)).collect()
}

/// Run the study; answers `{"rows", "series", "pages", "node_bytes", "nodes"}` as JSON text.
///
/// `policies` are labels, each with a built-in name or an object (`nearfar.tiering.Policy`) and
/// knobs. `trace` takes the place of `workload`. `scale` shrinks the machine and the workload,
/// `policy_scale` the policies' times and sizes. Sizes are fractions or bytes, told apart by the
/// flag beside each. With an object among the policies everything runs in this thread.
#[pyfunction]
#[pyo3(signature = (
    machine, *, policies, workload, trace, mix, scrambled, hottest_first, rounds,
    scale, policy_scale, seeds, fast, slow, rss_bytes, wss_bytes, huge, cost_scale, threads, points,
    progress
))]
#[allow(clippy::too_many_arguments, clippy::type_complexity)]
fn tiering_run(
    py: Python<'_>,
    machine: &Machine,
    policies: Vec<(String, Option<String>, Option<Py<PyAny>>, BTreeMap<String, String>)>,
    workload: Option<String>,
    trace: Option<PathBuf>,
    mix: String,
    scrambled: bool,
    hottest_first: bool,
    rounds: u32,
    scale: f64,
    policy_scale: Option<f64>,
    seeds: Vec<u64>,
    fast: Option<(f64, bool)>,
    slow: Option<(f64, bool)>,
    rss_bytes: Option<u64>,
    wss_bytes: Option<u64>,
    huge: bool,
    cost_scale: f64,
    threads: usize,
    points: u32,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let mut options = Options::new(machine.hardware(), cost_scale).map_err(raise)?;
    let size = |(value, fraction)| match fraction {
        true => Size::Fraction(value),
        false => Size::Bytes(value as u64),
    };
    (options.fast, options.slow) = (fast.map(size), slow.map(size));
    (options.scale, options.huge, options.points) = (scale, huge, points);
    let Some((_, mix)) = Mix::ALL.into_iter().find(|(name, _)| *name == mix) else {
        let names = Mix::ALL.map(|(name, _)| name).join(", ");
        return Err(raise(Error::input("--mix", format!("no mix {mix:?}"), names)));
    };
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let (rss_gib, wss_gib) = (rss_bytes.map(gib), wss_bytes.map(gib));
    let shape = Shape { scrambled, hottest_first, mix, rounds, scale, huge, rss_gib, wss_gib };
    let python = policies.iter().any(|(_, _, object, _)| object.is_some());
    options.threads = if python { 1 } else { threads };
    let raised = Raised::default();
    let inner = raised.clone();
    let work = move |pulse: &mut dyn FnMut(u64) -> nearfar_trace::Result<()>| {
        let prepared = match (&workload, &trace) {
            (_, Some(path)) => Prepared::trace(TracePages::open(path, huge, pulse)?, rounds),
            (Some(name), None) => generated(name, &shape)?,
            (None, None) => return Err(Error::input("--workload", "none given", "give one")),
        };
        let prepared = Arc::new(prepared);
        // A trace comes as it is: the policies' times and sizes shrink to it, as if it were the
        // 27 GiB program that they were tuned with.
        let tuned = 27.0 * f64::from(1 << 18);
        let shrink = policy_scale.unwrap_or(match trace {
            Some(_) => (f64::from(prepared.pages) / tuned).min(1.0),
            None => scale,
        });
        let frames = options.frames(prepared.pages)?;
        let mut sources = Vec::new();
        for (label, name, object, values) in policies {
            let settings = Settings { values, scale: shrink };
            let raised = inner.clone();
            let foresees = match &name {
                Some(name) => find(name)?.foresees,
                None => object.as_ref().is_some_and(|object| {
                    Python::attach(|py| object.bind(py).hasattr("foresee").unwrap_or(false))
                }),
            };
            let built: nearfar_study::tiering::run::Make<'static> = Box::new(move |mem| {
                match (&name, &object) {
                    (Some(name), _) => make(name, &settings, mem),
                    (None, Some(class)) => Python::attach(|py| {
                        // A class, or anything that makes an object: each run has its own.
                        class
                            .bind(py)
                            .call0()
                            .and_then(|object| policy(&object, &settings, &raised, mem))
                            .map_err(|error| {
                                let said = error.to_string();
                                raised.note(error);
                                Error::input("policy", said, "")
                            })
                    }),
                    (None, None) => Err(Error::input("--policy", "none given", "give one")),
                }
            });
            sources.push(PolicySource { label, foresees, make: built });
        }
        let mut watched = |count| {
            inner.stop()?;
            pulse(count)
        };
        let found = run(&options, &prepared, &sources, &seeds, &mut watched)?;
        let nodes: Vec<_> = options.nodes.iter().map(|node| node.name.clone()).collect();
        let bytes: Vec<u64> = frames.iter().map(|frames| frames * 4096).collect();
        let answer = serde_json::json!({
            "rows": found.rows,
            "series": found.series,
            "pages": prepared.pages,
            "policy_scale": shrink,
            "nodes": nodes,
            "node_bytes": bytes,
        });
        Ok(answer.to_string())
    };
    let result = if python {
        crate::progress::run_attached(py, progress, work)
    } else {
        crate::progress::run(py, progress, work)
    };
    match raised.take() {
        Some(error) => Err(error),
        None => result,
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<MemoryHandle>()?;
    module.add_class::<ThreadHandle>()?;
    module.add_function(wrap_pyfunction!(tiering_policies, module)?)?;
    module.add_function(wrap_pyfunction!(tiering_workloads, module)?)?;
    module.add_function(wrap_pyfunction!(tiering_run, module)?)
}
