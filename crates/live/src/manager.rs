//! The manager: reads the kernel's messages, asks the policy, runs its threads.

use nearfar_kernel::epf::{self, Epf};
use nearfar_kernel::tiering::{
    Made, Memory, NodeId, Page, Policy, Refused, Settings, Tenant, make,
};
use nearfar_trace::Result;

use crate::far::Arrival;
use crate::order::Order;
use crate::regions::Regions;
use crate::world::{SLOW_NODE, World, is};
use crate::{Child, Event, Found, Kernel, Slot, Va};

mod changes;

/// Most pages that a first touch brings, where pages are touched in order of their addresses.
pub const AROUND: u64 = 16;

/// How often a policy is asked about one reference before it goes through all the same.
const ASKS: usize = 100;
/// How often one page is faulted for again, its fault refused, before the program is ended: it would go
/// round for ever. Late messages are refused as well, but once each.
const REFUSALS: u32 = 10_000;

/// Why a program ends whose messages do not tell where its memory is.
pub(crate) const UNCLEAR: &str = "its threads move memory to and from the same place at once, in an order that the kernel does not tell";

/// Why a child ends whose memory is nobody knows where.
pub(crate) const LOST: &str = "a thread that moved memory was killed before it could tell where, while another one made a child";

/// Turns with messages after which the policy works all the same. More often, and it would take pages
/// away before who waited for them has run.
const BUSY_TURNS: u32 = 64;

/// Turns that wait for mappings to have changed by letting others run; after these by sleeping so long.
const HINDERED_TURNS: u32 = 64;
const HINDERED_NS: u64 = 50_000;

/// A policy in charge of a live memory.
pub struct Manager<K> {
    /// The memory.
    pub world: World<K>,
    policy: Box<dyn Policy>,
    /// Which threads sleep while their page comes from the far tier.
    epf: Box<dyn Epf>,
    /// Faults whose page is on its way, by slot.
    coming: Vec<(Slot, Event)>,
    arrivals: Vec<Arrival>,
    regions: Regions,
    order: Order,
    /// Most pages that one first touch brings.
    around: u64,
    events: Vec<Event>,
    found: Vec<Found>,
    pages: Vec<Va>,
    /// Faults that could not be served yet.
    again: Vec<Event>,
    /// Children that lack pages, and nothing was told of where those went.
    lacking: Vec<(Child, Vec<Va>)>,
    /// The last fault that was refused, and how often in turn.
    refused: (Va, u32),
    /// Turns with messages since one without.
    busy_turns: u32,
    /// Turns in a row that had to wait for mappings to have changed.
    hindered: u32,
}

/// What a turn of the manager came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// There may be more to do now.
    Busy,
    /// Nothing until a message comes or this moment (nanoseconds of [`Kernel::now_ns`]).
    Until(u64),
}

impl<K: Kernel> Manager<K> {
    /// Put the policy `name` in charge; `around` is the most pages that one first touch brings.
    ///
    /// # Errors
    /// Those of [`make`]: an unknown policy or knob, or one that cannot do without what a live
    /// memory lacks.
    pub fn new(world: World<K>, name: &str, settings: &Settings, around: u64) -> Result<Self> {
        Self::with(world, around, |world| make(name, settings, world))
    }

