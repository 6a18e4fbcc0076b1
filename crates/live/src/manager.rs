//! The manager: reads the kernel's messages, calls the policy, and runs its threads.

use nearfar_kernel::epf::{self, Epf};
use nearfar_kernel::tiering::{
    Made, Memory, NodeId, Page, Policy, Refused, Settings, Tenant, make,
};
use nearfar_trace::Result;

use crate::far::Arrival;
use crate::order::Order;
use crate::regions::Regions;
use crate::world::{FAR_NODE, PageFlags, World};
use crate::{Child, Event, Kernel, NewRegion, Slot, Va};

mod changes;

/// Maximum number of pages that a first touch maps if the accesses are sequential (fault-around).
pub const AROUND: u64 = 16;

/// Maximum number of policy calls for one reference. Then the page is faulted in without the policy.
const MAX_POLICY_CALLS: usize = 100;
/// Maximum number of refused faults in a row at one page. Then the program is ended, as it would fault for
/// ever. A late message about a fault that was served is refused too, but only once.
const MAX_REFUSALS: u32 = 10_000;

/// Why a program is ended if the order of its messages is ambiguous.
pub(crate) const AMBIGUOUS: &str = "its threads move memory to and from the same place at once, \
    in an order that the kernel does not report";

/// Why a program is ended if the location of a child's memory is unknown.
pub(crate) const LOST: &str = "a thread was killed after it moved memory and before the kernel reported the move, while another thread forked";

/// After this many consecutive turns ([`Manager::turn`]) with messages, a policy's thread runs nevertheless.
/// If it ran more often, it would evict pages before the program's faulting threads have used them.
const BUSY_TURNS: u32 = 64;

/// Turns that wait for a change of mappings by yielding; the following ones sleep for `BLOCKED_NS`.
const YIELDING_TURNS: u32 = 64;
const BLOCKED_NS: u64 = 50_000;

/// Lets a policy manage the memory of a running program (a live memory).
pub struct Manager<K> {
    pub world: World<K>,
    policy: Box<dyn Policy>,
    /// Embedded page faults: which threads sleep while their page is read from the far tier.
    epf: Box<dyn Epf>,
    /// Faults whose page is being read, by slot.
    fetching: Vec<(Slot, Event)>,
    regions: Regions,
    order: Order,
    /// Maximum number of pages that one first touch maps.
    around: u64,
    events: Vec<Event>,
    /// Faults that could not be served yet.
    deferred: Vec<Event>,
    /// Unreleased children, each with the pages that it does not map although no message explains it.
    lacking: Vec<(Child, Vec<Va>)>,
    /// The page of the latest refused fault, and its number of refusals in a row.
    refused: (Va, u32),
    /// Consecutive turns with messages.
    busy_turns: u32,
    /// Consecutive turns that had to wait for a change of mappings.
    blocked_turns: u32,
}

/// When the next turn of the manager is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Now.
    Busy,
    /// When a message arrives, at the latest at this time ([`Kernel::now_ns`]).
    Until(u64),
}

impl<K: Kernel> Manager<K> {
    /// A manager with the policy `name`; one first touch maps up to `around` pages.
    ///
    /// # Errors
    /// Those of [`make`]: an unknown policy or knob, or a policy that needs a capability that a live memory
    /// lacks.
    pub fn new(world: World<K>, name: &str, settings: &Settings, around: u64) -> Result<Self> {
        Self::with(world, around, |world| make(name, settings, world))
    }

