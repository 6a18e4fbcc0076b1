//! From the words of one stream to the trace: records, and the events of address spaces.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use nearfar_trace::{Batch, Clock, Narrow, RegionEvent, RegionKind, Result, Writer};

use crate::expand::{Expander, Position, Sink};
use crate::interrupt::Watch;
use crate::layout::{CONTROL, Event, OTHER, SHARED, lost, tag, what};
use crate::schedule::Schedule;
use crate::shared::Shared;
use crate::space::{Mapping, Space};
use crate::transfer::Files;

/// Where the records go, cut where `--skip-refs` and `--max-refs` say. What is left out at the
/// beginning is no part of the trace: a thread's first record has the gap since the one before it.
pub(crate) struct Output<'a> {
    shared: &'a Shared,
    pub writer: Writer,
    /// Records still to be left out, by `--skip-refs`, before the first that is kept.
    pub skip: u64,
    max: u64,
    /// When records are wanted.
    pub schedule: Schedule,
    /// Nothing more is recorded: `--max-refs` was reached, or `cut` says why.
    pub full: bool,
    /// Why recording had to end before the program did.
    pub cut: Option<Cut>,
    /// Asks the user, and ends the program.
    pub watch: Watch<'a>,
    /// When the first record was written, if one was, and further moments.
    pub clock: (Option<Instant>, Clock),
}

/// Why recording had to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The program has written to the shared memory itself.
    Forged,
    /// There were as many events as a trace holds.
    Events,
    /// The user wants no more of it.
    Killed,
}

/// Largest number of events in a trace: they are kept in memory until it ends, and readers take no more.
const MAX_EVENTS: u64 = 1 << 22;
/// Bytes of all their names.
const MAX_NAMES: u64 = 256 << 20;
/// Largest number of ranges that are mapped in all processes together.
const MAX_RANGES: usize = 1 << 22;
/// Bytes of a name, as the plugin cuts them.
const MAX_NAME: usize = 4096;

impl Output<'_> {
    /// Record nothing more.
    pub fn stop(&mut self, why: Option<Cut>) {
        if !self.full {
            (self.full, self.cut) = (true, why);
        }
        self.shared.header().stop.store(1, SeqCst);
    }

    /// Records have been written, perhaps many for few words: look at whether the user wants more.
    fn wrote(&mut self) {
        let records = self.writer.records();
        let (began, clock) = &mut self.clock;
        if records > 0 {
            let began = began.get_or_insert_with(Instant::now);
            clock.note(began.elapsed().as_millis() as u64, records);
        }
        if self.watch.look(records) {
            self.stop(Some(Cut::Killed));
        }
    }

    /// Which of `records` further ones are wanted.
    fn wanted(&mut self, records: usize) -> Range<usize> {
        if self.schedule.waits().is_some() {
            return 0..0;
        }
        let start = self.skip.min(records as u64);
        self.skip -= start;
        let (records, left) = (records as u64 - start, self.max - self.writer.records());
        if records >= left {
            self.stop(None);
        }
        start as usize..(start + left.min(records)) as usize
    }
}

impl Sink for Output<'_> {
    fn narrow(&mut self, records: Narrow<'_>) -> Result<()> {
        let wanted = self.wanted(records.len());
        self.writer.push_narrow(records.part(wanted))?;
        self.wrote();
        Ok(())
    }

    fn wide(&mut self, records: &mut Batch) -> Result<()> {
        records.keep(self.wanted(records.len()));
        let pushed = self.writer.push_batch(records);
        records.clear();
        self.wrote();
        pushed
    }
}

/// A child process that its parent's stream has announced.
pub(crate) struct Born {
    /// Order of its first stream.
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
    /// Records before it.
    pub at: u64,
}

/// Turns words into records and regions, in the order in which it is given them.
pub(crate) struct Recording<'a> {
    pub out: Output<'a>,
    expander: Expander,
    batch: Batch,
    events: Vec<RegionEvent>,
    files: Files,
    /// The process of each thread.
    process_of: Vec<u32>,
    processes: u32,
    /// By process; those that share one (`vfork`) have a copy each.
    spaces: HashMap<u32, Space>,
    /// An `execve` not yet known to have succeeded, by thread.
    exec: HashMap<u32, LostProgram>,
    /// One that has, by process, until the program's first stream begins.
    expected: HashMap<u32, LostProgram>,
    /// Children announced since somebody asked.
    pub born: Vec<Born>,
    /// Threads whose process is about to end.
    pub ending: Vec<u32>,
    /// Processes that may have ended, as their parents know.
    pub waited: Vec<u32>,
    /// Instructions whose stores are not seen.
    pub unseen: Option<String>,
    /// The first program that ran unrecorded.
    pub lost_program: Option<LostProgram>,
    /// How many there were.
    pub lost_programs: u64,
    /// Child processes that ran unrecorded.
    pub lost_forks: u64,
    /// Files that were mapped: path, device and inode.
    pub files_mapped: BTreeMap<Rc<str>, (u64, u64)>,
    /// Something of the program has arrived.
    pub began: bool,
    /// Events that can still be noted, and bytes of their names.
    pub events_left: u64,
    names_left: u64,
}

