//! The trait [`Kernel`] for the model, a simulated kernel and program for tests.

use nearfar_kernel::tiering::NodeId;

use super::processes::release;
use super::{Content, Message, Model, Process, Pte, Share};
use crate::world::FAR_NODE;
use crate::{Child, Event, Fail, Frame, Kernel, NewRegion, PAGE, Range, Regions, Va};

impl Model {
    fn wake(&mut self, at: Va) {
        let woken: Vec<u64> =
            self.waiting.iter().filter(|(_, (page, _))| *page == at).map(|(id, _)| *id).collect();
        for id in woken {
            self.waiting.remove(&id);
            self.over.insert(id);
            // Only faults that still wait are reported.
            self.faults.retain(|(fault, _)| *fault != id);
        }
    }

    fn is_quiet(&self) -> bool {
        !self.rules.guard || self.changing.is_empty()
    }

    /// Refuse a request while mappings are changing, and at random.
    fn guarded(&mut self) -> Result<(), Fail> {
        self.clock_ns += 1000;
        if (self.rules.guard && !self.changing.is_empty()) || self.by_chance(16) {
            return Err(Fail::Again);
        }
        Ok(())
    }

    pub(super) fn new_frame(&mut self, at: Va, value: u64, protected: bool, node: NodeId) {
        let frame = self.id();
        self.frames.insert(frame, Content { value, pins: 0, held_at: None, shared: 0, node });
        let pte = &mut self.pages[at.number() as usize];
        (pte.frame, pte.protected) = (Some(frame), protected);
    }

    /// Check that a frame can be placed at this page.
    fn check_target(&mut self, at: Va) -> Result<(), Fail> {
        self.guarded()?;
        match self.pte(at) {
            Some(Pte { registered: true, frame: None, .. }) => Ok(()),
            Some(Pte { registered: true, .. }) => Err(Fail::Exists),
            _ => Err(Fail::Missing),
        }
    }

    fn place(&mut self, at: Va, value: u64, protect: bool, node: NodeId) -> Result<(), Fail> {
        self.check_target(at)?;
        self.new_frame(at, value, protect, node);
        self.note(format!("place {value} at {at:?}, protect {protect}"));
        self.wake(at);
        Ok(())
    }

    /// Take this page's frame away, to park it. Returns the frame's value and memory node.
    fn park(&mut self, at: Va) -> Result<(u64, NodeId), Fail> {
        self.guarded()?;
        let pins = self.rules.pins;
        let frame = self.pte(at).and_then(|pte| pte.frame).ok_or(Fail::Missing)?;
        let held = self.frames.get(&frame);
        if held.is_some_and(|content| content.shared > 0 || (pins && content.pins > 0)) {
            return Err(Fail::Pinned);
        }
        let pte = &mut self.pages[at.number() as usize];
        (pte.frame, pte.protected) = (None, false);
        let held = self.frames.get(&frame);
        let (value, node) = held.map_or((0, NodeId::FAST), |held| (held.value, held.node));
        self.note(format!("park {at:?} with {value}"));
        self.free_unpinned(frame);
        Ok((value, node))
    }

    fn protect(&mut self, at: Va, on: bool) -> Result<(), Fail> {
        self.guarded()?;
        let pte = self.pte(at).filter(|pte| pte.registered).ok_or(Fail::Missing)?;
        if pte.frame.is_some() {
            pte.protected = on;
        }
        if !on {
            self.wake(at);
        }
        Ok(())
    }

    /// Read messages, at most as many as one read returns.
    fn read(&mut self, into: &mut Vec<Event>) {
        while into.len() < self.batch {
            if let Some((_, fault)) = self.faults.pop_front() {
                into.push(fault);
            } else if let Some(Message { id, event, by }) = self.messages.pop_front() {
                let at = self.changing.iter().position(|changing| *changing == by);
                at.map(|at| self.changing.swap_remove(at));
                self.over.insert(id);
                self.note(format!("message {id} is read"));
                into.push(event);
            } else {
                break;
            }
        }
    }
}

