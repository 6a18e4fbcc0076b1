//! The policy's view of the live memory, and its actions. [`Memory`] documents the contract.

use nearfar_kernel::tiering::{
    Capability, Commit, Context, DropReason, Limit, Memory, NodeId, Page, Refused, Tenant, Thread,
    Time,
};

use super::page_table::PageState;
use super::{FAR_NODE, PageFlags, World};
use crate::Kernel;

impl<K: Kernel> World<K> {
    /// The state of a mapped page.
    fn mapped_state(&self, page: Page) -> Result<PageState, Refused> {
        let state = self.pages.state(page);
        if state.is_mapped() { Ok(state) } else { Err(Refused::State) }
    }

    /// The state of a page that may be moved.
    fn movable(&self, page: Page) -> Result<PageState, Refused> {
        let state = self.mapped_state(page)?;
        if state.has(PageFlags::COPYING) { Err(Refused::Busy) } else { Ok(state) }
    }

    /// Charge a moved page to its new node.
    pub(super) fn moved(&mut self, page: Page, to: NodeId) {
        self.budget.uncharge(self.pages.state(page).node());
        self.budget.charge(to);
        let cleared =
            PageFlags::ARMED | PageFlags::ACCESSED | PageFlags::PROTECTED | PageFlags::PASS_NEXT;
        self.pages.set(page, cleared, false);
        self.pages.set_node(page, to);
    }

    /// Make a far page fast, writable and without a slot.
    fn promote(&mut self, page: Page) -> Result<(), Refused> {
        if self.far_is_mapped {
            self.copy_from_node(page, false)?;
        } else if self.pages.state(page).is_stored() {
            self.load(page, false)?;
        } else {
            self.take_from_window(page)?;
        }
        self.free_slot(page);
        self.moved(page, NodeId::FAST);
        self.counters.promotions += 1;
        Ok(())
    }

    /// Remove a page from the window (far pages in the program's memory), and make it writable.
    fn take_from_window(&mut self, page: Page) -> Result<(), Refused> {
        let state = self.pages.state(page);
        if state.is_parked() {
            self.restore(page, false)?;
        } else if self.pages.slot(page).is_some() || state.has(PageFlags::PROTECTED) {
            self.protect(self.numbers.address_of(page), false)?;
        }
        self.leave_window(page);
        Ok(())
    }

    /// Make a far page fast. Its slot becomes its shadow.
    fn promote_with_shadow(&mut self, page: Page) -> Result<(), Refused> {
        let state = self.pages.state(page);
        if self.far_is_mapped {
            self.copy_from_node(page, true)?;
        } else if state.is_stored() {
            self.load(page, true)?;
        } else if state.is_resident() && self.pages.slot(page).is_some() {
            // In the window and clean: it is write-protected.
            self.leave_window(page);
        } else {
            return Err(Refused::State);
        }
        self.moved(page, NodeId::FAST);
        self.pages.set(page, PageFlags::PROTECTED, true);
        self.budget.charge(FAR_NODE);
        self.counters.promotions += 1;
        self.counters.shadow_copies += 1;
        Ok(())
    }

    /// Store a fast page, in its shadow's slot if it has one.
    fn demote(&mut self, page: Page) -> Result<(), Refused> {
        if self.far_is_mapped {
            return self.move_to_node(page);
        }
        let shadowed = self.pages.slot(page).is_some();
        // If there is no room, the page stays parked until the next reference.
        self.store(page)?;
        if shadowed {
            self.budget.uncharge(FAR_NODE);
        }
        self.moved(page, FAR_NODE);
        Ok(())
    }
}

