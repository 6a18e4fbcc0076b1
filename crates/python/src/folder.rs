//! Folders that take another's place at once.

use std::path::PathBuf;

use nearfar_trace::folder;
use pyo3::prelude::*;

use crate::raise;

/// Give the folder `temporary` the name `path`, and remove a folder that had it: a reader sees
/// the old one whole or the new one.
#[pyfunction]
fn folder_replace(py: Python<'_>, temporary: PathBuf, path: PathBuf) -> PyResult<()> {
    py.detach(|| folder::replace(&temporary, &path)).map_err(raise)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(folder_replace, module)?)
}
