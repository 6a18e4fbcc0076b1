//! Python functions for `nearfar_capture`.

use std::ffi::OsString;
use std::path::PathBuf;

use nearfar_capture::{Action, Options, probe, run};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::raise;

/// Capture a program. Returns the outcome as JSON. `progress` is called with the number of records about ten
/// times a second. If it or a signal handler raises `KeyboardInterrupt`, the program gets the signal of the
/// exception's attribute `number`, or SIGINT. A second one, or any other exception, sends SIGKILL.
#[pyfunction]
#[pyo3(signature = (command, output, plugin, *, options, force, progress))]
pub(crate) fn capture_run(
    py: Python<'_>,
    command: Vec<OsString>,
    output: PathBuf,
    plugin: PathBuf,
    options: &Bound<'_, PyDict>,
    force: bool,
    progress: Py<PyAny>,
) -> PyResult<String> {
    let request = crate::given::read(options)?;
    let options = Options { command, output, plugin, force, request };
    let mut raised: Option<PyErr> = None;
    let outcome = py.detach(|| {
        run(&options, &mut |records| {
            Python::attach(|py| {
                let result = py.check_signals().and_then(|()| progress.call1(py, (records,)));
                match result {
                    Ok(_) => Action::Continue,
                    Err(error) if error.is_instance_of::<PyKeyboardInterrupt>(py) => {
                        let number = error.value(py).getattr("number");
                        Action::End(number.and_then(|number| number.extract()).ok())
                    }
                    Err(error) => {
                        raised = Some(error);
                        Action::Kill
                    }
                }
            })
        })
    });
    // `KeyboardInterrupt` is part of the outcome; any other exception is raised again.
    if let Some(error) = raised {
        return Err(error);
    }
    let outcome = outcome.map_err(raise)?;
    serde_json::to_string(&outcome).map_err(unexpected)
}

/// The requirements for capturing, and whether each is met, as JSON.
#[pyfunction]
pub(crate) fn capture_probe(py: Python<'_>, plugin: PathBuf) -> PyResult<String> {
    let requirements = py.detach(|| probe(&plugin));
    serde_json::to_string(&requirements).map_err(unexpected)
}

fn unexpected(error: serde_json::Error) -> PyErr {
    pyo3::exceptions::PyRuntimeError::new_err(error.to_string())
}
