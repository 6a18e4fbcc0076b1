//! Turns the 64-bit words that the QEMU plugin writes to its streams (rings, one per thread) into a
//! trace: records, and the events of address spaces.

mod address_events;
mod ram;
mod resident;

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use nearfar_trace::sample::Burst;
use nearfar_trace::{Batch, Clock, RegionEvent, RegionKind, Result, Writer};

use crate::address_space::AddressSpace;
use crate::expand::{Expander, Position, Sink};
use crate::interrupt::Interrupter;
use crate::layout::{CONTROL, Event, MIN_CONTROL, Place, tag};
use crate::output::{Output, StopReason};
use crate::schedule::Schedule;
use crate::shared::Shared;
use crate::transfer::Files;

/// Maximum number of events in a trace: writer and readers keep them in memory.
const MAX_EVENTS: u64 = 1 << 22;
/// Maximum bytes of all names of events.
const MAX_NAME_BYTES: u64 = 256 << 20;
/// Maximum number of mapped ranges in all processes.
const MAX_RANGES: usize = 1 << 22;
/// Maximum number of bursts in a trace; later ones are dropped.
const MAX_BURSTS: usize = 1 << 16;
/// Maximum number of tasks of a virtual machine that get their own thread.
const MAX_TASKS: usize = 1 << 16;
/// Maximum bytes of a name; the plugin truncates longer ones.
const MAX_NAME: usize = 4096;

/// A child process that its parent's stream has announced.
pub(crate) struct ForkedChild {
    /// `Slot::order` of its first stream.
    pub order: u64,
    pub pid: u32,
    /// Number in the trace.
    pub process: u32,
}

/// A program that ran unrecorded.
#[derive(Clone, Debug)]
pub(crate) struct LostProgram {
    pub name: String,
    pub why: &'static str,
    /// Number of records before it.
    pub at: u64,
}

/// Turns words into records and events, in the order in which they are passed in.
pub(crate) struct Recording<'a> {
    pub out: Output<'a>,
    expander: Expander,
    batch: Batch,
    events: Vec<RegionEvent>,
    files: Files,
    /// The process of each thread.
    process_of: Vec<u32>,
    /// In a sample: fetches, loads and stores of each thread up to its last place record ([`Place`]).
    references_of: HashMap<u32, [u64; 3]>,
    /// By thread, the current burst: number of records before it, and its weight ([`Burst::blocks`]).
    burst_of: HashMap<u32, (u64, u64)>,
    processes: u32,
    /// Tasks of a virtual machine, by pid (idle tasks, whose pid is 0, also by name): the task's
    /// thread in the trace, and when its name was last set.
    tasks: HashMap<(u64, String), (u32, u64)>,
    /// By process. Processes that share a space (`vfork`) have a copy each.
    spaces: HashMap<u32, AddressSpace>,
    /// The program of an `execve` that may still fail, by thread.
    exec: HashMap<u32, LostProgram>,
    /// The program of an `execve` that succeeded, by process, until its first stream begins.
    expected: HashMap<u32, LostProgram>,
    /// Children announced since the caller last took them.
    pub forked: Vec<ForkedChild>,
    /// Threads whose process is about to end.
    pub ending: Vec<u32>,
    /// Processes that others have waited for, and that may have ended.
    pub waited: Vec<u32>,
    /// An instruction whose stores could not be observed.
    pub unseen: Option<String>,
    /// The first program that ran unrecorded.
    pub lost_program: Option<LostProgram>,
    /// Programs that ran unrecorded.
    pub lost_programs: u64,
    /// Child processes that ran unrecorded.
    pub lost_forks: u64,
    /// Mapped files: path, device and inode.
    pub files_mapped: BTreeMap<Rc<str>, (u64, u64)>,
    /// A control record of the program has arrived.
    pub began: bool,
    /// Events that may still be recorded.
    pub events_left: u64,
    name_bytes_left: u64,
}

impl<'a> Recording<'a> {
    pub fn new(
        shared: &'a Shared,
        writer: Writer,
        fetch: bool,
        (skip, max, schedule): (u64, Option<u64>, Schedule),
        interrupter: Interrupter<'a>,
    ) -> Self {
        Self {
            out: Output {
                shared,
                writer,
                skip,
                max: max.unwrap_or(u64::MAX),
                schedule,
                stopped: false,
                stop_reason: None,
                interrupter,
                began: None,
                clock: Clock::default(),
                references: [0; 3],
                bursts: Vec::new(),
            },
            expander: Expander::new(fetch),
            batch: Batch::default(),
            events: Vec::new(),
            files: Files::default(),
            process_of: Vec::new(),
            references_of: HashMap::new(),
            burst_of: HashMap::new(),
            processes: 0,
            tasks: HashMap::new(),
            spaces: HashMap::new(),
            exec: HashMap::new(),
            expected: HashMap::new(),
            forked: Vec::new(),
            ending: Vec::new(),
            waited: Vec::new(),
            unseen: None,
            lost_program: None,
            lost_programs: 0,
            lost_forks: 0,
            files_mapped: BTreeMap::new(),
            began: false,
            events_left: MAX_EVENTS,
            name_bytes_left: MAX_NAME_BYTES,
        }
    }

