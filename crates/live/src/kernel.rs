//! What the runtime asks of the kernel: userfaultfd's messages and requests, page by page.
//!
//! [`linux`](crate::linux) is the kernel; tests run against a model of it, `model/`.

use nearfar_kernel::tiering::NodeId;

use crate::{Child, Frame, Range, Regions, Va};

/// Why a request was not carried out. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fail {
    /// The mappings are changing, and the message about it is not read yet; or the page was busy
    /// for a moment (`EAGAIN`).
    Again,
    /// Somebody holds the page: a lock, a child that shares it, I/O under way (`EBUSY`, `EINVAL`).
    Pinned,
    /// Nothing is mapped there, or no page is there to take (`ENOENT`).
    Missing,
    /// A page is there already (`EEXIST`).
    Exists,
    /// The program ends (`ESRCH`).
    Ended,
    /// The far tier's memory node has no frame left.
    NoRoom,
    /// Any other error number.
    Other(i32),
}

/// A message of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A thread waits at this page: it is missing, or, if `protected`, it is written and
    /// write-protected.
    Fault {
        /// The page.
        at: Va,
        /// The reference is a write.
        write: bool,
        /// The page is there, and write-protected.
        protected: bool,
        /// The thread, by its number in the system; 0 if that is not known.
        thread: u32,
    },
    /// The program gives these pages back (`madvise`); they will be gone soon.
    Removed(Range),
    /// These pages are not mapped any more.
    Unmapped(Range),
    /// These pages were moved, with what they hold, to `to`.
    Remapped(Range, Va),
    /// The program was copied by fork. The child has all mappings and what was in the program's
    /// memory then, and waits at the other pages until they are [given](Kernel::give) to it.
    Forked(Child),
}

/// Memory of the program that the kernel reports faults of from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The pages.
    pub range: Range,
    /// Those of them that were there before.
    pub present: Vec<Va>,
}

/// The kernel.
///
/// **The rule on which everything rests.** While a message about mappings (all but
/// [`Event::Fault`]) is not read, each request here is refused with [`Fail::Again`]. So if all
/// messages that were read have been applied before a request is made, a request that succeeds
/// acted on the mappings that the runtime knows. For this the lot must be registered with the same
/// descriptor as the program's memory: `UFFDIO_MOVE` looks at the changes of its own descriptor
/// only, and would otherwise take a page that the program has just mapped anew.
///
/// The thread that calls must never touch a page of the program, nor a place of the lot without a
/// frame: it would wait for itself.
pub trait Kernel {
    /// All messages that are there, or as many as one read gives; in order, but faults first.
    fn events(&mut self, into: &mut Vec<Event>);
    /// Register memory of the program that is not in `known` yet; one item for each range.
    fn discover(&mut self, known: &Regions, into: &mut Vec<Found>);
    /// Put a new frame with this content at a page without one, and wake who waits there. The
    /// frame is nobody's but the program's: nothing can hold it yet.
    ///
    /// # Errors
    /// [`Fail`].
    fn place(&mut self, at: Va, content: &[u8], protect: bool) -> Result<(), Fail>;
    /// [`place`](Kernel::place) with the content of the frame that is parked at `from`, which
    /// stays there. The new frame is fast memory as those of [`place`](Kernel::place) are, or, with
    /// another `node`, on that of a far tier that stays mapped.
    ///
    /// # Errors
    /// [`Fail`].
    fn place_copy(&mut self, at: Va, from: Frame, protect: bool, node: NodeId) -> Result<(), Fail>;
    /// Put a new frame on the node of a far tier that stays mapped, with the content of the frame that is
    /// parked at `from`, into an empty place of the lot.
    ///
    /// # Errors
    /// [`Fail`]; [`Fail::NoRoom`] if the node is full.
    fn copy_to_far_node(&mut self, from: Frame, to: Frame) -> Result<(), Fail>;
    /// New frames of zeros at up to `pages` pages from here on that have none, waking who waits;
    /// how many, at least one.
    ///
    /// # Errors
    /// [`Fail`], if not even the first could be placed.
    fn place_zeros(&mut self, at: Va, pages: u64) -> Result<u64, Fail>;
    /// Move the page's frame to an empty place of the lot: the next reference is a fault. Neither
    /// program nor device can reach it there.
    ///
    /// # Errors
    /// [`Fail`]; [`Fail::Pinned`] too if the page is shared with a child or held for I/O.
    fn park(&mut self, at: Va, to: Frame) -> Result<(), Fail>;
    /// Move a parked frame to a page without one, writable, and wake who waits there.
    ///
    /// # Errors
    /// [`Fail`].
    fn restore(&mut self, from: Frame, at: Va) -> Result<(), Fail>;
    /// Write-protect a page, or let writes through and wake who waits.
    ///
    /// # Errors
    /// [`Fail`].
    fn protect(&mut self, at: Va, on: bool) -> Result<(), Fail>;
    /// Whether no change of mappings is under way: all messages about mappings that there will be of
    /// what has happened were read.
    fn is_quiet(&mut self) -> bool;
    /// Sleep until who is held up between a change of mappings and its message has told it, as far as
    /// one can know.
    fn let_others_run(&mut self);
    /// Let who waits at this page try again.
    fn wake(&mut self, at: Va);
    /// What a parked frame holds.
    fn frame(&self, at: Frame) -> &[u8];
    /// What a parked frame holds, to write.
    fn frame_mut(&mut self, at: Frame) -> &mut [u8];
    /// Give the frames of so many places from here on back to the system: the places are empty
    /// afterwards.
    fn discard(&mut self, from: Frame, frames: u32);
    /// Put a frame with this content at a page of a child that has none.
    ///
    /// # Errors
    /// [`Fail`].
    fn give(&mut self, child: Child, at: Va, content: &[u8]) -> Result<(), Fail>;
    /// All messages of a child that are there. While one about its mappings is unread, nothing can be
    /// given to it.
    fn child_events(&mut self, child: Child, into: &mut Vec<Event>);
    /// The child has all it needs: its memory is its own business from now on.
    fn let_go(&mut self, child: Child);
    /// Keep the processor busy that this thread faulted on, as if it waited there and did not sleep, until
    /// it [goes on](Kernel::go_on); whether that can be done.
    fn stall(&mut self, _thread: u32) -> bool {
        false
    }
    /// A stalled thread has its page.
    fn go_on(&mut self, _thread: u32) {}
    /// Nanoseconds since some moment.
    fn now_ns(&self) -> u64;
    /// Say that the manager works, in the middle of what may take long.
    fn beat(&self) {}
}
