//! Windows: runs of records with at most 64 distinct blocks. A block is simulated once per window
//! instead of once per reference.
//!
//! Blocks have the smallest page size of the study. A window lists its blocks in order of first
//! reference; the index in this list is a block's local number. Segment j of a window begins with the
//! first reference to block j and ends before that to block j + 1. One 64-bit mask marks the blocks
//! referenced in the segment after its first reference, another the blocks written. The references are
//! stored too, one byte each, for the few segments in which their order matters.
//!
//! This is exact: only a fault evicts pages or clears accessed bits, and the LRU order at the end of
//! a window is the order of last references (see `clock.rs` and `nearfar_hardware::tlb::FullLru`).

use std::ops::Range;

use nearfar_hardware::table::grow;
use nearfar_trace::hash::PageMap;
use nearfar_trace::{Batch, KindSet, RegionEvent, last_byte};

use super::options::MIN_PAGE;
use crate::lifetimes::{Blocks, Change};

/// Maximum number of distinct blocks in a window: bits of a mask.
pub const MAX_BLOCKS: usize = 64;
/// Flag in the byte of a reference: a write.
pub const WRITE: u8 = 0x80;
/// Mask of the local number in the byte of a reference.
pub const LOCAL: u8 = MAX_BLOCKS as u8 - 1;
/// log2 of the slots of [`Windower::tags`].
const SLOT_BITS: u32 = 9;
const SLOTS: usize = 1 << SLOT_BITS;
/// Low bits of a tag that hold the local number; the others hold the block. Blocks have at least
/// [`MAX_BLOCKS`] bytes, so a block number leaves these bits free.
const LOCAL_BITS: u32 = MAX_BLOCKS.ilog2();
const _: () = assert!(MIN_PAGE >> LOCAL_BITS > 0);
/// Sentinel: no previous reference in this window.
const NO_REF: u8 = u8::MAX;

/// A sequence of whole windows, flattened. Index `j` below counts the entries of all windows' block
/// lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// First `j` of each window, and the end.
    pub starts: Vec<u32>,
    pub block: Vec<u32>,
    /// Bit mask of local numbers referenced in the segment after its first reference.
    pub again: Vec<u64>,
    /// Bit mask of local numbers written in the segment after its first reference.
    pub again_written: Vec<u64>,
    /// Whether the first reference writes.
    pub first_written: Vec<bool>,
    /// Start of the segment in `refs`; one more entry at the end.
    pub segment: Vec<u32>,
    /// Local numbers of each window's blocks by last reference, oldest first.
    pub last: Vec<u8>,
    /// Local number of each reference, with [`WRITE`]. Consecutive repeats are stored once.
    pub refs: Vec<u8>,
    /// Block numbers (address >> block shift) of the ids assigned in this chunk, in order; empty
    /// with lifetimes, where `changes` has them.
    pub new_blocks: Vec<u64>,
    /// With lifetimes: births, ends and other changes of blocks, each with the window before which
    /// it happens.
    pub changes: Vec<(u32, Change)>,
    /// References beyond one per record, for records that cross page borders, by log2 of the page
    /// size.
    pub crossings: Vec<u64>,
    /// Records of the selected kinds.
    pub records: u64,
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
        self.changes.clear();
        self.crossings.clear();
        self.crossings.resize(64, 0);
        self.records = 0;
    }

    /// Approximate size of the windows in bytes.
    pub fn bytes(&self) -> u64 {
        // Per distinct block of a window.
        const BLOCK: usize = 2 * size_of::<u64>() + 2 * size_of::<u32>() + 2;
        let changes = self.changes.len() * size_of::<(u32, Change)>();
        (self.block.len() * BLOCK + self.starts.len() * 4 + self.refs.len() + changes) as u64
    }

    /// The windows, as ranges of `j`.
    pub fn windows(&self) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
        self.starts.windows(2).map(|pair| pair[0] as usize..pair[1] as usize)
    }
}

