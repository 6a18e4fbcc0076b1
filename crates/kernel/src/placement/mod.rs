//! Placement: the memory nodes that the kernel sees, and the order in which it allocates from them.
//!
//! One file per [`Mode`]. Pages are placed in extents; the result equals placement page by page.

mod alius;
mod fallback;
mod interleave;
mod kmem_dax;
mod local;
mod memory_mode;
mod preferred_many;
#[cfg(test)]
mod tests;
mod weighted_interleave;

use nearfar_hardware::machine::NodeKind;
use nearfar_hardware::node::PAGE;
use nearfar_hardware::topology::Topology;
use nearfar_schema::{Entry, Registry};
use nearfar_trace::Result;

pub use fallback::fallback_orders;
pub use memory_mode::MemoryMode;
pub use weighted_interleave::bandwidth_weights;

/// Bytes of the page structure of one page (`struct page` on 64-bit Linux).
const PAGE_STRUCT: u64 = 64;

/// A memory node as the kernel sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The kernel's node number, an index of the topology's nodes.
    pub node: usize,
    /// The topology's node that holds the pages; differs from `node` in [`MemoryMode`].
    pub backing: usize,
    /// The DRAM node that caches this one; `None` outside [`MemoryMode`].
    pub cache: Option<usize>,
    /// Free pages.
    pub free: u64,
    /// Whether it is in ZONE_MOVABLE, which excludes kernel pages (`vmalloc`, page tables).
    pub movable: bool,
}

nearfar_schema::choices! {
    /// The requester of pages.
    pub enum Allocator: "allocator" {
        /// the kernel's `vmalloc`: also allocates an array of page pointers and page tables
        Vmalloc = "vmalloc",
        /// a program that touches mapped memory: also allocates page tables
        User = "user",
    }
}

impl Allocator {
    /// Pages of the allocator's tables for `pages` pages: 8 bytes per page in each table.
    pub fn overhead(self, pages: u64) -> u64 {
        let tables = if self == Allocator::Vmalloc { 2 } else { 1 };
        tables * (8 * pages).div_ceil(PAGE)
    }
}

/// Parameters of a mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Kernel numbers of the nodes to use; all when empty.
    pub nodes: Vec<usize>,
    /// A weight for each of `nodes`; in proportion to bandwidth when empty.
    pub weights: Vec<u64>,
}

/// A member of an interleaved group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Consecutive pages per turn.
    pub weight: u64,
    /// Indices of memories to try, in order.
    pub route: Vec<usize>,
}

/// Members that are interleaved until all are full.
pub type Group = Vec<Member>;

/// The member for page `number`; `None` if the group is empty.
pub fn turn(group: &Group, number: u64) -> Option<&Member> {
    let round: u64 = group.iter().map(|member| member.weight).sum();
    let mut left = number.checked_rem(round)?;
    group.iter().find(|member| match left.checked_sub(member.weight) {
        Some(rest) => {
            left = rest;
            false
        }
        None => true,
    })
}

/// A mode: the set-up of the machine's memory and the order of allocation.
pub trait Mode: Sync {
    /// Name on the command line and in tables.
    fn name(&self) -> &'static str;

    /// One line for lists of modes.
    fn summary(&self) -> &'static str;

    /// The memories that the kernel sees, in order of node numbers. By default all nodes, of which
    /// those other than DRAM are hot-added, in ZONE_MOVABLE.
    ///
    /// # Errors
    /// If the machine does not support the mode.
    fn memories(&self, topology: &Topology) -> Result<Vec<Memory>> {
        Ok(flat(topology, true, |_| true))
    }

    /// Whether a program's pages are interleaved by page number instead of in order of first touch.
    fn by_number(&self) -> bool {
        false
    }

    /// Groups for a program on a core of node `from`, each used when the one before is full. By default
    /// one group: the policy's nodes in fallback order.
    fn order(
        &self,
        topology: &Topology,
        memories: &[Memory],
        from: usize,
        policy: &Policy,
    ) -> Vec<Group> {
        let chosen = chosen(memories, policy);
        let order = route(topology, memories, from);
        vec![in_order(order.into_iter().filter(|index| chosen.contains(index)).collect())]
    }
}

/// All modes. A new one is a file and a line here.
pub const MODES: &[&dyn Mode] = &[
    &memory_mode::MemoryMode,
    &kmem_dax::KmemDax,
    &alius::Alius,
    &local::Local,
    &interleave::Interleave,
    &weighted_interleave::WeightedInterleave,
    &preferred_many::PreferredMany,
];

/// [`MODES`] as choices of an option.
pub struct Modes;

impl Registry for Modes {
    const NAME: &'static str = "mode";
    const KIND: &'static str = "mode";
    const METAVAR: &'static str = "MODE";
    fn entries() -> Vec<Entry> {
        MODES.iter().map(|mode| Entry { name: mode.name(), what: mode.summary().into() }).collect()
    }
}

pub fn mode(name: &str) -> Option<&'static dyn Mode> {
    MODES.iter().copied().find(|mode| mode.name() == name)
}

/// Consecutive pages of an allocation with a repeating pattern of memories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    pub pages: u64,
    /// Index of the memory of each page, repeated until the extent ends.
    pub pattern: Vec<usize>,
}

impl Extent {
    /// Pages of the extent on each of `memories` memories.
    pub fn on(&self, memories: usize) -> Vec<u64> {
        let mut pages = vec![0; memories];
        let round = self.pattern.len() as u64;
        let (rounds, rest) = (self.pages / round, (self.pages % round) as usize);
        for (slot, memory) in self.pattern.iter().enumerate() {
            pages[*memory] += rounds + u64::from(slot < rest);
        }
        pages
    }
}

