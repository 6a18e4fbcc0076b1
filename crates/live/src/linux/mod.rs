//! The kernel itself: Linux 6.8 or later.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nearfar_kernel::tiering::NodeId;
use nearfar_trace::{Error, Result};

use self::mapping::Mapping;
use self::nodes::Nodes;
pub use self::owner::Owner;
use self::pagemap::Pagemap;
pub use self::stand_in::{Post, StandIns};
use self::uffd::{Message, Uffd, feature};
use crate::world::SLOW_NODE;
use crate::{Child, Event, Fail, Found, Frame, Kernel, PAGE, Range, Regions, Va};

mod mapping;
mod mappings;
mod nodes;
mod owner;
mod pagemap;
mod stand_in;
#[cfg(test)]
mod tests;
mod uffd;

/// Messages of one read. More than a program has threads, as a rule: a read that is full of faults
/// leaves other messages for the next.
const BATCH: usize = 64;
/// Pages of the yard: frames that are given back at once, so at most as many are kept for nothing.
const YARD: u64 = 64;
/// How long a thread that could run may have to wait for a processor.
const HELD_UP: Duration = Duration::from_millis(10);
/// Shortest and longest time for which the lot is out of reach while somebody else refers to it.
const ASIDE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(64));
/// `MADV_DONTNEED` that works on locked memory as well (Linux 5.18).
pub const MADV_DONTNEED_LOCKED: i32 = 24;

/// The kernel, for the process that this runs in.
#[derive(Debug)]
pub struct Linux {
    /// Faults and mappings of the program, and the lot.
    program: Uffd,
    /// A few pages to give frames back through. It has no messages: `madvise` on the lot would wait for
    /// its own to be read.
    yard: Uffd,
    yard_pages: Mapping,
    /// Pages of the yard that have frames, the first ones.
    yard_full: u64,
    /// Where frames are parked, and a page more, the doorbell.
    lot: Mapping,
    /// A thread of the program waits at the doorbell.
    called: bool,
    /// For how long the lot was out of reach the last time.
    aside: Duration,
    /// Where the manager shows that it works.
    heartbeat: Option<&'static AtomicU64>,
    zeros: Vec<u8>,
    messages: Vec<Message>,
    children: Vec<Option<Uffd>>,
    stand_ins: Option<StandIns>,
    /// Of a far tier that is a memory node.
    nodes: Option<Nodes>,
    /// What is not the program's: everything that was mapped before.
    excluded: Regions,
    maps: File,
    pagemap: Pagemap,
    text: Vec<u8>,
}

impl Linux {
    /// Open userfaultfd with a lot of this many places. Everything that is mapped now, the lot too, is
    /// left alone for ever.
    ///
    /// # Errors
    /// What is missing, and how to get it.
    pub fn open(lot: u32) -> Result<Self> {
        // SAFETY: asks for a number.
        has_our_pages(unsafe { libc::sysconf(libc::_SC_PAGESIZE) })?;
        let system = |error: io::Error| Error::io(Path::new("userfaultfd"), "opening", &error);
        let features = feature::PAGEFAULT_FLAG_WP
            | feature::EVENT_FORK
            | feature::EVENT_REMAP
            | feature::EVENT_REMOVE
            | feature::EVENT_UNMAP
            | feature::THREAD_ID
            | feature::MOVE;
        let program = Uffd::open(features).map_err(|error| refused(&error))?;
        let yard = Uffd::open(feature::MOVE).map_err(|error| refused(&error))?;
        let lot = Mapping::new(u64::from(lot) + 1).map_err(system)?;
        let yard_pages = Mapping::new(YARD).map_err(system)?;
        let length = |mapping: &Mapping| mapping.pages * PAGE as u64;
        program.register(lot.address(), length(&lot), false).map_err(system)?;
        yard.register(yard_pages.address(), length(&yard_pages), false).map_err(system)?;
        let open =
            |path| File::open(path).map_err(|error| Error::io(Path::new(path), "opening", &error));
        let mut kernel = Self {
            program,
            yard,
            yard_pages,
            yard_full: 0,
            lot,
            called: false,
            aside: Duration::ZERO,
            heartbeat: None,
            zeros: vec![0; 64 * PAGE],
            messages: vec![Message::default(); BATCH],
            children: Vec::new(),
            stand_ins: None,
            nodes: None,
            excluded: Regions::default(),
            maps: open("/proc/self/maps")?,
            pagemap: Pagemap::new(open("/proc/self/pagemap")?),
            text: Vec::with_capacity(1 << 20),
        };
        kernel.exclude_all();
        Ok(kernel)
    }

