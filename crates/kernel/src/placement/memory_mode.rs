//! Memory mode: DRAM is a direct-mapped cache of the persistent memory behind the same controller.
//! The kernel sees nodes with the DRAM's numbers and the persistent memory's sizes.

use nearfar_hardware::Topology;
use nearfar_hardware::machine::NodeKind;
use nearfar_hardware::node::PAGE;
use nearfar_trace::{Error, Result};

use super::{Group, Memory, Mode, Policy, in_order, page_structs, route, unreserved_pages};

pub struct MemoryMode;

impl Mode for MemoryMode {
    fn name(&self) -> &'static str {
        "memory-mode"
    }

    fn summary(&self) -> &'static str {
        "DRAM is a cache of persistent memory and adds no capacity"
    }

    fn memories(&self, topology: &Topology) -> Result<Vec<Memory>> {
        let nodes_of = |kind| {
            let nodes = &topology.nodes;
            (0..nodes.len()).filter(move |node| nodes[*node].kind == kind)
        };
        let refuse = |what: String| {
            Error::input(
                format!("machine {}", topology.machine),
                format!("cannot be in memory mode: {what}"),
                "choose another --mode or --machine",
            )
        };
        let mut memories = Vec::new();
        for dram in nodes_of(NodeKind::Dram) {
            let is_behind = |pmem: &usize| {
                let distance = |dram: &usize| topology.distances[*pmem][*dram];
                nodes_of(NodeKind::Dram).min_by_key(distance) == Some(dram)
            };
            let behind: Vec<usize> = nodes_of(NodeKind::Pmem).filter(is_behind).collect();
            let [pmem] = behind[..] else {
                let count = behind.len();
                let what = format!("{count} nodes of persistent memory behind node {dram}, not 1");
                return Err(refuse(what));
            };
            // Assumption: firmware reserves the sum of what it reserves of the two nodes in other modes.
            // Page structures are on the node itself.
            let firmware = topology.nodes[dram].reserved / PAGE;
            let reserved = firmware + page_structs(topology.nodes[pmem].bytes);
            memories.push(Memory {
                node: dram,
                backing: pmem,
                cache: Some(dram),
                free: unreserved_pages(topology, pmem).saturating_sub(reserved),
                movable: false,
            });
        }
        if nodes_of(NodeKind::Cxl).next().is_some() {
            return Err(refuse("it also has CXL memory".into()));
        }
        Ok(memories)
    }

    fn order(
        &self,
        topology: &Topology,
        memories: &[Memory],
        from: usize,
        _: &Policy,
    ) -> Vec<Group> {
        vec![in_order(route(topology, memories, from))]
    }
}