impl<'a> Recording<'a> {
    pub fn new(
        shared: &'a Shared,
        writer: Writer,
        fetch: bool,
        (skip, max, schedule): (u64, Option<u64>, Schedule),
        watch: Watch<'a>,
    ) -> Self {
        let max = max.unwrap_or(u64::MAX);
        Self {
            out: Output {
                shared,
                writer,
                skip,
                max,
                schedule,
                full: false,
                cut: None,
                watch,
                clock: <_>::default(),
            },
            expander: Expander::new(fetch),
            batch: Batch::default(),
            events: Vec::new(),
            files: Files::default(),
            process_of: Vec::new(),
            processes: 0,
            spaces: HashMap::new(),
            exec: HashMap::new(),
            expected: HashMap::new(),
            born: Vec::new(),
            ending: Vec::new(),
            waited: Vec::new(),
            unseen: None,
            lost_program: None,
            lost_programs: 0,
            lost_forks: 0,
            files_mapped: BTreeMap::new(),
            began: false,
            events_left: MAX_EVENTS,
            names_left: MAX_NAMES,
        }
    }

    /// A new process.
    pub fn process(&mut self) -> u32 {
        self.processes += 1;
        self.processes
    }

    /// A new thread of `process`.
    pub fn thread(&mut self, process: u32) -> Result<u32> {
        let thread = self.process_of.len() as u32;
        self.process_of.push(process);
        if !self.out.full {
            self.out.writer.thread_process(thread, process);
            self.region(RegionEvent { thread, event: RegionKind::ThreadStart, ..<_>::default() })?;
        }
        Ok(thread)
    }

    /// A thread has ended.
    pub fn thread_ends(&mut self, position: &Position) -> Result<()> {
        let thread = position.thread;
        if self.out.full {
            return Ok(());
        }
        if let Some(program) = self.exec.remove(&thread) {
            let name = program.name.clone();
            self.region(RegionEvent { thread, event: RegionKind::Exec, name, ..<_>::default() })?;
            self.spaces.remove(&self.process_of[thread as usize]);
            self.expected.insert(self.process_of[thread as usize], program);
        }
        self.out.writer.add_instructions(thread, position.rest());
        self.region(RegionEvent { thread, event: RegionKind::ThreadExit, ..<_>::default() })
    }

    /// Whether a thread has asked for another program in its place.
    pub fn runs_another(&self, thread: u32) -> bool {
        self.exec.contains_key(&thread)
    }

    /// The program that a process has become has begun.
    pub fn program_begins(&mut self, process: u32) {
        self.expected.remove(&process);
    }

    /// A process, whose last thread was this one, has ended.
    pub fn process_ends(&mut self, thread: u32) -> Result<()> {
        let process = self.process_of[thread as usize];
        self.spaces.remove(&process);
        if let Some(program) = self.expected.remove(&process) {
            self.lost_program.get_or_insert(program);
            self.lost_programs += 1;
        }
        if self.out.full {
            return Ok(());
        }
        self.region(RegionEvent { thread, event: RegionKind::Exit, ..<_>::default() })
    }

    /// A thread has forked the process `child`.
    pub fn fork(&mut self, thread: u32, child: u32, event: RegionKind) -> Result<()> {
        let parent = self.process_of[thread as usize];
        let space = self.spaces.get(&parent).cloned().unwrap_or_default();
        self.spaces.insert(child, space);
        if self.spaces.values().map(Space::len).sum::<usize>() > MAX_RANGES {
            self.forged();
            return Ok(());
        }
        let name = format!("process {child}");
        self.region(RegionEvent { thread, event, to: u64::from(child), name, ..<_>::default() })
    }

    /// Add the records and events of `words` of a thread.
    pub fn expand(&mut self, mut words: &[u64], position: &mut Position) -> Result<()> {
        let blocks = self.out.shared.blocks();
        while !words.is_empty() && !self.out.full {
            let step = self.expander.expand(words, blocks, position, &mut self.out)?;
            words = &words[step..];
            // The expansion stops at words that are neither references nor blocks.
            if let [word, rest @ ..] = words
                && *word >= OTHER
            {
                let (tag, length) = control_word(*word);
                // A record is published as a whole, and lies in one chunk.
                let Some((record, rest)) = rest.split_at_checked(length) else {
                    self.forged();
                    break;
                };
                self.began = true;
                self.control(tag, record, position)?;
                words = rest;
            }
        }
        Ok(())
    }

