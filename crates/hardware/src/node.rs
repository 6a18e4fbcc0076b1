//! Models of memory nodes: kind, size, and latency and bandwidth from a local or remote core. Also
//! the costs of the kernel's primitives.

use nearfar_schema::units::{Bandwidth, Time};
use nearfar_trace::Result;

use crate::machine::{Cost, Curves, Machine, Node, NodeKind, Sourced, Timing};

/// Bytes of a cache line.
pub const LINE: u64 = 64;
/// Bytes of a base page.
pub const PAGE: u64 = 4096;

/// Times of a node's loads or stores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Direction {
    /// Latency of the first line (random, idle), picoseconds.
    pub latency_ps: f64,
    /// Time per further byte of the same access by one thread, picoseconds.
    pub byte_ps: f64,
    /// Occupancy of the node per byte, picoseconds: the inverse of its peak bandwidth.
    pub busy_ps: f64,
    /// Occupancy of the node per byte of random accesses to lines, picoseconds.
    pub random_busy_ps: f64,
}

/// A load or a store stream, sequential or random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Stores instead of loads.
    pub write: bool,
    /// Single lines in random order instead of a sequential stream.
    pub random: bool,
}

/// Performance of a node as seen from a core: the medium and the link together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View {
    pub read: Direction,
    pub write: Direction,
    /// Latency of a line in a sequential stream of loads, picoseconds.
    pub sequential_ps: f64,
    /// GB/s of mixed loads and stores, if they interfere.
    pub mixed: Option<f64>,
}

impl View {
    pub fn direction(&self, write: bool) -> &Direction {
        if write { &self.write } else { &self.read }
    }

    /// Nanoseconds to load one line.
    pub fn load_ns(&self, random: bool) -> f64 {
        (if random { self.read.latency_ps } else { self.sequential_ps }) / 1e3
    }

    /// Bytes per nanosecond (GB/s) of the whole node, many threads.
    pub fn bandwidth(&self, pattern: Pattern) -> f64 {
        let direction = self.direction(pattern.write);
        1e3 / if pattern.random { direction.random_busy_ps } else { direction.busy_ps }
    }
}

/// A memory node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeModel {
    /// Name of its section in the machine file.
    pub name: String,
    pub kind: NodeKind,
    pub bytes: u64,
    /// Bytes that firmware and kernel reserve.
    pub reserved: u64,
    /// Access granularity of the medium, bytes.
    pub access_unit: u64,
    /// Modules that its pages are interleaved over.
    pub modules: u64,
    /// As seen from its own socket.
    pub local: View,
    /// As seen from another socket, if the machine file has it.
    pub remote: Option<View>,
    /// Latency under load, as seen from its own socket, if the machine file has it.
    pub loaded: Option<Curves>,
}

impl NodeModel {
    /// Bytes that programs may use.
    pub fn available(&self) -> u64 {
        self.bytes.saturating_sub(self.reserved)
    }

    /// Picoseconds of an access to `bytes` adjacent bytes by a local thread, while other traffic
    /// uses the share `busy` (0 or more) of the node: the latency of the first line, then the other
    /// bytes at the thread's bandwidth. If thread and other traffic together exceed the peak, the
    /// transfer slows down in proportion. `overlap` is the number of concurrent accesses, which share
    /// the latency.
    pub fn access_ps(&self, bytes: u64, write: bool, busy: f64, overlap: f64) -> f64 {
        let direction = self.local.direction(write);
        let rest = bytes.saturating_sub(LINE) as f64 * direction.byte_ps;
        let thread_share =
            if direction.byte_ps > 0.0 { direction.busy_ps / direction.byte_ps } else { 0.0 };
        direction.latency_ps / overlap + rest * (thread_share + busy).max(1.0)
    }

    /// Picoseconds to copy `bytes` to the node `to` by a thread local to both, while other traffic uses
    /// the shares `busy_here` and `busy_there` of the nodes. The slower of read and write determines
    /// the time.
    pub fn copy_ps(&self, to: &NodeModel, bytes: u64, busy_here: f64, busy_there: f64) -> f64 {
        let (read, write) = (&self.local.read, &to.local.write);
        let pace = read.byte_ps.max(write.byte_ps);
        let stretch = |busy_ps: f64, busy: f64| (busy_ps / pace + busy).max(1.0);
        let slowest = stretch(read.busy_ps, busy_here).max(stretch(write.busy_ps, busy_there));
        bytes as f64 * pace * slowest
    }
}

/// Costs of the kernel's primitives, picoseconds; see [`Cost`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelCosts {
    pub hint_fault: f64,
    pub write_protect_fault: f64,
    pub context_switch: f64,
    pub exception: f64,
    pub shootdown: f64,
    /// Without the copy.
    pub page_migration: f64,
    pub page_scan: f64,
    pub page_walk: f64,
    pub sample: f64,
}

