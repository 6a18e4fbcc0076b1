//! The host: replays a trace through the scheduler, the fast path (for TLB hits) and fault handling.

use nearfar_hardware::flash::Conditioned;
use nearfar_hardware::umd::Umd;
use nearfar_kernel::epf::Epf;
use nearfar_trace::{Error, Result};

use crate::jobs::Advance;

use super::accounts;
use super::cell::{Cell, Detail};
use super::core::{Event, Thread, run_fast_path};
use super::faults::Faults;
use super::feed::{Feed, Source};
use super::options::{Host, Replay};
use super::scheduler::{Scheduler, Turn};

/// One cell being simulated.
pub struct Run<'a> {
    host: &'a Host,
    conditioned: Conditioned,
    page_shift: u32,
    scheduler: Scheduler<'a>,
    faults: Faults<'a>,
    feed: Feed,
    /// Event counts so far; the row at the end.
    counts: Cell,
}

impl<'a> Run<'a> {
    /// The state before the first reference. The device is preconditioned, its DRAM is empty.
    pub fn new(
        host: &'a Host,
        policy: Box<dyn Epf>,
        replay: Replay,
        umd: Umd,
        conditioned: Conditioned,
    ) -> Self {
        Self {
            host,
            conditioned,
            page_shift: umd.ftl().geometry().page_bytes.trailing_zeros(),
            scheduler: Scheduler::new(host),
            faults: Faults::new(host, policy, replay, umd),
            feed: Feed::new(replay.window.max(1)),
            counts: Cell::default(),
        }
    }

    /// Replay the whole trace. `advance` is called with the references read since its last call.
    ///
    /// # Errors
    /// Errors of `source` and `advance`; if the trace does not fit the device.
    pub fn run(
        mut self,
        source: &mut Source<'_>,
        advance: &mut Advance<'_>,
    ) -> Result<(Cell, Detail)> {
        self.fill_window(source, 0, advance)?;
        loop {
            let turn = self.scheduler.next_turn();
            let stalled = self.scheduler.any_stalled();
            let array = self.faults.device.umd.array();
            // Device events matter only to stalled cores: sleeping threads wake by timers.
            match (turn, array.next_event().filter(|_| stalled)) {
                (Some(turn), due) if due.is_none_or(|due| turn.start < due) => {
                    let until = turn.until.min(due.unwrap_or(u64::MAX));
                    self.turn(Turn { until, ..turn }, source, advance)?;
                }
                (_, Some(due)) => self.faults.advance(&mut self.scheduler, due),
                _ => break,
            }
        }
        assert!(self.feed.ended(), "the trace was not read to its end");
        let read = self.feed.read();
        Ok(accounts::finish(self.counts, read, self.scheduler, self.faults, self.conditioned))
    }

    /// Run a core until its turn is over.
    fn turn(
        &mut self,
        turn: Turn,
        source: &mut Source<'_>,
        advance: &mut Advance<'_>,
    ) -> Result<()> {
        let Some(until) = self.scheduler.begin(turn) else { return Ok(()) };
        loop {
            let held = self.scheduler.held_since();
            let core = &mut self.scheduler.cores[turn.core];
            let (Some(number), None) = (core.thread, core.stalled) else { return Ok(()) };
            let thread = &mut self.scheduler.threads[number as usize];
            let before = core.time;
            let (umd, counts) = (&mut self.faults.device.umd, &mut self.counts);
            let (host, shift) = (self.host, self.page_shift);
            let event = run_fast_path(core, thread, umd, host, shift, counts, until, held);
            core.busy += core.time - before;
            match event {
                Event::Until => return Ok(()),
                Event::Exhausted => {
                    self.refill(turn.core, number, source, advance)?;
                    // Another core may run a queued thread earlier.
                    if self.scheduler.queued {
                        return Ok(());
                    }
                }
                // For now, only walk the page table. That advances this core's clock, so other cores may
                // run before the miss is handled.
                Event::Miss(miss) if !thread.walked => {
                    let page = self.faults.number(miss.page);
                    // The TLB has the page, but the fast path's table of recent pages does not.
                    if let Some(page) = page.filter(|page| core.holds(miss.side, *page)) {
                        core.fill_tlb(miss.side, miss.page, page);
                        continue;
                    }
                    thread.walked = true;
                    let is_held = core.time >= held;
                    core.walk(miss.page << shift, page, host, &mut self.counts, is_held);
                    if core.pending_ns > 0 {
                        self.await_bus(turn.core);
                    }
                }
                Event::Bus => self.await_bus(turn.core),
                Event::Miss(miss) => {
                    let (scheduler, counts) = (&mut self.scheduler, &mut self.counts);
                    self.faults.handle(scheduler, counts, turn.core, number, miss)?;
                }
            }
        }
    }

    /// Make the pending accesses of `core`, now or when the bus is free.
    fn await_bus(&mut self, core: usize) {
        let now = self.scheduler.cores[core].time;
        self.faults.advance(&mut self.scheduler, now);
        if !self.scheduler.stall_if_bus_held(core) {
            self.scheduler.cores[core].add_pending();
        }
    }

    /// Give the thread on `core` more references, or let it wait for them.
    fn refill(
        &mut self,
        core: usize,
        number: u32,
        source: &mut Source<'_>,
        advance: &mut Advance<'_>,
    ) -> Result<()> {
        let now = self.scheduler.cores[core].time;
        let thread = &mut self.scheduler.threads[number as usize];
        thread.at = 0;
        self.feed.done(&mut thread.chunk);
        loop {
            if let Some(chunk) = self.feed.next(number) {
                self.scheduler.threads[number as usize].chunk = chunk;
                return self.fill_window(source, now, advance);
            }
            if !self.feed.room() {
                self.scheduler.await_references(core);
                return Ok(());
            }
            self.fill(source, now, advance)?;
        }
    }

    /// Read the trace until [`Replay::window`] instructions are in flight, or to its end.
    fn fill_window(
        &mut self,
        source: &mut Source<'_>,
        now: u64,
        advance: &mut Advance<'_>,
    ) -> Result<()> {
        while self.feed.room() {
            self.fill(source, now, advance)?;
        }
        Ok(())
    }

    /// Read more of the trace; threads that get references are ready at `now`.
    fn fill(&mut self, source: &mut Source<'_>, now: u64, advance: &mut Advance<'_>) -> Result<()> {
        let before = self.feed.read();
        self.feed.fill(source)?;
        advance(self.feed.read() - before)?;
        let threads = self.feed.threads();
        self.scheduler.threads.resize_with(threads, Thread::default);
        let frames = self.faults.device.umd.frames();
        if threads as u64 >= u64::from(frames) {
            return Err(Error::input(
                "--dram",
                format!(
                    "{frames} pages of DRAM are too few for {threads} threads, which may each wait for one"
                ),
                "give the device more DRAM",
            ));
        }
        for number in 0..threads as u32 {
            if !self.scheduler.threads[number as usize].active && self.feed.has(number) {
                self.scheduler.queue(number, now);
            }
        }
        Ok(())
    }
}
