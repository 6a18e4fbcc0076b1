//! Tests of fallback orders, extents and modes.

use std::path::Path;

use nearfar_hardware::node::PAGE;
use nearfar_hardware::{Machine, Topology};
use proptest::prelude::*;

use super::{Allocator, Group, MODES, Member, Memory, Policy, fallback_orders, mode, place};

fn topology(name: &str) -> Topology {
    Machine::load(name, Path::new("")).unwrap().topology().unwrap()
}

#[test]
fn fallback_orders_equal_the_kernels() {
    // Orders of Linux 6.1 and 6.12 with hot-added memory in nodes 4 to 7. Nodes 0, 1, 4 and 5 are on
    // one socket.
    let distances = |far: u64| {
        let distance = |a: usize, b: usize| match (a / 2 % 2 == b / 2 % 2, a == b) {
            (_, true) => 10,
            (true, _) if a % 4 == b % 4 => far,
            (true, _) if a < 4 && b < 4 => 11,
            (true, _) => far + 1,
            (false, _) if a < 4 && b < 4 => 21,
            (false, _) => far + 11,
        };
        (0..8).map(|a| (0..8).map(|b| distance(a, b)).collect()).collect::<Vec<Vec<u64>>>()
    };
    let cores = [12, 12, 12, 12, 0, 0, 0, 0];
    let all: Vec<usize> = (0..8).collect();
    assert_eq!(fallback_orders(&distances(17), &cores, &all, true)[0], [0, 1, 4, 5, 2, 3, 6, 7]);
    assert_eq!(fallback_orders(&distances(30), &cores, &all, true)[0], [0, 1, 2, 3, 4, 5, 6, 7]);
    // Only nodes 1 and 4 have memory.
    assert_eq!(fallback_orders(&distances(17), &cores, &[1, 4], true)[0], [1, 4]);
}

/// Orders of Linux 6.12 with the distances of `optane-4node` (tests/data/numa).
#[test]
fn orders_of_memory_present_at_boot_ignore_cores() {
    let topology = topology("optane-4node");
    let all: Vec<usize> = (0..8).collect();
    let orders = fallback_orders(&topology.distances, &topology.cpus, &all, false);
    assert_eq!(orders[0], [0, 1, 4, 5, 2, 3, 6, 7]);
    assert_eq!(orders[4], [4, 0, 5, 1, 6, 7, 2, 3]);
    assert_eq!(orders[5], [5, 1, 0, 4, 7, 6, 2, 3]);
    assert_eq!(orders[6], [6, 2, 7, 3, 1, 4, 0, 5]);
    assert_eq!(orders[7], [7, 3, 2, 6, 4, 0, 1, 5]);
}

#[test]
fn among_equal_distances_the_next_higher_node_follows() {
    let distances: Vec<Vec<u64>> =
        (0..4).map(|a| (0..4).map(|b| if a == b { 10 } else { 20 }).collect()).collect();
    let orders = fallback_orders(&distances, &[1; 4], &[0, 1, 2, 3], true);
    for (node, order) in orders.iter().enumerate() {
        assert_eq!(order[0], node);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2, 3]);
    }
    assert_eq!(orders[0], [0, 1, 2, 3]);
    assert_eq!(orders[1], [1, 2, 3, 0]);
}

/// [`place`] page by page: the memory of each page, and the pages that did not fit.
fn naive(
    memories: &mut [Memory],
    groups: &[Group],
    pages: u64,
    allocator: Allocator,
) -> (Vec<usize>, u64) {
    let mut landed = Vec::new();
    let find = |memories: &[Memory], member: &Member| {
        let fits = |m: &Memory| m.free > 0 && (allocator == Allocator::User || !m.movable);
        member.route.iter().copied().find(|index| fits(&memories[*index]))
    };
    'all: for group in groups {
        loop {
            let before = landed.len();
            for member in group {
                for _ in 0..member.weight {
                    if landed.len() as u64 == pages {
                        break 'all;
                    }
                    let Some(target) = find(memories, member) else { break };
                    memories[target].free -= 1;
                    landed.push(target);
                }
            }
            if landed.len() == before {
                break;
            }
        }
    }
    let missing = pages - landed.len() as u64;
    (landed, missing)
}

