//! The simulated machine: page table, frames, TLB, and what every action costs.
//!
//! The page table takes two bytes a page. Frames are counted, not numbered: which frame a page has
//! makes no difference to anyone here. Time is in picoseconds.

use nearfar_kernel::tiering::plain::Action;
use nearfar_kernel::tiering::{
    Commit, Context, Drop, FRAME, HUGE, Memory, NodeId, Page, Refused, Thread, ThreadSpec, Time,
};

use super::counters::{Counters, Hardware, MAX_NODES};
use super::tlb::Tlb;

pub(super) const NODE: u8 = 0b11;
pub(super) const ACCESSED: u8 = 1 << 2;
pub(super) const DIRTY: u8 = 1 << 3;
pub(super) const ARMED: u8 = 1 << 4;
pub(super) const PROTECTED: u8 = 1 << 5;
pub(super) const MAPPED: u8 = 1 << 6;
/// The second byte: a shadow and its node, a copy under way and its node.
const SHADOW: u8 = 1 << 2;
const COPY: u8 = 1 << 3;
const COPY_NODE: u32 = 4;

/// A thread of the policy.
#[derive(Clone, Debug)]
pub(super) struct Worker {
    pub context: Context,
    pub due: Time,
    /// Share of each node's bandwidth that its last step used, until when.
    busy: [f64; MAX_NODES],
    busy_until: Time,
}

/// The machine.
#[derive(Clone, Debug)]
pub struct World {
    pub(super) bits: Vec<u8>,
    more: Vec<u8>,
    /// A bit for each aligned group of 512 pages that is one huge page; empty without huge pages.
    pub(super) huge: Vec<u64>,
    pub(super) tlb: Tlb,
    hardware: Hardware,
    capacity: [u64; MAX_NODES],
    free: [u64; MAX_NODES],
    shadows: u64,
    shadows_peak: u64,
    pub(super) workers: Vec<Worker>,
    pub(super) running: Option<usize>,
    /// The program's clock.
    pub(super) clock: Time,
    /// When the current event began.
    pub(super) event: Time,
    charged: f64,
    moved: [f64; MAX_NODES],
    pub(super) free_of_charge: bool,
    /// Picoseconds of an access by node and load or store, with the traffic there is now.
    pub(super) cost: [[u64; 2]; MAX_NODES],
    pub(super) walk: u64,
    program_busy: [f64; MAX_NODES],
    metered: (Time, [[u64; 2]; MAX_NODES]),
    pub(super) period: [u64; 2],
    pub(super) left: [i64; 2],
    pub(super) counters: Counters,
    /// Every action, while it is wanted.
    pub log: Option<Vec<(Time, Action)>>,
}

impl World {
    /// An empty machine with page numbers below `pages` and so many frames on each node.
    pub fn new(hardware: Hardware, frames: &[u64], pages: u32) -> Self {
        let mut capacity = [0; MAX_NODES];
        for (slot, frames) in capacity.iter_mut().zip(frames) {
            *slot = *frames;
        }
        let mut world = Self {
            bits: vec![0; pages as usize],
            more: vec![0; pages as usize],
            huge: Vec::new(),
            tlb: Tlb::new(hardware.tlb_entries),
            walk: hardware.costs.page_walk as u64,
            hardware,
            capacity,
            free: capacity,
            shadows: 0,
            shadows_peak: 0,
            workers: Vec::new(),
            running: None,
            clock: Time::default(),
            event: Time::default(),
            charged: 0.0,
            moved: [0.0; MAX_NODES],
            free_of_charge: false,
            cost: [[0; 2]; MAX_NODES],
            program_busy: [0.0; MAX_NODES],
            metered: Default::default(),
            period: [0; 2],
            left: [i64::MAX; 2],
            counters: Counters::default(),
            log: None,
        };
        world.price();
        world
    }

    /// Let pages be mapped as huge pages from now on.
    pub fn use_huge_pages(&mut self) {
        self.huge = vec![0; self.bits.len().div_ceil(HUGE as usize).div_ceil(64)];
    }

