//! Windows: the trace cut into stretches of at most 64 distinct blocks, so that what does not
//! change within a stretch is worked out once and not for every reference.
//!
//! A block is the smallest page size of the study. A window lists its blocks in order of first
//! reference. Segment j of a window runs from the first reference to block j up to that of block
//! j + 1; a 64-bit mask says which of the window's blocks are referenced again in it, another
//! which are written. The references themselves are kept too, a byte each, for the few segments
//! whose inner order matters.
//!
//! Why this is exact: nothing but a fault changes which pages are resident or marked, and LRU
//! order at the end of a window is the order of last references (see `clock.rs` and
//! `nearfar_hardware::tlb::FullLru`).

use nearfar_trace::hash::PageMap;
use nearfar_trace::{Batch, Kind, KindSet};

/// Most distinct blocks in a window: a bit each in a mask.
pub const MOST: usize = 64;
/// Mark of a write in the byte of a reference.
pub const WRITE: u8 = 0x80;
const SLOTS: usize = 256;

/// A run of whole windows, flattened. Index `j` below runs over the distinct blocks of all windows.
#[derive(Clone, Debug, Default)]
pub struct Chunk {
    /// First `j` of each window, and the end.
    pub starts: Vec<u32>,
    /// Block id.
    pub block: Vec<u32>,
    /// Local numbers of blocks referenced in the segment after its first reference.
    pub again: Vec<u64>,
    /// Those of them that are written.
    pub again_written: Vec<u64>,
    /// Whether the first reference writes.
    pub first_written: Vec<bool>,
    /// Start of the segment in `refs`; one more entry at the end.
    pub segment: Vec<u32>,
    /// Local numbers of each window's blocks by last reference, oldest first.
    pub last: Vec<u8>,
    /// Local number of each reference, with [`WRITE`]; consecutive equals are one.
    pub refs: Vec<u8>,
    /// Block numbers (address >> block shift) of ids given in this chunk, in order.
    pub new_blocks: Vec<u64>,
    /// References beyond one a record, for borders crossed, by log2 of the page size.
    pub crossings: Vec<u64>,
    /// Records that count.
    pub records: u64,
    /// The records themselves, when an engine must see each one.
    pub batches: Vec<Batch>,
}

impl Chunk {
    fn clear(&mut self) {
        self.starts.clear();
        self.block.clear();
        self.again.clear();
        self.again_written.clear();
        self.first_written.clear();
        self.segment.clear();
        self.last.clear();
        self.refs.clear();
        self.new_blocks.clear();
        self.crossings.clear();
        self.crossings.resize(64, 0);
        self.records = 0;
        self.batches.clear();
    }

    /// The windows, as ranges of `j`.
    pub fn windows(&self) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
        self.starts.windows(2).map(|pair| pair[0] as usize..pair[1] as usize)
    }
}

/// Cuts batches into windows; block ids go on from chunk to chunk.
pub struct Windower {
    shift: u32,
    most: usize,
    kinds: KindSet,
    ids: PageMap<u32>,
    /// Where a block was last seen as a local number; true only if the window agrees.
    local: Vec<u8>,
    tags: Box<[Tag; SLOTS]>,
    last_seen: [u32; MOST],
    previous: u32,
    again: u64,
    again_written: u64,
}

#[derive(Clone, Copy)]
struct Tag {
    block: u64,
    local: u8,
    valid: bool,
}

const NO_TAG: Tag = Tag { block: 0, local: 0, valid: false };

impl Windower {
    /// Blocks of 2^`shift` bytes, windows of at most `most` (1..=64) distinct blocks, only
    /// records of `kinds`.
    pub fn new(shift: u32, most: usize, kinds: KindSet) -> Self {
        Self {
            shift,
            most: most.clamp(1, MOST),
            kinds,
            ids: PageMap::default(),
            local: Vec::new(),
            tags: Box::new([NO_TAG; SLOTS]),
            last_seen: [0; MOST],
            previous: u32::MAX,
            again: 0,
            again_written: 0,
        }
    }

    /// Begin a chunk.
    pub fn begin(&mut self, chunk: &mut Chunk) {
        chunk.clear();
        self.open(chunk);
    }

