//! Reads userfaultfd's messages and makes requests to it: [`Kernel`] on Linux.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nearfar_kernel::tiering::NodeId;

use super::uffd::{Message, Uffd};
use super::{DISCARD_PAGES, Linux, MADV_DONTNEED_LOCKED, MapsLine, monotonic, range};
use crate::world::FAR_NODE;
use crate::{Child, Event, Fail, Frame, Kernel, NewRegion, PAGE, Regions, Va};

/// Whether a move wakes the threads that wait at its destination.
const WAKE: bool = true;
const NO_WAKE: bool = false;

/// How long a preempted thread, which has yet to send its message, may wait for a processor.
const PREEMPTED: Duration = Duration::from_millis(10);

/// Decode a message; `None` if its kind is unknown. Its arguments are those of `struct uffd_msg`: flags,
/// address and TID of a fault; descriptor of a fork; source, destination and length of a move; otherwise
/// start and end.
fn decode(message: &Message, adopt: impl FnOnce(RawFd) -> Child) -> Option<Event> {
    let [a, b, c] = message.arguments;
    Some(match message.event {
        Message::FAULT => {
            let at = Va::of(b);
            let protected = a & Message::WP != 0;
            let write = protected || a & Message::WRITE != 0;
            Event::Fault { at, write, protected, thread: c as u32 }
        }
        Message::FORK => Event::Forked(adopt(a as u32 as RawFd)),
        Message::REMAP => Event::Remapped(range(a, a + c), Va::of(b)),
        Message::REMOVE => Event::Removed(range(a, b)),
        Message::UNMAP => Event::Unmapped(range(a, b)),
        _ => return None,
    })
}

fn adopt(children: &mut Vec<Option<Uffd>>, fd: RawFd) -> Child {
    let free = children.iter().position(Option::is_none).unwrap_or(children.len());
    if free == children.len() {
        children.push(None);
    }
    children[free] = Some(Uffd::adopt(fd));
    Child::new(free as u32)
}

impl Kernel for Linux {
    fn events(&mut self, into: &mut Vec<Event>) {
        let count = self.program.read(&mut self.messages);
        let (area, doorbell) = (self.parking.range(), self.parking.last());
        let mut is_area_referenced = false;
        for message in &self.messages[..count] {
            match decode(message, |fd| adopt(&mut self.children, fd)) {
                Some(Event::Fault { at, .. }) if at == doorbell => self.doorbell_rang = true,
                Some(Event::Fault { at, .. }) if area.contains(at) => is_area_referenced = true,
                event => into.extend(event),
            }
        }
        if is_area_referenced {
            self.fail_references();
        }
    }

    fn discover(&mut self, known: &Regions, into: &mut Vec<NewRegion>) {
        self.check_discard_area();
        // The next `fail_references` starts at its minimum duration again.
        self.unreachable_for = Duration::ZERO;
        // `mlockall` may have locked the areas while they were empty.
        self.parking.unlock();
        self.discard_area.unlock();
        // After an error, the next call finds the rest.
        let _ = self.read_maps();
        let text = std::mem::take(&mut self.maps_text);
        for mapping in MapsLine::all(&text).filter(MapsLine::is_private_memory) {
            for part in self.excluded.gaps(range(mapping.start, mapping.end)) {
                for range in known.gaps(part) {
                    let (start, length) = (range.from.address(), range.pages() * PAGE as u64);
                    // A mapping that has changed since the list was read is found by the next call.
                    if self.program.register(start, length, true).is_ok() {
                        self.beat();
                        let present = self.pagemap.present(range);
                        into.push(NewRegion { range, present });
                    }
                }
            }
        }
        self.maps_text = text;
    }

    fn place(&mut self, at: Va, content: &[u8], protect: bool) -> std::result::Result<(), Fail> {
        assert_eq!(content.len(), PAGE);
        self.prefer(NodeId::FAST);
        self.program.copy(at.address(), content.as_ptr(), PAGE as u64, protect).map(|_| ())
    }

    fn place_copy(
        &mut self,
        at: Va,
        from: Frame,
        protect: bool,
        node: NodeId,
    ) -> std::result::Result<(), Fail> {
        self.prefer(node);
        self.program.copy(at.address(), self.parking.at(from), PAGE as u64, protect).map(|_| ())
    }

    fn copy_to_far_node(&mut self, from: Frame, to: Frame) -> std::result::Result<(), Fail> {
        self.prefer(FAR_NODE);
        let (from, at) = (self.parking.at(from), self.parking.at(to));
        self.program.copy(at.addr() as u64, from, PAGE as u64, false)?;
        // If the node is full, the kernel uses another one.
        if self.nodes.as_ref().is_some_and(|nodes| nodes.is_far(at)) {
            return Ok(());
        }
        self.discard(to, 1);
        Err(Fail::NoRoom)
    }

