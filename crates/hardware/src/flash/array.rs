//! Timing of flash commands under contention for dies and channels.
//!
//! A job is a sequence of steps. A die serves one job at a time, first come first served. A job
//! keeps its die while its next step is on the same die: garbage collection is not interrupted. A
//! transfer occupies both the die and its channel. Steps of different jobs on different dies overlap.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use nearfar_trace::Result;

use super::{Command, Geometry, Op};
use crate::machine::Machine;

/// Times of commands, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Sense a page.
    pub read_ns: u64,
    /// Program a page.
    pub program_ns: u64,
    /// Erase a block.
    pub erase_ns: u64,
    /// Transfer a page over its channel; 0 if transfers are free.
    pub transfer_ns: u64,
}

impl Times {
    /// The times of a machine, rounded to whole nanoseconds.
    ///
    /// # Errors
    /// An input error where it has no `[flash]`.
    pub fn new(machine: &Machine) -> Result<Self> {
        let flash = machine.flash.as_ref().ok_or_else(|| machine.lacks("[flash]"))?;
        let page = flash.page_size.value.bytes();
        let transfer = flash.channel_bandwidth.as_ref().map_or(0.0, |rate| rate.value.ns_for(page));
        // The channels of a stripe transfer in parallel.
        let transfer = transfer / flash.dies_per_stripe().min(flash.channels.value.0).max(1) as f64;
        Ok(Self {
            read_ns: flash.read.value.ns().round() as u64,
            program_ns: flash.program.value.ns().round() as u64,
            erase_ns: flash.erase.value.ns().round() as u64,
            transfer_ns: transfer.round() as u64,
        })
    }

    /// Append the steps of `command`.
    pub fn steps(&self, command: Command, steps: &mut Vec<Step>) {
        let die = command.die;
        // If shared, another command of the stripe takes the time in the die.
        let die_ns = |ns: u64| if command.shared { 0 } else { ns };
        match command.op {
            Op::Read => {
                Step::Die { die, ns: die_ns(self.read_ns) }.append(steps);
                Step::Channel { die, ns: self.transfer_ns }.append(steps);
            }
            Op::Program => {
                Step::Channel { die, ns: self.transfer_ns }.append(steps);
                Step::Die { die, ns: die_ns(self.program_ns) }.append(steps);
            }
            Op::Erase => Step::Erase { die, ns: self.erase_ns }.append(steps),
        }
    }
}

/// A step of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Work inside a die.
    Die { die: u32, ns: u64 },
    /// A transfer between a die and the controller.
    Channel {
        /// The die, which determines the channel.
        die: u32,
        ns: u64,
    },
    /// An erase of a block.
    Erase { die: u32, ns: u64 },
    /// Time that uses no part of the array.
    Delay { ns: u64 },
}

impl Step {
    /// Its duration without contention, nanoseconds.
    pub fn ns(self) -> u64 {
        match self {
            Step::Die { ns, .. }
            | Step::Channel { ns, .. }
            | Step::Erase { ns, .. }
            | Step::Delay { ns } => ns,
        }
    }

    /// Duration without erases, which the DRAM-interface SSD of paper 002 (section 2.3) does not count.
    pub fn counted_ns(self) -> u64 {
        if matches!(self, Step::Erase { .. }) { 0 } else { self.ns() }
    }

    /// Append to `steps` unless it takes no time. Merges adjacent work in a die, and adjacent delays.
    pub fn append(self, steps: &mut Vec<Step>) {
        if self.ns() == 0 {
            return;
        }
        match (steps.last_mut(), self) {
            (Some(Step::Die { die: last, ns }), Step::Die { die, ns: more }) if *last == die => {
                *ns += more;
            }
            (Some(Step::Delay { ns }), Step::Delay { ns: more }) => *ns += more,
            _ => steps.push(self),
        }
    }
}

/// Nanoseconds that a job took in addition to [`Step::counted_ns`] of its steps, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Late {
    /// Its die was busy with another job.
    pub die: u64,
    /// Its channel was busy with another job.
    pub channel: u64,
    /// Its own erases.
    pub erase: u64,
}

impl Late {
    pub fn ns(self) -> u64 {
        self.die + self.channel + self.erase
    }
}

#[derive(Default)]
struct Job {
    steps: Vec<Step>,
    current: usize,
    held_die: Option<u32>,
    /// Start of the wait for a die or a channel.
    waiting_since: Option<u64>,
    late: Late,
}

impl Job {
    /// End the wait. Returns its nanoseconds, 0 if the job did not wait.
    fn waited(&mut self, now: u64) -> u64 {
        self.waiting_since.take().map_or(0, |since| now - since)
    }
}

/// A resource that one job uses at a time, and its queue.
#[derive(Clone, Default)]
struct Server {
    busy: bool,
    waiting: VecDeque<u32>,
    used_ns: u64,
}

/// The array during a run. Time advances only in [`Array::step`].
pub struct Array {
    dies: Vec<Server>,
    channels: Vec<Server>,
    jobs: Vec<Job>,
    /// Numbers of finished jobs, for reuse.
    spare: Vec<u32>,
    /// Ends of steps: time, event number, job.
    events: BinaryHeap<Reverse<(u64, u64, u32)>>,
    scheduled: u64,
    finished: VecDeque<(u64, u32)>,
}

