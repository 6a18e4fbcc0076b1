//! The sections and keys of a machine file, `machines/NAME.toml`. The strict reader
//! ([`Machine::parse`]) and the JSON Schema ([`schema`]) are both derived from these types.

mod curves;
mod library;
mod name;
mod read;
mod resolve;
mod set;
#[cfg(test)]
mod tests;
mod value;

use std::collections::BTreeMap;

use nearfar_schema::units::{Bandwidth, Frequency, Rotation, Size, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cache::Level;

pub use curves::{Curve, Curves};
pub use library::{MachineFile, builtin, remedy};
pub use name::{MachineName, MachineNames};
pub use read::{clip, nearest};
pub use resolve::{AccessTimes, FaultTimes};
pub use value::{Count, Grid, Indices, Ratio, Sourced};

/// A machine. Sections are optional: a study that needs a missing one names it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Name, from the file's name; not a key of the file.
    #[serde(skip)]
    pub name: String,
    /// What the machine stands for, in a sentence.
    pub description: String,
    /// The processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// CPU caches, by name (`l1d`, `l1i`, `l2`, `l3`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cache: BTreeMap<String, Cache>,
    /// Translation lookaside buffers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tlb: Option<Tlb>,
    /// Memory nodes, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node: BTreeMap<String, Node>,
    /// The kernel's memory nodes, their distances and the link between sockets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<TopologySection>,
    /// Storage devices by name, each of one kind: `[storage.NAME.KIND]`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub storage: BTreeMap<String, StorageDevice>,
    /// The flash array inside a simulated solid-state drive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flash: Option<Flash>,
    /// Costs of the kernel's primitives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// Costs of page faults that allocate zeroed memory, by page size (`4KiB`, `2MiB`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fault: BTreeMap<String, ZeroFill>,
}

/// The processor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    /// Clock of a core.
    pub clock: Sourced<Frequency>,
    /// Instructions per cycle without cache and TLB misses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipc: Option<Sourced<Ratio>>,
    /// Cores of one socket.
    pub cores: Sourced<Count>,
    /// Sockets; one when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sockets: Option<Sourced<Count>>,
    /// Maximum cache-line fills in flight per core; 10 when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fill_buffers: Option<Sourced<Count>>,
    /// Instructions in flight in a core (reorder buffer).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reorder_window: Option<Sourced<Count>>,
    /// Share of cache misses, up to 1, that depend on the previous miss; other misses overlap within
    /// `reorder_window`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dependent_misses: Option<Sourced<Ratio>>,
}

/// One level of CPU cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// Capacity.
    pub size: Sourced<Size>,
    /// Ways of a set; fully associative when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ways: Option<Sourced<Count>>,
    /// Line size.
    pub line: Sourced<Size>,
    /// Load-to-use time of a hit.
    pub hit_time: Sourced<Time>,
    /// Cores that share the cache; one when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_by: Option<Sourced<Count>>,
}

impl Cache {
    pub(crate) fn level(&self) -> Level {
        let lines = self.size.value.bytes() / self.line.value.bytes();
        let ways = self.ways.as_ref().map_or(lines, |ways| ways.value.0);
        Level { sets: lines / ways, ways: ways as usize }
    }
}

/// Translation lookaside buffers of a core.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tlb {
    /// First level, data.
    pub first: TlbLevel,
    /// First level, instructions; shared with data when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instruction: Option<TlbLevel>,
    /// Second level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second: Option<TlbLevel>,
    /// Maximum bytes of contiguous small pages that one entry covers; one page when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coalesced: Option<Sourced<Size>>,
    /// Page walk after a miss in all TLB levels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub walk: Option<Walk>,
}

/// Walks of the page table; a table of each level has 512 entries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Walk {
    /// Levels of the page table.
    pub levels: Sourced<Count>,
    /// Entries of the page-directory (PDE) cache, each for 2 MiB: a hit leaves only the last level to walk.
    pub directories: Sourced<Count>,
    /// Entries of the upper-directory (PDPTE) cache, each for 1 GiB: a hit leaves the last two
    /// levels to walk.
    pub upper_directories: Sourced<Count>,
    /// Page size with which the host backs this machine's memory, if the machine is virtual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_page: Option<Sourced<Size>>,
}

/// One TLB.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlbLevel {
    /// Entries.
    pub entries: Sourced<Count>,
    /// Ways of a set; fully associative when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ways: Option<Sourced<Count>>,
    /// Separate entries for pages of 2 MiB and more; when left out, `entries` serves all page sizes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub large_entries: Option<Sourced<Count>>,
    /// Ways of a set of `large_entries`; fully associative when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub large_ways: Option<Sourced<Count>>,
    /// Time of a hit; in the second level, in addition to `hit_time` of the first level.
    pub hit_time: Sourced<Time>,
}

