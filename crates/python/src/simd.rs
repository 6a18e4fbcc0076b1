//! `nearfar_simd` as functions.

use nearfar_simd::{Level, UnknownLevel, VARIABLE, check};
use nearfar_trace::Error;
use pyo3::prelude::*;

use crate::raise;

/// Every level, lowest first: its name, and whether the processor supports it, regardless of `NEARFAR_SIMD`.
#[pyfunction]
fn simd_levels() -> Vec<(&'static str, bool)> {
    Level::ALL.into_iter().map(|level| (level.name(), level.is_available())).collect()
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    check().map_err(|error| raise(Error::input(VARIABLE, error.what(), UnknownLevel::fix())))?;
    module.add_function(wrap_pyfunction!(simd_levels, module)?)
}
