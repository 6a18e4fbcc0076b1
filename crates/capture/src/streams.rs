//! All streams of one capture: finds new ones, and reads them in an order that respects the events
//! of their address spaces. A stream is the ring of words in shared memory that one guest thread writes.
//! A fence encloses an event, such as `munmap`; its ticket is a serial number (`layout.rs`).
//!
//! A turn (`Streams::drain`) first notes how far each stream has been written. It then scans for fences,
//! and so finds every fence that precedes a word below the noted positions. It commits complete fences to
//! the trace in order of their tickets, each after the words that precede it. Then it reads each stream up
//! to its first pending fence.

mod commit;
mod endings;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use nearfar_trace::{Error, RegionKind, Result, Writer};

use crate::expand::Position;
use crate::fences::{Fences, Lookahead};
use crate::layout::{Slot, origin, state};
use crate::recording::{ForkedChild, Recording};
use crate::shared::{Shared, StreamReader};
use crate::vm::{Ports, Vm};

/// The receiver's view of an occupied slot.
struct Stream<'a> {
    pid: u32,
    position: Position,
    reader: StreamReader<'a>,
    lookahead: Lookahead,
}

/// A process that has not ended.
struct Process {
    /// Its number in the trace; a pid can be reused.
    number: u32,
    streams: u32,
    last_thread: u32,
    /// It has called `exit_group`, or its last thread `exit`.
    ending: bool,
    fences: Fences,
}

/// How far a stream had been written when a turn began.
struct Progress {
    order: u64,
    position: u64,
    /// The stream is complete.
    closed: bool,
}

/// The writers that remain after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remaining {
    None,
    Open,
    /// A process is about to end. Its end does not ring the bell (a futex that wakes the receiver).
    Ending,
}

/// Whether the process with this pid has ended, perhaps without closing its streams. The result may
/// be out of date unless the second argument is true.
pub(crate) type IsGone<'f> = dyn FnMut(u32, bool) -> bool + 'f;

pub(crate) struct Streams<'a> {
    shared: &'a Shared,
    pub(crate) recording: Recording<'a>,
    /// By order: the serial number of opening.
    streams: BTreeMap<u64, Stream<'a>>,
    /// The order of the stream in each slot.
    slots: Vec<Option<u64>>,
    /// The thread of every stream so far, by order.
    threads: HashMap<u64, u32>,
    processes: BTreeMap<u32, Process>,
    /// Number of fences found so far.
    fences_found: u64,
    pub(crate) follows_children: bool,
    /// The program has begun.
    began: bool,
    /// The pages that are resident when recording begins are still to be recorded.
    resident_pending: bool,
    /// Scratch: a copy of words of a ring.
    words: Vec<u64>,
}

/// Maximum number of a process's fences that are not in the trace yet: more than its rings can hold, as
/// a fence has two words for each other stream of the process.
const MAX_FENCES: usize = 1 << 19;

impl<'a> Streams<'a> {
    /// With `resident`, a late recording begins with the pages that are resident by then.
    pub(crate) fn new(
        shared: &'a Shared,
        recording: Recording<'a>,
        follows_children: bool,
        resident: bool,
    ) -> Self {
        let resident_pending = resident && !recording.out.has_begun();
        Self {
            shared,
            recording,
            resident_pending,
            streams: BTreeMap::new(),
            slots: Vec::new(),
            threads: HashMap::new(),
            processes: BTreeMap::new(),
            fences_found: 0,
            follows_children,
            began: false,
            words: Vec::new(),
        }
    }

    /// Record the pages that are resident already, once a late recording begins.
    pub(crate) fn record_resident(&mut self) -> Result<()> {
        if self.resident_pending && self.recording.out.has_begun() {
            self.resident_pending = false;
            let base = self.shared.header().base.load(Relaxed);
            for (&pid, process) in &self.processes {
                self.recording.already_resident(process.number, process.last_thread, pid, base)?;
            }
        }
        Ok(())
    }

    /// Record the regions of a virtual machine's RAM and, if recording begins late, the pages
    /// touched already.
    pub(crate) fn begin_vm(&mut self, vm: &Vm, ports: &Ports) -> Result<()> {
        let late = std::mem::take(&mut self.resident_pending);
        self.recording.map_ram(&vm.ranges(), ports.reports.regions())?;
        if late {
            let touched = ports
                .touched(vm)
                .map_err(|e| Error::io(Path::new("memory"), "cannot be read", &e))?;
            self.recording.touched_ram(&touched)?;
        }
        Ok(())
    }

    pub(crate) fn has_processes(&self) -> bool {
        !self.processes.is_empty()
    }

    pub(crate) fn began(&self) -> bool {
        self.began || self.recording.began
    }