    /// Leave everything alone that is mapped now.
    pub fn exclude_all(&mut self) {
        self.read_maps();
        for mapping in mappings::all(&self.text) {
            self.excluded.add(mapping.range);
        }
        for own in [self.lot.range(), self.yard_pages.range()] {
            self.excluded.add(own);
        }
    }

    /// Threads that keep processors busy for those that wait.
    pub fn stand_in_by(&mut self, threads: StandIns) {
        self.stand_ins = Some(threads);
    }

    /// The far tier is this memory node, `argument` as it was checked. Frames come from the nodes preferred
    /// by the thread that makes requests, which has to be the same from the first one on.
    ///
    /// # Errors
    /// The node cannot be used.
    pub fn use_node(&mut self, argument: &str) -> Result<()> {
        let (far, fast) = crate::far::nodes(argument)?;
        self.nodes = Some(Nodes::new(far, &fast));
        Ok(())
    }

    fn prefer(&mut self, node: NodeId) {
        if let Some(nodes) = &mut self.nodes {
            nodes.prefer(node != NodeId::FAST);
        }
    }

    /// Where messages come from.
    pub fn descriptor(&self) -> RawFd {
        self.program.as_raw_fd()
    }

    /// Show there that the manager works, whenever it does something that may take long.
    pub fn show_heartbeat(&mut self, heartbeat: &'static AtomicU64) {
        self.heartbeat = Some(heartbeat);
    }

    /// Wait for a message, for something to read from one of the other descriptors, or so long; whether
    /// the second has something.
    pub fn wait(&mut self, others: [Option<RawFd>; 2], nanoseconds: u64) -> bool {
        let [first, second] = others;
        let yard = Some(self.yard.as_raw_fd());
        let ready = wait([Some(self.descriptor()), first, second, yard], nanoseconds);
        if ready[3] {
            self.clear_yard();
        }
        ready[2]
    }

    /// Where a thread of the program has this manager look for new memory at once: a reference to the
    /// page at this address waits until it was done.
    pub fn doorbell(&self) -> u64 {
        self.lot.last().address()
    }

    /// How many pages of these addresses are there.
    pub fn count_present(&mut self, addresses: std::ops::Range<u64>) -> u64 {
        self.pagemap.count(range(addresses.start, addresses.end))
    }

    /// Whether a thread waits at the doorbell.
    pub fn is_called(&self) -> bool {
        self.called
    }

    /// Let who waits at the doorbell go on.
    pub fn answer(&mut self) {
        let at = self.lot.last();
        if self.place_zeros(at, 1) != Err(Fail::Again) {
            self.called = false;
            self.discard(Frame::new((self.lot.pages - 1) as u32), 1);
        }
    }

    fn clear_yard(&mut self) {
        if self.yard.read(&mut self.messages) > 0 {
            self.step_aside();
        }
    }

    /// Somebody refers to an empty place of the lot or of the yard: `mlockall` asks for all memory, and a
    /// debugger may read it. No page can be given there. So both are out of reach for a moment: who waits
    /// is refused, and goes on with what comes next.
    fn step_aside(&mut self) {
        self.aside = (2 * self.aside).clamp(ASIDE.0, ASIDE.1);
        let own = [(&self.program, &self.lot), (&self.yard, &self.yard_pages)];
        for (uffd, mapping) in own {
            mapping.set_reachable(false);
            uffd.wake(mapping.address(), mapping.pages * PAGE as u64);
        }
        std::thread::sleep(self.aside);
        for (_, mapping) in own {
            // Before: what is locked is filled when it can be written again.
            mapping.unlock();
            mapping.set_reachable(true);
        }
    }

    fn read_maps(&mut self) {
        self.text.clear();
        // What cannot be read now is found later.
        if self.maps.rewind().is_ok() {
            let _ = self.maps.read_to_end(&mut self.text);
        }
    }

