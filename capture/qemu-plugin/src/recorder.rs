// SPDX-License-Identifier: GPL-2.0-or-later
//! The recorder of this process: the shared memory, and the stream of each thread.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32};

use super::layout::{
    ADDR_BITS, BLOCKS, BYTES_SHIFT, CHUNK, COUNT_SHIFT, FOLLOW, Header, MAGIC, Memory, Slot, TOTAL,
    now, origin, state,
};
use super::sample;

/// Entries of a table that is indexed by the number of a virtual CPU modulo this. QEMU never reuses a
/// number, so two threads share an entry only if this many threads begin during the life of one.
pub const VCPUS: usize = 1 << 22;

/// Opens the streams of this process: rings of 8-byte words, one per guest thread (`layout.rs`).
pub struct Recorder {
    memory: Memory,
    /// For each virtual CPU, the slot of its stream; null before it is opened.
    slot_pointers: &'static [AtomicPtr<Slot>; VCPUS],
    /// Receives words that are to be dropped: its ring is one chunk, overwritten again and again.
    scratch: &'static Slot,
    unrecorded: AtomicBool,
    /// One of [`origin`], for the next stream to be opened.
    origin: AtomicU32,
}

static RECORDER: OnceLock<Recorder> = OnceLock::new();
/// Pid of this process in the receiver's namespace, which can differ from its own; 0 if unknown.
static PROCESS_ID: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static CURRENT_VCPU: Cell<u32> = const { Cell::new(0) };
    /// The stream reserved for the child that this thread forks.
    static RESERVED: Cell<Option<&'static Slot>> = const { Cell::new(None) };
}

pub fn set_current_vcpu(vcpu: u32) {
    CURRENT_VCPU.set(vcpu);
}

pub fn set_process_id(pid: u32) {
    PROCESS_ID.store(pid, Relaxed);
}

pub fn process_id() -> u32 {
    PROCESS_ID.load(Relaxed)
}

/// Query the pid of this process in the receiver's namespace, to which `/proc` belongs unless the
/// program has mounted another one.
fn query_process_id() -> u32 {
    let target = std::fs::read_link("/proc/self").ok();
    target.and_then(|target| target.to_str()?.parse().ok()).unwrap_or_else(std::process::id)
}

pub fn current_vcpu() -> u32 {
    CURRENT_VCPU.get()
}

