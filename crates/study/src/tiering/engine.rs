//! Runs the program's accesses, and the policy's threads between them.
//!
//! Most accesses do not involve the policy: a fast path runs them until a fault, a sample or a due
//! thread. Then the policy is called.

use nearfar_hardware::node::LINE;
use nearfar_hardware::table::prefetch;
use nearfar_kernel::tiering::{
    Context, HUGE, MIN_STEP, Made, Memory, Next, NodeId, Page, Policy, Time,
};
use nearfar_trace::{Error, Result};

use super::counters::MAX_NODES;
use super::world::entry::{self, ACCESSED, ARMED, DIRTY, Entry, PROTECTED};
use super::world::{World, mapping};

mod block;
mod threads;

pub use block::{Access, Block, End};
pub use threads::Queue;
use threads::endless_faults;

/// Interval between measurements of the program's bandwidth: 1 ms.
const METER_PERIOD: Time = Time::from_ps(1_000_000_000);
/// Lines of one load that count as misses for sampling. Assumption: the streamer prefetches the others after
/// three consecutive lines.
const DEMAND_LINES: i64 = 3;
/// Page-table entries are prefetched this many accesses ahead.
const AHEAD: usize = 32;
/// Faults of one access after which the policy is considered broken.
const MAX_FAULTS: u32 = 10_000;

/// The entry of pages beyond the table, such as [`Access::ZEROS`]: on the fastest node, and armed so that a
/// TLB miss enters the kernel.
const BEYOND: Entry = entry::at(NodeId::FAST, None) | ARMED;

/// Argument of [`Engine::run_due`]: the program runs, so all policy threads do.
const PROGRAM_RUNS: bool = true;
/// Argument of [`Engine::run_due`]: the program sleeps, so only kernel threads run.
const PROGRAM_SLEEPS: bool = false;

/// Why the fast path stopped.
enum Stop {
    End,
    /// The access needs the kernel.
    Fault,
    Sample,
    /// A thread or a bandwidth measurement is due.
    Due,
}

/// A machine and its policy.
pub struct Engine {
    pub world: World,
    pub policy: Box<dyn Policy>,
    meter_due: Time,
    huge: bool,
}

impl Engine {
    /// Start the policy of `make` in `world`; pages are mapped as huge pages if `huge`.
    ///
    /// # Errors
    /// Errors of `make`.
    pub fn new(
        mut world: World,
        make: impl FnOnce(&mut dyn Memory) -> Result<Made>,
        huge: bool,
    ) -> Result<Self> {
        if huge {
            world.use_huge_pages();
        }
        let (policy, wakes) = make(&mut world)?;
        for (thread, at) in wakes {
            if let Some(worker) = world.workers.get_mut(thread.index()) {
                worker.due = at;
            }
        }
        Ok(Self { world, policy, meter_due: METER_PERIOD, huge })
    }

    /// Map a page at its first touch.
    ///
    /// # Errors
    /// No node has room.
    pub fn allocate(&mut self, at: Page) -> Result<()> {
        let world = &mut self.world;
        let head = Page::new(at.number() / HUGE * HUGE);
        let huge = self.huge && world.group_is_free(head);
        let (page, span) = if huge { (head, HUGE) } else { (at, 1) };
        let first = self.policy.place(world, page, span);
        let nodes = world.nodes();
        let slower = NodeId::all(nodes).filter(|node| *node >= first);
        for node in slower.chain(NodeId::all(nodes).filter(|node| *node < first)) {
            let mut done = world.map(page, node, huge);
            if !done {
                let tenant = world.tenant_of(page);
                self.policy.pressure(world, node, tenant);
                done = world.map(page, node, huge);
            }
            if done {
                self.policy.allocated(world, page);
                return Ok(());
            }
        }
        Err(Error::input(
            "tiering",
            format!("memory is full at page {}", page.number()),
            "choose a larger --fast or --slow, a machine with more memory, or a smaller --scale",
        ))
    }

