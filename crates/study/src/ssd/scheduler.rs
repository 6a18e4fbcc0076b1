//! The scheduler: assigns threads to cores.
//!
//! The core with the earliest clock runs until another core is earlier, so that the device receives
//! requests in order of time. [`nearfar_kernel::scheduler`] selects the next thread; this module
//! switches threads and records their states. Times are nanoseconds.

use nearfar_kernel::scheduler::{Fairness, RunQueue};

use super::core::{Core, Thread};
use super::options::{Bus, Host};
use super::timeline::{State, Timeline};

#[derive(Clone, Copy)]
pub struct Turn {
    pub core: usize,
    /// The core's clock, or the time when an idle core gets a thread.
    pub start: u64,
    /// Start of the next core's turn; `u64::MAX` if no other core has work.
    pub until: u64,
}

/// Cores, threads and the run queue.
pub struct Scheduler<'a> {
    host: &'a Host,
    pub cores: Vec<Core>,
    pub threads: Vec<Thread>,
    queue: RunQueue,
    fairness: Fairness,
    timeline: Timeline,
    /// A thread was queued during the current turn: another core may have an earlier turn.
    pub queued: bool,
    /// The page that the bus is held for, and since when; `None` if the bus is free.
    bus: Option<(u32, u64)>,
}

impl<'a> Scheduler<'a> {
    pub fn new(host: &'a Host) -> Self {
        Self {
            cores: (0..host.cores).map(|_| Core::new(host)).collect(),
            host,
            threads: Vec::new(),
            queue: RunQueue::default(),
            fairness: Fairness::default(),
            timeline: Timeline::default(),
            queued: false,
            bus: None,
        }
    }

    pub fn any_stalled(&self) -> bool {
        self.cores.iter().any(|core| core.stalled.is_some())
    }

    /// The next turn; `None` if no core has a thread to run.
    pub fn next_turn(&self) -> Option<Turn> {
        let ready = self.queue.ready_at();
        let mut turn: Option<Turn> = None;
        for (number, core) in self.cores.iter().enumerate() {
            let start = match (core.stalled, core.thread, ready) {
                (None, Some(_), _) => core.time,
                (None, None, Some(ready)) => core.time.max(ready),
                _ => continue,
            };
            match &mut turn {
                Some(first) if start >= first.start => first.until = first.until.min(start),
                _ => {
                    let until = turn.map_or(u64::MAX, |first| first.start);
                    turn = Some(Turn { core: number, start, until });
                }
            }
        }
        turn
    }

    /// Begin a turn. An idle core takes the first ready thread. A thread yields its core at the end
    /// of its slice if another is ready, or if a woken thread preempts it. Returns the time until
    /// which the core may run; `None` if the turn is over.
    pub fn begin(&mut self, turn: Turn) -> Option<u64> {
        let core = &mut self.cores[turn.core];
        if core.thread.is_none() {
            let thread = self.queue.take(turn.start)?;
            core.idle += turn.start - core.time;
            core.time = turn.start;
            self.dispatch(turn.core, thread);
        } else if core.time >= core.slice_end {
            if self.queue.ready_at().is_some_and(|ready| ready <= core.time) {
                self.yield_core(turn.core);
                return None;
            }
            core.slice_end = core.time + self.host.time_slice_ns.unwrap_or(u64::MAX - core.time);
        }
        if self.preempt(turn.core) {
            return None;
        }
        self.queued = false;
        let core = &self.cores[turn.core];
        let wakes = self.host.wakeup_ns.and_then(|_| self.queue.next_after(core.time));
        let until = turn.until.min(core.slice_end).min(wakes.unwrap_or(u64::MAX));
        // At least 1 ns: another core's turn may start at the same time.
        Some(until.max(core.time + 1))
    }

    /// Give an idle core to `thread`.
    fn dispatch(&mut self, core: usize, thread: u32) {
        let core = &mut self.cores[core];
        core.time += self.host.switch_ns;
        core.switch += self.host.switch_ns;
        core.thread = Some(thread);
        (core.since, core.taken) = (core.time, core.time);
        core.slice_end = self.host.time_slice_ns.map_or(u64::MAX, |slice| core.time + slice);
    }

