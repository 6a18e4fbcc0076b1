// SPDX-License-Identifier: GPL-2.0-or-later
//! Streams: the rings in shared memory that guest threads write to.

use std::cell::Cell;
use std::ffi::CString;
use std::io;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32};

use crate::layout::{
    BLOCKS, BLOCKS_AT, Block, CHUNK, CHUNKS, CONTROL, FOLLOW, Header, MAGIC, MAX_CONTROL, RING,
    RINGS_AT, SLOTS_AT, STREAMS, Slot, TOTAL, state, tag, what,
};

/// QEMU numbers virtual processors upwards for ever when threads come and go; two threads that
/// are alive together would have to be this many apart to be mistaken for each other.
const VCPUS: usize = 1 << 22;

/// For each virtual processor, where it writes.
static SLOTS: AtomicPtr<*mut Slot> = AtomicPtr::new(null_mut());
static SHARED: AtomicPtr<u8> = AtomicPtr::new(null_mut());
/// Takes the words that nobody wants.
static SCRATCH: AtomicPtr<Slot> = AtomicPtr::new(null_mut());
/// This process is not recorded (any more).
static OFF: AtomicBool = AtomicBool::new(false);
static PATH: OnceLock<CString> = OnceLock::new();

thread_local! {
    /// The virtual processor whose system call this thread is in.
    static CURRENT: Cell<u32> = const { Cell::new(0) };
}

/// Write one word to the stream of `vcpu`.
///
/// # Safety
/// Only from the thread of `vcpu`, after [`open`].
#[inline(always)]
pub unsafe fn put(vcpu: u32, word: u64) {
    unsafe {
        let slot = *SLOTS.load(Relaxed).add(vcpu as usize & (VCPUS - 1));
        let cursor = (*slot).cursor.load(Relaxed);
        (cursor as *mut u64).write(word);
        let next = cursor + 8;
        if next & (CHUNK as u64 - 1) == 0 {
            enter(slot, next);
        } else {
            (*slot).cursor.store(next, Release);
        }
    }
}

/// The writer has come to the end of a chunk: wait until there is room in the next ones.
#[cold]
#[inline(never)]
unsafe fn enter(slot: *mut Slot, next: u64) {
    let scratch = std::ptr::eq(slot, SCRATCH.load(Relaxed));
    let slot = unsafe { &*slot };
    let ring = slot.ring.load(Relaxed);
    if scratch {
        slot.cursor.store(ring, Relaxed);
        return;
    }
    let next = if next == ring + RING as u64 { ring } else { next };
    let entered = slot.entered.load(Relaxed) + (CHUNK / 8) as u64;
    slot.entered.store(entered, Relaxed);
    slot.cursor.store(next, Release);
    if OFF.load(Relaxed) {
        return;
    }
    ring_bell();
    let most = ((CHUNKS - 2) * CHUNK / 8) as u64;
    let mut tries = 0;
    while entered - slot.taken.load(Acquire) > most {
        if header().stop.load(Relaxed) != 0 {
            return;
        }
        let room = slot.room.load(Acquire);
        slot.waiting.store(1, SeqCst);
        if entered - slot.taken.load(SeqCst) > most {
            futex_wait(&slot.room, room, 100);
            tries += 1;
            // The receiver may be slow, or it may have been killed: then nobody will ever read.
            if tries % 5 == 0 && receiver_gone() {
                OFF.store(true, Relaxed);
                return;
            }
        }
        slot.waiting.store(0, Relaxed);
    }
}

fn receiver_gone() -> bool {
    PATH.get().is_some_and(|path| unsafe { libc::access(path.as_ptr(), libc::F_OK) } != 0)
}

