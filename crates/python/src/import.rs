//! Python function for `nearfar_trace::import`.

use std::path::PathBuf;

use nearfar_trace::import::{self, Options, Request};
use pyo3::prelude::*;
use pyo3::types::PyDict;

#[pyfunction]
#[pyo3(signature = (source, out, *, options, force, progress))]
pub(crate) fn import_trace(
    py: Python<'_>,
    source: PathBuf,
    out: PathBuf,
    options: &Bound<'_, PyDict>,
    force: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<()> {
    let request: Request = crate::given::read(options)?;
    let format = request.format.map(|format| format.name);
    crate::progress::run(py, progress, move |on_progress| {
        import::import(&source, &out, format, force, &Options::from(&request), on_progress)
    })?;
    Ok(())
}