    /// The program has written to the shared memory itself: believe nothing of it any more.
    pub fn forged(&mut self) {
        self.out.stop(Some(Cut::Forged));
    }

    fn control(&mut self, kind: u64, words: &[u64], position: &mut Position) -> Result<()> {
        match kind {
            tag::TRANSFER => {
                if !self.files.expand(words, position, &mut self.batch, &mut self.events) {
                    self.forged();
                }
                // Ranges are announced before the records that use them are written: a reader
                // that replays events by position then knows them in time.
                for event in std::mem::take(&mut self.events) {
                    self.region(event)?;
                }
                self.out.wide(&mut self.batch)?;
            }
            tag::FILE => {
                if let [device, inode, rest @ ..] = words {
                    self.files.name(*device, *inode, text(rest));
                }
            }
            tag::EVENT => {
                if let Some((fixed, name)) = words.split_at_checked(Event::Name as usize) {
                    self.event(fixed, text(name), position.thread)?;
                }
            }
            tag::PAD | tag::MOMENT | tag::DONE => {}
            _ => self.forged(),
        }
        Ok(())
    }

    /// Note an event where it happened.
    fn region(&mut self, event: RegionEvent) -> Result<()> {
        let names_left = self.names_left.checked_sub(event.name.len() as u64);
        let (Some(events), Some(names)) = (self.events_left.checked_sub(1), names_left) else {
            self.out.stop(Some(Cut::Events));
            return Ok(());
        };
        (self.events_left, self.names_left) = (events, names);
        let at = self.out.writer.records();
        self.out.writer.region(RegionEvent { at, ..event })
    }

    fn event(&mut self, fixed: &[u64], name: String, thread: u32) -> Result<()> {
        let word = |index: Event| fixed[index as usize];
        let (addr, length) = (word(Event::Addr), word(Event::Length));
        let kind = word(Event::What);
        if !in_memory(kind, fixed) {
            self.forged();
            return Ok(());
        }
        let process = self.process_of[thread as usize];
        let range = |event| RegionEvent { thread, event, addr, length, ..<_>::default() };
        match kind {
            what::MAP | what::BRK => {
                let mapping = Mapping {
                    offset: word(Event::Offset),
                    prot: letters(word(Event::Prot)).into(),
                    name: name.into(),
                    file: (word(Event::Device), word(Event::Inode)),
                };
                let space = self.spaces.entry(process).or_default();
                if kind == what::BRK {
                    // As far as it is one: something else can be mapped over a part of it.
                    if let Some((start, end, _)) = space.at(addr).filter(|m| *m.2.name == *HEAP) {
                        space.unmap(start, end - start);
                    }
                }
                space.map(addr, length, mapping.clone());
                if mapping.file != (0, 0) && self.names_left > 0 {
                    self.files_mapped.insert(mapping.name.clone(), mapping.file);
                }
                let event = if kind == what::BRK { RegionKind::Brk } else { RegionKind::Map };
                self.region(of(range(event), &mapping))
            }
            what::UNMAP => {
                self.space(process).unmap(addr, length);
                self.region(range(RegionKind::Unmap))
            }
            what::DETACH => {
                let Some((start, end, _)) = self.space(process).at(addr) else { return Ok(()) };
                self.space(process).unmap(start, end - start);
                let range =
                    RegionEvent { addr: start, length: end - start, ..range(RegionKind::Unmap) };
                self.region(range)
            }
            what::DONTNEED => self.region(range(RegionKind::DontNeed)),
            what::FREE => self.region(range(RegionKind::Free)),
            what::REMOVE => self.region(range(RegionKind::Remove)),
            what::REMAP => {
                let (flags, to) = (word(Event::Prot), word(Event::Device));
                self.remap(thread, [addr, length, word(Event::Offset)], to, flags)
            }
            what::FORKED => {
                let process = self.process();
                self.born.push(Born { order: addr, pid: length as u32, process });
                Ok(())
            }
            what::EXIT => {
                self.ending.push(thread);
                Ok(())
            }
            what::WAITED => {
                self.waited.push(addr as u32);
                Ok(())
            }
            what::UNSEEN => {
                self.unseen = Some(name);
                Ok(())
            }
            what::EXEC | what::EXEC_LOST => {
                let why = if kind == what::EXEC { NEVER_BEGAN } else { reason(addr) };
                let at = self.out.writer.records();
                self.exec.insert(thread, LostProgram { name, why, at });
                Ok(())
            }
            what::EXEC_FAILED => {
                self.exec.remove(&thread);
                Ok(())
            }
            what::FORK_LOST => {
                self.lost_forks += 1;
                Ok(())
            }
            _ => {
                self.forged();
                Ok(())
            }
        }
    }

