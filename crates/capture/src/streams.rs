//! All streams of one capture: finds new ones, and takes from them in an order that is true to the
//! events of their address spaces.
//!
//! A turn first notes how far each stream has come, then looks for moments (`layout.rs`): whatever
//! was written after one of them, up to the noted positions, finds it. Moments that are over go into
//! the trace by their tickets, each after what it says comes before; then the rest is taken, up to the
//! first moment that had to wait.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use nearfar_trace::{RegionKind, Result, Writer};

use crate::events::{Born, Recording};
use crate::expand::Position;
use crate::layout::{Slot, origin, state};
use crate::moments::{Ahead, Moments};
use crate::shared::{ReadingEnd, Shared};

/// What the reader knows of an occupied slot.
struct Stream<'a> {
    pid: u32,
    position: Position,
    end: ReadingEnd<'a>,
    ahead: Ahead,
}

/// A process that has not ended.
struct Process {
    /// Its number in the trace; a process id can be used again.
    number: u32,
    /// Its streams.
    streams: u32,
    /// The thread that began last.
    last: u32,
    /// It has asked to be ended.
    ending: bool,
    moments: Moments,
}

/// How far a stream had come when a turn began.
struct Reached {
    order: u64,
    position: u64,
    /// Nothing more will come.
    closed: bool,
}

/// What is left after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nobody writes any more.
    Nothing,
    /// Somebody does.
    Open,
    /// Somebody does, and a process is about to end, which rings no bell.
    Ending,
}

/// The receiver's state.
pub(crate) struct Streams<'a> {
    shared: &'a Shared,
    pub(crate) recording: Recording<'a>,
    /// By order of opening.
    streams: BTreeMap<u64, Stream<'a>>,
    /// The order of the stream in each slot.
    slots: Vec<Option<u64>>,
    /// The thread of every stream that ever was, by order.
    threads: HashMap<u64, u32>,
    processes: BTreeMap<u32, Process>,
    /// Moments found so far.
    found: u64,
    /// Child processes are recorded as well.
    follows: bool,
    /// The program has been seen to begin.
    began: bool,
    /// Words that are looked at: copies of what is in a ring.
    words: Vec<u64>,
}

/// Largest number of moments that are not in the trace yet: more than rings can hold, with the events
/// that belong to them.
const MAX_MOMENTS: usize = 1 << 17;

impl<'a> Streams<'a> {
    pub(crate) fn new(shared: &'a Shared, recording: Recording<'a>, follows: bool) -> Self {
        Self {
            shared,
            recording,
            streams: BTreeMap::new(),
            slots: Vec::new(),
            threads: HashMap::new(),
            processes: BTreeMap::new(),
            found: 0,
            follows,
            began: false,
            words: Vec::new(),
        }
    }

    /// Whether child processes are recorded as well.
    pub(crate) fn follows(&self) -> bool {
        self.follows
    }

    /// Whether the program has begun.
    pub(crate) fn began(&self) -> bool {
        self.began || self.recording.began
    }

    /// Whether the records to leave out have not all come yet.
    pub(crate) fn skipping(&self) -> bool {
        self.recording.out.skip > 0
    }

    /// Whether `--max-refs` was reached.
    pub(crate) fn full(&self) -> bool {
        self.recording.out.full
    }

    /// Records so far.
    pub(crate) fn records(&self) -> u64 {
        self.recording.out.writer.records()
    }

    /// Take everything that is there. `gone` says which processes have ended without closing
    /// their streams; it may answer late, but where its second argument says that it matters. The
    /// program's process is `first`.
    pub(crate) fn drain(
        &mut self,
        first: u32,
        gone: &mut dyn FnMut(u32, bool) -> bool,
    ) -> Result<Left> {
        self.began |= self.shared.header().started.load(Relaxed) != 0;
        self.distrust(first);
        self.discover()?;
        let reached = self.reached(gone);
        self.look(&reached);
        self.settle(gone)?;
        // What another process wrote after it waited for one that became another program comes
        // after what that does.
        while !self.full() && self.succeed()? {
            self.look(&[]);
            self.settle(gone)?;
        }
        let mut over = Vec::new();
        for Reached { order, position, closed } in reached {
            let until = position.min(self.limit(order));
            self.take(order, until)?;
            let all = self.streams.get(&order).is_some_and(|s| s.end.taken() == position);
            if closed && all {
                over.push(order);
            }
        }
        self.end_all(over)?;
        self.end_processes(gone)?;
        let ending = self.processes.values().any(|process| process.ending);
        Ok(match (self.streams.is_empty() && self.processes.is_empty(), ending) {
            (true, _) => Left::Nothing,
            (false, true) => Left::Ending,
            (false, false) => Left::Open,
        })
    }

