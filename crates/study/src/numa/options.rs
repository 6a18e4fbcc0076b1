//! Options of the numa commands. An option of several commands has the same text in each.

use nearfar_hardware::Topology;
use nearfar_hardware::machine::MachineName;
use nearfar_kernel::placement::{self, Allocator, MODES, Mode, Modes, Policy};
use nearfar_schema::{Bytes, Choice, Count, List, Share, none, required};

use super::AllocOptions;

nearfar_schema::choices! {
    /// The order of a stream's accesses.
    pub enum Order: "pattern" {
        /// anywhere in the working set
        Random = "random",
        /// in order, repeatedly
        Sequential = "sequential",
    }
}

/// Default machine: that of paper 004 (aliusM).
const MACHINE: &str = "optane-4node";

/// Nodes that a mode may use; Linux has numbers up to 1023.
type Nodes = Option<List<Count<0, 1023>>>;
/// Interleave weights of nodes; Linux has weights up to 255.
type Weights = Option<List<Count<1, 255>>>;
type Threads = Count<1, 65536>;

nearfar_schema::options! {
    /// The options of an allocation as they are written.
    pub struct AllocRequest {
        /// Bytes to allocate.
        size: List<Bytes> = required(),
        /// Machine name or file.
        machine: MachineName = MACHINE,
        /// Placement modes to compare.
        mode: Option<List<Choice<Modes>>> = none("all that the machine supports"),
        /// Allocator.
        allocator: Allocator = "vmalloc",
        /// Nodes to use, such as 0,4.
        #[metavar = "NODES"]
        nodes: Nodes = none("the mode's"),
        /// Interleave weight of each of --nodes.
        #[metavar = "WEIGHTS"]
        weights: Weights = none("by bandwidth"),
        /// Node whose cores run the work.
        #[metavar = "NODE"]
        from_: Option<Count> = none("the first with cores"),
        /// Number of cores that run the work, one thread each.
        threads: Threads = 1,
        /// Assume that memory mode's DRAM cache has no dirty lines.
        clean_cache: bool = false,
        /// Let a core write to all interleaved modules at once instead of only the one that holds its page.
        all_modules: bool = false,
    }
}

nearfar_schema::options! {
    /// The options of a run as they are written.
    pub struct RunRequest {
        /// Machine name or file.
        machine: MachineName = MACHINE,
        /// Placement modes to compare.
        mode: Option<List<Choice<Modes>>> = none("all that the machine supports"),
        /// Order of a stream's accesses.
        pattern: Order = "random",
        /// Share of a stream's accesses that are stores.
        writes: Share = 0.0,
        /// Nodes to use, such as 0,4.
        #[metavar = "NODES"]
        nodes: Nodes = none("the mode's"),
        /// Interleave weight of each of --nodes.
        #[metavar = "WEIGHTS"]
        weights: Weights = none("by bandwidth"),
        /// Node whose cores run the work.
        #[metavar = "NODE"]
        from_: Option<Count> = none("the first with cores"),
        /// Number of cores that run the work, one thread each.
        threads: Threads = 1,
        /// Place pages at random within each node, as after long use or with
        /// `page_alloc.shuffle=1`.
        shuffle: bool = false,
        /// Seed of the shuffle.
        seed: Count = 1,
    }
}

nearfar_schema::options! {
    /// The options of `numa pair`, two VMs that share a DRAM cache, as they are written.
    pub struct PairRequest {
        /// Machine name or file.
        machine: MachineName = MACHINE,
        /// Shares of the smaller VM's pages that map to the same DRAM cache lines as the other VM's pages.
        overlap: List<Share> = "0,0.25,0.5,0.75,1",
        /// Size of the DRAM cache in front of the node's memory.
        cache: Option<Bytes> = none("the machine's"),
        /// Node whose cores run the work.
        #[metavar = "NODE"]
        from_: Option<Count> = none("the first with cores"),
        /// Seed of random loads and of the shuffle.
        seed: Count = 1,
    }
}

nearfar_schema::options! {
    /// The options of a plan as they are written.
    pub struct PlanRequest {
        /// Bytes that must fit, such as 500G.
        capacity: Bytes = required(),
        /// Bytes in use at a time; the program touches these first.
        working_set: Option<Bytes> = none("all"),
        /// Bandwidth that all threads need together, GB/s; 0 = any.
        bandwidth: f64 = 0.0,
        /// Machine name or file.
        machine: MachineName = MACHINE,
        /// Order of the program's accesses.
        pattern: Order = "random",
        /// Share of accesses that are stores.
        writes: Share = 0.0,
        /// Node whose cores run the work.
        #[metavar = "NODE"]
        from_: Option<Count> = none("the first with cores"),
        /// Number of cores that run the work, one thread each.
        threads: Threads = 1,
    }
}

/// The requested modes, by default all that the machine supports.
pub fn modes(request: Option<&List<Choice<Modes>>>, topology: &Topology) -> Vec<&'static dyn Mode> {
    match request {
        Some(names) => names.0.iter().filter_map(|name| placement::mode(name.name)).collect(),
        None => MODES.iter().copied().filter(|mode| mode.memories(topology).is_ok()).collect(),
    }
}

/// The requested node, by default the first with cores.
pub fn node(request: Option<Count>, topology: &Topology) -> usize {
    request.map_or(topology.first_cpu(), |node| usize::try_from(node.0).unwrap_or(usize::MAX))
}

fn policy(nodes: &Nodes, weights: &Weights) -> Policy {
    Policy {
        nodes: nodes.iter().flat_map(|nodes| &nodes.0).map(|node| node.0 as usize).collect(),
        weights: weights.iter().flat_map(|weights| &weights.0).map(|weight| weight.0).collect(),
    }
}

impl AllocOptions {
    pub fn of_alloc(request: &AllocRequest, topology: &Topology) -> Self {
        Self {
            allocator: request.allocator,
            policy: policy(&request.nodes, &request.weights),
            from: node(request.from_, topology),
            threads: request.threads.0,
            dirty_cache: !request.clean_cache,
            all_modules: request.all_modules,
        }
    }

    /// The options of a run: a program allocates, and memory mode's cache is dirty.
    pub fn of_run(request: &RunRequest, topology: &Topology) -> Self {
        Self {
            allocator: Allocator::User,
            policy: policy(&request.nodes, &request.weights),
            from: node(request.from_, topology),
            threads: request.threads.0,
            dirty_cache: true,
            all_modules: false,
        }
    }
}