impl<K: Kernel> Memory for World<K> {
    fn now(&self) -> Time {
        self.event.now
    }
    fn page_limit(&self) -> u32 {
        self.numbers.limit()
    }
    fn next_mapped(&self, from: Page) -> Option<Page> {
        self.next_mapped_page(from)
    }
    fn nodes(&self) -> u8 {
        2
    }
    fn capacity(&self, node: NodeId) -> u64 {
        self.budget.capacity[node.index()]
    }
    fn free(&self, node: NodeId) -> u64 {
        // First touches do not wait for room, so they may exceed the budget.
        self.budget.capacity[node.index()].saturating_sub(self.budget.used[node.index()])
    }
    fn loaded_latency(&self, _: NodeId) -> Option<Time> {
        None
    }
    fn has(&self, capability: Capability) -> bool {
        capability == Capability::AccessedBits
            || (self.far_is_mapped && capability == Capability::FarIsMapped)
    }
    fn tenants(&self) -> u16 {
        1
    }
    fn tenant_of(&self, _: Page) -> Tenant {
        Tenant::ONLY
    }
    fn used(&self, _: Tenant, node: NodeId) -> u64 {
        self.budget.used[node.index()]
    }
    fn limit(&self, _: Tenant, node: NodeId) -> Limit {
        Limit { low: 0, max: self.budget.capacity[node.index()] }
    }
    fn mapped(&self, page: Page) -> bool {
        self.pages.state(page).is_mapped()
    }
    fn node_of(&self, page: Page) -> NodeId {
        self.pages.state(page).node()
    }
    fn span(&self, _: Page) -> u32 {
        1
    }
    fn accessed(&self, page: Page) -> bool {
        self.pages.state(page).has(PageFlags::ACCESSED)
    }
    fn dirty(&self, _: Page) -> bool {
        false
    }
    fn hint_armed(&self, page: Page) -> bool {
        let state = self.pages.state(page);
        if !self.far_is_mapped && state.is_far() {
            return state.is_stored() && !state.has(PageFlags::PASS_NEXT);
        }
        state.has(PageFlags::ARMED)
    }
    fn write_protected(&self, page: Page) -> bool {
        self.pages.state(page).has(PageFlags::PROTECTED)
    }
    fn shadow_of(&self, page: Page) -> Option<NodeId> {
        let shadow = !self.pages.state(page).is_far() && self.pages.slot(page).is_some();
        shadow.then_some(FAR_NODE)
    }

    /// Parks a page that is fast, or far on a memory node, so that its next reference faults.
    fn clear_accessed(&mut self, page: Page) -> bool {
        let state = self.pages.state(page);
        if !state.is_mapped() {
            return false;
        }
        self.pages.set(page, PageFlags::ACCESSED, false);
        if state.is_resident() && (self.far_is_mapped || !state.is_far()) {
            // A page that cannot be parked looks idle, but cannot be demoted either.
            let _ = self.park(page);
        }
        state.has(PageFlags::ACCESSED)
    }

    fn arm_hint(&mut self, page: Page) -> Result<(), Refused> {
        let state = self.mapped_state(page)?;
        if !self.far_is_mapped && state.is_far() {
            if self.in_window(page) {
                self.evict(page)?;
            }
            self.pages.set(page, PageFlags::PASS_NEXT, false);
        } else {
            self.park(page)?;
            self.pages.set(page, PageFlags::ARMED, true);
        }
        Ok(())
    }

    fn disarm_hint(&mut self, page: Page) {
        let state = self.pages.state(page);
        if state.is_mapped() {
            self.pages.set(page, PageFlags::PASS_NEXT, state.is_far() && state.is_stored());
            self.pages.set(page, PageFlags::ARMED, false);
            self.pages.set(page, PageFlags::ACCESSED, true);
        }
    }

    fn write_protect(&mut self, page: Page) -> Result<(), Refused> {
        if self.mapped_state(page)?.is_resident() {
            self.protect(self.numbers.address_of(page), true)?;
        }
        self.pages.set(page, PageFlags::PROTECTED, true);
        Ok(())
    }

    fn unprotect(&mut self, page: Page) -> Result<(), Refused> {
        let state = self.mapped_state(page)?;
        let has_slot = self.pages.slot(page).is_some();
        if !state.is_far() && has_slot {
            return Err(Refused::State);
        }
        // In the window, a page with a slot stays write-protected, so that a write frees the slot.
        if state.is_resident() && !has_slot {
            self.protect(self.numbers.address_of(page), false)?;
        }
        self.pages.set(page, PageFlags::PROTECTED, false);
        Ok(())
    }