    /// How many bytes a move of so many pages has moved, whatever it says. Linux from 6.17 on keeps the
    /// error of an attempt at a page that was changing for a moment when the next one succeeds
    /// (`move_pages` in mm/userfaultfd.c): it then finds its own work in the way, and says that there is
    /// a page, or that it has moved fewer. What is not where it was has moved: nobody else takes a page
    /// away while a request is at work, as messages about that are read by who makes it.
    fn really_moved(
        &mut self,
        done: std::result::Result<u64, Fail>,
        to: u64,
        from: u64,
        pages: u64,
    ) -> std::result::Result<u64, Fail> {
        match done {
            Ok(moved) if moved == pages * PAGE as u64 => return done,
            Ok(_) | Err(Fail::Exists) => {}
            Err(_) => return done,
        }
        let page = |start: u64, number: u64| Va::of(start).plus(number);
        let mut is_there = |at: Va| !self.pagemap.present(Range::new(at, at.plus(1))).is_empty();
        let moved = (0..pages)
            .take_while(|&number| !is_there(page(from, number)) && is_there(page(to, number)))
            .count();
        if moved == 0 { done } else { Ok(moved as u64 * PAGE as u64) }
    }
}

/// Wait for something to read from one of these descriptors, or so long; which have something.
pub(crate) fn wait<const N: usize>(descriptors: [Option<RawFd>; N], nanoseconds: u64) -> [bool; N] {
    // A descriptor below zero is none.
    let mut polls = descriptors.map(|fd| libc::pollfd {
        fd: fd.unwrap_or(-1),
        events: libc::POLLIN,
        revents: 0,
    });
    const SECOND: u64 = 1_000_000_000;
    let time = libc::timespec {
        tv_sec: (nanoseconds / SECOND) as i64,
        tv_nsec: (nanoseconds % SECOND) as i64,
    };
    // SAFETY: variables of this function.
    unsafe { libc::ppoll(polls.as_mut_ptr(), N as u64, &raw const time, std::ptr::null()) };
    polls.map(|poll| poll.revents != 0)
}

/// Nanoseconds of CLOCK_MONOTONIC.
pub(crate) fn monotonic() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to the variable of this function.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Kernels for aarch64 may have pages of 16 or 64 KiB: they move none that are smaller.
fn has_our_pages(bytes: libc::c_long) -> Result<()> {
    if usize::try_from(bytes) == Ok(PAGE) {
        return Ok(());
    }
    let what = format!("its pages are of {bytes} bytes");
    Err(Error::missing("kernel", what, format!("use one whose pages are of {PAGE} bytes")))
}

/// Why userfaultfd cannot be had.
fn refused(error: &io::Error) -> Error {
    let (what, fix) = match error.raw_os_error() {
        Some(libc::EPERM) => {
            ("this user may not use it", "run as root, or with the capability CAP_SYS_PTRACE")
        }
        Some(libc::ENOSYS) => ("the kernel has none", "use a kernel with CONFIG_USERFAULTFD"),
        Some(libc::EINVAL) => ("the kernel cannot move pages", "use Linux 6.8 or later"),
        _ => return Error::io(Path::new("userfaultfd"), "opening", error),
    };
    Error::missing("userfaultfd", what, fix)
}

fn range(start: u64, end: u64) -> Range {
    Range::new(Va::of(start), Va::of(end))
}

