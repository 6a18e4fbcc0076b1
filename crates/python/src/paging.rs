//! `nearfar_study::paging` as one function: options in, JSON out.

use std::path::{Path, PathBuf};

use nearfar_hardware::machine::{FaultTimes, remedy};
use nearfar_hardware::processor::Processor;
use nearfar_hardware::{AccessTimes, Machine as Hardware, Storage};
use nearfar_schema::Options as _;
use nearfar_study::lifetimes;
use nearfar_study::paging::explain::{self, OnMachine, explain};
use nearfar_study::paging::{Options, PageCache, Prices, Request, StudyPart, View, rows};
use nearfar_trace::{Error, Reader, Result};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::machine::Machine;
use crate::raise;

/// A machine of a study: what things take there.
struct Host {
    name: String,
    times: AccessTimes,
    storages: Vec<Storage>,
    processor: Option<Processor>,
    faults: Option<Result<FaultTimes>>,
}

/// The storages of a machine that a study is of: all, or those that were named. Of several machines each
/// has its own.
fn storages(machine: &Hardware, request: &Request, alone: bool) -> Result<Vec<Storage>> {
    let found = match &request.storage {
        Some(names) => {
            let own = names.0.iter().filter(|name| alone || machine.storage.contains_key(*name));
            own.map(|name| machine.storage(name)).collect::<Result<_>>()?
        }
        None => machine.storages()?,
    };
    if let (true, Some(names)) = (found.is_empty(), &request.storage) {
        let what = format!("machine {} has no {}", machine.name, names.0.join(" or "));
        let fix = "of several machines each has its own; leave it out, or give one --machine";
        return Err(Error::input("--storage", what, fix));
    }
    if found.is_empty() {
        let place = format!("machine {}", machine.name);
        let fix = remedy(&machine.name, "add [storage.NAME]", |one| !one.storage.is_empty());
        return Err(Error::input(place, "has no storage to page to", fix));
    }
    Ok(found)
}

/// A study as it was request for, checked.
struct Study {
    request: Request,
    options: Options,
    hosts: Vec<Host>,
}

