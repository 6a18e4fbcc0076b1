//! A long run seen from Python: Ctrl-C stops it, and a callable may watch its progress.

use nearfar_trace::Error;
use pyo3::prelude::*;

/// What a run calls now and then.
type Pulse<'a> = &'a mut dyn FnMut(u64) -> nearfar_trace::Result<()>;

/// Run `work` without the GIL. It is handed a pulse to call now and then with the number of
/// references so far: that calls `progress`, if there is one, and notices signals. An exception
/// raised meanwhile ends the run and is the one that is raised.
pub(crate) fn run<T: Send>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    work: impl FnOnce(Pulse<'_>) -> nearfar_trace::Result<T> + Send,
) -> PyResult<T> {
    let mut raised = None;
    let result = py.detach(|| work(&mut |count| beat(count, progress.as_ref(), &mut raised)));
    finish(result, raised)
}

/// The same for work that calls Python all the time: it keeps the GIL.
pub(crate) fn run_attached<T>(
    _: Python<'_>,
    progress: Option<Py<PyAny>>,
    work: impl FnOnce(Pulse<'_>) -> nearfar_trace::Result<T>,
) -> PyResult<T> {
    let mut raised = None;
    let result = work(&mut |count| beat(count, progress.as_ref(), &mut raised));
    finish(result, raised)
}

fn beat(
    count: u64,
    progress: Option<&Py<PyAny>>,
    raised: &mut Option<PyErr>,
) -> nearfar_trace::Result<()> {
    Python::attach(|py| {
        py.check_signals()?;
        progress.map_or(Ok(()), |progress| progress.call1(py, (count,)).map(|_| ()))
    })
    .map_err(|error| {
        *raised = Some(error);
        Error::input("run", "stopped", "")
    })
}

fn finish<T>(result: nearfar_trace::Result<T>, raised: Option<PyErr>) -> PyResult<T> {
    match raised {
        Some(error) => Err(error),
        None => result.map_err(crate::raise),
    }
}
