//! The host at work: cores, threads, and what a reference meets on its way to the device.
//!
//! Cores take turns by their clocks: each runs until another is behind it, so that the device sees
//! requests in the order of time. Within a turn a core goes from reference to reference
//! ([`stretch`]) until something needs more than a hit.

use nearfar_hardware::flash::Conditioned;
use nearfar_hardware::umd::Umd;
use nearfar_kernel::epf::{Epf, Fault};
use nearfar_kernel::scheduler::{Fairness, RunQueue, wake_at};
use nearfar_trace::hash::PageMap;
use nearfar_trace::{Error, Kind, Result};

use super::cell::{Cell, Detail};
use super::core::{Core, Counts, Event, Thread, Waits, stretch};
use super::feed::{Feed, Source};
use super::histogram::Histogram;
use super::options::{Background, FirstTouch, Host, READ_AHEAD_BYTES, Replay};
use super::timeline::{State, Timeline};

/// How far a page has come to the device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    No,
    /// The kernel has it and is about to place it on the device.
    ToPlace,
    Placed,
}

/// Whether a fault is the thread's second for one page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    No,
    /// It slept and woke before the page was there.
    Early,
    /// It slept, and the page came and went.
    Lost,
}

#[derive(Clone, Copy, Default)]
struct Job {
    page: u32,
    submitted: u64,
    predicted: u64,
}

/// One cell being simulated.
pub struct Run<'a> {
    host: &'a Host,
    policy: Box<dyn Epf>,
    replay: Replay,
    umd: Umd,
    conditioned: Conditioned,
    shift: u32,
    cores: Vec<Core>,
    threads: Vec<Thread>,
    queue: RunQueue,
    fairness: Fairness,
    feed: Feed,
    /// Numbers on the device, in order of first touch.
    pages: PageMap<u32>,
    known: Vec<Known>,
    jobs: Vec<Job>,
    /// Services under way: page and job.
    arriving: Vec<(u32, u32)>,
    disk_free: u64,
    /// What the disk reads or has read lately: first page, end, when it is there.
    read_ahead: Vec<(u64, u64, u64)>,
    counts: Counts,
    cell: Cell,
    predicted: Histogram,
    actual: Histogram,
    error: Histogram,
    error_most: u64,
    timeline: Timeline,
    /// Threads were made ready: others than the running core may have work.
    woken: bool,
    submitted: u64,
    finished: u64,
}

impl<'a> Run<'a> {
    /// Before the first reference: the device preconditioned, its DRAM empty but for the background.
    pub fn new(
        host: &'a Host,
        policy: Box<dyn Epf>,
        replay: Replay,
        mut umd: Umd,
        conditioned: Conditioned,
    ) -> Self {
        let geometry = umd.ftl().geometry();
        let most = umd.frames().min(geometry.user_pages);
        let Background { bytes, written } = replay.background;
        let background = (bytes / geometry.page_bytes).min(u64::from(most)) as u32;
        let until = |page: u32| (f64::from(page) * written) as u32;
        for page in 0..background {
            umd.fill(page, until(page + 1) > until(page));
        }
        Self {
            shift: umd.ftl().geometry().page_bytes.trailing_zeros(),
            cores: (0..host.cores).map(|_| Core::new(host)).collect(),
            host,
            policy,
            replay,
            umd,
            conditioned,
            threads: Vec::new(),
            queue: RunQueue::default(),
            fairness: Fairness::default(),
            feed: Feed::new(replay.window.max(1)),
            pages: PageMap::default(),
            known: vec![Known::Placed; background as usize],
            jobs: Vec::new(),
            arriving: Vec::new(),
            disk_free: 0,
            read_ahead: Vec::new(),
            counts: Counts::default(),
            cell: Cell::default(),
            predicted: Histogram::default(),
            actual: Histogram::default(),
            error: Histogram::default(),
            error_most: 0,
            timeline: Timeline::default(),
            woken: false,
            submitted: 0,
            finished: 0,
        }
    }

