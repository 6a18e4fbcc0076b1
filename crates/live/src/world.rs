//! The live implementation of [`Memory`](nearfar_kernel::tiering::Memory): where each page is, and what the
//! policy's actions do to it.
//!
//! Node 0 is the program's own memory within a budget, node 1 the far tier. The **shadow** of a fast page is
//! its copy in the far tier, kept at most until the page is written. If the far tier stores pages, in slots, a
//! page is in one of these states; if it is a memory node, in one of those in `world/mapped.rs`:
//!
//! | node | location | slot | write-protected |
//! |---|---|---|---|
//! | fast | resident | none | if the policy has protected it |
//! | fast | resident | its shadow | yes |
//! | fast | parked: the next reference faults | none, or its shadow | when it is resident again |
//! | far | stored | its content | |
//! | far | resident in the window, clean | its content | yes |
//! | far | resident in the window, written | none | no |
//!
//! In the **parking area**, neither the program nor a device can reach a frame, so its content is final. A
//! page leaves the program's memory only by parking: a device might still write to a frame copied in place.
//! For the same reason, a page with a shadow returns in a new frame, which no device knows.
//!
//! The **window** is a FIFO of a few far pages in the program's memory: it lets references through to far
//! pages that the policy does not promote.
//!
//! The kernel reports no accessed bits. [`clear_accessed`](nearfar_kernel::tiering::Memory::clear_accessed)
//! parks a fast page, and the fault that returns it sets the bit without calling the policy.

use std::collections::BTreeMap;
use std::os::fd::RawFd;

use nearfar_kernel::tiering::{NodeId, Page, Refused, Thread};

use crate::far::Far;
use crate::numbers::Numbers;
use crate::{Fail, Frame, Kernel, PAGE, Slot, Va};

#[cfg(test)]
mod check;
mod counters;
mod fork;
mod mapped;
mod memory;
mod page_table;
mod parking;
mod stored;
mod unnumbered;
mod window;
mod workers;

pub use self::counters::Counters;
pub(crate) use self::page_table::PageFlags;
use self::page_table::PageTable;
use self::parking::Parking;
use self::unnumbered::Backing;
use self::window::Window;
use self::workers::{EventState, Workers};

/// The far tier's node.
pub(crate) const FAR_NODE: NodeId = NodeId::new(1);

/// Sizes of a [`World`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Frames of fast memory.
    pub fast: u64,
    /// Maximum number of pages in the far tier, shadows included.
    pub far: u64,
    /// Maximum number of far pages in the program's memory at a time.
    pub window: u64,
    /// Maximum number of spare frames, which are kept for later loads.
    pub spare: usize,
    /// Maximum number of pages of the program.
    pub pages: u32,
    /// The far tier is a memory node: its pages stay in the program's memory.
    pub far_is_mapped: bool,
}

impl Sizes {
    /// Frames that the parking area can hold, with a margin: every page that is not stored may be parked.
    pub fn parking(&self) -> u32 {
        let far = if self.far_is_mapped { self.far } else { 0 };
        (self.fast + far + self.window + self.spare as u64 + 64).min(u32::MAX.into()) as u32
    }
}

/// Capacity of each node, and pages charged to it. Fast memory may be over its capacity.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) capacity: [u64; 2],
    pub(crate) used: [u64; 2],
}

impl Budget {
    fn charge(&mut self, node: NodeId) {
        self.used[node.index()] += 1;
    }

    fn uncharge(&mut self, node: NodeId) {
        self.used[node.index()] -= 1;
    }
}

/// The live memory.
pub struct World<K> {
    pub(crate) kernel: K,
    /// Unused if the far tier is mapped.
    pub(crate) far: Box<dyn Far>,
    /// The far tier is a memory node.
    pub(crate) far_is_mapped: bool,
    pub(crate) numbers: Numbers,
    pub(crate) pages: PageTable,
    pub(crate) budget: Budget,
    pub(crate) window: Window,
    parking: Parking,
    /// Pages that moved (`mremap`) and got no page number, and are not in the program's memory yet.
    pub(crate) unnumbered: BTreeMap<Va, Backing>,
    /// Scratch space for one page.
    buffer: Vec<u8>,
    pub(crate) workers: Workers,
    pub(crate) event: EventState,
    /// Copies in progress whose pages are being read from the far tier, and the threads to wake.
    fetching: Vec<(Slot, Page, Thread)>,
    pub counters: Counters,
    /// Why the program must end: the far tier failed, or the state of the program's memory is unknown.
    pub(crate) broken: Option<String>,
}

