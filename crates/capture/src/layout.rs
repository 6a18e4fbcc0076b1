//! Layout of the memory that the QEMU plugin and the receiver share, and the encoding of its words.
//!
//! Both sides compile this file (the plugin includes it by path), so it depends only on `core` and
//! `libc`. All offsets are bytes from the start of the shared memory.
//!
//! A *stream* is a ring of 8-byte words that one guest thread writes and the receiver reads. The
//! writer stores its position after every word, so that no word is lost if it is killed. At most
//! `CHUNKS - 1` chunks of the ring are full; equal positions therefore mean an empty ring.
//!
//! # Order between streams
//!
//! An event of an address space concerns all threads of its process, but the receiver reads one
//! ring after another. Every event is therefore enclosed in a *fence*: a record ([`tag::FENCE`]) in
//! the ring of the thread that causes it, with a ticket ([`Header::tickets`]) and the positions of
//! the process's other streams. In the trace, words before these positions precede the event, and
//! later ones follow it. The events come next, and [`tag::FENCE_END`] ends the fence.
//!
//! The time of the fence preserves the order that the program enforces:
//!
//! * *before* a system call that removes mappings or pages (`munmap`, `mremap`, `madvise`, `shmdt`,
//!   `brk` downwards, the end of a process): the program's last use precedes the call, and before
//!   the call returns, the kernel can reuse the range for another thread, whose fence is later;
//! * *after* a system call that adds mappings (`mmap`, `shmat`, `brk` upwards): no thread can know
//!   the range earlier, and the fence that removed its previous mapping is older;
//! * for `fork`, just before, while QEMU stops all other threads.
//!
//! Until [`tag::FENCE_END`] is written, the call has not returned, so no other thread can depend on
//! it, and the receiver need not stop at the fence in their rings. Tickets order the fences of a
//! process: if one ends before another begins, it has the lower ticket.
//!
//! Two races remain. QEMU calls the plugin after an access; if the thread is preempted in between,
//! the access can appear after the `unmap` of another thread that waited for it. And a `mremap` to
//! a range that another thread unmaps during the call appears before that `unmap`.

#[path = "layout/activity.rs"]
mod activity;
#[path = "layout/words.rs"]
mod words;

use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use core::sync::atomic::{AtomicU32, AtomicU64};

pub use activity::{Activity, ThreadActivity, now};
pub use words::*;

/// First word of the shared memory: "nearfar", the version of the encoding, and the sizes below, so
/// that sides built with different layouts reject each other.
pub const MAGIC: u64 = 0x6e65_6172_6661_7209 ^ ((TOTAL as u64) << 16) ^ CHUNK as u64;
/// Bytes in a chunk, the unit in which writers wait for room. Rings are aligned to it.
pub const CHUNK: usize = 128 << 10;
pub const CHUNK_WORDS: usize = CHUNK / 8;
pub const CHUNKS: usize = 8;
/// Bytes in a ring.
pub const RING: usize = CHUNK * CHUNKS;
pub const RING_WORDS: usize = RING / 8;
/// Maximum number of streams (threads of all traced processes) at a time.
pub const STREAMS: usize = 2048;
/// Maximum number of translation blocks in the table; entry 0 means no block.
pub const BLOCKS: usize = 8 << 20;
/// Where the stream slots begin.
pub const SLOTS_AT: usize = 4096;
/// Where the block table begins.
pub const BLOCKS_AT: usize = SLOTS_AT + size_of::<[Slot; STREAMS]>();
/// Where the rings begin: a multiple of [`CHUNK`].
pub const RINGS_AT: usize = (BLOCKS_AT + size_of::<[Block; BLOCKS]>()).next_multiple_of(CHUNK);
/// Total bytes; untouched pages take no memory.
pub const TOTAL: usize = RINGS_AT + STREAMS * RING;

/// One side's mapping of the shared memory. Gives safe access to everything except the words in the
/// rings, each of which belongs to one side at a time.
#[derive(Debug)]
pub struct Memory(NonNull<u8>);

