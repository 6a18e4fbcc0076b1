//! [`Memory`] for [`ReferenceMemory`]. Each method does literally what the contract in [`Memory`] says.

use super::super::super::{
    Action, Capability, Commit, Context, DropReason, Limit, Memory, NodeId, Page, Refused, Tenant,
    Thread, Time,
};
use super::{Copy, Mapping, ReferenceMemory, Worker};

impl Memory for ReferenceMemory {
    fn now(&self) -> Time {
        self.event
    }
    fn page_limit(&self) -> u32 {
        self.pages
    }
    fn next_mapped(&self, from: Page) -> Option<Page> {
        self.table.range(from.number()..).next().map(|(number, _)| Page::new(*number))
    }
    fn nodes(&self) -> u8 {
        self.nodes.len() as u8
    }
    fn capacity(&self, node: NodeId) -> u64 {
        self.nodes[node.index()].len() as u64
    }
    fn free(&self, node: NodeId) -> u64 {
        self.nodes[node.index()].iter().filter(|frame| frame.is_none()).count() as u64
    }
    fn loaded_latency(&self, node: NodeId) -> Option<Time> {
        Some(self.latencies.get(node.index()).copied().unwrap_or(self.costs.access))
    }
    fn has(&self, capability: Capability) -> bool {
        !self.lacking.contains(&capability)
    }
    fn tenants(&self) -> u16 {
        1
    }
    fn tenant_of(&self, _: Page) -> Tenant {
        Tenant::ONLY
    }
    fn used(&self, _: Tenant, node: NodeId) -> u64 {
        self.capacity(node) - self.free(node)
    }
    fn limit(&self, _: Tenant, node: NodeId) -> Limit {
        Limit { low: 0, max: self.capacity(node) }
    }
    fn mapped(&self, page: Page) -> bool {
        self.mapping(page).is_some()
    }
    fn node_of(&self, page: Page) -> NodeId {
        self.mapping(page).map_or(NodeId::FAST, |mapping| mapping.node)
    }
    fn span(&self, page: Page) -> u32 {
        self.mapping(page).map_or(1, |mapping| mapping.frames.len() as u32)
    }
    fn accessed(&self, page: Page) -> bool {
        self.mapping(page).is_some_and(|mapping| mapping.accessed)
    }
    fn dirty(&self, page: Page) -> bool {
        self.has(Capability::DirtyBits) && self.mapping(page).is_some_and(|mapping| mapping.dirty)
    }
    fn hint_armed(&self, page: Page) -> bool {
        self.mapping(page).is_some_and(|mapping| mapping.armed)
    }
    fn write_protected(&self, page: Page) -> bool {
        self.mapping(page).is_some_and(|mapping| mapping.protected)
    }
    fn shadow_of(&self, page: Page) -> Option<NodeId> {
        self.mapping(page)?.shadow.as_ref().map(|(node, _)| *node)
    }

    fn clear_accessed(&mut self, page: Page) -> bool {
        self.charge(self.costs.entry);
        self.mapping_mut(page).is_ok_and(|mapping| std::mem::take(&mut mapping.accessed))
    }

    fn arm_hint(&mut self, page: Page) -> Result<(), Refused> {
        self.charge(self.costs.entry);
        self.changeable(page)?.armed = true;
        self.note(Action::Armed(page));
        Ok(())
    }

    fn disarm_hint(&mut self, page: Page) {
        if let Ok(mapping) = self.mapping_mut(page) {
            mapping.armed = false;
            mapping.accessed = true;
        }
    }

    fn write_protect(&mut self, page: Page) -> Result<(), Refused> {
        self.charge(self.costs.entry);
        self.changeable(page)?.protected = true;
        self.note(Action::Protected(page));
        Ok(())
    }

    fn unprotect(&mut self, page: Page) -> Result<(), Refused> {
        let mapping = self.mapping_mut(page)?;
        if mapping.shadow.is_some() {
            return Err(Refused::State);
        }
        mapping.protected = false;
        Ok(())
    }

    fn move_page(&mut self, page: Page, to: NodeId) -> Result<(), Refused> {
        let nodes = self.nodes.len();
        let mapping = self.movable(page)?;
        if mapping.node == to || to.index() >= nodes {
            return Err(Refused::State);
        }
        let (from, old) = (mapping.node, mapping.frames.clone());
        let new = self.take(to, old.len()).ok_or(Refused::NoFrame)?;
        self.copy(from, &old, to, &new);
        self.free_frames(from, &old);
        let armed = self.arrives_armed(to);
        let mapping = self.mapping_mut(page)?;
        mapping.frames = new;
        mapping.node = to;
        mapping.dirty &= to > from;
        (mapping.accessed, mapping.armed, mapping.protected) = (false, armed, false);
        if let Some((node, frames)) = mapping.shadow.take() {
            self.free_frames(node, &frames);
        }
        for _ in 0..old.len() {
            self.charge(self.costs.copy);
        }
        self.charge(self.costs.migrate);
        self.note(Action::Moved(page, to));
        Ok(())
    }

