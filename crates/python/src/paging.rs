//! `nearfar_study::paging` as one function: options in, JSON out.

use std::path::PathBuf;

use nearfar_kernel::replacement::REPLACEMENTS;
use nearfar_study::paging::explain::explain;
use nearfar_study::paging::{ClockInsert, MemorySize, Options, rows, simulate};
use nearfar_trace::{Error, Kind, KindSet, Reader};
use pyo3::prelude::*;

use crate::machine::Machine;
use crate::raise;

/// Names of the replacement policies, with a line on each.
#[pyfunction]
fn paging_replacements() -> Vec<(&'static str, &'static str)> {
    REPLACEMENTS.iter().map(|policy| (policy.name, policy.what)).collect()
}

/// Run the study; answers `{"rows": [...], "records", "footprint_bytes"}` as JSON text. `memory`
/// holds fractions and byte counts, told apart by the flag beside each.
#[pyfunction]
#[pyo3(signature = (
    trace, machine, *, page_sizes, memory, tlb, replacement, clock_insert_set, kinds,
    storages, write_back, threads, sample, max_memory, progress
))]
#[allow(clippy::too_many_arguments)]
fn paging(
    py: Python<'_>,
    trace: PathBuf,
    machine: &Machine,
    page_sizes: Vec<u64>,
    memory: Vec<(f64, bool)>,
    tlb: String,
    replacement: String,
    clock_insert_set: bool,
    kinds: Option<Vec<String>>,
    storages: Option<Vec<String>>,
    write_back: bool,
    threads: usize,
    sample: Option<f64>,
    max_memory: Option<u64>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let machine = machine.hardware();
    let times = machine.access_times().map_err(raise)?;
    let storages = match storages {
        Some(names) => names.iter().map(|name| machine.storage(name)).collect(),
        None => machine.storages(),
    }
    .map_err(raise)?;
    if storages.is_empty() {
        let place = format!("machine {}", machine.name);
        let fix = "choose another --machine, or add a [storage.NAME] section";
        return Err(raise(Error::input(place, "has no storage to page to", fix)));
    }
    let sizes = memory.into_iter().map(memory_size).collect();
    let mut options = asked(page_sizes, sizes, &tlb, &replacement, clock_insert_set, kinds)
        .and_then(|options| options.sampled(sample))
        .map_err(raise)?;
    options.threads = threads;
    options.max_memory = max_memory.unwrap_or(options.max_memory);
    crate::pulse::run(py, progress, move |pulse| {
        let reader = Reader::open(&trace)?;
        let simulated = simulate(&reader, &options, pulse)?;
        let rows = rows(&simulated, times, &storages, write_back)?;
        let answer = serde_json::json!({
            "rows": rows,
            "records": simulated.records,
            "footprint_bytes": simulated.footprint_bytes,
        });
        Ok(answer.to_string())
    })
}

fn memory_size((size, fraction): (f64, bool)) -> MemorySize {
    match fraction {
        true => MemorySize::Fraction(size),
        false => MemorySize::Bytes(size as u64),
    }
}

fn asked(
    page_sizes: Vec<u64>,
    memory: Vec<MemorySize>,
    tlb: &str,
    replacement: &str,
    clock_insert_set: bool,
    kinds: Option<Vec<String>>,
) -> nearfar_trace::Result<Options> {
    let mut set = KindSet::ALL;
    if let Some(names) = kinds {
        set = KindSet(0);
        for name in names {
            let Some(kind) = Kind::from_name(&name) else {
                let known: Vec<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
                let fix = format!("choose from {}", known.join(", "));
                return Err(Error::input("--kinds", format!("no kind {name:?}"), fix));
            };
            set.0 |= kind.bit();
        }
    }
    let insert = if clock_insert_set { ClockInsert::Set } else { ClockInsert::Clear };
    Options::new(page_sizes, memory, tlb, replacement, insert, set)
}

/// Where the misses of one page size and memory size come from; answers `{"total", "regions",
/// "ranges"}` as JSON text.
#[pyfunction]
#[pyo3(signature = (
    trace, *, page_bytes, memory, tlb, replacement, clock_insert_set, kinds, progress
))]
#[allow(clippy::too_many_arguments)]
fn paging_explain(
    py: Python<'_>,
    trace: PathBuf,
    page_bytes: u64,
    memory: (f64, bool),
    tlb: String,
    replacement: String,
    clock_insert_set: bool,
    kinds: Option<Vec<String>>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let memory = vec![memory_size(memory)];
    let options = asked(vec![page_bytes], memory, &tlb, &replacement, clock_insert_set, kinds)
        .map_err(raise)?;
    crate::pulse::run(py, progress, move |pulse| {
        let found = explain(&Reader::open(&trace)?, &options, pulse)?;
        Ok(serde_json::json!(found).to_string())
    })
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(paging_replacements, module)?)?;
    module.add_function(wrap_pyfunction!(paging, module)?)?;
    module.add_function(wrap_pyfunction!(paging_explain, module)?)
}
