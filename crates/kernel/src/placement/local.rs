//! Linux's default: a page is allocated on the node of the core that touches it or, if that is full, on the
//! next in fallback order. Persistent memory stays a device; CXL memory is system memory.

use nearfar_hardware::Topology;
use nearfar_hardware::machine::NodeKind;
use nearfar_trace::Result;

use super::{Memory, Mode, flat};

pub(super) struct Local;

impl Mode for Local {
    fn name(&self) -> &'static str {
        "local"
    }

    fn summary(&self) -> &'static str {
        "the core's own node, then other nodes in fallback order; persistent memory stays a device"
    }

    fn memories(&self, topology: &Topology) -> Result<Vec<Memory>> {
        Ok(flat(topology, true, |kind| kind != NodeKind::Pmem))
    }
}
