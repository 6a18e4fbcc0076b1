//! The memory of a machine as the kernel numbers it: nodes, distances, and how fast each is from
//! each socket. Plain numbers, made from a machine file's `[topology]` and `[node.NAME]` sections.

use nearfar_trace::{Error, Result};

use crate::machine::{Machine, Node, NodeKind, Timing};
use crate::units::{Bandwidth, Sourced};

/// Bytes of a cache line.
pub const LINE: u64 = 64;
/// Bytes of a base page.
pub const PAGE: u64 = 4096;

/// A load or a store stream, sequential or random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Stores rather than loads.
    pub write: bool,
    /// In random order, a line at a time.
    pub random: bool,
}

/// How a node looks from a core: the medium and the link to it together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View {
    /// One line, random, idle, nanoseconds.
    pub read_ns: f64,
    /// One line of a sequential stream, nanoseconds; the random one where it is not known.
    pub sequential_ns: f64,
    /// Bytes per nanosecond (GB/s) of the whole node, many threads: sequential load, sequential
    /// store, random load, random store.
    bandwidth: [f64; 4],
    /// GB/s of loads and stores at once, where they hinder each other.
    pub mixed: Option<f64>,
}

impl View {
    /// GB/s of the whole node.
    pub fn bandwidth(&self, pattern: Pattern) -> f64 {
        self.bandwidth[usize::from(pattern.write) + 2 * usize::from(pattern.random)]
    }
}

/// A memory node.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryNode {
    /// The machine file's name of its section.
    pub section: String,
    /// What it is made of.
    pub kind: NodeKind,
    /// Bytes.
    pub bytes: u64,
    /// Bytes that firmware and kernel keep.
    pub reserved: u64,
    /// Bytes the medium moves at once.
    pub access_unit: u64,
    /// Modules that its pages are interleaved over.
    pub modules: u64,
    /// The socket it belongs to.
    pub socket: u64,
    /// Cores; 0 for memory alone.
    pub cpus: u64,
    /// From its own socket.
    pub local: View,
    /// From another one.
    pub remote: View,
}

/// All memory nodes, indexed by the kernel's numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// The machine's name.
    pub machine: String,
    /// The nodes.
    pub nodes: Vec<MemoryNode>,
    /// The firmware's distances, row by row.
    pub distances: Vec<Vec<u64>>,
    /// GB/s between two sockets, one direction.
    pub link: Option<f64>,
    /// Cache lines that a core can have under way.
    pub fill_buffers: u64,
    /// Nanoseconds of kernel work to allocate a page, where the machine file gives it.
    pub page_allocation_ns: Option<f64>,
}

impl Topology {
    /// How `node` looks from the cores of `from`.
    pub fn view(&self, from: usize, node: usize) -> &View {
        let target = &self.nodes[node];
        if self.nodes[from].socket == target.socket { &target.local } else { &target.remote }
    }

    /// The first node with cores: where a program starts unless it is told otherwise.
    pub fn first_cpu(&self) -> usize {
        self.nodes.iter().position(|node| node.cpus > 0).unwrap_or(0)
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
    /// The machine's memory nodes.
    ///
    /// Without `[topology]` every `[node.NAME]` is one node of a single socket, DRAM first, and
    /// distances are ten times the ratio of read latencies, as the firmware's are meant to be.
    ///
    /// # Errors
    /// Input errors: no node, a node without read or write bandwidth, or several sockets and a
    /// node without a `remote` section.
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
        let sockets = |index: usize| match &self.topology {
            Some(section) => section.sockets.value.0[index],
            None => 0,
        };
        let several = (1..names.len()).any(|index| sockets(index) != sockets(0));
        let mut nodes = Vec::with_capacity(names.len());
        for (index, name) in names.iter().enumerate() {
            let section = &self.node[*name];
            let local = self.view(name, "local", &section.local)?;
            let remote = match &section.remote {
                Some(timing) => self.view_beside(&local, timing),
                None if several => return Err(self.lacks(&format!("[node.{name}.remote]"))),
                None => local,
            };
            let cpus = match &self.topology {
                Some(section) => section.cpus.value.0[index],
                None if section.kind == NodeKind::Dram => cores,
                None => 0,
            };
            nodes.push(memory_node(name, section, sockets(index), cpus, local, remote));
        }
        let distances = match &self.topology {
            Some(section) => section.distances.value.0.clone(),
            None => flat_distances(&nodes),
        };
        let section = self.topology.as_ref();
        Ok(Topology {
            machine: self.name.clone(),
            nodes,
            distances,
            link: section.and_then(|s| s.link_bandwidth.as_ref()).map(per_ns),
            fill_buffers: self
                .cpu
                .as_ref()
                .and_then(|cpu| cpu.fill_buffers.as_ref())
                .map_or(10, |count| count.value.0),
            page_allocation_ns: self
                .cost
                .as_ref()
                .and_then(|cost| cost.page_allocation.as_ref())
                .map(|time| time.value.ns()),
        })
    }

