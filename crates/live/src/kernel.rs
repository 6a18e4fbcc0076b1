//! The interface to the kernel: messages and requests of userfaultfd, page by page.
//!
//! [`linux`](crate::linux) implements it; tests run against the model of the kernel in `model/`.

use nearfar_kernel::tiering::NodeId;

use crate::{Child, Frame, Range, Regions, Va};

/// Why a request failed. A failed request has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fail {
    /// The mappings are changing, and the message about that is unread; or the page was busy for a moment
    /// (`EAGAIN`).
    Again,
    /// The page is pinned: by a lock, a child that shares it, or I/O (`EBUSY`; of a move also `EINVAL`).
    Pinned,
    /// Nothing is mapped there, or there is no page to move (`ENOENT`, `EFAULT`; except for a move, also
    /// `EINVAL`).
    Missing,
    /// There is a page already (`EEXIST`).
    Exists,
    /// The program is ending (`ESRCH`).
    Ended,
    /// The far tier's memory node has no free frame.
    NoRoom,
    /// Any other error number.
    Other(i32),
}

/// A message of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A thread waits at this page.
    Fault {
        at: Va,
        write: bool,
        /// The page is present and write-protected, and the thread writes to it. If false, it is missing.
        protected: bool,
        /// The thread's TID; 0 if unknown.
        thread: u32,
    },
    /// The program releases these pages (`madvise`). The kernel removes them after this message was read.
    Removed(Range),
    /// These pages are not mapped any more.
    Unmapped(Range),
    /// These pages were moved to `to`, with their content.
    Remapped(Range, Va),
    /// The program forked. The child has all mappings and a copy of the resident pages. Its references to
    /// other pages wait until these are [copied](Kernel::copy_to_child) to it.
    Forked(Child),
}

/// Memory of the program that has just been registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRegion {
    pub range: Range,
    /// The pages of the range that were touched before.
    pub present: Vec<Va>,
}

/// The kernel.
///
/// The **parking area** is an address range of the runtime. A frame that is moved there is out of reach of
/// the program and of devices.
///
/// **The rule that makes this safe.** While a message about mappings (all but [`Event::Fault`]) is unread,
/// each request fails with [`Fail::Again`]. All messages that were read are applied before a request is made.
/// So a request that succeeds acted on the mappings that the runtime knows. This requires that the parking
/// area is registered with the same descriptor as the program's memory: `UFFDIO_MOVE` checks only changes
/// that its descriptor reports, and would otherwise move a page that the program has just mapped anew.
///
/// The calling thread must never touch a page of the program, nor a place of the parking area without a
/// frame: it would wait for itself.
pub trait Kernel {
    /// Read all messages, or as many as one read returns: in order, but faults first.
    fn events(&mut self, into: &mut Vec<Event>);
    /// Register memory of the program that is not in `known` yet.
    fn discover(&mut self, known: &Regions, into: &mut Vec<NewRegion>);
    /// Place a frame with this content at a missing page, write-protected if `protect`, and wake the threads
    /// that wait there. The frame is new, so no device has pinned it.
    fn place(&mut self, at: Va, content: &[u8], protect: bool) -> Result<(), Fail>;
    /// [`place`](Kernel::place) with a copy of the frame parked at `from`. The new frame is on `node`: fast
    /// memory, or the far tier if that is a memory node.
    fn place_copy(&mut self, at: Va, from: Frame, protect: bool, node: NodeId) -> Result<(), Fail>;
    /// Copy the frame parked at `from` to a new frame on the far tier's memory node, at `to`, an empty place
    /// of the parking area. [`Fail::NoRoom`] if the node is full.
    fn copy_to_far_node(&mut self, from: Frame, to: Frame) -> Result<(), Fail>;
    /// Place new frames of zeros at up to `pages` missing pages from `at` on, and wake the threads that wait.
    /// Returns the number of placed pages, at least one. [`Fail`] if the first could not be placed.
    fn place_zeros(&mut self, at: Va, pages: u64) -> Result<u64, Fail>;
    /// Move the page's frame to an empty place of the parking area. The next reference to the page is a
    /// fault.
    fn park(&mut self, at: Va, to: Frame) -> Result<(), Fail>;
    /// Move a parked frame to a missing page, writable, and wake the threads that wait there.
    fn restore(&mut self, from: Frame, at: Va) -> Result<(), Fail>;
    /// Write-protect a page, or let writes through and wake the threads that wait.
    fn protect(&mut self, at: Va, on: bool) -> Result<(), Fail>;
    /// Whether no change of mappings is in progress: all messages about past changes were read.
    fn is_quiet(&mut self) -> bool;
    /// Sleep until a thread that was preempted between a change of mappings and its message has probably sent
    /// the message.
    fn wait_for_messages(&mut self);
    /// Let the threads that wait at this page retry their reference.
    fn wake(&mut self, at: Va);
    /// The content of a parked frame.
    fn frame(&self, at: Frame) -> &[u8];
    /// The content of a parked frame, to write.
    fn frame_mut(&mut self, at: Frame) -> &mut [u8];
    /// Free the frames parked in `frames` places from `from` on.
    fn discard(&mut self, from: Frame, frames: u32);
    /// Place a frame with this content at a missing page of a child.
    fn copy_to_child(&mut self, child: Child, at: Va, content: &[u8]) -> Result<(), Fail>;
    /// Read all messages of a child. While one about its mappings is unread, no page can be copied to it.
    fn child_events(&mut self, child: Child, into: &mut Vec<Event>);
    /// Stop managing the memory of a child, which has all its pages.
    fn release_child(&mut self, child: Child);
    /// Keep the processor of this thread, which sleeps in a fault, busy until [`resume`](Kernel::resume).
    /// Returns false if that is not possible.
    fn stall(&mut self, _thread: u32) -> bool {
        false
    }
    /// End the busy-wait for this thread: its page has arrived.
    fn resume(&mut self, _thread: u32) {}
    /// Monotonic time in nanoseconds.
    fn now_ns(&self) -> u64;
    /// Record a heartbeat of the manager within a long operation.
    fn beat(&self) {}
}
