//! The memory that the QEMU plugin and the receiver share: where things are and what words mean.
//!
//! Both sides compile this one file (the plugin includes it by path), so it needs nothing but
//! `core`. All offsets are bytes from the start of the shared memory.
//!
//! A *stream* is a ring of 8-byte words that one guest thread writes and the receiver reads. The
//! writer's position is stored after every word, so whatever was written is there even when the
//! writer is killed. The ring is never more than `CHUNKS - 1` chunks full, hence equal positions
//! always mean an empty ring.
//!
//! # Order between streams
//!
//! What happens to an address space concerns all threads of its process, and the receiver empties
//! one ring after the other. So every event has a *moment*: a record ([`tag::MOMENT`]) in the ring of
//! the thread that causes it, with a ticket ([`Header::tickets`]) and how far each other stream of
//! the process has come. What these have written by then comes before the event in the trace, what
//! they write later after it. [`tag::DONE`] ends the moment; the events themselves stand between.
//!
//! A moment is taken where nothing that the program has ordered can fall on the wrong side:
//!
//! * *before* the system call, when it takes something away (`munmap`, `mremap`, `madvise`, `shmdt`,
//!   `brk` downwards, the end of a process): the program's last use of it has come before, and the
//!   kernel can give the range to another thread, whose moment is later, before the call returns;
//! * *after* it, when it gives something (`mmap`, `shmat`, `brk` upwards): nobody can know of the
//!   range sooner, and whoever had it before has had an earlier moment to give it back;
//! * for `fork`, just before, while QEMU keeps all other threads from running.
//!
//! Until there is a [`tag::DONE`] the call has not returned, so nothing that others write can depend
//! on it: the receiver need not wait. Tickets order the moments of a process: one that is over before
//! another begins has the lower ticket.
//!
//! One step can be seen too late: QEMU calls us after an access, so a thread that is interrupted in
//! between may have let another go on before the access is written down. Such an access can come
//! after the `unmap` that it made possible. A `mremap` that moves a range to where another thread
//! unmaps something during the call comes before that `unmap`.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// First word of the shared memory: "nearfar" and the version of what words mean, with the sizes of
/// everything below, so that two sides that differ in one refuse each other.
pub const MAGIC: u64 = 0x6e65_6172_6661_7204 ^ ((TOTAL as u64) << 16) ^ CHUNK as u64;
/// Bytes in a chunk, the unit in which a writer asks for room. The ring is aligned to it.
pub const CHUNK: usize = 128 << 10;
/// Words in a chunk.
pub const CHUNK_WORDS: usize = CHUNK / 8;
/// Chunks in a ring.
pub const CHUNKS: usize = 8;
/// Bytes in a ring.
pub const RING: usize = CHUNK * CHUNKS;
/// Words in a ring.
pub const RING_WORDS: usize = RING / 8;
/// Largest number of streams (threads of all traced processes) alive at once.
pub const STREAMS: usize = 2048;
/// Largest number of distinct translation blocks in the table; entry 0 stands for none.
pub const BLOCKS: usize = 8 << 20;
/// Where the stream slots begin.
pub const SLOTS_AT: usize = 4096;
/// Where the block table begins.
pub const BLOCKS_AT: usize = SLOTS_AT + size_of::<[Slot; STREAMS]>();
/// Where the rings begin: a multiple of [`CHUNK`].
pub const RINGS_AT: usize = (BLOCKS_AT + size_of::<[Block; BLOCKS]>()).next_multiple_of(CHUNK);
/// Bytes in all; untouched pages take no memory.
pub const TOTAL: usize = RINGS_AT + STREAMS * RING;

/// The shared memory as one side has it mapped: safe access to everything but the words in the rings,
/// which belong to one side at a time.
#[derive(Debug)]
pub struct Memory(NonNull<u8>);

