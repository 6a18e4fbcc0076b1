//! Python function for `nearfar_study::filter`.

use std::path::PathBuf;

use nearfar_schema::Value;
use nearfar_study::filter::{self, Filter};
use nearfar_trace::Error;
use pyo3::prelude::*;

use crate::machine::Machine;
use crate::raise;

/// Write the references of a trace that miss the caches of a machine to the trace `out`. Returns a
/// description of these references. The filter `none` selects all, and writes no trace.
#[pyfunction]
#[pyo3(signature = (trace, out, machine, *, filter, progress))]
pub(crate) fn filter_view(
    py: Python<'_>,
    trace: PathBuf,
    out: PathBuf,
    machine: &Machine,
    filter: &str,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let filter =
        Filter::read(&filter.into()).map_err(|what| raise(Error::input("--filter", what, "")))?;
    let machine = machine.hardware();
    crate::progress::run(py, progress, move |on_progress| {
        filter::view(filter, &trace, &out, machine, on_progress)
    })
}
