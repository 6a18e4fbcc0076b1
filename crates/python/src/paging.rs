//! `nearfar_study::paging` as one function: options in, JSON out.

use std::path::PathBuf;

use nearfar_hardware::machine::remedy;
use nearfar_schema::Options as _;
use nearfar_study::lifetimes;
use nearfar_study::paging::explain::{self, OnMachine, explain};
use nearfar_study::paging::{
    Asked, Options, PageCache, Prices, View, machine as spent, rows, simulate,
};
use nearfar_trace::{Error, Reader};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::machine::Machine;
use crate::raise;

/// Run the study; returns `{"rows": [...], "records", "footprint_bytes", "lifetimes",
/// "peak_resident_bytes", "options"}` as JSON text: the options as they were read, and the peak
/// resident set where memory sizes are parts of it.
#[pyfunction]
#[pyo3(signature = (trace, machine, *, options, progress))]
fn paging(
    py: Python<'_>,
    trace: PathBuf,
    machine: &Machine,
    options: &Bound<'_, PyDict>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let machine = machine.hardware();
    let mut asked: Asked = crate::given::read(options)?;
    let view = asked.view_on(machine);
    asked.view = Some(view);
    let times = machine.access_times().map_err(raise)?;
    let storages = match &asked.storage {
        Some(names) => names.0.iter().map(|name| machine.storage(name)).collect(),
        None => machine.storages(),
    }
    .map_err(raise)?;
    if storages.is_empty() {
        let place = format!("machine {}", machine.name);
        let fix = remedy(&machine.name, "add [storage.NAME]", |one| !one.storage.is_empty());
        return Err(raise(Error::input(place, "has no storage to page to", fix)));
    }
    let options = Options::try_from(&asked).map_err(raise)?;
    let processor = match view {
        View::Paper => None,
        View::Machine => {
            let nested = asked.nested.map(|size| size.0);
            Some(machine.processor(nested).map_err(raise)?)
        }
    };
    let faults = options.lifetimes.then(|| machine.fault_times());
    crate::progress::run(py, progress, move |on_progress| {
        let reader = Reader::open(&trace)?;
        // Refused before hours of simulation.
        let faults = match faults {
            Some(faults) if lifetimes::known(&reader)? => Some(faults?),
            _ => None,
        };
        let simulated = simulate(&reader, &options, on_progress)?;
        let lives = simulated.lifetimes;
        let machine = processor
            .map(|processor| spent::times(&reader, &options, &processor, lives, on_progress))
            .transpose()?;
        let machine = machine.as_deref();
        let warm = asked.page_cache == PageCache::Warm;
        let (storages, write_back) = (&storages, asked.write_back);
        let rows = rows(&simulated, Prices { times, faults, storages, write_back, warm, machine })?;
        let answer = serde_json::json!({
            "rows": rows,
            "records": simulated.records,
            "footprint_bytes": simulated.footprint_bytes,
            "lifetimes": simulated.lifetimes,
            "peak_resident_bytes":
                (simulated.lifetimes && options.has_fractions()).then_some(simulated.whole_bytes),
            "options": asked.plain(),
        });
        Ok(answer.to_string())
    })
}

/// The options of `nearfar explain` as they are read, as JSON text.
#[pyfunction]
#[pyo3(signature = (*, options))]
fn explain_options(options: &Bound<'_, PyDict>) -> PyResult<String> {
    let asked: explain::Asked = crate::given::read(options)?;
    Ok(serde_json::Value::Object(asked.plain()).to_string())
}

/// Where the misses of the first page size and memory size of `options` come from; returns
/// `{"lifetimes", "total", "regions", "ranges", "sites"}` as JSON text. With the machine and the page
/// size of `on` TLB misses are those of its processor.
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
        let found = explain(&Reader::open(&trace)?, &options, machine, on_progress)?;
        Ok(serde_json::json!(found).to_string())
    })
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(paging, module)?)?;
    module.add_function(wrap_pyfunction!(explain_options, module)?)?;
    module.add_function(wrap_pyfunction!(paging_explain, module)?)
}
