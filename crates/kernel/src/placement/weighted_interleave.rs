//! `MPOL_WEIGHTED_INTERLEAVE` (Linux 6.9): the nodes in turn, as many pages in a row as each has
//! weight. Weights in proportion to bandwidth make the whole as fast as all nodes together, for
//! threads enough to fill them; a single stream sees the harmonic mean and gains nothing.

use nearfar_hardware::Topology;
use nearfar_hardware::topology::Pattern;
use nearfar_trace::Result;

use super::interleave::turns;
use super::{Group, Memory, Mode, Policy, chosen, flat};

/// Largest weight given to a node: coarse enough for short turns.
const LARGEST: f64 = 32.0;

pub(super) struct WeightedInterleave;

impl Mode for WeightedInterleave {
    fn name(&self) -> &'static str {
        "weighted-interleave"
    }

    fn summary(&self) -> &'static str {
        "the nodes in turn, pages in proportion to bandwidth or --weights"
    }

    fn memories(&self, topology: &Topology) -> Result<Vec<Memory>> {
        Ok(flat(topology, true, |_| true))
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
            true => bandwidth_weights(topology, from, &nodes, 0.0),
            false => policy.weights.clone(),
        };
        turns(topology, memories, &members, &weights)
    }
}

/// Weights in proportion to the bandwidth of `nodes` seen from `from`, when the share `writes` of
/// the bytes are stores (1/B = r/B_read + (1-r)/B_write): whole numbers, the largest 32, then
/// divided by what they have in common.
pub fn bandwidth_weights(
    topology: &Topology,
    from: usize,
    nodes: &[usize],
    writes: f64,
) -> Vec<u64> {
    let speed = |node: &usize| {
        let view = topology.view(from, *node);
        let of = |write| view.bandwidth(Pattern { write, random: false });
        1.0 / ((1.0 - writes) / of(false) + writes / of(true))
    };
    let speeds: Vec<f64> = nodes.iter().map(speed).collect();
    let most = speeds.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let weight = |speed: &f64| ((LARGEST * speed / most).round() as u64).max(1);
    let weights: Vec<u64> = speeds.iter().map(weight).collect();
    let common = weights.iter().copied().fold(0, divisor).max(1);
    weights.into_iter().map(|weight| weight / common).collect()
}

/// The greatest common divisor.
fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}
