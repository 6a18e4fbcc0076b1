//! A far tier that stays mapped: far pages are on a memory node, and the program references them in place.
//!
//! | node | location | shadow | write-protected |
//! |---|---|---|---|
//! | fast | resident | none | if the policy has protected it |
//! | fast | resident | parked on the far node | yes |
//! | fast | parked: the next reference faults | none, or parked on the far node | when it is resident again |
//! | far | resident on the far node | none | if the policy has protected it, or it is being copied |
//! | far | parked on the far node | none | when it is resident again |
//!
//! To move, a page is first parked: its frame leaves the program's memory for the parking area, where nobody
//! can write it. Then it is copied, or its shadow replaces it. Its old frame is freed, or stays parked as its
//! shadow. `move_pages(2)` would not need parking, but each call first drains the page lists of every
//! processor (`lru_cache_disable` in mm/migrate.c).

use nearfar_kernel::tiering::{NodeId, Page, Refused};

use super::{FAR_NODE, PageFlags, World};
use crate::{Frame, Kernel, Slot};

impl<K: Kernel> World<K> {
    /// Charge a new page that is in the program's fast memory. If `node` is the far one, move the page there;
    /// if that fails, it counts as fast.
    pub(super) fn map_on_node(&mut self, page: Page, node: NodeId, accessed: bool) {
        self.budget.charge(NodeId::FAST);
        if node != NodeId::FAST {
            let moved = self.move_to_node(page);
            if moved.is_err() {
                let is_over = self.budget.used[0] > self.budget.capacity[0];
                self.counters.over_budget += u64::from(is_over);
                if self.pages.state(page).is_parked() {
                    // `false`: writable. If this fails, the next reference restores the page.
                    let _ = self.restore(page, false);
                }
            }
            self.pages.set(page, PageFlags::ACCESSED, accessed);
        }
    }

    /// Move a fast page to the far node: to its shadow's frame, or by a copy. The page stays parked until the
    /// event ends, because the policy may arm a hint fault on it next.
    pub(super) fn move_to_node(&mut self, page: Page) -> Result<(), Refused> {
        let frame = self.park(page)?;
        let far = match self.pages.take_slot(page) {
            // The shadow's frame serves as its slot.
            Some(shadow) => {
                self.budget.uncharge(FAR_NODE);
                Frame::new(shadow.number())
            }
            None => self.copy_to_node(page, frame)?,
        };
        self.pages.set_frame(page, far);
        self.release_frame(frame);
        self.moved(page, FAR_NODE);
        self.event.demoted.push(page);
        Ok(())
    }

    /// Make the pages resident that were demoted in this event and not armed.
    pub(super) fn restore_demoted(&mut self) {
        let mut demoted = std::mem::take(&mut self.event.demoted);
        for page in demoted.drain(..) {
            let state = self.pages.state(page);
            if state.is_far() && state.is_parked() && !state.has(PageFlags::ARMED) {
                let protect = state.has(PageFlags::PROTECTED) || state.has(PageFlags::COPYING);
                // If this fails, the next reference restores the page.
                let _ = self.restore(page, protect);
            }
        }
        self.event.demoted = demoted;
    }

    /// Copy the page's parked frame to a new frame on the far node.
    fn copy_to_node(&mut self, page: Page, frame: Frame) -> Result<Frame, Refused> {
        let to = self.empty_place().ok_or(Refused::NoFrame)?;
        if let Err(fail) = self.kernel.copy_to_far_node(frame, to) {
            self.parking.empty.push(to);
            let at = self.numbers.address_of(page);
            return Err(self.refused(fail, "copying to the far node", at));
        }
        self.counters.far_stores += 1;
        Ok(to)
    }

    /// Replace a far page by a fast copy. With `shadow`, the copy is write-protected and the old frame
    /// becomes its shadow; otherwise the old frame is freed.
    pub(super) fn copy_from_node(&mut self, page: Page, shadow: bool) -> Result<(), Refused> {
        let (frame, at) = (self.park(page)?, self.numbers.address_of(page));
        self.kernel
            .place_copy(at, frame, shadow, NodeId::FAST)
            .map_err(|fail| self.refused(fail, "copying from the far node", at))?;
        self.pages.make_resident(page);
        if shadow {
            self.pages.set_slot(page, Slot::new(frame.number()));
        } else {
            self.release_frame(frame);
        }
        self.counters.far_loads += 1;
        Ok(())
    }
}
