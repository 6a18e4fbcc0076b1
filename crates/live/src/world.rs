//! Where each page is, and what the policy's actions do to it: the live world's
//! [`Memory`](nearfar_kernel::tiering::Memory) (its methods are in `memory.rs`).
//!
//! Node 0 is the program's own memory within a budget, node 1 the far tier. Where that stores pages, a
//! page is in one of these states; where it is a memory node, in one of `mapped.rs`:
//!
//! | node | where | far slot | write-protected |
//! |---|---|---|---|
//! | fast | in the program | none | if the policy watches it |
//! | fast | in the program | its shadow | yes |
//! | fast | parked: the next reference is a fault | none, or its shadow | when it is back |
//! | slow | in its slot | holds it | |
//! | slow | in the window, clean | holds it | yes |
//! | slow | in the window, written | none | no |
//!
//! The **lot** is where frames are parked, out of the program's and of any device's reach. A page
//! leaves the program by parking only, whatever happens to it then: what is read from the lot is
//! the whole truth, while a page that is copied where it is may be written by a device afterwards.
//! For the same reason a shadow's master is always a frame that was just made.
//!
//! The **window** lets references to slow pages through where the policy does not promote: a few
//! slow pages are in the program's memory, first in, first out.
//!
//! The kernel shows no accessed bits. Here [`clear_accessed`](nearfar_kernel::tiering::Memory)
//! parks a fast page, and the fault that brings it back sets the bit; the policy is not asked.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::RawFd;

use nearfar_kernel::tiering::{NodeId, Page, Refused, Thread, Time};

use crate::far::Far;
use crate::numbers::Numbers;
use crate::{Fail, Frame, Kernel, PAGE, Slot, Va};

#[cfg(test)]
mod check;
mod counters;
mod frames;
mod threads;
mod unnumbered;

pub use self::counters::Counters;
pub(crate) use self::threads::{REST, Worker};
pub(crate) use self::unnumbered::Held;

/// The far tier's node.
pub(crate) const SLOW_NODE: NodeId = NodeId::new(1);

/// What is known of a page, as bits.
pub(crate) mod is {
    /// The policy knows it.
    pub(crate) const MAPPED: u16 = 1;
    /// In the program's memory.
    pub(crate) const PRESENT: u16 = 1 << 1;
    /// In the lot. Neither: in its slot.
    pub(crate) const PARKED: u16 = 1 << 2;
    /// On the far tier's node.
    pub(crate) const SLOW: u16 = 1 << 3;
    /// A page that is not in a slot, and whose next reference is a hint fault.
    pub(crate) const ARMED: u16 = 1 << 4;
    /// Referenced since the bit was cleared.
    pub(crate) const ACCESSED: u16 = 1 << 5;
    /// The policy is to see the next write.
    pub(crate) const PROTECTED: u16 = 1 << 6;
    /// In its slot, and the policy lets the next reference through.
    pub(crate) const PASSING: u16 = 1 << 7;
    /// In the window, and cannot leave it.
    pub(crate) const STUCK: u16 = 1 << 10;
    /// Being copied by `begin_copy`, and written since.
    pub(crate) const COPYING: u16 = 1 << 8;
    pub(crate) const WRITTEN: u16 = 1 << 9;
}

/// How much memory there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Frames of fast memory.
    pub fast: u64,
    /// Pages that the far tier may hold, shadows included.
    pub far: u64,
    /// Slow pages in the program's memory at a time.
    pub window: u64,
    /// Empty frames kept for pages that come back.
    pub spare: usize,
    /// Highest number of pages of the program.
    pub pages: u32,
    /// The far tier is a memory node: its pages stay in the program's memory.
    pub mapped: bool,
}

impl Sizes {
    /// Places that the lot needs: all fast pages may be parked, and all pages on a memory node.
    pub fn lot(&self) -> u32 {
        let far = if self.mapped { self.far } else { 0 };
        (self.fast + far + self.window + self.spare as u64 + 64).min(u32::MAX.into()) as u32
    }
}

