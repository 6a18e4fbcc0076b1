//! `MPOL_PREFERRED_MANY` (Linux 5.15): the policy's nodes in fallback order; when they are full, the
//! other nodes in fallback order.

use nearfar_hardware::Topology;

use super::{Group, Memory, Mode, Policy, chosen, in_order, route};

pub(super) struct PreferredMany;

impl Mode for PreferredMany {
    fn name(&self) -> &'static str {
        "preferred-many"
    }

    fn summary(&self) -> &'static str {
        "the nodes of --nodes, near before far, then all others"
    }

    fn order(
        &self,
        topology: &Topology,
        memories: &[Memory],
        from: usize,
        policy: &Policy,
    ) -> Vec<Group> {
        let preferred = chosen(memories, policy);
        let (first, then): (Vec<usize>, Vec<usize>) = route(topology, memories, from)
            .into_iter()
            .partition(|index| preferred.contains(index));
        vec![in_order(first), in_order(then)]
    }
}
