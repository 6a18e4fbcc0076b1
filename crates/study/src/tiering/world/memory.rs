//! Implements [`Memory`], the interface of policies, for the simulated machine.

use nearfar_hardware::table::prefetch;
use nearfar_kernel::tiering::{
    Action, Capability, Commit, Context, DropReason, HUGE, Limit, Memory, NodeId, Page, Refused,
    Tenant, Thread, Time,
};

use super::super::counters::MAX_NODES;
use super::entry::{self, ACCESSED, ARMED, DIRTY, PROTECTED};
use super::{Worker, World};

impl Memory for World {
    fn now(&self) -> Time {
        self.event
    }
    fn page_limit(&self) -> u32 {
        self.entries.len() as u32
    }
    fn next_mapped(&self, from: Page) -> Option<Page> {
        let rest = self.entries.get(from.index()..)?;
        let skipped = rest.iter().position(|entry| *entry != entry::NONE)?;
        Some(from.skip(skipped as u32))
    }
    fn nodes(&self) -> u8 {
        self.hardware.nodes.len() as u8
    }
    fn capacity(&self, node: NodeId) -> u64 {
        self.capacity[node.index()]
    }
    fn free(&self, node: NodeId) -> u64 {
        self.free[node.index()]
    }
    fn loaded_latency(&self, node: NodeId) -> Option<Time> {
        Some(Time::from_ps(self.latency[node.index()]))
    }
    fn has(&self, _: Capability) -> bool {
        true
    }
    fn tenants(&self) -> u16 {
        self.accounts.len() as u16
    }
    fn tenant_of(&self, page: Page) -> Tenant {
        Tenant::new(self.owner(page) as u16)
    }
    fn used(&self, tenant: Tenant, node: NodeId) -> u64 {
        self.accounts.get(tenant.index()).map_or(0, |account| account.used[node.index()])
    }
    fn limit(&self, tenant: Tenant, node: NodeId) -> Limit {
        let max = self.capacity(node);
        let share = match node {
            NodeId::FAST => {
                self.hardware.programs.get(tenant.index()).map_or(0.0, |program| program.share)
            }
            _ => 0.0,
        };
        Limit { low: (max as f64 * share) as u64, max }
    }
    fn mapped(&self, page: Page) -> bool {
        self.entry(page) != entry::NONE
    }
    fn node_of(&self, page: Page) -> NodeId {
        match self.entry(page) {
            entry::NONE => NodeId::FAST,
            entry => entry::node(entry),
        }
    }
    fn span(&self, page: Page) -> u32 {
        if self.is_huge(page) { HUGE } else { 1 }
    }
    fn prefetch(&self, page: Page) {
        prefetch(&self.entries, page.index());
    }
    fn accessed(&self, page: Page) -> bool {
        self.get(page, ACCESSED)
    }
    fn dirty(&self, page: Page) -> bool {
        self.get(page, DIRTY)
    }
    fn hint_armed(&self, page: Page) -> bool {
        self.get(page, ARMED)
    }
    fn write_protected(&self, page: Page) -> bool {
        self.get(page, PROTECTED)
    }
    fn shadow_of(&self, page: Page) -> Option<NodeId> {
        entry::shadow(self.entry(page))
    }

    fn clear_accessed(&mut self, page: Page) -> bool {
        self.charge(self.hardware.costs.page_scan);
        let accessed = self.accessed(page);
        // `change` sets the first bits and clears the second.
        self.change(page, 0, ACCESSED) && accessed
    }

    fn arm_hint(&mut self, page: Page) -> Result<(), Refused> {
        self.charge(self.hardware.costs.page_scan);
        if !self.change(page, ARMED, 0) {
            return Err(Refused::State);
        }
        // Not charged: a scan of thousands of entries ends with a single flush.
        self.flush_tlbs(page);
        self.note(Action::Armed(page));
        Ok(())
    }

    fn disarm_hint(&mut self, page: Page) {
        self.change(page, ACCESSED, ARMED);
    }

    fn write_protect(&mut self, page: Page) -> Result<(), Refused> {
        self.charge(self.hardware.costs.page_scan);
        if !self.change(page, PROTECTED, 0) {
            return Err(Refused::State);
        }
        self.flush_tlbs(page);
        self.note(Action::Protected(page));
        Ok(())
    }

    fn unprotect(&mut self, page: Page) -> Result<(), Refused> {
        if self.shadow_of(page).is_some() || !self.change(page, 0, PROTECTED) {
            return Err(Refused::State);
        }
        Ok(())
    }

    fn move_page(&mut self, page: Page, to: NodeId) -> Result<(), Refused> {
        let (from, frames) = self.movable(page)?;
        if from == to {
            return Err(Refused::State);
        }
        self.take(page, to, frames)?;
        self.release(page, from, frames);
        if let Some(frames) = self.free_shadow(page) {
            self.tally(page, |count| count.shadow_reclaims += frames);
        }
        // A promotion clears the dirty bit, which then shows later writes; a demotion keeps it.
        let dirty = if to > from { DIRTY } else { 0 };
        self.entries[page.index()] = entry::at(to, None) | self.entry(page) & dirty;
        self.count_move(page, from, to, frames);
        if to > from {
            self.tally(page, |count| count.demotions_copied += frames);
        }
        self.charge_copy(page, from.index(), to.index(), frames);
        self.charge(self.hardware.costs.page_migration);
        self.flush(page);
        self.note(Action::Moved(page, to));
        Ok(())
    }

