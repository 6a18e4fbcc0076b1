//! The encoding of words. A word is a *reference* (load or store), a *block* (the program enters a
//! translation block of QEMU), or a *control word*, which begins a control record of several words.

use super::CHUNK;

/// Set in blocks and control words, clear in references.
pub const CONTROL: u64 = 1 << 63;
/// A block: address, bytes ([`BYTES_SHIFT`]) and number of instructions ([`COUNT_SHIFT`]). With 0
/// instructions, the low 32 bits are its index in the block table. Otherwise, with 0 bytes, it is a
/// *count-only block*: it counts instructions but makes no fetch record.
pub const BLOCK: u64 = CONTROL;
/// Position of a block's bytes (8 bits).
pub const BYTES_SHIFT: u32 = 48;
/// Position of a block's number of instructions (7 bits).
pub const COUNT_SHIFT: u32 = 56;
/// Maximum number of instructions of a block that fits a word.
pub const MAX_COUNT: u64 = 119;
/// Smallest control word: `CONTROL | TAG << 56`, with a payload in the low 56 bits.
pub const MIN_CONTROL: u64 = CONTROL | (MAX_COUNT + 1) << COUNT_SHIFT;
/// Number of address bits in a reference or block.
pub const ADDR_BITS: u32 = 48;
/// Position, in a reference, of the instruction's index in its block (9 bits).
pub const INDEX_SHIFT: u32 = 48;
/// Maximum index of an instruction in a block.
pub const INDEX_MASK: u64 = 0x1ff;
/// Position, in a reference, of log2 of the size (3 bits).
pub const SIZE_SHIFT: u32 = 57;
/// Set if the reference is a store.
pub const STORE: u64 = 1 << 60;
/// Set if the kernel of a virtual machine made the reference.
pub const KERNEL: u64 = 1 << 61;

/// Tags of control words, above [`MAX_COUNT`]. The payload of a control word is the number of words
/// that follow it in its record.
pub mod tag {
    /// Padding before the end of a chunk.
    pub const PAD: u64 = 120;
    /// Transfer between a file and memory, see [`super::Transfer`].
    pub const TRANSFER: u64 = 121;
    /// An event of the address space, see [`super::Event`].
    pub const EVENT: u64 = 122;
    /// A file's name: device, inode, then its text.
    pub const FILE: u64 = 123;
    /// A fence, which orders events between streams (`layout.rs`): its ticket, then order (serial
    /// number) and position of each other stream of the process. All words of unlisted streams
    /// follow the fence.
    pub const FENCE: u64 = 124;
    pub const FENCE_END: u64 = 125;
    /// In a sample, the position and counts of the thread, see [`super::Place`].
    pub const PLACE: u64 = 126;
    /// In a sample, begins or ends a burst, in which every reference of the thread is recorded. One
    /// word: how many blocks of the run the burst represents, or 0 at its end.
    pub const BURST: u64 = 127;
}

/// Encode a count-only block as a word, if it fits.
pub fn count_only_word(instructions: u64) -> Option<u64> {
    (1..=MAX_COUNT).contains(&instructions).then_some(BLOCK | instructions << COUNT_SHIFT)
}

/// Encode a block as a word, if it fits.
pub fn block_word(addr: u64, bytes: u64, instructions: u64) -> Option<u64> {
    let fits = addr >> ADDR_BITS == 0
        && (1..=u64::from(u8::MAX)).contains(&bytes)
        && (1..=MAX_COUNT).contains(&instructions);
    fits.then_some(BLOCK | instructions << COUNT_SHIFT | bytes << BYTES_SHIFT | addr)
}

/// Maximum number of words in a control record, including the control word.
pub const MAX_CONTROL: usize = CHUNK / 16;

/// Indices of a transfer's words after the control word. Address and bytes of each buffer of the
/// program follow these words.
#[repr(usize)]
pub enum Transfer {
    /// 1 if the file (or socket) is written, 0 if it is read.
    Write = 0,
    /// Device of the file, or [`NO_FILE`] if it is not a regular file.
    Device = 1,
    Inode = 2,
    /// Offset in the file.
    Offset = 3,
    /// Bytes moved.
    Bytes = 4,
    /// Number of words before the buffers.
    Fixed = 5,
}

