//! The kernel's memory nodes of a machine: distances, and performance from each socket. Derived
//! from a machine file's `[topology]` and `[node.NAME]` sections.

use nearfar_trace::Result;

use crate::machine::{Machine, NodeKind};
use crate::node::{NodeModel, View, per_ns};

/// All memory nodes, indexed by the kernel's node numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    pub machine: String,
    pub nodes: Vec<NodeModel>,
    /// The socket of each node.
    pub sockets: Vec<u64>,
    /// Cores of each node; 0 if it has only memory.
    pub cpus: Vec<u64>,
    /// The firmware's distances (SLIT), a row for each node.
    pub distances: Vec<Vec<u64>>,
    /// GB/s between two sockets, one direction.
    pub link: Option<f64>,
    /// Outstanding cache lines per core.
    pub fill_buffers: u64,
    /// Nanoseconds of kernel work to allocate a page, if the machine file has it.
    pub page_allocation_ns: Option<f64>,
}

impl Topology {
    /// Performance of `node` from the cores of `from`.
    pub fn view(&self, from: usize, node: usize) -> &View {
        let target = &self.nodes[node];
        let far = target.remote.as_ref().filter(|_| !self.same_socket(from, node));
        far.unwrap_or(&target.local)
    }

    /// Whether two nodes belong to one socket.
    pub fn same_socket(&self, one: usize, other: usize) -> bool {
        self.sockets[one] == self.sockets[other]
    }

    /// The first node with cores, where programs start by default.
    pub fn first_cpu(&self) -> usize {
        self.cpus.iter().position(|count| *count > 0).unwrap_or(0)
    }

    /// Kind and number, such as `pmem4`, for messages and tables.
    pub fn label(&self, node: usize) -> String {
        let kind = match self.nodes[node].kind {
            NodeKind::Dram => "dram",
            NodeKind::Pmem => "pmem",
            NodeKind::Cxl => "cxl",
        };
        format!("{kind}{node}")
    }
}

impl Machine {
    /// The memory nodes. Without `[topology]`, every `[node.NAME]` is a node of a single socket, DRAM
    /// first, and distances are ten times the ratio of read latencies, as ACPI defines them.
    ///
    /// # Errors
    /// There are no nodes, a node has no read or write bandwidth, or there are several sockets and
    /// a node has no `remote` section.
    pub fn topology(&self) -> Result<Topology> {
        if self.node.is_empty() {
            return Err(self.lacks("[node.NAME]"));
        }
        let names: Vec<&str> = match &self.topology {
            Some(section) => section.nodes.iter().map(String::as_str).collect(),
            None => {
                let mut names: Vec<&str> = self.node.keys().map(String::as_str).collect();
                names.sort_by_key(|name| self.node[*name].kind != NodeKind::Dram);
                names
            }
        };
        let cores = self.cpu.as_ref().map_or(1, |cpu| cpu.cores.value.0);
        let nodes = names.iter().map(|name| self.node_model(name, &self.node[*name]));
        let nodes = nodes.collect::<Result<Vec<_>>>()?;
        let default_cores = |node: &NodeModel| if node.kind == NodeKind::Dram { cores } else { 0 };
        let (sockets, cpus) = match &self.topology {
            Some(section) => (section.sockets.value.0.clone(), section.cpus.value.0.clone()),
            None => (vec![0; nodes.len()], nodes.iter().map(default_cores).collect()),
        };
        let local_only = nodes.iter().find(|node| node.remote.is_none());
        if let Some(node) = local_only.filter(|_| sockets.iter().any(|s| *s != sockets[0])) {
            return Err(self.lacks(&format!("[node.{}.remote]", node.name)));
        }
        let distances = match &self.topology {
            Some(section) => section.distances.value.0.clone(),
            None => flat_distances(&nodes),
        };
        let section = self.topology.as_ref();
        Ok(Topology {
            machine: self.name.clone(),
            nodes,
            sockets,
            cpus,
            distances,
            link: section.and_then(|s| s.link_bandwidth.as_ref()).map(per_ns),
            fill_buffers: self.fill_buffers(),
            page_allocation_ns: self
                .cost
                .as_ref()
                .and_then(|cost| cost.page_allocation.as_ref())
                .map(|time| time.value.ns()),
        })
    }
}