    fn place_zeros(&mut self, at: Va, pages: u64) -> std::result::Result<u64, Fail> {
        self.prefer(NodeId::FAST);
        let length = (pages as usize * PAGE).min(self.zeros.len()) as u64;
        let copy = |length| self.program.copy(at.address(), self.zeros.as_ptr(), length, false);
        let copied = match copy(length) {
            // The range may span mappings: the program has changed the protection of a part.
            Err(Fail::Missing) if pages > 1 => copy(PAGE as u64),
            other => other,
        };
        Ok(copied? / PAGE as u64)
    }

    fn park(&mut self, at: Va, to: Frame) -> std::result::Result<(), Fail> {
        let to = self.parking.at(to).addr() as u64;
        let done = self.program.move_pages(to, at.address(), PAGE as u64, NO_WAKE);
        self.check_moved(done, to, at.address(), 1).map(|_| ())
    }

    fn restore(&mut self, from: Frame, at: Va) -> std::result::Result<(), Fail> {
        let from = self.parking.at(from).addr() as u64;
        let done = self.program.move_pages(at.address(), from, PAGE as u64, WAKE);
        if done.is_err() && self.check_moved(done, at.address(), from, 1).is_ok() {
            self.wake(at);
            return Ok(());
        }
        done.map(|_| ())
    }

    fn protect(&mut self, at: Va, on: bool) -> std::result::Result<(), Fail> {
        self.program.protect(at.address(), PAGE as u64, on)
    }

    fn stall(&mut self, thread: u32) -> bool {
        // A stand-in is a thread that keeps the processor of `thread` busy.
        self.stand_ins.as_mut().is_some_and(|threads| threads.stall(thread))
    }

    fn resume(&mut self, thread: u32) {
        if let Some(threads) = &mut self.stand_ins {
            threads.resume(thread);
        }
    }

    fn is_quiet(&mut self) -> bool {
        // The first page is never mapped: this changes nothing, but is refused while mappings change.
        let quiet = self.program.protect(0, PAGE as u64, false) != Err(Fail::Again);
        if !quiet {
            std::thread::yield_now();
        }
        quiet
    }

    fn wait_for_messages(&mut self) {
        std::thread::sleep(PREEMPTED);
    }

    fn wake(&mut self, at: Va) {
        self.program.wake(at.address(), PAGE as u64);
    }

    fn frame(&self, at: Frame) -> &[u8] {
        // SAFETY: a place of the parking area that has a frame. Nothing else writes it: it is in no mapping
        // of the program, and was not used for I/O when it was parked.
        unsafe { std::slice::from_raw_parts(self.parking.at(at), PAGE) }
    }

    fn frame_mut(&mut self, at: Frame) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.parking.at(at), PAGE) }
    }

    fn discard(&mut self, from: Frame, frames: u32) {
        let area_start = self.discard_area.address();
        let mut from = self.parking.at(from).addr() as u64;
        let end = from + u64::from(frames) * PAGE as u64;
        while from < end {
            let (to, room) =
                (area_start + self.discard_used * PAGE as u64, DISCARD_PAGES - self.discard_used);
            let length = (room * PAGE as u64).min(end - from);
            let done = self.discard_uffd.move_pages(to, from, length, NO_WAKE);
            match self.check_moved(done, to, from, length / PAGE as u64) {
                Ok(moved) => {
                    from += moved;
                    self.discard_used += moved / PAGE as u64;
                }
                // The frame is pinned for a moment: by compaction, or by a reader of its page.
                Err(_) => std::thread::yield_now(),
            }
            if self.discard_used == DISCARD_PAGES {
                // SAFETY: pages of the discard area, which nobody reads.
                unsafe {
                    let length = DISCARD_PAGES as usize * PAGE;
                    libc::madvise(self.discard_area.start.cast(), length, MADV_DONTNEED_LOCKED);
                }
                self.discard_used = 0;
            }
        }
    }

    fn copy_to_child(
        &mut self,
        child: Child,
        at: Va,
        content: &[u8],
    ) -> std::result::Result<(), Fail> {
        assert_eq!(content.len(), PAGE);
        match &self.children[child.number() as usize] {
            Some(uffd) => uffd.copy(at.address(), content.as_ptr(), PAGE as u64, false).map(|_| ()),
            None => Err(Fail::Ended),
        }
    }

    fn child_events(&mut self, child: Child, into: &mut Vec<Event>) {
        let Some(uffd) = &self.children[child.number() as usize] else { return };
        let count = uffd.read(&mut self.messages);
        let (children, messages) = (&mut self.children, self.messages[..count].iter());
        into.extend(messages.filter_map(|message| decode(message, |fd| adopt(children, fd))));
    }

    fn release_child(&mut self, child: Child) {
        // Closes the last descriptor: the child's mappings become ordinary ones.
        self.children[child.number() as usize] = None;
    }

    fn now_ns(&self) -> u64 {
        monotonic()
    }

    fn beat(&self) {
        if let Some(heartbeat) = self.heartbeat {
            heartbeat.store(monotonic(), Ordering::Relaxed);
        }
    }
}