// SAFETY: it only hands out atomics and addresses.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// # Safety
    /// At `start`, a multiple of the page size, [`TOTAL`] bytes of shared memory must be mapped
    /// readable and writable as long as the value or anything borrowed from it is used. All
    /// processes must access them through a `Memory`, except that a stream's writer and reader
    /// access the words of its ring.
    pub const unsafe fn new(start: NonNull<u8>) -> Self {
        Self(start)
    }

    pub fn start(&self) -> NonNull<u8> {
        self.0
    }

    pub fn header(&self) -> &Header {
        // SAFETY: mapped and aligned (contract of `new`); any bytes are valid atomics.
        unsafe { self.0.cast().as_ref() }
    }

    pub fn slots(&self) -> &[Slot; STREAMS] {
        // SAFETY: as for the header; `SLOTS_AT` is aligned for a slot.
        unsafe { self.0.add(SLOTS_AT).cast().as_ref() }
    }

    pub fn blocks(&self) -> &[Block; BLOCKS] {
        // SAFETY: as for the header; `BLOCKS_AT` follows whole slots.
        unsafe { self.0.add(BLOCKS_AT).cast().as_ref() }
    }

    /// The first of the [`RING_WORDS`] words of stream `index`.
    ///
    /// # Panics
    /// There is no such stream.
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
    /// Incremented to wake the receiver, which waits on it (futex).
    pub bell: AtomicU32,
    /// 1 while the receiver waits for the bell.
    pub sleeping: AtomicU32,
    /// A robust futex that a thread of the receiver owns. However the thread ends, the kernel sets
    /// [`OWNER_DIED`] and wakes a waiter.
    pub receiver: AtomicU32,
    /// Not 0: stop recording.
    pub stop: AtomicU32,
    /// [`FOLLOW`] and other flags, set by the receiver before the start.
    pub flags: AtomicU32,
    /// Not 0: the first block of the program was translated.
    pub started: AtomicU32,
    /// Blocks in the table, entry 0 included.
    pub blocks: AtomicU32,
    /// Threads that got no stream, because none was free.
    pub lost_streams: AtomicU32,
    /// Blocks that got no entry in the table, because it was full.
    pub lost_blocks: AtomicU32,
    /// Highest slot used so far, plus 1.
    pub used: AtomicU32,
    /// Number of streams opened so far: the order of the next one.
    pub opened: AtomicU64,
    /// Number of fences so far: the ticket of the next one.
    pub tickets: AtomicU64,
    /// Host address of guest address 0 in the first program, as QEMU chose it.
    pub base: AtomicU64,
    /// Bytes of a mapping for which QEMU had no memory, so that the plugin ended the process.
    pub reservation: AtomicU64,
    /// Share of pages to sample, times 2^64 ([`is_sampled`]); 0: record every reference. The plugin
    /// lowers the share as the footprint grows if [`Header::sample_pages`] is not 0.
    pub sample: AtomicU64,
    /// [`mix`] of the seed of the sample.
    pub sample_seed: AtomicU64,
    /// Pages that a sample of a growing footprint should have at most; 0 for a fixed share.
    pub sample_pages: AtomicU64,
    /// Distinct pages touched so far, if a sample is recorded. After a fork, pages count again.
    pub touched: AtomicU64,
    /// Set to 1 by the receiver to begin the recording of a virtual machine; unused for programs.
    pub record: AtomicU32,
    /// Set to 1 by the plugin once a virtual machine is recorded.
    pub recording: AtomicU32,
    /// References of a virtual machine to memory of devices, which are not recorded.
    pub device_references: AtomicU64,
    /// Where the plugin finds the tasks of a virtual machine; zeros if it does not distinguish them.
    pub tasks: Tasks,
    /// Which threads run.
    pub activity: Activity,
}

/// Where a virtual machine's kernel keeps its tasks. `__switch_to` makes a task current by a store to
/// a per-CPU variable.
#[repr(C)]
pub struct Tasks {
    /// Address of `__switch_to`.
    pub switch: AtomicU64,
    /// The variable's linked address. The copies of all processors are at the same offset in a page, by
    /// which the plugin recognises their stores.
    pub current: AtomicU64,
    /// Offsets in `struct task_struct` of `pid`, `tgid` and `comm`.
    pub offsets: [AtomicU64; 3],
}

/// Bytes of the name of a task (`TASK_COMM_LEN`).
pub const TASK_NAME: usize = 16;

impl Header {
    /// Whether the receiver has ended.
    pub fn receiver_gone(&self) -> bool {
        self.receiver.load(Acquire) & OWNER_DIED != 0
    }
}

/// Bit of [`Header::receiver`]: the receiver has ended.
pub const OWNER_DIED: u32 = 1 << 30;
/// Bit of [`Header::receiver`]: there are waiters.
pub const WAITERS: u32 = 1 << 31;

/// Flag: record child processes as well.
pub const FOLLOW: u32 = 1;
/// Flag: record instruction fetches. The plugin obeys it only in a sample. In whole recordings it
/// always writes fetches, and without the flag the receiver drops them.
pub const FETCH: u32 = 2;

/// log2 of the bytes of a sampled page.
pub const PAGE_SHIFT: u32 = 12;

