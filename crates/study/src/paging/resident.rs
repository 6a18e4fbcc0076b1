//! One TLB and one memory at one page size, reference by reference: what [`super::explain`] asks.

use nearfar_hardware::list::{Links, List};
use nearfar_hardware::tlb::{Buffer, TlbSpec};
use nearfar_kernel::replacement::{AccessBits, Replacement, Setup, Shared, Visitor};

use super::explain::Counts;
use crate::lifetimes::{Action, NO_FRAME};

/// What a reference reaches.
#[derive(Clone, Copy, Debug)]
pub struct Reached {
    /// Id of the page.
    pub page: u32,
    /// Its number, which sets of a TLB are chosen by.
    pub number: u64,
    /// What memory holds of it, or [`NO_FRAME`].
    pub frame: u32,
}

/// What is known of a frame.
#[derive(Clone, Copy, Default)]
struct Held {
    /// The next reference to it is its first.
    fresh: bool,
    of_file: bool,
    /// A fault finds nothing that was swapped out.
    void: bool,
    /// The next fault is the last such.
    kept: bool,
}

/// A TLB and a memory.
pub struct Resident {
    first: Buffer,
    second: Option<Buffer>,
    memory: Box<dyn Memory>,
    /// By frame.
    held: Vec<Held>,
    /// The frame of the reference before.
    previous: u32,
}

impl Resident {
    /// Nothing was referenced yet.
    pub fn new(tlb: TlbSpec, memory: Box<dyn Memory>) -> Self {
        Self {
            first: Buffer::new(tlb.first),
            second: tlb.second.map(Buffer::new),
            memory,
            held: Vec::new(),
            previous: NO_FRAME,
        }
    }

    /// What a page table says comes before the next reference.
    pub fn apply(&mut self, action: Action) {
        match action {
            Action::Shootdown { page, number } => {
                for buffer in std::iter::once(&mut self.first).chain(&mut self.second) {
                    buffer.remove(page, number);
                }
            }
            Action::Begin { frame, number, of_file, executable } => {
                if self.held.len() <= frame as usize {
                    self.held.resize(frame as usize + 1, Held::default());
                }
                self.held[frame as usize] = Held { fresh: true, of_file, ..Held::default() };
                self.memory.begin(frame, number);
                if of_file {
                    self.memory.begin_file(frame, executable);
                }
            }
            Action::Free(frame) => self.memory.free(frame),
            Action::Discard(frame) => {
                self.memory.discard(frame);
                let held = &mut self.held[frame as usize];
                (held.void, held.kept) = (true, false);
            }
            Action::Keep(frame) => {
                self.memory.keep(frame);
                let holds = self.memory.holds(frame);
                let held = &mut self.held[frame as usize];
                (held.void, held.kept) = (!holds, !holds);
            }
        }
    }

    /// One reference, of the `same` record as the one before or another. What it meets; references
    /// are not counted.
    pub fn reference(&mut self, reached: Reached, same: bool) -> Counts {
        let Reached { page, number, frame } = reached;
        let mut met = Counts::default();
        if !self.first.access(page, number) {
            let held = self.second.as_mut().is_some_and(|level| level.access(page, number));
            if held { met.tlb_second_hits = 1 } else { met.tlb_misses = 1 }
        }
        // A record references a frame once.
        let again = same && frame == self.previous;
        self.previous = frame;
        if frame != NO_FRAME && !again && self.memory.reference(frame) {
            met.faults = 1;
            let held = &mut self.held[frame as usize];
            let Held { fresh, of_file, void, kept } = *held;
            *match (of_file, fresh) {
                (true, true) => &mut met.file_reads,
                (true, false) => &mut met.file_rereads,
                (false, false) if !void => &mut met.swap_ins,
                (false, _) => &mut met.zero_fills,
            } = 1;
            met.first_touches = u64::from(fresh);
            held.fresh = false;
            if kept {
                (held.void, held.kept) = (false, false);
            }
        }
        met
    }
}

/// A memory that sees every reference to its pages, which are frames of a page table.
pub trait Memory {
    /// The next reference to this page is its first, at this number.
    fn begin(&mut self, _page: u32, _number: u64) {}
    /// This page, which has just begun, is one of a file, and whether it is code.
    fn begin_file(&mut self, _page: u32, _executable: bool) {}
    /// One reference; true when it faults.
    fn reference(&mut self, page: u32) -> bool;
    /// A page is freed, wherever it is.
    fn free(&mut self, page: u32);
    /// What a page holds is not wanted.
    fn discard(&mut self, _page: u32) {}
    /// A discarded page is wanted again.
    fn keep(&mut self, _page: u32) {}
    /// Whether a page is resident.
    fn holds(&self, page: u32) -> bool;
}

/// Makes a memory of a policy.
pub struct Make {
    /// The memory.
    pub setup: Setup,
    /// Pages are loaded with their accessed bit set.
    pub loads_set: bool,
}

impl Visitor for Make {
    type Output = Box<dyn Memory>;

    fn faults<P: Replacement>(self) -> Self::Output {
        let policy = P::new(self.setup);
        let (shared, bits) = (P::Shared::default(), Bits(Vec::new()));
        Box::new(ByFaults { policy, shared, bits, loads_set: self.loads_set })
    }

    fn lru(self) -> Self::Output {
        let (links, list) = (Links::default(), List::default());
        Box::new(Recency { frames: self.setup.frames, used: 0, links, list })
    }
}

/// Pages in the order of their last references. The word of a link is 1 for a resident page. Grows
/// with the pages, not with the frames.
struct Recency {
    frames: u64,
    used: u64,
    links: Links,
    list: List,
}

impl Memory for Recency {
    fn reference(&mut self, page: u32) -> bool {
        if self.holds(page) {
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
        if self.holds(page) {
            self.links.remove(&mut self.list, page);
            self.links[page] = 0;
            self.used -= 1;
        }
    }

    fn holds(&self, page: u32) -> bool {
        (page as usize) < self.links.len() && self.links[page] != 0
    }
}

/// Pages resident under a policy that sees faults only.
struct ByFaults<P: Replacement> {
    policy: P,
    shared: P::Shared,
    bits: Bits,
    /// A page is loaded with its accessed bit set.
    loads_set: bool,
}

impl<P: Replacement> Memory for ByFaults<P> {
    fn begin(&mut self, page: u32, number: u64) {
        self.shared.begin(page, number);
    }

    fn begin_file(&mut self, page: u32, executable: bool) {
        self.policy.begin_file(page, executable);
    }

    fn reference(&mut self, page: u32) -> bool {
        let place = page as usize;
        if self.bits.0.len() <= place {
            self.bits.0.resize(place + 1, 0);
        }
        if self.bits.0[place] & PRESENT != 0 {
            self.bits.0[place] |= REFERENCED;
            return false;
        }
        for victim in self.policy.fault(page, &self.shared, &mut self.bits) {
            self.bits.0[victim as usize] = 0;
        }
        self.shared.load(page);
        self.bits.0[place] = if self.loads_set { PRESENT | REFERENCED } else { PRESENT };
        true
    }

    fn free(&mut self, page: u32) {
        let resident = self.holds(page);
        if let Some(bits) = self.bits.0.get_mut(page as usize) {
            *bits = 0;
        }
        self.policy.release(page, resident);
        self.shared.end(page);
    }

    fn discard(&mut self, page: u32) {
        if self.policy.discard(page, self.holds(page)) {
            self.bits.clear(page);
        }
    }

    fn keep(&mut self, page: u32) {
        self.policy.keep(page);
    }

    fn holds(&self, page: u32) -> bool {
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
