//! Python function for `nearfar_study::ssd`, from options to JSON text.

use std::path::PathBuf;

use nearfar_schema::Options as _;
use nearfar_study::ssd::{Options, Request, simulate};
use nearfar_trace::Reader;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::machine::Machine;
use crate::raise;

/// Run the study. Returns `{"rows": [...], "details": [...], "options": {...}}` as JSON text. Rows and
/// details have the same order; the options are the parsed ones.
#[pyfunction]
#[pyo3(signature = (trace, machine, *, options, progress))]
pub(crate) fn ssd(
    py: Python<'_>,
    trace: PathBuf,
    machine: &Machine,
    options: &Bound<'_, PyDict>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let machine = machine.hardware();
    let request: Request = crate::given::read(options)?;
    let options = Options::from_request(&request, machine).map_err(raise)?;
    crate::progress::run(py, progress, move |on_progress| {
        let reader = Reader::open(&trace)?;
        let (rows, details): (Vec<_>, Vec<_>) =
            simulate(&reader, machine, &options, on_progress)?.into_iter().unzip();
        let result = serde_json::json!({
            "rows": rows,
            "details": details,
            "options": request.plain(),
        });
        Ok(result.to_string())
    })
}