    /// End a chunk: its last window is closed.
    pub fn end(&mut self, chunk: &mut Chunk) {
        self.close(chunk);
        chunk.segment.push(chunk.refs.len() as u32);
        chunk.starts.push(chunk.block.len() as u32);
    }

    /// Add the records of `batch` to the chunk.
    pub fn add(&mut self, batch: &Batch, chunk: &mut Chunk) {
        let writes = (1u8 << Kind::Store as u8) | (1u8 << Kind::KernelStore as u8);
        let size_of_block = 1u64 << self.shift;
        for ((&addr, &kind), &size) in batch.addr.iter().zip(&batch.kind).zip(&batch.size) {
            if self.kinds.0 >> kind & 1 == 0 {
                continue;
            }
            chunk.records += 1;
            let write = writes >> kind & 1;
            let block = addr >> self.shift;
            self.reference(block, write, chunk);
            if (addr & (size_of_block - 1)) + u64::from(size) > size_of_block {
                let last = addr.saturating_add(u64::from(size).max(1) - 1);
                for next in block + 1..=last >> self.shift {
                    self.reference(next, write, chunk);
                }
                // A reference over a border of a page size is one more at that size.
                for (shift, count) in chunk.crossings.iter_mut().enumerate() {
                    *count += (last >> shift) - (addr >> shift);
                }
            }
        }
    }

    #[inline]
    fn reference(&mut self, block: u64, write: u8, chunk: &mut Chunk) {
        let slot = (block ^ block >> 8) as usize % SLOTS;
        let tag = self.tags[slot];
        let local = if tag.block == block && tag.valid {
            tag.local
        } else {
            match self.look_up(block, slot, write, chunk) {
                Some(local) => local,
                None => return,
            }
        };
        self.again |= 1 << local;
        self.again_written |= u64::from(write) << local;
        let byte = local | write << 7;
        if u32::from(byte) != self.previous {
            self.previous = u32::from(byte);
            self.last_seen[usize::from(local)] = chunk.refs.len() as u32;
            chunk.refs.push(byte);
        }
    }

    /// The local number of a block of this window that lost its tag; `None` for a first reference,
    /// which is then noted.
    #[cold]
    fn look_up(&mut self, block: u64, slot: usize, write: u8, chunk: &mut Chunk) -> Option<u8> {
        let next = self.ids.len() as u32;
        let id = *self.ids.entry(block).or_insert(next);
        if id == next {
            chunk.new_blocks.push(block);
            self.local.push(0);
        }
        let mut start = chunk.starts.last().map_or(0, |&s| s as usize);
        let known = self.local[id as usize];
        if chunk.block.get(start + usize::from(known)) == Some(&id) {
            self.tags[slot] = Tag { block, local: known, valid: true };
            return Some(known);
        }
        if chunk.block.len() - start == self.most {
            self.close(chunk);
            self.open(chunk);
            start = chunk.block.len();
        } else if chunk.block.len() > start {
            self.end_segment(chunk);
        }
        let local = (chunk.block.len() - start) as u8;
        self.local[id as usize] = local;
        self.tags[slot] = Tag { block, local, valid: true };
        chunk.block.push(id);
        chunk.first_written.push(write != 0);
        chunk.segment.push(chunk.refs.len() as u32);
        self.last_seen[usize::from(local)] = chunk.refs.len() as u32;
        chunk.refs.push(local | write << 7);
        self.previous = u32::from(local | write << 7);
        None
    }

    fn open(&mut self, chunk: &mut Chunk) {
        chunk.starts.push(chunk.block.len() as u32);
        self.tags.fill(NO_TAG);
        self.previous = u32::MAX;
    }

    fn end_segment(&mut self, chunk: &mut Chunk) {
        chunk.again.push(std::mem::take(&mut self.again));
        chunk.again_written.push(std::mem::take(&mut self.again_written));
    }

    fn close(&mut self, chunk: &mut Chunk) {
        let start = chunk.starts.last().map_or(0, |&s| s as usize);
        let count = chunk.block.len() - start;
        if count > 0 {
            self.end_segment(chunk);
        }
        let from = chunk.last.len();
        chunk.last.extend(0..count as u8);
        chunk.last[from..].sort_unstable_by_key(|&local| self.last_seen[usize::from(local)]);
    }
}
