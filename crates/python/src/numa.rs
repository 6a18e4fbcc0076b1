//! `nearfar_study::numa` as functions: options in, JSON out.

use std::path::PathBuf;

use nearfar_hardware::Topology;
use nearfar_hardware::machine::NodeKind;
use nearfar_kernel::placement::{
    Allocator, MODES, Policy, bandwidth_weights, fallback_orders, mode,
};
use nearfar_study::numa::{AllocOptions, Guest, Load, PairOptions, Stream, alloc, pair, run};
use nearfar_trace::{Error, Reader};
use pyo3::prelude::*;

use crate::machine::Machine;
use crate::raise;

/// Names of the modes of placement, with a line on each.
#[pyfunction]
fn numa_modes() -> Vec<(&'static str, &'static str)> {
    MODES.iter().map(|mode| (mode.name(), mode.summary())).collect()
}

/// Nodes, distances and the kernel's fallback orders of a machine, as JSON text.
#[pyfunction]
fn numa_topology(machine: &Machine) -> PyResult<String> {
    let topology = machine.hardware().topology().map_err(raise)?;
    let shown: Vec<usize> = (0..topology.nodes.len()).collect();
    // Nodes of other memory than DRAM are added to the running system.
    let added = topology.nodes.iter().any(|node| node.kind != NodeKind::Dram);
    let nodes: Vec<_> = topology
        .nodes
        .iter()
        .enumerate()
        .map(|(number, node)| {
            serde_json::json!({
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
    let answer = serde_json::json!({
        "machine": topology.machine,
        "nodes": nodes,
        "distances": topology.distances,
        "fallback": fallback_orders(&topology.distances, &topology.cpus, &shown, added),
    });
    Ok(answer.to_string())
}

/// One allocation as JSON text.
#[pyfunction]
#[pyo3(signature = (
    machine, *, mode_name, size, vmalloc, nodes, weights, origin, threads, dirty_cache
))]
#[allow(clippy::too_many_arguments)]
fn numa_alloc(
    machine: &Machine,
    mode_name: &str,
    size: u64,
    vmalloc: bool,
    nodes: Vec<usize>,
    weights: Vec<u64>,
    origin: Option<usize>,
    threads: u64,
    dirty_cache: bool,
) -> PyResult<String> {
    let topology = machine.hardware().topology().map_err(raise)?;
    let mut options = options(&topology, nodes, weights, origin, threads);
    options.dirty_cache = dirty_cache;
    if vmalloc {
        options.allocator = Allocator::Vmalloc;
    }
    let mode = mode(mode_name).map_err(raise)?;
    json(&alloc(&topology, mode, size, &options).map_err(raise)?)
}

/// What a trace, or a stream of `bytes`, sees under a mode, as JSON text.
#[pyfunction]
#[pyo3(signature = (
    machine, *, mode_name, trace, bytes, random, writes, nodes, weights, origin,
    threads, shuffle, progress
))]
#[allow(clippy::too_many_arguments)]
fn numa_run(
    py: Python<'_>,
    machine: &Machine,
    mode_name: &str,
    trace: Option<PathBuf>,
    bytes: u64,
    random: bool,
    writes: f64,
    nodes: Vec<usize>,
    weights: Vec<u64>,
    origin: Option<usize>,
    threads: u64,
    shuffle: Option<u64>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let described = machine.hardware();
    let topology = described.topology().map_err(raise)?;
    let caches = match described.cache.is_empty() {
        true => None,
        false => Some(described.caches().map_err(raise)?),
    };
    let options = options(&topology, nodes, weights, origin, threads);
    let mode = mode(mode_name).map_err(raise)?;
    let row = crate::progress::run(py, progress, move |pulse| {
        let reader = trace.map(|path| Reader::open(&path)).transpose()?;
        let load = match &reader {
            Some(reader) => Load::Trace(reader, caches),
            None => Load::Stream(Stream { bytes, random, writes }),
        };
        run(&topology, mode, &load, &options, shuffle, pulse)
    })?;
    json(&row)
}

/// Two guests in memory mode, each a trace or bytes, as JSON text.
#[pyfunction]
#[pyo3(signature = (
    machine, *, traces, bytes, overlaps, cache_bytes, origin, seed, progress
))]
#[allow(clippy::too_many_arguments)]
fn numa_pair(
    py: Python<'_>,
    machine: &Machine,
    traces: [Option<PathBuf>; 2],
    bytes: [u64; 2],
    overlaps: Vec<f64>,
    cache_bytes: Option<u64>,
    origin: Option<usize>,
    seed: u64,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let topology = machine.hardware().topology().map_err(raise)?;
    let from = origin.unwrap_or(topology.first_cpu());
    let memories = mode("memory-mode").and_then(|mode| mode.memories(&topology)).map_err(raise)?;
    let rows = crate::progress::run(py, progress, move |pulse| {
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
        pair(&topology, from, memory, both, &PairOptions { overlaps, cache_bytes, seed }, pulse)
    })?;
    json(&rows)
}

/// Weights in proportion to bandwidth, for nodes seen from `origin`.
#[pyfunction]
#[pyo3(signature = (machine, *, nodes, origin, writes))]
fn numa_weights(
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

fn options(
    topology: &Topology,
    nodes: Vec<usize>,
    weights: Vec<u64>,
    origin: Option<usize>,
    threads: u64,
) -> AllocOptions {
    AllocOptions {
        allocator: Allocator::User,
        policy: Policy { nodes, weights },
        from: origin.unwrap_or(topology.first_cpu()),
        threads,
        dirty_cache: true,
    }
}

fn json(value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|e| raise(Error::input("numa", e.to_string(), "")))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(numa_modes, module)?)?;
    module.add_function(wrap_pyfunction!(numa_topology, module)?)?;
    module.add_function(wrap_pyfunction!(numa_alloc, module)?)?;
    module.add_function(wrap_pyfunction!(numa_run, module)?)?;
    module.add_function(wrap_pyfunction!(numa_pair, module)?)?;
    module.add_function(wrap_pyfunction!(numa_weights, module)?)
}
