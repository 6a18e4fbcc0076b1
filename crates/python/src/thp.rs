//! Python function for `nearfar_study::thp`, from options to JSON text.

use std::path::PathBuf;

use nearfar_schema::Options as _;
use nearfar_study::thp::Study;
use nearfar_trace::Reader;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::machine::Machine;
use crate::raise;

/// Run the study. Returns `{"rows", "points", "areas", "lifetimes", "options"}` as JSON text. `points`:
/// memory over time. `areas`: empty without the option `by_area`. `lifetimes`: whether the trace records
/// mappings.
#[pyfunction]
#[pyo3(signature = (trace, machine, *, options, progress))]
pub(crate) fn thp(
    py: Python<'_>,
    trace: PathBuf,
    machine: &Machine,
    options: &Bound<'_, PyDict>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let study = Study::new(machine.hardware(), crate::given::read(options)?).map_err(raise)?;
    crate::progress::run(py, progress, move |on_progress| {
        let outcome = study.run(&Reader::open(&trace)?, on_progress)?;
        let result = serde_json::json!({
            "rows": outcome.rows,
            "points": outcome.points,
            "areas": outcome.areas,
            "lifetimes": outcome.lifetimes,
            "options": study.request.plain(),
        });
        Ok(result.to_string())
    })
}