    pub(crate) fn stopped(&self) -> bool {
        self.recording.out.stopped
    }

    /// Read all published words.
    pub(crate) fn drain(
        &mut self,
        program_pid: u32,
        is_gone: &mut IsGone<'_>,
    ) -> Result<Remaining> {
        self.began |= self.shared.header().started.load(Relaxed) != 0;
        self.stop_if_forged(program_pid);
        self.discover()?;
        let progress = self.progress(is_gone);
        self.scan(&progress);
        self.commit_fences(is_gone)?;
        // If a process waited for the end of another, its words follow those of all programs that the
        // other executed (`execve`). Each turn of the loop begins the next of these programs.
        while !self.stopped() && self.begin_successors()? {
            self.scan(&[]);
            self.commit_fences(is_gone)?;
        }
        let mut complete = Vec::new();
        for Progress { order, position, closed } in progress {
            self.read(order, position.min(self.limit(order)))?;
            let all = self.streams.get(&order).is_some_and(|s| s.reader.taken() == position);
            if closed && all {
                complete.push(order);
            }
        }
        self.end_streams(complete)?;
        self.end_processes(is_gone)?;
        Ok(if self.streams.is_empty() && self.processes.is_empty() {
            Remaining::None
        } else if self.processes.values().any(|process| process.ending) {
            Remaining::Ending
        } else {
            Remaining::Open
        })
    }

    /// Stop recording if the program, not the QEMU plugin, has written to the shared memory.
    fn stop_if_forged(&mut self, program_pid: u32) {
        let expected =
            self.follows_children || self.processes.keys().all(|pid| *pid == program_pid);
        let few_fences = self.processes.values().all(|process| process.fences.len() <= MAX_FENCES);
        let sound = self.streams.values().all(|stream| !stream.reader.is_forged());
        if self.stopped() {
            // Set the stop word again, in case the program has cleared it: no writer must wait.
            self.recording.out.stop(None);
        } else if !(expected && sound && few_fences && self.shared.is_sound()) {
            self.recording.stop_forged();
        }
    }

    /// How far a stream has been written.
    fn position(&self, reader: &StreamReader<'_>) -> u64 {
        // Once recording has stopped, writers do not wait for room: they may be more than a ring ahead,
        // which `published` rejects.
        if self.stopped() { reader.slot().position() } else { reader.published() }
    }

    /// Add the streams that can be read now.
    fn discover(&mut self) -> Result<()> {
        let used = self.shared.header().used.load(Acquire) as usize;
        let slots = &self.shared.slots()[..used.min(self.shared.slots().len())];
        self.slots.resize(slots.len(), None);
        let mut new: Vec<(u64, usize)> = (slots.iter().enumerate())
            .filter(|(index, slot)| self.slots[*index].is_none() && is_occupied(slot))
            .map(|(index, slot)| (slot.order.load(Relaxed), index))
            .collect();
        new.sort_unstable();
        for (order, index) in new {
            let slot = &slots[index];
            let (pid, parent) = (slot.pid.load(Relaxed), slot.parent.load(Relaxed));
            let child = matches!(slot.origin.load(Relaxed), origin::FORK | origin::VFORK);
            let waits = match slot.origin.load(Relaxed) {
                // The parent's stream, if it still exists, announces the child.
                _ if child => !self.stopped() && slots.iter().any(|slot| has_order(slot, parent)),
                // The previous program of the process comes first.
                origin::PROGRAM => slots.iter().any(|slot| is_earlier(slot, pid, order)),
                _ => false,
            };
            if waits {
                continue;
            }
            let known = self.processes.get(&pid).map(|process| process.number);
            let known = known.filter(|_| !child);
            let process = known.unwrap_or_else(|| self.recording.new_process());
            if child {
                if let Some(&thread) = self.threads.get(&parent)
                    && !self.stopped()
                {
                    self.recording.fork(thread, process, fork_kind(slot))?;
                }
            } else if slot.origin.load(Relaxed) == origin::PROGRAM {
                self.recording.begin_program(process);
            }
            self.begin(index, order, pid, process)?;
        }
        Ok(())
    }

    fn begin(&mut self, index: usize, order: u64, pid: u32, number: u32) -> Result<()> {
        if self.threads.contains_key(&order) || self.slots[index].is_some() {
            // Orders are unique: one that repeats is forged.
            self.recording.stop_forged();
            return Ok(());
        }
        let thread = self.recording.new_thread(number)?;
        let process = self.processes.entry(pid).or_insert_with(|| Process {
            number,
            streams: 0,
            last_thread: thread,
            ending: false,
            fences: Fences::new(),
        });
        process.number = number;
        process.streams += 1;
        process.last_thread = thread;
        self.slots[index] = Some(order);
        self.threads.insert(order, thread);
        // SAFETY: the stream was not known, so it has no other reader.
        let reader = unsafe { self.shared.stream_reader(index) };
        let (position, lookahead) = (Position::new(thread), Lookahead::default());
        self.streams.insert(order, Stream { pid, position, reader, lookahead });
        Ok(())
    }

