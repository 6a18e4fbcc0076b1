//! All streams of one capture: finds new ones, drains them in turn, turns events into regions.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use nearfar_trace::{Batch, Narrow, RegionEvent, RegionKind, Result, Writer};

use crate::expand::{Expander, Position, Sink};
use crate::layout::{CONTROL, Event, OTHER, Slot, state, tag, what};
use crate::shared::{ReadingEnd, Shared};
use crate::transfer::Files;

/// What the reader knows of an occupied slot.
struct Stream<'a> {
    order: u64,
    pid: u32,
    position: Position,
    end: ReadingEnd<'a>,
}

/// The receiver's state.
pub(crate) struct Streams<'a> {
    shared: &'a Shared,
    out: Output<'a>,
    expander: Expander,
    batch: Batch,
    events: Vec<RegionEvent>,
    files: Files,
    streams: Vec<Option<Stream<'a>>>,
    threads: u32,
    /// Process numbers by process id; a process id can be used again.
    processes: HashMap<u32, u32>,
    process_count: u32,
    /// An `execve` not yet known to have succeeded, by thread.
    exec: HashMap<u32, RegionEvent>,
    /// Programs that ran unrecorded, in order.
    pub(crate) lost_programs: Vec<String>,
    /// Child processes that ran unrecorded.
    pub(crate) lost_forks: u64,
}

/// Where the records go, cut where `--skip-refs` and `--max-refs` say. What is left out at the
/// beginning is no part of the trace: a thread's first record has the gap since the one before it.
struct Output<'a> {
    shared: &'a Shared,
    writer: Writer,
    /// Records still to be left out, by `--skip-refs`, before the first that is kept.
    skip: u64,
    max: u64,
    /// `--max-refs` was reached.
    full: bool,
}

impl Output<'_> {
    /// Which of `records` further ones are wanted.
    fn wanted(&mut self, records: usize) -> Range<usize> {
        let start = self.skip.min(records as u64);
        self.skip -= start;
        let (records, left) = (records as u64 - start, self.max - self.writer.records());
        if records >= left {
            self.full = true;
            self.shared.header().stop.store(1, SeqCst);
        }
        start as usize..(start + left.min(records)) as usize
    }
}

impl Sink for Output<'_> {
    fn narrow(&mut self, records: Narrow<'_>) -> Result<()> {
        let wanted = self.wanted(records.len());
        self.writer.push_narrow(records.part(wanted))
    }

    fn wide(&mut self, records: &mut Batch) -> Result<()> {
        records.keep(self.wanted(records.len()));
        let pushed = self.writer.push_batch(records);
        records.clear();
        pushed
    }
}

impl<'a> Streams<'a> {
    pub(crate) fn new(
        shared: &'a Shared,
        writer: Writer,
        fetch: bool,
        skip: u64,
        max: Option<u64>,
    ) -> Self {
        Self {
            shared,
            out: Output { shared, writer, skip, max: max.unwrap_or(u64::MAX), full: false },
            expander: Expander::new(fetch),
            batch: Batch::default(),
            events: Vec::new(),
            files: Files::default(),
            streams: Vec::new(),
            threads: 0,
            processes: HashMap::new(),
            process_count: 0,
            exec: HashMap::new(),
            lost_programs: Vec::new(),
            lost_forks: 0,
        }
    }

    /// Whether the records to leave out have not all come yet.
    pub(crate) fn skipping(&self) -> bool {
        self.out.skip > 0
    }

    /// Whether `--max-refs` was reached.
    pub(crate) fn full(&self) -> bool {
        self.out.full
    }

    /// Records so far.
    pub(crate) fn records(&self) -> u64 {
        self.out.writer.records()
    }

    /// Take everything that is there. `gone` says which processes have ended without closing
    /// their streams. Returns whether a stream is still open.
    pub(crate) fn drain(&mut self, gone: &mut dyn FnMut(u32) -> bool) -> Result<bool> {
        let used = self.shared.header().used.load(Acquire) as usize;
        let slots = &self.shared.slots()[..used.min(self.shared.slots().len())];
        self.streams.resize_with(slots.len(), || None);
        let mut fresh: Vec<usize> = (0..slots.len())
            .filter(|&index| self.streams[index].is_none() && occupied(&slots[index]))
            .collect();
        fresh.sort_by_key(|&index| slots[index].order.load(Relaxed));
        for index in fresh {
            self.begin(index, &slots[index])?;
        }
        // In the order of their threads, whatever slots they have.
        let mut order: Vec<(u64, usize)> = (self.streams.iter().enumerate())
            .filter_map(|(index, stream)| Some((stream.as_ref()?.order, index)))
            .collect();
        order.sort_unstable();
        let mut open = false;
        for (_, index) in order {
            let Some(mut stream) = self.streams[index].take() else { continue };
            // Asked before the words are taken: what a process wrote last is there once it is gone.
            let slot = stream.end.slot();
            let closed = slot.state.load(Acquire) == state::CLOSED || gone(stream.pid);
            stream.end.drain(|words| match self.out.full {
                true => Ok(()),
                false => self.expand(words, &mut stream.position),
            })?;
            if closed {
                self.end(stream)?;
            } else {
                open = true;
                self.streams[index] = Some(stream);
            }
        }
        Ok(open)
    }

