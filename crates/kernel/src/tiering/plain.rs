//! A memory that is slow, small and obviously right: the second world that every policy runs in.
//!
//! It is the contract of [`Memory`] written as data structures: frames that hold content, a map of
//! pages, a frame list for every shadow and every copy under way. The content of a frame is the
//! number of the last write that reached it, so a read that does not return the last write is
//! seen at once. Each action has a flat price. Tests compare the simulator with it, decision by
//! decision.

use std::collections::BTreeMap;

use super::{
    Commit, Context, Drop, HUGE, Memory, Next, NodeId, Page, Policy, Refused, Thread, ThreadSpec,
    Time,
};

/// What things cost here; the same on every node.
#[derive(Clone, Copy, Debug)]
pub struct Prices {
    /// A reference.
    pub access: Time,
    /// A hint fault, without what the policy does.
    pub hint_fault: Time,
    /// A write-protect fault, without what the policy does.
    pub write_fault: Time,
    /// Looking at or changing one entry of the page table, freeing a shadow.
    pub entry: Time,
    /// Copying a frame.
    pub copy: Time,
    /// The rest of moving a page.
    pub migrate: Time,
    /// From waking a thread to its first step.
    pub wake: Time,
}

/// The shortest step of a thread: without one a thread that does nothing would never let go.
pub const SHORTEST_STEP: Time = Time::from_ps(1000);

type Content = u64;

#[derive(Debug)]
struct Mapping {
    node: NodeId,
    frames: Vec<usize>,
    accessed: bool,
    dirty: bool,
    armed: bool,
    protected: bool,
    shadow: Option<(NodeId, Vec<usize>)>,
    copy: Option<(NodeId, Vec<usize>)>,
}

/// What a policy made happen, for comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// [`Memory::move_page`], carried out.
    Moved(Page, NodeId),
    /// [`Memory::begin_copy`], carried out.
    Began(Page, NodeId),
    /// [`Memory::commit_copy`], with its outcome and whether a shadow is kept.
    Committed(Page, Commit, bool),
    /// [`Memory::remap_to_shadow`], carried out.
    Remapped(Page),
    /// [`Memory::drop_shadow`], carried out.
    Dropped(Page, Drop),
    /// [`Memory::arm_hint`].
    Armed(Page),
    /// [`Memory::write_protect`].
    Protected(Page),
    /// [`Memory::split`], carried out.
    Split(Page),
}

/// The plain memory, with the program and the policy's threads around it.
#[derive(Debug)]
pub struct PlainMemory {
    prices: Prices,
    pages: u32,
    huge: bool,
    nodes: Vec<Vec<Option<Content>>>,
    table: BTreeMap<u32, Mapping>,
    /// The last write to each base page.
    written: BTreeMap<u32, Content>,
    writes: Content,
    specs: Vec<ThreadSpec>,
    due: Vec<Time>,
    running: Option<usize>,
    /// The program's clock, the moment of the current event, and what it has cost so far.
    clock: Time,
    event: Time,
    charged: Time,
    periods: [u64; 2],
    left: [u64; 2],
    /// Everything that happened, in order.
    pub actions: Vec<(Time, Action)>,
}

impl PlainMemory {
    /// Nodes of so many frames, page numbers below `pages`; mapped as huge pages if `huge`.
    pub fn new(prices: Prices, nodes: &[usize], pages: u32, huge: bool) -> Self {
        Self {
            prices,
            pages,
            huge,
            nodes: nodes.iter().map(|frames| vec![None; *frames]).collect(),
            table: BTreeMap::new(),
            written: BTreeMap::new(),
            writes: 0,
            specs: Vec::new(),
            due: Vec::new(),
            running: None,
            clock: Time::default(),
            event: Time::default(),
            charged: Time::default(),
            periods: [0; 2],
            left: [0; 2],
            actions: Vec::new(),
        }
    }

    /// Let `policy` begin.
    pub fn start(&mut self, policy: &mut dyn Policy) {
        self.specs = policy.threads();
        self.due = vec![Time::NEVER; self.specs.len()];
        for (thread, at) in policy.start(self) {
            self.due[usize::from(thread.0)] = at;
        }
    }

    /// The program's clock.
    pub fn clock(&self) -> Time {
        self.clock
    }

    fn charge(&mut self, price: Time) {
        self.charged = self.charged.plus(price);
    }

    fn take(&mut self, node: NodeId, count: usize) -> Option<Vec<usize>> {
        let frames = &mut self.nodes[node.index()];
        let free: Vec<usize> = (0..frames.len()).filter(|i| frames[*i].is_none()).collect();
        let taken: Vec<usize> = free.into_iter().take(count).collect();
        if taken.len() < count {
            return None;
        }
        for frame in &taken {
            frames[*frame] = Some(0);
        }
        Some(taken)
    }

