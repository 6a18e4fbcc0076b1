//! `MPOL_INTERLEAVE`: the nodes in turn, a page each; a page meant for a full node goes where that
//! node's fallback order leads. Turns go by the number of a program's page (`get_vma_policy` and
//! `interleave_nid` of mm/mempolicy.c, Linux 6.12), so those in a row take them in order.

use nearfar_hardware::Topology;

use super::{Group, Member, Memory, Mode, Policy, chosen, route};

pub(super) struct Interleave;

impl Mode for Interleave {
    fn name(&self) -> &'static str {
        "interleave"
    }

    fn summary(&self) -> &'static str {
        "the nodes in turn, a page each"
    }

    fn by_number(&self) -> bool {
        true
    }

    fn order(
        &self,
        topology: &Topology,
        memories: &[Memory],
        _: usize,
        policy: &Policy,
    ) -> Vec<Group> {
        turns(topology, memories, &chosen(memories, policy), &[])
    }
}

/// A single group: `members` in turn with their weights (1 each where there are none), each with
/// its node's fallback order as its route.
pub(super) fn turns(
    topology: &Topology,
    memories: &[Memory],
    members: &[usize],
    weights: &[u64],
) -> Vec<Group> {
    let member = |(turn, index): (usize, &usize)| Member {
        weight: weights.get(turn).copied().unwrap_or(1),
        route: route(topology, memories, memories[*index].node),
    };
    vec![members.iter().enumerate().map(member).collect()]
}
