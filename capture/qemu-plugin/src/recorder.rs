// SPDX-License-Identifier: GPL-2.0-or-later
//! The recorder of this process: the shared memory, and which thread writes to which stream.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32};

use super::layout::{BLOCKS, CHUNK, FOLLOW, Header, MAGIC, Memory, Slot, TOTAL, origin, state};

/// QEMU numbers virtual processors upwards for ever when threads come and go; two threads that
/// are alive together would have to be this many apart to be mistaken for each other.
const VCPUS: usize = 1 << 22;

/// What writes for this process.
pub struct Recorder {
    memory: Memory,
    /// For each virtual processor, the slot of its stream; null before it is opened.
    places: &'static [AtomicPtr<Slot>; VCPUS],
    /// Takes the words that nobody wants: its ring is one chunk, written over and over.
    scratch: &'static Slot,
    /// This process is not recorded (any more).
    off: AtomicBool,
    /// What the next stream to be opened is, one of [`origin`].
    origin: AtomicU32,
}

static RECORDER: OnceLock<Recorder> = OnceLock::new();
/// This process as the receiver numbers it, which a process namespace does otherwise; 0 is none.
static PROCESS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The virtual processor whose system call this thread is in.
    static CURRENT: Cell<u32> = const { Cell::new(0) };
    /// The stream kept for the child that this thread forks.
    static CHILD: Cell<Option<&'static Slot>> = const { Cell::new(None) };
}

/// Note which virtual processor the calling thread is.
pub fn this_is(vcpu: u32) {
    CURRENT.set(vcpu);
}

/// This process has this number for the receiver.
pub fn this_process_is(number: u32) {
    PROCESS.store(number, Relaxed);
}

/// The number of this process for the receiver.
pub fn process() -> u32 {
    PROCESS.load(Relaxed)
}

/// The same, newly asked for. `/proc` is the one of the receiver's namespace, unless the program has
/// mounted another one.
fn number() -> u32 {
    let own = std::fs::read_link("/proc/self").ok();
    own.and_then(|own| own.to_str()?.parse().ok()).unwrap_or_else(std::process::id)
}

/// The virtual processor that the calling thread is.
pub fn current() -> u32 {
    CURRENT.get()
}