    fn begin_copy(&mut self, page: Page, to: NodeId, wake: Thread) -> Result<(), Refused> {
        let (from, frames) = self.movable(page)?;
        if from == to || self.shadow_of(page).is_some() {
            return Err(Refused::State);
        }
        self.take(page, to, frames)?;
        self.change(page, 0, DIRTY);
        self.copies.insert(page, to);
        self.begun.push((page, wake));
        self.charge_copy(page, from.index(), to.index(), frames);
        self.flush(page);
        if self.by_kernel() && self.program(page).threads == 1 {
            // The cost of a migration does not include this flush, and `flush` charges it only with
            // several threads.
            self.charge(self.hardware.costs.shootdown);
        }
        self.note(Action::Began(page, to));
        Ok(())
    }

    fn commit_copy(&mut self, page: Page, keep_shadow: bool) -> Result<Commit, Refused> {
        let to = self.copy_node(page).ok_or(Refused::State)?;
        if self.begun.iter().any(|(begun, _)| *begun == page) {
            return Err(Refused::Busy);
        }
        let (from, frames) = (self.node_of(page), u64::from(self.span(page)));
        if keep_shadow && to > from {
            return Err(Refused::State);
        }
        self.copies.remove(&page);
        self.charge(self.hardware.costs.page_migration);
        if self.dirty(page) {
            self.release(page, to, frames);
            self.tally(page, |count| count.aborts += 1);
            self.note(Action::Committed(page, Commit::Dirtied, keep_shadow));
            return Ok(Commit::Dirtied);
        }
        self.count_move(page, from, to, frames);
        if keep_shadow {
            self.entries[page.index()] = entry::at(to, Some(from)) | PROTECTED;
            self.add_shadows(page, frames);
            self.tally(page, |count| count.shadow_copies += frames);
        } else {
            self.entries[page.index()] = entry::at(to, None);
            self.release(page, from, frames);
            if to > from {
                self.tally(page, |count| count.demotions_copied += frames);
            }
        }
        self.flush(page);
        self.note(Action::Committed(page, Commit::Done, keep_shadow));
        Ok(Commit::Done)
    }

    fn remap_to_shadow(&mut self, page: Page) -> Result<(), Refused> {
        let (from, frames) = self.movable(page)?;
        let to = self.shadow_of(page).ok_or(Refused::State)?;
        self.account(page).shadows -= frames;
        self.release(page, from, frames);
        self.entries[page.index()] = entry::at(to, None);
        self.count_move(page, from, to, frames);
        self.tally(page, |count| count.demotions_remapped += frames);
        self.charge(self.hardware.costs.page_migration);
        self.flush(page);
        self.note(Action::Remapped(page));
        Ok(())
    }

    fn drop_shadow(&mut self, page: Page, why: DropReason) -> Result<(), Refused> {
        let frames = self.free_shadow(page).ok_or(Refused::State)?;
        self.tally(page, |count| match why {
            DropReason::Written => count.shadow_faults += frames,
            DropReason::Reclaimed => count.shadow_reclaims += frames,
        });
        self.charge(self.hardware.costs.page_scan);
        self.note(Action::Dropped(page, why));
        Ok(())
    }

    fn split(&mut self, page: Page) -> Result<(), Refused> {
        self.movable(page)?;
        if !self.is_huge(page) || self.shadow_of(page).is_some() {
            return Err(Refused::State);
        }
        let group = page.index() / HUGE as usize;
        self.huge[group / 64] &= !(1 << (group % 64));
        let entry = self.entry(page);
        for inner in self.entries.iter_mut().skip(page.index()).take(HUGE as usize) {
            *inner = entry;
        }
        self.tally(page, |count| count.splits += 1);
        self.charge(self.hardware.costs.page_migration);
        self.flush(page);
        self.note(Action::Split(page));
        Ok(())
    }

    fn spawn(&mut self, name: &'static str, context: Context) -> Thread {
        let thread = Thread::new(self.workers.len() as u8, name);
        self.workers.push(Worker {
            thread,
            context,
            due: Time::NEVER,
            busy: [0.0; MAX_NODES],
            busy_until: Time::default(),
        });
        thread
    }

    fn wake(&mut self, thread: Thread) {
        let index = thread.index();
        let at = self.event.plus(Time::from_ps(self.hardware.costs.context_switch as u64));
        if self.running != Some(index)
            && let Some(worker) = self.workers.get_mut(index)
            && worker.due == Time::NEVER
        {
            worker.due = at;
        }
    }

    fn sample_every(&mut self, loads: u64, stores: u64) {
        self.period = [loads, stores];
        let left = |period| if period == 0 { i64::MAX } else { period as i64 };
        self.left = self.period.map(left);
    }
}