    /// Bytes that a page of this world takes here.
    pub const BYTES_A_PAGE: usize = 2;

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The program's clock.
    pub fn clock(&self) -> Time {
        self.clock
    }

    /// Frames that hold shadows, now and at most since [`forget_peak`](World::forget_peak).
    pub fn shadows(&self) -> (u64, u64) {
        (self.shadows, self.shadows_peak)
    }

    /// The most shadows from now on.
    pub fn forget_peak(&mut self) {
        self.shadows_peak = self.shadows;
    }

    /// Used frames of each node, shadows and copies included.
    pub fn used(&self) -> Vec<u64> {
        let nodes = self.hardware.nodes.len();
        self.capacity.iter().zip(&self.free).take(nodes).map(|(all, free)| all - free).collect()
    }

    pub(super) fn hardware(&self) -> &Hardware {
        &self.hardware
    }

    pub(super) fn install(&mut self, threads: &[ThreadSpec]) {
        let worker = |spec: &ThreadSpec| Worker {
            context: spec.context,
            due: Time::NEVER,
            busy: [0.0; MAX_NODES],
            busy_until: Time::default(),
        };
        self.workers = threads.iter().map(worker).collect();
    }

    #[inline]
    pub(super) fn charge(&mut self, ps: f64) {
        if !self.free_of_charge {
            self.charged += ps;
        }
    }

    /// What the event has cost, picoseconds, whole.
    pub(super) fn bill(&mut self) -> Time {
        Time::from_ps(std::mem::take(&mut self.charged).round() as u64)
    }

    /// Other cores forget a translation, as part of a migration: the program is interrupted. The
    /// price of a migration has the wait for one core in it; more are waited for here.
    fn flush(&mut self, page: Page) {
        self.tlb.flush(page.number());
        if self.free_of_charge {
            return;
        }
        if self.by_kernel() {
            self.clock = self.clock.plus(Time::from_ps(self.hardware.costs.exception as u64));
        }
        if self.hardware.program_threads > 1 {
            self.charge(self.hardware.costs.shootdown);
        }
    }

    /// Whether a kernel thread acts.
    fn by_kernel(&self) -> bool {
        self.running
            .and_then(|index| self.workers.get(index))
            .is_some_and(|worker| worker.context == Context::Kernel)
    }

    /// Traffic on a node by all threads but the running one and, for a kernel thread, the program.
    fn traffic(&self, node: usize) -> f64 {
        let others = self.workers.iter().enumerate();
        let others = others.filter(|(index, worker)| {
            self.running != Some(*index) && worker.busy_until > self.event
        });
        let program = if self.by_kernel() { self.program_busy[node] } else { 0.0 };
        others.map(|(_, worker)| worker.busy[node]).sum::<f64>() + program
    }

    fn charge_copy(&mut self, from: usize, to: usize, frames: u64) {
        self.counters.frames_copied += frames;
        let bytes = frames * FRAME;
        let (busy_from, busy_to) = (self.traffic(from), self.traffic(to));
        let nodes = &self.hardware.nodes;
        let ps = nodes[from].copy_ps(&nodes[to], bytes, busy_from, busy_to);
        self.moved[from] += bytes as f64 * nodes[from].local.read.busy_ps;
        self.moved[to] += bytes as f64 * nodes[to].local.write.busy_ps;
        self.charge(ps);
    }

    /// A step of a thread that cost `step` is over: what it moved is traffic for so long.
    pub(super) fn stepped(&mut self, index: usize, step: Time) {
        let moved = std::mem::take(&mut self.moved);
        let Some(worker) = self.workers.get_mut(index) else { return };
        let was = worker.busy;
        worker.busy = moved.map(|ps| ps / step.ps().max(1) as f64);
        worker.busy_until = self.event.plus(step);
        if was != worker.busy {
            self.price();
        }
    }