impl Recorder {
    /// Map the shared memory, close the streams of an earlier program of this process, and become
    /// the recorder of this process.
    pub fn install(file: OwnedFd) -> io::Result<&'static Self> {
        let memory = map_shared(file)?;
        if memory.header().magic.load(Relaxed) != MAGIC {
            return Err(io::Error::other(
                "the plugin and nearfar are of different versions; run `make env`",
            ));
        }
        let slot_pointers =
            map(size_of::<[AtomicPtr<Slot>; VCPUS]>(), libc::PROT_READ | libc::PROT_WRITE)?;
        // SAFETY: never unmapped, aligned to a page, and zero: null pointers.
        let slot_pointers = unsafe { slot_pointers.cast().as_ref() };
        let chunk = map(2 * CHUNK, libc::PROT_READ | libc::PROT_WRITE)?;
        let chunk = chunk.as_ptr().expose_provenance().next_multiple_of(CHUNK) as u64;
        let scratch: &Slot = Box::leak(Box::default());
        scratch.ring.store(chunk, Relaxed);
        scratch.cursor.store(chunk, Relaxed);
        if process_id() == 0 {
            set_process_id(query_process_id());
        }
        let pid = process_id();
        for slot in memory.slots() {
            if slot.state.load(Acquire) == state::OPEN && slot.pid.load(Relaxed) == pid {
                memory.header().activity.end(&slot.activity, now());
                slot.state.store(state::CLOSED, Release);
            }
        }
        let (unrecorded, origin) = (AtomicBool::new(false), AtomicU32::new(origin::PROGRAM));
        let recorder = Self { memory, slot_pointers, scratch, unrecorded, origin };
        let twice = || io::Error::other("the plugin is loaded twice");
        RECORDER.set(recorder).map_err(|_| twice())?;
        Self::installed().ok_or_else(twice)
    }

    #[inline(always)]
    pub fn installed() -> Option<&'static Self> {
        RECORDER.get()
    }

    #[inline(always)]
    pub fn slot_pointer(&self, vcpu: u32) -> &AtomicPtr<Slot> {
        &self.slot_pointers[vcpu as usize % VCPUS]
    }

    pub fn scratch(&self) -> &'static Slot {
        self.scratch
    }

    pub fn header(&self) -> &Header {
        self.memory.header()
    }

    pub fn recording(&self) -> bool {
        !self.unrecorded.load(Relaxed)
    }

    pub fn follows_children(&self) -> bool {
        self.header().flags.load(Relaxed) & FOLLOW != 0
    }

    /// Whether the receiver has stopped recording.
    pub fn stopped(&self) -> bool {
        self.header().stop.load(Relaxed) != 0
    }

    /// End this process if the receiver has ended: unrecorded, it would run on at a fraction of its
    /// speed.
    pub fn end_with_receiver(&self) {
        if self.header().receiver_gone() {
            // The kernel wakes only one waiter when the owner of a robust futex dies: wake the others.
            futex_wake(&self.header().receiver, i32::MAX);
            end_process();
        }
    }

    /// Start a thread that watches for the end of the receiver, even while the other threads block.
    /// If it cannot be started, threads that wait for room still notice the end.
    pub fn watch(&'static self) {
        in_background(|| {
            loop {
                let seen = self.header().receiver.load(Acquire);
                self.end_with_receiver();
                futex_wait(&self.header().receiver, seen, 1000);
            }
        });
    }

    /// Give `vcpu` a stream.
    pub fn open(&self, vcpu: u32) {
        self.write_to_scratch(vcpu);
        sample::begin_counts(self, vcpu);
        if !self.recording() || self.stopped() {
            return;
        }
        let origin = self.origin.swap(origin::THREAD, Relaxed);
        // Only the first stream of a forked process has a parent.
        if let Some(slot) = self.claim(origin, 0) {
            self.assign(slot, vcpu);
        }
    }

    /// Claim a free slot for a stream. If there is none, count the stream as lost.
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

    /// Let `vcpu` write to `slot` from now on.
    fn assign(&self, slot: &Slot, vcpu: u32) {
        slot.pid.store(process_id(), Relaxed);
        self.header().activity.begin(&slot.activity, now());
        slot.state.store(state::OPEN, Release);
        self.slot_pointer(vcpu).store(std::ptr::from_ref(slot).cast_mut(), Relaxed);
    }

    /// Drop the words of `vcpu` from now on.
    pub fn write_to_scratch(&self, vcpu: u32) {
        self.slot_pointer(vcpu).store(std::ptr::from_ref(self.scratch).cast_mut(), Relaxed);
    }

    /// Before a fork by the thread of the stream `parent`: reserve a stream for the child, so that
    /// it has one from its beginning.
    pub fn reserve_for_child(&'static self, origin: u32, parent: u64) {
        RESERVED.set(self.claim(origin, parent));
    }

    /// After the fork, in the parent: the reserved stream, if any.
    pub fn take_reserved(&self) -> Option<&'static Slot> {
        RESERVED.take()
    }

    /// After a fork, in the child, which has only the thread that forked. The parent continues to
    /// write to that thread's stream.
    pub fn after_fork_in_child(&'static self) {
        set_process_id(query_process_id());
        sample::begin_counts(self, current_vcpu());
        match RESERVED.take() {
            Some(slot) => {
                self.assign(slot, current_vcpu());
                self.watch();
            }
            None => {
                self.unrecorded.store(true, Relaxed);
                self.write_to_scratch(current_vcpu());
            }
        }
    }

    /// The words of a fence, which orders an event relative to the other streams (`layout.rs`): a
    /// ticket, then order and position of every stream of this process except `own`.
    pub fn fence_words(&self, own: &Slot) -> Vec<u64> {
        let mut words = vec![self.header().tickets.fetch_add(1, SeqCst)];
        let used = self.header().used.load(Acquire) as usize;
        let pid = process_id();
        for slot in self.memory.slots().iter().take(used) {
            if slot.pid.load(Relaxed) != pid || std::ptr::eq(slot, own) {
                continue;
            }
            let order = slot.order.load(Acquire);
            let position = slot.position();
            // Check the order last: a freed slot gets another order before it is opened again.
            let known = matches!(slot.state.load(Acquire), state::OPEN | state::CLOSED);
            if known && slot.order.load(Relaxed) == order {
                words.extend([order, position]);
            }
        }
        words
    }

    /// Whether `own` is the only open stream of this process.
    pub fn is_last_stream(&self, own: &Slot) -> bool {
        let used = self.header().used.load(Acquire) as usize;
        let pid = process_id();
        !self.memory.slots().iter().take(used).any(|slot| {
            slot.state.load(Acquire) == state::OPEN
                && slot.pid.load(Relaxed) == pid
                && !std::ptr::eq(slot, own)
        })
    }

    /// Tell the receiver that the program is about to begin.
    pub fn started(&self) {
        self.header().started.store(1, Relaxed);
        self.ring_bell();
    }

    /// Add a translation block to the shared table. `shape` is its bytes, and from bit 32 its number
    /// of instructions. Returns its index, or 0 if the table is full.
    pub fn add_block(&self, addr: u64, shape: u64) -> u32 {
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

    /// Address, bytes and number of instructions of the block that `word` encodes.
    #[cfg_attr(test, allow(dead_code, reason = "loopback tests have neither samples nor repeats"))]
    pub fn decode(&self, word: u64) -> (u64, u64, u64) {
        let count = word >> COUNT_SHIFT & 0x7f;
        if count > 0 {
            return (word & ((1 << ADDR_BITS) - 1), word >> BYTES_SHIFT & 0xff, count);
        }
        let block = &self.memory.blocks()[word as usize % BLOCKS];
        let shape = block.shape.load(Relaxed);
        (block.addr.load(Relaxed), shape & u64::from(u32::MAX), shape >> 32)
    }

    /// Wake the receiver.
    pub fn ring_bell(&self) {
        let header = self.header();
        header.bell.fetch_add(1, SeqCst);
        if header.sleeping.load(SeqCst) != 0 {
            futex_wake(&header.bell, 1);
        }
    }
}