/// Cuts batches into windows. Block ids continue from chunk to chunk.
pub struct Windower {
    shift: u32,
    max_blocks: usize,
    kinds: KindSet,
    ids: PageMap<u32>,
    /// With lifetimes; replaces `ids`.
    lives: Option<Box<Lives>>,
    /// By block: its last local number, valid only if the window has the block there.
    local: Vec<u8>,
    /// Direct-mapped cache: the slot's last block, and its local number. An empty slot has a block
    /// of another slot.
    tags: Box<[u64; SLOTS]>,
    /// Byte of the previous reference in this window, or [`NO_REF`].
    previous: u8,
    /// Masks of the current segment, as in [`Chunk`].
    again: u64,
    again_written: u64,
    /// Records of this chunk that cross into the next block, by log2 of the largest page size whose
    /// border they cross.
    borders: [u64; 64],
}

/// Blocks with lifetimes.
struct Lives {
    blocks: Blocks,
    /// Like [`Windower::tags`], for blocks whose next write is a change ([`Blocks::watched`]).
    watched: [u64; SLOTS],
    /// Whether `watched` has any tag.
    tagged: bool,
}

/// Empty slots: slot 0 has block 1, the others block 0, whose slot is 0.
const NO_TAGS: [u64; SLOTS] = {
    let mut tags = [0; SLOTS];
    tags[0] = 1 << LOCAL_BITS;
    tags
};

/// The slot of a block. Nearby blocks have different slots.
#[inline]
fn slot_of(block: u64) -> usize {
    (block ^ block >> SLOT_BITS) as usize % SLOTS
}

impl Windower {
    /// Blocks of 2^`shift` bytes, windows of at most `max_blocks` (1..=64) distinct blocks, only
    /// records of `kinds`.
    pub fn new(shift: u32, max_blocks: usize, kinds: KindSet) -> Self {
        Self {
            shift,
            max_blocks: max_blocks.clamp(1, MAX_BLOCKS),
            kinds,
            lives: None,
            ids: PageMap::default(),
            local: Vec::new(),
            tags: Box::new(NO_TAGS),
            previous: NO_REF,
            again: 0,
            again_written: 0,
            borders: [0; 64],
        }
    }

    /// Use the lifetimes of `blocks`, which must have the same block size.
    pub fn with_lives(mut self, blocks: Blocks) -> Self {
        self.lives = Some(Box::new(Lives { blocks, watched: NO_TAGS, tagged: false }));
        self
    }

    pub fn lives(&mut self) -> Option<&mut Blocks> {
        self.lives.as_mut().map(|lives| &mut lives.blocks)
    }

    pub fn event(&mut self, event: &RegionEvent, chunk: &mut Chunk) {
        let Some(lives) = &mut self.lives else { return };
        lives.blocks.apply(event);
        self.take_changes(chunk);
    }

    /// Record the pending changes of blocks. They end the window.
    fn take_changes(&mut self, chunk: &mut Chunk) {
        let start = chunk.starts.last().map_or(0, |&s| s as usize);
        let Some(lives) = &mut self.lives else { return };
        let mut changes = lives.blocks.changes().peekable();
        if changes.peek().is_none() {
            return;
        }
        let cut = chunk.block.len() > start;
        let window = (chunk.starts.len() - usize::from(!cut)) as u32;
        chunk.changes.extend(changes.map(|change| (window, change)));
        if cut {
            self.close(chunk);
            self.open(chunk);
        }
    }

    pub fn begin(&mut self, chunk: &mut Chunk) {
        chunk.clear();
        self.open(chunk);
    }

    /// End a chunk and its last window.
    pub fn end(&mut self, chunk: &mut Chunk) {
        self.close(chunk);
        let mut crossings = 0;
        for shift in (self.shift as usize..64).rev() {
            crossings += std::mem::take(&mut self.borders[shift]);
            chunk.crossings[shift] += crossings;
        }
        chunk.segment.push(chunk.refs.len() as u32);
        chunk.starts.push(chunk.block.len() as u32);
    }