impl Study {
    fn read(machines: &[PyRef<'_, Machine>], options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let mut request: Request = crate::given::read(options)?;
        // Times of two views are no comparison.
        let spends =
            |machine: &PyRef<'_, Machine>| request.view_on(machine.hardware()) == View::Machine;
        let view = if machines.iter().all(spends) { View::Machine } else { View::Paper };
        request.view = Some(view);
        let read = |machine: &Hardware| {
            let times = machine.access_times()?;
            let storages = storages(machine, &request, machines.len() == 1)?;
            Ok((times, storages))
        };
        let read: Result<Vec<_>> =
            machines.iter().map(|machine| read(machine.hardware())).collect();
        let read = read.map_err(raise)?;
        let options = Options::try_from(&request).map_err(raise)?;
        let mut hosts = Vec::new();
        for (machine, (times, storages)) in machines.iter().zip(read) {
            let machine = machine.hardware();
            let nested = request.nested.map(|size| size.0);
            let processor = (view == View::Machine).then(|| machine.processor(nested)).transpose();
            hosts.push(Host {
                name: machine.name.clone(),
                times,
                storages,
                processor: processor.map_err(raise)?,
                faults: options.lifetimes.then(|| machine.fault_times()),
            });
        }
        Ok(Self { request, options, hosts })
    }

    /// The prices of faults on each host, where pages end.
    fn faults(&mut self, lives: bool) -> Result<Vec<Option<FaultTimes>>> {
        let faults = |host: &mut Host| host.faults.take().filter(|_| lives).transpose();
        self.hosts.iter_mut().map(faults).collect()
    }

    /// Count a trace, and the prices of faults on each host.
    fn count(
        &mut self,
        trace: &Path,
        on_progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<(StudyPart, Vec<Option<FaultTimes>>)> {
        let reader = Reader::open(trace)?;
        let lives = self.options.lifetimes && lifetimes::known(&reader)?;
        // Refused before hours of simulation.
        let faults = self.faults(lives)?;
        let processors = self.hosts.iter().map(|host| host.processor.as_ref());
        Ok((StudyPart::new(&reader, &self.options, processors, on_progress)?, faults))
    }

    /// The answer of [`paging`].
    fn answer(&self, counted: &StudyPart, faults: Vec<Option<FaultTimes>>) -> Result<String> {
        let Self { request, options, hosts } = self;
        let simulated = &counted.simulated;
        let mut found = Vec::new();
        for ((host, faults), times) in hosts.iter().zip(faults).zip(&counted.times) {
            found.extend(rows(
                simulated,
                Prices {
                    name: &host.name,
                    times: host.times,
                    faults,
                    storages: &host.storages,
                    write_back: request.write_back,
                    warm: request.page_cache == PageCache::Warm,
                    machine: times.as_deref(),
                },
            )?);
        }
        let left_out = simulated.left_out.iter();
        let left_out: Vec<_> = left_out.map(|size| (size.page_bytes, size.min_rate)).collect();
        let answer = serde_json::json!({
            "rows": found,
            "records": simulated.records,
            "footprint_bytes": simulated.footprint_bytes,
            "lifetimes": simulated.lifetimes,
            "peak_resident_bytes":
                (simulated.lifetimes && options.has_fractions()).then_some(simulated.whole_bytes),
            "left_out": left_out,
            "too_few_frames": simulated.too_few_frames,
            "options": request.plain(),
        });
        Ok(answer.to_string())
    }
}

/// Run the study on each machine; returns `{"rows": [...], "records", "footprint_bytes", "lifetimes",
/// "peak_resident_bytes", "left_out", "too_few_frames", "options"}` as JSON text: the options as they were
/// read, the peak resident set where memory sizes are parts of it, the page sizes that a sample has too few
/// pages of, each with the least rate that would do, and the page and memory sizes that are not simulated, as
/// the memory has too few frames. What does not depend on the machine is counted once.
#[pyfunction]
#[pyo3(signature = (trace, machines, *, options, progress))]
fn paging(
    py: Python<'_>,
    trace: PathBuf,
    machines: Vec<PyRef<'_, Machine>>,
    options: &Bound<'_, PyDict>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let mut study = Study::read(&machines, options)?;
    crate::progress::run(py, progress, move |on_progress| {
        let (counted, faults) = study.count(&trace, on_progress)?;
        study.answer(&counted, faults)
    })
}

/// What the study is request, without running it: `{"options", "page_sizes"}` as JSON text, the options
/// as they are read and the page sizes in bytes that rows are of.
#[pyfunction]
#[pyo3(signature = (machines, *, options))]
fn paging_options(
    machines: Vec<PyRef<'_, Machine>>,
    options: &Bound<'_, PyDict>,
) -> PyResult<String> {
    let Study { request, options, .. } = Study::read(&machines, options)?;
    let answer = serde_json::json!({"options": request.plain(), "page_sizes": options.page_sizes});
    Ok(answer.to_string())
}

/// Count some page sizes of the study alone, as JSON text for [`paging_joined`].
#[pyfunction]
#[pyo3(signature = (trace, machines, *, options, only))]
fn paging_part(
    py: Python<'_>,
    trace: PathBuf,
    machines: Vec<PyRef<'_, Machine>>,
    options: &Bound<'_, PyDict>,
    only: Vec<u64>,
) -> PyResult<String> {
    let mut study = Study::read(&machines, options)?;
    study.options = study.options.only(&only);
    crate::progress::run(py, None, move |on_progress| {
        let (counted, _) = study.count(&trace, on_progress)?;
        Ok(serde_json::json!(counted).to_string())
    })
}

/// What [`paging`] returns, of parts that have every page size between them, each once.
#[pyfunction]
#[pyo3(signature = (machines, *, options, parts))]
fn paging_joined(
    machines: Vec<PyRef<'_, Machine>>,
    options: &Bound<'_, PyDict>,
    parts: Vec<String>,
) -> PyResult<String> {
    let mut study = Study::read(&machines, options)?;
    let damaged =
        |error: serde_json::Error| Error::input("parts", error.to_string(), "count them again");
    let parts: Result<Vec<StudyPart>> =
        parts.iter().map(|part| serde_json::from_str(part).map_err(damaged)).collect();
    let answer = parts.and_then(|parts| {
        let counted = StudyPart::join(parts)?;
        let faults = study.faults(counted.simulated.lifetimes)?;
        study.answer(&counted, faults)
    });
    answer.map_err(raise)
}

/// The options of `nearfar explain` as they are read, as JSON text.
#[pyfunction]
#[pyo3(signature = (*, options))]
fn explain_options(options: &Bound<'_, PyDict>) -> PyResult<String> {
    let request: explain::Request = crate::given::read(options)?;
    Ok(serde_json::Value::Object(request.plain()).to_string())
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
    let request: Request = crate::given::read(options)?;
    let nested = request.nested.map(|size| size.0);
    let on = on
        .map(|(machine, page_bytes)| Ok((machine.hardware().processor(nested)?, page_bytes)))
        .transpose()
        .map_err(raise)?;
    let options = Options::try_from(&request).map_err(raise)?;
    crate::progress::run(py, progress, move |on_progress| {
        let machine =
            on.as_ref().map(|&(ref processor, page_bytes)| OnMachine { processor, page_bytes });
        let found = explain(&Reader::open(&trace)?, &options, machine, on_progress)?;
        Ok(serde_json::json!(found).to_string())
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