    /// Stop recording if something shows that the program has written here itself.
    fn distrust(&mut self, first: u32) {
        let full = self.full();
        let alone = self.follows || self.processes.keys().all(|pid| *pid == first);
        let moments: usize = self.processes.values().map(|process| process.moments.len()).sum();
        let sound = self.streams.values().all(|stream| !stream.end.is_forged());
        if full {
            // Nobody shall wait for us, whatever has become of that word.
            self.recording.out.stop(None);
        } else if !(alone && sound && moments <= MAX_MOMENTS && self.shared.is_sound()) {
            self.recording.forged();
        }
    }

    /// How far the stream of this end has come.
    fn position(&self, end: &ReadingEnd<'_>) -> u64 {
        // Where nothing is recorded any more, the writer does not wait for room.
        if self.full() { end.slot().position() } else { end.published() }
    }

    /// Begin the streams that can be read.
    fn discover(&mut self) -> Result<()> {
        let used = self.shared.header().used.load(Acquire) as usize;
        let slots = &self.shared.slots()[..used.min(self.shared.slots().len())];
        self.slots.resize(slots.len(), None);
        let mut fresh: Vec<(u64, usize)> = (slots.iter().enumerate())
            .filter(|(index, slot)| self.slots[*index].is_none() && occupied(slot))
            .map(|(index, slot)| (slot.order.load(Relaxed), index))
            .collect();
        fresh.sort_unstable();
        for (order, index) in fresh {
            let slot = &slots[index];
            let (pid, parent) = (slot.pid.load(Relaxed), slot.parent.load(Relaxed));
            let child = matches!(slot.origin.load(Relaxed), origin::FORK | origin::VFORK);
            let waits = match slot.origin.load(Relaxed) {
                // Its parent's stream announces it, as long as there is one.
                _ if child => !self.full() && slots.iter().any(|slot| is(slot, parent)),
                // The program before it comes first.
                origin::PROGRAM => slots.iter().any(|slot| is_before(slot, pid, order)),
                _ => false,
            };
            if waits {
                continue;
            }
            if child {
                let process = self.recording.process();
                if let Some(&thread) = self.threads.get(&parent)
                    && !self.full()
                {
                    self.recording.fork(thread, process, kind(slot))?;
                }
                self.begin(index, order, pid, process)?;
            } else {
                let known = self.processes.get(&pid).map(|process| process.number);
                let process = known.unwrap_or_else(|| self.recording.process());
                if slot.origin.load(Relaxed) == origin::PROGRAM {
                    self.recording.program_begins(process);
                }
                self.begin(index, order, pid, process)?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, index: usize, order: u64, pid: u32, number: u32) -> Result<()> {
        if self.threads.contains_key(&order) || self.slots[index].is_some() {
            // Every stream has an order of its own.
            self.recording.forged();
            return Ok(());
        }
        let thread = self.recording.thread(number)?;
        let process = self.processes.entry(pid).or_insert_with(|| Process {
            number,
            streams: 0,
            last: thread,
            ending: false,
            moments: Moments::new(),
        });
        process.number = number;
        process.streams += 1;
        process.last = thread;
        self.slots[index] = Some(order);
        self.threads.insert(order, thread);
        // SAFETY: the stream was not known, so there is no other.
        let end = unsafe { self.shared.reading_end(index) };
        let (position, ahead) = (Position::new(thread), Ahead::default());
        self.streams.insert(order, Stream { pid, position, end, ahead });
        Ok(())
    }

    /// How far each stream has come.
    fn reached(&self, gone: &mut dyn FnMut(u32, bool) -> bool) -> Vec<Reached> {
        let reach = |(&order, stream): (&u64, &Stream<'_>)| {
            let slot = stream.end.slot();
            let ending = self.processes.get(&stream.pid).is_some_and(|process| process.ending);
            // Asked before the position: what a process wrote last is there once it is gone.
            let closed = slot.state.load(Acquire) == state::CLOSED || gone(stream.pid, ending);
            Reached { order, position: self.position(&stream.end), closed }
        };
        self.streams.iter().map(reach).collect()
    }

    /// End the programs that others have taken the place of, and begin those. Whether there were any.
    fn succeed(&mut self) -> Result<bool> {
        let slots = self.shared.slots().iter();
        let earlier: Vec<_> = (self.successors())
            .flat_map(|(pid, order)| slots.clone().filter(move |slot| is_before(slot, pid, order)))
            .collect();
        let mut over = Vec::new();
        for slot in earlier {
            let order = slot.order.load(Relaxed);
            self.take(order, self.limit(order))?;
            let end = self.streams.get(&order).map(|stream| &stream.end);
            if end.is_some_and(|end| end.taken() == self.position(end)) {
                over.push(order);
            }
        }
        self.end_all(over)?;
        let left = self.streams.len();
        self.discover()?;
        Ok(self.streams.len() > left)
    }

    /// Look for moments, if there are any that were not found yet or that were not over.
    fn look(&mut self, reached: &[Reached]) {
        let unsettled = |process: &Process| process.moments.values().any(|m| m.to.is_none());
        let missing = self.shared.header().tickets.load(Acquire) != self.found;
        if self.full() || !missing && !self.processes.values().any(unsettled) {
            return;
        }
        let orders: Vec<u64> = self.streams.keys().copied().collect();
        orders.into_iter().for_each(|order| self.look_at(order, u64::MAX));
        for Reached { order, closed, .. } in reached {
            let Some(stream) = self.streams.get_mut(order).filter(|_| *closed) else { continue };
            let Some(process) = self.processes.get_mut(&stream.pid) else { continue };
            stream.ahead.closed(&mut process.moments);
        }
    }

    /// Look for moments in a stream, up to position `until`.
    fn look_at(&mut self, order: u64, until: u64) {
        let Some(stream) = self.streams.get_mut(&order) else { return };
        let Some(process) = self.processes.get_mut(&stream.pid) else { return };
        let end = (order, &stream.end);
        self.found += stream.ahead.look(end, until, &mut self.words, &mut process.moments);
        if stream.ahead.is_forged() {
            self.recording.forged();
        }
    }

    /// Put moments that are over into the trace by their tickets, those of a process up to the first
    /// that is not.
    fn settle(&mut self, gone: &mut dyn FnMut(u32, bool) -> bool) -> Result<()> {
        // Processes that have ended, of which all comes before what follows.
        let mut dead: Vec<u32> = Vec::new();
        while !self.full() {
            if self.end_killed(&mut dead)? {
                continue;
            }
            // Streams opened since the turn began can hold moments of lower tickets.
            if self.shared.header().opened.load(Acquire) != self.threads.len() as u64 {
                self.discover()?;
                self.look(&[]);
            }
            let first = |(&pid, process): (&u32, &Process)| {
                let (&ticket, moment) = process.moments.first_key_value()?;
                moment.to.map(|to| (ticket, pid, moment.owner, to))
            };
            let next = self.processes.iter().filter_map(first).min();
            let Some((ticket, pid, owner, to)) = next else { return Ok(()) };
            let moments = &self.processes[&pid].moments;
            let mut others: Vec<(u64, u64)> = (self.streams.iter())
                .filter(|(order, stream)| stream.pid == pid && **order != owner)
                .map(|(&order, _)| (order, moments[&ticket].before(order)))
                .collect();
            // What comes before it can hold moments that were written since the stream was looked
            // through: one with a lower ticket comes first.
            others.iter().for_each(|(order, before)| self.look_at(*order, *before));
            let Some(process) = self.processes.get_mut(&pid) else { return Ok(()) };
            if process.moments.first_key_value().is_some_and(|(first, _)| *first != ticket) {
                continue;
            }
            process.moments.remove(&ticket);
            for (order, before) in &mut others {
                // A moment of a higher ticket there was taken at the same time: its stream need not
                // be read further now.
                let next = self.streams.get(order).and_then(|stream| stream.ahead.next());
                *before = next.map_or(*before, |next| next.min(*before));
            }
            for (order, before) in others {
                self.take(order, before)?;
            }
            if let Some(stream) = self.streams.get_mut(&owner) {
                stream.ahead.pop();
            }
            self.take(owner, to)?;
            for waited in std::mem::take(&mut self.recording.waited) {
                if self.processes.contains_key(&waited) && gone(waited, true) {
                    dead.push(waited);
                }
            }
            if self.processes.get(&pid).is_some_and(|process| process.ending) {
                self.end_closed(pid)?;
            }
        }
        Ok(())
    }

    /// End the streams of a process that is about to end as far as they are over, and with the last
    /// one the process: what another does after it has waited for this one comes after its end.
    fn end_closed(&mut self, pid: u32) -> Result<()> {
        let over = |(&order, stream): (&u64, &Stream<'_>)| {
            let closed =
                stream.pid == pid && stream.end.slot().state.load(Acquire) == state::CLOSED;
            (closed && stream.end.taken() == self.position(&stream.end)).then_some(order)
        };
        let over = self.streams.iter().filter_map(over).collect();
        self.end_all(over)?;
        self.end_processes(&mut |_, _| false)
    }

    /// End those of the processes of which no moment is left that is over, and begin the programs
    /// that they became; those must be ended as well. Whether there was one.
    fn end_killed(&mut self, dead: &mut Vec<u32>) -> Result<bool> {
        let processes = &self.processes;
        dead.retain(|pid| processes.contains_key(pid));
        let over = |pid: &u32| {
            let first = processes[pid].moments.first_key_value();
            first.is_none_or(|(_, moment)| moment.to.is_none())
        };
        let Some(pid) = dead.iter().copied().find(over) else { return Ok(false) };
        if let Some(process) = self.processes.get_mut(&pid) {
            process.moments.clear();
        }
        let streams = self.streams.iter().filter(|(_, stream)| stream.pid == pid);
        let orders: Vec<u64> = streams.map(|(&order, _)| order).collect();
        orders.iter().try_for_each(|order| self.take(*order, u64::MAX))?;
        self.end_all(orders)?;
        self.end_processes(&mut |process, _| process == pid)?;
        if self.succeed()? {
            self.look(&[]);
        } else {
            dead.retain(|other| *other != pid);
        }
        Ok(true)
    }

    /// Position up to which a stream can be read: where the first moment is that had to wait.
    fn limit(&self, order: u64) -> u64 {
        let Some(stream) = self.streams.get(&order).filter(|_| !self.full()) else {
            return u64::MAX;
        };
        let moments = self.processes.get(&stream.pid).into_iter().flat_map(|p| p.moments.values());
        let others = moments.filter(|moment| moment.owner != order && moment.to.is_some());
        others
            .map(|moment| moment.before(order))
            .chain(stream.ahead.next())
            .min()
            .unwrap_or(u64::MAX)
    }

    /// Take from a stream up to position `until`.
    fn take(&mut self, order: u64, until: u64) -> Result<()> {
        let full = self.full();
        let Some(stream) = self.streams.get_mut(&order) else { return Ok(()) };
        let Stream { end, position, pid, .. } = stream;
        let pid = *pid;
        if full {
            end.pass(until.min(end.slot().position()));
            return Ok(());
        }
        end.drain(until, &mut self.words, |words| self.recording.expand(words, position))?;
        if !self.recording.ending.is_empty() {
            self.recording.ending.clear();
            if let Some(process) = self.processes.get_mut(&pid) {
                process.ending = true;
            }
        }
        for born in std::mem::take(&mut self.recording.born) {
            self.born(order, &born)?;
        }
        Ok(())
    }

    /// A stream's thread has forked.
    fn born(&mut self, parent: u64, child: &Born) -> Result<()> {
        let slots = self.shared.slots();
        let Some(index) = slots.iter().position(|slot| is(slot, child.order)) else {
            return Ok(());
        };
        if self.slots.len() <= index {
            self.slots.resize(index + 1, None);
        }
        self.recording.fork(self.threads[&parent], child.process, kind(&slots[index]))?;
        self.begin(index, child.order, child.pid, child.process)?;
        self.look_at(child.order, u64::MAX);
        Ok(())
    }

    /// Streams of which everything is taken are over.
    fn end_all(&mut self, mut over: Vec<u64>) -> Result<()> {
        // One that became another program ends its process's earlier life, after all others.
        over.sort_by_key(|order| {
            self.threads.get(order).is_some_and(|thread| self.recording.runs_another(*thread))
        });
        for order in over {
            let Some(stream) = self.streams.get(&order) else { continue };
            let Some(process) = self.processes.get_mut(&stream.pid) else { continue };
            if self.recording.runs_another(stream.position.thread) && process.streams > 1 {
                continue;
            }
            process.streams -= 1;
            let Some(stream) = self.streams.remove(&order) else { continue };
            if stream.end.is_forged() {
                self.recording.forged();
            }
            self.slots.iter_mut().filter(|slot| **slot == Some(order)).for_each(|s| *s = None);
            stream.end.free();
            self.recording.thread_ends(&stream.position)?;
        }
        Ok(())
    }

    /// Processes without streams that have ended.
    fn end_processes(&mut self, gone: &mut dyn FnMut(u32, bool) -> bool) -> Result<()> {
        let over: Vec<u32> = (self.processes.iter())
            .filter(|(pid, process)| process.streams == 0 && (process.ending || gone(**pid, true)))
            .map(|(&pid, _)| pid)
            // Asked last: what was opened until the end is there then.
            .filter(|pid| !self.goes_on(*pid))
            .collect();
        for pid in over {
            if let Some(process) = self.processes.remove(&pid) {
                self.recording.process_ends(process.last)?;
            }
        }
        Ok(())
    }

    /// Programs that have taken the place of others and have not begun here: process and order.
    fn successors(&self) -> impl Iterator<Item = (u32, u64)> {
        let used = self.shared.header().used.load(Acquire) as usize;
        let slots = self.shared.slots().iter().take(used).enumerate();
        slots
            .filter(|(index, slot)| {
                let begun = self.slots.get(*index).is_some_and(Option::is_some);
                !begun && occupied(slot) && slot.origin.load(Relaxed) == origin::PROGRAM
            })
            .map(|(_, slot)| (slot.pid.load(Relaxed), slot.order.load(Relaxed)))
    }

    /// Whether the next turn begins a program of this process, of which nothing is left.
    fn goes_on(&self, pid: u32) -> bool {
        let next = |(of, order)| {
            of == pid && !self.shared.slots().iter().any(|slot| is_before(slot, pid, order))
        };
        !self.full() && self.successors().any(next)
    }

    /// Everything has been drained: give the writer back.
    pub(crate) fn into_writer(self) -> Writer {
        self.recording.out.writer
    }
}

fn occupied(slot: &Slot) -> bool {
    matches!(slot.state.load(Acquire), state::OPEN | state::CLOSED)
}

/// Whether a slot is an older stream of this process than the one of this order.
fn is_before(slot: &Slot, pid: u32, order: u64) -> bool {
    occupied(slot) && slot.pid.load(Relaxed) == pid && slot.order.load(Relaxed) < order
}

/// Whether a slot is the stream of this order.
fn is(slot: &Slot, order: u64) -> bool {
    slot.order.load(Relaxed) == order && slot.state.load(Acquire) != state::FREE
}

/// How a child process came to be.
fn kind(slot: &Slot) -> RegionKind {
    match slot.origin.load(Relaxed) {
        origin::VFORK => RegionKind::Vfork,
        _ => RegionKind::Fork,
    }
}
