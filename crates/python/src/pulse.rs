//! A long run seen from Python: Ctrl-C stops it, and a callable may watch its progress.

use nearfar_trace::Error;
use pyo3::prelude::*;

/// Run `work` without the GIL. It is handed a pulse to call now and then with the number of
/// references so far: that calls `progress`, if there is one, and notices signals. An exception
/// raised meanwhile ends the run and is the one that is raised.
pub(crate) fn run<T: Send>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    work: impl FnOnce(&mut dyn FnMut(u64) -> nearfar_trace::Result<()>) -> nearfar_trace::Result<T>
    + Send,
) -> PyResult<T> {
    let mut raised = None;
    let result = py.detach(|| {
        work(&mut |count| {
            Python::attach(|py| {
                py.check_signals()?;
                progress
                    .as_ref()
                    .map_or(Ok(()), |progress| progress.call1(py, (count,)).map(|_| ()))
            })
            .map_err(|error| {
                raised = Some(error);
                Error::input("run", "stopped", "")
            })
        })
    });
    match raised {
        Some(error) => Err(error),
        None => result.map_err(crate::raise),
    }
}