/// The model as a [`Kernel`].
#[derive(Debug)]
pub(crate) struct ModelKernel<S> {
    share: S,
    parking: Vec<Option<Vec<u8>>>,
    /// The memory nodes of the parked frames.
    nodes: Vec<NodeId>,
}

impl<S: Share> ModelKernel<S> {
    /// `parking`: number of frames that the parking area, outside the program's reach, can hold.
    pub(crate) fn new(share: S, parking: u32) -> Self {
        Self {
            share,
            parking: vec![None; parking as usize],
            nodes: vec![NodeId::FAST; parking as usize],
        }
    }

    /// Make a request. `None` if the manager has ended.
    fn act<R>(&self, act: impl FnOnce(&mut Model) -> R) -> Option<R> {
        self.act_on(&self.share, act)
    }

    /// Make a request about the address space of `share`. `None` if the manager has ended.
    fn act_on<R>(&self, share: &S, act: impl FnOnce(&mut Model) -> R) -> Option<R> {
        let before = self.share.processes(|processes| {
            processes.requests += 1;
            processes.requests - 1
        });
        self.share.before(before);
        share.with(|model| {
            let alive = self.share.processes(|processes| processes.is_alive(Process::Manager));
            alive.then(|| act(model))
        })
    }

    /// Make a request, which fails if the manager has ended.
    fn request<R>(&self, act: impl FnOnce(&mut Model) -> Result<R, Fail>) -> Result<R, Fail> {
        self.act(act).unwrap_or(Err(Fail::Ended))
    }

    /// Read messages. A fork's message, once read, adds the child's userfaultfd to the manager's file table.
    fn read(&self, share: &S, into: &mut Vec<Event>) {
        self.act_on(share, |model| {
            let before = into.len();
            model.read(into);
            for event in &into[before..] {
                if let Event::Forked(child) = event {
                    self.share.processes(|processes| processes.adopt(*child));
                }
            }
        });
    }

    /// The memory node of a parked frame.
    pub(crate) fn node(&self, at: Frame) -> NodeId {
        self.nodes[at.number() as usize]
    }

    fn parked(&self, at: Frame) -> &Vec<u8> {
        self.parking[at.number() as usize].as_ref().expect("the manager waits for itself")
    }
}