impl<K: Kernel> World<K> {
    /// Memory of these sizes, with nothing mapped. The kernel's parking area must hold no frames.
    pub fn new(kernel: K, far: Box<dyn Far>, sizes: Sizes) -> Self {
        let numbers = Numbers::new(sizes.pages);
        let pages = PageTable::new(numbers.limit() as usize);
        Self {
            kernel,
            far,
            far_is_mapped: sizes.far_is_mapped,
            numbers,
            pages,
            budget: Budget { capacity: [sizes.fast, sizes.far], used: [0; 2] },
            window: Window::new(sizes.window),
            parking: Parking::new(sizes.parking(), sizes.spare),
            unnumbered: BTreeMap::new(),
            buffer: vec![0; PAGE],
            workers: Workers::default(),
            event: EventState::default(),
            fetching: Vec::new(),
            counters: Counters::default(),
            broken: None,
        }
    }

    pub fn kernel(&self) -> &K {
        &self.kernel
    }

    /// The kernel, for requests that are not about managed pages.
    pub fn kernel_mut(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// Pages in fast memory, in the far tier and in the window. Far pages that could not be evicted from the
    /// window (stuck) count as fast here, over the budget, but as far for the policy.
    pub fn used(&self) -> ([u64; 2], u64) {
        let ([fast, far], stuck) = (self.budget.used, self.window.stuck_count);
        ([fast + stuck, far - stuck], self.window.count - stuck)
    }

    /// Number of frames in the parking area that no page uses.
    pub fn spare_frames(&self) -> u64 {
        self.parking.spare.len() as u64
    }

    /// Number of pages that should have left the program's memory but are pinned: locked, shared with a
    /// child, or used for I/O.
    pub fn held_pages(&self) -> u64 {
        self.window.stuck_count
    }

    /// A descriptor that is readable when a page has arrived from the far tier, if the far tier has one.
    pub fn far_descriptor(&self) -> Option<RawFd> {
        self.far.descriptor()
    }

    /// Bytes that the far tier's pages take.
    pub fn far_bytes(&self) -> u64 {
        if self.far_is_mapped {
            self.budget.used[FAR_NODE.index()] * PAGE as u64
        } else {
            self.far.bytes()
        }
    }

    pub(crate) fn page_at(&self, at: Va) -> Option<Page> {
        self.numbers.get(at).filter(|page| self.pages.state(*page).is_mapped())
    }

    /// Whether the page at this address was touched before.
    pub(crate) fn is_known(&self, at: Va) -> bool {
        self.page_at(at).is_some() || self.unnumbered.contains_key(&at)
    }

    /// Free the page's slot; false if it has none.
    fn free_slot(&mut self, page: Page) -> bool {
        let Some(slot) = self.pages.take_slot(page) else { return false };
        if self.far_is_mapped {
            self.release_frame(Frame::new(slot.number()));
        } else {
            self.far.free(slot);
        }
        true
    }

    pub(crate) fn next_mapped_page(&self, from: Page) -> Option<Page> {
        self.pages.next_mapped(from, self.numbers.top())
    }

    /// Record that the kernel refused the request `what` at this page.
    fn refused(&mut self, fail: Fail, what: &str, at: Va) -> Refused {
        match fail {
            Fail::Again => self.event.again = true,
            Fail::Pinned => {
                self.counters.pinned += 1;
                self.event.pinned += 1;
            }
            Fail::Missing | Fail::Ended => {}
            Fail::NoRoom => return Refused::NoFrame,
            Fail::Exists => {
                let (state, at) = (self.describe(at), at.address());
                self.break_down(format!("{what} at {at:#x}: unexpected page ({state})"));
            }
            Fail::Other(number) => {
                let (error, at) = (std::io::Error::from_raw_os_error(number), at.address());
                self.break_down(format!("userfaultfd: {what} at {at:#x}: {error}"));
            }
        }
        Refused::Pinned
    }

    /// The state of the page at this address, for an error message.
    fn describe(&self, at: Va) -> String {
        match self.page_at(at) {
            None => "unknown".into(),
            Some(page) => format!("{:?}, {:?}", self.pages.state(page), self.pages.slot(page)),
        }
    }

    /// Record why the program must end before it reads a wrong byte. The first reason stays.
    pub(crate) fn break_down(&mut self, why: String) {
        self.broken.get_or_insert(why);
    }

    // --- requests

    /// Write-protect the page at this address, or let writes through.
    pub(crate) fn protect(&mut self, at: Va, on: bool) -> Result<(), Refused> {
        self.kernel.protect(at, on).map_err(|fail| self.refused(fail, "protecting", at))
    }

    /// Place up to `pages` pages of zeros from `at` on. [`Refused::State`] if there is a page at `at`.
    pub(crate) fn place_zeros(&mut self, at: Va, pages: u64) -> Result<u64, Refused> {
        self.kernel.place_zeros(at, pages).map_err(|fail| match fail {
            // Another thread's fault placed it.
            Fail::Exists => Refused::State,
            fail => self.refused(fail, "placing zeros", at),
        })
    }

    // --- pages

    /// Map a page that is in the program's memory, and charge it to a node.
    pub(crate) fn map(&mut self, page: Page, node: NodeId, accessed: bool) {
        self.pages.map(page);
        self.pages.set(page, PageFlags::ACCESSED, accessed);
        if self.far_is_mapped {
            return self.map_on_node(page, node, accessed);
        }
        self.budget.charge(node);
        if node != NodeId::FAST {
            self.pages.set_node(page, node);
            self.enter_window(page);
        }
    }

    /// Unmap a page and free its frame and slot. Its page number stays in use.
    pub(crate) fn forget(&mut self, page: Page) {
        let state = self.pages.state(page);
        let parked = state.is_parked().then(|| self.pages.frame(page));
        if self.in_window(page) {
            self.leave_window(page);
        }
        self.end_copy(page);
        self.budget.uncharge(state.node());
        if self.free_slot(page) && !state.is_far() {
            self.budget.uncharge(FAR_NODE);
        }
        if let Some(frame) = parked {
            self.release_frame(frame);
        }
        self.pages.unmap(page);
    }

    /// End the page's copy, if one is in progress.
    fn end_copy(&mut self, page: Page) {
        let state = self.pages.state(page);
        if state.has(PageFlags::COPYING) {
            self.budget.uncharge(if state.is_far() { NodeId::FAST } else { FAR_NODE });
            self.pages.set(page, PageFlags::COPYING | PageFlags::WRITTEN, false);
        }
    }

    /// Let a reference through to a page that is not in the program's memory.
    pub(crate) fn fault_in(&mut self, page: Page, write: bool) -> Result<(), Refused> {
        let state = self.pages.state(page);
        let protected = state.has(PageFlags::PROTECTED);
        if state.is_parked() {
            // A parked far page has no slot: it could not be stored, or is on a memory node. If it is being
            // copied from there, a read returns it write-protected, so that the copy notices the next write.
            let copying = state.is_far() && !write && state.has(PageFlags::COPYING);
            self.restore(page, protected || copying || self.pages.slot(page).is_some())?;
            if write {
                self.note_write(page);
            }
            self.counters.accessed_faults += 1;
        } else {
            debug_assert!(state.is_far(), "a fast page is resident or parked");
            let keep_slot = !write || protected;
            self.load(page, keep_slot)?;
            if !keep_slot {
                self.free_slot(page);
                self.note_write(page);
            }
            self.pages.set(page, PageFlags::PASS_NEXT, false);
            self.enter_window(page);
            self.counters.window_faults += 1;
        }
        self.pages.set(page, PageFlags::ACCESSED, true);
        Ok(())
    }

    /// Record a write, which makes a copy in progress stale.
    fn note_write(&mut self, page: Page) {
        if self.pages.state(page).has(PageFlags::COPYING) {
            self.pages.set(page, PageFlags::WRITTEN, true);
        }
    }

    /// Make a resident page writable, and free its slot.
    pub(crate) fn make_writable(&mut self, page: Page) -> Result<(), Refused> {
        let state = self.pages.state(page);
        if state.is_resident() {
            self.protect(self.numbers.address_of(page), false)?;
        }
        if self.free_slot(page) && !state.is_far() {
            self.budget.uncharge(FAR_NODE);
        }
        self.pages.set(page, PageFlags::PROTECTED, false);
        self.note_write(page);
        Ok(())
    }
}
