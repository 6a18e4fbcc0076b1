//! Python functions for `nearfar_study::numa`, from options to JSON text.

use std::path::PathBuf;

use nearfar_hardware::machine::NodeKind;
use nearfar_kernel::placement::{MemoryMode, Mode as _, bandwidth_weights, fallback_orders};
use nearfar_schema::Options as _;
use nearfar_study::numa::options::{Order, modes, node};
use nearfar_study::numa::{
    AllocOptions, AllocRequest, Guest, Load, PairOptions, PairRequest, PlanRequest, RunRequest,
    Stream, alloc, pair, run,
};
use nearfar_trace::{Error, Reader};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::json;

use crate::machine::Machine;
use crate::raise;

/// Nodes, distances, possible modes (memory set-up and order of allocation) and the kernel's fallback orders
/// of a machine, as JSON text.
#[pyfunction]
pub(crate) fn numa_topology(machine: &Machine) -> PyResult<String> {
    let topology = machine.hardware().topology().map_err(raise)?;
    let all_nodes: Vec<usize> = (0..topology.nodes.len()).collect();
    // Linux adds nodes that are not DRAM after boot, and then rebuilds the fallback orders.
    let added = topology.nodes.iter().any(|node| node.kind != NodeKind::Dram);
    // `load_ns(true)`: random loads, not sequential ones.
    let nodes: Vec<_> = topology
        .nodes
        .iter()
        .enumerate()
        .map(|(number, node)| {
            json!({
                "node": number,
                "label": topology.label(number),
                "kind": node.kind,
                "bytes": node.bytes,
                "socket": topology.sockets[number],
                "cpus": topology.cpus[number],
                "modules": node.modules,
                "local_read_ns": node.local.load_ns(true),
                "remote_read_ns": node.remote.unwrap_or(node.local).load_ns(true),
            })
        })
        .collect();
    let result = json!({
        "machine": topology.machine,
        "nodes": nodes,
        "distances": topology.distances,
        "modes": modes(None, &topology).iter().map(|mode| mode.name()).collect::<Vec<_>>(),
        "fallback": fallback_orders(&topology.distances, &topology.cpus, &all_nodes, added),
    });
    Ok(result.to_string())
}

/// Allocations of each requested size in each mode. Returns `{"rows", "options"}` as JSON text.
#[pyfunction]
#[pyo3(signature = (machine, *, options))]
pub(crate) fn numa_alloc(machine: &Machine, options: &Bound<'_, PyDict>) -> PyResult<String> {
    let topology = machine.hardware().topology().map_err(raise)?;
    let request: AllocRequest = crate::given::read(options)?;
    let options = AllocOptions::of_alloc(&request, &topology);
    let mut rows = Vec::new();
    for mode in modes(request.mode.as_ref(), &topology) {
        for size in &request.size.0 {
            rows.push(alloc(&topology, mode, size.0, &options).map_err(raise)?);
        }
    }
    Ok(json!({ "rows": rows, "options": request.plain() }).to_string())
}

/// Run a trace, or a stream over `bytes` if `trace` is None, in each mode. Returns `{"rows", "options"}` as
/// JSON text.
#[pyfunction]
#[pyo3(signature = (machine, *, trace, bytes, options, progress))]
pub(crate) fn numa_run(
    py: Python<'_>,
    machine: &Machine,
    trace: Option<PathBuf>,
    bytes: u64,
    options: &Bound<'_, PyDict>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let request: RunRequest = crate::given::read(options)?;
    let described = machine.hardware();
    let topology = described.topology().map_err(raise)?;
    let caches = match described.cache.is_empty() {
        true => None,
        false => Some(described.caches().map_err(raise)?),
    };
    let options = AllocOptions::of_run(&request, &topology);
    let shuffle = request.shuffle.then_some(request.seed.0);
    let random = request.pattern == Order::Random;
    crate::progress::run(py, progress, move |on_progress| {
        let reader = trace.map(|path| Reader::open(&path)).transpose()?;
        let load = match &reader {
            Some(reader) => Load::Trace(reader, caches),
            None => Load::Stream(Stream { bytes, random, writes: request.writes.0 }),
        };
        let rows = modes(request.mode.as_ref(), &topology)
            .into_iter()
            .map(|mode| run(&topology, mode, &load, &options, shuffle, on_progress))
            .collect::<Result<Vec<_>, Error>>()?;
        Ok(json!({ "rows": rows, "options": request.plain() }).to_string())
    })
}

/// Run two guests in memory mode. A guest without a trace loads from its `bytes` uniformly at random.
/// Returns `{"rows", "options"}` as JSON text.
#[pyfunction]
#[pyo3(signature = (machine, *, traces, bytes, options, progress))]
pub(crate) fn numa_pair(
    py: Python<'_>,
    machine: &Machine,
    traces: [Option<PathBuf>; 2],
    bytes: [u64; 2],
    options: &Bound<'_, PyDict>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let request: PairRequest = crate::given::read(options)?;
    let topology = machine.hardware().topology().map_err(raise)?;
    let from = node(request.from_, &topology);
    let memories = MemoryMode.memories(&topology).map_err(raise)?;
    let options = PairOptions {
        overlaps: request.overlap.0.iter().map(|share| share.0).collect(),
        cache_bytes: request.cache.map(|bytes| bytes.0),
        seed: request.seed.0,
    };
    crate::progress::run(py, progress, move |on_progress| {
        let Some(memory) = memories.iter().find(|memory| memory.node == from) else {
            let what = format!("no node {from} in memory mode");
            return Err(Error::input("--from", what, "choose a node with cores"));
        };
        let open = |trace: &Option<PathBuf>| trace.as_ref().map(|p| Reader::open(p)).transpose();
        let readers = [open(&traces[0])?, open(&traces[1])?];
        let guest = |number: usize| match &readers[number] {
            Some(reader) => Guest::Trace(reader),
            None => Guest::Uniform(bytes[number]),
        };
        let guests = [guest(0), guest(1)];
        let both = [&guests[0], &guests[1]];
        let rows = pair(&topology, from, memory, both, &options, on_progress)?;
        Ok(json!({ "rows": rows, "options": request.plain() }).to_string())
    })
}

/// The parsed options of a plan, as JSON text.
#[pyfunction]
#[pyo3(signature = (*, options))]
pub(crate) fn numa_plan(options: &Bound<'_, PyDict>) -> PyResult<String> {
    let request: PlanRequest = crate::given::read(options)?;
    Ok(json!(request.plain()).to_string())
}

/// Interleaving weights of `nodes`, in proportion to their bandwidth for cores of node `origin` (None: the
/// first node with cores). `writes`: share of the bytes that is stored.
#[pyfunction]
#[pyo3(signature = (machine, *, nodes, origin, writes))]
pub(crate) fn numa_weights(
    machine: &Machine,
    nodes: Vec<usize>,
    origin: Option<usize>,
    writes: f64,
) -> PyResult<Vec<u64>> {
    let topology = machine.hardware().topology().map_err(raise)?;
    let from = origin.unwrap_or(topology.first_cpu());
    if let Some(node) = nodes.iter().chain([&from]).find(|node| **node >= topology.nodes.len()) {
        return Err(raise(Error::input("--nodes", format!("no node {node}"), "")));
    }
    Ok(bandwidth_weights(&topology, from, &nodes, writes))
}
