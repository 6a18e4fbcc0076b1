//! Counts of faults and of events of huge pages.

use nearfar_kernel::thp::ORDERS;

/// Faults, except those that wait for a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Faults that mapped an existing page, such as the zero page or shared memory.
    pub maps: u64,
    /// Faults that allocated a page of private memory, by its order.
    pub pages: [u64; ORDERS],
    /// Faults that read a small page from swap.
    pub swap_ins: u64,
}

impl Faults {
    pub fn since(self, before: Self) -> Self {
        let mut pages = self.pages;
        pages.iter_mut().zip(before.pages).for_each(|(now, before)| *now -= before);
        let swap_ins = self.swap_ins - before.swap_ins;
        Self { maps: self.maps - before.maps, pages, swap_ins }
    }

    /// Add all faults of `more`, except reads from swap.
    pub(super) fn add_fills(&mut self, more: Self) {
        self.maps += more.maps;
        self.pages.iter_mut().zip(more.pages).for_each(|(all, more)| *all += more);
    }

    pub fn count(&self) -> u64 {
        self.maps + self.pages.iter().sum::<u64>() + self.swap_ins
    }
}

/// Events of huge pages and swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// khugepaged or `MADV_COLLAPSE` merged small pages.
    pub merges: u64,
    /// A huge page became small pages.
    pub splits: u64,
    /// A fault took smaller pages, because no block of 2 MiB was free or memory was at its limit.
    pub fallbacks: u64,
    /// A fault freed a block of 2 MiB by direct compaction.
    pub compactions: u64,
    /// Reclaim split a large page to free its unused parts.
    pub shrunk: u64,
    /// Small pages that went to swap.
    pub swap_outs: u64,
    /// Small pages that a merge read from swap.
    pub merge_swap_ins: u64,
}