impl Machine {
    /// The nodes by local read latency, then by name.
    ///
    /// # Errors
    /// There are fewer than two or more than four nodes, or one lacks a bandwidth.
    pub fn nodes(&self) -> Result<Vec<NodeModel>> {
        if !(2..=4).contains(&self.node.len()) {
            return Err(self.lacks_for("two to four [node.NAME] sections", Self::can_tier));
        }
        let nodes = self.node.iter().map(|(name, node)| self.node_model(name, node));
        let mut nodes = nodes.collect::<Result<Vec<_>>>()?;
        nodes.sort_by(|a, b| a.local.read.latency_ps.total_cmp(&b.local.read.latency_ps));
        Ok(nodes)
    }

    /// Whether error messages suggest this machine for a tiering study.
    fn can_tier(&self) -> bool {
        let cost = self.cost.as_ref();
        (2..=4).contains(&self.node.len()) && cost.is_some_and(|cost| cost.hint_fault.is_some())
    }

    pub(crate) fn node_model(&self, name: &str, node: &Node) -> Result<NodeModel> {
        let local = self.view(name, &node.local)?;
        Ok(NodeModel {
            name: name.to_owned(),
            kind: node.kind,
            bytes: node.size.value.bytes(),
            reserved: node.reserved.as_ref().map_or(0, |size| size.value.bytes()),
            access_unit: node.access_unit.as_ref().map_or(LINE, |size| size.value.bytes()),
            modules: node.modules.as_ref().map_or(1, |count| count.value.0),
            local,
            remote: node.remote.as_ref().map(|timing| with_timing(&local, timing)),
            loaded: node.local.loaded.as_ref().map(|loaded| loaded.value.clone()),
        })
    }

    /// The local view of a node. If only one of the peak and the single-thread bandwidth is known, it
    /// serves as both.
    fn view(&self, name: &str, timing: &Timing) -> Result<View> {
        let direction = |latency_ps, thread: &Option<_>, peak: &Option<_>, key| {
            let busy_ps = byte_ps(peak).or(byte_ps(thread));
            let busy_ps = busy_ps.ok_or_else(|| self.lacks(&format!("node.{name}.local.{key}")))?;
            let byte_ps = byte_ps(thread).unwrap_or(busy_ps);
            Ok(Direction { latency_ps, byte_ps, busy_ps, random_busy_ps: busy_ps })
        };
        let read_ps = timing.read_latency.value.ps() as f64;
        let (reads, writes) = (&timing.read_bandwidth, &timing.write_bandwidth);
        let base = View {
            read: direction(read_ps, &timing.thread_read_bandwidth, reads, "read_bandwidth")?,
            write: direction(read_ps, &timing.thread_write_bandwidth, writes, "write_bandwidth")?,
            sequential_ps: read_ps,
            mixed: None,
        };
        Ok(with_timing(&base, timing))
    }

    /// The costs of the kernel's primitives, times `factor` for sensitivity studies.
    ///
    /// # Errors
    /// A key of `[cost]` is missing.
    pub fn kernel_costs(&self, factor: f64) -> Result<KernelCosts> {
        let none = Cost::default();
        let cost = self.cost.as_ref().unwrap_or(&none);
        let ps = |time: &Option<Sourced<Time>>, key: &str| {
            let lacks = || self.lacks_for(&format!("cost.{key}"), Self::can_tier);
            let time = time.as_ref().ok_or_else(lacks)?;
            Ok(time.value.ps() as f64 * factor)
        };
        Ok(KernelCosts {
            hint_fault: ps(&cost.hint_fault, "hint_fault")?,
            write_protect_fault: ps(&cost.write_protect_fault, "write_protect_fault")?,
            context_switch: ps(&cost.context_switch, "context_switch")?,
            exception: ps(&cost.exception, "exception")?,
            shootdown: ps(&cost.shootdown, "shootdown")?,
            page_migration: ps(&cost.page_migration, "page_migration")?,
            page_scan: ps(&cost.page_scan, "page_scan")?,
            page_walk: ps(&cost.page_walk, "page_walk")?,
            sample: ps(&cost.sample, "sample")?,
        })
    }

    /// Outstanding cache lines per core; 10 if the machine file does not say.
    pub fn fill_buffers(&self) -> u64 {
        let known = self.cpu.as_ref().and_then(|cpu| cpu.fill_buffers.as_ref());
        known.map_or(10, |count| count.value.0)
    }

    /// Entries of the last level of the data TLB; 0 if the machine has none.
    pub fn tlb_entries(&self) -> u64 {
        self.tlb.as_ref().map_or(0, |tlb| tlb.second.as_ref().unwrap_or(&tlb.first).entries.value.0)
    }
}

