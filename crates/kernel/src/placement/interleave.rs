//! `MPOL_INTERLEAVE`: the nodes in turn, a page each; a page for a full node follows that node's
//! fallback order. The page number selects the node (`get_vma_policy` and `interleave_nid` of
//! mm/mempolicy.c, Linux 6.12), so adjacent pages are on successive nodes.

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

/// A single group: `members` in turn with `weights` (1 each if empty). The route of a member is its
/// node's fallback order.
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
