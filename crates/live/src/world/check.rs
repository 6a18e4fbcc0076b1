//! What must hold of the memory between events.

use nearfar_kernel::tiering::Page;

use super::{Held, Sizes, World, is};
use crate::Kernel;

impl<K: Kernel> World<K> {
    /// Everything that must hold between events.
    ///
    /// # Errors
    /// A description of what does not.
    pub fn check(&self) -> Result<(), String> {
        let mut used = [0, 0];
        let (mut windowed, mut stuck) = (0, 0);
        let mut lot = self.empty.len() + self.unused.len() + self.spare.len();
        lot += self.unnumbered.values().filter(|held| matches!(held, Held::Parked(_))).count();
        let mut next = self.mapped_from(Page::new(0));
        while let Some(page) = next {
            let slow = self.has(page, is::SLOW);
            used[self.node(page).index()] += 1;
            used[1] += u64::from(!slow && self.slot(page).is_some());
            used[usize::from(!slow)] += u64::from(self.has(page, is::COPYING));
            windowed += u64::from(self.in_window(page));
            stuck += u64::from(self.has(page, is::STUCK));
            lot += usize::from(self.has(page, is::PARKED));
            lot += usize::from(self.mapped && self.slot(page).is_some());
            let state = self.flags[page.index()];
            let wrong = if self.has(page, is::PRESENT | is::PARKED) {
                "is in two places"
            } else if self.in_slot(page) && (self.mapped || !slow || self.slot(page).is_none()) {
                "is nowhere"
            } else if !slow && self.slot(page).is_some() && !self.has(page, is::PROTECTED) {
                "has a shadow and may be written"
            } else if slow && !self.mapped && self.has(page, is::ARMED) {
                "is stored and armed"
            } else if slow && self.mapped && self.slot(page).is_some() {
                "is slow and has a shadow"
            } else if self.has(page, is::STUCK) && !self.in_window(page) {
                "is stuck in a window that it is not in"
            } else if self.unnumbered.contains_key(&self.numbers.place(page)) {
                "has a number and has none"
            } else if self.has(page, is::ARMED) && !self.has(page, is::PARKED) {
                "is armed and there"
            } else {
                next = self.mapped_from(page.skip(1));
                continue;
            };
            return Err(format!("{page:?} {wrong} ({state:#b})"));
        }
        let lot_size = self.lot_size();
        for (what, counted, kept) in [
            ("fast", used[0], self.used[0]),
            ("slow", used[1], self.used[1]),
            ("window", windowed, self.windowed),
            ("stuck", stuck, self.stuck_pages),
            ("lot", lot as u64, lot_size),
        ] {
            if counted != kept {
                return Err(format!("{what}: {counted} pages, {kept} kept"));
            }
        }
        Ok(())
    }

    fn lot_size(&self) -> u64 {
        let ([fast, far], window, mapped) = (self.capacity, self.window_size, self.mapped);
        Sizes { fast, far, window, spare: self.spare_size, pages: 0, mapped }.lot().into()
    }
}