// SAFETY: all that it gives out is atomics, and addresses.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// # Safety
    /// At `start`, a multiple of a page, [`TOTAL`] bytes of shared memory are mapped for reading and
    /// writing, for as long as the value or anything borrowed from it is used. They are accessed
    /// through a `Memory` only (in any process), but for words of a ring, which the holder of the
    /// writing or reading end of its stream may access.
    pub const unsafe fn new(start: NonNull<u8>) -> Self {
        Self(start)
    }

    /// The first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.0
    }

    /// The header.
    pub fn header(&self) -> &Header {
        // SAFETY: mapped and aligned, by `new`; atomics, for which any bytes are a value.
        unsafe { self.0.cast().as_ref() }
    }

    /// The slots of all streams.
    pub fn slots(&self) -> &[Slot; STREAMS] {
        // SAFETY: as for the header; a page's multiple plus `SLOTS_AT` is aligned for a slot.
        unsafe { self.0.add(SLOTS_AT).cast().as_ref() }
    }

    /// The block table.
    pub fn blocks(&self) -> &[Block; BLOCKS] {
        // SAFETY: as for the header; `BLOCKS_AT` comes after whole slots.
        unsafe { self.0.add(BLOCKS_AT).cast().as_ref() }
    }

    /// The first word of the ring of stream `index`, which has [`RING_WORDS`].
    ///
    /// # Panics
    /// Where there is no such stream.
    pub fn ring(&self, index: usize) -> NonNull<u64> {
        assert!(index < STREAMS, "stream {index}");
        // SAFETY: within the mapping.
        unsafe { self.0.add(RINGS_AT + index * RING).cast() }
    }
}

/// The start of the shared memory.
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// Counts calls for attention; the receiver waits on it (futex).
    pub bell: AtomicU32,
    /// 1 while the receiver waits for the bell.
    pub sleeping: AtomicU32,
    /// A thread of the receiver, as a robust futex names its owner: when the thread ends, however it
    /// does, the kernel sets [`OWNER_DIED`] and wakes one that waits. Seeing it takes no privilege.
    pub receiver: AtomicU32,
    /// Not 0: stop recording.
    pub stop: AtomicU32,
    /// [`FOLLOW`] and other flags, set by the receiver before the start.
    pub flags: AtomicU32,
    /// Not 0: a block of the program was translated.
    pub started: AtomicU32,
    /// Blocks in the table, entry 0 included.
    pub blocks: AtomicU32,
    /// Threads for which there was no free stream.
    pub lost_streams: AtomicU32,
    /// Blocks for which there was no free entry.
    pub lost_blocks: AtomicU32,
    /// One more than the highest slot that was ever used.
    pub used: AtomicU32,
    /// Orders streams by when they were opened.
    pub opened: AtomicU64,
    /// Moments taken.
    pub tickets: AtomicU64,
}

impl Header {
    /// Whether the receiver has ended.
    pub fn receiver_gone(&self) -> bool {
        self.receiver.load(Acquire) & OWNER_DIED != 0
    }
}

/// Bit of [`Header::receiver`]: the receiver has ended.
pub const OWNER_DIED: u32 = 1 << 30;
/// Bit of [`Header::receiver`]: somebody waits for that.
pub const WAITERS: u32 = 1 << 31;

/// Flag: record child processes as well.
pub const FOLLOW: u32 = 1;

/// States of a [`Slot`].
pub mod state {
    /// Nobody uses it.
    pub const FREE: u32 = 0;
    /// Being set up by a writer.
    pub const CLAIMED: u32 = 1;
    /// A thread writes to it.
    pub const OPEN: u32 = 2;
    /// Its thread has ended; the receiver frees it once it is empty.
    pub const CLOSED: u32 = 3;
}

/// Whose stream a [`Slot`] is.
pub mod origin {
    /// A further thread of its process.
    pub const THREAD: u32 = 0;
    /// The first one of a process that was forked.
    pub const FORK: u32 = 1;
    /// The same, by `vfork`.
    pub const VFORK: u32 = 2;
    /// The first one of a program: older streams of its process are of another program.
    pub const PROGRAM: u32 = 3;
}