    /// Put the policy that `make` makes in charge.
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
            world.workers[thread.index()].due = at;
        }
        Ok(Self {
            world,
            policy,
            epf: Box::new(epf::all::All),
            coming: Vec::new(),
            arrivals: Vec::new(),
            regions: Regions::default(),
            order: Order::default(),
            around: around.max(1),
            events: Vec::new(),
            found: Vec::new(),
            pages: Vec::new(),
            again: Vec::new(),
            lacking: Vec::new(),
            refused: (Va::new(0), 0),
            busy_turns: 0,
            hindered: 0,
        })
    }

    /// Which threads sleep while their page comes from the far tier; all, unless this says otherwise.
    #[must_use]
    pub fn with_epf(mut self, epf: Box<dyn Epf>) -> Self {
        self.epf = epf;
        self
    }

    /// Register what the program has mapped since, and know the pages that are there; whether there
    /// was anything.
    pub fn discover(&mut self) -> bool {
        self.can_discover() && self.discover_now()
    }

    /// Whether no change of mappings is in flight, so that `discover` sees a consistent state.
    pub fn can_discover(&mut self) -> bool {
        self.order.is_settled() && self.world.kernel.is_quiet()
    }

    fn discover_now(&mut self) -> bool {
        let mut found = std::mem::take(&mut self.found);
        self.world.kernel.discover(&self.regions, &mut found);
        let any = !found.is_empty();
        if !self.world.kernel.is_quiet() {
            // What is there may have come from elsewhere: it is found again when that is told.
            found.clear();
        }
        for Found { range, present } in found.drain(..) {
            self.regions.add(range);
            for at in present {
                if self.world.page_at(at).is_none() {
                    self.world.kernel.beat();
                    self.event(|manager| {
                        manager.know(at, false);
                        // A policy that never arms a page has no fault after which to do this.
                        manager.world.trim_window();
                    });
                }
            }
        }
        self.found = found;
        // What was held may be free by now, and a program that has all its pages never faults.
        if !self.world.stuck.is_empty() {
            self.event(|manager| manager.world.trim_window());
        }
        any
    }

    /// Read all messages and act on them, or let one thread of the policy work. It works in some of
    /// the turns with messages as well: a program may fault without end.
    ///
    /// # Errors
    /// Why the program cannot go on.
    pub fn turn(&mut self) -> std::result::Result<Turn, String> {
        self.hear_arrivals();
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        self.world.kernel.events(&mut events);
        for event in &events {
            self.order.told(*event);
        }
        if !self.order.is_settled() {
            if !self.world.kernel.is_quiet() {
                // More is to come, and every request would be refused.
                if self.order.lacks(&self.regions) {
                    self.world.kernel.let_others_run();
                }
                let faults = events.iter().filter(|event| matches!(event, Event::Fault { .. }));
                self.again.extend(faults);
                self.events = events;
                let turn = self.hindered();
                return self.world.broken.clone().map_or(Ok(turn), Err);
            }
            // What was read about mappings holds from now on, so before any request.
            self.ordered();
            if let Some(why) = &self.world.broken {
                return Err(why.clone());
            }
        }
        let mut brought = false;
        if !self.world.unnumbered.is_empty() {
            self.event(|manager| brought = manager.world.bring_all_unnumbered());
        }
        self.look_for_lost();
        // Who waits since an earlier turn goes on waiting until then: woken, it would fault again, and
        // faults are read before the messages that are in the way.
        events.append(&mut self.again);
        for event in &events {
            if let Event::Fault { .. } = event {
                self.event(|manager| manager.fault(*event));
                self.world.trim_window();
            }
        }
        let busy = !events.is_empty() || brought;
        self.events = events;
        if !self.again.is_empty() && !self.world.kernel.is_quiet() {
            let turn = self.hindered();
            return self.world.broken.clone().map_or(Ok(turn), Err);
        }
        self.hindered = 0;
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
                let again = self.world.kernel.now_ns() + HINDERED_NS;
                let lacking = if self.lacking.is_empty() { u64::MAX } else { again };
                Turn::Until(due.min(lacking).min(self.world.far.due()))
            }
            Turn::Busy => Turn::Busy,
        };
        self.world.broken.clone().map_or(Ok(turn), Err)
    }

    /// Go on with the faults whose pages have come.
    fn hear_arrivals(&mut self) {
        let mut arrivals = std::mem::take(&mut self.arrivals);
        self.world.hear_arrivals(&mut arrivals);
        for Arrival { slot, .. } in &arrivals {
            for (_, event) in self.coming.extract_if(.., |(other, _)| other == slot) {
                if let Event::Fault { thread, .. } = event {
                    self.world.kernel.go_on(thread);
                }
                self.again.push(event);
            }
        }
        self.arrivals = arrivals;
    }

    /// Whether a fault has to wait until its page has come from the far tier: then it is dealt with
    /// when that is so, as if it were told of then.
    fn comes_later(&mut self, page: Page, event: Event) -> std::result::Result<bool, Refused> {
        let Event::Fault { thread, .. } = event else { return Ok(false) };
        let Some(slot) = self.world.slot(page).filter(|_| self.world.in_slot(page)) else {
            return Ok(false);
        };
        let Some(predicted_ns) = self.world.fetch(slot)? else { return Ok(false) };
        let again = self.coming.iter().any(|(_, other)| *other == event);
        if !again {
            self.coming.push((slot, event));
            let sleeps = self.epf.pass(&epf::Fault { predicted_ns });
            if !sleeps && self.world.kernel.stall(thread) {
                self.world.counters.stalled += 1;
            } else {
                self.world.counters.slept += 1;
            }
        }
        Ok(true)
    }

    /// Mappings are changing, and every request is refused: as a rule for a moment, but a fork may take
    /// long.
    fn hindered(&mut self) -> Turn {
        self.hindered += 1;
        if self.hindered < HINDERED_TURNS {
            Turn::Busy
        } else {
            Turn::Until(self.world.kernel.now_ns() + HINDERED_NS)
        }
    }

    /// Whether everything that was read was applied, and nothing is on its way that it takes part in. Only
    /// then have all children what they need, of whose forks was read.
    pub fn is_settled(&self) -> bool {
        self.order.is_settled() && self.lacking.is_empty()
    }

    /// Whether a fault waits for its page to come from the far tier.
    pub fn awaits_pages(&self) -> bool {
        !self.coming.is_empty()
    }

    fn event(&mut self, act: impl FnOnce(&mut Self)) {
        self.world.begin_event();
        act(self);
        self.world.end_event();
    }

    /// One step of the thread that is due first.
    fn work(&mut self) -> Turn {
        self.world.begin_event();
        let first = self.world.workers.iter().min_by_key(|worker| worker.due);
        let Some((thread, due)) = first.map(|worker| (worker.thread, worker.due)) else {
            return Turn::Until(u64::MAX);
        };
        if due > self.world.event {
            return Turn::Until(due.ps() / 1000);
        }
        self.world.running = Some(thread.index());
        let next = self.policy.work(&mut self.world, thread);
        self.world.running = None;
        self.world.reschedule(thread, next);
        self.world.end_event();
        Turn::Busy
    }

    // --- faults

    fn fault(&mut self, event: Event) {
        let Event::Fault { at, write, protected, .. } = event else { return };
        let page = self.world.page_at(at);
        if let Some(page) = page.filter(|_| !protected) {
            match self.comes_later(page, event) {
                Ok(true) | Err(_) => return,
                Ok(false) => {}
            }
        }
        let done = match page {
            // A page that is not managed.
            None if protected => self.world.protect(at, false),
            None if self.world.unnumbered.contains_key(&at) => self.world.bring_unnumbered(at),
            None => self.first_touch(at),
            Some(page) if protected => self.write_fault(page),
            Some(page) if self.world.has(page, is::PRESENT) => self.zapped(page, at),
            Some(page) => self.missing(page, write),
        };
        let waits = done.is_err() && self.world.again;
        self.world.counters.faults += u64::from(!waits);
        if done.is_err() {
            if waits {
                self.again.push(event);
            } else {
                self.world.kernel.wake(at);
                let before = if self.refused.0 == at { self.refused.1 } else { 0 };
                self.refused = (at, before + 1);
                if before == REFUSALS {
                    let address = at.address();
                    self.world.break_down(format!("no request serves a fault at {address:#x}"));
                }
            }
        }
    }

    /// A page is touched that the policy does not know.
    fn first_touch(&mut self, at: Va) -> std::result::Result<(), Refused> {
        let next = self.regions.end_of(at).map_or(1, |end| end.number() - at.number());
        let before = at.number().checked_sub(1).map(Va::new);
        // Who goes on where there is a page will want the next ones; who touches a page here and there
        // would be given others for nothing.
        let goes_on = before.is_some_and(|before| self.world.page_at(before).is_some());
        let most = if goes_on { self.around.min(next) } else { 1 };
        let around = (1..most).find(|pages| self.world.is_known(at.plus(*pages))).unwrap_or(most);
        let placed = self.world.place_zeros(at, around)?;
        for number in 0..placed {
            self.know(at.plus(number), number == 0);
        }
        self.world.counters.first_touches += 1;
        Ok(())
    }

    /// A page is in the program's memory and the policy is to know it.
    fn know(&mut self, at: Va, accessed: bool) {
        let Some(page) = self.world.numbers.hold(at) else {
            // There is no number for it: it stays where it is, and nobody manages it.
            self.world.counters.over_budget += 1;
            return;
        };
        let node = self.room_for(page);
        self.world.map(page, node, accessed);
        self.policy.allocated(&mut self.world, page);
    }

    /// The node for a new page.
    fn room_for(&mut self, page: Page) -> NodeId {
        let first = self.policy.place(&self.world, page, 1);
        let other = if first == NodeId::FAST { SLOW_NODE } else { NodeId::FAST };
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
        if !self.world.has(page, is::PRESENT) {
            // Parked or evicted since: the reference will find it missing.
            return Err(Refused::State);
        }
        if self.world.has(page, is::PROTECTED) {
            self.ask_about_write(page);
        }
        if self.world.has(page, is::PRESENT) {
            // Slow pages of the window, and whatever the policy has not made writable.
            return self.world.make_writable(page);
        }
        Err(Refused::State)
    }

    fn ask_about_write(&mut self, page: Page) {
        let watched = self.world.slot(page).is_none();
        self.world.counters.watch_faults += u64::from(watched);
        self.policy.write_fault(&mut self.world, page);
    }

    /// A page is missing that should be there: a second message about a fault that was served, or the
    /// program gave it back while it was touched.
    fn zapped(&mut self, page: Page, at: Va) -> std::result::Result<(), Refused> {
        self.world.place_zeros(at, 1)?;
        debug_assert!(self.world.has(page, is::MAPPED));
        self.release_page(at);
        self.know(at, true);
        Ok(())
    }

    /// A page is parked or in the far tier.
    fn missing(&mut self, page: Page, write: bool) -> std::result::Result<(), Refused> {
        for _ in 0..ASKS {
            if self.world.has(page, is::PRESENT) {
                // The policy has moved it.
                return Err(Refused::State);
            }
            if self.world.hint_armed(page) {
                self.world.counters.hint_faults += 1;
                self.policy.hint_fault(&mut self.world, page, write);
            } else if write && self.world.has(page, is::PROTECTED) {
                self.ask_about_write(page);
                let written = !self.world.has(page, is::PROTECTED);
                if !written && !self.world.has(page, is::PRESENT) {
                    break;
                }
            } else {
                return self.world.let_in(page, write);
            }
        }
        self.world.disarm_hint(page);
        self.world.let_in(page, write)
    }
}