/// A message, or none of ours.
fn event(message: &Message, adopt: impl FnOnce(RawFd) -> Child) -> Option<Event> {
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
        let (lot, doorbell, mut in_the_way) = (self.lot.range(), self.lot.last(), false);
        for message in &self.messages[..count] {
            match event(message, |fd| adopt(&mut self.children, fd)) {
                Some(Event::Fault { at, .. }) if at == doorbell => self.called = true,
                Some(Event::Fault { at, .. }) if lot.from <= at && at < lot.to => in_the_way = true,
                event => into.extend(event),
            }
        }
        if in_the_way {
            self.step_aside();
        }
    }

    fn discover(&mut self, known: &Regions, into: &mut Vec<Found>) {
        self.clear_yard();
        self.aside = Duration::ZERO;
        // `mlockall` may have locked them without filling them.
        self.lot.unlock();
        self.yard_pages.unlock();
        self.read_maps();
        let text = std::mem::take(&mut self.text);
        for mapping in mappings::all(&text).filter(|mapping| mapping.is_private_memory) {
            for part in self.excluded.gaps(mapping.range) {
                for range in known.gaps(part) {
                    let (start, length) = (range.from.address(), range.pages() * PAGE as u64);
                    // What is not as it was when the list was read is found later.
                    if self.program.register(start, length, true).is_ok() {
                        self.beat();
                        let present = self.pagemap.present(range);
                        into.push(Found { range, present });
                    }
                }
            }
        }
        self.text = text;
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
        self.program.copy(at.address(), self.lot.at(from), PAGE as u64, protect).map(|_| ())
    }

    fn copy_to_far_node(&mut self, from: Frame, to: Frame) -> std::result::Result<(), Fail> {
        self.prefer(SLOW_NODE);
        let (from, at) = (self.lot.at(from), self.lot.at(to));
        self.program.copy(at.addr() as u64, from, PAGE as u64, false)?;
        // Of a full node the kernel gives frames of another.
        if self.nodes.as_ref().is_some_and(|nodes| nodes.has(at)) {
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
            // More than one mapping: the program has changed the protection of a part.
            Err(Fail::Missing) if pages > 1 => copy(PAGE as u64),
            other => other,
        };
        Ok(copied? / PAGE as u64)
    }

    fn park(&mut self, at: Va, to: Frame) -> std::result::Result<(), Fail> {
        let to = self.lot.at(to).addr() as u64;
        let done = self.program.take(to, at.address(), PAGE as u64, false);
        self.really_moved(done, to, at.address(), 1).map(|_| ())
    }

    fn restore(&mut self, from: Frame, at: Va) -> std::result::Result<(), Fail> {
        let from = self.lot.at(from).addr() as u64;
        let done = self.program.take(at.address(), from, PAGE as u64, true);
        if done.is_err() && self.really_moved(done, at.address(), from, 1).is_ok() {
            self.wake(at);
            return Ok(());
        }
        done.map(|_| ())
    }

    fn protect(&mut self, at: Va, on: bool) -> std::result::Result<(), Fail> {
        self.program.protect(at.address(), PAGE as u64, on)
    }

    fn stall(&mut self, thread: u32) -> bool {
        self.stand_ins.as_mut().is_some_and(|threads| threads.stall(thread))
    }

    fn go_on(&mut self, thread: u32) {
        if let Some(threads) = &mut self.stand_ins {
            threads.go_on(thread);
        }
    }

    fn is_quiet(&mut self) -> bool {
        // The first page is nobody's: a request for it does nothing, and is refused like any other.
        let quiet = self.program.protect(0, PAGE as u64, false) != Err(Fail::Again);
        if !quiet {
            std::thread::yield_now();
        }
        quiet
    }

    fn let_others_run(&mut self) {
        std::thread::sleep(HELD_UP);
    }

    fn wake(&mut self, at: Va) {
        self.program.wake(at.address(), PAGE as u64);
    }

    fn frame(&self, at: Frame) -> &[u8] {
        // SAFETY: a place of the lot that has a frame, which nobody else writes: it is out of the
        // program's mappings, and was not held for I/O when it came.
        unsafe { std::slice::from_raw_parts(self.lot.at(at), PAGE) }
    }

    fn frame_mut(&mut self, at: Frame) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` lends it.
        unsafe { std::slice::from_raw_parts_mut(self.lot.at(at), PAGE) }
    }

    fn discard(&mut self, from: Frame, frames: u32) {
        let yard = self.yard_pages.address();
        let mut from = self.lot.at(from).addr() as u64;
        let end = from + u64::from(frames) * PAGE as u64;
        while from < end {
            let (to, room) = (yard + self.yard_full * PAGE as u64, YARD - self.yard_full);
            let length = (room * PAGE as u64).min(end - from);
            let done = self.yard.take(to, from, length, false);
            match self.really_moved(done, to, from, length / PAGE as u64) {
                Ok(moved) => {
                    from += moved;
                    self.yard_full += moved / PAGE as u64;
                }
                // Somebody holds the frame for a moment: compaction, or a look at the page.
                Err(_) => std::thread::yield_now(),
            }
            if self.yard_full == YARD {
                // SAFETY: pages of the yard, which nobody reads.
                unsafe {
                    let length = YARD as usize * PAGE;
                    libc::madvise(self.yard_pages.start.cast(), length, MADV_DONTNEED_LOCKED);
                }
                self.yard_full = 0;
            }
        }
    }

    fn give(&mut self, child: Child, at: Va, content: &[u8]) -> std::result::Result<(), Fail> {
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
        into.extend(messages.filter_map(|message| event(message, |fd| adopt(children, fd))));
    }

    fn let_go(&mut self, child: Child) {
        // The last descriptor: its mappings are ordinary ones from now on.
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