    fn begin_copy(&mut self, page: Page, to: NodeId, wake: Thread) -> Result<(), Refused> {
        let nodes = self.nodes.len();
        let mapping = self.movable(page)?;
        if mapping.node == to || mapping.shadow.is_some() || to.index() >= nodes {
            return Err(Refused::State);
        }
        let (from, old) = (mapping.node, mapping.frames.clone());
        let new = self.take(to, old.len()).ok_or(Refused::NoFrame)?;
        // The worst case: the copy misses all writes from now on.
        self.copy(from, &old, to, &new);
        let mapping = self.mapping_mut(page)?;
        mapping.dirty = false;
        mapping.copy = Some(Copy { node: to, frames: new, complete: Time::NEVER });
        self.begun.push((page, wake));
        if self.copy_delay.is_none() {
            for _ in 0..old.len() {
                self.charge(self.costs.copy);
            }
        }
        self.note(Action::Began(page, to));
        Ok(())
    }

    fn commit_copy(&mut self, page: Page, keep_shadow: bool) -> Result<Commit, Refused> {
        let (now, pinned) = (self.event, self.pinned(page));
        let mapping = self.mapping_mut(page)?;
        let Some(copy) = &mapping.copy else { return Err(Refused::State) };
        if copy.complete > now {
            return Err(Refused::Busy);
        }
        if keep_shadow && copy.node > mapping.node {
            return Err(Refused::State);
        }
        let outcome = match mapping.dirty {
            true => Commit::Dirtied,
            false if pinned => Commit::Pinned,
            false => Commit::Done,
        };
        let Some(Copy { node: to, frames: new, .. }) = mapping.copy.take() else {
            return Err(Refused::State);
        };
        self.charge(self.costs.migrate);
        self.note(Action::Committed(page, outcome, keep_shadow));
        if outcome != Commit::Done {
            self.free_frames(to, &new);
            return Ok(outcome);
        }
        let armed = self.arrives_armed(to);
        let mapping = self.mapping_mut(page)?;
        let old = std::mem::replace(&mut mapping.frames, new);
        let from = std::mem::replace(&mut mapping.node, to);
        (mapping.accessed, mapping.armed) = (false, armed);
        mapping.protected = keep_shadow;
        if keep_shadow {
            mapping.shadow = Some((from, old));
        } else {
            self.free_frames(from, &old);
        }
        Ok(Commit::Done)
    }

    fn remap_to_shadow(&mut self, page: Page) -> Result<(), Refused> {
        let mapping = self.movable(page)?;
        let (to, frames) = mapping.shadow.take().ok_or(Refused::State)?;
        let old = std::mem::replace(&mut mapping.frames, frames);
        let from = std::mem::replace(&mut mapping.node, to);
        (mapping.accessed, mapping.protected, mapping.dirty) = (false, false, false);
        self.mapping_mut(page)?.armed = self.arrives_armed(to);
        self.free_frames(from, &old);
        self.charge(self.costs.migrate);
        self.note(Action::Remapped(page));
        Ok(())
    }

    fn drop_shadow(&mut self, page: Page, why: DropReason) -> Result<(), Refused> {
        let (node, frames) = self.mapping_mut(page)?.shadow.take().ok_or(Refused::State)?;
        self.free_frames(node, &frames);
        self.charge(self.costs.entry);
        self.note(Action::Dropped(page, why));
        Ok(())
    }

    fn split(&mut self, page: Page) -> Result<(), Refused> {
        let mapping = self.movable(page)?;
        if mapping.frames.len() == 1 || mapping.shadow.is_some() {
            return Err(Refused::State);
        }
        let whole = self.table.remove(&page.number()).ok_or(Refused::State)?;
        for (number, frame) in (page.number()..).zip(&whole.frames) {
            let inner = Mapping { frames: vec![*frame], shadow: None, copy: None, ..whole };
            self.table.insert(number, inner);
        }
        self.charge(self.costs.migrate);
        self.note(Action::Split(page));
        Ok(())
    }

    fn spawn(&mut self, name: &'static str, context: Context) -> Thread {
        let thread = Thread::new(self.workers.len() as u8, name);
        self.workers.push(Worker { thread, context, due: Time::NEVER });
        thread
    }

    fn wake(&mut self, thread: Thread) {
        if self.running != Some(thread.index()) {
            self.wake_idle(thread, self.event.plus(self.costs.wake));
        }
    }

    fn sample_every(&mut self, loads: u64, stores: u64) {
        if self.has(Capability::Samples) {
            self.sample_periods = [loads, stores];
            self.until_sample = self.sample_periods;
        }
    }
}