/// One stream. 128 bytes, so that two writers never share a cache line.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Slot {
    /// Where the next word goes: an address in the writer's address space.
    pub cursor: AtomicU64,
    /// Address of the ring's first byte in the writer's address space.
    pub ring: AtomicU64,
    /// One of [`state`].
    pub state: AtomicU32,
    /// Process of the writer.
    pub pid: AtomicU32,
    /// One of [`origin`].
    pub origin: AtomicU32,
    /// 1 while the writer waits for room.
    pub waiting: AtomicU32,
    /// Order of opening, from [`Header::opened`]: no two streams have the same.
    pub order: AtomicU64,
    /// Of a forked process's first stream: the order of the stream that forked.
    pub parent: AtomicU64,
    /// Words the receiver has taken, ever.
    pub taken: AtomicU64,
    /// Words the writer had written when it last entered a chunk.
    pub entered: AtomicU64,
    /// Changes whenever the receiver has made room (futex).
    pub room: AtomicU32,
}

impl Slot {
    /// Words that its writer has published, ever. Anybody may ask, at any time.
    pub fn position(&self) -> u64 {
        // Once more is enough, but for a program that writes here itself.
        for _ in 0..16 {
            let entered = self.entered.load(Acquire);
            let cursor = self.cursor.load(Acquire);
            // The writer notes that it enters a chunk before its cursor does.
            if self.entered.load(Relaxed) == entered {
                let ring = self.ring.load(Relaxed);
                let ahead = (cursor.wrapping_sub(ring) / 8).wrapping_sub(entered) as usize;
                let ahead = ahead % RING_WORDS;
                let behind = if ahead < CHUNK_WORDS { 0 } else { RING_WORDS };
                return entered.wrapping_add(ahead as u64).saturating_sub(behind as u64);
            }
        }
        self.entered.load(Acquire)
    }
}

/// A translation block (straight-line code that is executed as a unit) that does not fit a word.
#[repr(C)]
pub struct Block {
    /// Address of its first instruction.
    pub addr: AtomicU64,
    /// Bytes of code (low half) and number of instructions (high half).
    pub shape: AtomicU64,
}

/// Set in every word that is not a load or store.
pub const CONTROL: u64 = 1 << 63;
/// A block begins: its address, its bytes ([`BYTES_SHIFT`]) and number of instructions
/// ([`COUNT_SHIFT`]). No instructions: the low 32 bits are its index in the table.
pub const BLOCK: u64 = CONTROL;
/// Where the bytes of a block begin (8 bits).
pub const BYTES_SHIFT: u32 = 48;
/// Where the number of instructions of a block begins.
pub const COUNT_SHIFT: u32 = 56;
/// Largest number of instructions of a block that fits a word.
pub const MAX_COUNT: u64 = 119;
/// Smallest word that is neither a reference nor a block: `CONTROL | TAG << 56`, payload below.
pub const OTHER: u64 = CONTROL | (MAX_COUNT + 1) << COUNT_SHIFT;
/// Bits of a reference, or of a block, that hold the address.
pub const ADDR_BITS: u32 = 48;
/// Where the index of the instruction in its block begins (9 bits).
pub const INDEX_SHIFT: u32 = 48;
/// Largest number of instructions in a block.
pub const INDEX_MASK: u64 = 0x1ff;
/// Where log2 of the size begins (3 bits).
pub const SIZE_SHIFT: u32 = 57;
/// Set when the reference is a store.
pub const STORE: u64 = 1 << 60;

/// Tags of the other control words, above [`MAX_COUNT`]. The payload (56 bits) is the number of
/// words that follow.
pub mod tag {
    /// Nothing: filler before the end of a chunk.
    pub const PAD: u64 = 120;
    /// Transfer between a file and memory, see [`super::Transfer`].
    pub const TRANSFER: u64 = 121;
    /// An event of the address space, see [`super::Event`].
    pub const EVENT: u64 = 122;
    /// A file's name: device, inode, then its text.
    pub const FILE: u64 = 123;
    /// A moment: its ticket, then the order and the position of other streams of the process in
    /// turn. One that is not named is written to later.
    pub const MOMENT: u64 = 124;
    /// The end of a moment.
    pub const DONE: u64 = 125;
}

