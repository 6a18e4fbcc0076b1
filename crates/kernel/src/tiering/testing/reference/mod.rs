//! A memory that is slow, small and obviously right: the reference implementation of [`Memory`].
//!
//! Its data structures follow the contract: frames that hold content, a map of pages, a frame list for
//! every shadow (an equal copy in a slower node) and every copy in progress. The content of a frame is the
//! number of the last write that reached it, so a read that does not return the last write is detected at
//! once. Each action has a fixed cost, charged to its event (a fault, a step of a thread, ...). Tests
//! compare the decisions in the simulator with those in this memory. Unlike the simulator, it can lack
//! capabilities, pin pages, and copy in the background.

use std::collections::BTreeMap;

use super::super::{
    Action, Capability, Context, HUGE, MIN_STEP, Made, Memory, Next, NodeId, Page, Policy, Refused,
    Settings, Tenant, Thread, Time, make,
};

mod memory;

/// Durations, the same on every node.
#[derive(Clone, Copy, Debug, Default)]
pub struct Costs {
    /// A reference.
    pub access: Time,
    /// A hint fault, without the policy's actions.
    pub hint_fault: Time,
    /// A write-protect fault, without the policy's actions.
    pub write_fault: Time,
    /// Reading or changing one entry of the page table, freeing a shadow, releasing a page.
    pub entry: Time,
    /// Copying a frame.
    pub copy: Time,
    /// Moving a page, besides the copy.
    pub migrate: Time,
    /// From waking a thread to its first step.
    pub wake: Time,
}

type Content = u64;

#[derive(Debug)]
struct Mapping {
    node: NodeId,
    frames: Vec<usize>,
    accessed: bool,
    dirty: bool,
    /// The next reference causes a hint fault.
    armed: bool,
    protected: bool,
    shadow: Option<(NodeId, Vec<usize>)>,
    copy: Option<Copy>,
}

#[derive(Debug)]
struct Copy {
    node: NodeId,
    frames: Vec<usize>,
    /// When the copy is complete; [`Time::NEVER`] until the event that began it has ended.
    complete: Time,
}

#[derive(Debug)]
struct Worker {
    thread: Thread,
    context: Context,
    due: Time,
}

/// Which pages are pinned: a pseudo-random quarter, another in each period.
#[derive(Clone, Copy, Debug)]
struct Pins {
    seed: u64,
    period: Time,
}

/// The memory, with the program and the policy's threads around it.
#[derive(Debug, Default)]
pub struct ReferenceMemory {
    costs: Costs,
    pages: u32,
    huge: bool,
    nodes: Vec<Vec<Option<Content>>>,
    table: BTreeMap<u32, Mapping>,
    /// The last write to each base page since it was mapped.
    written: BTreeMap<u32, Content>,
    writes: Content,
    workers: Vec<Worker>,
    running: Option<usize>,
    /// Copies begun in this event, with the thread to wake.
    begun: Vec<(Page, Thread)>,
    /// When earlier copies are complete, with the thread to wake.
    completions: Vec<(Time, Thread)>,
    /// The program's clock.
    clock: Time,
    /// When the current event began.
    event: Time,
    /// Cost of the current event so far.
    charged: Time,
    /// Loads and stores per sample; 0: no samples.
    sample_periods: [u64; 2],
    until_sample: [u64; 2],
    lacking: Vec<Capability>,
    pins: Option<Pins>,
    copy_delay: Option<Time>,
    /// Latency of a load by node; the cost of an access if empty.
    pub latencies: Vec<Time>,
    /// Actions of the policy, by time of their events.
    pub actions: Vec<(Time, Action)>,
}

impl ReferenceMemory {
    /// Nodes of this many frames, page numbers below `pages`; mapped as huge pages if `huge`.
    pub fn new(costs: Costs, nodes: &[usize], pages: u32, huge: bool) -> Self {
        Self {
            costs,
            pages,
            huge,
            nodes: nodes.iter().map(|frames| vec![None; *frames]).collect(),
            ..Self::default()
        }
    }

    /// Remove a capability.
    #[must_use]
    pub fn lacking(mut self, capability: Capability) -> Self {
        self.lacking.push(capability);
        self
    }

