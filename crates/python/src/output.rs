//! `nearfar_trace::output` as a class, and `nearfar_trace::file` as a function.

use std::path::PathBuf;

use nearfar_trace::file;
use nearfar_trace::output::{self, Form, OutputRequest};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::raise;

fn form(holds: Option<String>) -> Form {
    holds.map_or(Form::File, Form::Folder)
}

/// Refuse a name that :class:`Output` would refuse, before the work.
#[pyfunction]
#[pyo3(signature = (path, *, holds, force, inputs))]
fn output_check(
    path: PathBuf,
    holds: Option<String>,
    force: bool,
    inputs: Vec<PathBuf>,
) -> PyResult<()> {
    let wanted = OutputRequest { path: &path, form: form(holds), force, inputs: &inputs };
    wanted.check().map(drop).map_err(raise)
}

/// A claimed name: a file, or a folder that holds a file of the name ``holds``.
#[pyclass]
struct Output(Option<output::Output>);

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
        let wanted = OutputRequest { path: &path, form: form(holds), force, inputs: &inputs };
        py.detach(|| output::Output::claim(&wanted)).map(|output| Self(Some(output))).map_err(raise)
    }

    /// Where it is written.
    #[getter]
    fn temporary(&self) -> Option<PathBuf> {
        self.0.as_ref().map(|output| output.temporary().to_owned())
    }

    /// Give it its name.
    fn commit(&mut self, py: Python<'_>) -> PyResult<()> {
        let Some(mut output) = self.0.take() else { return Ok(()) };
        py.detach(|| output.commit()).map_err(raise)
    }

    /// Leave nothing of it, unless it has its name.
    fn discard(&mut self) {
        self.0 = None;
    }
}

/// The bytes of a regular file of at most ``most``; ``what`` is what it should be.
#[pyfunction]
fn file_read<'py>(
    py: Python<'py>,
    path: PathBuf,
    what: &str,
    most: u64,
) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = py.detach(|| file::read(&path, what, most)).map_err(raise)?;
    Ok(PyBytes::new(py, &bytes))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Output>()?;
    module.add_function(wrap_pyfunction!(output_check, module)?)?;
    module.add_function(wrap_pyfunction!(file_read, module)?)
}