/// Indices of a place record's words after the control word: the thread's position, which the next
/// record needs, and its counts so far, including what the sample omits.
#[repr(usize)]
pub enum Place {
    /// Instructions before the current block.
    BlockStart = 0,
    /// Instructions up to the end of the current block.
    BlockEnd = 1,
    /// Number of blocks.
    Fetches = 2,
    Loads = 3,
    Stores = 4,
    /// Number of words.
    Words = 5,
}

/// Device of a transfer without a regular file.
pub const NO_FILE: u64 = u64::MAX;

/// Indices of an event's words after the control word. The name follows, as its length in bytes and
/// its text.
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
    /// Inode of that file; 0 if there is none.
    Inode = 6,
    /// Bytes in the name.
    Name = 7,
    /// Number of words before the name.
    Fixed = 8,
}

/// Bit of a protection: the mapping is shared.
pub const SHARED: u64 = 8;

/// Kinds of events.
pub mod what {
    /// A range was mapped.
    pub const MAP: u64 = 0;
    /// A range was unmapped.
    pub const UNMAP: u64 = 1;
    /// The heap is now this range (`brk`).
    pub const BRK: u64 = 2;
    /// The process is about to become another program; recording goes on.
    pub const EXEC: u64 = 3;
    /// The process is about to become another program, unrecorded. `addr` is one of
    /// [`super::lost`].
    pub const EXEC_LOST: u64 = 4;
    /// The last announced program did not start.
    pub const EXEC_FAILED: u64 = 5;
    /// An unrecorded child process began.
    pub const FORK_LOST: u64 = 6;
    /// `mremap`: `offset` is the new length, `prot` the flags, `device` the new address.
    pub const REMAP: u64 = 7;
    /// The pages of a range were discarded (`MADV_DONTNEED`).
    pub const DONTNEED: u64 = 8;
    /// The pages of a range may be discarded (`MADV_FREE`).
    pub const FREE: u64 = 9;
    /// The pages of a range and the contents of its file there were discarded (`MADV_REMOVE`).
    pub const REMOVE: u64 = 10;
    /// The `shmat` mapping at `addr` was unmapped (`shmdt`).
    pub const DETACH: u64 = 11;
    /// A child process began: `addr` is the order of its stream, `length` its pid.
    pub const FORKED: u64 = 12;
    /// The process is about to end.
    pub const EXIT: u64 = 13;
    /// The process has waited for pid `addr`, which may have ended.
    pub const WAITED: u64 = 14;
    /// Stores of an instruction cannot be observed. The name is the instruction's.
    pub const UNSEEN: u64 = 15;
    /// The kernel made the pages of a range resident (`MAP_POPULATE`, `MADV_POPULATE_READ`,
    /// `MADV_POPULATE_WRITE`).
    pub const POPULATE: u64 = 16;
    /// A range was locked in memory (`mlock`), which makes its pages resident unless `offset` is
    /// not 0 (`MLOCK_ONFAULT`).
    pub const LOCK: u64 = 17;
    /// A range was unlocked (`munlock`).
    pub const UNLOCK: u64 = 18;
    /// A range may have huge pages (`MADV_HUGEPAGE`).
    pub const HUGE: u64 = 19;
    /// A range may not have huge pages (`MADV_NOHUGEPAGE`).
    pub const NO_HUGE: u64 = 20;
    /// The pages of a range were made huge (`MADV_COLLAPSE`).
    pub const COLLAPSE: u64 = 21;
    /// Since the last such event, no thread ran for `addr` nanoseconds, and in the rest of the time
    /// `length` / 1000 threads on average ([`Activity`](super::Activity)).
    pub const IDLE: u64 = 22;
    /// A processor of a virtual machine runs another task from now on: `addr` is its pid, `length`
    /// that of its process, `offset` the time in nanoseconds. The name is the task's.
    pub const TASK: u64 = 23;
    /// Huge pages of the process are allowed (`addr` is 0), disabled (1), or limited to advised
    /// ranges (2): `PR_SET_THP_DISABLE`.
    pub const THP_DISABLE: u64 = 24;
}

/// Why a program runs unrecorded.
pub mod lost {
    /// It is not a program for this QEMU.
    pub const OTHER: u64 = 0;
    /// Its file can be executed but not read.
    pub const UNREADABLE: u64 = 1;
    /// Its arguments cannot be read.
    pub const ARGUMENTS: u64 = 2;
    /// QEMU or the plugin can no longer be opened.
    pub const INACCESSIBLE: u64 = 3;
    /// QEMU could not be started for it.
    pub const START: u64 = 4;
}