    /// Number a new process.
    pub fn new_process(&mut self) -> u32 {
        self.processes += 1;
        self.processes
    }

    /// Number a new thread of `process`.
    pub fn new_thread(&mut self, process: u32) -> Result<u32> {
        let thread = self.process_of.len() as u32;
        self.process_of.push(process);
        if !self.out.stopped {
            self.out.writer.thread_process(thread, process);
            self.region(RegionEvent { thread, event: RegionKind::ThreadStart, ..<_>::default() })?;
        }
        Ok(thread)
    }

    /// A processor of a virtual machine begins to run this task (its pid, and that of its process),
    /// which is a thread in the trace. `time` orders the events of all processors.
    fn switch_task(
        &mut self,
        (pid, process): (u64, u64),
        name: String,
        time: u64,
        position: &mut Position,
    ) -> Result<()> {
        // Each processor has an idle task with pid 0.
        let key = (pid, if pid == 0 { name.clone() } else { String::new() });
        let name = match pid {
            0 => name,
            _ if pid == process => format!("{name} {pid}"),
            _ => format!("{name} {process}/{pid}"),
        };
        let (thread, named_at) = match self.tasks.get(&key) {
            Some(task) => *task,
            None if self.tasks.len() >= MAX_TASKS => return Ok(()),
            None => (self.new_thread(self.process_of[position.thread as usize])?, 0),
        };
        if time >= named_at {
            self.tasks.insert(key, (thread, time));
            self.out.writer.thread_name(thread, name);
        }
        let (before, instructions) = (position.thread, position.switch(thread));
        if !self.out.stopped {
            self.out.writer.add_instructions(before, instructions);
        }
        Ok(())
    }

    pub fn end_thread(&mut self, position: &Position) -> Result<()> {
        let thread = position.thread;
        if self.out.stopped {
            return Ok(());
        }
        if let Some(program) = self.exec.remove(&thread) {
            let name = program.name.clone();
            self.region(RegionEvent { thread, event: RegionKind::Exec, name, ..<_>::default() })?;
            self.spaces.remove(&self.process_of[thread as usize]);
            self.expected.insert(self.process_of[thread as usize], program);
        }
        self.out.writer.add_instructions(thread, position.since_last_record());
        self.region(RegionEvent { thread, event: RegionKind::ThreadExit, ..<_>::default() })
    }

    pub fn has_called_exec(&self, thread: u32) -> bool {
        self.exec.contains_key(&thread)
    }

    /// The `execve` of a thread did not happen: another thread's did.
    pub fn forget_exec(&mut self, thread: u32) {
        self.exec.remove(&thread);
    }

    /// The program of a process's `execve` has begun.
    pub fn begin_program(&mut self, process: u32) {
        self.expected.remove(&process);
    }

    /// End the process whose last thread was `thread`.
    pub fn end_process(&mut self, thread: u32) -> Result<()> {
        let process = self.process_of[thread as usize];
        self.spaces.remove(&process);
        if let Some(program) = self.expected.remove(&process) {
            self.lost_program.get_or_insert(program);
            self.lost_programs += 1;
        }
        if self.out.stopped {
            return Ok(());
        }
        self.region(RegionEvent { thread, event: RegionKind::Exit, ..<_>::default() })
    }

    /// Record that a thread has forked the process `child`.
    pub fn fork(&mut self, thread: u32, child: u32, event: RegionKind) -> Result<()> {
        let parent = self.process_of[thread as usize];
        let space = self.spaces.get(&parent).cloned().unwrap_or_default();
        self.spaces.insert(child, space);
        if self.spaces.values().map(AddressSpace::len).sum::<usize>() > MAX_RANGES {
            self.stop_forged();
            return Ok(());
        }
        let name = format!("process {child}");
        self.region(RegionEvent { thread, event, to: u64::from(child), name, ..<_>::default() })
    }