impl Recorder {
    /// Map the shared memory, close the streams that an earlier program of this process had, and
    /// become the recorder of this process.
    pub fn install(file: OwnedFd) -> io::Result<&'static Self> {
        let memory = map_shared(file)?;
        if memory.header().magic.load(Relaxed) != MAGIC {
            return Err(io::Error::other(
                "the plugin and nearfar are of different versions; run `make env`",
            ));
        }
        let places =
            map(size_of::<[AtomicPtr<Slot>; VCPUS]>(), libc::PROT_READ | libc::PROT_WRITE)?;
        // SAFETY: mapped for ever, aligned to a page and all zero: null pointers.
        let places = unsafe { places.cast().as_ref() };
        let chunk = map(2 * CHUNK, libc::PROT_READ | libc::PROT_WRITE)?;
        let chunk = chunk.as_ptr().expose_provenance().next_multiple_of(CHUNK) as u64;
        let scratch: &Slot = Box::leak(Box::default());
        scratch.ring.store(chunk, Relaxed);
        scratch.cursor.store(chunk, Relaxed);
        if process() == 0 {
            this_process_is(number());
        }
        let pid = process();
        for slot in memory.slots() {
            if slot.state.load(Acquire) == state::OPEN && slot.pid.load(Relaxed) == pid {
                slot.state.store(state::CLOSED, Release);
            }
        }
        let (off, origin) = (AtomicBool::new(false), AtomicU32::new(origin::PROGRAM));
        let recorder = Self { memory, places, scratch, off, origin };
        let twice = || io::Error::other("the plugin is loaded twice");
        RECORDER.set(recorder).map_err(|_| twice())?;
        Self::installed().ok_or_else(twice)
    }

    /// The recorder of this process.
    #[inline(always)]
    pub fn installed() -> Option<&'static Self> {
        RECORDER.get()
    }

    /// Where the slot of `vcpu` is noted.
    #[inline(always)]
    pub fn place(&self, vcpu: u32) -> &AtomicPtr<Slot> {
        &self.places[vcpu as usize % VCPUS]
    }

    /// The slot that takes the words that nobody wants.
    pub fn scratch(&self) -> &'static Slot {
        self.scratch
    }

    fn header(&self) -> &Header {
        self.memory.header()
    }

    /// Whether this process is recorded.
    pub fn recording(&self) -> bool {
        !self.off.load(Relaxed)
    }

    /// Record this process no more.
    pub fn turn_off(&self) {
        self.off.store(true, Relaxed);
    }

    /// Whether child processes are recorded.
    pub fn follows(&self) -> bool {
        self.header().flags.load(Relaxed) & FOLLOW != 0
    }

    /// Whether the receiver has all that it wants.
    pub fn stopped(&self) -> bool {
        self.header().stop.load(Relaxed) != 0
    }

    /// End this process if the receiver has ended: nobody would record it any more, and it would run
    /// on at a fraction of its speed.
    pub fn end_with_receiver(&self) {
        if self.header().receiver_gone() {
            // The kernel has woken one of those that watch.
            futex_wake(&self.header().receiver, i32::MAX);
            // SAFETY: ends this process. The first one of a process namespace is not killed so.
            unsafe {
                libc::kill(libc::getpid(), libc::SIGKILL);
                libc::_exit(128 + libc::SIGKILL);
            }
        }
    }

    /// Have a thread watch for the end of the receiver: whatever the others do, wherever they wait.
    pub fn watch(&'static self) {
        let watch = || loop {
            let seen = self.header().receiver.load(Acquire);
            self.end_with_receiver();
            futex_wait(&self.header().receiver, seen, 1000);
        };
        // SAFETY: signal sets are filled in before they are read.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&mut all);
            // QEMU knows nothing of the thread, and could handle no signal there.
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            // Where there can be no more threads, those that wait for room see it.
            let _ = std::thread::Builder::new().stack_size(1 << 17).spawn(watch);
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, null_mut());
        }
    }

    /// Give `vcpu` a stream.
    pub fn open(&self, vcpu: u32) {
        let place = self.place(vcpu);
        place.store(std::ptr::from_ref(self.scratch).cast_mut(), Relaxed);
        if !self.recording() || self.stopped() {
            return;
        }
        let origin = self.origin.swap(origin::THREAD, Relaxed);
        if let Some(slot) = self.claim(origin, 0) {
            self.adopt(slot, vcpu);
        }
    }

    /// An empty stream for somebody who does not write yet; counted as lost when there is none.
    fn claim(&self, origin: u32, parent: u64) -> Option<&Slot> {
        for (index, slot) in self.memory.slots().iter().enumerate() {
            let claimed =
                slot.state.compare_exchange(state::FREE, state::CLAIMED, AcqRel, Relaxed).is_ok();
            if !claimed {
                continue;
            }
            let ring = self.memory.ring(index).as_ptr().expose_provenance() as u64;
            slot.ring.store(ring, Relaxed);
            slot.cursor.store(ring, Relaxed);
            slot.origin.store(origin, Relaxed);
            slot.parent.store(parent, Relaxed);
            slot.waiting.store(0, Relaxed);
            slot.taken.store(0, Relaxed);
            slot.entered.store(0, Relaxed);
            self.header().used.fetch_max(index as u32 + 1, Relaxed);
            slot.order.store(self.header().opened.fetch_add(1, Relaxed), Release);
            return Some(slot);
        }
        self.header().lost_streams.fetch_add(1, Relaxed);
        None
    }

    /// `vcpu`, of this process, writes to `slot` from now on.
    fn adopt(&self, slot: &Slot, vcpu: u32) {
        slot.pid.store(process(), Relaxed);
        slot.state.store(state::OPEN, Release);
        self.place(vcpu).store(std::ptr::from_ref(slot).cast_mut(), Relaxed);
    }

    /// Before a fork by the thread that writes to the stream `parent`: keep a stream for the child,
    /// so that one is there as soon as the child is.
    pub fn keep_for_child(&'static self, origin: u32, parent: u64) {
        CHILD.set(self.claim(origin, parent));
    }

    /// After the fork, in the parent: the stream that was kept, if one was.
    pub fn kept_for_child(&self) -> Option<&'static Slot> {
        CHILD.take()
    }

    /// In the child of a fork, whose only thread is the one that forked. The parent goes on writing
    /// to the stream that the child's thread had.
    pub fn forked_child(&'static self) {
        this_process_is(number());
        let place = self.place(current());
        match CHILD.take() {
            Some(slot) => {
                self.adopt(slot, current());
                self.watch();
            }
            None => {
                self.turn_off();
                place.store(std::ptr::from_ref(self.scratch).cast_mut(), Relaxed);
            }
        }
    }

    /// A ticket, then order and position of every stream of this process but `own`: what others have
    /// written before some moment. The ticket is taken first.
    pub fn moment(&self, own: &Slot) -> Vec<u64> {
        let mut words = vec![self.header().tickets.fetch_add(1, SeqCst)];
        let used = self.header().used.load(Acquire) as usize;
        let pid = process();
        for slot in self.memory.slots().iter().take(used) {
            if slot.pid.load(Relaxed) != pid || std::ptr::eq(slot, own) {
                continue;
            }
            let order = slot.order.load(Acquire);
            let position = slot.position();
            // In this order: once a stream is freed, its slot gets another number before it is open.
            let known = matches!(slot.state.load(Acquire), state::OPEN | state::CLOSED);
            if known && slot.order.load(Relaxed) == order {
                words.extend([order, position]);
            }
        }
        words
    }

    /// Whether `own` is the only stream that this process writes to.
    pub fn alone(&self, own: &Slot) -> bool {
        let used = self.header().used.load(Acquire) as usize;
        let pid = process();
        !self.memory.slots().iter().take(used).any(|slot| {
            slot.state.load(Acquire) == state::OPEN
                && slot.pid.load(Relaxed) == pid
                && !std::ptr::eq(slot, own)
        })
    }

    /// The program is about to begin: the receiver shall know before anything else can happen.
    pub fn started(&self) {
        self.header().started.store(1, Relaxed);
        self.ring_bell();
    }

    /// Add a block to the shared table; 0 when it is full.
    pub fn new_block(&self, addr: u64, shape: u64) -> u32 {
        let index = self.header().blocks.fetch_add(1, Relaxed);
        let Some(block) = self.memory.blocks().get(index as usize) else {
            self.header().blocks.store(BLOCKS as u32, Relaxed);
            self.header().lost_blocks.fetch_add(1, Relaxed);
            return 0;
        };
        block.addr.store(addr, Relaxed);
        block.shape.store(shape, Release);
        index
    }

    /// Call for the receiver's attention.
    pub fn ring_bell(&self) {
        let header = self.header();
        header.bell.fetch_add(1, SeqCst);
        if header.sleeping.load(SeqCst) != 0 {
            futex_wake(&header.bell, 1);
        }
    }
}

