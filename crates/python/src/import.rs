//! `nearfar_trace::import` as functions.

use std::path::PathBuf;

use nearfar_trace::import::{self, IMPORTERS, Options};
use pyo3::prelude::*;

/// Names and one-line summaries of the formats that can be imported.
#[pyfunction]
fn import_formats() -> Vec<(&'static str, &'static str)> {
    IMPORTERS.iter().map(|importer| (importer.name(), importer.summary())).collect()
}

/// Import a file into a trace folder.
#[pyfunction]
#[pyo3(signature = (source, out, *, format, force, skip_bad, max_refs, object_bytes, progress))]
#[allow(clippy::too_many_arguments)]
fn import_trace(
    py: Python<'_>,
    source: PathBuf,
    out: PathBuf,
    format: Option<String>,
    force: bool,
    skip_bad: u64,
    max_refs: Option<u64>,
    object_bytes: Option<u64>,
    progress: Option<Py<PyAny>>,
) -> PyResult<()> {
    let options = Options { skip_bad, max_refs, object_bytes };
    crate::progress::run(py, progress, move |pulse| {
        import::import(&source, &out, format.as_deref(), force, &options, pulse)
    })?;
    Ok(())
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(import_formats, module)?)?;
    module.add_function(wrap_pyfunction!(import_trace, module)?)
}