/// `base`, overridden by the keys of `timing`. By default, the bandwidths of a thread and of random
/// accesses are those of `base`, at most the peak.
fn with_timing(base: &View, timing: &Timing) -> View {
    let read_ps = timing.read_latency.value.ps() as f64;
    let direction = |latency_ps, known: &Direction, thread, peak, random| {
        let busy_ps = byte_ps(peak).unwrap_or(known.busy_ps);
        Direction {
            latency_ps,
            byte_ps: byte_ps(thread).unwrap_or(known.byte_ps.max(busy_ps)),
            busy_ps,
            random_busy_ps: byte_ps(random).unwrap_or(known.random_busy_ps.max(busy_ps)),
        }
    };
    let ps = |time: &Option<Sourced<Time>>| time.as_ref().map(|t| t.value.ps() as f64);
    View {
        read: direction(
            read_ps,
            &base.read,
            &timing.thread_read_bandwidth,
            &timing.read_bandwidth,
            &timing.random_read_bandwidth,
        ),
        write: direction(
            ps(&timing.write_latency).unwrap_or(read_ps),
            &base.write,
            &timing.thread_write_bandwidth,
            &timing.write_bandwidth,
            &timing.random_write_bandwidth,
        ),
        sequential_ps: ps(&timing.sequential_read_latency).unwrap_or(read_ps),
        mixed: timing.mixed_bandwidth.as_ref().map(per_ns),
    }
}

fn byte_ps(bandwidth: &Option<Sourced<Bandwidth>>) -> Option<f64> {
    bandwidth.as_ref().map(|bandwidth| bandwidth.value.ns_for(1) * 1e3)
}

/// Bytes per nanosecond.
pub(crate) fn per_ns(bandwidth: &Sourced<Bandwidth>) -> f64 {
    bandwidth.value.bytes_per_second() as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn machine(name: &str) -> Machine {
        Machine::load(name, Path::new("")).unwrap()
    }

    /// Nanoseconds of loads and 4 KiB copies, given or implied by table 1 of the NOMAD paper.
    #[test]
    fn platforms_have_the_times_of_the_nomad_paper() {
        let expected = [
            ("cxl-a", 150, 407, 910, 341),
            ("pmem-c", 64, 276, 1024, 506),
            ("cxl-d", 106, 192, 202, 108),
        ];
        for (name, fast, slow, up, down) in expected {
            let nodes = machine(name).nodes().unwrap();
            assert_eq!(nodes.len(), 2);
            let latency = |n: usize| (nodes[n].local.read.latency_ps / 1e3).round() as u64;
            assert_eq!((latency(0), latency(1)), (fast, slow), "{name}");
            let copy = |a: usize, b: usize| {
                (nodes[a].copy_ps(&nodes[b], 4096, 0.0, 0.0) / 1e3).round() as u64
            };
            assert_eq!((copy(1, 0), copy(0, 1)), (up, down), "{name}");
            assert_eq!(nodes[0].available(), 16 << 30);
            assert!(machine(name).kernel_costs(1.0).unwrap().hint_fault > 0.0);
        }
    }

    #[test]
    fn traffic_of_others_slows_transfers_down_once_the_node_is_full() {
        let nodes = machine("cxl-a").nodes().unwrap();
        let time = |busy| nodes[1].access_ps(4096, false, busy, 1.0);
        assert_eq!(time(0.0), time(0.5));
        assert!(time(1.0) > time(0.5));
        assert_eq!(nodes[1].access_ps(64, false, 9.0, 1.0), 407_000.0);
        let copy = |busy| nodes[1].copy_ps(&nodes[0], 4096, busy, 0.0);
        assert!(copy(0.9) > copy(0.5) && copy(0.5) == copy(0.0));
    }

    #[test]
    fn errors_name_missing_keys_and_machines_that_have_them() {
        let message = machine("desktop-hdd").nodes().unwrap_err().to_string();
        assert!(message.contains("two to four"), "{message}");
        let (_, serving) = message.split_once("a --machine such as ").unwrap();
        let serving: Vec<&str> = serving.split("; ").next().unwrap().split(", ").collect();
        assert!(serving.contains(&"cxl") && serving.contains(&"cxl-a"), "{message}");
        for name in serving {
            machine(name).nodes().unwrap();
            machine(name).kernel_costs(1.0).unwrap();
        }
        // A built-in machine must be written to a file before it is changed.
        let copy = "`nearfar machine show desktop-hdd --format toml > my-desktop-hdd.toml`";
        assert!(
            message.contains(copy) && message.ends_with("use --machine my-desktop-hdd.toml"),
            "{message}"
        );
        let mut renamed = machine("desktop-hdd");
        renamed.name = "own".to_owned();
        assert!(renamed.nodes().unwrap_err().to_string().ends_with("or add that in its file"));
        let message = machine("cxl-2socket").kernel_costs(1.0).unwrap_err().to_string();
        assert!(message.contains("cost.hint_fault"), "{message}");
    }
}
