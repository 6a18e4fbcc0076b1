//! `nearfar_study::paging` as functions: options in, JSON out.

use std::path::PathBuf;

use nearfar_schema::Options as _;
use nearfar_study::paging::explain::{self, OnMachine, explain};
use nearfar_study::paging::{Asked, Counted, Options, Study};
use nearfar_trace::{Error, Reader, Result};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::machine::Machine;
use crate::raise;

fn read(machines: &[PyRef<'_, Machine>], options: &Bound<'_, PyDict>) -> PyResult<Study> {
    let machines: Vec<_> = machines.iter().map(|machine| machine.hardware()).collect();
    Study::new(crate::given::read(options)?, &machines).map_err(raise)
}

/// Run the study on each machine. Returns `{"rows": [...], "records", "footprint_bytes", "lifetimes",
/// "peak_resident_bytes", "left_out", "too_few_frames", "options"}` as JSON text: the options as read, the
/// peak resident set if memory sizes are shares of it, the page sizes of which a sample has too few pages,
/// each with the minimum rate, and the page and memory sizes that are not simulated because the memory has
/// too few frames. Counts that do not depend on the machine are made once.
#[pyfunction]
#[pyo3(signature = (trace, machines, *, options, progress))]
fn paging(
    py: Python<'_>,
    trace: PathBuf,
    machines: Vec<PyRef<'_, Machine>>,
    options: &Bound<'_, PyDict>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let mut study = read(&machines, options)?;
    crate::progress::run(py, progress, move |on_progress| {
        let (counted, faults) = study.count(&trace, on_progress)?;
        Ok(study.result(&counted, faults)?.to_string())
    })
}

/// Read the options without running the study. Returns `{"options", "page_sizes"}` as JSON text: the options
/// as read, and the page sizes of the rows in bytes.
#[pyfunction]
#[pyo3(signature = (machines, *, options))]
fn paging_options(
    machines: Vec<PyRef<'_, Machine>>,
    options: &Bound<'_, PyDict>,
) -> PyResult<String> {
    let study = read(&machines, options)?;
    let (options, page_sizes) = (study.asked().plain(), &study.options().page_sizes);
    Ok(serde_json::json!({"options": options, "page_sizes": page_sizes}).to_string())
}

/// Count only some page sizes of the study. Returns JSON text for [`paging_joined`].
#[pyfunction]
#[pyo3(signature = (trace, machines, *, options, only))]
fn paging_part(
    py: Python<'_>,
    trace: PathBuf,
    machines: Vec<PyRef<'_, Machine>>,
    options: &Bound<'_, PyDict>,
    only: Vec<u64>,
) -> PyResult<String> {
    let mut study = read(&machines, options)?.only(&only);
    crate::progress::run(py, None, move |on_progress| {
        let (counted, _) = study.count(&trace, on_progress)?;
        Ok(serde_json::json!(counted).to_string())
    })
}

/// The result of [`paging`] from parts that together have every page size once.
#[pyfunction]
#[pyo3(signature = (machines, *, options, parts))]
fn paging_joined(
    machines: Vec<PyRef<'_, Machine>>,
    options: &Bound<'_, PyDict>,
    parts: Vec<String>,
) -> PyResult<String> {
    let mut study = read(&machines, options)?;
    let damaged =
        |error: serde_json::Error| Error::input("parts", error.to_string(), "count them again");
    let parts: Result<Vec<Counted>> =
        parts.iter().map(|part| serde_json::from_str(part).map_err(damaged)).collect();
    let result = parts.and_then(|parts| study.join(parts)).map_err(raise)?;
    Ok(result.to_string())
}

/// The options of `nearfar explain` as read, as JSON text.
#[pyfunction]
#[pyo3(signature = (*, options))]
fn explain_options(options: &Bound<'_, PyDict>) -> PyResult<String> {
    let asked: explain::Asked = crate::given::read(options)?;
    Ok(serde_json::Value::Object(asked.plain()).to_string())
}

/// Where the misses of the first page size and memory size of `options` come from. Returns `{"lifetimes",
/// "total", "regions", "ranges", "sites"}` as JSON text. With `on` (a machine and a page size), TLB misses
/// are those of its processor.
#[pyfunction]
#[pyo3(signature = (trace, *, options, progress, on=None))]
fn paging_explain(
    py: Python<'_>,
    trace: PathBuf,
    options: &Bound<'_, PyDict>,
    progress: Option<Py<PyAny>>,
    on: Option<(PyRef<'_, Machine>, u64)>,
) -> PyResult<String> {
    let asked: Asked = crate::given::read(options)?;
    let nested = asked.nested.map(|size| size.0);
    let on = on
        .map(|(machine, page_bytes)| Ok((machine.hardware().processor(nested)?, page_bytes)))
        .transpose()
        .map_err(raise)?;
    let options = Options::try_from(&asked).map_err(raise)?;
    crate::progress::run(py, progress, move |on_progress| {
        let machine =
            on.as_ref().map(|&(ref processor, page_bytes)| OnMachine { processor, page_bytes });
        let explained = explain(&Reader::open(&trace)?, &options, machine, on_progress)?;
        Ok(serde_json::json!(explained).to_string())
    })
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(paging, module)?)?;
    module.add_function(wrap_pyfunction!(paging_options, module)?)?;
    module.add_function(wrap_pyfunction!(paging_part, module)?)?;
    module.add_function(wrap_pyfunction!(paging_joined, module)?)?;
    module.add_function(wrap_pyfunction!(explain_options, module)?)?;
    module.add_function(wrap_pyfunction!(paging_explain, module)?)
}