/// Write a control record: `tag`, then `words`, all or nothing.
pub fn control(vcpu: u32, kind: u64, words: &[u64]) {
    if OFF.load(Relaxed) || words.len() >= MAX_CONTROL {
        return;
    }
    unsafe {
        let pointer = *SLOTS.load(Relaxed).add(vcpu as usize & (VCPUS - 1));
        let slot = &*pointer;
        let space = |cursor: u64| (CHUNK as u64 - (cursor & (CHUNK as u64 - 1))) / 8;
        let mut cursor = slot.cursor.load(Relaxed);
        let room = space(cursor);
        if room < words.len() as u64 + 1 {
            (cursor as *mut u64).write(CONTROL | tag::PAD << 56 | (room - 1));
            enter(pointer, cursor + room * 8);
            cursor = slot.cursor.load(Relaxed);
        }
        (cursor as *mut u64).write(CONTROL | kind << 56 | words.len() as u64);
        for (index, word) in words.iter().enumerate() {
            (cursor as *mut u64).add(index + 1).write(*word);
        }
        let next = cursor + (words.len() as u64 + 1) * 8;
        if next & (CHUNK as u64 - 1) == 0 {
            enter(pointer, next);
        } else {
            slot.cursor.store(next, Release);
        }
    }
}

/// Write a control record that ends in text.
pub fn control_text(vcpu: u32, kind: u64, fixed: &[u64], text: &[u8]) {
    let text = &text[..text.len().min(4096)];
    let mut words = fixed.to_vec();
    words.push(text.len() as u64);
    for piece in text.chunks(8) {
        let mut bytes = [0; 8];
        bytes[..piece.len()].copy_from_slice(piece);
        words.push(u64::from_le_bytes(bytes));
    }
    control(vcpu, kind, &words);
}

/// An event without a range.
pub fn note(vcpu: u32, what: u64, name: &[u8]) {
    control_text(vcpu, tag::EVENT, &[what, 0, 0, 0, 0], name);
}

fn header() -> &'static Header {
    unsafe { &*SHARED.load(Relaxed).cast::<Header>() }
}

fn slot(index: usize) -> &'static Slot {
    unsafe { &*SHARED.load(Relaxed).add(SLOTS_AT).cast::<Slot>().add(index) }
}

/// Whether this process is recorded.
pub fn recording() -> bool {
    !OFF.load(Relaxed)
}

/// Note which virtual processor the calling thread is.
pub fn this_is(vcpu: u32) {
    CURRENT.set(vcpu);
}