    fn begin(&mut self, index: usize, slot: &Slot) -> Result<()> {
        let (pid, parent) = (slot.pid.load(Relaxed), slot.parent.load(Relaxed));
        let thread = self.threads;
        self.threads += 1;
        if parent != 0 || !self.processes.contains_key(&pid) {
            self.process_count += 1;
            self.processes.insert(pid, self.process_count);
        }
        let process = self.processes[&pid];
        self.streams[index] = Some(Stream {
            order: slot.order.load(Relaxed),
            pid,
            position: Position::new(thread),
            // SAFETY: the stream was not known, so there is no other.
            end: unsafe { self.shared.reading_end(index) },
        });
        if self.out.full {
            return Ok(());
        }
        self.out.writer.thread_process(thread, process);
        if parent != 0 {
            self.region(thread, RegionKind::Fork, [0; 3], "", &format!("process {process}"))?;
        }
        self.region(thread, RegionKind::ThreadStart, [0; 3], "", "")
    }

    /// The stream is over and everything of it taken.
    fn end(&mut self, stream: Stream<'a>) -> Result<()> {
        stream.end.free();
        let thread = stream.position.thread;
        if let Some(event) = self.exec.remove(&thread) {
            self.out.writer.region(event)?;
        }
        if self.out.full {
            return Ok(());
        }
        self.out.writer.add_instructions(thread, stream.position.rest());
        self.region(thread, RegionKind::ThreadExit, [0; 3], "", "")
    }

    fn expand(&mut self, mut words: &[u64], position: &mut Position) -> Result<()> {
        let blocks = self.shared.blocks();
        while !words.is_empty() && !self.out.full {
            let step = self.expander.expand(words, blocks, position, &mut self.out)?;
            words = &words[step..];
            // The expansion stops at words that are neither references nor blocks.
            if let [word, rest @ ..] = words
                && *word >= OTHER
            {
                let length = ((word & ((1 << 56) - 1)) as usize).min(rest.len());
                let (record, rest) = rest.split_at(length);
                self.control((word & !CONTROL) >> 56, record, position)?;
                words = rest;
            }
        }
        Ok(())
    }

    fn control(&mut self, kind: u64, words: &[u64], position: &mut Position) -> Result<()> {
        match kind {
            tag::TRANSFER => {
                self.files.expand(words, position, &mut self.batch, &mut self.events);
                // Ranges are announced before the records that use them are written: a reader
                // that replays events by position then knows them in time.
                for event in std::mem::take(&mut self.events) {
                    self.out.writer.region(event)?;
                }
                self.out.wide(&mut self.batch)?;
            }
            tag::FILE => {
                if let [device, inode, rest @ ..] = words {
                    self.files.name(*device, *inode, text(rest));
                }
            }
            tag::EVENT => self.event(words, position)?,
            _ => {}
        }
        Ok(())
    }

    fn event(&mut self, words: &[u64], position: &mut Position) -> Result<()> {
        let Some((fixed, name)) = words.split_at_checked(Event::Name as usize) else {
            return Ok(());
        };
        let thread = position.thread;
        let name = text(name);
        let range = [
            fixed[Event::Addr as usize],
            fixed[Event::Length as usize],
            fixed[Event::Offset as usize],
        ];
        let prot = fixed[Event::Prot as usize];
        let prot: String = [(1, 'r'), (2, 'w'), (4, 'x')]
            .iter()
            .map(|(bit, letter)| if prot & bit != 0 { *letter } else { '-' })
            .collect();
        match fixed[Event::What as usize] {
            what::MAP => self.region(thread, RegionKind::Map, range, &prot, &name),
            what::UNMAP => self.region(thread, RegionKind::Unmap, range, "", ""),
            what::BRK => self.region(thread, RegionKind::Brk, range, &prot, &name),
            kind @ (what::EXEC | what::EXEC_LOST) => {
                if kind == what::EXEC_LOST {
                    self.lost_programs.push(name.clone());
                }
                let at = self.records();
                let event = event_of(at, thread, RegionKind::Exec, range, "", &name);
                self.exec.insert(thread, event);
                Ok(())
            }
            what::EXEC_FAILED => {
                if let Some(event) = self.exec.remove(&thread)
                    && self.lost_programs.last() == Some(&event.name)
                {
                    self.lost_programs.pop();
                }
                Ok(())
            }
            what::FORK_LOST => {
                self.lost_forks += 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn region(
        &mut self,
        thread: u32,
        event: RegionKind,
        range: [u64; 3],
        prot: &str,
        name: &str,
    ) -> Result<()> {
        let at = self.records();
        self.out.writer.region(event_of(at, thread, event, range, prot, name))
    }

    /// Everything has been drained: give the writer back.
    pub(crate) fn into_writer(self) -> Writer {
        self.out.writer
    }
}

fn event_of(
    at: u64,
    thread: u32,
    event: RegionKind,
    range: [u64; 3],
    prot: &str,
    name: &str,
) -> RegionEvent {
    let [addr, length, offset] = range;
    let (prot, name) = (prot.into(), name.into());
    RegionEvent { at, thread, event, addr, length, offset, prot, name, ..RegionEvent::default() }
}

fn occupied(slot: &Slot) -> bool {
    matches!(slot.state.load(Acquire), state::OPEN | state::CLOSED)
}

/// A length in bytes, then the bytes, eight to a word.
fn text(words: &[u64]) -> String {
    let Some((length, words)) = words.split_first() else { return String::new() };
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.truncate(*length as usize);
    String::from_utf8_lossy(&bytes).into_owned()
}