    /// The program's own share of the bandwidth, since this was last asked.
    pub(super) fn meter(&mut self) {
        let elapsed = self.clock.since(self.metered.0).ps() as f64;
        if elapsed > 0.0 {
            for (node, model) in self.hardware.nodes.iter().enumerate() {
                let now = self.counters.accesses[node];
                let busy = [false, true].map(|write| {
                    let count = now[usize::from(write)] - self.metered.1[node][usize::from(write)];
                    count as f64 * model.local.direction(write).busy_ps
                });
                self.program_busy[node] =
                    (busy[0] + busy[1]) * self.hardware.access_bytes as f64 / elapsed;
            }
        }
        self.metered = (self.clock, self.counters.accesses);
        self.price();
    }

    /// Accesses at today's traffic.
    fn price(&mut self) {
        self.moved = [0.0; MAX_NODES];
        for node in 0..self.hardware.nodes.len() {
            let now = self.event.max(self.clock);
            let running = self.workers.iter().filter(|worker| worker.busy_until > now);
            let busy: f64 = running.map(|worker| worker.busy[node]).sum();
            let model = &self.hardware.nodes[node];
            self.cost[node] = [false, true]
                .map(|write| model.access_ps(self.hardware.access_bytes, write, busy) as u64);
        }
    }

    fn is_huge(&self, page: Page) -> bool {
        let group = page.index() / HUGE as usize;
        self.huge.get(group / 64).is_some_and(|word| word >> (group % 64) & 1 == 1)
    }

    /// The mapping that a base page belongs to.
    #[inline]
    pub(super) fn mapping_of(&self, at: Page) -> Page {
        if self.is_huge(at) { Page::new(at.number() / HUGE * HUGE) } else { at }
    }

    fn get(&self, page: Page, bit: u8) -> bool {
        self.bits.get(page.index()).is_some_and(|bits| bits & bit != 0)
    }

    /// Set and clear bits of a mapped page; false for any other.
    fn change(&mut self, page: Page, set: u8, clear: u8) -> bool {
        match self.bits.get_mut(page.index()) {
            Some(bits) if *bits & MAPPED != 0 => {
                *bits = *bits & !clear | set;
                true
            }
            _ => false,
        }
    }

    fn note(&mut self, action: Action) {
        if let Some(log) = &mut self.log {
            log.push((self.event, action));
        }
    }

    fn take(&mut self, node: NodeId, frames: u64) -> Result<(), Refused> {
        let free = self.free.get_mut(node.index()).ok_or(Refused::State)?;
        *free = free.checked_sub(frames).ok_or(Refused::NoFrame)?;
        Ok(())
    }

    fn release(&mut self, node: NodeId, frames: u64) {
        self.free[node.index()] += frames;
    }

    /// Map a page for the first time on `node`; false if there is no room.
    pub(super) fn map(&mut self, page: Page, node: NodeId, huge: bool) -> bool {
        let frames = if huge { u64::from(HUGE) } else { 1 };
        if self.take(node, frames).is_err() {
            return false;
        }
        if huge {
            let group = page.index() / HUGE as usize;
            self.huge[group / 64] |= 1 << (group % 64);
        }
        self.bits[page.index()] = MAPPED | node.index() as u8;
        true
    }

    fn shadow_node(&self, page: Page) -> Option<NodeId> {
        let more = self.more.get(page.index())?;
        (more & SHADOW != 0).then(|| NodeId::new(more & NODE))
    }

    fn copy_node(&self, page: Page) -> Option<NodeId> {
        let more = self.more.get(page.index())?;
        (more & COPY != 0).then(|| NodeId::new(more >> COPY_NODE & NODE))
    }

    /// A mapped page that is not being copied, with its node and frames.
    fn movable(&self, page: Page) -> Result<(NodeId, u64), Refused> {
        if !self.mapped(page) {
            return Err(Refused::State);
        }
        if self.copy_node(page).is_some() {
            return Err(Refused::Busy);
        }
        Ok((self.node_of(page), u64::from(self.span(page))))
    }

    /// Count a move between nodes.
    fn count(&mut self, from: NodeId, to: NodeId, frames: u64) {
        if to < from {
            self.counters.promotions += frames;
        } else {
            self.counters.demotions += frames;
        }
    }

