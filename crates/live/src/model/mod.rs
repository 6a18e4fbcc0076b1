//! A model of the kernel and of a program, which checks that each read returns the last write.
//!
//! The model follows `fs/userfaultfd.c` and `mm/userfaultfd.c` (Linux 6.8 and later): faults are read before
//! other messages; while a message about mappings is unread, every request (`ioctl`) fails with `EAGAIN`; the
//! message of `madvise` precedes the removal of pages, those of `munmap` and `mremap` follow it; a request
//! wakes the threads that wait at its pages; frames pinned for I/O cannot be moved. `linux/tests.rs` checks
//! these rules on the real kernel. `processes.rs` has the rules of processes that end.

mod kernel;
mod processes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use nearfar_kernel::tiering::NodeId;

pub(crate) use kernel::{ModelKernel, page_of};
pub(crate) use processes::{FIRST, Process, Processes, Share, end, waits, watch};

use crate::{Child, Event, Range, Va};

/// A page of the program.
#[derive(Clone, Copy, Debug, Default)]
struct Pte {
    mapped: bool,
    registered: bool,
    frame: Option<u64>,
    protected: bool,
    /// What the program last wrote: a number that increases with every write; 0 if the page was released.
    last_written: u64,
    /// Another possible value: the page was written during its release, or the release had no message. The
    /// first read decides.
    alternative: Option<u64>,
    /// Being released, and not written since: it may read as zeros already.
    releasing: bool,
}

/// A frame.
#[derive(Clone, Copy, Debug)]
struct Content {
    value: u64,
    pins: u32,
    /// The page at which it was pinned, until that is released.
    held_at: Option<Va>,
    /// Children that share it.
    shared: u32,
    /// Its memory node.
    node: NodeId,
}

/// The result of a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Done,
    /// It waits until this fault is woken.
    Waits(u64),
    /// Nothing is mapped there.
    Segv,
}

/// Rules that can be switched off, to check that the tests fail then.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rules {
    /// Requests are refused while a message about mappings is unread.
    pub(crate) guard: bool,
    /// Frames pinned for I/O are not parked (moved out of the program's reach).
    pub(crate) pins: bool,
    /// The manager, which handles the program's faults, is a separate process that survives the program.
    pub(crate) outlives: bool,
    /// Another process, the keeper, shares the manager's table of files, so userfaultfds survive the manager.
    pub(crate) keeper: bool,
}

pub(crate) const ALL: Rules = Rules { guard: true, pins: true, outlives: true, keeper: true };

/// An unread message, and the process that waits until it is read.
#[derive(Clone, Copy, Debug)]
struct Message {
    id: u64,
    event: Event,
    by: u32,
}

/// The kernel's state.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pages: Vec<Pte>,
    frames: BTreeMap<u64, Content>,
    rules: Rules,
    /// The process that acts.
    pub(crate) current: u32,
    /// The process of each change of mappings whose message is unread or not sent yet.
    changing: Vec<u32>,
    faults: VecDeque<(u64, Event)>,
    messages: VecDeque<Message>,
    /// IDs of faults that were woken, and of messages that were read or dropped.
    over: BTreeSet<u64>,
    /// IDs of messages that were dropped: their sender was killed before they were read.
    aborted: BTreeSet<u64>,
    /// The page and the process of each waiting fault.
    waiting: BTreeMap<u64, (Va, u32)>,
    /// The latest ID. Written values are IDs, too.
    last_id: u64,
    clock_ns: u64,
    /// Maximum number of messages of one read.
    batch: usize,
    /// State of the random numbers of [`by_chance`](Model::by_chance).
    chance: u64,
    /// A log, to debug a failing test.
    history: Vec<String>,
}

impl Model {
    /// `pages` unmapped pages. `seed` decides the batch size and which requests fail at random.
    pub(crate) fn new(pages: usize, seed: u64, rules: Rules) -> Self {
        Self {
            pages: vec![Pte::default(); pages],
            rules,
            last_id: 1,
            batch: 1 + (seed % 5) as usize,
            chance: seed,
            ..Self::default()
        }
    }

    fn note(&mut self, what: String) {
        self.history.push(what);
    }

    fn id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// True once in `of` times on average.
    fn by_chance(&mut self, of: u64) -> bool {
        self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // Not 1, the first number of seed 0: it would be true for every `of`.
        self.chance != 1 && (self.chance >> 33).is_multiple_of(of)
    }