    /// Let a woken thread preempt the running one if it has run less and no core is idle.
    fn preempt(&mut self, number: usize) -> bool {
        let core = &self.cores[number];
        let (Some(granularity), Some(running)) = (self.host.wakeup_ns, core.thread) else {
            return false;
        };
        let (now, ran) = (core.time, core.time - core.taken);
        if self.cores.iter().any(|core| core.thread.is_none()) {
            return false;
        }
        let fairness = &self.fairness;
        let preempts = |woken| fairness.preempts(woken, running, ran, granularity);
        let Some(woken) = self.queue.take_if(now, preempts) else { return false };
        self.yield_core(number);
        self.fairness.limit_credit(woken, running, granularity);
        self.dispatch(number, woken);
        true
    }

    /// Take the thread from its core; it has run until `ran_until`.
    fn release(&mut self, core: usize, ran_until: u64) -> Option<u32> {
        let core = &mut self.cores[core];
        let thread = core.thread.take()?;
        self.fairness.add(thread, core.time - core.taken);
        self.timeline.add(thread, State::Run, core.since, ran_until);
        Some(thread)
    }

    /// Preempt the core's thread, which stays ready.
    fn yield_core(&mut self, core: usize) {
        let now = self.cores[core].time;
        if let Some(thread) = self.release(core, now) {
            self.queue(thread, now);
        }
    }

    /// The core's thread, which ran until `ran_until`, gives up the core and sleeps until `until`,
    /// in `state`.
    pub fn sleep(&mut self, core: usize, ran_until: u64, state: State, until: u64) {
        let now = self.cores[core].time;
        if let Some(thread) = self.release(core, ran_until) {
            self.timeline.add(thread, state, now, until);
            self.queue(thread, until);
        }
    }

    /// The core's thread has no references left and gives up the core until it is [queued].
    ///
    /// [queued]: Self::queue
    pub fn await_references(&mut self, core: usize) {
        let now = self.cores[core].time;
        if let Some(thread) = self.release(core, now) {
            self.threads[thread as usize].active = false;
        }
    }

    /// Put `thread` into the run queue; it is ready from time `at`.
    pub fn queue(&mut self, thread: u32, at: u64) {
        self.threads[thread as usize].active = true;
        self.queue.push(thread, at);
        self.queued = true;
    }

    /// The core's thread keeps the core and waits for `page` of the device.
    pub fn stall(&mut self, core: usize, page: u32) {
        let core = &mut self.cores[core];
        if let Some(thread) = core.thread {
            self.timeline.add(thread, State::Run, core.since, core.time);
        }
        (core.stalled, core.since) = (Some(page), core.time);
        if self.host.bus == Bus::Held && self.bus.is_none() {
            self.bus = Some((page, core.time));
        }
    }

    /// Since when the bus is held; `u64::MAX` if it is free.
    pub fn held_since(&self) -> u64 {
        self.bus.map_or(u64::MAX, |(_, since)| since)
    }

    /// Stall `core` if the bus is held at its time. Returns whether it is.
    pub fn stall_if_bus_held(&mut self, core: usize) -> bool {
        let time = self.cores[core].time;
        let Some((page, _)) = self.bus.filter(|(_, since)| time >= *since) else { return false };
        self.stall(core, page);
        true
    }

    /// `page` arrived at `time`: cores that waited for it, or for the bus, continue.
    pub fn arrived(&mut self, page: u32, time: u64) {
        self.bus = self.bus.filter(|(held_for, _)| *held_for != page);
        for core in self.cores.iter_mut().filter(|core| core.stalled == Some(page)) {
            core.stall += time - core.time;
            core.time = time;
            if let Some(thread) = core.thread {
                self.timeline.add(thread, State::Stall, core.since, time);
            }
            (core.stalled, core.since) = (None, time);
            core.add_pending();
        }
    }

    /// `page` left the device's DRAM: remove it from all TLBs.
    pub fn shoot_down(&mut self, page: u32) {
        self.cores.iter_mut().for_each(|core| core.shoot_down(page));
    }

    /// End the run: cores idle until the last one ends. Returns that time, the cores and the timeline.
    pub fn finish(mut self) -> (u64, Vec<Core>, Timeline) {
        let end = self.cores.iter().map(|core| core.time).max().unwrap_or(0);
        for core in &mut self.cores {
            core.idle += end - core.time;
            let sum = core.busy + core.stall + core.switch + core.idle;
            assert_eq!(sum, end, "the core's time");
        }
        (end, self.cores, self.timeline)
    }
}
