//! Python function for `nearfar_trace::export`.

use std::path::PathBuf;

use nearfar_trace::export::{self, Options, Request};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Export a trace folder to a file. Returns the number of references exported.
#[pyfunction]
#[pyo3(signature = (trace, out, *, options, force, progress))]
pub(crate) fn export_trace(
    py: Python<'_>,
    trace: PathBuf,
    out: PathBuf,
    options: &Bound<'_, PyDict>,
    force: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<u64> {
    let request: Request = crate::given::read(options)?;
    crate::progress::run(py, progress, move |on_progress| {
        export::export(
            &trace,
            &out,
            request.format.name,
            force,
            &Options::from(&request),
            on_progress,
        )
    })
}