    fn pte(&mut self, at: Va) -> Option<&mut Pte> {
        self.pages.get_mut(at.number() as usize).filter(|pte| pte.mapped)
    }

    // --- the program's side

    /// Map the free pages of this range.
    pub(crate) fn map(&mut self, range: Range) {
        for at in range.each() {
            let pte = &mut self.pages[at.number() as usize];
            if !pte.mapped {
                *pte = Pte { mapped: true, ..Pte::default() };
            }
        }
    }

    /// Map this number of pages at the first free range, as `mmap` does.
    pub(crate) fn map_somewhere(&mut self, pages: u64) -> Range {
        let free = |range: Range| range.each().all(|at| !self.pages[at.number() as usize].mapped);
        let mut places = (0..self.pages.len() as u64 / pages)
            .map(|place| Range::new(Va::new(place * pages), Va::new((place + 1) * pages)));
        let range = places.find(|range| free(*range)).expect("no room");
        self.note(format!("map {range:?}"));
        self.map(range);
        range
    }

    /// A reference; a load that does not return the last write panics.
    pub(crate) fn access(&mut self, at: Va, write: bool) -> Access {
        let value = self.id();
        let Some(pte) = self.pte(at) else { return Access::Segv };
        let Some(frame) = pte.frame else {
            if pte.registered {
                return self.fault(at, write, false);
            }
            // The content is checked below.
            self.new_frame(at, 0, false, NodeId::FAST);
            return self.access(at, write);
        };
        if write && pte.protected {
            return self.fault(at, true, true);
        }
        let content = self.frames.get(&frame).filter(|content| content.shared > 0);
        if let Some(Content { value, pins: 0, .. }) = content.copied().filter(|_| write) {
            // Copy on write, unless the frame is pinned.
            self.new_frame(at, value, false, NodeId::FAST);
            return self.access(at, write);
        }
        let content = self.frames.get_mut(&frame);
        let content = content.unwrap_or_else(|| panic!("{at:?} has a frame that is free"));
        let pte = &mut self.pages[at.number() as usize];
        let alternative = pte.alternative.take();
        if write {
            (pte.last_written, content.value, pte.releasing) = (value, value, false);
        } else if alternative == Some(content.value) || (pte.releasing && content.value == 0) {
            pte.last_written = content.value;
        }
        let (holds, wrote) = (content.value, pte.last_written);
        if holds != wrote {
            panic!(
                "{at:?} holds {holds}, and was last written {wrote}:\n{}",
                self.history.join("\n")
            );
        }
        self.note(format!("{at:?} {} {holds}", if write { "writes" } else { "reads" }));
        Access::Done
    }

    /// Whether a read of this page would wait.
    pub(crate) fn would_wait(&self, at: Va) -> bool {
        let pte = &self.pages[at.number() as usize];
        pte.mapped && pte.registered && pte.frame.is_none()
    }

    fn fault(&mut self, at: Va, write: bool, protected: bool) -> Access {
        let id = self.id();
        self.note(format!("fault {id}: {at:?} write {write} protected {protected}"));
        self.faults.push_back((id, Event::Fault { at, write, protected, thread: 0 }));
        self.waiting.insert(id, (at, self.current));
        Access::Waits(id)
    }

    /// Whether a fault was woken, or a message read.
    pub(crate) fn is_over(&self, id: u64) -> bool {
        self.over.contains(&id)
    }

    /// Whether the manager has read a message, or none was needed. False if its sender was killed before.
    pub(crate) fn is_read(&self, id: u64) -> bool {
        self.is_over(id) && !self.aborted.contains(&id)
    }

    fn message(&mut self, event: Event) -> u64 {
        self.changing.push(self.current);
        self.send(event)
    }

    /// Send the message of an earlier change, which has blocked requests since. Messages of later changes may
    /// be sent before it.
    pub(crate) fn send(&mut self, event: Event) -> u64 {
        let id = self.id();
        self.note(format!("message {id}: {event:?}"));
        let by = self.current;
        if self.changing.contains(&by) {
            self.messages.push_back(Message { id, event, by });
        } else {
            // Unregistered since: there is no message.
            self.over.insert(id);
        }
        id
    }

    /// The part of `range` in its first mapping. Registered and unregistered pages are in different mappings.
    fn first_mapping(&self, range: Range) -> Range {
        let registered = |at: Va| self.pages[at.number() as usize].registered;
        let first = registered(range.from);
        let end = range.each().find(|at| registered(*at) != first).unwrap_or(range.to);
        Range::new(range.from, end)
    }

