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

use std::collections::VecDeque;
use std::os::fd::RawFd;

use nearfar_kernel::tiering::{Context, Next, NodeId, Page, Refused, Thread, Time};

use crate::children::Moves;
use crate::far::Far;
use crate::numbers::Numbers;
use crate::{Child, Event, Fail, Frame, Kernel, PAGE, Slot, Va};

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
    /// Being copied by `begin_copy`, and written since.
    pub(crate) const COPYING: u16 = 1 << 8;
    pub(crate) const WRITTEN: u16 = 1 << 9;
}

/// Declare the counters once: the fields, their names, and all of them in order.
macro_rules! counters {
    ($($(#[doc = $what:literal])+ $name:ident,)*) => {
        /// What happened so far.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
        pub struct Counters {
            $($(#[doc = $what])+ pub $name: u64,)*
        }

        impl Counters {
            /// Their names and what they count, in order.
            pub const NAMES: &[(&str, &str)] =
                &[$((stringify!($name), concat!($($what),+))),*];

            /// All of them, in order.
            pub fn numbers(&self) -> impl Iterator<Item = u64> {
                [$(self.$name),*].into_iter()
            }

            /// All of them, in order.
            pub fn numbers_mut(&mut self) -> impl Iterator<Item = &mut u64> {
                [$(&mut self.$name),*].into_iter()
            }
        }
    };
}

counters! {
    /// Faults of the program that were answered, of every kind.
    faults,
    /// Pages touched for the first time.
    first_touches,
    /// Hint faults, as the policy saw them.
    hint_faults,
    /// Faults of pages that were parked to see whether they are used.
    accessed_faults,
    /// References to slow pages that went through the window.
    window_faults,
    /// Pages moved from the far tier to fast memory.
    promotions,
    /// Of these, pages that kept a shadow.
    shadow_copies,
    /// Copies under way that were given up because the page was written.
    aborts,
    /// Pages moved to the far tier by a copy.
    demotions_copied,
    /// Pages moved to the far tier by taking their shadow.
    demotions_remapped,
    /// First writes to pages with a shadow.
    shadow_faults,
    /// First writes to pages without one that the policy watches.
    watch_faults,
    /// Shadows freed because their room was needed.
    shadows_reclaimed,
    /// Pages given back by the program.
    released,
    /// Times that a page could not be parked: held by the program's I/O, a lock or a child.
    pinned,
    /// Children, each given what it needs.
    forks,
    /// Pages in fast memory because there was room nowhere.
    over_budget,
    /// Pages loaded from the far tier.
    far_loads,
    /// Pages stored there.
    far_stores,
    /// Pages that took time to come from the far tier, as it was asked for them ahead.
    fetches,
    /// Time that they were predicted to take, added up, ns.
    fetches_predicted_ns,
    /// Time that they took, added up, ns.
    fetches_ns,
    /// Faults whose thread slept until its page had come.
    slept,
    /// Faults whose thread kept its processor busy until then.
    stalled,
}

/// A thread of the policy.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) thread: Thread,
    pub(crate) due: Time,
    /// It does not work before this, and for how long its last step in vain made it wait.
    rests_until: Time,
    rest: Time,
}

/// How long a thread of the policy rests after a step in which everything was refused: a child, I/O or a
/// lock holds pages for longer than a look at them takes. Twice as long after each, up to the second.
pub(crate) const REST: (Time, Time) = (Time::from_ps(1_000_000_000), Time::from_ps(64_000_000_000));
/// The same where mappings are changing, which is over soon.
const CHANGING: Time = Time::from_ps(100_000_000);

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
    /// the newest page, the only one that can leave, would do so before it is used.
    pub(crate) stuck: VecDeque<Page>,
    pub(crate) stuck_until: Time,
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

    pub(crate) fn kernel_mut(&mut self) -> &mut K {
        &mut self.kernel
    }

    /// Frames of fast memory and pages of the far tier in use, and pages in the window.
    pub fn used(&self) -> ([u64; 2], u64) {
        (self.used, self.windowed)
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

    /// A number for the page there; without one the program cannot go on.
    pub(crate) fn hold(&mut self, at: Va) -> Option<Page> {
        let page = self.numbers.hold(at);
        if page.is_none() {
            self.break_down("the program has too many pages at once".into());
        }
        page
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

    // --- frames

    /// A place of the lot without a frame.
    pub(crate) fn empty_place(&mut self) -> Option<Frame> {
        let empty = self.empty.pop();
        empty.or_else(|| self.unused.next().map(Frame::new)).or_else(|| {
            let spare = self.spare.pop()?;
            self.kernel.discard(spare, 1);
            Some(spare)
        })
    }

    /// The frame in the lot is nobody's any more.
    pub(crate) fn release_frame(&mut self, frame: Frame) {
        self.spare.push(frame);
        if self.spare.len() <= self.spare_size {
            return;
        }
        // The older half at once: a run of neighbours costs little more than one of them.
        let gone = self.spare.len() - self.spare_size / 2;
        let old = &mut self.spare[..gone];
        old.sort_unstable_by_key(|frame| frame.number());
        for run in old.chunk_by(|a, b| a.number() + 1 == b.number()) {
            self.kernel.discard(run[0], run.len() as u32);
        }
        // The lowest is taken first: what is parked in turn is a run again.
        self.empty.extend(self.spare.drain(..gone).rev());
    }

    /// Park a page that is in the program.
    pub(crate) fn park(&mut self, page: Page) -> Result<Frame, Refused> {
        if self.has(page, is::PARKED) {
            return Ok(self.frame(page));
        }
        let frame = self.empty_place().ok_or(Refused::NoFrame)?;
        let at = self.numbers.place(page);
        if let Err(fail) = self.kernel.park(at, frame) {
            self.empty.push(frame);
            return Err(self.refused(fail, "parking", at));
        }
        self.moved += 1;
        self.set(page, is::PRESENT, false);
        self.set(page, is::PARKED, true);
        self.set_frame(page, frame);
        Ok(frame)
    }

    /// Bring a parked page back, write-protected or not.
    pub(crate) fn restore(&mut self, page: Page, protect: bool) -> Result<(), Refused> {
        let (at, frame) = (self.numbers.place(page), self.frame(page));
        let mut copy = protect;
        if !copy {
            match self.kernel.restore(frame, at) {
                Ok(()) => self.empty.push(frame),
                // A mapping whose protection has changed takes no frame, but takes a copy.
                Err(Fail::Pinned) => copy = true,
                Err(fail) => return Err(self.refused(fail, "bringing back", at)),
            }
        }
        if copy {
            let node = if self.mapped { self.node(page) } else { NodeId::FAST };
            if let Err(fail) = self.kernel.place_copy(at, frame, protect, node) {
                return Err(self.refused(fail, "bringing back a copy", at));
            }
            self.release_frame(frame);
        }
        self.moved += 1;
        self.set(page, is::PARKED, false);
        self.set(page, is::PRESENT, true);
        Ok(())
    }

    /// Give a child the page, if it was not in the program's memory. Where nothing is mapped in the child
    /// it may have been moved before, which was told later. False if nothing is mapped there, and nothing
    /// told of says why.
    pub(crate) fn give(
        &mut self,
        child: Child,
        page: Page,
        moves: &mut Moves,
        told_later: &Moves,
        children: &mut Vec<(Child, Moves)>,
    ) -> bool {
        if self.has(page, is::PRESENT) {
            return true;
        }
        if self.has(page, is::PARKED) {
            let frame = self.frame(page);
            self.buffer.copy_from_slice(self.kernel.frame(frame));
        } else if let Some(slot) = self.slot(page)
            && let Err(fault) = self.far.load(slot, &mut self.buffer)
        {
            self.break_down(fault.to_string());
            return true;
        }
        let at = self.numbers.place(page);
        let (mut events, mut begin) = (Vec::new(), at);
        while let Some(at) = moves.place(begin) {
            match self.kernel.give(child, at, &self.buffer) {
                // Mapped anew by the child, or a child that has ended.
                Ok(()) | Err(Fail::Exists | Fail::Ended) => return true,
                Err(Fail::Missing) => match told_later.place(begin) {
                    Some(moved) if moved != begin => begin = moved,
                    place => return place.is_none(),
                },
                Err(Fail::Again) => {
                    self.kernel.child_events(child, &mut events);
                    for event in events.drain(..) {
                        match event {
                            Event::Forked(grandchild) => children.push((grandchild, moves.clone())),
                            event => moves.note(event),
                        }
                    }
                }
                Err(fail) => {
                    self.refused(fail, "giving to a child", at);
                    self.break_down("a child cannot be given its memory".into());
                    return true;
                }
            }
        }
        true
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
            self.leave_window();
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

    /// The page is at another address from now on: `from` is free, what is known of it is `to`'s. A
    /// shadow is dropped.
    pub(crate) fn rename(&mut self, from: Page, to: Page) {
        self.end_copy(from);
        if !self.has(from, is::SLOW) && self.free_slot(from) {
            self.used[SLOW_NODE.index()] -= 1;
        }
        self.flags[to.index()] = self.flags[from.index()] & !(is::ARMED | is::PASSING);
        self.frames[to.index()] = self.frames[from.index()];
        self.slots[to.index()] = std::mem::take(&mut self.slots[from.index()]);
        self.flags[from.index()] = 0;
        if self.in_window(to) {
            self.window.push_back(to);
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

    // --- threads

    pub(crate) fn spawn_worker(&mut self, name: &'static str, _: Context) -> Thread {
        let thread = Thread::new(self.workers.len() as u8, name);
        let (due, none) = (Time::NEVER, Time::default());
        self.workers.push(Worker { thread, due, rests_until: none, rest: none });
        thread
    }

    pub(crate) fn wake_worker(&mut self, thread: Thread) {
        let worker = &mut self.workers[thread.index()];
        if worker.due == Time::NEVER {
            worker.due = self.event.max(worker.rests_until);
        }
    }

    /// An event begins.
    pub(crate) fn begin_event(&mut self) {
        self.event = Time::from_ps(self.kernel.now_ns().saturating_mul(1000));
        (self.again, self.held, self.moved) = (false, 0, 0);
    }

    /// An event is over: the copies begun in it are complete.
    pub(crate) fn end_event(&mut self) {
        self.let_demoted_in();
        for (_, thread) in std::mem::take(&mut self.begun) {
            self.wake_worker(thread);
        }
    }

    /// When the thread that has just worked goes on.
    pub(crate) fn reschedule(&mut self, thread: Thread, next: Next) {
        let (held, again, moved) = (self.held > 0, self.again, self.moved > 0);
        self.begin_event();
        let worker = &mut self.workers[thread.index()];
        if moved {
            worker.rest = Time::default();
        } else if held {
            worker.rest = worker.rest.plus(worker.rest).clamp(REST.0, REST.1);
            worker.rests_until = self.event.plus(worker.rest);
        } else if again {
            worker.rests_until = self.event.plus(CHANGING);
        }
        let earliest = worker.rests_until.max(Time::from_ps(self.far.busy_until() * 1000));
        worker.due = match next {
            Next::Again => self.event.max(earliest),
            Next::At(time) => time.max(self.event).max(earliest),
            Next::Idle => Time::NEVER,
        };
    }

    /// Everything that must hold between events.
    ///
    /// # Errors
    /// A description of what does not.
    #[cfg(test)]
    pub fn check(&self) -> Result<(), String> {
        let mut used = [0, 0];
        let (mut windowed, mut lot) = (0, self.empty.len() + self.unused.len() + self.spare.len());
        let mut next = self.mapped_from(Page::new(0));
        while let Some(page) = next {
            let slow = self.has(page, is::SLOW);
            used[self.node(page).index()] += 1;
            used[1] += u64::from(!slow && self.slot(page).is_some());
            used[usize::from(!slow)] += u64::from(self.has(page, is::COPYING));
            windowed += u64::from(self.in_window(page));
            lot += usize::from(self.has(page, is::PARKED));
            lot += usize::from(self.mapped && self.slot(page).is_some());
            let state = self.flags[page.index()];
            let wrong = if self.has(page, is::PRESENT | is::PARKED) {
                "is in two places"
            } else if self.in_slot(page) && (self.mapped || !slow || self.slot(page).is_none()) {
                "is nowhere"
            } else if !slow && self.slot(page).is_some() && !self.has(page, is::PROTECTED) {
                "has a shadow and may be written"
            } else if slow && !self.mapped && self.has(page, is::ARMED) {
                "is stored and armed"
            } else if slow && self.mapped && self.slot(page).is_some() {
                "is slow and has a shadow"
            } else if self.has(page, is::ARMED) && !self.has(page, is::PARKED) {
                "is armed and there"
            } else {
                next = self.mapped_from(page.skip(1));
                continue;
            };
            return Err(format!("{page:?} {wrong} ({state:#b})"));
        }
        let lot_size = self.lot_size();
        for (what, counted, kept) in [
            ("fast", used[0], self.used[0]),
            ("slow", used[1], self.used[1]),
            ("window", windowed, self.windowed),
            ("lot", lot as u64, lot_size),
        ] {
            if counted != kept {
                return Err(format!("{what}: {counted} pages, {kept} kept"));
            }
        }
        Ok(())
    }

    #[cfg(test)]
    fn lot_size(&self) -> u64 {
        let ([fast, far], window, mapped) = (self.capacity, self.window_size, self.mapped);
        Sizes { fast, far, window, spare: self.spare_size, pages: 0, mapped }.lot().into()
    }
}
