//! Long runs, which Ctrl-C stops and whose progress is reported to a Python callable.

use nearfar_trace::{Error, Result};
use pyo3::prelude::*;

/// Called from time to time with the work done so far.
type OnProgress<'a> = &'a mut dyn FnMut(u64) -> Result<()>;

/// Run `work` without the GIL. Its argument checks for signals and calls `progress`. An exception of either
/// cancels the run and is returned.
pub(crate) fn run<T: Send>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    work: impl FnOnce(OnProgress<'_>) -> Result<T> + Send,
) -> PyResult<T> {
    let mut raised = None;
    let result = py.detach(|| work(&mut |count| call(count, progress.as_ref(), &mut raised)));
    raised.map_or_else(|| result.map_err(crate::raise), Err)
}

/// [`run`] with the GIL, for work that calls Python frequently.
pub(crate) fn run_attached<T>(
    _: Python<'_>,
    progress: Option<Py<PyAny>>,
    work: impl FnOnce(OnProgress<'_>) -> Result<T>,
) -> PyResult<T> {
    let mut raised = None;
    let result = work(&mut |count| call(count, progress.as_ref(), &mut raised));
    raised.map_or_else(|| result.map_err(crate::raise), Err)
}

fn call(count: u64, progress: Option<&Py<PyAny>>, raised: &mut Option<PyErr>) -> Result<()> {
    Python::attach(|py| {
        py.check_signals()?;
        progress.map_or(Ok(()), |progress| progress.call1(py, (count,)).map(|_| ()))
    })
    .map_err(|error| {
        *raised = Some(error);
        Error::cancelled()
    })
}
