//! `nearfar_trace::export` as functions.

use std::path::PathBuf;

use nearfar_trace::export::{self, EXPORTERS, Options};
use nearfar_trace::{Error, Kind, KindSet};
use pyo3::prelude::*;

/// Names and one-line summaries of the formats that can be exported.
#[pyfunction]
fn export_formats() -> Vec<(&'static str, &'static str)> {
    EXPORTERS.iter().map(|exporter| (exporter.name(), exporter.summary())).collect()
}

fn kind_set(names: &[String]) -> nearfar_trace::Result<KindSet> {
    let mut set = KindSet(0);
    for name in names {
        let kind = Kind::from_name(name).ok_or_else(|| {
            Error::input(
                "--kinds",
                format!("no kind of reference is called `{name}`"),
                "choose of load, store, fetch, kernel-load, kernel-store",
            )
        })?;
        set.0 |= kind.bit();
    }
    Ok(if names.is_empty() { KindSet::ALL } else { set })
}

/// Export a trace folder to a file; the number of references exported.
#[pyfunction]
#[pyo3(signature = (trace, out, *, format, force, kinds, max_refs, page_bytes, progress))]
#[allow(clippy::too_many_arguments)]
fn export_trace(
    py: Python<'_>,
    trace: PathBuf,
    out: PathBuf,
    format: String,
    force: bool,
    kinds: Vec<String>,
    max_refs: Option<u64>,
    page_bytes: Option<u64>,
    progress: Option<Py<PyAny>>,
) -> PyResult<u64> {
    let kinds = kind_set(&kinds).map_err(crate::raise)?;
    let options = Options { kinds, max_refs, page_bytes };
    crate::progress::run(py, progress, move |pulse| {
        export::export(&trace, &out, &format, force, &options, pulse)
    })
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(export_formats, module)?)?;
    module.add_function(wrap_pyfunction!(export_trace, module)?)
}
