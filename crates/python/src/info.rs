//! `nearfar_study::info` as functions; what a trace holds crosses as JSON text.

use std::path::PathBuf;

use nearfar_study::info::{self, Asked, Options};
use nearfar_trace::{Error, Reader};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde::Serialize;

use crate::raise;

/// `trace.json` of a trace whose parts were all found whole, as JSON text.
#[pyfunction]
fn trace_open(py: Python<'_>, trace: PathBuf) -> PyResult<String> {
    py.detach(|| {
        let reader = Reader::open(&trace)?;
        info::check(&reader)?;
        to_json(reader.info())
    })
    .map_err(raise)
}

/// What a trace holds, and its heat map if asked for, as JSON texts.
#[pyfunction]
#[pyo3(signature = (trace, *, options, heat_map, progress))]
fn info_summarize(
    py: Python<'_>,
    trace: PathBuf,
    options: &Bound<'_, PyDict>,
    heat_map: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<(String, Option<String>)> {
    let Asked { reuse } = crate::given::read(options)?;
    crate::progress::run(py, progress, move |on_progress| {
        let reader = Reader::open(&trace)?;
        let (summary, heat) = info::summarize(&reader, Options { reuse, heat_map }, on_progress)?;
        Ok((to_json(&summary)?, heat.as_ref().map(to_json).transpose()?))
    })
}

fn to_json(value: &impl Serialize) -> nearfar_trace::Result<String> {
    serde_json::to_string(value).map_err(|e| Error::input("info", e.to_string(), "report this"))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(trace_open, module)?)?;
    module.add_function(wrap_pyfunction!(info_summarize, module)?)
}