    /// Whether these pages are one mapping.
    pub(crate) fn is_one_mapping(&self, range: Range) -> bool {
        self.first_mapping(range) == range
    }

    fn any_registered(&self, range: Range) -> bool {
        range.each().any(|at| self.pages[at.number() as usize].registered)
    }

    /// `madvise(DONTNEED)` of the first mapping in `range`, as the kernel goes from mapping to mapping.
    /// Returns the pages of that mapping, and the message to wait for before [`zap`](Model::zap). Without a
    /// message the pages are removed at once, as they cannot be registered meanwhile.
    pub(crate) fn advise(&mut self, range: Range) -> (Range, Option<u64>) {
        let part = self.first_mapping(range);
        if !self.any_registered(part) {
            self.zap(part, 0);
            return (part, None);
        }
        for at in part.each() {
            if let Some(pte) = self.pte(at) {
                pte.releasing = true;
            }
        }
        (part, Some(self.message(Event::Removed(part))))
    }

    /// Remove pages. `message`: the ID of the message about their removal; 0 for none.
    pub(crate) fn zap(&mut self, range: Range, message: u64) {
        self.note(format!("zap {range:?} of {message}"));
        for at in range.each() {
            let Some(pte) = self.pte(at) else { continue };
            pte.alternative =
                (message > 0 && pte.last_written > message).then_some(pte.last_written);
            (pte.last_written, pte.releasing, pte.protected) = (0, false, false);
            let frame = pte.frame.take();
            for content in self.frames.values_mut().filter(|content| content.held_at == Some(at)) {
                content.held_at = None;
            }
            if let Some(frame) = frame {
                self.free_unpinned(frame);
            }
        }
    }

    /// [`zap`](Model::zap) of a process that was killed before its message was read. The message is dropped,
    /// so the manager may still return the content of a page that it has stored elsewhere.
    pub(crate) fn zap_unsent(&mut self, range: Range) {
        let before: Vec<u64> =
            range.each().map(|at| self.pages[at.number() as usize].last_written).collect();
        self.zap(range, 0);
        for (at, value) in range.each().zip(before) {
            if let Some(pte) = self.pte(at) {
                pte.alternative = Some(value);
            }
        }
    }

    /// `munmap`: remove the pages, and send a message to wait for.
    pub(crate) fn unmap(&mut self, range: Range) -> Option<u64> {
        let message = self.unmap_unsent(range);
        message.map(|event| self.send(event))
    }

    /// [`unmap`](Model::unmap) without sending the message yet.
    pub(crate) fn unmap_unsent(&mut self, range: Range) -> Option<Event> {
        let registered = self.any_registered(range);
        self.zap(range, 0);
        for at in range.each() {
            self.pages[at.number() as usize] = Pte::default();
        }
        registered.then(|| {
            self.changing.push(self.current);
            Event::Unmapped(range)
        })
    }

    /// `mremap` to free pages. Once its message was read, [`send`](Model::send) that the old pages were
    /// unmapped; they may be in use again by then. `None` if the destination is not free, or the source is
    /// not one mapping.
    pub(crate) fn remap(&mut self, range: Range, to: Va) -> Option<Option<u64>> {
        let message = self.remap_unsent(range, to)?;
        Some(message.map(|event| self.send(event)))
    }

    /// [`remap`](Model::remap) without sending the first message yet.
    pub(crate) fn remap_unsent(&mut self, range: Range, to: Va) -> Option<Option<Event>> {
        let target = range.moved_to(to);
        let (pages, mapped) = (self.pages.len() as u64, |at: Va, pages: &[Pte]| {
            pages.get(at.number() as usize).is_some_and(|pte| pte.mapped)
        });
        if target.to.number() > pages
            || target.each().any(|at| mapped(at, &self.pages))
            || !range.each().all(|at| mapped(at, &self.pages))
        {
            return None;
        }
        let registered = self.any_registered(range);
        if !self.is_one_mapping(range) {
            return None;
        }
        for (from, to) in range.each().zip(target.each()) {
            let pte = std::mem::take(&mut self.pages[from.number() as usize]);
            self.pages[to.number() as usize] = pte;
            for content in self.frames.values_mut().filter(|content| content.held_at == Some(from))
            {
                content.held_at = Some(to);
            }
        }
        self.note(format!("move {range:?} to {to:?}"));
        // Two messages: the pages have moved, and their source was unmapped.
        if registered {
            self.changing.extend([self.current; 2]);
        }
        Some(registered.then_some(Event::Remapped(range, to)))
    }

