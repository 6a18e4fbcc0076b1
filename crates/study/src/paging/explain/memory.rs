//! One TLB and one memory at one page size, reference by reference.

use nearfar_hardware::list::{Links, List};
use nearfar_hardware::tlb::{Buffer, TlbSpec};
use nearfar_kernel::replacement::{AccessBits, Replacement, Setup, Shared, Visitor};

use super::Counts;
use crate::lifetimes::{Action, NO_FRAME};
use crate::slot;

/// The target of a reference.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Id of the page.
    pub page: u32,
    /// Number of the page, which selects the set of a TLB.
    pub number: u64,
    /// Id of the page's frame (see [`crate::lifetimes`]), or [`NO_FRAME`].
    pub frame: u32,
}

#[derive(Clone, Copy, Default)]
struct Frame {
    /// The next reference is the first to the frame.
    is_new: bool,
    of_file: bool,
    /// The next fault is not a swap-in, because the content was discarded.
    void: bool,
    /// `void` ends with the next fault.
    void_once: bool,
}

pub struct TlbAndMemory {
    first: Buffer,
    second: Option<Buffer>,
    memory: Box<dyn Memory>,
    /// By frame id.
    frames: Vec<Frame>,
}

impl TlbAndMemory {
    pub fn new(tlb: TlbSpec, memory: Box<dyn Memory>) -> Self {
        Self {
            first: Buffer::new(tlb.first),
            second: tlb.second.map(Buffer::new),
            memory,
            frames: Vec::new(),
        }
    }

    pub fn apply(&mut self, action: Action) {
        match action {
            Action::Shootdown { page, number } => {
                for buffer in std::iter::once(&mut self.first).chain(&mut self.second) {
                    buffer.remove(page, number);
                }
            }
            Action::Begin { frame, number, of_file, executable } => {
                *slot(&mut self.frames, frame) =
                    Frame { is_new: true, of_file, ..Frame::default() };
                self.memory.begin(frame, number);
                if of_file {
                    self.memory.begin_file(frame, executable);
                }
            }
            Action::Free(frame) => self.memory.free(frame),
            Action::Discard(frame) => {
                self.memory.discard(frame);
                let frame = &mut self.frames[frame as usize];
                (frame.void, frame.void_once) = (true, false);
            }
            Action::UndoDiscard(frame) => {
                self.memory.undo_discard(frame);
                let evicted = !self.memory.is_resident(frame);
                let frame = &mut self.frames[frame as usize];
                (frame.void, frame.void_once) = (evicted, evicted);
            }
        }
    }

    pub fn needs_every_reference(&self) -> bool {
        self.memory.needs_every_reference()
    }

    /// Apply a reference. Returns the events of this reference; `references` stays 0.
    pub fn reference(&mut self, target: Target) -> Counts {
        let Target { page, number, frame } = target;
        let mut events = Counts::default();
        if !self.first.access(page, number) {
            let hit = self.second.as_mut().is_some_and(|level| level.access(page, number));
            if hit { events.tlb_second_hits = 1 } else { events.tlb_misses = 1 }
        }
        if frame != NO_FRAME && self.memory.reference(frame) {
            events.faults = 1;
            let frame = &mut self.frames[frame as usize];
            let Frame { is_new, of_file, void, void_once } = *frame;
            *match (of_file, is_new) {
                (true, true) => &mut events.file_reads,
                (true, false) => &mut events.file_rereads,
                (false, false) if !void => &mut events.swap_ins,
                (false, _) => &mut events.zero_fills,
            } = 1;
            events.first_touches = u64::from(is_new);
            frame.is_new = false;
            if void_once {
                (frame.void, frame.void_once) = (false, false);
            }
        }
        events
    }
}

