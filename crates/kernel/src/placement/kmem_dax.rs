//! KMEM DAX: persistent or CXL memory added to the running system as nodes without cores, in
//! ZONE_MOVABLE, as `daxctl reconfigure-device --mode=system-ram` does. These nodes hold pages of
//! programs, in fallback order or bound to the nodes (`numactl --membind`), and none of the kernel.

use super::Mode;

pub(super) struct KmemDax;

impl Mode for KmemDax {
    fn name(&self) -> &'static str {
        "kmem-dax"
    }

    fn summary(&self) -> &'static str {
        "memory other than DRAM as nodes without cores, for programs only; --nodes binds to them"
    }
}