/// Limit of [`is_sampled`] that samples all pages.
pub const ALL_PAGES: u64 = u64::MAX;

/// Whether the page is in a sample. `page_number` is that of an address cut to [`ADDR_BITS`] bits, `limit`
/// the share of sampled pages times 2^64, and `seed` [`mix`] of the sample's seed.
#[inline(always)]
pub const fn is_sampled(page_number: u64, seed: u64, limit: u64) -> bool {
    limit == ALL_PAGES || mix(page_number ^ seed) < limit
}

/// At most one in this many blocks is in a burst (a part of a sample in which all references are
/// recorded), whatever the share of sampled pages.
const BLOCKS_PER_BURST_BLOCK: u64 = 16;

/// Blocks in a burst of a recording with these flags: enough for 6,400 records that fill a TLB of
/// 1,600 entries, and for 1,000 to measure; with fetches, a block has more records
/// (`crates/study/src/paging/sample/bursts.rs`).
pub const fn burst_blocks(flags: u32) -> u64 {
    if flags & FETCH != 0 { 5000 } else { 8000 }
}

/// Mean number of blocks from the start of a thread's burst to the next, in a sample of `limit`.
/// Without [`FETCH`], the share of blocks in bursts is that of sampled pages; with it, 5/8 of that.
pub fn burst_distance(limit: u64) -> u64 {
    let distance = (8000u128 << 64) / u128::from(limit.max(1));
    u64::try_from(distance).unwrap_or(u64::MAX).clamp(8000 * BLOCKS_PER_BURST_BLOCK, 1 << 48)
}

/// Random start of a burst of `burst` blocks within a part of `distance` blocks. `number` identifies
/// the part, and `seed` is [`mix`] of the sample's seed.
pub fn burst_start(distance: u64, burst: u64, seed: u64, number: u64) -> u64 {
    mix(seed ^ !number) % (distance - burst + 1)
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
#[inline(always)]
pub const fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

/// States of a [`Slot`].
pub mod state {
    /// Unused.
    pub const FREE: u32 = 0;
    /// Being set up by a writer.
    pub const CLAIMED: u32 = 1;
    /// A thread writes to it.
    pub const OPEN: u32 = 2;
    /// Its thread has ended. The receiver frees it when it is empty.
    pub const CLOSED: u32 = 3;
}

/// Which thread writes the stream of a [`Slot`].
pub mod origin {
    /// A further thread of a process.
    pub const THREAD: u32 = 0;
    /// The first thread of a forked process.
    pub const FORK: u32 = 1;
    /// The first thread of a process created by `vfork`.
    pub const VFORK: u32 = 2;
    /// The first thread of a program. Older streams of its process belong to the previous program.
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
    /// Order of opening, unique, from [`Header::opened`].
    pub order: AtomicU64,
    /// In the first stream of a forked process: the order of the stream that forked.
    pub parent: AtomicU64,
    /// Words that the receiver has read so far.
    pub taken: AtomicU64,
    /// Words that the writer had written when it last entered a chunk.
    pub entered: AtomicU64,
    /// Incremented when the receiver has made room (futex).
    pub room: AtomicU32,
    /// Whether the thread runs.
    pub activity: ThreadActivity,
}

impl Slot {
    /// Words that the writer has published so far. Any thread may call this at any time.
    pub fn position(&self) -> u64 {
        // Two attempts nearly always suffice; the limit is for programs that overwrite this memory.
        for _ in 0..16 {
            let entered = self.entered.load(Acquire);
            let cursor = self.cursor.load(Acquire);
            // The writer stores `entered` before its cursor enters the chunk: the cursor may be
            // behind.
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

/// A translation block (straight-line code that is executed as a unit) whose shape does not fit a
/// word.
#[repr(C)]
pub struct Block {
    /// Address of its first instruction, and [`KERNEL_BLOCK`].
    pub addr: AtomicU64,
    /// Bytes of code (low half) and number of instructions (high half).
    pub shape: AtomicU64,
}

/// Bit of [`Block::addr`]: the code is of the kernel of a virtual machine. Of its address, only
/// [`ADDR_BITS`] are stored. Such blocks always use the table.
pub const KERNEL_BLOCK: u64 = 1 << 63;

/// Split [`Block::addr`]: the address, and whether the code is the kernel's.
pub const fn block_addr(addr: u64) -> (u64, bool) {
    // Compare all upper bits: the address of x86-64's vsyscall page has this bit too.
    let kernel = addr >> ADDR_BITS == KERNEL_BLOCK >> ADDR_BITS;
    (if kernel { addr & !KERNEL_BLOCK } else { addr }, kernel)
}
