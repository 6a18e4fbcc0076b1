//! Settings of the kernel for huge pages.

use nearfar_kernel::thp::Policy;
use nearfar_kernel::thp::khugepaged;

use super::SMALL;

/// Huge-page settings of the kernel, and its memory.
#[derive(Clone, Debug)]
pub struct Settings {
    pub policy: Policy,
    pub khugepaged: Option<khugepaged::Rules>,
    /// Free blocks of 2 MiB at the start.
    pub free: u64,
    /// Limit of private memory, in pages of 4 KiB; `None`: no limit.
    pub limit: Option<u64>,
    /// Maximum zero-filled pages of 4 KiB in a huge page; above, reclaim splits it (`max_ptes_none`).
    pub max_none: u64,
}

impl Settings {
    /// One page size, without khugepaged, a memory limit or splits by reclaim.
    pub fn only(shift: u32) -> Self {
        let policy = Policy::only(shift - SMALL);
        Self { policy, khugepaged: None, free: u64::MAX, limit: None, max_none: u64::MAX }
    }
}