    fn move_page(&mut self, page: Page, to: NodeId) -> Result<(), Refused> {
        if self.movable(page)?.node() == to || to.index() >= 2 {
            return Err(Refused::State);
        }
        if to == NodeId::FAST {
            if self.free(to) == 0 {
                return Err(Refused::NoFrame);
            }
            return self.promote(page);
        }
        let shadowed = self.pages.slot(page).is_some();
        if self.free(to) == 0 && !shadowed {
            return Err(Refused::NoFrame);
        }
        self.demote(page)?;
        // A shadow is reused, but the contract of `Memory::move_page` counts it as reclaimed.
        self.counters.shadows_reclaimed += u64::from(shadowed);
        self.counters.demotions_copied += 1;
        Ok(())
    }

    /// A far page that is writable in the window is stored first. A stored page is loaded when the copy ends:
    /// until then, a write to it faults. On a memory node, the page is write-protected instead, and reads do
    /// not fault.
    fn begin_copy(&mut self, page: Page, to: NodeId, wake: Thread) -> Result<(), Refused> {
        let state = self.movable(page)?;
        let (far, has_slot) = (state.is_far(), self.pages.slot(page).is_some());
        if state.node() == to || to.index() >= 2 || (!far && has_slot) {
            return Err(Refused::State);
        }
        if self.free(to) == 0 {
            return Err(Refused::NoFrame);
        }
        if far && self.far_is_mapped {
            if state.is_resident() {
                self.protect(self.numbers.address_of(page), true)?;
            }
        } else if far && self.in_window(page) && !has_slot {
            self.evict(page)?;
            self.pages.set(page, PageFlags::PASS_NEXT, true);
        } else if !far {
            self.park(page)?;
        }
        let is_stored = far && self.pages.state(page).is_stored();
        let fetching = match self.pages.slot(page).filter(|_| is_stored) {
            Some(slot) => self.fetch(slot)?.map(|_| slot),
            None => None,
        };
        self.pages.set(page, PageFlags::COPYING, true);
        self.pages.set(page, PageFlags::WRITTEN, false);
        self.budget.charge(to);
        match fetching {
            Some(slot) => self.fetching.push((slot, page, wake)),
            None => self.event.begun.push((page, wake)),
        }
        Ok(())
    }

    fn commit_copy(&mut self, page: Page, keep_shadow: bool) -> Result<Commit, Refused> {
        let state = self.pages.state(page);
        if !state.has(PageFlags::COPYING) {
            return Err(Refused::State);
        }
        if self.event.begun.iter().any(|(begun, _)| *begun == page)
            || self.fetching.iter().any(|(_, begun, _)| *begun == page)
        {
            return Err(Refused::Busy);
        }
        let far = state.is_far();
        if keep_shadow && !far {
            return Err(Refused::State);
        }
        // A fast page was parked when the copy began. It is unchanged if it still is.
        let written = state.has(PageFlags::WRITTEN) || (!far && !state.is_parked());
        self.end_copy(page);
        if written {
            self.counters.aborts += 1;
            return Ok(Commit::Dirtied);
        }
        let done = match (far, keep_shadow) {
            (true, true) => self.promote_with_shadow(page),
            (true, false) => self.promote(page),
            (false, _) => self.demote(page).map(|()| self.counters.demotions_copied += 1),
        };
        Ok(if done.is_ok() { Commit::Done } else { Commit::Pinned })
    }

    fn remap_to_shadow(&mut self, page: Page) -> Result<(), Refused> {
        self.movable(page)?;
        if self.shadow_of(page).is_none() {
            return Err(Refused::State);
        }
        self.demote(page)?;
        self.counters.demotions_remapped += 1;
        Ok(())
    }

    fn drop_shadow(&mut self, page: Page, why: DropReason) -> Result<(), Refused> {
        if self.shadow_of(page).is_none() {
            return Err(Refused::State);
        }
        self.free_slot(page);
        self.budget.uncharge(FAR_NODE);
        match why {
            DropReason::Written => self.counters.shadow_faults += 1,
            DropReason::Reclaimed => self.counters.shadows_reclaimed += 1,
        }
        Ok(())
    }

    fn split(&mut self, _: Page) -> Result<(), Refused> {
        Err(Refused::State)
    }

    fn spawn(&mut self, name: &'static str, _: Context) -> Thread {
        self.spawn_worker(name)
    }

    fn wake(&mut self, thread: Thread) {
        if self.workers.running != Some(thread.index()) {
            self.wake_worker(thread);
        }
    }

    fn sample_every(&mut self, _: u64, _: u64) {}
}