/// Distances on one socket: ten times the ratio of a node's latency to that of the first node. ACPI
/// reserves 10 for a node itself and 255 for no connection, which leaves 11 to 254.
fn flat_distances(nodes: &[NodeModel]) -> Vec<Vec<u64>> {
    let base = nodes.first().map_or(1.0, |node| node.local.read.latency_ps);
    let to = |node: &NodeModel| {
        ((10.0 * node.local.read.latency_ps / base).round() as u64).clamp(11, 254)
    };
    let row = |index: usize| {
        let one = |(other, node): (usize, &NodeModel)| if other == index { 10 } else { to(node) };
        nodes.iter().enumerate().map(one).collect()
    };
    (0..nodes.len()).map(row).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::machine::builtin;
    use crate::node::Pattern;

    fn optane() -> Topology {
        Machine::load("optane-4node", Path::new("")).unwrap().topology().unwrap()
    }

    #[test]
    fn optane_4node_is_as_the_alius_paper_describes() {
        let topology = optane();
        // Four nodes with cores and DRAM, and four with persistent memory.
        assert_eq!(topology.nodes.len(), 8);
        let of = |kind| topology.nodes.iter().filter(move |node| node.kind == kind);
        assert_eq!(of(NodeKind::Dram).map(|n| n.bytes).sum::<u64>(), 384 << 30);
        assert!(of(NodeKind::Pmem).all(|n| n.modules == 3 && n.access_unit == 256));
        assert_eq!(topology.cpus, [12, 12, 12, 12, 0, 0, 0, 0]);
        // Table 1: GB/s of a module, sequential and random loads, then stores.
        let pmem = &topology.nodes[4];
        let module = |write, random| pmem.local.bandwidth(Pattern { write, random }) / 3.0;
        for (found, published) in [
            (module(false, false), 7.6),
            (module(false, true), 2.4),
            (module(true, false), 2.3),
            (module(true, true), 0.5),
        ] {
            assert!((found - published).abs() < 1e-9, "{found} {published}");
        }
        assert_eq!(topology.view(0, 4).load_ns(false), 169.0);
        assert_eq!(topology.view(0, 6).load_ns(false), 223.0);
        assert_eq!(topology.label(6), "pmem6");
        assert_eq!(topology.first_cpu(), 0);
    }

    #[test]
    fn machines_without_topology_section_have_one_socket() {
        let topology = Machine::load("cxl", Path::new("")).unwrap().topology().unwrap();
        assert_eq!(topology.distances, [[10, 18], [11, 10]]);
        assert_eq!((topology.nodes[0].kind, topology.cpus[1]), (NodeKind::Dram, 0));
        let bare = Machine::load("desktop-hdd", Path::new("")).unwrap().topology();
        assert!(bare.unwrap_err().to_string().contains("bandwidth"));
    }

    #[test]
    fn contradictory_keys_are_refused() {
        let text = builtin().iter().find(|(name, _)| *name == "optane-4node").unwrap().1;
        for (from, to, part) in [
            ("\"pmem\", \"pmem\"]", "\"pmem\", \"pmen\"]", "no [node.pmen]"),
            ("[0, 0, 1, 1, 0, 0, 1, 1]", "[0, 0, 1, 1]", "has 4 items for 8 nodes"),
            ("[12, 12, 12, 12, 0,", "[0, 0, 0, 0, 0,", "gives no node a core"),
            ("[10, 11,", "[12, 11,", "10 for a node itself"),
            ("[10, 11,", "[10, -1,", "-1 is not within"),
            ("\"1GiB\"", "\"4TiB\"", "less than the node's size"),
        ] {
            assert!(text.contains(from), "{from}");
            let error = Machine::parse("x", &text.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let error = Machine::parse("x", &text.replace("[node.dram.remote]", "[node.spare.local]"));
        assert!(error.is_err());
    }
}