/// What a memory node is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NodeKind {
    /// Memory on the processor's own channels.
    Dram,
    /// Memory behind a CXL link.
    Cxl,
    /// Persistent memory on the memory channels.
    Pmem,
}

impl nearfar_schema::column::Cell for NodeKind {
    const ARROW: &'static str = "string";
    const PYTHON: &'static str = "str";
}

/// Memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Medium of the memory.
    pub kind: NodeKind,
    /// Capacity.
    pub size: Sourced<Size>,
    /// Capacity that kernel and firmware reserve; 0 when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<Sourced<Size>>,
    /// Access granularity of the medium; 64 B when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_unit: Option<Sourced<Size>>,
    /// Modules (DIMMs, devices) that addresses are interleaved over; one when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modules: Option<Sourced<Count>>,
    /// Timing from cores of the same socket.
    pub local: Timing,
    /// Timing from cores of another socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<Timing>,
}

/// Latency and bandwidth of a memory node, seen from local or from remote cores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Timing {
    /// Latency of a random load on an idle machine.
    pub read_latency: Sourced<Time>,
    /// Latency of a store until it is persistent (in the medium or the ADR domain); `read_latency` when left
    /// out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_latency: Option<Sourced<Time>>,
    /// Latency of a sequential load on an idle machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequential_read_latency: Option<Sourced<Time>>,
    /// Peak read bandwidth of many threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bandwidth: Option<Sourced<Bandwidth>>,
    /// Peak write bandwidth of many threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_bandwidth: Option<Sourced<Bandwidth>>,
    /// Read bandwidth of random accesses in units of `access_unit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub random_read_bandwidth: Option<Sourced<Bandwidth>>,
    /// Write bandwidth of random accesses in units of `access_unit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub random_write_bandwidth: Option<Sourced<Bandwidth>>,
    /// Bandwidth of mixed loads and stores if they interfere; no limit when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mixed_bandwidth: Option<Sourced<Bandwidth>>,
    /// Read bandwidth of one thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_read_bandwidth: Option<Sourced<Bandwidth>>,
    /// Write bandwidth of one thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_write_bandwidth: Option<Sourced<Bandwidth>>,
    /// Latency under load; when left out, 1 + 0.1 u / (1 - u) times the idle latency at utilisation
    /// u, at most 3 times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loaded: Option<Sourced<Curves>>,
}

/// The kernel's memory nodes and the links between them. All lists are in the order of the kernel's node
/// numbers, one item a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TopologySection {
    /// The `[node.NAME]` section that describes each node; several nodes may share one.
    pub nodes: Vec<String>,
    /// The socket that each node belongs to.
    pub sockets: Sourced<Indices>,
    /// Number of cores of each node; 0 for a node that has only memory.
    pub cpus: Sourced<Indices>,
    /// The firmware's distances (SLIT): a row for each node, 10 for its distance to itself.
    pub distances: Sourced<Grid>,
    /// Bandwidth of the link between two sockets, one direction; unlimited when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_bandwidth: Option<Sourced<Bandwidth>>,
}

/// A storage device; the key under its name is its kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StorageDevice {
    /// A disk with a moving head.
    Hdd(Disk),
    /// A solid-state drive, flash or Optane.
    Nvme(Linear),
    /// A device whose access takes as long as k DRAM accesses, as in papers 000 and 001.
    Nvm(Multiple),
    /// Persistent memory as a paging device.
    Pmem(Linear),
    /// CXL memory as a paging device.
    Cxl(Linear),
    /// Compressed memory.
    Zram(Compressed),
}

/// Compressed memory for swapped pages only. Files use the disk `files`; a machine that takes over the zram
/// of another keeps its own disk for them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Compressed {
    /// Read and write times of swapped pages.
    pub pages: Linear,
    /// The device that holds files, as `[storage.NAME.zram.files.KIND]`.
    pub files: Box<StorageDevice>,
}

/// A disk: a transfer takes seek + half a turn + bytes / bandwidth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Average seek to read.
    pub seek: Sourced<Time>,
    /// Average seek to write; `seek` when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_seek: Option<Sourced<Time>>,
    /// Speed of rotation; half a turn is added to each transfer.
    pub rotation: Sourced<Rotation>,
    /// Sustained transfer rate.
    pub bandwidth: Sourced<Bandwidth>,
}

/// A device without moving parts: a transfer takes latency + (bytes beyond `measured_at`) / bandwidth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Linear {
    /// Time of one read of `measured_at` bytes on an idle device, transfer included.
    pub read_latency: Sourced<Time>,
    /// Time of one write of `measured_at` bytes on an idle device, transfer included.
    pub write_latency: Sourced<Time>,
    /// The transfer size for which the latencies hold.
    pub measured_at: Sourced<Size>,
    /// Smallest transfer: sizes are rounded up to a multiple of it.
    pub unit: Sourced<Size>,
    /// Read bandwidth of a single request beyond `measured_at` bytes.
    pub read_bandwidth: Sourced<Bandwidth>,
    /// Write bandwidth of a single request beyond `measured_at` bytes.
    pub write_bandwidth: Sourced<Bandwidth>,
}

