//! The actions of a policy on the live memory: the contract is in [`Memory`].

use nearfar_kernel::tiering::{
    Capability, Commit, Context, DropReason, Limit, Memory, NodeId, Page, Refused, Tenant, Thread,
    Time,
};

use crate::Kernel;
use crate::world::{SLOW_NODE, World, is};

impl<K: Kernel> World<K> {
    /// A page that may be moved.
    fn movable(&self, page: Page) -> Result<(), Refused> {
        if !self.has(page, is::MAPPED) {
            return Err(Refused::State);
        }
        if self.has(page, is::COPYING) {
            return Err(Refused::Busy);
        }
        Ok(())
    }

    /// The page moves from one node to the other: what both kinds of move have in common.
    pub(crate) fn moved(&mut self, page: Page, to: NodeId) {
        let from = self.node(page);
        self.used[from.index()] -= 1;
        self.used[to.index()] += 1;
        let bits = is::ARMED | is::ACCESSED | is::PROTECTED | is::PASSING;
        self.set(page, bits, false);
        self.set(page, is::SLOW, to != NodeId::FAST);
    }

    /// Make a slow page fast, writable and without a slot.
    fn promote(&mut self, page: Page) -> Result<(), Refused> {
        if self.mapped {
            self.bring_from_node(page, false)?;
        } else if self.in_slot(page) {
            self.bring(page, false)?;
        } else {
            self.leave(page)?;
        }
        self.free_slot(page);
        self.moved(page, NodeId::FAST);
        self.counters.promotions += 1;
        Ok(())
    }

    /// Take a page out of the window, writable.
    fn leave(&mut self, page: Page) -> Result<(), Refused> {
        if self.has(page, is::PARKED) {
            self.restore(page, false)?;
        } else if self.slot(page).is_some() || self.has(page, is::PROTECTED) {
            let at = self.numbers.place(page);
            self.protect(at, false)?;
        }
        self.leave_window(page);
        Ok(())
    }

    /// Make a slow page fast, its slot its shadow.
    fn promote_with_shadow(&mut self, page: Page) -> Result<(), Refused> {
        if self.mapped {
            self.bring_from_node(page, true)?;
        } else if self.in_slot(page) {
            self.bring(page, true)?;
        } else if self.has(page, is::PRESENT) && self.slot(page).is_some() {
            // In the window and clean: it is there, and write-protected.
            self.leave_window(page);
        } else {
            return Err(Refused::State);
        }
        self.moved(page, NodeId::FAST);
        self.set(page, is::PROTECTED, true);
        self.used[SLOW_NODE.index()] += 1;
        self.counters.promotions += 1;
        self.counters.shadow_copies += 1;
        Ok(())
    }

    /// Put a fast page into a slot: that of its shadow if it has one.
    pub(crate) fn demote(&mut self, page: Page) -> Result<(), Refused> {
        if self.mapped {
            return self.put_on_node(page);
        }
        let shadowed = self.slot(page).is_some();
        // If there is no room its frame stays in the lot, where the next reference finds it.
        self.store(page)?;
        self.used[SLOW_NODE.index()] -= u64::from(shadowed);
        self.moved(page, SLOW_NODE);
        Ok(())
    }
}

impl<K: Kernel> Memory for World<K> {
    fn now(&self) -> Time {
        self.event
    }
    fn page_limit(&self) -> u32 {
        self.numbers.limit()
    }
    fn next_mapped(&self, from: Page) -> Option<Page> {
        self.mapped_from(from)
    }
    fn nodes(&self) -> u8 {
        2
    }
    fn capacity(&self, node: NodeId) -> u64 {
        self.capacity[node.index()]
    }
    fn free(&self, node: NodeId) -> u64 {
        // Pages that the program would not wait for are over the budget.
        self.capacity[node.index()].saturating_sub(self.used[node.index()])
    }
    fn loaded_latency(&self, _: NodeId) -> Option<Time> {
        None
    }
    fn has(&self, capability: Capability) -> bool {
        capability == Capability::AccessedBits
            || (self.mapped && capability == Capability::FarIsMapped)
    }
    fn tenants(&self) -> u16 {
        1
    }
    fn tenant_of(&self, _: Page) -> Tenant {
        Tenant::ONLY
    }
    fn used(&self, _: Tenant, node: NodeId) -> u64 {
        self.used[node.index()]
    }
    fn limit(&self, _: Tenant, node: NodeId) -> Limit {
        Limit { low: 0, max: self.capacity[node.index()] }
    }
    fn mapped(&self, page: Page) -> bool {
        World::has(self, page, is::MAPPED)
    }
    fn node_of(&self, page: Page) -> NodeId {
        self.node(page)
    }
    fn span(&self, _: Page) -> u32 {
        1
    }
    fn accessed(&self, page: Page) -> bool {
        World::has(self, page, is::ACCESSED)
    }
    fn dirty(&self, _: Page) -> bool {
        false
    }
    fn hint_armed(&self, page: Page) -> bool {
        if !self.mapped && World::has(self, page, is::MAPPED | is::SLOW) {
            return self.in_slot(page) && !World::has(self, page, is::PASSING);
        }
        World::has(self, page, is::ARMED)
    }
    fn write_protected(&self, page: Page) -> bool {
        World::has(self, page, is::PROTECTED)
    }
    fn shadow_of(&self, page: Page) -> Option<NodeId> {
        let shadow = !World::has(self, page, is::SLOW) && self.slot(page).is_some();
        shadow.then_some(SLOW_NODE)
    }