/// Where the pages of an allocation landed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Extents in page order.
    pub extents: Vec<Extent>,
    /// Pages that did not fit.
    pub missing: u64,
}

impl Placement {
    /// Pages on each of `memories` memories.
    pub fn pages(&self, memories: usize) -> Vec<u64> {
        let mut pages = vec![0; memories];
        for extent in &self.extents {
            for (all, more) in pages.iter_mut().zip(extent.on(memories)) {
                *all += more;
            }
        }
        pages
    }

    /// The memory of page number `page`, from 0; `None` past the end.
    pub fn memory_of(&self, mut page: u64) -> Option<usize> {
        for extent in &self.extents {
            if page < extent.pages {
                return extent.pattern.get((page % extent.pattern.len() as u64) as usize).copied();
            }
            page -= extent.pages;
        }
        None
    }
}

/// Allocate `pages` pages for `allocator` from `memories`, and reduce their `free`.
pub fn place(
    memories: &mut [Memory],
    groups: &[Group],
    pages: u64,
    allocator: Allocator,
) -> Placement {
    let usable = |memory: &Memory| memory.free > 0 && may_use(memory, allocator);
    let mut placement = Placement { extents: Vec::new(), missing: pages };
    for group in groups {
        while placement.missing > 0 {
            let mut pattern = Vec::new();
            for member in group {
                let target = member.route.iter().copied().find(|index| usable(&memories[*index]));
                if let Some(target) = target {
                    pattern.extend(std::iter::repeat_n(target, member.weight as usize));
                }
            }
            if pattern.is_empty() {
                break;
            }
            let mut counts = vec![0u64; memories.len()];
            for target in &pattern {
                counts[*target] += 1;
            }
            let round = pattern.len() as u64;
            let fitting = |(memory, count): (&Memory, &u64)| {
                if *count > 0 { memory.free / count } else { u64::MAX }
            };
            let rounds = memories.iter().zip(&counts).map(fitting).min().unwrap_or(0);
            let rounds = rounds.min(placement.missing / round);
            if rounds > 0 {
                for (memory, count) in memories.iter_mut().zip(&counts) {
                    memory.free -= rounds * count;
                }
                placement.missing -= rounds * round;
                placement.extents.push(Extent { pages: rounds * round, pattern });
                continue;
            }
            // No whole round fits: place one page by page, each in the first usable memory.
            let mut pattern = Vec::new();
            for member in group {
                for _ in 0..member.weight {
                    let target = member.route.iter().copied().find(|i| usable(&memories[*i]));
                    let Some(target) = target else { break };
                    if placement.missing == 0 {
                        break;
                    }
                    memories[target].free -= 1;
                    placement.missing -= 1;
                    pattern.push(target);
                }
            }
            placement.extents.push(Extent { pages: pattern.len() as u64, pattern });
        }
    }
    placement
}

/// Whether `allocator` may take pages of `memory`.
pub fn may_use(memory: &Memory, allocator: Allocator) -> bool {
    !(memory.movable && allocator == Allocator::Vmalloc)
}

/// Pages of a node that are not reserved, including those for page structures.
fn unreserved_pages(topology: &Topology, node: usize) -> u64 {
    topology.nodes[node].available() / PAGE
}

/// Pages of the page structures of a node of `bytes` bytes.
fn page_structs(bytes: u64) -> u64 {
    (bytes / PAGE * PAGE_STRUCT).div_ceil(PAGE)
}

/// All nodes whose kind passes. With `movable`, those other than DRAM are hot-added, in ZONE_MOVABLE.
/// Their page structures are always in the nearest DRAM, as Linux places those of hot-added memory
/// without `memmap_on_memory`.
fn flat(topology: &Topology, movable: bool, passes: impl Fn(NodeKind) -> bool) -> Vec<Memory> {
    let nodes = &topology.nodes;
    let mut memories: Vec<Memory> = (0..nodes.len())
        .filter(|node| passes(nodes[*node].kind))
        .map(|node| Memory {
            node,
            backing: node,
            cache: None,
            free: unreserved_pages(topology, node),
            movable: movable && nodes[node].kind != NodeKind::Dram,
        })
        .collect();
    for index in 0..memories.len() {
        let node = memories[index].node;
        let is_dram = nodes[node].kind == NodeKind::Dram;
        let nearest = memories
            .iter()
            .enumerate()
            .filter(|(_, memory)| nodes[memory.node].kind == NodeKind::Dram)
            .min_by_key(|(_, memory)| topology.distances[node][memory.node])
            .map_or(index, |(other, _)| other);
        let host = if is_dram { index } else { nearest };
        memories[host].free = memories[host].free.saturating_sub(page_structs(nodes[node].bytes));
    }
    memories
}

/// Indices of `memories` in the kernel's fallback order of `node`.
fn route(topology: &Topology, memories: &[Memory], node: usize) -> Vec<usize> {
    let nodes: Vec<usize> = memories.iter().map(|memory| memory.node).collect();
    let hot_added = memories.iter().any(|memory| memory.movable);
    let orders = fallback_orders(&topology.distances, &topology.cpus, &nodes, hot_added);
    let order = orders.get(node).map_or(&[][..], Vec::as_slice);
    order.iter().filter_map(|n| nodes.iter().position(|other| other == n)).collect()
}

/// Indices of the memories whose nodes a policy names; all if it names none.
fn chosen(memories: &[Memory], policy: &Policy) -> Vec<usize> {
    (0..memories.len())
        .filter(|index| policy.nodes.is_empty() || policy.nodes.contains(&memories[*index].node))
        .collect()
}

/// A group of one member, which tries the memories of `route` in order.
fn in_order(route: Vec<usize>) -> Group {
    vec![Member { weight: 1, route }]
}
