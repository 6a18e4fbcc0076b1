//! The memory that the QEMU plugin and the receiver share: where things are and what words mean.
//!
//! Both sides compile this one file (the plugin includes it by path), so it needs nothing but
//! `core`. All offsets are bytes from the start of the shared memory.
//!
//! A *stream* is a ring of 8-byte words that one guest thread writes and the receiver reads. The
//! writer's position is stored after every word, so whatever was written is there even when the
//! writer is killed. The ring is never more than `CHUNKS - 1` chunks full, hence equal positions
//! always mean an empty ring.

use core::sync::atomic::{AtomicU32, AtomicU64};

/// First word of the shared memory: "nearfar" and the version of what words mean, with the sizes of
/// everything below, so that two sides that differ in one refuse each other.
pub const MAGIC: u64 = 0x6e65_6172_6661_7202 ^ ((TOTAL as u64) << 16) ^ CHUNK as u64;
/// Bytes in a chunk, the unit in which a writer asks for room. The ring is aligned to it.
pub const CHUNK: usize = 128 << 10;
/// Chunks in a ring.
pub const CHUNKS: usize = 8;
/// Bytes in a ring.
pub const RING: usize = CHUNK * CHUNKS;
/// Most streams (threads of all traced processes) alive at once.
pub const STREAMS: usize = 2048;
/// Most distinct translation blocks in the table; entry 0 stands for none.
pub const BLOCKS: usize = 8 << 20;
/// Where the stream slots begin.
pub const SLOTS_AT: usize = 4096;
/// Where the block table begins.
pub const BLOCKS_AT: usize = SLOTS_AT + STREAMS * size_of::<Slot>();
/// Where the rings begin: a multiple of [`CHUNK`].
pub const RINGS_AT: usize = (BLOCKS_AT + BLOCKS * size_of::<Block>()).next_multiple_of(CHUNK);
/// Bytes in all; untouched pages take no memory.
pub const TOTAL: usize = RINGS_AT + STREAMS * RING;

/// The start of the shared memory.
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// Counts calls for attention; the receiver waits on it (futex).
    pub bell: AtomicU32,
    /// 1 while the receiver waits for the bell.
    pub sleeping: AtomicU32,
    /// Not 0: stop recording.
    pub stop: AtomicU32,
    /// [`FOLLOW`] and other flags, set by the receiver before the start.
    pub flags: AtomicU32,
    /// Not 0: a block of the program was translated.
    pub started: AtomicU32,
    /// Blocks in the table, entry 0 included.
    pub blocks: AtomicU32,
    /// Set when there was no free stream for a thread, or no free entry for a block.
    pub lost_streams: AtomicU32,
    /// See `lost_streams`.
    pub lost_blocks: AtomicU32,
    /// One more than the highest slot that was ever used.
    pub used: AtomicU32,
    /// Orders streams by when they were opened.
    pub opened: AtomicU64,
}

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

/// One stream. 128 bytes, so that two writers never share a cache line.
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
    /// Process that forked the writer's process; 0 for a thread.
    pub parent: AtomicU32,
    /// 1 while the writer waits for room.
    pub waiting: AtomicU32,
    /// Order of opening, from [`Header::opened`].
    pub order: AtomicU64,
    /// Words the receiver has taken, ever.
    pub taken: AtomicU64,
    /// Words the writer had written when it last entered a chunk.
    pub entered: AtomicU64,
    /// Changes whenever the receiver has made room (futex).
    pub room: AtomicU32,
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
/// Most instructions of a block that fits a word.
pub const MOST_COUNT: u64 = 119;
/// Smallest word that is neither a reference nor a block: `CONTROL | TAG << 56`, payload below.
pub const OTHER: u64 = CONTROL | (MOST_COUNT + 1) << COUNT_SHIFT;
/// Bits of a reference, or of a block, that hold the address.
pub const ADDR_BITS: u32 = 48;
/// Where the index of the instruction in its block begins (9 bits).
pub const INDEX_SHIFT: u32 = 48;
/// Most instructions in a block.
pub const INDEX_MASK: u64 = 0x1ff;
/// Where log2 of the size begins (3 bits).
pub const SIZE_SHIFT: u32 = 57;
/// Set when the reference is a store.
pub const STORE: u64 = 1 << 60;

/// Tags of the other control words, above [`MOST_COUNT`]. The payload (56 bits) is the number of words that follow.
pub mod tag {
    /// Nothing: filler before the end of a chunk.
    pub const PAD: u64 = 120;
    /// Transfer between a file and memory, see [`super::Transfer`].
    pub const TRANSFER: u64 = 121;
    /// An event of the address space, see [`super::Event`].
    pub const EVENT: u64 = 122;
    /// A file's name: device, inode, then its text.
    pub const FILE: u64 = 123;
}

/// The word of a block, if it fits one.
pub fn block_word(addr: u64, bytes: u64, instructions: u64) -> Option<u64> {
    let fits = addr >> ADDR_BITS == 0
        && (1..=u64::from(u8::MAX)).contains(&bytes)
        && (1..=MOST_COUNT).contains(&instructions);
    fits.then_some(BLOCK | instructions << COUNT_SHIFT | bytes << BYTES_SHIFT | addr)
}

/// Most words in a control record, its first word included.
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
    /// Protection, as for `mmap`.
    Prot = 4,
    /// Bytes in the name.
    Name = 5,
    /// Number of words before the name.
    Fixed = 6,
}

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
    /// The same, but the new program runs unrecorded.
    pub const EXEC_LOST: u64 = 4;
    /// The program announced last did not start after all.
    pub const EXEC_FAILED: u64 = 5;
    /// A child process began that is not recorded.
    pub const FORK_LOST: u64 = 6;
}
