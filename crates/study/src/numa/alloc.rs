//! The duration of an allocation, the nodes of its pages, or the reason why it is impossible.

use nearfar_hardware::Topology;
use nearfar_hardware::machine::NodeKind;
use nearfar_hardware::node::PAGE;
use nearfar_kernel::placement::{Allocator, Extent, Memory, Mode, Policy, may_use, place};
use nearfar_trace::{Error, Result};
use serde::Serialize;

use super::clear::clear_page;

/// How memory is allocated.
#[derive(Clone, Debug)]
pub struct AllocOptions {
    /// `vmalloc` of the kernel, or a program.
    pub allocator: Allocator,
    pub policy: Policy,
    /// The node whose cores allocate.
    pub from: usize,
    /// Number of cores used.
    pub threads: u64,
    /// Whether memory mode's DRAM cache is full of dirty lines, as after any use of the machine.
    pub dirty_cache: bool,
    /// Whether a core writes to all interleaved modules at once instead of only the module of its page.
    pub all_modules: bool,
}

nearfar_schema::columns! {
    /// Memory of an allocation on one node.
    pub struct Landed {
        /// Index, in the machine's topology, of the node that holds the memory.
        node: usize,
        /// Kind and number of the node, such as `pmem4`.
        label: String,
        /// Kind of the node: `dram`, `pmem` or `cxl`.
        kind: NodeKind,
        /// Whether the node is on the socket of the cores that allocate.
        local: bool,
        /// Bytes of the allocation; the kernel's tables are in `tables_bytes`.
        bytes: u64 ["bytes"],
        /// Bytes of page tables and, for `vmalloc`, of its array of page pointers.
        tables_bytes: u64 ["bytes"],
        /// Bytes of the node that are free after the allocation.
        free_bytes: u64 ["bytes"],
        /// Time to allocate and clear a page.
        page_ns: f64 ["ns"],
        /// What limits the clearing of most of the node's pages: `core`, `medium` (the memory) or
        /// `link` (between sockets).
        bound_by: &'static str,
    }
    keys [node]
    metrics [bytes less, page_ns less]
    seed []
}

nearfar_schema::columns! {
    /// One allocation.
    #[derive(Default)]
    pub struct AllocRow {
        /// Mode of placement.
        mode: &'static str,
        /// Requested bytes.
        size_bytes: u64 ["bytes"],
        /// Whether all requested bytes could be allocated.
        possible: bool,
        /// Why the allocation is impossible, or null.
        why_not: Option<String>,
        /// Note on nodes that a program's allocation would use but `vmalloc` cannot, or null.
        note: Option<String>,
        /// Time to allocate and clear the memory, or null when impossible.
        seconds: Option<f64> ["s"] as "time",
        /// Rate of allocation and clearing, or null when impossible.
        gb_per_second: Option<f64> ["GB/s"] as "GB/s",
        /// Free bytes that the allocator may use, before the allocation.
        capacity_bytes: u64 ["bytes"],
        /// Bytes on DRAM of the socket whose cores allocate.
        local_dram_bytes: u64 ["bytes"] as "DRAM near",
        /// Bytes on DRAM of other sockets.
        remote_dram_bytes: u64 ["bytes"] as "DRAM far",
        /// Bytes on persistent or CXL memory of the socket whose cores allocate.
        local_far_bytes: u64 ["bytes"] as "other near",
        /// Bytes on persistent or CXL memory of other sockets.
        remote_far_bytes: u64 ["bytes"] as "other far",
        /// Extents: runs of pages that repeat one pattern of nodes.
        extents: u64,
    }
    keys [mode, size_bytes]
    metrics [seconds less, gb_per_second more, capacity_bytes more]
    seed []
}

/// One allocation, and its memory on each node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Allocated {
    #[serde(flatten)]
    pub row: AllocRow,
    /// One per node that the kernel sees.
    pub landed: Vec<Landed>,
}