    fn free_shadow(&mut self, page: Page) -> Option<u64> {
        let node = self.shadow_node(page)?;
        let frames = u64::from(self.span(page));
        self.more[page.index()] &= !(SHADOW | NODE);
        self.shadows -= frames;
        self.release(node, frames);
        Some(frames)
    }

    /// Everything that must hold between events; takes a walk over the page table.
    ///
    /// # Errors
    /// A description of what does not hold.
    pub fn check(&self) -> Result<(), String> {
        let mut used = [0; MAX_NODES];
        let mut shadows = 0;
        for number in 0..self.bits.len() as u32 {
            let page = Page::new(number);
            if !self.mapped(page) {
                if self.more[page.index()] != 0 {
                    return Err(format!("{page:?} is not mapped and has a shadow or a copy"));
                }
                continue;
            }
            let span = u64::from(self.span(page));
            used[self.node_of(page).index()] += span;
            if let Some(node) = self.shadow_node(page) {
                used[node.index()] += span;
                shadows += span;
                let clean = self.write_protected(page) && !self.dirty(page);
                if node <= self.node_of(page) || !clean {
                    return Err(format!("{page:?}: a shadow of a master that may change"));
                }
            }
            if let Some(node) = self.copy_node(page) {
                used[node.index()] += span;
            }
        }
        for (node, used) in used.iter().enumerate() {
            if *used + self.free[node] != self.capacity[node] {
                return Err(format!("node {node}: {used} used and {} free", self.free[node]));
            }
        }
        if shadows != self.shadows {
            return Err(format!("{shadows} shadows, counted {}", self.shadows));
        }
        let count = &self.counters;
        if count.demotions != count.demotions_copied + count.demotions_remapped {
            return Err("demotions are not the copied and the remapped ones".into());
        }
        Ok(())
    }
}

