//! All streams of one capture: finds new ones, drains them in turn, turns events into regions.

use std::collections::HashMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use nearfar_trace::column::ROW_GROUP;
use nearfar_trace::{Batch, RegionEvent, RegionKind, Result, Writer};

use crate::expand::{Position, expand};
use crate::layout::{CHUNK, CONTROL, Event, RING, Slot, state, tag, what};
use crate::shared::{Shared, wake};
use crate::transfer::Files;

const WORDS: usize = RING / 8;
/// Words expanded at a time: few enough to stay in the processor's cache.
const ENOUGH: usize = 1 << 13;

/// What the reader knows of an occupied slot.
struct Stream {
    order: u64,
    pid: u32,
    position: Position,
    /// Index in the ring of the next word to take.
    next: usize,
}

/// The receiver's state.
pub(crate) struct Streams<'a> {
    shared: &'a Shared,
    writer: Writer,
    fetch: bool,
    most: u64,
    /// Records still to be left out before the first that is kept.
    pub(crate) skip: u64,
    batch: Batch,
    events: Vec<RegionEvent>,
    files: Files,
    streams: Vec<Option<Stream>>,
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
    /// `--max-refs` was reached.
    pub(crate) full: bool,
}

impl<'a> Streams<'a> {
    pub(crate) fn new(
        shared: &'a Shared,
        writer: Writer,
        fetch: bool,
        skip: u64,
        most: Option<u64>,
    ) -> Self {
        Self {
            shared,
            writer,
            fetch,
            most: most.unwrap_or(u64::MAX),
            skip,
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
            full: false,
        }
    }

    /// Records so far.
    pub(crate) fn records(&self) -> u64 {
        self.writer.records() + self.batch.len() as u64
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
            let slot = &slots[index];
            let Some(mut stream) = self.streams[index].take() else { continue };
            // Asked before the words are taken: what a process wrote last is there once it is gone.
            let closed = slot.state.load(Acquire) == state::CLOSED || gone(stream.pid);
            self.take(index, slot, &mut stream)?;
            if closed {
                self.end(stream)?;
                slot.state.store(state::FREE, Release);
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
            next: 0,
        });
        if self.full {
            return Ok(());
        }
        self.writer.thread_process(thread, process);
        if parent != 0 {
            self.region(thread, RegionKind::Fork, [0; 3], "", &format!("process {process}"))?;
        }
        self.region(thread, RegionKind::ThreadStart, [0; 3], "", "")
    }

    fn end(&mut self, stream: Stream) -> Result<()> {
        let thread = stream.position.thread;
        if let Some(event) = self.exec.remove(&thread) {
            self.flush()?;
            self.writer.region(event)?;
        }
        if self.full {
            return Ok(());
        }
        self.flush()?;
        self.writer.add_instructions(thread, stream.position.rest());
        self.region(thread, RegionKind::ThreadExit, [0; 3], "", "")
    }

    /// Take what the writer of `slot` has published.
    fn take(&mut self, index: usize, slot: &Slot, stream: &mut Stream) -> Result<()> {
        let shared = self.shared;
        let offset = slot.cursor.load(Acquire).wrapping_sub(slot.ring.load(Relaxed));
        let until = (offset / 8) as usize % WORDS;
        while stream.next != until {
            let end = if until > stream.next { until } else { WORDS };
            // A chunk at a time, so that the writer soon has room again.
            let end = end.min((stream.next / (CHUNK / 8) + 1) * (CHUNK / 8));
            // SAFETY: published, and `taken` is only moved on afterwards.
            let words = unsafe { shared.words(index, stream.next, end) };
            if !self.full {
                self.expand(words, &mut stream.position)?;
            }
            slot.taken.fetch_add((end - stream.next) as u64, SeqCst);
            if slot.waiting.load(SeqCst) != 0 {
                slot.room.fetch_add(1, SeqCst);
                wake(&slot.room);
            }
            stream.next = end % WORDS;
        }
        Ok(())
    }

    fn expand(&mut self, mut words: &[u64], position: &mut Position) -> Result<()> {
        let blocks = self.shared.blocks();
        while !words.is_empty() {
            let few = &words[..words.len().min(ENOUGH)];
            let step = if self.fetch {
                expand::<true>(few, blocks, position, &mut self.batch)
            } else {
                expand::<false>(few, blocks, position, &mut self.batch)
            };
            words = &words[step..];
            // The expansion stops at words that are neither references nor blocks.
            if let [word, rest @ ..] = words
                && step < few.len()
            {
                let length = ((word & ((1 << 56) - 1)) as usize).min(rest.len());
                let (record, rest) = rest.split_at(length);
                self.control((word & !CONTROL) >> 56, record, position)?;
                words = rest;
            }
            if self.skip > 0 {
                self.leave_out();
            }
            // A whole row group is what the writer takes without copying.
            if self.batch.len() >= ROW_GROUP || self.records() >= self.most {
                self.flush()?;
            }
            if self.full {
                break;
            }
        }
        Ok(())
    }

    /// Forget the records that `--skip-refs` leaves out. What their threads executed is no part of
    /// the trace either: a thread's first record has the gap since the one before it.
    fn leave_out(&mut self) {
        let left_out = (self.batch.len() as u64).min(self.skip);
        self.skip -= left_out;
        let count = left_out as usize;
        self.batch.addr.drain(..count);
        self.batch.kind.drain(..count);
        self.batch.size.drain(..count);
        self.batch.thread.drain(..count);
        self.batch.instr.drain(..count);
    }

    fn control(&mut self, kind: u64, words: &[u64], position: &mut Position) -> Result<()> {
        match kind {
            tag::TRANSFER => {
                self.files.expand(words, position, &mut self.batch, &mut self.events);
                // Ranges are announced before the records that use them are written: a reader
                // that replays events by position then knows them in time.
                for event in std::mem::take(&mut self.events) {
                    self.writer.region(event)?;
                }
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
        self.writer.region(event_of(at, thread, event, range, prot, name))
    }

    /// Hand over what is ready, cut where `--max-refs` says.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let left = self.most.saturating_sub(self.writer.records());
        if self.batch.len() as u64 >= left {
            let left = left as usize;
            self.batch.addr.truncate(left);
            self.batch.kind.truncate(left);
            self.batch.size.truncate(left);
            self.batch.thread.truncate(left);
            self.batch.instr.truncate(left);
            self.full = true;
            self.shared.header().stop.store(1, SeqCst);
        }
        if !self.batch.is_empty() {
            self.writer.take_batch(&mut self.batch)?;
        }
        Ok(())
    }

    /// Everything has been drained: give the writer back.
    pub(crate) fn into_writer(mut self) -> Result<Writer> {
        self.flush()?;
        Ok(self.writer)
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
    RegionEvent { at, thread, event, addr, length, offset, prot: prot.into(), name: name.into() }
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
