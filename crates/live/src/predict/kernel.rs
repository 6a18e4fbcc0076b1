//! A kernel and a far tier that hold nothing: which pages there are, how long requests take.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nearfar_kernel::tiering::NodeId;

use super::Costs;
use crate::far::{Far, Fault, Slots};
use crate::{Child, Event, Fail, Found, Frame, Kernel, PAGE, Range, Regions, Slot, Va};

const THERE: u8 = 1;
const PROTECTED: u8 = 2;

/// The clock that requests let run.
struct Clock(Arc<AtomicU64>);

impl Clock {
    fn take(&self, nanoseconds: u64) {
        self.0.fetch_add(nanoseconds, Ordering::Relaxed);
    }
}

/// A kernel for one program whose memory is all there is: pages from number 0 on.
pub(super) struct CountedKernel {
    pages: Vec<u8>,
    told: Vec<Event>,
    found: bool,
    clock: Clock,
    costs: Costs,
    /// The far tier is a memory node, from which pages are copied.
    mapped: bool,
    frame: Vec<u8>,
}

impl CountedKernel {
    pub(super) fn new(pages: u32, costs: Costs, mapped: bool, clock: Arc<AtomicU64>) -> Self {
        Self {
            pages: vec![0; pages as usize],
            told: Vec::new(),
            found: false,
            clock: Clock(clock),
            costs,
            mapped,
            frame: vec![0; PAGE],
        }
    }

    /// A message that is read next.
    pub(super) fn tell(&mut self, event: Event) {
        self.told.push(event);
    }

    /// The program has given these pages back.
    pub(super) fn release(&mut self, range: Range) {
        for at in range.each() {
            if let Some(page) = self.page(at) {
                *page = 0;
            }
        }
    }

    /// Whether a page is in the program's memory.
    pub(super) fn is_there(&self, at: Va) -> bool {
        self.bits(at) & THERE != 0
    }

    /// Whether a reference goes through.
    pub(super) fn lets(&self, at: Va, write: bool) -> bool {
        let bits = self.bits(at);
        bits == THERE || bits & THERE != 0 && !write
    }

    fn bits(&self, at: Va) -> u8 {
        self.pages.get(at.number() as usize).copied().unwrap_or_default()
    }

    fn page(&mut self, at: Va) -> Option<&mut u8> {
        self.pages.get_mut(at.number() as usize)
    }

    fn bring(&mut self, at: Va, protect: bool, nanoseconds: u64) -> Result<(), Fail> {
        self.clock.take(nanoseconds);
        let page = self.page(at).ok_or(Fail::Missing)?;
        if *page & THERE != 0 {
            return Err(Fail::Exists);
        }
        *page = THERE | if protect { PROTECTED } else { 0 };
        Ok(())
    }
}

impl Kernel for CountedKernel {
    fn events(&mut self, into: &mut Vec<Event>) {
        self.clock.take(self.costs.read_ns);
        into.append(&mut self.told);
    }

    fn discover(&mut self, _: &Regions, into: &mut Vec<Found>) {
        if !std::mem::replace(&mut self.found, true) {
            let range = Range::new(Va::new(0), Va::new(self.pages.len() as u64));
            into.push(Found { range, present: Vec::new() });
        }
    }

    fn place(&mut self, at: Va, _: &[u8], protect: bool) -> Result<(), Fail> {
        self.bring(at, protect, self.costs.copy_ns)
    }

    fn place_copy(&mut self, at: Va, _: Frame, protect: bool, _: NodeId) -> Result<(), Fail> {
        self.bring(at, protect, if self.mapped { self.costs.load_ns } else { self.costs.copy_ns })
    }

    fn copy_to_far_node(&mut self, _: Frame, _: Frame) -> Result<(), Fail> {
        self.clock.take(self.costs.store_ns);
        Ok(())
    }

    fn place_zeros(&mut self, at: Va, pages: u64) -> Result<u64, Fail> {
        self.bring(at, false, self.costs.copy_ns)?;
        let rest = (1..pages).take_while(|after| {
            let next = self.costs.copy_next_ns;
            !self.is_there(at.plus(*after)) && self.bring(at.plus(*after), false, next).is_ok()
        });
        Ok(1 + rest.count() as u64)
    }

    fn park(&mut self, at: Va, _: Frame) -> Result<(), Fail> {
        self.clock.take(self.costs.take_ns);
        match self.page(at) {
            Some(page) if *page & THERE != 0 => *page = 0,
            _ => return Err(Fail::Missing),
        }
        Ok(())
    }

    fn restore(&mut self, _: Frame, at: Va) -> Result<(), Fail> {
        self.bring(at, false, self.costs.take_ns)
    }

    fn protect(&mut self, at: Va, on: bool) -> Result<(), Fail> {
        self.clock.take(self.costs.protect_ns);
        match self.page(at) {
            Some(page) if *page & THERE != 0 => *page = THERE | if on { PROTECTED } else { 0 },
            _ => {}
        }
        Ok(())
    }

    fn is_quiet(&mut self) -> bool {
        true
    }

    fn let_others_run(&mut self) {}

    fn wake(&mut self, _: Va) {}

    fn frame(&self, _: Frame) -> &[u8] {
        &self.frame
    }

    fn frame_mut(&mut self, _: Frame) -> &mut [u8] {
        &mut self.frame
    }

    fn discard(&mut self, _: Frame, frames: u32) {
        self.clock.take(self.costs.discard_ns * u64::from(frames));
    }

    fn give(&mut self, _: Child, _: Va, _: &[u8]) -> Result<(), Fail> {
        Err(Fail::Ended)
    }

    fn child_events(&mut self, _: Child, _: &mut Vec<Event>) {}

    fn let_go(&mut self, _: Child) {}

    fn now_ns(&self) -> u64 {
        self.clock.0.load(Ordering::Relaxed)
    }
}

/// A far tier that holds numbers only.
pub(super) struct CountedFar {
    slots: Slots,
    held: u64,
    clock: Clock,
    costs: Costs,
}

impl CountedFar {
    pub(super) fn new(pages: u64, costs: Costs, clock: Arc<AtomicU64>) -> Self {
        let slots = Slots::new(pages.min(u32::MAX.into()) as u32);
        Self { slots, held: 0, clock: Clock(clock), costs }
    }
}

impl Far for CountedFar {
    fn store(&mut self, _: &[u8]) -> Result<Slot, Fault> {
        self.clock.take(self.costs.store_ns);
        let slot = self.slots.take()?;
        self.held += 1;
        Ok(slot)
    }

    fn load(&mut self, _: Slot, _: &mut [u8]) -> Result<(), Fault> {
        self.clock.take(self.costs.load_ns);
        Ok(())
    }

    fn free(&mut self, slot: Slot) {
        self.held -= 1;
        self.slots.free(slot);
    }

    fn bytes(&self) -> u64 {
        self.held * PAGE as u64
    }
}