impl Memory for World {
    fn now(&self) -> Time {
        self.event
    }
    fn pages(&self) -> u32 {
        self.bits.len() as u32
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
    fn mapped(&self, page: Page) -> bool {
        self.get(page, MAPPED)
    }
    fn node_of(&self, page: Page) -> NodeId {
        self.bits.get(page.index()).map_or(NodeId::FAST, |bits| NodeId::new(bits & NODE))
    }
    fn span(&self, page: Page) -> u32 {
        if self.is_huge(page) { HUGE } else { 1 }
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
        self.shadow_node(page)
    }

    fn clear_accessed(&mut self, page: Page) -> bool {
        self.charge(self.hardware.costs.page_scan);
        let was = self.accessed(page);
        self.change(page, 0, ACCESSED) && was
    }

    fn arm_hint(&mut self, page: Page) {
        self.charge(self.hardware.costs.page_scan);
        if self.change(page, ARMED, 0) {
            // One flush ends a scan; its cost is lost among thousands of entries.
            self.tlb.flush(page.number());
            self.note(Action::Armed(page));
        }
    }

    fn disarm_hint(&mut self, page: Page) {
        self.change(page, ACCESSED, ARMED);
    }

    fn write_protect(&mut self, page: Page) {
        self.charge(self.hardware.costs.page_scan);
        if self.change(page, PROTECTED, 0) {
            self.tlb.flush(page.number());
            self.note(Action::Protected(page));
        }
    }

    fn unprotect(&mut self, page: Page) -> Result<(), Refused> {
        if self.shadow_node(page).is_some() || !self.change(page, 0, PROTECTED) {
            return Err(Refused::State);
        }
        Ok(())
    }

    fn move_page(&mut self, page: Page, to: NodeId) -> Result<(), Refused> {
        let (from, frames) = self.movable(page)?;
        if from == to {
            return Err(Refused::State);
        }
        self.take(to, frames)?;
        self.release(from, frames);
        if let Some(frames) = self.free_shadow(page) {
            self.counters.shadow_reclaims += frames;
        }
        let clean = if to < from { DIRTY } else { 0 };
        self.change(page, to.index() as u8, NODE | ACCESSED | ARMED | PROTECTED | clean);
        self.count(from, to, frames);
        if to > from {
            self.counters.demotions_copied += frames;
        }
        self.charge_copy(from.index(), to.index(), frames);
        self.charge(self.hardware.costs.page_migration);
        self.flush(page);
        self.note(Action::Moved(page, to));
        Ok(())
    }

    fn begin_copy(&mut self, page: Page, to: NodeId) -> Result<(), Refused> {
        let (from, frames) = self.movable(page)?;
        if from == to || self.shadow_node(page).is_some() {
            return Err(Refused::State);
        }
        self.take(to, frames)?;
        self.change(page, 0, DIRTY);
        self.more[page.index()] |= COPY | (to.index() as u8) << COPY_NODE;
        self.charge_copy(from.index(), to.index(), frames);
        self.flush(page);
        if self.by_kernel() && self.hardware.program_threads == 1 {
            // A flush that a plain migration does not have.
            self.charge(self.hardware.costs.shootdown);
        }
        self.note(Action::Began(page, to));
        Ok(())
    }

    fn commit_copy(&mut self, page: Page, keep_shadow: bool) -> Result<Commit, Refused> {
        let to = self.copy_node(page).ok_or(Refused::State)?;
        let (from, frames) = (self.node_of(page), u64::from(self.span(page)));
        if keep_shadow && to > from {
            return Err(Refused::State);
        }
        self.more[page.index()] = 0;
        self.charge(self.hardware.costs.page_migration);
        if self.dirty(page) {
            self.release(to, frames);
            self.counters.aborts += 1;
            self.note(Action::Committed(page, Commit::Dirtied, keep_shadow));
            return Ok(Commit::Dirtied);
        }
        let protect = if keep_shadow { PROTECTED } else { 0 };
        self.change(page, 0, NODE | ACCESSED | ARMED | PROTECTED);
        self.change(page, to.index() as u8 | protect, 0);
        self.count(from, to, frames);
        if keep_shadow {
            self.more[page.index()] = SHADOW | from.index() as u8;
            self.shadows += frames;
            self.shadows_peak = self.shadows_peak.max(self.shadows);
            self.counters.shadow_copies += frames;
        } else {
            self.release(from, frames);
            if to > from {
                self.counters.demotions_copied += frames;
            }
        }
        self.flush(page);
        self.note(Action::Committed(page, Commit::Done, keep_shadow));
        Ok(Commit::Done)
    }

    fn remap_to_shadow(&mut self, page: Page) -> Result<(), Refused> {
        let (from, frames) = self.movable(page)?;
        let to = self.shadow_node(page).ok_or(Refused::State)?;
        self.more[page.index()] = 0;
        self.shadows -= frames;
        self.release(from, frames);
        self.change(page, 0, NODE | ACCESSED | ARMED | PROTECTED | DIRTY);
        self.change(page, to.index() as u8, 0);
        self.count(from, to, frames);
        self.counters.demotions_remapped += frames;
        self.charge(self.hardware.costs.page_migration);
        self.flush(page);
        self.note(Action::Remapped(page));
        Ok(())
    }

    fn drop_shadow(&mut self, page: Page, why: Drop) -> Result<(), Refused> {
        let frames = self.free_shadow(page).ok_or(Refused::State)?;
        match why {
            Drop::Written => self.counters.shadow_faults += frames,
            Drop::Reclaimed => self.counters.shadow_reclaims += frames,
        }
        self.charge(self.hardware.costs.page_scan);
        self.note(Action::Dropped(page, why));
        Ok(())
    }

    fn split(&mut self, page: Page) -> Result<(), Refused> {
        self.movable(page)?;
        if !self.is_huge(page) || self.shadow_node(page).is_some() {
            return Err(Refused::State);
        }
        let group = page.index() / HUGE as usize;
        self.huge[group / 64] &= !(1 << (group % 64));
        let bits = self.bits[page.index()];
        for inner in self.bits.iter_mut().skip(page.index()).take(HUGE as usize) {
            *inner = bits;
        }
        self.counters.splits += 1;
        self.charge(self.hardware.costs.page_migration);
        self.flush(page);
        self.note(Action::Split(page));
        Ok(())
    }

    fn wake(&mut self, thread: Thread) {
        let index = usize::from(thread.0);
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