    fn space(&mut self, process: u32) -> &mut Space {
        self.spaces.entry(process).or_default()
    }

    /// `mremap` of the first length of a range to the second, at `to`.
    fn remap(
        &mut self,
        thread: u32,
        [addr, old, new]: [u64; 3],
        to: u64,
        flags: u64,
    ) -> Result<()> {
        const DONTUNMAP: u64 = 4;
        let process = self.process_of[thread as usize];
        let space = self.spaces.entry(process).or_default();
        let range = |event, addr, length| {
            let known = RegionEvent { thread, event, addr, length, ..<_>::default() };
            move |mapping: Option<&Mapping>| match mapping {
                Some(mapping) => of(known, mapping),
                None => known,
            }
        };
        let source = space.at(addr).map(|(start, _, mapping)| mapping.after(addr - start));
        let kept = old.min(new);
        let mut events = Vec::new();
        if new < old {
            space.unmap(addr + new, old - new);
            events.push(range(RegionKind::Unmap, addr + new, old - new)(None));
        }
        if to != addr && kept > 0 {
            let before = space.pieces(addr, kept);
            space.shift(addr, kept, to);
            let moved = range(RegionKind::Move, addr, kept)(source.as_ref());
            events.push(RegionEvent { to, ..moved });
            if flags & DONTUNMAP != 0 {
                for (start, length, mapping) in before {
                    events.push(range(RegionKind::Map, start, length)(Some(&mapping)));
                    space.map(start, length, mapping);
                }
            }
        }
        if new > old {
            // A range of no length is a second mapping of what is shared there.
            let mapping = source.map(|mapping| mapping.after(old));
            events.push(range(RegionKind::Map, to + old, new - old)(mapping.as_ref()));
            if let Some(mapping) = mapping {
                space.map(to + old, new - old, mapping);
            }
        }
        events.into_iter().try_for_each(|event| self.region(event))
    }
}

const HEAP: &str = "[heap]";

/// Why a program ran unrecorded that QEMU was to run in the place of another.
const NEVER_BEGAN: &str = "QEMU could not load it, or the plugin";

/// Why a program ran unrecorded, as the plugin says it.
fn reason(code: u64) -> &'static str {
    match code {
        lost::UNREADABLE => "its file cannot be read",
        lost::ARGUMENTS => "its arguments cannot be read",
        lost::REACH => "QEMU and the plugin are out of its reach after a change of user or root",
        lost::START => "QEMU could not be started in its place",
        _ => "not a program for this QEMU",
    }
}

/// Whether the ranges of an event of this kind are some that there can be.
fn in_memory(kind: u64, fixed: &[u64]) -> bool {
    let word = |index: Event| fixed[index as usize];
    let fits = |addr: u64, bytes: u64| addr.checked_add(bytes).is_some();
    let (addr, length) = (word(Event::Addr), word(Event::Length));
    match kind {
        what::MAP | what::BRK | what::UNMAP | what::DONTNEED | what::FREE | what::REMOVE => {
            fits(addr, length)
        }
        what::REMAP => {
            let (new, to) = (word(Event::Offset), word(Event::Device));
            fits(addr, length.max(new)) && fits(to, length.max(new))
        }
        _ => true,
    }
}

/// The event with what is mapped there.
fn of(event: RegionEvent, mapping: &Mapping) -> RegionEvent {
    let Mapping { offset, prot, name, file: (device, inode) } = mapping;
    let (prot, name) = (Rc::clone(prot).to_string(), Rc::clone(name).to_string());
    RegionEvent { offset: *offset, prot, name, device: *device, inode: *inode, ..event }
}

/// Rights as a region event has them.
fn letters(prot: u64) -> String {
    let rights = [(1, 'r'), (2, 'w'), (4, 'x')].iter();
    let rights = rights.map(|(bit, letter)| if prot & bit != 0 { *letter } else { '-' });
    rights.chain([if prot & SHARED != 0 { 's' } else { 'p' }]).collect()
}

/// Tag of a word that is neither a reference nor a block, and how many words follow it.
pub(crate) fn control_word(word: u64) -> (u64, usize) {
    ((word & !CONTROL) >> 56, (word & ((1 << 56) - 1)) as usize)
}

/// A length in bytes, then the bytes, eight to a word.
fn text(words: &[u64]) -> String {
    let Some((length, words)) = words.split_first() else { return String::new() };
    let words = &words[..words.len().min(MAX_NAME / 8)];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.truncate(*length as usize);
    String::from_utf8_lossy(&bytes).into_owned()
}