/// Map the shared memory and take the slots that an earlier program of this process had.
pub fn attach(path: &str) -> io::Result<()> {
    let text = CString::new(path)?;
    unsafe {
        let fd = libc::open(text.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // Reserve more than is needed, to align the rings to a chunk.
        let spread = libc::mmap(
            null_mut(),
            TOTAL + CHUNK,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        );
        if spread == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = (spread as usize).next_multiple_of(CHUNK);
        let mapped = libc::mmap(
            start as *mut _,
            TOTAL,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE,
            fd,
            0,
        );
        libc::close(fd);
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        SHARED.store(mapped.cast(), Relaxed);
        if header().magic.load(Relaxed) != MAGIC {
            return Err(io::Error::other(
                "the plugin and nearfar are of different versions; run `make env`",
            ));
        }
        let slots = libc::mmap(
            null_mut(),
            VCPUS * size_of::<*mut Slot>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        );
        if slots == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        SLOTS.store(slots.cast(), Relaxed);
        make_scratch()?;
        let pid = std::process::id();
        for slot in (0..STREAMS).map(slot) {
            if slot.state.load(Acquire) == state::OPEN && slot.pid.load(Relaxed) == pid {
                slot.state.store(state::CLOSED, Release);
            }
        }
    }
    let _ = PATH.set(text);
    Ok(())
}

/// A private slot whose ring is one chunk, written over and over.
unsafe fn make_scratch() -> io::Result<()> {
    unsafe {
        let mut chunk = null_mut();
        let slot: *mut Slot = Box::into_raw(Box::new(std::mem::zeroed()));
        if libc::posix_memalign(&mut chunk, CHUNK, CHUNK) != 0 {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        (*slot).ring.store(chunk as u64, Relaxed);
        (*slot).cursor.store(chunk as u64, Relaxed);
        SCRATCH.store(slot, Relaxed);
    }
    Ok(())
}

/// Give `vcpu` a stream. `parent` is the process that forked this one, 0 for a new thread.
pub fn open(vcpu: u32, parent: u32) {
    let place = unsafe { &mut *SLOTS.load(Relaxed).add(vcpu as usize & (VCPUS - 1)) };
    *place = SCRATCH.load(Relaxed);
    if OFF.load(Relaxed) || header().stop.load(Relaxed) != 0 {
        return;
    }
    for index in 0..STREAMS {
        let slot = slot(index);
        let claimed =
            slot.state.compare_exchange(state::FREE, state::CLAIMED, AcqRel, Relaxed).is_ok();
        if !claimed {
            continue;
        }
        let ring = SHARED.load(Relaxed) as u64 + (RINGS_AT + index * RING) as u64;
        slot.ring.store(ring, Relaxed);
        slot.cursor.store(ring, Relaxed);
        slot.pid.store(std::process::id(), Relaxed);
        slot.parent.store(parent, Relaxed);
        slot.waiting.store(0, Relaxed);
        slot.taken.store(0, Relaxed);
        slot.entered.store(0, Relaxed);
        header().used.fetch_max(index as u32 + 1, Relaxed);
        slot.order.store(header().opened.fetch_add(1, Relaxed), Relaxed);
        slot.state.store(state::OPEN, Release);
        *place = std::ptr::from_ref(slot).cast_mut();
        return;
    }
    header().lost_streams.fetch_add(1, Relaxed);
}

/// The thread of `vcpu` has executed its last instruction.
pub fn close(vcpu: u32) {
    let place = unsafe { &mut *SLOTS.load(Relaxed).add(vcpu as usize & (VCPUS - 1)) };
    let scratch = SCRATCH.load(Relaxed);
    let old = std::mem::replace(place, scratch);
    if !old.is_null() && !std::ptr::eq(old, scratch) {
        unsafe { (*old).state.store(state::CLOSED, Release) };
        ring_bell();
    }
}

/// In the parent of a fork.
pub fn forked_parent() {
    if header().flags.load(Relaxed) & FOLLOW == 0 {
        note(CURRENT.get(), what::FORK_LOST, b"");
    }
}

/// In the child of a fork, whose only thread is the one that forked. The parent goes on writing
/// to the stream that the child's thread had.
pub fn forked_child() {
    let vcpu = CURRENT.get();
    if header().flags.load(Relaxed) & FOLLOW == 0 {
        OFF.store(true, Relaxed);
    }
    open(vcpu, unsafe { libc::getppid() } as u32);
}

/// The program has begun.
pub fn started() {
    header().started.store(1, Relaxed);
}

/// Add a block to the shared table; 0 when it is full.
pub fn new_block(addr: u64, shape: u64) -> u32 {
    let index = header().blocks.fetch_add(1, Relaxed);
    if index as usize >= BLOCKS {
        header().blocks.store(BLOCKS as u32, Relaxed);
        header().lost_blocks.store(1, Relaxed);
        return 0;
    }
    let block =
        unsafe { &*SHARED.load(Relaxed).add(BLOCKS_AT).cast::<Block>().add(index as usize) };
    block.addr.store(addr, Relaxed);
    block.shape.store(shape, Release);
    index
}

fn ring_bell() {
    let header = header();
    header.bell.fetch_add(1, SeqCst);
    if header.sleeping.load(SeqCst) != 0 {
        futex_wake(&header.bell);
    }
}

fn futex_wait(word: &AtomicU32, seen: u32, milliseconds: i64) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: milliseconds * 1_000_000 };
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &time);
    }
}

fn futex_wake(word: &AtomicU32) {
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1);
    }
}