/// Run `work` in a new thread, if one can be started.
pub fn in_background(work: impl FnOnce() + Send + 'static) {
    // SAFETY: signal sets are filled in before they are read.
    unsafe {
        let (mut every_signal, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut every_signal);
        // QEMU does not know the thread and cannot handle signals on it.
        libc::pthread_sigmask(libc::SIG_SETMASK, &every_signal, &mut before);
        let _ = std::thread::Builder::new().stack_size(1 << 17).spawn(work);
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, null_mut());
    }
}

pub fn end_process() {
    // SAFETY: `kill` does not end the first process of a pid namespace.
    unsafe {
        libc::kill(libc::getpid(), libc::SIGKILL);
        libc::_exit(128 + libc::SIGKILL);
    }
}

/// Map the shared memory with rings aligned to a chunk. Closes its file, so that the program gets
/// the same descriptors as without the plugin.
fn map_shared(file: OwnedFd) -> io::Result<Memory> {
    let reserved = map(TOTAL + CHUNK, libc::PROT_NONE)?;
    let padding = reserved.as_ptr().align_offset(CHUNK);
    // SAFETY: less than a chunk, and the mapping is a chunk longer than the total.
    let start = unsafe { reserved.add(padding) };
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let how = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: replaces pages mapped above, which no other code uses.
    let mapped =
        unsafe { libc::mmap(start.as_ptr().cast(), TOTAL, protection, how, file.as_raw_fd(), 0) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: never unmapped; the receiver gave the file this length and follows the protocol.
    Ok(unsafe { Memory::new(start) })
}

/// Map `bytes` of private zeros, which are never unmapped. Untouched pages take no memory.
pub fn map(bytes: usize, protection: i32) -> io::Result<NonNull<u8>> {
    let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at any address.
    let start = unsafe { libc::mmap(null_mut(), bytes, protection, how, -1, 0) };
    NonNull::new(start.cast::<u8>())
        .filter(|_| start != libc::MAP_FAILED)
        .ok_or_else(io::Error::last_os_error)
}

/// If `word` is `seen`, wait until its waiters are woken, for at most `milliseconds`.
pub fn futex_wait(word: &AtomicU32, seen: u32, milliseconds: i64) {
    let (tv_sec, tv_nsec) = (milliseconds / 1000, milliseconds % 1000 * 1_000_000);
    let time = libc::timespec { tv_sec, tv_nsec };
    // SAFETY: word and time outlive the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &time) };
}

fn futex_wake(word: &AtomicU32, waiters: i32) {
    // SAFETY: the word outlives the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, waiters) };
}
