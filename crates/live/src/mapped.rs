//! A far tier that stays mapped: slow pages lie on a memory node, and references to them go through.
//!
//! | node | where | shadow | write-protected |
//! |---|---|---|---|
//! | fast | in the program | none | if the policy watches it |
//! | fast | in the program | in the lot, on the far node | yes |
//! | fast | parked: the next reference is a fault | none, or in the lot | when it is back |
//! | slow | in the program, on the far node | none | if the policy watches it, or it is being copied |
//! | slow | parked, on the far node | none | when it is back |
//!
//! A page moves by a copy from the lot: parked, nobody can write it, and what is read there is the whole
//! truth. `move_pages(2)` would do without parking, but first makes every processor give up the pages that
//! it is about to list (`lru_cache_disable` in mm/migrate.c), for each request. Without a shadow the old
//! frame is free afterwards; with one it stays in the lot, out of everybody's reach, and is the shadow.

use nearfar_kernel::tiering::{NodeId, Page, Refused};

use crate::world::{SLOW_NODE, World, is};
use crate::{Frame, Kernel, Slot};

impl<K: Kernel> World<K> {
    /// Know a page that is in the program's fast memory; if `node` is the slow one, put it there, and
    /// count it as fast if that cannot be done.
    pub(crate) fn map_on(&mut self, page: Page, node: NodeId, accessed: bool) {
        self.used[NodeId::FAST.index()] += 1;
        if node != NodeId::FAST {
            let put = self.put_on_node(page);
            self.counters.over_budget += u64::from(put.is_err() && self.used[0] > self.capacity[0]);
            if put.is_err() && self.has(page, is::PARKED) {
                let _ = self.restore(page, false);
            }
            self.set(page, is::ACCESSED, accessed);
        }
    }

    /// Make a fast page slow: its shadow takes its place if it has one. It is parked until the event is
    /// over, as the policy may arm it next.
    pub(crate) fn put_on_node(&mut self, page: Page) -> Result<(), Refused> {
        let frame = self.park(page)?;
        let far = match self.take_slot(page) {
            Some(shadow) => {
                self.used[SLOW_NODE.index()] -= 1;
                Frame::new(shadow.number())
            }
            None => self.copied_to_node(page, frame)?,
        };
        self.set_frame(page, far);
        self.release_frame(frame);
        self.moved(page, SLOW_NODE);
        self.demoted.push(page);
        Ok(())
    }

    /// Let references to the pages through that were demoted in this event and not armed.
    pub(crate) fn let_demoted_in(&mut self) {
        let mut demoted = std::mem::take(&mut self.demoted);
        for page in demoted.drain(..) {
            if self.has(page, is::SLOW | is::PARKED) && !self.has(page, is::ARMED) {
                let watched = self.has(page, is::PROTECTED) || self.has(page, is::COPYING);
                // If that cannot be done now, the next reference does it.
                let _ = self.restore(page, watched);
            }
        }
        self.demoted = demoted;
    }

    /// A copy on the far node of the frame that the page is parked in.
    fn copied_to_node(&mut self, page: Page, frame: Frame) -> Result<Frame, Refused> {
        let place = self.empty_place().ok_or(Refused::NoFrame)?;
        if let Err(fail) = self.kernel.copy_to_far_node(frame, place) {
            self.empty.push(place);
            let at = self.numbers.place(page);
            return Err(self.refused(fail, "copying to the far node", at));
        }
        self.counters.far_stores += 1;
        Ok(place)
    }

    /// Give the program a fast copy of a slow page. The old frame is its shadow, and the copy
    /// write-protected, or is free.
    pub(crate) fn bring_from_node(&mut self, page: Page, shadow: bool) -> Result<(), Refused> {
        let (frame, at) = (self.park(page)?, self.numbers.place(page));
        self.kernel
            .place_copy(at, frame, shadow, NodeId::FAST)
            .map_err(|fail| self.refused(fail, "copying from the far node", at))?;
        self.set(page, is::PARKED, false);
        self.set(page, is::PRESENT, true);
        if shadow {
            self.set_slot(page, Slot::new(frame.number()));
        } else {
            self.release_frame(frame);
        }
        self.counters.far_loads += 1;
        Ok(())
    }

    /// Let writes to a slow page be seen while it is copied; reads go on.
    pub(crate) fn watch_on_node(&mut self, page: Page) -> Result<(), Refused> {
        if !self.has(page, is::PRESENT) {
            return Ok(());
        }
        let at = self.numbers.place(page);
        self.protect(at, true)
    }
}