    /// Add the records and events of `words` of a thread.
    pub fn expand(&mut self, mut words: &[u64], position: &mut Position) -> Result<()> {
        let blocks = self.out.shared.blocks();
        while !words.is_empty() && !self.out.stopped {
            let step = self.expander.expand(words, blocks, position, &mut self.out)?;
            words = &words[step..];
            if let [word, rest @ ..] = words
                && *word >= MIN_CONTROL
            {
                let (tag, length) = control_word(*word);
                // A control record is published as a whole, within one chunk.
                let Some((record, rest)) = rest.split_at_checked(length) else {
                    self.stop_forged();
                    break;
                };
                self.began = true;
                // A place record adds nothing to the trace, so the expander need not flush the records that
                // it holds. Before recording has begun, these must first count towards `--skip-refs`
                // (`place`).
                if tag != tag::PLACE || !self.out.has_begun() {
                    self.expander.flush(&mut self.out)?;
                }
                self.control(tag, record, position)?;
                words = rest;
            }
        }
        self.expander.flush(&mut self.out)
    }

    /// The program wrote to the shared memory: stop trusting it.
    pub fn stop_forged(&mut self) {
        self.out.stop(Some(StopReason::Forged));
    }

    fn control(&mut self, tag: u64, words: &[u64], position: &mut Position) -> Result<()> {
        match tag {
            tag::TRANSFER => {
                if !self.files.expand(words, position, &mut self.batch, &mut self.events) {
                    self.stop_forged();
                }
                // Announce file ranges before the records that use them: readers replay events by
                // position.
                for event in std::mem::take(&mut self.events) {
                    self.region(event)?;
                }
                self.out.wide(&mut self.batch)?;
            }
            tag::FILE => {
                if let [device, inode, rest @ ..] = words {
                    self.files.set_name(*device, *inode, text(rest));
                }
            }
            tag::EVENT => {
                if let Some((fixed, name)) = words.split_at_checked(Event::Name as usize) {
                    self.event(fixed, text(name), position)?;
                }
            }
            tag::PAD | tag::FENCE | tag::FENCE_END => {}
            tag::PLACE => self.place(words, position),
            tag::BURST => self.burst(words.first().copied().unwrap_or(0), position.thread),
            _ => self.stop_forged(),
        }
        Ok(())
    }

    /// Apply a place record: position and counts of a thread in a sample.
    fn place(&mut self, words: &[u64], position: &mut Position) {
        let Ok(words) = <&[u64; Place::Words as usize]>::try_from(words) else {
            return self.stop_forged();
        };
        let word = |index: Place| words[index as usize];
        let now = [Place::Fetches, Place::Loads, Place::Stores].map(word);
        let before = self.references_of.insert(position.thread, now).unwrap_or_default();
        let descends = now.iter().zip(before).any(|(now, before)| *now < before);
        if descends || !position.jump(word(Place::BlockStart), word(Place::BlockEnd)) {
            return self.stop_forged();
        }
        if self.out.has_begun() {
            for ((sum, now), before) in self.out.references.iter_mut().zip(now).zip(before) {
                *sum = sum.saturating_add(now - before);
            }
        }
    }

    /// Begin a burst of a thread, with the weight `blocks` ([`Burst::blocks`]); if that is 0, end it.
    fn burst(&mut self, blocks: u64, thread: u32) {
        let records = self.out.writer.records();
        if blocks > 0 && self.out.has_begun() {
            self.burst_of.insert(thread, (records, blocks));
        } else if let Some((start, blocks)) = self.burst_of.remove(&thread)
            && self.out.bursts.len() < MAX_BURSTS
        {
            self.out.bursts.push(Burst { thread, start, end: records, blocks });
        }
    }

    /// Record an event at the current position.
    fn region(&mut self, event: RegionEvent) -> Result<()> {
        let name_bytes_left = self.name_bytes_left.checked_sub(event.name.len() as u64);
        let (Some(events), Some(names)) = (self.events_left.checked_sub(1), name_bytes_left) else {
            self.out.stop(Some(StopReason::TooManyEvents));
            return Ok(());
        };
        (self.events_left, self.name_bytes_left) = (events, names);
        let at = self.out.writer.records();
        self.out.writer.region(RegionEvent { at, ..event })
    }
}

/// Tag of a control word, and the number of words that follow it.
pub(crate) fn control_word(word: u64) -> (u64, usize) {
    ((word & !CONTROL) >> 56, (word & ((1 << 56) - 1)) as usize)
}

/// Decode a text: its length in bytes, then its bytes, eight to a word.
fn text(words: &[u64]) -> String {
    let Some((length, words)) = words.split_first() else { return String::new() };
    let words = &words[..words.len().min(MAX_NAME / 8)];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.truncate(*length as usize);
    String::from_utf8_lossy(&bytes).into_owned()
}
