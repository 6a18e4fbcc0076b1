//! The order in which Linux tries nodes when the preferred one is full (`build_zonelists` and
//! `find_next_best_node` of mm/page_alloc.c, Linux 5.18 and later).

/// `PENALTY_FOR_NODE_WITH_CPUS`: additional distance of a node with cores.
const CPU_PENALTY: u64 = 1;
/// Larger than any load, so that load only decides between equal distances.
const MAX_NODES: u64 = 1024;

/// The fallback order of every node, by node number: the nodes `with_memory` from near to far. Nodes
/// numbered below the starting node count as 1 farther. Ties go to the node with the lowest load: the
/// number of earlier orders in which it is the first of its distance.
///
/// The number of `cores` of a node matters only with `hot_added` memory: Linux then rebuilds the orders.
/// At boot it builds them before it counts processors.
pub fn fallback_orders(
    distances: &[Vec<u64>],
    cores: &[u64],
    with_memory: &[usize],
    hot_added: bool,
) -> Vec<Vec<usize>> {
    let count = distances.len();
    let mut load = vec![0u64; count];
    (0..count)
        .map(|from| {
            let mut left: Vec<usize> = with_memory.to_vec();
            let mut order: Vec<usize> = Vec::with_capacity(left.len());
            let mut previous = from;
            while !left.is_empty() {
                let cost = |node: usize| {
                    let mut cost = distances[from][node] + u64::from(node < from);
                    if hot_added && cores[node] > 0 {
                        cost += CPU_PENALTY;
                    }
                    cost * MAX_NODES + load[node]
                };
                // The node itself always comes first, whatever its load.
                let best = match left.iter().position(|node| *node == from) {
                    Some(itself) => itself,
                    None => (0..left.len()).min_by_key(|i| cost(left[*i])).unwrap_or(0),
                };
                let node = left.remove(best);
                if distances[from][node] != distances[from][previous] {
                    load[node] += 1;
                }
                order.push(node);
                previous = node;
            }
            order
        })
        .collect()
}
