//! `nearfar_study::filter` as a function.

use std::path::PathBuf;

use nearfar_study::filter;
use nearfar_trace::Reader;
use pyo3::prelude::*;

use crate::machine::Machine;
use crate::raise;

/// Write the references of a trace that miss the caches of a machine as the trace `out`; answers
/// the caches in words.
#[pyfunction]
#[pyo3(signature = (trace, out, machine, *, write_backs, progress))]
fn filter_cache(
    py: Python<'_>,
    trace: PathBuf,
    out: PathBuf,
    machine: &Machine,
    write_backs: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let caches = machine.hardware().caches().map_err(raise)?;
    crate::progress::run(py, progress, move |pulse| {
        filter::cache(&Reader::open(&trace)?, &out, &caches, write_backs, pulse)?;
        Ok(caches.to_string())
    })
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(filter_cache, module)?)
}
