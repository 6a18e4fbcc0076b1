//! Invariants that hold between events, in terms of `world.rs` (window, slot, parking area).

use nearfar_kernel::tiering::Page;

use super::{Backing, FAR_NODE, PageFlags, Sizes, World};
use crate::Kernel;

impl<K: Kernel> World<K> {
    /// Check all invariants.
    ///
    /// # Errors
    /// A description of the first violation.
    pub fn check(&self) -> Result<(), String> {
        let mut used = [0, 0];
        let (mut in_window, mut stuck) = (0, 0);
        let parking = &self.parking;
        let mut parking_places = parking.empty.len() + parking.unused.len() + parking.spare.len();
        let is_parked = |backing: &&Backing| matches!(backing, Backing::Parked(_));
        parking_places += self.unnumbered.values().filter(is_parked).count();
        let mut next = self.next_mapped_page(Page::new(0));
        while let Some(page) = next {
            let (state, has_slot) = (self.pages.state(page), self.pages.slot(page).is_some());
            let (far, armed) = (state.is_far(), state.has(PageFlags::ARMED));
            used[state.node().index()] += 1;
            used[FAR_NODE.index()] += u64::from(!far && has_slot);
            // A copy in progress is charged to its destination too.
            used[usize::from(!far)] += u64::from(state.has(PageFlags::COPYING));
            in_window += u64::from(self.in_window(page));
            stuck += u64::from(state.has(PageFlags::STUCK));
            parking_places += usize::from(state.is_parked());
            // If the far tier is a memory node, a shadow's slot is a place of the parking area.
            parking_places += usize::from(self.far_is_mapped && has_slot);
            let wrong = if state.is_stored() && (self.far_is_mapped || !far || !has_slot) {
                "has no location"
            } else if !far && has_slot && !state.has(PageFlags::PROTECTED) {
                "has a shadow and may be written"
            } else if far && !self.far_is_mapped && armed {
                "is stored and armed"
            } else if far && self.far_is_mapped && has_slot {
                "is far and has a shadow"
            } else if state.has(PageFlags::STUCK) && !self.in_window(page) {
                "is stuck in a window that it is not in"
            } else if self.unnumbered.contains_key(&self.numbers.address_of(page)) {
                "is numbered and unnumbered"
            } else if armed && !state.is_parked() {
                "is armed and resident"
            } else {
                next = self.next_mapped_page(page.skip(1));
                continue;
            };
            return Err(format!("{page:?} {wrong} ({state:?})"));
        }
        for (what, counted, recorded) in [
            ("fast", used[0], self.budget.used[0]),
            ("far", used[1], self.budget.used[1]),
            ("window", in_window, self.window.count),
            ("stuck", stuck, self.window.stuck_count),
            ("parking", parking_places as u64, self.parking_size()),
        ] {
            if counted != recorded {
                return Err(format!("{what}: {counted} pages, {recorded} recorded"));
            }
        }
        Ok(())
    }

    fn parking_size(&self) -> u64 {
        let ([fast, far], window) = (self.budget.capacity, self.window.limit);
        let (spare, far_is_mapped) = (self.parking.spare_limit, self.far_is_mapped);
        Sizes { fast, far, window, spare, pages: 0, far_is_mapped }.parking().into()
    }
}
