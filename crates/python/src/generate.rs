//! `nearfar_trace::generate` as functions.

use std::path::PathBuf;

use nearfar_trace::generate::{GENERATORS, Params, generate};
use pyo3::prelude::*;

/// Names and one-line summaries of the generators.
#[pyfunction]
fn generators() -> Vec<(&'static str, &'static str)> {
    GENERATORS.iter().map(|generator| (generator.name(), generator.summary())).collect()
}

/// Generate a trace folder.
#[pyfunction]
#[pyo3(signature = (
    name, out, *, refs, pages, page_bytes, seed, write_ratio, threads, alpha, stride, mix, phase,
    force, progress
))]
#[allow(clippy::too_many_arguments)]
fn generate_trace(
    py: Python<'_>,
    name: String,
    out: PathBuf,
    refs: u64,
    pages: u64,
    page_bytes: u64,
    seed: u64,
    write_ratio: f64,
    threads: u32,
    alpha: Option<f64>,
    stride: Option<u64>,
    mix: Option<String>,
    phase: Option<u64>,
    force: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<()> {
    let params =
        Params { refs, pages, page_bytes, seed, write_ratio, threads, alpha, stride, mix, phase };
    crate::progress::run(py, progress, move |pulse| generate(&name, &params, &out, force, pulse))?;
    Ok(())
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(generators, module)?)?;
    module.add_function(wrap_pyfunction!(generate_trace, module)?)
}