    fn release(&mut self, node: NodeId, frames: &[usize]) {
        for frame in frames {
            self.nodes[node.index()][*frame] = None;
        }
    }

    fn copy(&mut self, from: NodeId, source: &[usize], to: NodeId, target: &[usize]) {
        for (source, target) in source.iter().zip(target) {
            self.nodes[to.index()][*target] = self.nodes[from.index()][*source];
        }
    }

    fn mapping(&self, page: Page) -> Option<&Mapping> {
        self.table.get(&page.number())
    }

    fn mapping_mut(&mut self, page: Page) -> std::result::Result<&mut Mapping, Refused> {
        self.table.get_mut(&page.number()).ok_or(Refused::State)
    }

    fn note(&mut self, action: Action) {
        self.actions.push((self.event, action));
    }

    /// Map the page at its first touch, as set-up does: nothing is charged.
    ///
    /// # Errors
    /// No node has room.
    pub fn allocate(
        &mut self,
        policy: &mut dyn Policy,
        page: Page,
    ) -> std::result::Result<(), Refused> {
        let span = if self.huge { HUGE } else { 1 };
        let page = Page::new(page.number() / span * span);
        let first = policy.place(self, page, span);
        let order = NodeId::all(self.nodes() - first.index() as u8)
            .map(|node| NodeId::new((node.index() + first.index()) as u8))
            .chain(NodeId::all(first.index() as u8));
        for node in order {
            let mut frames = self.take(node, span as usize);
            if frames.is_none() {
                policy.pressure(self, node);
                frames = self.take(node, span as usize);
            }
            if let Some(frames) = frames {
                let mapping = Mapping {
                    node,
                    frames,
                    accessed: false,
                    dirty: false,
                    armed: false,
                    protected: false,
                    shadow: None,
                    copy: None,
                };
                self.table.insert(page.number(), mapping);
                policy.allocated(self, page);
                return Ok(());
            }
        }
        Err(Refused::NoFrame)
    }

    /// The program references base page `at`; what a load returns is checked.
    ///
    /// # Errors
    /// A description of a lost write, a page that is never let go, or memory that is full.
    pub fn access(
        &mut self,
        policy: &mut dyn Policy,
        at: Page,
        write: bool,
    ) -> std::result::Result<(), String> {
        for _ in 0..10_000 {
            self.run_due(policy, self.clock, true);
            self.event = self.clock;
            let head = Page::new(at.number() / HUGE * HUGE);
            let huge = self.mapping(head).is_some_and(|m| m.frames.len() > 1);
            let page = if huge { head } else { at };
            let Some(mapping) = self.table.get_mut(&page.number()) else {
                self.allocate(policy, at).map_err(|why| format!("no room: {why:?}"))?;
                self.settle();
                continue;
            };
            if mapping.armed {
                self.charge(self.prices.hint_fault);
                policy.hint_fault(self, page, write);
            } else if write && mapping.protected {
                self.charge(self.prices.write_fault);
                policy.write_fault(self, page);
            } else {
                mapping.accessed = true;
                mapping.dirty |= write;
                let inner = (at.number() - page.number()) as usize;
                let (node, frame) = (mapping.node, mapping.frames[inner]);
                let content = &mut self.nodes[node.index()][frame];
                if write {
                    self.writes += 1;
                    *content = Some(self.writes);
                    self.written.insert(at.number(), self.writes);
                } else {
                    let last = self.written.get(&at.number()).copied().unwrap_or(0);
                    if *content != Some(last) {
                        return Err(format!("{at:?} holds {content:?}, last written {last}"));
                    }
                }
                self.charge(self.prices.access);
                let kind = usize::from(write);
                if self.periods[kind] > 0 {
                    self.left[kind] -= 1;
                    if self.left[kind] == 0 {
                        self.left[kind] = self.periods[kind];
                        // A reference is sampled when it is over.
                        self.settle();
                        self.event = self.clock;
                        policy.sample(self, page, at, write);
                    }
                }
                self.settle();
                self.run_due(policy, self.clock, true);
                return Ok(());
            }
            self.settle();
        }
        Err(format!("{at:?} faults for ever"))
    }

    /// What the event cost is the program's time.
    fn settle(&mut self) {
        self.clock = self.clock.plus(std::mem::take(&mut self.charged));
    }

    /// The program sleeps for `span`.
    pub fn sleep(&mut self, policy: &mut dyn Policy, span: Time) {
        let until = self.clock.plus(span);
        self.run_due(policy, until, false);
        self.clock = until;
    }