proptest! {
    #[test]
    fn extents_equal_placement_page_by_page(
        name in prop::sample::select(vec!["optane-4node", "cxl-2socket", "cxl"]),
        mode in 0..MODES.len(),
        free in prop::collection::vec(0u64..60, 8),
        weights in prop::collection::vec(1u64..6, 8),
        vmalloc in any::<bool>(),
        from in 0usize..2,
        node_mask in 0u8..255,
        pages in 0u64..600,
    ) {
        let topology = topology(name);
        let mode = MODES[mode];
        let Ok(mut memories) = mode.memories(&topology) else { return Ok(()) };
        for (memory, free) in memories.iter_mut().zip(free) {
            memory.free = free;
        }
        let from = from.min(topology.nodes.len() - 1);
        let nodes: Vec<usize> =
            memories.iter().map(|m| m.node).filter(|node| node_mask >> node & 1 == 1).collect();
        let policy = Policy { weights: weights[..nodes.len()].to_vec(), nodes };
        let groups = mode.order(&topology, &memories, from, &policy);
        let allocator = if vmalloc { Allocator::Vmalloc } else { Allocator::User };
        let mut expected = memories.clone();
        let (landed, missing) = naive(&mut expected, &groups, pages, allocator);
        let before: u64 = memories.iter().map(|m| m.free).sum();
        let placement = place(&mut memories, &groups, pages, allocator);
        prop_assert_eq!(placement.missing, missing);
        prop_assert_eq!(&memories, &expected);
        for (page, memory) in landed.iter().enumerate() {
            prop_assert_eq!(placement.memory_of(page as u64), Some(*memory));
        }
        prop_assert_eq!(placement.memory_of(landed.len() as u64), None);
        let counted = placement.pages(memories.len());
        prop_assert_eq!(counted.iter().sum::<u64>() + missing, pages);
        let after: u64 = memories.iter().map(|m| m.free).sum();
        prop_assert_eq!(before - after, pages - missing);
    }
}

/// GiB on each node of `optane-4node` that an allocation of `gib` GiB from node 0 uses.
fn gib_on_nodes(mode_name: &str, gib: u64, allocator: Allocator) -> Vec<(usize, f64)> {
    let topology = topology("optane-4node");
    let mode = mode(mode_name).unwrap();
    let mut memories = mode.memories(&topology).unwrap();
    let groups = mode.order(&topology, &memories, 0, &Policy::default());
    let placement = place(&mut memories, &groups, (gib << 30) / PAGE, allocator);
    let pages = placement.pages(memories.len());
    let used = memories.iter().zip(pages).filter(|(_, pages)| *pages > 0);
    used.map(|(m, pages)| (m.backing, (pages * PAGE) as f64 / (1u64 << 30) as f64)).collect()
}

#[test]
fn alius_fills_dram_then_the_own_sockets_persistent_memory() {
    // 384 GiB of DRAM in all; 1515 GiB of persistent memory on each socket.
    let landed = gib_on_nodes("alius", 1000, Allocator::Vmalloc);
    let nodes: Vec<usize> = landed.iter().map(|(node, _)| *node).collect();
    assert_eq!(nodes, [0, 1, 2, 3, 4, 5]);
    assert_eq!(landed[4].1, landed[5].1, "interleaved");
    // A node's 96 GiB of DRAM hold 80 GiB plus the page structures of the node's persistent memory.
    assert_eq!(gib_on_nodes("alius", 80, Allocator::Vmalloc), [(0, 80.0)]);
    let remote = gib_on_nodes("alius", 2500, Allocator::Vmalloc);
    assert_eq!(remote.len(), 8);
}

#[test]
fn kernel_pages_stay_out_of_hot_added_memory() {
    let landed = gib_on_nodes("kmem-dax", 700, Allocator::Vmalloc);
    assert!(landed.iter().all(|(node, _)| *node < 4), "{landed:?}");
    assert!(landed.iter().map(|(_, gib)| gib).sum::<f64>() < 384.0);
    // The own socket's persistent memory (distance 17) comes before remote DRAM (21).
    let user = gib_on_nodes("kmem-dax", 700, Allocator::User);
    assert_eq!(user.iter().map(|(node, _)| *node).collect::<Vec<_>>(), [0, 1, 4]);
    assert!(gib_on_nodes("local", 700, Allocator::User).iter().all(|(node, _)| *node < 4));
}

#[test]
fn memory_mode_has_the_capacity_of_persistent_memory() {
    let topology = topology("optane-4node");
    let memories = mode("memory-mode").unwrap().memories(&topology).unwrap();
    let total: u64 = memories.iter().map(|m| m.free * PAGE).sum();
    // 3029 GiB, less page structures and reservations.
    assert!(total < 3000 << 30 && total > 2900 << 30, "{}", total >> 30);
    assert!(memories.iter().all(|m| m.backing == m.node + 4 && m.cache == Some(m.node)));
    let refused = mode("memory-mode").unwrap().memories(&self::topology("cxl")).unwrap_err();
    assert!(refused.to_string().contains("cannot be in memory mode"));
}

#[test]
fn weights_are_in_proportion_to_bandwidth() {
    let topology = topology("cxl-2socket");
    // 218 GB/s, and 48 GB/s over the link: 4.54 to 1.
    assert_eq!(super::bandwidth_weights(&topology, 0, &[0, 1], 0.0), [9, 2]);
    // 218 and 24 GB/s: 9.08 to 1.
    assert_eq!(super::bandwidth_weights(&topology, 0, &[0, 2], 0.0), [9, 1]);
    assert_eq!(super::bandwidth_weights(&self::topology("optane-4node"), 0, &[0, 4], 0.0), [2, 1]);
}
