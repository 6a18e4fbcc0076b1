//! Python function for `nearfar_trace::generate`.

use std::path::PathBuf;

use nearfar_trace::generate::{Request, generate};
use pyo3::prelude::*;
use pyo3::types::PyDict;

#[pyfunction]
#[pyo3(signature = (out, *, options, force, progress))]
pub(crate) fn generate_trace(
    py: Python<'_>,
    out: PathBuf,
    options: &Bound<'_, PyDict>,
    force: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<()> {
    let Request { name, params } = crate::given::read(options)?;
    crate::progress::run(py, progress, move |on_progress| {
        generate(name, &params, &out, force, on_progress)
    })?;
    Ok(())
}