    /// A manager with the policy that `make` returns.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn with(
        mut world: World<K>,
        around: u64,
        make: impl FnOnce(&mut dyn Memory) -> Result<Made>,
    ) -> Result<Self> {
        world.begin_event();
        let (policy, wakes) = make(&mut world)?;
        for (thread, at) in wakes {
            world.workers.all[thread.index()].due = at;
        }
        Ok(Self {
            world,
            policy,
            epf: Box::new(epf::all::All),
            fetching: Vec::new(),
            regions: Regions::default(),
            order: Order::default(),
            around: around.max(1),
            events: Vec::new(),
            deferred: Vec::new(),
            lacking: Vec::new(),
            refused: (Va::new(0), 0),
            busy_turns: 0,
            blocked_turns: 0,
        })
    }

    /// Set which threads sleep while their page is read from the far tier. The default is all.
    #[must_use]
    pub fn with_epf(mut self, epf: Box<dyn Epf>) -> Self {
        self.epf = epf;
        self
    }

    /// Register the memory that the program has mapped since the last call, and manage its present pages.
    /// Returns whether there was any such memory.
    pub fn discover(&mut self) -> bool {
        if !self.can_discover() {
            return false;
        }
        let mut found = Vec::new();
        self.world.kernel.discover(&self.regions, &mut found);
        let any = !found.is_empty();
        if !self.world.kernel.is_quiet() {
            // An unread message may be about these pages. The next call finds them again.
            found.clear();
        }
        for NewRegion { range, present } in found {
            self.regions.add(range);
            for at in present {
                if self.world.page_at(at).is_none() {
                    self.world.kernel.beat();
                    self.event(|manager| {
                        manager.map(at, false);
                        // Elsewhere only faults trim the window (resident far pages): there may be none.
                        manager.world.trim_window();
                    });
                }
            }
        }
        // Retry to evict pinned pages here: a program that has all its pages never faults.
        if self.world.window.has_stuck() {
            self.event(|manager| manager.world.trim_window());
        }
        any
    }

    /// Whether no change of mappings is in progress, so that `discover` sees a consistent state.
    pub fn can_discover(&mut self) -> bool {
        self.order.is_settled() && self.world.kernel.is_quiet()
    }

    /// Read and apply all messages, or run one step of a policy's thread.
    ///
    /// # Errors
    /// Why the program cannot go on.
    pub fn turn(&mut self) -> std::result::Result<Turn, String> {
        self.collect_arrivals();
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        self.world.kernel.events(&mut events);
        for event in &events {
            self.order.receive(*event);
        }
        if !self.order.is_settled() {
            if !self.world.kernel.is_quiet() {
                // More messages will arrive, and every request would be refused.
                if self.order.lacks(&self.regions) {
                    self.world.kernel.wait_for_messages();
                }
                let faults = events.iter().filter(|event| matches!(event, Event::Fault { .. }));
                self.deferred.extend(faults);
                self.events = events;
                return self.blocked();
            }
            // Apply the changes before any request: they are in effect already.
            self.apply_in_order();
            if let Some(why) = &self.world.broken {
                return Err(why.clone());
            }
        }
        let mut placed = false;
        if !self.world.unnumbered.is_empty() {
            self.event(|manager| placed = manager.world.place_all_unnumbered());
        }
        self.check_lacking();
        // The threads of deferred faults still sleep. If they were woken, they would fault again, and these
        // faults would be read before the messages that block requests.
        events.append(&mut self.deferred);
        for event in &events {
            if let Event::Fault { .. } = event {
                self.event(|manager| manager.fault(*event));
                self.world.trim_window();
            }
        }
        let busy = !events.is_empty() || placed;
        self.events = events;
        if !self.deferred.is_empty() && !self.world.kernel.is_quiet() {
            return self.blocked();
        }
        self.blocked_turns = 0;
        self.busy_turns = if busy { self.busy_turns + 1 } else { 0 };
        let turn = if busy && !self.busy_turns.is_multiple_of(BUSY_TURNS) {
            Turn::Busy
        } else {
            match self.work() {
                Turn::Until(_) if busy => Turn::Busy,
                turn => turn,
            }
        };
        let turn = match turn {
            Turn::Until(due) => {
                let again = self.world.kernel.now_ns() + BLOCKED_NS;
                let lacking = if self.lacking.is_empty() { u64::MAX } else { again };
                Turn::Until(due.min(lacking).min(self.world.far.due()))
            }
            Turn::Busy => Turn::Busy,
        };
        self.unless_broken(turn)
    }

    fn unless_broken(&self, turn: Turn) -> std::result::Result<Turn, String> {
        self.world.broken.clone().map_or(Ok(turn), Err)
    }

    /// Continue with the faults whose pages have arrived.
    fn collect_arrivals(&mut self) {
        for Arrival { slot, .. } in self.world.collect_arrivals() {
            for (_, event) in self.fetching.extract_if(.., |(other, _)| *other == slot) {
                if let Event::Fault { thread, .. } = event {
                    self.world.kernel.resume(thread);
                }
                self.deferred.push(event);
            }
        }
    }

    /// Whether a fault must wait until its page is read from the far tier. Starts the read; the fault is
    /// served when the page has arrived.
    fn must_fetch(&mut self, page: Page, event: Event) -> std::result::Result<bool, Refused> {
        let Event::Fault { thread, .. } = event else { return Ok(false) };
        let Some(slot) =
            self.world.pages.slot(page).filter(|_| self.world.pages.state(page).is_stored())
        else {
            return Ok(false);
        };
        let Some(predicted_ns) = self.world.fetch(slot)? else { return Ok(false) };
        let is_repeated = self.fetching.iter().any(|(_, other)| *other == event);
        if !is_repeated {
            self.fetching.push((slot, event));
            let sleeps = self.epf.pass(&epf::Fault { predicted_ns });
            if !sleeps && self.world.kernel.stall(thread) {
                self.world.counters.stalled += 1;
            } else {
                self.world.counters.slept += 1;
            }
        }
        Ok(true)
    }

    /// End a turn during a change of mappings, when every request is refused. A fork may take long.
    fn blocked(&mut self) -> std::result::Result<Turn, String> {
        self.blocked_turns += 1;
        self.unless_broken(if self.blocked_turns < YIELDING_TURNS {
            Turn::Busy
        } else {
            Turn::Until(self.world.kernel.now_ns() + BLOCKED_NS)
        })
    }

    /// Whether all messages were applied, no expected one is missing, and known children have their pages.
    pub fn is_settled(&self) -> bool {
        self.order.is_settled() && self.lacking.is_empty()
    }

    /// Whether a fault waits for its page from the far tier.
    pub fn awaits_pages(&self) -> bool {
        !self.fetching.is_empty()
    }

    fn event(&mut self, act: impl FnOnce(&mut Self)) {
        self.world.begin_event();
        act(self);
        self.world.end_event();
    }

    /// One step of the policy's thread that is due first.
    fn work(&mut self) -> Turn {
        self.world.begin_event();
        let first = self.world.workers.all.iter().min_by_key(|worker| worker.due);
        let Some((thread, due)) = first.map(|worker| (worker.thread, worker.due)) else {
            return Turn::Until(u64::MAX);
        };
        if due > self.world.event.now {
            return Turn::Until(due.ps() / 1000);
        }
        self.world.workers.running = Some(thread.index());
        let next = self.policy.work(&mut self.world, thread);
        self.world.workers.running = None;
        self.world.reschedule(thread, next);
        self.world.end_event();
        Turn::Busy
    }

    // --- faults

    fn fault(&mut self, event: Event) {
        let Event::Fault { at, write, protected, .. } = event else { return };
        let page = self.world.page_at(at);
        if let Some(page) = page.filter(|_| !protected) {
            match self.must_fetch(page, event) {
                // An error means that the far tier has failed: `turn` returns why.
                Ok(true) | Err(_) => return,
                Ok(false) => {}
            }
        }
        let done = match page {
            // An unmanaged page.
            None if protected => self.world.protect(at, false),
            None if self.world.unnumbered.contains_key(&at) => self.world.place_unnumbered(at),
            None => self.first_touch(at),
            Some(page) if protected => self.write_fault(page),
            Some(page) if self.world.pages.state(page).is_resident() => self.refill(page, at),
            Some(page) => self.missing(page, write),
        };
        let waits = done.is_err() && self.world.event.again;
        self.world.counters.faults += u64::from(!waits);
        if done.is_err() {
            if waits {
                self.deferred.push(event);
            } else {
                self.world.kernel.wake(at);
                let before = if self.refused.0 == at { self.refused.1 } else { 0 };
                self.refused = (at, before + 1);
                if before == MAX_REFUSALS {
                    let address = at.address();
                    self.world.break_down(format!("no request serves a fault at {address:#x}"));
                }
            }
        }
    }

    /// A reference to a page that is not managed: it has no page number.
    fn first_touch(&mut self, at: Va) -> std::result::Result<(), Refused> {
        let pages_to_end = self.regions.end_of(at).map_or(1, |end| end.number() - at.number());
        let before = at.number().checked_sub(1).map(Va::new);
        // A sequential access will need the next pages; a random one would not.
        let is_sequential = before.is_some_and(|before| self.world.page_at(before).is_some());
        let max = if is_sequential { self.around.min(pages_to_end) } else { 1 };
        let around = (1..max).find(|pages| self.world.is_known(at.plus(*pages))).unwrap_or(max);
        let placed = self.world.place_zeros(at, around)?;
        for number in 0..placed {
            self.map(at.plus(number), number == 0);
        }
        self.world.counters.first_touches += 1;
        Ok(())
    }

    /// Start to manage a page that is in the program's memory: number it, and call the policy's hook.
    fn map(&mut self, at: Va, accessed: bool) {
        let Some(page) = self.world.numbers.hold(at) else {
            // Without a number, it stays in the program's memory, unmanaged.
            self.world.counters.over_budget += 1;
            return;
        };
        let node = self.room_for(page);
        self.world.map(page, node, accessed);
        self.policy.allocated(&mut self.world, page);
    }

    /// The node for a new page. The policy may free memory there first.
    fn room_for(&mut self, page: Page) -> NodeId {
        let first = self.policy.place(&self.world, page, 1);
        let other = if first == NodeId::FAST { FAR_NODE } else { NodeId::FAST };
        for node in [first, other] {
            if self.world.free(node) == 0 {
                self.policy.pressure(&mut self.world, node, Tenant::ONLY);
            }
            if self.world.free(node) > 0 {
                return node;
            }
        }
        self.world.counters.over_budget += 1;
        NodeId::FAST
    }

    /// A write to a write-protected page.
    fn write_fault(&mut self, page: Page) -> std::result::Result<(), Refused> {
        if !self.world.pages.state(page).is_resident() {
            // Parked (unmapped) or evicted since the fault: the next fault will be a missing page.
            return Err(Refused::State);
        }
        if self.world.pages.state(page).has(PageFlags::PROTECTED) {
            self.call_write_fault(page);
        }
        if self.world.pages.state(page).is_resident() {
            // A page of the window, or one that the policy has not made writable.
            return self.world.make_writable(page);
        }
        Err(Refused::State)
    }

    fn call_write_fault(&mut self, page: Page) {
        // Without a shadow (a far copy), a page is protected only because the policy watches it.
        let is_watched = self.world.pages.slot(page).is_none();
        self.world.counters.watch_faults += u64::from(is_watched);
        self.policy.write_fault(&mut self.world, page);
    }

    /// A fault at a page that should be resident: a second message about a served fault, or the program
    /// released the page while it was touched.
    fn refill(&mut self, page: Page, at: Va) -> std::result::Result<(), Refused> {
        self.world.place_zeros(at, 1)?;
        debug_assert!(self.world.pages.state(page).is_mapped());
        self.release_page(at);
        self.map(at, true);
        Ok(())
    }

    /// A reference to a page that is parked or stored.
    fn missing(&mut self, page: Page, write: bool) -> std::result::Result<(), Refused> {
        let mut hinted = false;
        for _ in 0..MAX_POLICY_CALLS {
            if self.world.pages.state(page).is_resident() {
                // The policy has moved it.
                return Err(Refused::State);
            }
            if self.world.hint_armed(page) {
                self.world.counters.hint_faults += u64::from(!hinted);
                hinted = true;
                self.policy.hint_fault(&mut self.world, page, write);
            } else if write && self.world.pages.state(page).has(PageFlags::PROTECTED) {
                self.call_write_fault(page);
                let is_writable = !self.world.pages.state(page).has(PageFlags::PROTECTED);
                if !is_writable && !self.world.pages.state(page).is_resident() {
                    break;
                }
            } else {
                return self.world.fault_in(page, write);
            }
        }
        self.world.disarm_hint(page);
        self.world.fault_in(page, write)
    }
}