    pub fn add(&mut self, batch: &Batch, range: Range<usize>, chunk: &mut Chunk) {
        let size_of_block = 1u64 << self.shift;
        let records = batch.addr[range.clone()].iter().zip(&batch.kind[range.clone()]);
        for ((&addr, &kind), &size) in records.zip(&batch.size[range]) {
            if !self.kinds.has(kind) {
                continue;
            }
            chunk.records += 1;
            let write = u8::from(KindSet::WRITES.has(kind));
            let block = addr >> self.shift;
            self.reference(block, write, chunk);
            if (addr & (size_of_block - 1)) + u64::from(size) > size_of_block {
                let last = last_byte(addr, size);
                let blocks = block..last >> self.shift;
                match blocks.end - blocks.start {
                    // The record passes the end of the address space, where `last` saturates.
                    0 => {}
                    1 => self.borders[(addr ^ last).ilog2() as usize] += 1,
                    _ => (self.shift..64).for_each(|shift| {
                        chunk.crossings[shift as usize] += (last >> shift) - (addr >> shift);
                    }),
                }
                blocks.for_each(|before| self.reference(before + 1, write, chunk));
            }
        }
    }

    #[inline]
    fn reference(&mut self, block: u64, write: u8, chunk: &mut Chunk) {
        let slot = slot_of(block);
        let tag = self.tags[slot];
        let local = if tag >> LOCAL_BITS == block {
            tag as u8 % MAX_BLOCKS as u8
        } else {
            match self.look_up(block, slot, write, chunk) {
                Some(local) => local,
                None => return,
            }
        };
        self.again |= 1 << local;
        self.again_written |= u64::from(write) << local;
        let byte = local | write << 7;
        if byte != self.previous {
            self.previous = byte;
            chunk.refs.push(byte);
        }
    }

    /// Look up a block without a tag. Returns its local number; if this is its first reference in
    /// the window, adds the reference and returns `None`.
    #[cold]
    fn look_up(&mut self, block: u64, slot: usize, write: u8, chunk: &mut Chunk) -> Option<u8> {
        let (id, watched) = match &mut self.lives {
            None => {
                let next = self.ids.len() as u32;
                let id = *self.ids.entry(block).or_insert(next);
                if id == next {
                    chunk.new_blocks.push(block);
                    grow(&mut self.local, id as usize + 1, 0);
                }
                (id, false)
            }
            Some(lives) => {
                let tag = lives.watched[slot];
                if tag >> LOCAL_BITS == block && write == 0 {
                    return Some(tag as u8 % MAX_BLOCKS as u8);
                }
                self.look_up_life(block, slot, write, chunk)
            }
        };
        let mut start = chunk.starts.last().map_or(0, |&s| s as usize);
        let known = self.local[id as usize];
        if chunk.block.get(start + usize::from(known)) == Some(&id) {
            self.put_tag(block, slot, known, watched);
            return Some(known);
        }
        if chunk.block.len() - start == self.max_blocks {
            self.close(chunk);
            self.open(chunk);
            start = chunk.block.len();
        } else if chunk.block.len() > start {
            self.end_segment(chunk);
        }
        let local = (chunk.block.len() - start) as u8;
        self.local[id as usize] = local;
        self.put_tag(block, slot, local, watched);
        chunk.block.push(id);
        chunk.first_written.push(write != 0);
        chunk.segment.push(chunk.refs.len() as u32);
        self.previous = local | write << 7;
        chunk.refs.push(self.previous);
        None
    }

    /// The id of a block with a lifetime, and whether its next write is a change. Ends the
    /// window if this reference may change the frame of a page.
    fn look_up_life(
        &mut self,
        block: u64,
        slot: usize,
        write: u8,
        chunk: &mut Chunk,
    ) -> (u32, bool) {
        let Some(Lives { blocks, watched, .. }) = self.lives.as_deref_mut() else {
            return (0, false);
        };
        let id = match blocks.find(block) {
            Some(id) if write == 0 || !blocks.watched(id) => id,
            Some(id) => {
                blocks.write(id);
                watched[slot] = NO_TAGS[slot];
                self.take_changes(chunk);
                id
            }
            None => {
                let cut = blocks.unsettled(block);
                let id = blocks.birth(block, write != 0);
                if cut {
                    self.take_changes(chunk);
                } else {
                    let window = chunk.starts.len() as u32 - 1;
                    chunk.changes.extend(blocks.changes().map(|change| (window, change)));
                }
                id
            }
        };
        // Only grows `local`.
        crate::slot(&mut self.local, id);
        (id, self.lives.as_ref().is_some_and(|lives| lives.blocks.watched(id)))
    }

