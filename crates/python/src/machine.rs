//! Machine descriptions, for `nearfar/machine.py`. Machines cross as JSON text.

use std::path::PathBuf;

use nearfar_hardware::Machine;
use nearfar_hardware::machine::{builtin, schema};
use nearfar_trace::Error;
use pyo3::prelude::*;

use crate::raise;

/// Names and texts of the built-in machines.
#[pyfunction]
fn machine_builtin() -> Vec<(&'static str, &'static str)> {
    builtin().to_vec()
}

/// JSON Schema of a machine file.
#[pyfunction]
fn machine_schema() -> String {
    schema()
}

/// A machine as JSON text, by path or by name (looked for in `search`, then built in).
#[pyfunction]
fn machine_load(path_or_name: &str, search: PathBuf) -> PyResult<String> {
    to_json(&Machine::load(path_or_name, &search).map_err(raise)?)
}

/// A machine as JSON text, from the text of its file.
#[pyfunction]
fn machine_parse(name: &str, text: &str) -> PyResult<String> {
    to_json(&Machine::parse(name, text).map_err(raise)?)
}

/// (tlb, dram, second-level tlb or None), nanoseconds.
#[pyfunction]
fn machine_access_times(name: &str, text: &str) -> PyResult<(f64, f64, Option<f64>)> {
    let times = restore(name, text)?.access_times().map_err(raise)?;
    Ok((times.tlb_ns, times.dram_ns, times.stlb_ns))
}

/// (read, write) nanoseconds for each page size.
#[pyfunction]
fn machine_io(
    name: &str,
    text: &str,
    storage: &str,
    page_bytes: Vec<u64>,
) -> PyResult<(Vec<f64>, Vec<f64>)> {
    let storage = restore(name, text)?.storage(storage).map_err(raise)?;
    Ok((
        page_bytes.iter().map(|bytes| storage.io_ns(*bytes)).collect(),
        page_bytes.iter().map(|bytes| storage.write_ns(*bytes)).collect(),
    ))
}

fn to_json(machine: &Machine) -> PyResult<String> {
    serde_json::to_string(machine)
        .map_err(|e| raise(Error::input(&machine.name, e.to_string(), "")))
}

/// The machine that [`to_json`] wrote.
pub(crate) fn restore(name: &str, text: &str) -> PyResult<Machine> {
    let mut machine: Machine =
        serde_json::from_str(text).map_err(|e| raise(Error::input(name, e.to_string(), "")))?;
    name.clone_into(&mut machine.name);
    Ok(machine)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(machine_builtin, module)?)?;
    module.add_function(wrap_pyfunction!(machine_schema, module)?)?;
    module.add_function(wrap_pyfunction!(machine_load, module)?)?;
    module.add_function(wrap_pyfunction!(machine_parse, module)?)?;
    module.add_function(wrap_pyfunction!(machine_access_times, module)?)?;
    module.add_function(wrap_pyfunction!(machine_io, module)?)?;
    Ok(())
}