impl Array {
    pub fn new(geometry: &Geometry) -> Self {
        Self {
            dies: vec![Server::default(); geometry.dies as usize],
            channels: vec![Server::default(); geometry.channels as usize],
            jobs: Vec::new(),
            spare: Vec::new(),
            events: BinaryHeap::new(),
            scheduled: 0,
            finished: VecDeque::new(),
        }
    }

    /// Begin a job at time `now`, which must not be before an event already processed. Returns the
    /// job's number, which is reused after the job ends.
    pub fn submit(&mut self, now: u64, steps: &[Step]) -> u32 {
        let id = self.spare.pop().unwrap_or_else(|| {
            self.jobs.push(Job::default());
            self.jobs.len() as u32 - 1
        });
        let job = &mut self.jobs[id as usize];
        job.steps.clear();
        job.steps.extend_from_slice(steps);
        (job.current, job.held_die, job.late) = (0, None, Late::default());
        self.proceed(id, now);
        id
    }

    /// Time of the next event; `None` if all jobs are finished.
    pub fn next_event(&self) -> Option<u64> {
        self.events.peek().map(|Reverse((time, _, _))| *time)
    }

    /// Process the next event. Returns false if there is none.
    pub fn step(&mut self) -> bool {
        let Some(Reverse((now, _, id))) = self.events.pop() else { return false };
        let job = &mut self.jobs[id as usize];
        let step = job.steps[job.current];
        job.current += 1;
        if let Step::Channel { die, .. } = step {
            let channel = die as usize % self.channels.len();
            self.channels[channel].busy = false;
            if let Some(next) = self.channels[channel].waiting.pop_front() {
                self.transfer(next, now);
            }
        }
        self.proceed(id, now);
        true
    }

    /// The next finished job: time and number.
    pub fn finished(&mut self) -> Option<(u64, u32)> {
        self.finished.pop_front()
    }

    /// The delay of a finished job, until its number is reused.
    pub fn late(&self, id: u32) -> Late {
        self.jobs[id as usize].late
    }

    /// Time of an unfinished job without contention, from its current step on: the sum of
    /// [`Step::counted_ns`].
    pub fn left_ns(&self, id: u32) -> u64 {
        let job = &self.jobs[id as usize];
        job.steps.iter().skip(job.current).map(|step| step.counted_ns()).sum()
    }

    /// Busy nanoseconds of each die.
    pub fn die_ns(&self) -> impl Iterator<Item = u64> + '_ {
        self.dies.iter().map(|die| die.used_ns)
    }

    fn schedule(&mut self, id: u32, at: u64) {
        self.scheduled += 1;
        self.events.push(Reverse((at, self.scheduled, id)));
    }

    /// Start the job's current step, or enqueue the job for the resource that it needs.
    fn proceed(&mut self, id: u32, now: u64) {
        let job = &mut self.jobs[id as usize];
        job.late.die += job.waited(now);
        let step = job.steps.get(job.current).copied();
        let wanted = match step {
            Some(Step::Die { die, .. } | Step::Channel { die, .. } | Step::Erase { die, .. }) => {
                Some(die)
            }
            _ => None,
        };
        if let Some(held) = job.held_die
            && wanted != Some(held)
        {
            self.release(held, now);
            self.jobs[id as usize].held_die = None;
        }
        if let Some(die) = wanted
            && self.jobs[id as usize].held_die.is_none()
        {
            let server = &mut self.dies[die as usize];
            if server.busy {
                server.waiting.push_back(id);
                self.jobs[id as usize].waiting_since = Some(now);
                return;
            }
            server.busy = true;
            self.jobs[id as usize].held_die = Some(die);
        }
        match step {
            Some(Step::Channel { .. }) => self.transfer(id, now),
            Some(Step::Die { die, ns }) => {
                self.dies[die as usize].used_ns += ns;
                self.schedule(id, now + ns);
            }
            Some(Step::Erase { die, ns }) => {
                self.dies[die as usize].used_ns += ns;
                self.jobs[id as usize].late.erase += ns;
                self.schedule(id, now + ns);
            }
            Some(Step::Delay { ns }) => self.schedule(id, now + ns),
            None => {
                self.finished.push_back((now, id));
                self.spare.push(id);
            }
        }
    }

    /// Use the channel for the job's current step, now or when it is free.
    fn transfer(&mut self, id: u32, now: u64) {
        let job = &mut self.jobs[id as usize];
        let Some(Step::Channel { die, ns }) = job.steps.get(job.current).copied() else { return };
        job.late.channel += job.waited(now);
        let count = self.channels.len();
        let channel = &mut self.channels[die as usize % count];
        if channel.busy {
            channel.waiting.push_back(id);
            job.waiting_since = Some(now);
            return;
        }
        channel.busy = true;
        channel.used_ns += ns;
        self.dies[die as usize].used_ns += ns;
        self.schedule(id, now + ns);
    }

    /// Release a die, and start the next job in its queue.
    fn release(&mut self, die: u32, now: u64) {
        let server = &mut self.dies[die as usize];
        server.busy = false;
        if let Some(next) = server.waiting.pop_front() {
            self.proceed(next, now);
        }
    }
}