/// The live memory.
pub struct World<K> {
    pub(crate) kernel: K,
    /// Nothing is stored there if the far tier is mapped.
    pub(crate) far: Box<dyn Far>,
    pub(crate) mapped: bool,
    pub(crate) numbers: Numbers,
    /// By page number: what it is, its place in the lot if parked, its slot plus one if it has any (the
    /// shadow's place in the lot where the far tier is mapped).
    flags: Vec<u16>,
    frames: Vec<u32>,
    slots: Vec<u32>,
    pub(crate) capacity: [u64; 2],
    pub(crate) used: [u64; 2],
    /// Slow pages in the program's memory, oldest first; some have left since.
    pub(crate) window: VecDeque<Page>,
    pub(crate) windowed: u64,
    pub(crate) window_size: u64,
    /// Pages of the window that could not leave it, and when they are tried again. Others have its room:
    /// the newest page, the only one that can leave, would do so before it is used. Some of the list have
    /// left since; how many have not.
    pub(crate) stuck: VecDeque<Page>,
    pub(crate) stuck_pages: u64,
    pub(crate) stuck_until: Time,
    /// Pages that were moved to where there was no number for them, and are not in the program's memory
    /// yet.
    pub(crate) unnumbered: BTreeMap<Va, Held>,
    /// Places of the lot without a frame: used before, and never; those with one that is nobody's.
    pub(crate) empty: Vec<Frame>,
    unused: std::ops::Range<u32>,
    pub(crate) spare: Vec<Frame>,
    spare_size: usize,
    pub(crate) buffer: Vec<u8>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) running: Option<usize>,
    /// Pages put on the far tier's memory node in this event.
    pub(crate) demoted: Vec<Page>,
    /// Copies begun in this event, with whom to wake.
    pub(crate) begun: Vec<(Page, Thread)>,
    /// Copies begun whose pages are on their way from the far tier, by slot.
    pub(crate) coming: Vec<(Slot, Page, Thread)>,
    pub(crate) event: Time,
    /// What happened so far.
    pub counters: Counters,
    /// A request of this event was refused with [`Fail::Again`].
    pub(crate) again: bool,
    /// Pages of this event that could not be moved as they are held, and requests that moved one.
    held: u32,
    pub(crate) moved: u32,
    /// Why it cannot go on: a far tier that fails.
    pub(crate) broken: Option<String>,
}

impl<K: Kernel> World<K> {
    /// Memory of these sizes, with nothing mapped; all places of the kernel's lot are empty.
    pub fn new(kernel: K, far: Box<dyn Far>, sizes: Sizes) -> Self {
        let numbers = Numbers::new(sizes.pages);
        let pages = numbers.limit() as usize;
        Self {
            kernel,
            far,
            mapped: sizes.mapped,
            numbers,
            flags: vec![0; pages],
            frames: vec![0; pages],
            slots: vec![0; pages],
            capacity: [sizes.fast, sizes.far],
            used: [0; 2],
            window: VecDeque::new(),
            windowed: 0,
            window_size: sizes.window,
            stuck: VecDeque::new(),
            stuck_pages: 0,
            unnumbered: BTreeMap::new(),
            stuck_until: Time::default(),
            empty: Vec::new(),
            unused: 0..sizes.lot(),
            spare: Vec::new(),
            spare_size: sizes.spare,
            buffer: vec![0; PAGE],
            workers: Vec::new(),
            running: None,
            demoted: Vec::new(),
            begun: Vec::new(),
            coming: Vec::new(),
            event: Time::default(),
            counters: Counters::default(),
            again: false,
            held: 0,
            moved: 0,
            broken: None,
        }
    }

    /// The kernel.
    pub fn kernel(&self) -> &K {
        &self.kernel
    }