    /// Pin a quarter of the pages at a time, by `seed`, for `period`.
    #[must_use]
    pub fn pinning(mut self, seed: u64, period: Time) -> Self {
        self.pins = Some(Pins { seed, period });
        self
    }

    /// Copy in the background: copies are charged to no one, and are complete this long after the event
    /// that began them.
    #[must_use]
    pub fn copying_for(mut self, delay: Time) -> Self {
        self.copy_delay = Some(delay);
        self
    }

    /// Make the policy `name` for this memory.
    ///
    /// # Errors
    /// Those of [`make`].
    pub fn start(
        &mut self,
        name: &str,
        settings: &Settings,
    ) -> nearfar_trace::Result<Box<dyn Policy>> {
        self.start_made(|mem| make(name, settings, mem))
    }

    /// Let `make` make a policy for this memory.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn start_made(
        &mut self,
        make: impl FnOnce(&mut dyn Memory) -> nearfar_trace::Result<Made>,
    ) -> nearfar_trace::Result<Box<dyn Policy>> {
        let (policy, wakes) = make(self)?;
        for (thread, at) in wakes {
            self.workers[thread.index()].due = at;
        }
        Ok(policy)
    }

    pub fn clock(&self) -> Time {
        self.clock
    }

    fn charge(&mut self, cost: Time) {
        self.charged = self.charged.plus(cost);
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

    fn free_frames(&mut self, node: NodeId, frames: &[usize]) {
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

    fn mapping_mut(&mut self, page: Page) -> Result<&mut Mapping, Refused> {
        self.table.get_mut(&page.number()).ok_or(Refused::State)
    }

    /// The beginning of the mapping that base page `at` belongs to, or would.
    fn mapping_of(&self, at: Page) -> Page {
        let head = Page::new(at.number() / HUGE * HUGE);
        if self.span(head) > 1 { head } else { at }
    }

    fn pinned(&self, page: Page) -> bool {
        self.pins.is_some_and(|Pins { seed, period }| {
            let epoch = self.event.ps() / period.ps();
            let mixed = (u64::from(page.number()) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
                ^ (epoch + 1).wrapping_mul(seed | 1);
            mixed.wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 62 == 0
        })
    }

    /// A mapping that may be changed: not pinned.
    fn changeable(&mut self, page: Page) -> Result<&mut Mapping, Refused> {
        if self.mapped(page) && self.pinned(page) {
            return Err(Refused::Pinned);
        }
        self.mapping_mut(page)
    }

    /// A mapping that may be moved: neither pinned nor being copied.
    fn movable(&mut self, page: Page) -> Result<&mut Mapping, Refused> {
        match self.changeable(page) {
            Ok(Mapping { copy: Some(_), .. }) => Err(Refused::Busy),
            mapping => mapping,
        }
    }

    /// Whether the memory itself arms a page that moves to `node`.
    fn arrives_armed(&self, node: NodeId) -> bool {
        node != NodeId::FAST && !self.has(Capability::FarIsMapped)
    }

    fn note(&mut self, action: Action) {
        self.actions.push((self.event, action));
    }

    /// Map the page at its first touch. The mapping itself costs nothing.
    ///
    /// # Errors
    /// No node has room.
    pub fn allocate(&mut self, policy: &mut dyn Policy, at: Page) -> Result<(), Refused> {
        let head = Page::new(at.number() / HUGE * HUGE);
        let empty = self.next_mapped(head).is_none_or(|next| next >= head.skip(HUGE));
        let (page, span) = if self.huge && empty { (head, HUGE) } else { (at, 1) };
        let first = policy.place(self, page, span);
        let nodes = self.nodes();
        let slower = NodeId::all(nodes).filter(|node| *node >= first);
        for node in slower.chain(NodeId::all(nodes).filter(|node| *node < first)) {
            let mut frames = self.take(node, span as usize);
            if frames.is_none() {
                policy.pressure(self, node, Tenant::ONLY);
                frames = self.take(node, span as usize);
            }
            if let Some(frames) = frames {
                let mapping = Mapping {
                    node,
                    frames,
                    accessed: false,
                    dirty: false,
                    armed: self.arrives_armed(node),
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

    /// The program releases the mapping that base page `at` belongs to, if there is one.
    pub fn release(&mut self, policy: &mut dyn Policy, at: Page) {
        self.run_due(policy, self.clock, /* program: */ true);
        self.event = self.clock;
        let page = self.mapping_of(at);
        let Some(mapping) = self.table.remove(&page.number()) else { return };
        let span = mapping.frames.len() as u32;
        let copy = mapping.copy.map(|copy| (copy.node, copy.frames));
        let all = [Some((mapping.node, mapping.frames)), mapping.shadow, copy];
        for (node, frames) in all.into_iter().flatten() {
            self.free_frames(node, &frames);
        }
        for number in page.number()..page.number() + span {
            self.written.remove(&number);
        }
        self.charge(self.costs.entry);
        policy.released(self, page, span);
        self.end_event();
        self.run_due(policy, self.clock, /* program: */ true);
    }

    /// The program references base page `at`; the content that a load returns is checked.
    ///
    /// # Errors
    /// A description of a lost write, endless faults, or full memory.
    pub fn access(&mut self, policy: &mut dyn Policy, at: Page, write: bool) -> Result<(), String> {
        for _ in 0..10_000 {
            self.run_due(policy, self.clock, /* program: */ true);
            self.event = self.clock;
            let page = self.mapping_of(at);
            let Some(mapping) = self.mapping(page) else {
                self.allocate(policy, at).map_err(|why| format!("no room: {why:?}"))?;
                self.end_event();
                continue;
            };
            if mapping.armed {
                self.charge(self.costs.hint_fault);
                policy.hint_fault(self, page, write);
            } else if write && mapping.protected {
                self.charge(self.costs.write_fault);
                policy.write_fault(self, page);
            } else {
                self.reference(page, at, write)?;
                self.charge(self.costs.access);
                self.sample(policy, page, at, write);
                self.end_event();
                self.run_due(policy, self.clock, /* program: */ true);
                return Ok(());
            }
            self.end_event();
        }
        Err(format!("{at:?} faults for ever"))
    }

    /// The program reads the kernel's page of zeros, which is in the fast node and hidden from policies.
    pub fn read_zeros(&mut self, policy: &mut dyn Policy) {
        self.run_due(policy, self.clock, /* program: */ true);
        self.event = self.clock;
        self.charge(self.costs.access);
        if self.sample_periods[0] > 0 {
            self.until_sample[0] -= 1;
            if self.until_sample[0] == 0 {
                self.until_sample[0] = self.sample_periods[0];
            }
        }
        self.end_event();
        self.run_due(policy, self.clock, /* program: */ true);
    }

    /// The first page that is being copied.
    pub fn copying(&self) -> Option<Page> {
        let mut copied = self.table.iter().filter(|(_, mapping)| mapping.copy.is_some());
        copied.next().map(|(number, _)| Page::new(*number))
    }

    /// A reference that does not fault.
    fn reference(&mut self, page: Page, at: Page, write: bool) -> Result<(), String> {
        let bits = self.has(Capability::AccessedBits);
        let armed = self.arrives_armed(self.node_of(page));
        let Some(mapping) = self.table.get_mut(&page.number()) else { return Ok(()) };
        mapping.accessed |= bits;
        mapping.dirty |= write;
        mapping.armed = armed;
        let frame = mapping.frames[(at.number() - page.number()) as usize];
        let content = &mut self.nodes[mapping.node.index()][frame];
        if write {
            self.writes += 1;
            *content = Some(self.writes);
            self.written.insert(at.number(), self.writes);
            return Ok(());
        }
        let last = self.written.get(&at.number()).copied().unwrap_or(0);
        if *content == Some(last) {
            return Ok(());
        }
        Err(format!("{at:?} holds {content:?}, last written {last}"))
    }

    /// Sample the reference that was just made, if it is its turn.
    fn sample(&mut self, policy: &mut dyn Policy, page: Page, at: Page, write: bool) {
        let kind = usize::from(write);
        if self.sample_periods[kind] == 0 {
            return;
        }
        self.until_sample[kind] -= 1;
        if self.until_sample[kind] == 0 {
            self.until_sample[kind] = self.sample_periods[kind];
            // A reference is sampled after its event.
            self.end_event();
            self.event = self.clock;
            policy.sample(self, page, at, write);
        }
    }

    /// Add the event's cost to the program's clock.
    fn end_event(&mut self) {
        self.clock = self.clock.plus(std::mem::take(&mut self.charged));
        self.event_ended(self.clock);
    }

    /// Set the completion times of copies begun in the event that ended at `end`.
    fn event_ended(&mut self, end: Time) {
        let complete = end.plus(self.copy_delay.unwrap_or_default());
        for (page, thread) in std::mem::take(&mut self.begun) {
            if let Ok(Mapping { copy: Some(copy), .. }) = self.mapping_mut(page) {
                copy.complete = complete;
            }
            match self.copy_delay {
                None => self.wake_idle(thread, end),
                Some(_) => self.completions.push((complete, thread)),
            }
        }
    }

    fn wake_idle(&mut self, thread: Thread, at: Time) {
        let worker = &mut self.workers[thread.index()];
        if worker.due == Time::NEVER {
            worker.due = at;
        }
    }

    /// The program sleeps for `span`.
    pub fn sleep(&mut self, policy: &mut dyn Policy, span: Time) {
        let until = self.clock.plus(span);
        self.run_due(policy, until, /* program: */ false);
        self.clock = until;
    }

    /// Wake the thread of the next copy that is complete by `until`. Returns whether there is one.
    fn complete_next(&mut self, until: Time) -> bool {
        let next = (0..self.completions.len()).min_by_key(|i| self.completions[*i].0);
        let Some(index) = next.filter(|i| self.completions[*i].0 <= until) else { return false };
        let (at, thread) = self.completions.remove(index);
        self.wake_idle(thread, at);
        true
    }

    /// Run threads that are due by `until`, the earliest first. Threads with [`Context::Program`] run
    /// only if `program`, that is, while the program is awake.
    fn run_due(&mut self, policy: &mut dyn Policy, until: Time, program: bool) {
        let mut until = until;
        loop {
            let runs = |i: &usize| program || self.workers[*i].context == Context::Kernel;
            let next = (0..self.workers.len()).filter(runs).min_by_key(|i| self.workers[*i].due);
            let due = next.map_or(Time::NEVER, |index| self.workers[index].due);
            if self.complete_next(until.min(due)) {
                continue;
            }
            let Some(index) = next.filter(|_| due <= until) else { return };
            let Worker { thread, context, .. } = self.workers[index];
            let for_program = context == Context::Program;
            self.event = if for_program { self.clock } else { due };
            self.running = Some(index);
            let next = policy.work(self, thread);
            self.running = None;
            let cost = std::mem::take(&mut self.charged);
            let end = self.event.plus(cost.max(MIN_STEP));
            if for_program {
                self.clock = self.event.plus(cost);
                until = until.max(self.clock);
            }
            self.workers[index].due = match next {
                Next::Again => end,
                Next::At(time) => time.max(end),
                Next::Idle => Time::NEVER,
            };
            self.event_ended(end);
        }
    }

    /// Check the invariants that hold between events.
    ///
    /// # Errors
    /// A description of the violated invariant.
    pub fn check(&self) -> Result<(), String> {
        let mut uses: BTreeMap<(usize, usize), u32> = BTreeMap::new();
        for (number, mapping) in &self.table {
            let shadow = mapping.shadow.iter().map(|(node, frames)| (*node, frames));
            let copy = mapping.copy.iter().map(|copy| (copy.node, &copy.frames));
            for (node, frames) in shadow.chain(copy).chain([(mapping.node, &mapping.frames)]) {
                for frame in frames {
                    *uses.entry((node.index(), *frame)).or_default() += 1;
                }
            }
            if let Some((node, frames)) = &mapping.shadow {
                if *node <= mapping.node || !mapping.protected || mapping.dirty {
                    return Err(format!("page {number}: a shadow of a master that may change"));
                }
                for (frame, shadow) in mapping.frames.iter().zip(frames) {
                    let content = self.nodes[mapping.node.index()][*frame];
                    if content != self.nodes[node.index()][*shadow] {
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
