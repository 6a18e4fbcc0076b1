//! `MPOL_WEIGHTED_INTERLEAVE` (Linux 6.9): the nodes in turn. The page number selects the node, as
//! in `interleave`; a node's weight is its number of consecutive pages per turn.

use nearfar_hardware::Topology;
use nearfar_hardware::node::Pattern;

use super::interleave::turns;
use super::{Group, Memory, Mode, Policy, chosen};

/// Largest weight tried, which limits the adjacent pages on a node.
const LARGEST: u64 = 64;
/// Share of the best bandwidth that smaller weights must reach to be preferred.
const ENOUGH: f64 = 0.99;

pub(super) struct WeightedInterleave;

impl Mode for WeightedInterleave {
    fn name(&self) -> &'static str {
        "weighted-interleave"
    }

    fn summary(&self) -> &'static str {
        "the nodes in turn, pages in proportion to bandwidth or --weights"
    }

    fn by_number(&self) -> bool {
        true
    }

    fn order(
        &self,
        topology: &Topology,
        memories: &[Memory],
        from: usize,
        policy: &Policy,
    ) -> Vec<Group> {
        let members = chosen(memories, policy);
        let nodes: Vec<usize> = members.iter().map(|index| memories[*index].node).collect();
        let weights = match policy.weights.is_empty() {
            // By read bandwidth: the share of writes is 0.
            true => bandwidth_weights(topology, from, &nodes, 0.0),
            // `members` are in order of node numbers, weights in order of the policy's nodes.
            false => {
                let named = if policy.nodes.is_empty() { &nodes } else { &policy.nodes };
                let weight = |node: &usize| {
                    let place = named.iter().position(|other| other == node);
                    place.and_then(|place| policy.weights.get(place)).copied().unwrap_or(1)
                };
                nodes.iter().map(weight).collect()
            }
        };
        turns(topology, memories, &members, &weights)
    }
}

/// Interleaving weights of `nodes` for cores of node `from`, in proportion to bandwidth B. A share
/// `writes` of the bytes is written: 1/B = (1 - writes)/B_read + writes/B_write. The link between
/// sockets limits B of remote nodes. Of weights up to 64, the smallest that reach 99 % of the best
/// total bandwidth.
pub fn bandwidth_weights(
    topology: &Topology,
    from: usize,
    nodes: &[usize],
    writes: f64,
) -> Vec<u64> {
    let speed = |node: &usize| {
        let view = topology.view(from, *node);
        let bandwidth = |write| view.bandwidth(Pattern { write, random: false });
        let rate = 1.0 / ((1.0 - writes) / bandwidth(false) + writes / bandwidth(true));
        let crosses = !topology.same_socket(from, *node);
        topology.link.filter(|_| crosses).map_or(rate, |link| rate.min(link))
    };
    let speeds: Vec<f64> = nodes.iter().map(speed).collect();
    let fastest = speeds.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let weights = |largest: u64| -> Vec<u64> {
        let weight = |speed: &f64| ((largest as f64 * speed / fastest).round() as u64).max(1);
        speeds.iter().map(weight).collect()
    };
    // A node is busy for weight / speed. The one that is busy longest limits the total bandwidth.
    let total = |weights: &[u64]| {
        let busy = weights.iter().zip(&speeds).map(|(weight, speed)| *weight as f64 / speed);
        weights.iter().sum::<u64>() as f64 / busy.fold(f64::MIN_POSITIVE, f64::max)
    };
    let best = (1..=LARGEST).map(|k| total(&weights(k))).fold(0.0, f64::max);
    let smallest = (1..=LARGEST).find(|k| total(&weights(*k)) >= ENOUGH * best);
    weights(smallest.unwrap_or(1))
}
