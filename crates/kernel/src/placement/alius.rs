//! aliusM (paper 004): DRAM and persistent memory are both system memory, for kernel and programs
//! alike. Pages are placed in DRAM first, near before far; then in persistent memory, interleaved over
//! the nodes of a socket, the own socket before the other.
//!
//! Assumption: the page structures of persistent memory are in the nearest DRAM, as Linux places
//! those of hot-added memory.

use nearfar_hardware::Topology;
use nearfar_hardware::machine::NodeKind;
use nearfar_trace::Result;

use super::{Group, Member, Memory, Mode, Policy, flat, in_order, route};

pub(super) struct Alius;

impl Mode for Alius {
    fn name(&self) -> &'static str {
        "alius"
    }

    fn summary(&self) -> &'static str {
        "near and far DRAM first, then other memory interleaved, own socket first (aliusM)"
    }

    fn memories(&self, topology: &Topology) -> Result<Vec<Memory>> {
        // `false`: no node is in ZONE_MOVABLE, so the kernel can use all nodes.
        Ok(flat(topology, false, |_| true))
    }

    fn order(
        &self,
        topology: &Topology,
        memories: &[Memory],
        from: usize,
        _: &Policy,
    ) -> Vec<Group> {
        let (dram, rest): (Vec<usize>, Vec<usize>) = route(topology, memories, from)
            .into_iter()
            .partition(|index| topology.nodes[memories[*index].node].kind == NodeKind::Dram);
        let mut groups = vec![in_order(dram)];
        let socket = |index: usize| topology.sockets[memories[index].node];
        let mut sockets: Vec<u64> = Vec::new();
        for index in &rest {
            if !sockets.contains(&socket(*index)) {
                sockets.push(socket(*index));
            }
        }
        sockets.sort_by_key(|s| *s != topology.sockets[from]);
        for wanted in sockets {
            let mut members: Vec<usize> =
                rest.iter().copied().filter(|index| socket(*index) == wanted).collect();
            members.sort_unstable();
            let member = |index| Member { weight: 1, route: vec![index] };
            groups.push(members.into_iter().map(member).collect());
        }
        groups
    }
}