    /// Unmap the mapping of base page `at`, if any.
    pub fn release(&mut self, at: Page) {
        self.run_due(self.world.clock, PROGRAM_RUNS);
        let world = &mut self.world;
        let page = world.mapping_of(at);
        if !world.mapped(page) {
            return;
        }
        world.event = world.clock;
        let span = world.unmap(page);
        self.policy.released(world, page, span);
        self.end_event();
        self.run_due(self.world.clock, PROGRAM_RUNS);
    }

    /// Free a page of the program: a base page, or with `huge` a whole huge page, even if it was split.
    fn end_page(&mut self, page: Page) {
        for inner in 0..if self.huge { HUGE } else { 1 } {
            let inner = page.skip(inner);
            if self.world.mapped(self.world.mapping_of(inner)) {
                self.release(inner);
            }
        }
    }

    /// Free all mapped pages among `count` pages from `first`.
    pub fn end_pages(&mut self, first: Page, count: u32) {
        let end = first.skip(count);
        let mut next = self.world.next_mapped(first);
        while let Some(page) = next.filter(|page| *page < end) {
            self.release(page);
            next = self.world.next_mapped(page);
        }
    }

    /// Run a block's accesses, and apply the ends of pages and translations ([`End`]) between them.
    ///
    /// # Errors
    /// As [`run`](Engine::run).
    pub fn run_block(&mut self, block: &Block) -> Result<()> {
        let mut done = 0;
        for ends in block.ends.chunk_by(|one, next| one.0 == next.0) {
            let at = ends.first().map_or(done, |(at, _)| *at);
            if at > done {
                self.run(block.accesses.get(done..at).unwrap_or_default())?;
                done = at;
            }
            self.apply_ends(ends);
        }
        self.run(block.accesses.get(done..).unwrap_or_default())
    }

    /// Apply ends of pages and translations, with one TLB shootdown for all.
    fn apply_ends(&mut self, ends: &[(usize, End)]) {
        for (_, end) in ends {
            match *end {
                End::Page(page) => self.end_page(page),
                End::Translation(page) => {
                    let page = self.world.mapping_of(page);
                    self.world.flush_tlbs(page);
                }
                End::Pages(first, count) => self.end_pages(first, count),
            }
        }
        if self.world.running_program().threads > 1 {
            self.world.event = self.world.clock;
            self.world.charge(self.world.hardware().costs.shootdown);
            self.end_event();
        }
    }