    fn progress(&self, is_gone: &mut IsGone<'_>) -> Vec<Progress> {
        // Load the states before the positions: once a process is gone, its last words are visible,
        // and so are those that others wrote before its end.
        let mut is_closed = |stream: &Stream<'_>| {
            let ending = self.processes.get(&stream.pid).is_some_and(|process| process.ending);
            stream.reader.slot().state.load(Acquire) == state::CLOSED || is_gone(stream.pid, ending)
        };
        let closed: Vec<bool> = self.streams.values().map(&mut is_closed).collect();
        let positions = self.positions().into_iter().zip(closed);
        positions.map(|((order, position), closed)| Progress { order, position, closed }).collect()
    }

    /// Scan for fences, unless all fences are known and complete. The end of a closed stream of
    /// `progress` ends its open fence.
    fn scan(&mut self, progress: &[Progress]) {
        let incomplete = |process: &Process| process.fences.values().any(|f| f.end.is_none());
        let missing = self.shared.header().tickets.load(Acquire) != self.fences_found;
        if self.stopped() || !missing && !self.processes.values().any(incomplete) {
            return;
        }
        let orders: Vec<u64> = self.streams.keys().copied().collect();
        orders.into_iter().for_each(|order| self.scan_stream(order, u64::MAX));
        for Progress { order, closed, .. } in progress {
            let Some(stream) = self.streams.get_mut(order).filter(|_| *closed) else { continue };
            let Some(process) = self.processes.get_mut(&stream.pid) else { continue };
            stream.lookahead.close(&mut process.fences);
        }
    }

    /// Scan one stream for fences, up to position `until`.
    fn scan_stream(&mut self, order: u64, until: u64) {
        let Some(stream) = self.streams.get_mut(&order) else { return };
        let Some(process) = self.processes.get_mut(&stream.pid) else { return };
        let reader = (order, &stream.reader);
        self.fences_found +=
            stream.lookahead.scan(reader, until, &mut self.words, &mut process.fences);
        if stream.lookahead.is_forged() {
            self.recording.stop_forged();
        }
    }

    /// Read a stream up to position `until`.
    fn read(&mut self, order: u64, until: u64) -> Result<()> {
        let stopped = self.stopped();
        let Some(stream) = self.streams.get_mut(&order) else { return Ok(()) };
        let Stream { reader, position, pid, .. } = stream;
        let pid = *pid;
        if stopped {
            reader.skip_to(until.min(reader.slot().position()));
            return Ok(());
        }
        reader.drain(until, &mut self.words, |words| self.recording.expand(words, position))?;
        if !self.recording.ending.is_empty() {
            self.recording.ending.clear();
            if let Some(process) = self.processes.get_mut(&pid) {
                process.ending = true;
            }
        }
        for child in std::mem::take(&mut self.recording.forked) {
            self.begin_child(order, &child)?;
        }
        Ok(())
    }

    /// Begin the first stream of a forked child.
    fn begin_child(&mut self, parent: u64, child: &ForkedChild) -> Result<()> {
        let slots = self.shared.slots();
        let Some(index) = slots.iter().position(|slot| has_order(slot, child.order)) else {
            return Ok(());
        };
        if self.slots.len() <= index {
            self.slots.resize(index + 1, None);
        }
        self.recording.fork(self.threads[&parent], child.process, fork_kind(&slots[index]))?;
        self.begin(index, child.order, child.pid, child.process)?;
        self.scan_stream(child.order, u64::MAX);
        Ok(())
    }

    pub(crate) fn into_writer(self) -> Writer {
        self.recording.out.writer
    }
}

fn is_occupied(slot: &Slot) -> bool {
    matches!(slot.state.load(Acquire), state::OPEN | state::CLOSED)
}

/// Whether a slot is a stream of process `pid` that was opened before `order`.
fn is_earlier(slot: &Slot, pid: u32, order: u64) -> bool {
    is_occupied(slot) && slot.pid.load(Relaxed) == pid && slot.order.load(Relaxed) < order
}

/// Whether a slot is the stream with this order.
fn has_order(slot: &Slot, order: u64) -> bool {
    slot.order.load(Relaxed) == order && slot.state.load(Acquire) != state::FREE
}

/// How a child process was created.
fn fork_kind(slot: &Slot) -> RegionKind {
    match slot.origin.load(Relaxed) {
        origin::VFORK => RegionKind::Vfork,
        _ => RegionKind::Fork,
    }
}