    /// The kernel, to make requests that are not about pages that are managed.
    pub fn kernel_mut(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// Frames of fast memory and pages of the far tier in use, and pages in the window. Slow pages that
    /// cannot leave the program's memory are fast here, over the budget: a policy sees them where it has
    /// put them.
    pub fn used(&self) -> ([u64; 2], u64) {
        let ([fast, far], stuck) = (self.used, self.stuck_pages);
        ([fast + stuck, far - stuck], self.windowed - stuck)
    }

    /// Frames in the lot that are nobody's.
    pub fn spare_frames(&self) -> u64 {
        self.spare.len() as u64
    }

    /// Pages that should have left the program's memory, and are held there: locked, shared with a child, or
    /// used for I/O.
    pub fn held_pages(&self) -> u64 {
        self.stuck.len() as u64
    }

    /// Readable when a page has come from the far tier, if that has such a descriptor.
    pub fn far_descriptor(&self) -> Option<RawFd> {
        self.far.descriptor()
    }

    /// Bytes that the far tier's pages take.
    pub fn far_bytes(&self) -> u64 {
        if self.mapped { self.used[SLOW_NODE.index()] * PAGE as u64 } else { self.far.bytes() }
    }

    pub(crate) fn page_at(&self, at: Va) -> Option<Page> {
        self.numbers.get(at).filter(|page| self.has(*page, is::MAPPED))
    }

    /// Whether it is known what the page there holds: it is not to be touched for the first time.
    pub(crate) fn is_known(&self, at: Va) -> bool {
        self.page_at(at).is_some() || self.unnumbered.contains_key(&at)
    }

    pub(crate) fn has(&self, page: Page, bits: u16) -> bool {
        self.flags.get(page.index()).is_some_and(|flags| flags & bits == bits)
    }

    pub(crate) fn set(&mut self, page: Page, bits: u16, on: bool) {
        let flags = &mut self.flags[page.index()];
        if on { *flags |= bits } else { *flags &= !bits }
    }

    pub(crate) fn slot(&self, page: Page) -> Option<Slot> {
        self.slots.get(page.index())?.checked_sub(1).map(Slot::new)
    }

    pub(crate) fn set_slot(&mut self, page: Page, slot: Slot) {
        self.slots[page.index()] = slot.number() + 1;
    }

    pub(crate) fn free_slot(&mut self, page: Page) -> bool {
        let Some(slot) = self.take_slot(page) else { return false };
        if self.mapped {
            self.release_frame(Frame::new(slot.number()));
        } else {
            self.far.free(slot);
        }
        true
    }

    /// The page has no slot any more; what is there is the caller's.
    pub(crate) fn take_slot(&mut self, page: Page) -> Option<Slot> {
        let slot = self.slot(page)?;
        self.slots[page.index()] = 0;
        Some(slot)
    }

    /// Where a parked page is.
    pub(crate) fn frame(&self, page: Page) -> Frame {
        Frame::new(self.frames[page.index()])
    }

    /// A page is parked there from now on.
    pub(crate) fn set_frame(&mut self, page: Page, frame: Frame) {
        self.frames[page.index()] = frame.number();
    }

    pub(crate) fn node(&self, page: Page) -> NodeId {
        if self.has(page, is::SLOW) { SLOW_NODE } else { NodeId::FAST }
    }

    /// In the far tier alone.
    pub(crate) fn in_slot(&self, page: Page) -> bool {
        self.flags[page.index()] & (is::PRESENT | is::PARKED) == 0
    }

    /// Numbers that may be in use are below this.
    pub(crate) fn top(&self) -> u32 {
        self.numbers.top()
    }

    pub(crate) fn mapped_from(&self, from: Page) -> Option<Page> {
        let rest = self.flags.get(from.index()..self.top() as usize)?;
        let next = rest.iter().position(|flags| flags & is::MAPPED != 0)?;
        Some(from.skip(next as u32))
    }

    /// A request (what it does) at this page was refused for this reason.
    pub(crate) fn refused(&mut self, fail: Fail, what: &str, at: Va) -> Refused {
        match fail {
            Fail::Again => self.again = true,
            Fail::Pinned => {
                self.counters.pinned += 1;
                self.held += 1;
            }
            Fail::Missing | Fail::Ended => {}
            Fail::NoRoom => return Refused::NoFrame,
            Fail::Exists => {
                let (known, at) = (self.state_of(at), at.address());
                self.break_down(format!(
                    "{what} at {at:#x}: a page is where none should be ({known})"
                ));
            }
            Fail::Other(number) => {
                let (error, at) = (std::io::Error::from_raw_os_error(number), at.address());
                self.break_down(format!("userfaultfd: {what} at {at:#x}: {error}"));
            }
        }
        Refused::Pinned
    }

    /// What is known of the page there, for a message.
    fn state_of(&self, at: Va) -> String {
        match self.page_at(at) {
            None => "unknown".into(),
            Some(page) => {
                let slot = if self.slot(page).is_some() { ", in a slot" } else { "" };
                format!("state {:#x}{slot}", self.flags[page.index()])
            }
        }
    }

    /// It cannot go on: the program must end before it reads something wrong.
    pub(crate) fn break_down(&mut self, why: String) {
        self.broken.get_or_insert(why);
    }

    // --- requests

    /// Write-protect the page there, or let writes through.
    pub(crate) fn protect(&mut self, at: Va, on: bool) -> Result<(), Refused> {
        self.kernel.protect(at, on).map_err(|fail| self.refused(fail, "protecting", at))
    }

    /// Up to `pages` pages of zeros from here on; [`Refused::State`] if there is a page.
    pub(crate) fn place_zeros(&mut self, at: Va, pages: u64) -> Result<u64, Refused> {
        self.kernel.place_zeros(at, pages).map_err(|fail| match fail {
            // Another thread's fault brought it.
            Fail::Exists => Refused::State,
            fail => self.refused(fail, "placing zeros", at),
        })
    }

    // --- pages

    /// Know a page that is in the program's memory, on a node that it is charged to.
    pub(crate) fn map(&mut self, page: Page, node: NodeId, accessed: bool) {
        self.flags[page.index()] = is::MAPPED | is::PRESENT;
        self.set(page, is::ACCESSED, accessed);
        if self.mapped {
            return self.map_on(page, node, accessed);
        }
        self.used[node.index()] += 1;
        if node != NodeId::FAST {
            self.set(page, is::SLOW, true);
            self.enter_window(page);
        }
    }

    /// Forget a page; what it held, wherever that is, is free. The number is still held.
    pub(crate) fn forget(&mut self, page: Page) {
        let parked = self.has(page, is::PARKED).then(|| self.frame(page));
        if self.in_window(page) {
            self.leave_window(page);
        }
        self.end_copy(page);
        self.used[self.node(page).index()] -= 1;
        let shadow = self.free_slot(page) && !self.has(page, is::SLOW);
        self.used[SLOW_NODE.index()] -= u64::from(shadow);
        if let Some(frame) = parked {
            self.release_frame(frame);
        }
        self.flags[page.index()] = 0;
    }

    /// No copy of the page is under way any more.
    pub(crate) fn end_copy(&mut self, page: Page) {
        if self.has(page, is::COPYING) {
            let other = if self.has(page, is::SLOW) { NodeId::FAST } else { SLOW_NODE };
            self.used[other.index()] -= 1;
            self.set(page, is::COPYING | is::WRITTEN, false);
        }
    }

    /// A reference, by a write or not, is to go through to a page that is not in the program's
    /// memory.
    pub(crate) fn let_in(&mut self, page: Page, write: bool) -> Result<(), Refused> {
        let slow = self.has(page, is::SLOW);
        if self.has(page, is::PARKED) {
            // A slow page that is parked has no slot: it could not be stored, or is on a memory node. There
            // it may be being copied, and a write is to be seen.
            let watched =
                self.has(page, is::PROTECTED) || (slow && !write && self.has(page, is::COPYING));
            self.restore(page, watched || self.slot(page).is_some())?;
            if write {
                self.note_write(page);
            }
            self.counters.accessed_faults += 1;
        } else {
            debug_assert!(slow, "a fast page is in the program or parked");
            let keep = !write || self.has(page, is::PROTECTED);
            self.bring(page, keep)?;
            if !keep {
                self.free_slot(page);
                self.note_write(page);
            }
            self.set(page, is::PASSING, false);
            self.enter_window(page);
            self.counters.window_faults += 1;
        }
        self.set(page, is::ACCESSED, true);
        Ok(())
    }

    /// A copy under way is out of date.
    pub(crate) fn note_write(&mut self, page: Page) {
        if self.has(page, is::COPYING) {
            self.set(page, is::WRITTEN, true);
        }
    }

    /// Make a page that is in the program writable; a slot that holds it is freed.
    pub(crate) fn make_writable(&mut self, page: Page) -> Result<(), Refused> {
        let at = self.numbers.place(page);
        if self.has(page, is::PRESENT) {
            self.protect(at, false)?;
        }
        let freed = self.free_slot(page);
        if freed && !self.has(page, is::SLOW) {
            self.used[SLOW_NODE.index()] -= 1;
        }
        self.set(page, is::PROTECTED, false);
        self.note_write(page);
        Ok(())
    }
}