fn value_of(content: &[u8]) -> u64 {
    content.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// A page that begins with this value.
pub(crate) fn page_of(value: u64) -> Vec<u8> {
    let mut page = vec![0; PAGE];
    page[..8].copy_from_slice(&value.to_le_bytes());
    page
}

impl<S: Share> Kernel for ModelKernel<S> {
    fn events(&mut self, into: &mut Vec<Event>) {
        self.read(&self.share, into);
    }

    fn discover(&mut self, known: &Regions, into: &mut Vec<NewRegion>) {
        // Mappings are listed, registered and searched in separate steps, as with /proc.
        let mapped = self.act(|model| {
            let pages = model.pages.iter().enumerate().filter(|(_, pte)| pte.mapped);
            pages.map(|(number, _)| Va::new(number as u64)).collect::<Vec<_>>()
        });
        for at in mapped.unwrap_or_default() {
            let range = Range::new(at, at.plus(1));
            if known.gaps(range).is_empty() {
                continue;
            }
            let registered =
                self.act(|model| model.pte(at).map(|pte| pte.registered = true).is_some());
            if registered == Some(true) {
                let there = self.act(|model| model.pte(at).is_some_and(|pte| pte.frame.is_some()));
                let there = there == Some(true);
                into.push(NewRegion { range, present: if there { vec![at] } else { Vec::new() } });
            }
        }
    }

    fn place(&mut self, at: Va, content: &[u8], protect: bool) -> Result<(), Fail> {
        self.request(|model| model.place(at, value_of(content), protect, NodeId::FAST))
    }

    fn place_copy(&mut self, at: Va, from: Frame, protect: bool, node: NodeId) -> Result<(), Fail> {
        let value = value_of(self.parked(from));
        self.request(|model| model.place(at, value, protect, node))
    }

    fn copy_to_far_node(&mut self, from: Frame, to: Frame) -> Result<(), Fail> {
        self.request(|model| {
            model.guarded()?;
            if model.by_chance(8) { Err(Fail::NoRoom) } else { Ok(()) }
        })?;
        let copy = self.parked(from).clone();
        let place = &mut self.parking[to.number() as usize];
        assert!(place.is_none(), "a place of the parking area with two frames");
        *place = Some(copy);
        self.nodes[to.number() as usize] = FAR_NODE;
        Ok(())
    }

    fn place_zeros(&mut self, at: Va, pages: u64) -> Result<u64, Fail> {
        for done in 0..pages {
            if let Err(fail) =
                self.request(|model| model.place(at.plus(done), 0, false, NodeId::FAST))
            {
                return if done == 0 { Err(fail) } else { Ok(done) };
            }
        }
        Ok(pages)
    }

    fn park(&mut self, at: Va, to: Frame) -> Result<(), Fail> {
        let place = to.number() as usize;
        assert!(self.parking[place].is_none(), "a place of the parking area with two frames");
        let (value, node) = self.request(|model| model.park(at))?;
        self.parking[place] = Some(page_of(value));
        self.nodes[to.number() as usize] = node;
        Ok(())
    }

    fn restore(&mut self, from: Frame, at: Va) -> Result<(), Fail> {
        let (value, node) = (value_of(self.parked(from)), self.node(from));
        self.request(|model| {
            // Sometimes act as if the mapping's protection had changed: such a mapping accepts only copies.
            if model.by_chance(8) { Err(Fail::Pinned) } else { model.place(at, value, false, node) }
        })?;
        self.parking[from.number() as usize] = None;
        Ok(())
    }

    fn protect(&mut self, at: Va, on: bool) -> Result<(), Fail> {
        self.request(|model| model.protect(at, on))
    }

    fn wake(&mut self, at: Va) {
        self.act(|model| model.wake(at));
    }

    fn frame(&self, at: Frame) -> &[u8] {
        self.parked(at)
    }

    fn frame_mut(&mut self, at: Frame) -> &mut [u8] {
        self.parking[at.number() as usize].as_mut().expect("the manager waits for itself")
    }

    fn is_quiet(&mut self) -> bool {
        self.act(|model| model.is_quiet()).unwrap_or(true)
    }

    fn wait_for_messages(&mut self) {
        for _ in 0..100 {
            self.share.yield_now();
        }
    }

    fn discard(&mut self, from: Frame, frames: u32) {
        for place in &mut self.parking[from.number() as usize..][..frames as usize] {
            assert!(place.take().is_some(), "an empty place is discarded");
        }
    }

    fn copy_to_child(&mut self, child: Child, at: Va, content: &[u8]) -> Result<(), Fail> {
        let value = value_of(content);
        let given = self.act_on(&self.share.child(child), |model| {
            if self.share.processes(|processes| processes.uses(child.number())) {
                model.place(at, value, false, NodeId::FAST)
            } else {
                Err(Fail::Ended)
            }
        });
        given.unwrap_or(Err(Fail::Ended))
    }

    fn child_events(&mut self, child: Child, into: &mut Vec<Event>) {
        self.read(&self.share.child(child), into);
    }

    fn release_child(&mut self, child: Child) {
        let space = self.share.child(child);
        let last =
            self.act_on(&space, |_| self.share.processes(|processes| processes.close(child)));
        if last == Some(true) {
            release(&space);
        }
    }

    fn now_ns(&self) -> u64 {
        self.share.with(|model| model.clock_ns)
    }
}
