//! Python class for `nearfar_trace::output`, and function for `nearfar_trace::file`.

use std::path::PathBuf;

use nearfar_trace::file;
use nearfar_trace::output::{self, Form, OutputRequest};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::raise;

fn form(holds: Option<String>) -> Form {
    holds.map_or(Form::File, Form::Folder)
}

/// Raise the errors that :class:`Output` would raise, before the work begins.
#[pyfunction]
#[pyo3(signature = (path, *, holds, force, inputs))]
pub(crate) fn output_check(
    path: PathBuf,
    holds: Option<String>,
    force: bool,
    inputs: Vec<PathBuf>,
) -> PyResult<()> {
    let request = OutputRequest { path: &path, form: form(holds), force, inputs: &inputs };
    request.check().map(drop).map_err(raise)
}

/// A reserved output path: of a folder with a file named ``holds``, or of a file if that is None.
#[pyclass]
pub(crate) struct Output(Option<output::Output>);

#[pymethods]
impl Output {
    #[new]
    #[pyo3(signature = (path, *, holds, force, inputs))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        holds: Option<String>,
        force: bool,
        inputs: Vec<PathBuf>,
    ) -> PyResult<Self> {
        let request = OutputRequest { path: &path, form: form(holds), force, inputs: &inputs };
        py.detach(|| output::Output::claim(&request))
            .map(|output| Self(Some(output)))
            .map_err(raise)
    }

    /// The path to write to; None after `commit` or `discard`.
    #[getter]
    fn temporary(&self) -> Option<PathBuf> {
        self.0.as_ref().map(|output| output.temporary().to_owned())
    }

    /// Rename the temporary path to the final path.
    fn commit(&mut self, py: Python<'_>) -> PyResult<()> {
        let Some(mut output) = self.0.take() else { return Ok(()) };
        py.detach(|| output.commit()).map_err(raise)
    }

    /// Remove the temporary path, unless it was committed.
    fn discard(&mut self) {
        self.0 = None;
    }
}

/// Read a regular file of at most ``most`` bytes; ``what`` names its expected content in errors.
#[pyfunction]
pub(crate) fn file_read<'py>(
    py: Python<'py>,
    path: PathBuf,
    what: &str,
    most: u64,
) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = py.detach(|| file::read(&path, what, most)).map_err(raise)?;
    Ok(PyBytes::new(py, &bytes))
}