    fn free_unpinned(&mut self, frame: u64) {
        if self.frames.get(&frame).is_some_and(|content| content.pins == 0) {
            self.frames.remove(&frame);
        }
    }

    /// Pin the page's frame for I/O into it, if a write would complete.
    pub(crate) fn pin(&mut self, at: Va) -> Option<u64> {
        let frame = self.pte(at).filter(|pte| !pte.protected)?.frame?;
        let content = self.frames.get_mut(&frame)?;
        content.pins += 1;
        content.held_at = Some(at);
        Some(frame)
    }

    /// A device writes to a pinned frame and unpins it.
    pub(crate) fn device_writes(&mut self, frame: u64) {
        let value = self.id();
        self.note(format!("a device writes {value} to frame {frame}"));
        let content = self.frames.get_mut(&frame).expect("a pinned frame is gone");
        content.value = value;
        content.pins -= 1;
        let held_at = content.held_at;
        if let Some(pte) = held_at.and_then(|at| self.pte(at)) {
            (pte.last_written, pte.alternative, pte.releasing) = (value, None, false);
        }
        if !self.pages.iter().any(|pte| pte.frame == Some(frame)) {
            self.free_unpinned(frame);
        }
    }

    /// Fork. Returns the child, with the program's current pages, and the message to wait for; `None` if
    /// nothing is registered.
    pub(crate) fn fork(&mut self, number: u32) -> (Model, Option<u64>) {
        let mut child = Model::new(self.pages.len(), u64::from(number), self.rules);
        child.last_id = self.last_id;
        child.history.clone_from(&self.history);
        child.note("forked".into());
        child.pages.clone_from(&self.pages);
        for pte in &mut child.pages {
            let frame = pte.frame.and_then(|frame| self.frames.get_mut(&frame));
            // A page pinned for I/O is copied at once.
            if let Some(content) = frame {
                content.shared += u32::from(content.pins == 0);
                let copy = Content { pins: 0, held_at: None, shared: 0, ..*content };
                child.frames.insert(pte.frame.unwrap_or_default(), copy);
            }
        }
        let registered = self.pages.iter().any(|pte| pte.registered);
        let message = registered.then(|| self.message(Event::Forked(Child::new(number))));
        (child, message)
    }

    /// Close the userfaultfd. Returns the children whose forks were not read: their userfaultfds close, too.
    pub(crate) fn unregister(&mut self) -> Vec<Child> {
        self.note("let go".into());
        for pte in &mut self.pages {
            (pte.registered, pte.protected) = (false, false);
        }
        let waiting = std::mem::take(&mut self.waiting);
        self.over.extend(waiting.into_keys());
        self.faults.clear();
        self.changing.clear();
        let mut children = Vec::new();
        for Message { id, event, .. } in self.messages.drain(..) {
            self.over.insert(id);
            if let Event::Forked(child) = event {
                children.push(child);
            }
        }
        children
    }

    /// A process that uses this memory has a fatal signal: its threads stop waiting, and the messages of
    /// their changes are dropped.
    fn abort(&mut self, process: u32) {
        self.note(format!("process {process} ends"));
        let theirs = self.waiting.extract_if(.., |_, (_, by)| *by == process);
        let faults: BTreeSet<u64> = theirs.map(|(id, _)| id).collect();
        self.faults.retain(|(id, _)| !faults.contains(id));
        self.over.extend(faults);
        let theirs = self.messages.iter().filter(|message| message.by == process);
        self.aborted.extend(theirs.map(|message| message.id));
        self.over.extend(&self.aborted);
        self.messages.retain(|message| message.by != process);
        self.changing.retain(|by| *by != process);
    }

    /// Advance the clock by `ns`.
    pub(crate) fn pass(&mut self, ns: u64) {
        self.clock_ns += ns;
    }

    /// Advance the clock to `ns`, unless it is later.
    pub(crate) fn pass_until(&mut self, ns: u64) {
        self.clock_ns = self.clock_ns.max(ns);
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.clock_ns
    }

    /// The memory node of the page, if it has a frame.
    pub(crate) fn node(&self, at: Va) -> Option<NodeId> {
        let frame = self.pages.get(at.number() as usize)?.frame?;
        self.frames.get(&frame).map(|content| content.node)
    }

    pub(crate) fn has_messages(&self) -> bool {
        !self.faults.is_empty() || !self.messages.is_empty()
    }
}