/// The word of a block, if it fits one.
pub fn block_word(addr: u64, bytes: u64, instructions: u64) -> Option<u64> {
    let fits = addr >> ADDR_BITS == 0
        && (1..=u64::from(u8::MAX)).contains(&bytes)
        && (1..=MAX_COUNT).contains(&instructions);
    fits.then_some(BLOCK | instructions << COUNT_SHIFT | bytes << BYTES_SHIFT | addr)
}

/// Upper limit of the words in a control record, its first word included.
pub const MAX_CONTROL: usize = CHUNK / 16;

/// Words of a transfer after the control word; `(address, bytes)` of the user's buffers follow.
#[repr(usize)]
pub enum Transfer {
    /// 1 when the file (or socket) is written, 0 when it is read.
    Write = 0,
    /// Device of the file, all ones when it is not a regular file.
    Device = 1,
    /// Inode.
    Inode = 2,
    /// Offset in the file.
    Offset = 3,
    /// Bytes moved.
    Bytes = 4,
    /// Number of words before the buffers.
    Fixed = 5,
}

/// Device of a transfer that touches no file.
pub const NO_FILE: u64 = u64::MAX;

/// Words of an event after the control word; then the length of its name in bytes, and the name.
#[repr(usize)]
pub enum Event {
    /// One of [`what`].
    What = 0,
    /// First address.
    Addr = 1,
    /// Bytes.
    Length = 2,
    /// Offset in the file.
    Offset = 3,
    /// Protection, as for `mmap`, and [`SHARED`].
    Prot = 4,
    /// Device of the file that is mapped.
    Device = 5,
    /// Its inode; 0 where there is no file.
    Inode = 6,
    /// Bytes in the name.
    Name = 7,
    /// Number of words before the name.
    Fixed = 8,
}

/// Bit of a protection: writes are seen by all that have the same mapped.
pub const SHARED: u64 = 8;

/// What an event is about.
pub mod what {
    /// A range was mapped.
    pub const MAP: u64 = 0;
    /// A range was unmapped.
    pub const UNMAP: u64 = 1;
    /// The heap is now this range.
    pub const BRK: u64 = 2;
    /// The process is about to become another program; recording goes on.
    pub const EXEC: u64 = 3;
    /// The same, but the new program runs unrecorded: `addr` says why, one of [`super::lost`].
    pub const EXEC_LOST: u64 = 4;
    /// The program announced last did not start after all.
    pub const EXEC_FAILED: u64 = 5;
    /// A child process began that is not recorded.
    pub const FORK_LOST: u64 = 6;
    /// `mremap`: `offset` is the new length, `prot` the flags, `device` the new address.
    pub const REMAP: u64 = 7;
    /// The pages of a range were given up (`MADV_DONTNEED`).
    pub const DONTNEED: u64 = 8;
    /// The pages of a range may be given up (`MADV_FREE`).
    pub const FREE: u64 = 9;
    /// A range and what its file holds there were given up (`MADV_REMOVE`).
    pub const REMOVE: u64 = 10;
    /// What `shmat` mapped at `addr` was unmapped.
    pub const DETACH: u64 = 11;
    /// A child process began: `addr` is the order of its stream, `length` its process.
    pub const FORKED: u64 = 12;
    /// The process ends.
    pub const EXIT: u64 = 13;
    /// The process has waited for process `addr`, which may have ended.
    pub const WAITED: u64 = 14;
    /// Stores of an instruction are not seen: its name says which.
    pub const UNSEEN: u64 = 15;
}

/// Why a program runs unrecorded.
pub mod lost {
    /// It is no program for this QEMU.
    pub const OTHER: u64 = 0;
    /// Its file can be executed, but not read.
    pub const UNREADABLE: u64 = 1;
    /// Its arguments cannot be read.
    pub const ARGUMENTS: u64 = 2;
    /// QEMU or the plugin cannot be opened any more.
    pub const REACH: u64 = 3;
    /// QEMU could not be started in its place.
    pub const START: u64 = 4;
}