    /// Replay the whole trace. `pulse` is called now and then with the references read so far.
    ///
    /// # Errors
    /// What `source` or `pulse` answers; or an input error where the trace does not fit the device.
    pub fn run(
        mut self,
        source: &mut Source<'_>,
        pulse: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<(Cell, Detail)> {
        self.fill_window(source, 0, pulse)?;
        loop {
            let ready = self.queue.ready_at();
            let mut turn: Option<(u64, usize)> = None;
            let mut other = u64::MAX;
            let mut stalled = false;
            for (number, core) in self.cores.iter().enumerate() {
                stalled |= core.stalled.is_some();
                let time = match (core.stalled, core.thread, ready) {
                    (None, Some(_), _) => core.time,
                    (None, None, Some(ready)) => core.time.max(ready),
                    _ => continue,
                };
                if turn.is_none_or(|(first, _)| time < first) {
                    other = turn.map_or(other, |(first, _)| first);
                    turn = Some((time, number));
                } else {
                    other = other.min(time);
                }
            }
            let device = if stalled { self.umd.array().next_event() } else { None };
            match (turn, device) {
                (Some((time, number)), device) if device.is_none_or(|device| time < device) => {
                    let until = other.min(device.unwrap_or(u64::MAX));
                    self.turn(number, time, until, source, pulse)?;
                }
                (_, Some(device)) => self.advance(device),
                _ => break,
            }
        }
        Ok(self.finish())
    }

    /// Core `number` is the first at `time`: let it run until `until`.
    fn turn(
        &mut self,
        number: usize,
        time: u64,
        until: u64,
        source: &mut Source<'_>,
        pulse: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let core = &mut self.cores[number];
        if core.thread.is_none() {
            let Some(thread) = self.queue.take(time) else { return Ok(()) };
            core.idle += time - core.time;
            core.time = time;
            self.dispatch(number, thread);
        } else if core.time >= core.slice_end {
            if self.queue.ready_at().is_some_and(|ready| ready <= core.time) {
                let time = core.time;
                if let Some(thread) = self.give_up(number) {
                    self.sleep(thread, time);
                }
                return Ok(());
            }
            core.slice_end = core.time + self.host.time_slice_ns.unwrap_or(u64::MAX - core.time);
        }
        if self.preempt(number) {
            return Ok(());
        }
        self.woken = false;
        let core = &self.cores[number];
        let wakes = self.host.wakeup_ns.and_then(|_| self.queue.next_after(core.time));
        let until = until.min(core.slice_end).min(wakes.unwrap_or(u64::MAX)).max(core.time + 1);
        loop {
            let core = &mut self.cores[number];
            let (Some(index), None) = (core.thread, core.stalled) else { return Ok(()) };
            let thread = &mut self.threads[index as usize];
            let before = core.time;
            let (umd, counts) = (&mut self.umd, &mut self.counts);
            let event = stretch(core, thread, umd, self.host, self.shift, counts, until);
            core.busy += core.time - before;
            match event {
                Event::Until => return Ok(()),
                Event::Exhausted => {
                    self.refill(number, index, source, pulse)?;
                    if self.woken {
                        return Ok(());
                    }
                }
                Event::Miss { page, side, kind } => {
                    if !thread.walked {
                        thread.walked = true;
                        core.time += self.host.walk_ns;
                        core.busy += self.host.walk_ns;
                        self.cell.tlb_misses += 1;
                        // Others may be behind now: they come first.
                        continue;
                    }
                    self.miss(number, index, page, side, kind)?;
                }
            }
        }
    }

    /// Give an idle core to `thread`.
    fn dispatch(&mut self, number: usize, thread: u32) {
        let core = &mut self.cores[number];
        core.time += self.host.switch_ns;
        core.switch += self.host.switch_ns;
        core.thread = Some(thread);
        (core.since, core.taken) = (core.time, core.time);
        core.slice_end = self.host.time_slice_ns.map_or(u64::MAX, |slice| core.time + slice);
        self.threads[thread as usize].waits = Waits::Nothing;
    }

    /// Let a thread that woke up take core `number` from the one that runs there, if it has run less
    /// and no core is idle.
    fn preempt(&mut self, number: usize) -> bool {
        let core = &self.cores[number];
        let (Some(granularity), Some(running)) = (self.host.wakeup_ns, core.thread) else {
            return false;
        };
        let (now, since) = (core.time, core.time - core.taken);
        if self.cores.iter().any(|core| core.thread.is_none()) {
            return false;
        }
        let fairness = &self.fairness;
        let preempts = |woken| fairness.preempts(woken, running, since, granularity);
        let Some(woken) = self.queue.take_if(now, preempts) else { return false };
        if let Some(thread) = self.give_up(number) {
            self.sleep(thread, now);
        }
        self.fairness.settle(woken, running, granularity);
        self.dispatch(number, woken);
        true
    }

    /// The page table was walked for `page`: one of the three outcomes.
    fn miss(
        &mut self,
        number: usize,
        thread: u32,
        page: u64,
        side: usize,
        kind: Kind,
    ) -> Result<()> {
        let device_page = match self.pages.get(&page) {
            Some(&device_page) => device_page,
            None => self.first_touch(page)?,
        };
        let now = self.cores[number].time;
        match self.known[device_page as usize] {
            Known::No => {
                self.cell.page_faults += 1;
                self.known[device_page as usize] = Known::ToPlace;
                let core = &mut self.cores[number];
                core.time += self.host.page_fault_ns;
                core.busy += self.host.page_fault_ns;
                let now = core.time;
                let there = self.read_from_disk(page, kind, now);
                if let Some(there) = there {
                    self.threads[thread as usize].walked = false;
                    self.give_up(number);
                    self.timeline.add(thread, State::Disk, now, there);
                    self.sleep(thread, there);
                }
                return Ok(());
            }
            Known::Placed if self.umd.resident(device_page) => {
                self.advance(now);
                let Some(job) = self.job_of(device_page) else {
                    self.translate(number, thread, page, device_page, side);
                    return Ok(());
                };
                // The fault is raised anew, with what the device still has to do.
                let left = self.umd.array().left_ns(job);
                let again = if self.threads[thread as usize].slept_for == Some(device_page) {
                    self.cell.overruns += 1;
                    Again::Early
                } else {
                    self.cell.joined_faults += 1;
                    Again::No
                };
                self.handle(number, thread, device_page, left, again, kind);
                return Ok(());
            }
            _ => {}
        }
        self.advance(now);
        let first = self.known[device_page as usize] == Known::ToPlace;
        self.known[device_page as usize] = Known::Placed;
        let stored = self.replay.first_touch == FirstTouch::Stored
            && !self.of_disk(kind)
            && self.umd.ftl().place(device_page).is_some();
        if first && stored && self.umd.has_room() {
            self.umd.fill(device_page, false);
            self.translate(number, thread, page, device_page, side);
            return Ok(());
        }
        let new = first && !stored;
        let loading = self.umd.load(now, device_page, new);
        if let Some(evicted) = loading.evicted {
            self.cores.iter_mut().for_each(|core| core.forget(evicted));
        }
        match loading.service {
            None => self.translate(number, thread, page, device_page, side),
            Some(service) => {
                let job = service.job as usize;
                if job >= self.jobs.len() {
                    self.jobs.resize(job + 1, Job::default());
                }
                let predicted = service.predicted_ns;
                self.jobs[job] = Job { page: device_page, submitted: now, predicted };
                self.arriving.push((device_page, service.job));
                self.submitted += 1;
                self.predicted.add(predicted);
                let again = match self.threads[thread as usize].slept_for {
                    Some(slept_for) if slept_for == device_page => Again::Lost,
                    _ => Again::No,
                };
                self.handle(number, thread, device_page, predicted, again, kind);
            }
        }
        Ok(())
    }

    /// Give the page the next number on the device.
    fn first_touch(&mut self, page: u64) -> Result<u32> {
        let geometry = self.umd.ftl().geometry();
        let number = self.known.len() as u32;
        if number >= geometry.user_pages {
            return Err(Error::input(
                "--machine",
                format!(
                    "the trace touches more than the {} pages of {} bytes that the device has",
                    geometry.user_pages, geometry.page_bytes
                ),
                "give it more blocks in the machine file's [flash]",
            ));
        }
        self.pages.insert(page, number);
        self.known.push(Known::No);
        Ok(number)
    }

    /// Whether a page first touched so comes from the disk, if there is one: what is executed, and
    /// what the kernel reads for the program, was there before.
    fn of_disk(&self, kind: Kind) -> bool {
        self.host.disk.is_some() && matches!(kind, Kind::Fetch | Kind::KernelLoad)
    }

    /// When the disk has `page`, if it comes from there and that is not now. It reads ahead.
    fn read_from_disk(&mut self, page: u64, kind: Kind, now: u64) -> Option<u64> {
        let disk = self.host.disk.as_ref().filter(|_| self.of_disk(kind))?;
        let ahead = self.read_ahead.iter().find(|(first, end, _)| (*first..*end).contains(&page));
        let there = match ahead {
            Some((_, _, there)) => *there,
            None => {
                let there = now.max(self.disk_free) + disk.io_ns(READ_AHEAD_BYTES).round() as u64;
                let count = (READ_AHEAD_BYTES >> self.shift).max(1);
                self.disk_free = there;
                self.cell.disk_reads += 1;
                if self.read_ahead.len() == 64 {
                    self.read_ahead.remove(0);
                }
                self.read_ahead.push((page, page.saturating_add(count), there));
                there
            }
        };
        (there > now).then_some(there)
    }

    /// An embedded page fault that will take `predicted`: pass it on, or wait.
    fn handle(
        &mut self,
        number: usize,
        thread: u32,
        page: u32,
        predicted: u64,
        again: Again,
        kind: Kind,
    ) {
        let counts = u64::from(again != Again::Early);
        self.cell.embedded_faults += counts;
        if !self.policy.pass(&Fault { predicted_ns: predicted }) {
            return self.stall(number, page);
        }
        self.cell.passed_to_kernel += counts;
        let core = &mut self.cores[number];
        let raised = core.time;
        core.time += self.host.exception_ns;
        core.switch += self.host.exception_ns;
        let state = &mut self.threads[thread as usize];
        // A thread that lost its page stays awake: else two threads that need one frame could take
        // it from each other for ever.
        if self.replay.atomic.contains(kind) || again == Again::Lost {
            return self.stall(number, page);
        }
        self.cell.slept += 1;
        (state.slept_for, state.walked) = (Some(page), false);
        let wakes = wake_at(raised, predicted, self.host.sleep_granularity_ns).max(core.time);
        let since = core.time;
        self.give_up_at(number, raised);
        self.timeline.add(thread, State::Sleep, since, wakes);
        self.sleep(thread, wakes);
    }

    /// The core waits for `page`, if it is still on its way.
    fn stall(&mut self, number: usize, page: u32) {
        let now = self.cores[number].time;
        self.advance(now);
        if self.job_of(page).is_some() {
            let core = &mut self.cores[number];
            if let Some(thread) = core.thread {
                self.timeline.add(thread, State::Run, core.since, now);
            }
            (core.stalled, core.since) = (Some(page), now);
        }
    }

    /// The page is there: the TLB learns where.
    fn translate(&mut self, number: usize, thread: u32, page: u64, device_page: u32, side: usize) {
        self.cores[number].learn(side, page, device_page);
        let thread = &mut self.threads[thread as usize];
        (thread.walked, thread.slept_for) = (false, None);
        // The reference itself comes at once; it must not find the page gone again.
        self.umd.touch(device_page, false);
    }

    fn job_of(&self, page: u32) -> Option<u32> {
        self.arriving.iter().find(|(arriving, _)| *arriving == page).map(|(_, job)| *job)
    }

    /// Let the device work until `now`.
    fn advance(&mut self, now: u64) {
        while self.umd.array().next_event().is_some_and(|time| time <= now) {
            self.umd.array().step();
            while let Some((end, id)) = self.umd.array().finished() {
                let job = self.jobs[id as usize];
                self.umd.arrived(job.page);
                self.arriving.retain(|(_, other)| *other != id);
                self.finished += 1;
                let took = end - job.submitted;
                assert!(took >= job.predicted, "a service took less than its steps");
                self.actual.add(took);
                self.error.add(took - job.predicted);
                self.error_most = self.error_most.max(took - job.predicted);
                for core in &mut self.cores {
                    if core.stalled == Some(job.page) {
                        core.stall += end - core.time;
                        core.time = end;
                        if let Some(thread) = core.thread {
                            self.timeline.add(thread, State::Stall, core.since, end);
                        }
                        (core.stalled, core.since) = (None, end);
                    }
                }
            }
        }
    }

    /// Take the thread from its core.
    fn give_up(&mut self, number: usize) -> Option<u32> {
        let now = self.cores[number].time;
        self.give_up_at(number, now)
    }

    /// The same, where it stopped running at `stopped`.
    fn give_up_at(&mut self, number: usize, stopped: u64) -> Option<u32> {
        let core = &mut self.cores[number];
        let thread = core.thread.take()?;
        self.fairness.add(thread, core.time - core.taken);
        self.timeline.add(thread, State::Run, core.since, stopped);
        Some(thread)
    }

    /// Queue the thread for time `until`.
    fn sleep(&mut self, thread: u32, until: u64) {
        self.threads[thread as usize].waits = Waits::Queued;
        self.queue.put(thread, until);
        self.woken = true;
    }

    /// The thread has used up its references: hand it more, or let it go.
    fn refill(
        &mut self,
        number: usize,
        index: u32,
        source: &mut Source<'_>,
        pulse: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let now = self.cores[number].time;
        let thread = &mut self.threads[index as usize];
        thread.at = 0;
        self.feed.done(&mut thread.piece);
        loop {
            if let Some(piece) = self.feed.next(index) {
                self.threads[index as usize].piece = piece;
                break;
            }
            if !self.feed.room() {
                self.give_up(number);
                self.threads[index as usize].waits = Waits::References;
                return Ok(());
            }
            self.fill(source, now, pulse)?;
        }
        self.fill_window(source, now, pulse)
    }

    /// Read on until as many references are in flight as may be.
    fn fill_window(
        &mut self,
        source: &mut Source<'_>,
        now: u64,
        pulse: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        while self.feed.room() {
            self.fill(source, now, pulse)?;
        }
        Ok(())
    }

    /// Read on; threads that get references are ready at `now`.
    fn fill(
        &mut self,
        source: &mut Source<'_>,
        now: u64,
        pulse: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        self.feed.fill(source)?;
        pulse(self.feed.read())?;
        while self.threads.len() < self.feed.threads() {
            self.threads.push(Thread::default());
        }
        if self.threads.len() as u64 >= u64::from(self.umd.frames()) {
            return Err(Error::input(
                "--dram",
                format!(
                    "{} pages are too few for {} threads that each wait for one",
                    self.umd.frames(),
                    self.threads.len()
                ),
                "give the device more DRAM",
            ));
        }
        for index in 0..self.threads.len() as u32 {
            if self.threads[index as usize].waits == Waits::References && self.feed.has(index) {
                self.sleep(index, now);
            }
        }
        Ok(())
    }

    /// Everything adds up: that is asserted, always. Then the cell.
    fn finish(mut self) -> (Cell, Detail) {
        assert!(self.feed.ended(), "the trace was not read to its end");
        assert_eq!(self.counts.references, self.feed.read(), "references replayed and read");
        assert_eq!(self.submitted, self.finished, "services begun and finished");
        self.umd.ftl().verify();
        let (dirty, clean) = self.umd.evictions();
        let tally = self.umd.ftl().tally();
        assert_eq!(tally.host_programs, dirty, "programs for the host are dirty evictions");
        let end = self.cores.iter().map(|core| core.time).max().unwrap_or(0);
        for core in &mut self.cores {
            core.idle += end - core.time;
            let sum = core.busy + core.stall + core.switch + core.idle;
            assert_eq!(sum, end, "the core's time");
        }
        let seconds =
            |of: fn(&Core) -> u64| self.cores.iter().map(|core| of(core) as f64).sum::<f64>() / 1e9;
        let share =
            |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        let wear = self.umd.ftl().wear();
        let cell = Cell {
            seconds: end as f64 / 1e9,
            references: self.counts.references,
            instructions: self.counts.instructions,
            accesses: self.counts.accesses,
            embedded_fault_rate: share(self.cell.embedded_faults, self.counts.accesses),
            passed_share: share(self.cell.passed_to_kernel, self.cell.embedded_faults),
            cpu_busy: seconds(|core| core.busy),
            cpu_stall: seconds(|core| core.stall),
            cpu_switch: seconds(|core| core.switch),
            cpu_idle: seconds(|core| core.idle),
            services: self.finished,
            predicted_us_mean: self.predicted.mean() / 1e3,
            actual_us_mean: self.actual.mean() / 1e3,
            prediction_error_us_mean: self.error.mean() / 1e3,
            prediction_error_us_max: self.error_most as f64 / 1e3,
            flash_reads: tally.reads(),
            flash_programs: tally.programs(),
            gc_collections: tally.collections,
            gc_moved: tally.moved,
            write_amplification: tally.write_amplification(),
            evictions: dirty + clean,
            dirty_evictions: dirty,
            erases_least: wear.least,
            erases_most: wear.most,
            die_busy: self.umd.array().die_ns().sum::<u64>() as f64 / 1e9,
            ..self.cell
        };
        let detail = Detail {
            conditioned: Some(self.conditioned),
            service: Histogram::classes(&self.predicted, &self.actual),
            error: Histogram::classes(&Histogram::default(), &self.error),
            timeline: self.timeline,
        };
        (cell, detail)
    }
}