/// k x the read latency of DRAM for each `unit` of a transfer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Multiple {
    /// k: time of one access, as a multiple of the read latency of DRAM.
    pub k: Sourced<Ratio>,
    /// k of a write; `k` when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_k: Option<Sourced<Ratio>>,
    /// Bytes that one access moves.
    pub unit: Sourced<Size>,
}

/// Definition of over-provisioning, from total pages T and user pages U.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OverProvisioning {
    /// (T - U) / T.
    #[serde(rename = "(T-U)/T")]
    OfTotal,
    /// (T - U) / U.
    #[serde(rename = "(T-U)/U")]
    OfUser,
}

/// Victim policy of garbage collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum VictimPolicy {
    /// The block with the fewest valid pages.
    #[default]
    Greedy,
    /// A random block.
    Random,
}

/// The flash array of a solid-state drive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Flash {
    /// Channels.
    pub channels: Sourced<Count>,
    /// Dies on a channel.
    pub dies_per_channel: Sourced<Count>,
    /// Planes of a die; one when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planes_per_die: Option<Sourced<Count>>,
    /// Blocks of a plane.
    pub blocks_per_plane: Sourced<Count>,
    /// Pages of a block.
    pub pages_per_block: Sourced<Count>,
    /// Number of dies that work in lockstep: they program one page each at once, and erase their blocks
    /// together; 1 when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stripe: Option<Sourced<Count>>,
    /// Size of a flash page.
    pub page_size: Sourced<Size>,
    /// Time to sense one page.
    pub read: Sourced<Time>,
    /// Time to program one page.
    pub program: Sourced<Time>,
    /// Time to erase one block.
    pub erase: Sourced<Time>,
    /// Bandwidth of a channel; transfers take no time when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel_bandwidth: Option<Sourced<Bandwidth>>,
    /// Share of spare space, as `over_provisioning_definition` defines it.
    pub over_provisioning: Sourced<Ratio>,
    /// The definition that `over_provisioning` follows.
    pub over_provisioning_definition: OverProvisioning,
    /// Garbage collection starts when this share of a plane's blocks, or less, is free.
    pub gc_start_free: Sourced<Ratio>,
    /// Garbage collection stops when this share of a plane's blocks is free; after one block when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gc_stop_free: Option<Sourced<Ratio>>,
    /// Victim policy of garbage collection; `greedy` when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gc_victim: Option<VictimPolicy>,
}

impl Flash {
    /// Dies whose pages are programmed together.
    pub(crate) fn dies_per_stripe(&self) -> u64 {
        self.stripe.as_ref().map_or(1, |stripe| stripe.value.0)
    }
}

/// Costs of the kernel's primitives; a study that needs a missing one reports it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// A page fault without its I/O.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_fault: Option<Sourced<Time>>,
    /// How fast the kernel clears a page for a program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zeroing: Option<Sourced<Bandwidth>>,
    /// A NUMA hint fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint_fault: Option<Sourced<Time>>,
    /// A write-protect fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_protect_fault: Option<Sourced<Time>>,
    /// A switch from one thread to another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_switch: Option<Sourced<Time>>,
    /// Entering and leaving an exception.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exception: Option<Sourced<Time>>,
    /// A TLB shootdown of one page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shootdown: Option<Sourced<Time>>,
    /// Kernel work of allocating one 4 KiB page, without clearing it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_allocation: Option<Sourced<Time>>,
    /// Kernel work of migrating one 4 KiB page, without the copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_migration: Option<Sourced<Time>>,
    /// Reading or changing one page-table entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_scan: Option<Sourced<Time>>,
    /// A walk of the page table after a TLB miss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_walk: Option<Sourced<Time>>,
    /// Processing one sample of the processor's event sampling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<Sourced<Time>>,
    /// Maximum delay of a sleeping thread's wake-up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timer_slack: Option<Sourced<Time>>,
    /// A waking thread preempts a running thread that has run longer by more than this; no wake-up preemption
    /// when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wakeup_granularity: Option<Sourced<Time>>,
    /// Maximum time that a thread runs while others are ready; unlimited when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_slice: Option<Sourced<Time>>,
}

/// Duration of a fault that gives a program a zeroed page: the kernel's work, clearing, and the later
/// release.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ZeroFill {
    /// For memory never used before; in a virtual machine, includes the host's allocation.
    pub first: Sourced<Time>,
    /// For reused memory.
    pub again: Sourced<Time>,
}

/// The JSON Schema of a machine file (2020-12), as pretty JSON ending in a newline.
pub fn schema() -> String {
    let schema = schemars::schema_for!(Machine);
    // A schema is plain JSON data, which always serialises.
    serde_json::to_string_pretty(&schema).unwrap_or_default() + "\n"
}