/// A simulated memory. What policies call a page is a frame of the page table: `page` is its id.
pub trait Memory: Send {
    /// The next reference to `page`, whose page number is `number`, is its first.
    fn begin(&mut self, _page: u32, _number: u64) {}
    /// A page that has just begun belongs to a file, and may be executable.
    fn begin_file(&mut self, _page: u32, _executable: bool) {}
    /// Apply a reference. Returns whether it faults.
    fn reference(&mut self, page: u32) -> bool;
    fn free(&mut self, page: u32);
    /// The content of a page was discarded.
    fn discard(&mut self, _page: u32) {}
    /// The next reference makes a discarded page an ordinary one.
    fn undo_discard(&mut self, _page: u32) {}
    fn is_resident(&self, page: u32) -> bool;
    /// Whether repeated references to a page between two faults have an effect.
    fn needs_every_reference(&self) -> bool {
        false
    }
}

/// Creates the memory of a policy.
pub struct NewMemory(pub Setup);

impl Visitor for NewMemory {
    type Output = Box<dyn Memory>;

    fn faults<P: Replacement>(self) -> Self::Output {
        let policy = P::new(self.0);
        let (shared, bits) = (P::Shared::default(), Bits(Vec::new()));
        Box::new(PolicyMemory { policy, shared, bits })
    }

    fn lru(self) -> Self::Output {
        let (links, list) = (Links::default(), List::default());
        Box::new(LruMemory { frames: self.0.frames, used: 0, links, list })
    }
}

/// LRU: a list of pages by last reference. `links[page]` is 1 for a resident page, else 0.
struct LruMemory {
    frames: u64,
    used: u64,
    links: Links,
    list: List,
}

impl Memory for LruMemory {
    fn needs_every_reference(&self) -> bool {
        true
    }

    fn reference(&mut self, page: u32) -> bool {
        if self.is_resident(page) {
            self.links.remove(&mut self.list, page);
            self.links.push(&mut self.list, page);
            return false;
        }
        if self.links.len() <= page as usize {
            self.links.resize(page as usize + 1);
        }
        if self.used < self.frames {
            self.used += 1;
        } else if let Some(victim) = self.links.pop(&mut self.list) {
            self.links[victim] = 0;
        }
        self.links[page] = 1;
        self.links.push(&mut self.list, page);
        true
    }

    fn free(&mut self, page: u32) {
        if self.is_resident(page) {
            self.links.remove(&mut self.list, page);
            self.links[page] = 0;
            self.used -= 1;
        }
    }

    fn is_resident(&self, page: u32) -> bool {
        (page as usize) < self.links.len() && self.links[page] != 0
    }
}

/// A memory under a policy that runs at faults only.
struct PolicyMemory<P: Replacement> {
    policy: P,
    shared: P::Shared,
    bits: Bits,
}

impl<P: Replacement> Memory for PolicyMemory<P> {
    fn begin(&mut self, page: u32, number: u64) {
        self.shared.begin(page, number);
    }

    fn begin_file(&mut self, page: u32, executable: bool) {
        self.policy.begin_file(page, executable);
    }

    fn reference(&mut self, page: u32) -> bool {
        let bits = slot(&mut self.bits.0, page);
        if *bits & PRESENT != 0 {
            *bits |= REFERENCED;
            return false;
        }
        for victim in self.policy.fault(page, &self.shared, &mut self.bits) {
            self.bits.0[victim as usize] = 0;
        }
        self.shared.load(page);
        self.bits.0[page as usize] = PRESENT | REFERENCED;
        true
    }

    fn free(&mut self, page: u32) {
        let resident = self.is_resident(page);
        if let Some(bits) = self.bits.0.get_mut(page as usize) {
            *bits = 0;
        }
        self.policy.release(page, resident);
        self.shared.end(page);
    }

    fn discard(&mut self, page: u32) {
        if self.policy.discard(page, self.is_resident(page)) {
            self.bits.clear(page);
        }
    }

    fn undo_discard(&mut self, page: u32) {
        self.policy.undo_discard(page);
    }

    fn is_resident(&self, page: u32) -> bool {
        self.bits.0.get(page as usize).is_some_and(|bits| bits & PRESENT != 0)
    }
}

const PRESENT: u8 = 1;
const REFERENCED: u8 = 2;

struct Bits(Vec<u8>);

impl AccessBits for Bits {
    fn test(&self, page: u32) -> bool {
        self.0[page as usize] & REFERENCED != 0
    }

    fn clear(&mut self, page: u32) {
        self.0[page as usize] &= !REFERENCED;
    }
}