    /// Run threads that are due, the earliest first.
    fn run_due(&mut self, policy: &mut dyn Policy, until: Time, program: bool) {
        let mut until = until;
        loop {
            let runnable = |i: &usize| program || self.specs[*i].context == Context::Kernel;
            let next = (0..self.due.len()).filter(runnable).min_by_key(|i| self.due[*i]);
            let Some(index) = next.filter(|i| self.due[*i] <= until) else { return };
            let for_program = self.specs[index].context == Context::Program;
            self.event = if for_program { self.clock } else { self.due[index] };
            self.running = Some(index);
            let next = policy.work(self, Thread(index as u8));
            self.running = None;
            let cost = std::mem::take(&mut self.charged);
            let end = self.event.plus(cost.max(SHORTEST_STEP));
            if for_program {
                self.clock = self.event.plus(cost);
                until = until.max(self.clock);
            }
            self.due[index] = match next {
                Next::Again => end,
                Next::At(time) => time.max(end),
                Next::Idle => Time::NEVER,
            };
        }
    }

    /// Everything that must hold between events.
    ///
    /// # Errors
    /// A description of what does not.
    pub fn check(&self) -> std::result::Result<(), String> {
        let mut uses: BTreeMap<(usize, usize), u32> = BTreeMap::new();
        for (number, mapping) in &self.table {
            let shadow = mapping.shadow.iter();
            let others = shadow.chain(&mapping.copy).map(|(node, frames)| (*node, frames));
            for (node, frames) in others.chain([(mapping.node, &mapping.frames)]) {
                for frame in frames {
                    *uses.entry((node.index(), *frame)).or_default() += 1;
                }
            }
            if let Some((node, frames)) = &mapping.shadow {
                if *node <= mapping.node || !mapping.protected || mapping.dirty {
                    return Err(format!("page {number}: a shadow of a master that may change"));
                }
                for (own, its) in mapping.frames.iter().zip(frames) {
                    let own = self.nodes[mapping.node.index()][*own];
                    if own != self.nodes[node.index()][*its] {
                        return Err(format!("page {number}: its shadow differs"));
                    }
                }
            }
        }
        if let Some((frame, _)) = uses.iter().find(|(_, uses)| **uses != 1) {
            return Err(format!("frame {frame:?} has two uses"));
        }
        let used: usize = self.nodes.iter().flatten().flatten().count();
        if used != uses.len() {
            return Err(format!("{used} frames are taken, {} in use", uses.len()));
        }
        Ok(())
    }
}

impl Memory for PlainMemory {
    fn now(&self) -> Time {
        self.event
    }
    fn pages(&self) -> u32 {
        self.pages
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
        self.mapping(page).is_some_and(|mapping| mapping.dirty)
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
        self.charge(self.prices.entry);
        self.mapping_mut(page).is_ok_and(|mapping| std::mem::take(&mut mapping.accessed))
    }

    fn arm_hint(&mut self, page: Page) {
        self.charge(self.prices.entry);
        if let Ok(mapping) = self.mapping_mut(page) {
            mapping.armed = true;
            self.note(Action::Armed(page));
        }
    }

    fn disarm_hint(&mut self, page: Page) {
        if let Ok(mapping) = self.mapping_mut(page) {
            mapping.armed = false;
            mapping.accessed = true;
        }
    }

    fn write_protect(&mut self, page: Page) {
        self.charge(self.prices.entry);
        if let Ok(mapping) = self.mapping_mut(page) {
            mapping.protected = true;
            self.note(Action::Protected(page));
        }
    }

    fn unprotect(&mut self, page: Page) -> std::result::Result<(), Refused> {
        let mapping = self.mapping_mut(page)?;
        if mapping.shadow.is_some() {
            return Err(Refused::State);
        }
        mapping.protected = false;
        Ok(())
    }

    fn move_page(&mut self, page: Page, to: NodeId) -> std::result::Result<(), Refused> {
        let mapping = self.mapping(page).ok_or(Refused::State)?;
        if mapping.copy.is_some() {
            return Err(Refused::Busy);
        }
        if mapping.node == to || to.index() >= self.nodes.len() {
            return Err(Refused::State);
        }
        let (from, old) = (mapping.node, mapping.frames.clone());
        let new = self.take(to, old.len()).ok_or(Refused::NoFrame)?;
        self.copy(from, &old, to, &new);
        self.release(from, &old);
        let mapping = self.mapping_mut(page)?;
        mapping.frames = new;
        mapping.node = to;
        mapping.dirty &= to > from;
        (mapping.accessed, mapping.armed, mapping.protected) = (false, false, false);
        let shadow = mapping.shadow.take();
        if let Some((node, frames)) = shadow {
            self.release(node, &frames);
        }
        for _ in 0..old.len() {
            self.charge(self.prices.copy);
        }
        self.charge(self.prices.migrate);
        self.note(Action::Moved(page, to));
        Ok(())
    }