/// The shared memory, mapped so that its rings, and with them chunks, are aligned to a chunk. Its
/// file is closed again, so that the program finds the descriptors that it would find without us.
fn map_shared(file: OwnedFd) -> io::Result<Memory> {
    let spread = map(TOTAL + CHUNK, libc::PROT_NONE)?;
    let padding = spread.as_ptr().align_offset(CHUNK);
    // SAFETY: less than a chunk, which is what was mapped beyond the total.
    let start = unsafe { spread.add(padding) };
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let how = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: takes the place of pages mapped above, which nobody else knows.
    let mapped =
        unsafe { libc::mmap(start.as_ptr().cast(), TOTAL, protection, how, file.as_raw_fd(), 0) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: mapped for ever; the receiver made the file so long and accesses it as agreed.
    Ok(unsafe { Memory::new(start) })
}

/// A new private mapping of `bytes` zeros, which stays for ever. Untouched pages take no memory.
fn map(bytes: usize, protection: i32) -> io::Result<NonNull<u8>> {
    let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, wherever the system has room.
    let start = unsafe { libc::mmap(null_mut(), bytes, protection, how, -1, 0) };
    NonNull::new(start.cast::<u8>())
        .filter(|_| start != libc::MAP_FAILED)
        .ok_or_else(io::Error::last_os_error)
}

/// Wait until `word` is woken, if it is `seen`, for so long at most.
pub fn futex_wait(word: &AtomicU32, seen: u32, milliseconds: i64) {
    let (tv_sec, tv_nsec) = (milliseconds / 1000, milliseconds % 1000 * 1_000_000);
    let time = libc::timespec { tv_sec, tv_nsec };
    // SAFETY: a word and a time that are there during the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &time) };
}

fn futex_wake(word: &AtomicU32, most: i32) {
    // SAFETY: a word that is there during the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, most) };
}