/// Allocate and clear `size` bytes (rounded up to pages) under `mode`.
///
/// # Errors
/// Input errors: a machine that does not support the mode or lacks parameters; invalid options.
pub fn alloc(
    topology: &Topology,
    mode: &dyn Mode,
    size: u64,
    options: &AllocOptions,
) -> Result<Allocated> {
    let mut memories = mode.memories(topology)?;
    check(topology, &memories, options)?;
    let unused = memories.clone();
    let capacity: u64 =
        unused.iter().filter(|m| may_use(m, options.allocator)).map(|m| m.free).sum();
    let groups = mode.order(topology, &memories, options.from, &options.policy);
    let pages = size.div_ceil(PAGE);
    let overhead = options.allocator.overhead(pages);
    // Page tables are placed before the data, not in movable memory, and outside the policy's nodes if
    // those are full.
    let order = [groups.clone(), mode.order(topology, &memories, options.from, &Policy::default())];
    let tables = place(&mut memories, &order.concat(), overhead, Allocator::Vmalloc);
    let mut for_program = memories.clone();
    let placement = place(&mut memories, &groups, pages, options.allocator);
    let mut row = AllocRow {
        mode: mode.name(),
        size_bytes: size,
        possible: placement.missing + tables.missing == 0,
        capacity_bytes: capacity * PAGE,
        extents: placement.extents.len() as u64,
        ..AllocRow::default()
    };
    let mut landed = Vec::new();
    let (data, table_pages) = (placement.pages(memories.len()), tables.pages(memories.len()));
    let mut spent = vec![0.0; memories.len()];
    let mut bottleneck = vec![None::<(u64, &'static str)>; memories.len()];
    for extent in tables.extents.iter().chain(&placement.extents) {
        for (index, pages) in extent.on(memories.len()).into_iter().enumerate() {
            if pages > 0 {
                let share = pages as f64 / extent.pages as f64;
                let time = clear_page(topology, &memories[index], share, options)?;
                spent[index] += pages as f64 * time.ns();
                bottleneck[index] = bottleneck[index].max(Some((pages, time.bound_by())));
            }
        }
    }
    for (index, memory) in memories.iter().enumerate() {
        let node = &topology.nodes[memory.backing];
        let local = topology.same_socket(memory.backing, options.from);
        let default_time = clear_page(topology, memory, 1.0, options)?;
        let pages = data[index] + table_pages[index];
        let bytes = data[index] * PAGE;
        *match (node.kind == NodeKind::Dram, local) {
            (true, true) => &mut row.local_dram_bytes,
            (true, false) => &mut row.remote_dram_bytes,
            (false, true) => &mut row.local_far_bytes,
            (false, false) => &mut row.remote_far_bytes,
        } += bytes;
        landed.push(Landed {
            node: memory.backing,
            label: topology.label(memory.backing),
            kind: node.kind,
            local,
            bytes,
            tables_bytes: table_pages[index] * PAGE,
            free_bytes: memory.free * PAGE,
            page_ns: if pages > 0 { spent[index] / pages as f64 } else { default_time.ns() },
            bound_by: bottleneck[index].map_or(default_time.bound_by(), |(_, part)| part),
        });
    }
    if row.possible {
        let ns: f64 = spent.iter().sum();
        row.seconds = Some(ns / 1e9);
        row.gb_per_second = Some(size as f64 / ns);
        let wanted = place(&mut for_program, &groups, pages, Allocator::User).pages(memories.len());
        let missed = (0..memories.len()).filter(|index| wanted[*index] > 0 && data[*index] == 0);
        let labels: Vec<_> = missed.map(|index| topology.label(memories[index].backing)).collect();
        row.note = (!labels.is_empty()).then(|| {
            let labels = labels.join(", ");
            format!(
                "none of it is on {labels}: vmalloc, the default allocator, cannot use movable \
                 memory; a program can (--allocator user)"
            )
        });
    } else {
        row.why_not = Some(failure(&unused, options, size, overhead, &placement.extents, capacity));
    }
    Ok(Allocated { row, landed })
}

/// Refuse options that contradict the machine or each other.
pub(super) fn check(
    topology: &Topology,
    memories: &[Memory],
    options: &AllocOptions,
) -> Result<()> {
    let refuse = |flag: &str, what: String, fix: String| Err(Error::input(flag, what, fix));
    let cores = topology.cpus.get(options.from).copied().unwrap_or(0);
    if cores == 0 {
        let with: Vec<String> = (0..topology.nodes.len())
            .filter(|node| topology.cpus[*node] > 0)
            .map(|node| node.to_string())
            .collect();
        let fix = format!("choose from {}", with.join(", "));
        return refuse("--from", format!("node {} has no cores", options.from), fix);
    }
    let policy = &options.policy;
    if let Some(node) = policy.nodes.iter().find(|n| !memories.iter().any(|m| m.node == **n)) {
        let known: Vec<String> = memories.iter().map(|memory| memory.node.to_string()).collect();
        let fix = format!("choose from {}", known.join(", "));
        return refuse("--nodes", format!("no node {node} in this mode"), fix);
    }
    if let Some(at) =
        (1..policy.nodes.len()).find(|at| policy.nodes[..*at].contains(&policy.nodes[*at]))
    {
        let what = format!("node {} is named twice", policy.nodes[at]);
        return refuse("--nodes", what, "name each once".into());
    }
    let members = if policy.nodes.is_empty() { memories.len() } else { policy.nodes.len() };
    if !policy.weights.is_empty() && policy.weights.len() != members {
        let what = format!("{} weights for {members} nodes", policy.weights.len());
        return refuse("--weights", what, "give one for each node".into());
    }
    Ok(())
}

fn failure(
    memories: &[Memory],
    options: &AllocOptions,
    size: u64,
    overhead: u64,
    extents: &[Extent],
    capacity: u64,
) -> String {
    let gib = |pages: u64| (pages * PAGE) as f64 / (1u64 << 30) as f64;
    let allocated: u64 = extents.iter().map(|extent| extent.pages).sum();
    let mut text = format!(
        "needs {:.1} GiB and {:.1} GiB of tables; of {:.1} GiB in all, {:.1} GiB \
         could be allocated",
        gib(size.div_ceil(PAGE)),
        gib(overhead),
        gib(capacity),
        gib(allocated),
    );
    let movable: u64 =
        memories.iter().filter(|m| !may_use(m, options.allocator)).map(|m| m.free).sum();
    if movable > 0 {
        text += &format!("; {:.1} GiB are movable memory, not for the kernel", gib(movable));
    }
    text
}
