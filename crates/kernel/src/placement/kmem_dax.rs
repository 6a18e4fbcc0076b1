//! KMEM DAX: persistent or CXL memory added to the running system as nodes without cores, in
//! ZONE_MOVABLE, as `daxctl reconfigure-device --mode=system-ram` does. Programs use it when the
//! DRAM before it in the fallback order is full, or when they are bound to it (`nodes`: `numactl
//! --membind`); the kernel's own pages are never in it.

use super::Mode;

pub(super) struct KmemDax;

impl Mode for KmemDax {
    fn name(&self) -> &'static str {
        "kmem-dax"
    }

    fn summary(&self) -> &'static str {
        "other memory as nodes without cores, for programs only; --nodes binds to them"
    }
}