    fn view(&self, name: &str, place: &str, timing: &Timing) -> Result<View> {
        let need = |bandwidth: &Option<Sourced<Bandwidth>>, key: &str| {
            bandwidth.as_ref().map(per_ns).ok_or_else(|| {
                Error::input(
                    format!("machine {}", self.name),
                    format!("node.{name}.{place} has no {key}"),
                    "add it to the machine file, or choose another machine",
                )
            })
        };
        let read = need(&timing.read_bandwidth, "read_bandwidth")?;
        let write = need(&timing.write_bandwidth, "write_bandwidth")?;
        let base = View {
            read_ns: timing.read_latency.value.ns(),
            sequential_ns: timing.read_latency.value.ns(),
            bandwidth: [read, write, read, write],
            mixed: None,
        };
        Ok(self.view_beside(&base, timing))
    }

    /// `base` with what `timing` says put in its place.
    fn view_beside(&self, base: &View, timing: &Timing) -> View {
        let given = |value: &Option<Sourced<Bandwidth>>, known: f64| {
            value.as_ref().map_or(known, |v| per_ns(v).min(f64::MAX))
        };
        let read = given(&timing.read_bandwidth, base.bandwidth[0]);
        let write = given(&timing.write_bandwidth, base.bandwidth[1]);
        let read_ns = timing.read_latency.value.ns();
        View {
            read_ns,
            sequential_ns: timing
                .sequential_read_latency
                .as_ref()
                .map_or(read_ns, |time| time.value.ns()),
            bandwidth: [
                read,
                write,
                given(&timing.random_read_bandwidth, base.bandwidth[2].min(read)),
                given(&timing.random_write_bandwidth, base.bandwidth[3].min(write)),
            ],
            mixed: timing.mixed_bandwidth.as_ref().map(per_ns),
        }
    }
}

fn per_ns(bandwidth: &Sourced<Bandwidth>) -> f64 {
    bandwidth.value.bytes_per_second() as f64 / 1e9
}

fn memory_node(
    name: &str,
    section: &Node,
    socket: u64,
    cpus: u64,
    local: View,
    remote: View,
) -> MemoryNode {
    MemoryNode {
        section: name.to_owned(),
        kind: section.kind,
        bytes: section.size.value.bytes(),
        reserved: section.reserved.as_ref().map_or(0, |size| size.value.bytes()),
        access_unit: section.access_unit.as_ref().map_or(LINE, |size| size.value.bytes()),
        modules: section.modules.as_ref().map_or(1, |count| count.value.0),
        socket,
        cpus,
        local,
        remote,
    }
}

/// Ten times the ratio of latencies, at least 11, on one socket.
fn flat_distances(nodes: &[MemoryNode]) -> Vec<Vec<u64>> {
    let base = nodes.first().map_or(1.0, |node| node.local.read_ns);
    let to = |node: &MemoryNode| ((10.0 * node.local.read_ns / base).round() as u64).clamp(11, 254);
    let row = |index: usize| {
        let one = |(other, node): (usize, &MemoryNode)| if other == index { 10 } else { to(node) };
        nodes.iter().enumerate().map(one).collect()
    };
    (0..nodes.len()).map(row).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::machine::builtin;

    fn optane() -> Topology {
        Machine::load("optane-4node", Path::new("")).unwrap().topology().unwrap()
    }

    #[test]
    fn the_papers_machine_is_as_described() {
        let topology = optane();
        assert_eq!(topology.nodes.len(), 8);
        let of = |kind| topology.nodes.iter().filter(move |node| node.kind == kind);
        assert_eq!(of(NodeKind::Dram).map(|n| n.bytes).sum::<u64>(), 384 << 30);
        assert!(of(NodeKind::Pmem).all(|n| n.cpus == 0 && n.modules == 3 && n.access_unit == 256));
        // Table 1, a module: sequential and random, load and store.
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
        assert_eq!(topology.view(0, 4).sequential_ns, 169.0);
        assert_eq!(topology.view(0, 6).sequential_ns, 223.0);
        assert_eq!(topology.label(6), "pmem6");
        assert_eq!(topology.first_cpu(), 0);
    }

    #[test]
    fn machines_without_the_section_have_one_socket() {
        let topology = Machine::load("cxl", Path::new("")).unwrap().topology().unwrap();
        assert_eq!(topology.distances, [[10, 18], [11, 10]]);
        assert_eq!((topology.nodes[0].kind, topology.nodes[1].cpus), (NodeKind::Dram, 0));
        let bare = Machine::load("desktop-hdd", Path::new("")).unwrap().topology();
        assert!(bare.unwrap_err().to_string().contains("bandwidth"));
    }

    #[test]
    fn contradictions_are_named() {
        let text = builtin().iter().find(|(name, _)| *name == "optane-4node").unwrap().1;
        for (from, to, part) in [
            ("\"pmem\", \"pmem\"]", "\"pmem\", \"pmen\"]", "no [node.pmen]"),
            ("[0, 0, 1, 1, 0, 0, 1, 1]", "[0, 0, 1, 1]", "has 4 items for 8 nodes"),
            ("[12, 12, 12, 12, 0,", "[0, 0, 0, 0, 0,", "gives no node a core"),
            ("[10, 11,", "[12, 11,", "10 for a node itself"),
            ("[10, 11,", "[10, -1,", "-1 does not lie within"),
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
