//! Python functions for `nearfar_study::info`.

use std::path::PathBuf;

use nearfar_study::info::{self, Options, Request};
use nearfar_trace::{Error, Reader, verify};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde::Serialize;

use crate::raise;

/// `trace.json` of a trace as JSON text, checked for consistency and against the footers of the part files.
#[pyfunction]
pub(crate) fn trace_open(py: Python<'_>, trace: PathBuf) -> PyResult<String> {
    py.detach(|| to_json(Reader::open_sample(&trace)?.info())).map_err(raise)
}

/// Returns JSON texts: the summary of `trace`, its heat map if requested, and, with the option `verify`, the
/// verified files of `whole`. `trace` is `whole` after `--filter`. A trace of sampled pages is refused
/// unless `sample` is true; its counts are not scaled up.
#[pyfunction]
#[pyo3(signature = (trace, whole, *, options, heat_map, sample, progress))]
pub(crate) fn info_summarize(
    py: Python<'_>,
    trace: PathBuf,
    whole: PathBuf,
    options: &Bound<'_, PyDict>,
    heat_map: bool,
    sample: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<(String, Option<String>, Option<String>)> {
    let Request { reuse, verify } = crate::given::read(options)?;
    crate::progress::run(py, progress, move |on_progress| {
        let files = verify.then(|| verify::verify(&Reader::open_sample(&whole)?, on_progress));
        let files = files.transpose()?;
        let reader = if sample { Reader::open_sample(&trace) } else { Reader::open(&trace) }?;
        let (summary, heat) = info::summarize(&reader, Options { reuse, heat_map }, on_progress)?;
        let heat = heat.as_ref().map(to_json).transpose()?;
        Ok((to_json(&summary)?, heat, files.as_ref().map(to_json).transpose()?))
    })
}

fn to_json(value: &impl Serialize) -> nearfar_trace::Result<String> {
    serde_json::to_string(value).map_err(|e| Error::input("info", e.to_string(), "report this"))
}