    /// Parks a page that is fast, or on a memory node, so that its next reference is seen.
    fn clear_accessed(&mut self, page: Page) -> bool {
        if !World::has(self, page, is::MAPPED) {
            return false;
        }
        let was = World::has(self, page, is::ACCESSED);
        self.set(page, is::ACCESSED, false);
        let stored = !self.mapped && World::has(self, page, is::SLOW);
        if World::has(self, page, is::PRESENT) && !stored {
            // One that cannot be parked looks idle, and cannot be demoted either.
            let _ = self.park(page);
        }
        was
    }

    fn arm_hint(&mut self, page: Page) -> Result<(), Refused> {
        if !World::has(self, page, is::MAPPED) {
            return Err(Refused::State);
        }
        if !self.mapped && World::has(self, page, is::SLOW) {
            if self.in_window(page) {
                self.evict(page)?;
            }
            self.set(page, is::PASSING, false);
        } else {
            self.park(page)?;
            self.set(page, is::ARMED, true);
        }
        Ok(())
    }

    fn disarm_hint(&mut self, page: Page) {
        if World::has(self, page, is::MAPPED) {
            let slow_in_slot = World::has(self, page, is::SLOW) && self.in_slot(page);
            self.set(page, is::PASSING, slow_in_slot);
            self.set(page, is::ARMED, false);
            self.set(page, is::ACCESSED, true);
        }
    }

    fn write_protect(&mut self, page: Page) -> Result<(), Refused> {
        if !World::has(self, page, is::MAPPED) {
            return Err(Refused::State);
        }
        if World::has(self, page, is::PRESENT) {
            let at = self.numbers.place(page);
            self.protect(at, true)?;
        }
        self.set(page, is::PROTECTED, true);
        Ok(())
    }

    fn unprotect(&mut self, page: Page) -> Result<(), Refused> {
        if !World::has(self, page, is::MAPPED) {
            return Err(Refused::State);
        }
        let slow = World::has(self, page, is::SLOW);
        if !slow && self.slot(page).is_some() {
            return Err(Refused::State);
        }
        // In the window a page with a slot is protected, whether the policy watches it or not.
        if World::has(self, page, is::PRESENT) && self.slot(page).is_none() {
            let at = self.numbers.place(page);
            self.protect(at, false)?;
        }
        self.set(page, is::PROTECTED, false);
        Ok(())
    }

    fn move_page(&mut self, page: Page, to: NodeId) -> Result<(), Refused> {
        self.movable(page)?;
        if self.node(page) == to || to.index() >= 2 {
            return Err(Refused::State);
        }
        if to == NodeId::FAST {
            if self.free(to) == 0 {
                return Err(Refused::NoFrame);
            }
            return self.promote(page);
        }
        let shadowed = self.slot(page).is_some();
        if self.free(to) == 0 && !shadowed {
            return Err(Refused::NoFrame);
        }
        self.demote(page)?;
        self.counters.shadows_reclaimed += u64::from(shadowed);
        self.counters.demotions_copied += 1;
        Ok(())
    }

    /// Puts a slow page whose content may change into its slot. What is in its slot is read when the
    /// copy ends: until then only a reference through the window can change it, and is seen. On a memory
    /// node reads go on.
    fn begin_copy(&mut self, page: Page, to: NodeId, wake: Thread) -> Result<(), Refused> {
        self.movable(page)?;
        let slow = World::has(self, page, is::SLOW);
        if self.node(page) == to || to.index() >= 2 || (!slow && self.slot(page).is_some()) {
            return Err(Refused::State);
        }
        if self.free(to) == 0 {
            return Err(Refused::NoFrame);
        }
        if slow && self.mapped {
            self.watch_on_node(page)?;
        } else if slow && self.in_window(page) && self.slot(page).is_none() {
            self.evict(page)?;
            self.set(page, is::PASSING, true);
        } else if !slow {
            self.park(page)?;
        }
        let slot = self.slot(page).filter(|_| slow && self.in_slot(page));
        let coming = match slot {
            Some(slot) => self.fetch(slot)?.map(|_| slot),
            None => None,
        };
        self.set(page, is::COPYING, true);
        self.set(page, is::WRITTEN, false);
        self.used[to.index()] += 1;
        match coming {
            Some(slot) => self.coming.push((slot, page, wake)),
            None => self.begun.push((page, wake)),
        }
        Ok(())
    }

    fn commit_copy(&mut self, page: Page, keep_shadow: bool) -> Result<Commit, Refused> {
        if !World::has(self, page, is::MAPPED | is::COPYING) {
            return Err(Refused::State);
        }
        if self.begun.iter().any(|(begun, _)| *begun == page)
            || self.coming.iter().any(|(_, begun, _)| *begun == page)
        {
            return Err(Refused::Busy);
        }
        let slow = World::has(self, page, is::SLOW);
        if keep_shadow && !slow {
            return Err(Refused::State);
        }
        // A fast page was parked: it is as it was if it is parked still.
        let written =
            World::has(self, page, is::WRITTEN) || (!slow && !World::has(self, page, is::PARKED));
        self.end_copy(page);
        if written {
            self.counters.aborts += 1;
            return Ok(Commit::Dirtied);
        }
        let done = match (slow, keep_shadow) {
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
        self.used[SLOW_NODE.index()] -= 1;
        match why {
            DropReason::Written => self.counters.shadow_faults += 1,
            DropReason::Reclaimed => self.counters.shadows_reclaimed += 1,
        }
        Ok(())
    }

    fn split(&mut self, _: Page) -> Result<(), Refused> {
        Err(Refused::State)
    }

    fn spawn(&mut self, name: &'static str, context: Context) -> Thread {
        self.spawn_worker(name, context)
    }

    fn wake(&mut self, thread: Thread) {
        if self.running != Some(thread.index()) {
            self.wake_worker(thread);
        }
    }

    fn sample_every(&mut self, _: u64, _: u64) {}
}