    /// Run the program's accesses.
    ///
    /// # Errors
    /// Memory is full; a page number out of bounds; a policy that lets a page fault for ever.
    pub fn run(&mut self, accesses: &[Access]) -> Result<()> {
        let mut rest = accesses;
        self.run_due(self.world.clock, PROGRAM_RUNS);
        while !rest.is_empty() {
            let (done, stop) = self.run_fast_path(rest, Time::NEVER);
            let last = rest.get(done.wrapping_sub(1)).copied();
            rest = rest.get(done..).unwrap_or_default();
            match stop {
                Stop::End => {}
                Stop::Due => self.run_due(self.world.clock, PROGRAM_RUNS),
                Stop::Sample => {
                    if let Some(access) = last {
                        self.sample(access);
                    }
                    self.run_due(self.world.clock, PROGRAM_RUNS);
                }
                Stop::Fault => {
                    let Some((access, others)) = rest.split_first() else { break };
                    if access.page() == Access::ZEROS {
                        self.read_zeros(*access);
                        rest = others;
                    } else {
                        self.fault(*access)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// When the next thread or bandwidth measurement is due.
    fn due(&self) -> Time {
        self.world.workers.iter().map(|worker| worker.due).fold(self.meter_due, Time::min)
    }

    /// Run accesses up to a [`Stop`]; at `horizon`, another thread of the program is due. Returns the number
    /// of accesses done.
    ///
    /// Even on a TLB hit, the node is read from the page-table entry, prefetched [`AHEAD`] accesses ago.
    /// This is exact, because migration flushes the TLB.
    fn run_fast_path(&mut self, accesses: &[Access], horizon: Time) -> (usize, Stop) {
        let due = self.due().min(horizon).ps();
        let world = &mut self.world;
        let tenant = world.running_tenant();
        let lines = (world.running_program().access_bytes / LINE).max(1) as i64;
        // Lines that count for sampling: of a load, at most DEMAND_LINES; of a store, all.
        let lines = [lines.min(DEMAND_LINES), lines];
        let mut clock = world.clock.ps();
        let cost = *world.cost_of(tenant);
        let World { entries, tlbs, huge, .. } = world;
        let (entries, walk) = (entries.as_mut_slice(), world.walk);
        let Some(tlb) = tlbs.get_mut(world.current) else { return (0, Stop::End) };
        // Lines until the next sample.
        let mut left = world.left;
        let mut done = accesses.len();
        let mut stop = Stop::End;
        let mut misses = 0;
        let mut count = [[0u64; 2]; MAX_NODES];
        for (index, access) in accesses.iter().enumerate() {
            if let Some(access) = accesses.get(index + AHEAD) {
                prefetch(entries, access.page().index());
            }
            let write = access.write();
            let page = if huge.is_empty() { access.page() } else { mapping(huge, access.page()) };
            let (found, hit) = tlb.look_up(page.number(), write);
            let entry = entries.get(page.index()).copied().unwrap_or(BEYOND);
            if !hit {
                let faulting = ARMED | if write { PROTECTED } else { 0 };
                if entry == entry::NONE || entry & faulting != 0 {
                    (done, stop) = (index, Stop::Fault);
                    break;
                }
                let set = ACCESSED | if write { DIRTY } else { 0 };
                if entry & set != set
                    && let Some(entry) = entries.get_mut(page.index())
                {
                    *entry |= set;
                }
                tlb.insert(found, page.number(), write);
                misses += 1;
                clock += walk;
            }
            let (node, kind) = (entry::node(entry).index(), usize::from(write));
            clock += cost[node][kind];
            count[node][kind] += 1;
            left[kind] -= lines[kind];
            if left[kind] <= 0 {
                (done, stop) = (index + 1, Stop::Sample);
                break;
            }
            if clock >= due {
                (done, stop) = (index + 1, Stop::Due);
                break;
            }
        }
        world.clock = Time::from_ps(clock);
        world.left = left;
        world.tally_tenant(tenant, |counters| {
            let all = counters.accesses.iter_mut().flatten();
            all.zip(count.iter().flatten()).for_each(|(total, count)| *total += count);
            counters.tlb_misses += misses;
        });
        (done, stop)
    }

    /// Run an access to the zero page that missed the TLB.
    fn read_zeros(&mut self, access: Access) {
        let world = &mut self.world;
        let page = access.page().number();
        if let Some(tlb) = world.tlbs.get_mut(world.current) {
            let (found, _) = tlb.look_up(page, false);
            tlb.insert(found, page, false);
        }
        let tenant = world.running_tenant();
        world.tally_tenant(tenant, |count| {
            count.tlb_misses += 1;
            count.accesses[NodeId::FAST.index()][0] += 1;
        });
        let cost = world.walk + world.cost_of(tenant)[NodeId::FAST.index()][0];
        world.clock = world.clock.plus(Time::from_ps(cost));
        let lines = (world.running_program().access_bytes / LINE).max(1) as i64;
        world.left[0] -= lines.min(DEMAND_LINES);
        if world.left[0] <= 0 {
            self.sample(access);
        }
        self.run_due(self.world.clock, PROGRAM_RUNS);
    }

    /// Handle the faults of the next access, which is then retried.
    fn fault(&mut self, access: Access) -> Result<()> {
        for _ in 0..MAX_FAULTS {
            if !self.fault_once(access)? {
                return Ok(());
            }
            self.run_due(self.world.clock, PROGRAM_RUNS);
        }
        Err(endless_faults(Some(access)))
    }

    /// Handle one fault of an access. Returns false if it has none.
    fn fault_once(&mut self, access: Access) -> Result<bool> {
        let world = &mut self.world;
        let page = world.mapping_of(access.page());
        let Some(entry) = world.entries.get(page.index()).copied() else {
            let what = format!("page {} is out of bounds", page.number());
            return Err(Error::input("tiering", what, ""));
        };
        world.event = world.clock;
        if entry == entry::NONE {
            world.charge(world.hardware().first_touch);
            self.allocate(access.page())?;
        } else if entry & ARMED != 0 {
            world.tally(page, |count| count.hint_faults += 1);
            world.charge(world.hardware().costs.hint_fault);
            self.policy.hint_fault(world, page, access.write());
        } else if access.write() && entry & PROTECTED != 0 {
            world.tally(page, |count| count.write_faults += 1);
            world.charge(world.hardware().costs.write_protect_fault);
            self.policy.write_fault(world, page);
        } else {
            return Ok(false);
        }
        self.end_event();
        Ok(true)
    }

    /// Add the event's cost to the program's clock.
    fn end_event(&mut self) {
        let cost = self.world.take_cost();
        self.world.spent(cost);
        self.world.clock = self.world.clock.plus(cost);
        self.world.event_ended(self.world.clock);
    }

    fn sample(&mut self, access: Access) {
        let world = &mut self.world;
        let page = world.mapping_of(access.page());
        let kind = usize::from(access.write());
        world.left[kind] += world.period[kind] as i64;
        if world.left[kind] <= 0 {
            // The period is shorter than an access: one sample per access.
            world.left[kind] = 1;
        }
        world.event = world.clock;
        world.charge(world.hardware().costs.sample);
        if access.page() != Access::ZEROS {
            self.policy.sample(world, page, access.page(), access.write());
        }
        self.end_event();
    }

    /// Let the program sleep; kernel threads continue.
    pub fn sleep(&mut self, span: Time) {
        self.world.join();
        let until = self.world.clock.plus(span);
        self.run_due(until, PROGRAM_SLEEPS);
        self.world.wait_until(until);
        self.meter_due = self.world.clock.plus(METER_PERIOD);
        self.world.meter();
    }

    /// Give the policy each page's number of future accesses, at no simulated cost.
    pub fn foresee(&mut self, counts: &[u32]) {
        self.world.event = self.world.clock;
        self.world.free_of_charge = true;
        self.policy.foresee(&mut self.world, counts);
        self.world.free_of_charge = false;
        self.world.event_ended(self.world.clock);
    }

    /// Run policy threads that are due by `until`, earliest first, ties in order of creation; only kernel
    /// threads unless `program_runs`.
    fn run_due(&mut self, until: Time, program_runs: bool) {
        let mut until = until;
        loop {
            let mut next: Option<(usize, Time)> = None;
            for (index, worker) in self.world.workers.iter().enumerate() {
                let runs = program_runs || worker.context == Context::Kernel;
                if runs && worker.due <= until && next.is_none_or(|(_, due)| worker.due < due) {
                    next = Some((index, worker.due));
                }
            }
            let Some((index, due)) = next else { break };
            let before = self.world.clock;
            let (thread, context) =
                (self.world.workers[index].thread, self.world.workers[index].context);
            let for_program = context == Context::Program;
            self.world.event = if for_program { before } else { due };
            self.world.running = Some(index);
            let next = self.policy.work(&mut self.world, thread);
            self.world.running = None;
            let cost = self.world.take_cost();
            let end = self.world.event.plus(cost.max(MIN_STEP));
            if for_program {
                self.world.spent(cost);
                self.world.clock = self.world.clock.plus(cost);
            } else {
                self.world.stepped(index, cost.max(MIN_STEP));
            }
            if program_runs {
                // The step may have delayed the program, so that more threads are due.
                until = until.max(self.world.reached());
            } else {
                // A sleeping program is not interrupted.
                self.world.clock = before;
            }
            self.world.workers[index].due = match next {
                Next::Again => end,
                Next::At(time) => time.max(end),
                Next::Idle => Time::NEVER,
            };
            self.world.event_ended(end);
        }
        if program_runs && self.meter_due <= self.world.clock {
            self.world.meter();
            self.meter_due = self.world.clock.plus(METER_PERIOD);
        }
    }
}
