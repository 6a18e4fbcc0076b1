//! Python functions for `nearfar_study::tiering`, from options to JSON text.

use std::collections::BTreeMap;
use std::path::PathBuf;

use nearfar_kernel::tiering::{POLICIES, Settings, find, make};
use nearfar_schema::Options as _;
use nearfar_study::tiering::options::{Request, resident};
use nearfar_study::tiering::{Options, PolicySource, run};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::machine::Machine;
use crate::policy::{Raised, policy, store_exception};
use crate::raise;

/// Policies as JSON text: `[{"name", "what", "follows", "leaves_out", "not_for", "foresees", "refused_live",
/// "knobs": [{"name", "kind", "default", "what", "source"}]}]`.
#[pyfunction]
pub(crate) fn tiering_policies() -> String {
    let policies = POLICIES.iter().map(|(name, policy)| {
        let knobs = policy.all_knobs().into_iter().map(|knob| {
            serde_json::json!({
                "name": knob.name, "kind": knob.kind, "default": knob.default,
                "what": knob.what, "source": knob.source,
            })
        });
        serde_json::json!({
            "name": name, "what": policy.what, "follows": policy.follows,
            "leaves_out": policy.leaves_out, "not_for": policy.not_for,
            "foresees": policy.foresees,
            "refused_live": refused_live(name),
            "knobs": knobs.collect::<Vec<_>>(),
        })
    });
    serde_json::Value::Array(policies.collect()).to_string()
}

/// The error of a policy that cannot manage a real program (`nearfar run`) with any far tier; None if it can.
fn refused_live(policy: &str) -> Option<String> {
    let settings = Settings { scale: 1.0, ..Settings::default() };
    // A mapped far tier (a memory node) has every capability of the others.
    let far_is_mapped = true;
    nearfar_live::options::check_policy(policy, &settings, far_is_mapped)
        .err()
        .map(|error| error.to_string())
}

/// A policy to run: label, source and knobs.
type PolicyArgument = (String, Source, BTreeMap<String, String>);

#[derive(FromPyObject)]
pub(crate) enum Source {
    /// A built-in policy, by name.
    BuiltIn(String),
    /// A callable that makes a `nearfar.tiering.Policy`, and whether that has the hook `foresee`.
    Python(Py<PyAny>, bool),
}

/// Run the study. Returns `{"rows", "series", "footprint_bytes", "peak_resident_bytes", "policy_scale",
/// "nodes", "node_bytes", "options"}` as JSON text. `peak_resident_bytes` is null if pages have no lifetimes.
///
/// With `traces`, the option `workload` only names them in results. `policy_scale` multiplies the policies'
/// times and sizes; None derives it from the programs. With a Python policy, everything runs in this thread.
#[pyfunction]
#[pyo3(signature = (machine, *, policies, traces, policy_scale, options, progress))]
#[allow(clippy::too_many_arguments)]
pub(crate) fn tiering_run(
    py: Python<'_>,
    machine: &Machine,
    policies: Vec<PolicyArgument>,
    traces: Vec<PathBuf>,
    policy_scale: Option<f64>,
    options: &Bound<'_, PyDict>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let request: Request = crate::given::read(options)?;
    let mut options =
        Options::from_request(machine.hardware(), &request, !traces.is_empty()).map_err(raise)?;
    let python = policies.iter().any(|(_, source, _)| matches!(source, Source::Python(..)));
    if python {
        options.threads = 1;
    }
    let raised = Raised::default();
    let exception = raised.clone();
    let work = move |on_progress: &mut dyn FnMut(u64) -> nearfar_trace::Result<()>| {
        let programs = request.prepare(&traces, on_progress)?;
        let scale = policy_scale.unwrap_or_else(|| request.policy_scale(&programs));
        // With several sizes of fast memory, `node_bytes` is of the last.
        let frames = match options.fast_sizes().last() {
            Some(fast) => options.frames(resident(&programs), *fast)?,
            None => Vec::new(),
        };
        let mut sources = Vec::new();
        for (label, source, values) in policies {
            let settings = Settings { values, scale };
            let raised = exception.clone();
            let foresees = match &source {
                Source::BuiltIn(name) => find(name)?.foresees,
                Source::Python(_, foresees) => *foresees,
            };
            let make_policy: nearfar_study::tiering::run::Make<'static> = Box::new(move |mem| {
                match &source {
                    Source::BuiltIn(name) => make(name, &settings, mem),
                    Source::Python(constructor, _) => Python::attach(|py| {
                        // Each run has its own object.
                        constructor
                            .bind(py)
                            .call0()
                            .map_err(|error| store_exception(error, &raised))
                            .and_then(|object| policy(&object, &settings, &raised, mem))
                    }),
                }
            });
            sources.push(PolicySource { label, foresees, make: make_policy });
        }
        let mut checked_progress = |count| {
            exception.stop()?;
            on_progress(count)
        };
        let seeds = request.seeds.from(request.seed.0);
        let outcome = run(&options, &programs, &sources, &seeds, &mut checked_progress)?;
        let nodes: Vec<_> = options.nodes.iter().map(|node| node.name.clone()).collect();
        let bytes: Vec<u64> = frames.iter().map(|frames| frames * 4096).collect();
        let result = serde_json::json!({
            "rows": outcome.rows,
            "series": outcome.series,
            "footprint_bytes": programs.iter().map(|program| program.footprint).sum::<u64>() * 4096,
            "peak_resident_bytes":
                programs.iter().any(|program| program.has_lives())
                    .then_some(u64::from(resident(&programs)) * 4096),
            "policy_scale": scale,
            "nodes": nodes,
            "node_bytes": bytes,
            "options": request.plain(),
        });
        Ok(result.to_string())
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
