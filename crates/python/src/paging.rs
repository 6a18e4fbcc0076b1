//! Python functions for `nearfar_study::paging`, from options to JSON text.

use std::path::{Path, PathBuf};

use nearfar_schema::Options as _;
use nearfar_study::paging::explain::{self, explain, explain_on_machine};
use nearfar_study::paging::{Options, Request, Study};
use nearfar_trace::Reader;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::machine::Machine;
use crate::raise;

/// Check the options for these machines. A known `trace` decides the default of `--view`.
fn study(
    machines: &[PyRef<'_, Machine>],
    options: &Bound<'_, PyDict>,
    trace: Option<&Path>,
) -> PyResult<Study> {
    let machines: Vec<_> = machines.iter().map(|machine| machine.hardware()).collect();
    let request = crate::given::read(options)?;
    let study = match trace {
        Some(trace) => Study::of(&machines, request, trace),
        None => Study::new(&machines, request),
    };
    study.map_err(raise)
}

/// Run the study on each machine. Returns JSON text:
///
/// - `rows`, `records`, `footprint_bytes`
/// - `lifetimes`: whether the study applied the events that end pages (`unmap`, `exit`, ...)
/// - `peak_resident_bytes`: null unless memory sizes are fractions of it
/// - `left_out`: page sizes without rows, because the trace is a sample, each with a lower bound of the
///   memory in bytes that would give it rows; null if no memory does
/// - `too_few_frames`: page and memory sizes not simulated, because the memory has too few frames
/// - `options`: as parsed
#[pyfunction]
#[pyo3(signature = (trace, machines, *, options, progress))]
pub(crate) fn paging(
    py: Python<'_>,
    trace: PathBuf,
    machines: Vec<PyRef<'_, Machine>>,
    options: &Bound<'_, PyDict>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let study = study(&machines, options, Some(&trace))?;
    crate::progress::run(py, progress, move |on_progress| {
        Ok(study.run(&trace, on_progress)?.to_string())
    })
}

/// Check the options without running the study. Returns `{"options", "page_sizes"}` as JSON text: the parsed
/// options, and the page sizes in bytes.
#[pyfunction]
#[pyo3(signature = (machines, *, options))]
pub(crate) fn paging_options(
    machines: Vec<PyRef<'_, Machine>>,
    options: &Bound<'_, PyDict>,
) -> PyResult<String> {
    let Study { request, options, .. } = study(&machines, options, None)?;
    let result = serde_json::json!({"options": request.plain(), "page_sizes": options.page_sizes});
    Ok(result.to_string())
}

/// The parsed options of `nearfar explain`, as JSON text.
#[pyfunction]
#[pyo3(signature = (*, options))]
pub(crate) fn explain_options(options: &Bound<'_, PyDict>) -> PyResult<String> {
    let request: explain::Request = crate::given::read(options)?;
    Ok(serde_json::Value::Object(request.plain()).to_string())
}

/// Where TLB misses and page faults come from, at the first page size and memory size of `options`. Returns
/// `{"lifetimes", "total", "regions", "ranges", "sites"}` as JSON text. With `on`, a machine and page sizes,
/// returns a list with one such result per page size; TLB misses are then those of the machine's TLB.
#[pyfunction]
#[pyo3(signature = (trace, *, options, progress, on=None))]
pub(crate) fn paging_explain(
    py: Python<'_>,
    trace: PathBuf,
    options: &Bound<'_, PyDict>,
    progress: Option<Py<PyAny>>,
    on: Option<(PyRef<'_, Machine>, Vec<u64>)>,
) -> PyResult<String> {
    let request: Request = crate::given::read(options)?;
    let nested = request.nested.map(|size| size.0);
    let on = on
        .map(|(machine, page_sizes)| Ok((machine.hardware().processor(nested)?, page_sizes)))
        .transpose()
        .map_err(raise)?;
    let options = Options::try_from(&request).map_err(raise)?;
    crate::progress::run(py, progress, move |on_progress| {
        let reader = Reader::open(&trace)?;
        let result = match &on {
            Some((processor, page_sizes)) => serde_json::json!(explain_on_machine(
                &reader,
                &options,
                processor,
                page_sizes,
                on_progress
            )?),
            None => serde_json::json!(explain(&reader, &options, on_progress)?),
        };
        Ok(result.to_string())
    })
}