    fn put_tag(&mut self, block: u64, slot: usize, local: u8, watched: bool) {
        let tag = block << LOCAL_BITS | u64::from(local);
        match &mut self.lives {
            Some(lives) if watched => {
                lives.watched[slot] = tag;
                lives.tagged = true;
            }
            _ => self.tags[slot] = tag,
        }
    }

    fn open(&mut self, chunk: &mut Chunk) {
        chunk.starts.push(chunk.block.len() as u32);
        *self.tags = NO_TAGS;
        if let Some(lives) = &mut self.lives
            && std::mem::take(&mut lives.tagged)
        {
            lives.watched = NO_TAGS;
        }
        self.previous = NO_REF;
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
        let mut unplaced = if count == 0 { 0 } else { u64::MAX >> (MAX_BLOCKS - count) };
        let mut place = chunk.last.len() + count;
        chunk.last.resize(place, 0);
        let mut end = chunk.refs.len();
        let mut put = |local: usize| {
            place -= 1;
            chunk.last[place] = local as u8;
        };
        // Backwards, so a segment's repeated references come before its first.
        for local in (0..count).rev() {
            let first = chunk.segment[start + local] as usize;
            let mut pending = unplaced & chunk.again[start + local];
            unplaced &= !pending;
            for &byte in chunk.refs[first..end].iter().rev() {
                if pending == 0 {
                    break;
                }
                let again = usize::from(byte & LOCAL);
                if pending >> again & 1 == 1 {
                    pending &= !(1 << again);
                    put(again);
                }
            }
            if unplaced >> local & 1 == 1 {
                unplaced &= !(1 << local);
                put(local);
            }
            end = first;
        }
    }
}

#[cfg(test)]
mod tests {
    use nearfar_trace::{Kind, Record};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn crossings_and_orders_of_last_references_equal_naive_loops(
            max_blocks in 1usize..=64,
            shift in 6u32..14,
            kinds in 1u8..32,
            records in prop::collection::vec(
                (0u64..3, 0u64..50_000, 0u8..5, prop_oneof![12 => 1u16..9, 1 => 1u16..3000], 1usize..30),
                0..300,
            ),
            batches in 1usize..5,
            top in any::<bool>(),
        ) {
            let mut whole = Vec::new();
            for (region, offset, kind, size, times) in records {
                let base = [0, 0x7fff_0000_0000, if top { u64::MAX - 50_000 } else { 0x5555_0800 }];
                let addr = base[region as usize] + offset;
                let kind = Kind::from_u8(kind).unwrap();
                let record = |step| {
                    let addr = addr.wrapping_add(step % 3 * 64);
                    Record { addr, kind, size, thread: 0, instr: 1 }
                };
                whole.extend((0..times as u64).map(record));
            }
            let mut windower = Windower::new(shift, max_blocks, KindSet(kinds));
            let mut chunk = Chunk::default();
            for _ in 0..2 {
                windower.begin(&mut chunk);
                for records in whole.chunks(whole.len() / batches + 1) {
                    let mut batch = Batch::default();
                    records.iter().for_each(|record| batch.push(*record));
                    windower.add(&batch, 0..batch.len(), &mut chunk);
                }
                windower.end(&mut chunk);
                let counted = whole.iter().filter(|record| KindSet(kinds).contains(record.kind));
                let ends = counted.map(|record| (record.addr, record.addr.saturating_add(u64::from(record.size) - 1)));
                let mut crossings = vec![0; 64];
                for ((addr, last), at) in ends.flat_map(|ends| (shift..64).map(move |at| (ends, at))) {
                    crossings[at as usize] += (last >> at) - (addr >> at);
                }
                prop_assert_eq!(&chunk.crossings, &crossings);
                for window in chunk.windows() {
                    let [from, to] = [window.start, window.end].map(|j| chunk.segment[j] as usize);
                    let mut last: Vec<u8> = Vec::new();
                    for byte in chunk.refs[from..to].iter().rev().map(|byte| byte & !WRITE) {
                        if !last.contains(&byte) {
                            last.insert(0, byte);
                        }
                    }
                    prop_assert_eq!(&chunk.last[window], &last);
                }
            }
        }
    }
}