    fn begin_copy(&mut self, page: Page, to: NodeId) -> std::result::Result<(), Refused> {
        let mapping = self.mapping(page).ok_or(Refused::State)?;
        if mapping.copy.is_some() {
            return Err(Refused::Busy);
        }
        if mapping.node == to || mapping.shadow.is_some() || to.index() >= self.nodes.len() {
            return Err(Refused::State);
        }
        let (from, old) = (mapping.node, mapping.frames.clone());
        let new = self.take(to, old.len()).ok_or(Refused::NoFrame)?;
        // The worst case: whatever is written from now on is not in the copy.
        self.copy(from, &old, to, &new);
        let mapping = self.mapping_mut(page)?;
        mapping.dirty = false;
        mapping.copy = Some((to, new));
        for _ in 0..old.len() {
            self.charge(self.prices.copy);
        }
        self.note(Action::Began(page, to));
        Ok(())
    }

    fn commit_copy(
        &mut self,
        page: Page,
        keep_shadow: bool,
    ) -> std::result::Result<Commit, Refused> {
        let mapping = self.mapping_mut(page)?;
        let Some((to, _)) = &mapping.copy else { return Err(Refused::State) };
        if keep_shadow && *to > mapping.node {
            return Err(Refused::State);
        }
        let dirty = mapping.dirty;
        let Some((to, new)) = mapping.copy.take() else { return Err(Refused::State) };
        self.charge(self.prices.migrate);
        if dirty {
            self.release(to, &new);
            self.note(Action::Committed(page, Commit::Dirtied, keep_shadow));
            return Ok(Commit::Dirtied);
        }
        let mapping = self.mapping_mut(page)?;
        let old = std::mem::replace(&mut mapping.frames, new);
        let from = std::mem::replace(&mut mapping.node, to);
        (mapping.accessed, mapping.armed) = (false, false);
        mapping.protected = keep_shadow;
        if keep_shadow {
            mapping.shadow = Some((from, old));
        } else {
            self.release(from, &old);
        }
        self.note(Action::Committed(page, Commit::Done, keep_shadow));
        Ok(Commit::Done)
    }

    fn remap_to_shadow(&mut self, page: Page) -> std::result::Result<(), Refused> {
        let mapping = self.mapping_mut(page)?;
        if mapping.copy.is_some() {
            return Err(Refused::Busy);
        }
        let Some((to, frames)) = mapping.shadow.take() else { return Err(Refused::State) };
        let old = std::mem::replace(&mut mapping.frames, frames);
        let from = std::mem::replace(&mut mapping.node, to);
        (mapping.accessed, mapping.armed, mapping.protected) = (false, false, false);
        mapping.dirty = false;
        self.release(from, &old);
        self.charge(self.prices.migrate);
        self.note(Action::Remapped(page));
        Ok(())
    }

    fn drop_shadow(&mut self, page: Page, why: Drop) -> std::result::Result<(), Refused> {
        let mapping = self.mapping_mut(page)?;
        let Some((node, frames)) = mapping.shadow.take() else { return Err(Refused::State) };
        self.release(node, &frames);
        self.charge(self.prices.entry);
        self.note(Action::Dropped(page, why));
        Ok(())
    }

    fn split(&mut self, page: Page) -> std::result::Result<(), Refused> {
        let mapping = self.mapping(page).ok_or(Refused::State)?;
        if mapping.copy.is_some() {
            return Err(Refused::Busy);
        }
        if mapping.frames.len() == 1 || mapping.shadow.is_some() {
            return Err(Refused::State);
        }
        let Some(whole) = self.table.remove(&page.number()) else { return Err(Refused::State) };
        for (number, frame) in (page.number()..).zip(whole.frames) {
            let inner = Mapping {
                frames: vec![frame],
                shadow: None,
                copy: None,
                node: whole.node,
                accessed: whole.accessed,
                dirty: whole.dirty,
                armed: whole.armed,
                protected: whole.protected,
            };
            self.table.insert(number, inner);
        }
        self.charge(self.prices.migrate);
        self.note(Action::Split(page));
        Ok(())
    }

    fn wake(&mut self, thread: Thread) {
        let index = usize::from(thread.0);
        if self.due.get(index) == Some(&Time::NEVER) && self.running != Some(index) {
            self.due[index] = self.event.plus(self.prices.wake);
        }
    }

    fn sample_every(&mut self, loads: u64, stores: u64) {
        self.periods = [loads, stores];
        self.left = self.periods;
    }
}
