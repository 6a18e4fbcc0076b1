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

#[cfg(target_arch = "x86_64")]
mod avx512;

use std::ops::Range;

use nearfar_hardware::table::grow;
use nearfar_simd::Avx512;
use nearfar_trace::hash::PageMap;
use nearfar_trace::{Batch, KindSet, RegionEvent, last_byte};

use super::options::MIN_PAGE;
use crate::lifetimes::{Blocks, Change};

/// Most distinct blocks in a window: a bit each in a mask.
pub const MAX_BLOCKS: usize = 64;
/// Mark of a write in the byte of a reference.
pub const WRITE: u8 = 0x80;
/// Mark of a reference by the same record as the one before, where every reference is kept.
pub const SAME_RECORD: u8 = 0x40;
/// The rest of the byte.
pub const LOCAL: u8 = MAX_BLOCKS as u8 - 1;
const SLOT_BITS: u32 = 9;
const SLOTS: usize = 1 << SLOT_BITS;
/// Bits of a tag that are a local number; the others are a block, of at least as many bytes.
const LOCAL_BITS: u32 = MAX_BLOCKS.ilog2();
const _: () = assert!(MIN_PAGE >> LOCAL_BITS > 0);
/// Records that are taken one by one where eight at a time got no further than this.
#[cfg(target_arch = "x86_64")]
const BURST: usize = 8;
/// Precedes the first reference of a window, whose byte it cannot be.
const NO_REF: u8 = u8::MAX;

/// A run of whole windows, flattened. Index `j` below runs over the distinct blocks of all windows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// Local number of each reference, with [`WRITE`]; consecutive equals are one, unless every
    /// reference is kept.
    pub refs: Vec<u8>,
    /// Block numbers (address >> block shift) of ids given in this chunk, in order; none where blocks
    /// end.
    pub new_blocks: Vec<u64>,
    /// What became of blocks, each with the window before which it did.
    pub changes: Vec<(u32, Change)>,
    /// References beyond one a record, for borders crossed, by log2 of the page size (from that of
    /// the blocks on).
    pub crossings: Vec<u64>,
    /// Records that count.
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

    /// Bytes of the windows, near enough.
    pub fn bytes(&self) -> u64 {
        // What each distinct block of a window takes, and each reference a byte.
        const BLOCK: usize = 2 * size_of::<u64>() + 2 * size_of::<u32>() + 2;
        let changes = self.changes.len() * size_of::<(u32, Change)>();
        (self.block.len() * BLOCK + self.starts.len() * 4 + self.refs.len() + changes) as u64
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
    /// Every reference is kept, for engines that must see each one.
    keep: bool,
    ids: PageMap<u32>,
    /// Blocks that end; then `ids` is not used.
    lives: Option<Box<Lives>>,
    /// Where a block was last seen as a local number; true only if the window agrees.
    local: Vec<u8>,
    /// By slot, the block last seen there and its local number. An empty slot holds a block that
    /// belongs in another.
    tags: Box<[u64; SLOTS]>,
    previous: u8,
    again: u64,
    again_written: u64,
    /// Records of this chunk that lie in two blocks, by log2 of the largest page size at which they
    /// lie in two pages.
    borders: [u64; 64],
    avx512: Option<Avx512>,
}

/// Blocks that end.
struct Lives {
    blocks: Blocks,
    /// By slot, the block last seen there and its local number, for blocks whose next write must be
    /// known: these are not among [`Windower::tags`].
    watched: [u64; SLOTS],
    /// Whether there are any.
    tagged: bool,
}

const NO_TAGS: [u64; SLOTS] = {
    let mut tags = [0; SLOTS];
    tags[0] = 1 << LOCAL_BITS;
    tags
};

/// The slot of a block: nearby blocks have different ones.
#[inline]
fn slot_of(block: u64) -> usize {
    (block ^ block >> SLOT_BITS) as usize % SLOTS
}

impl Windower {
    /// Blocks of 2^`shift` bytes, windows of at most `most` (1..=64) distinct blocks, only
    /// records of `kinds`.
    pub fn new(shift: u32, most: usize, kinds: KindSet) -> Self {
        Self {
            shift,
            most: most.clamp(1, MAX_BLOCKS),
            kinds,
            keep: false,
            lives: None,
            ids: PageMap::default(),
            local: Vec::new(),
            tags: Box::new(NO_TAGS),
            previous: NO_REF,
            again: 0,
            again_written: 0,
            borders: [0; 64],
            avx512: Avx512::new(),
        }
    }

    /// Keep every reference, also repeats.
    pub fn keeping_all(mut self) -> Self {
        self.keep = true;
        self.avx512 = None;
        self
    }

    /// Let blocks end: they are those of `blocks`, of the same size.
    pub fn with_lives(mut self, blocks: Blocks) -> Self {
        self.lives = Some(Box::new(Lives { blocks, watched: NO_TAGS, tagged: false }));
        self
    }

    /// The blocks that end, where they do.
    pub fn lives(&mut self) -> Option<&mut Blocks> {
        self.lives.as_mut().map(|lives| &mut lives.blocks)
    }

    /// Apply an event of the address space, which comes before the next record.
    pub fn event(&mut self, event: &RegionEvent, chunk: &mut Chunk) {
        let Some(lives) = &mut self.lives else { return };
        lives.blocks.apply(event);
        self.take_changes(chunk);
    }

    /// Note what became of blocks before the next reference: a window ends there.
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

    /// Begin a chunk.
    pub fn begin(&mut self, chunk: &mut Chunk) {
        chunk.clear();
        self.open(chunk);
    }

    /// End a chunk: its last window is closed.
    pub fn end(&mut self, chunk: &mut Chunk) {
        self.close(chunk);
        let mut more = 0;
        for shift in (self.shift as usize..64).rev() {
            more += std::mem::take(&mut self.borders[shift]);
            chunk.crossings[shift] += more;
        }
        chunk.segment.push(chunk.refs.len() as u32);
        chunk.starts.push(chunk.block.len() as u32);
    }

    /// Add the records of `batch` in `range` to the chunk.
    pub fn add(&mut self, batch: &Batch, range: Range<usize>, chunk: &mut Chunk) {
        #[cfg(target_arch = "x86_64")]
        if let Some(token) = self.avx512 {
            return self.add_many(token, batch, range, chunk);
        }
        self.add_each(batch, range, chunk);
    }

    /// [`Self::add_each`], eight at a time where that pays.
    #[cfg(target_arch = "x86_64")]
    fn add_many(&mut self, token: Avx512, batch: &Batch, range: Range<usize>, chunk: &mut Chunk) {
        let mut place = range.start;
        while place < range.end {
            // SAFETY: the token says that the processor has the features.
            let next = unsafe { avx512::add(token, self, batch, place..range.end, chunk) };
            // Where nearly every record stops it, eight at a time do not pay.
            let alone = if next - place < BURST { BURST } else { 1 };
            place = range.end.min(next + alone);
            self.add_each(batch, next..place, chunk);
        }
    }

    fn add_each(&mut self, batch: &Batch, places: Range<usize>, chunk: &mut Chunk) {
        let size_of_block = 1u64 << self.shift;
        let records = batch.addr[places.clone()].iter().zip(&batch.kind[places.clone()]);
        for ((&addr, &kind), &size) in records.zip(&batch.size[places]) {
            if self.kinds.0 >> kind & 1 == 0 {
                continue;
            }
            chunk.records += 1;
            let write = KindSet::WRITES.0 >> kind & 1;
            let block = addr >> self.shift;
            self.reference(block, write, chunk, false);
            if (addr & (size_of_block - 1)) + u64::from(size) > size_of_block {
                let last = last_byte(addr, size);
                let blocks = block..last >> self.shift;
                match blocks.end - blocks.start {
                    0 => {}
                    1 => self.borders[(addr ^ last).ilog2() as usize] += 1,
                    _ => (self.shift..64).for_each(|shift| {
                        chunk.crossings[shift as usize] += (last >> shift) - (addr >> shift);
                    }),
                }
                blocks.for_each(|before| self.reference(before + 1, write, chunk, true));
            }
        }
    }

    /// A reference to a block, by the same record as the one before or another.
    #[inline]
    fn reference(&mut self, block: u64, write: u8, chunk: &mut Chunk, same: bool) {
        let slot = slot_of(block);
        let tag = self.tags[slot];
        let local = if tag >> LOCAL_BITS == block {
            tag as u8 % MAX_BLOCKS as u8
        } else {
            match self.look_up(block, slot, write, chunk, same) {
                Some(local) => local,
                None => return,
            }
        };
        self.again |= 1 << local;
        self.again_written |= u64::from(write) << local;
        let byte = local | write << 7;
        if self.keep {
            chunk.refs.push(byte | if same { SAME_RECORD } else { 0 });
        } else if byte != self.previous {
            self.previous = byte;
            chunk.refs.push(byte);
        }
    }

    /// The local number of a block of this window that lost its tag; `None` for a first reference,
    /// which is then noted.
    #[cold]
    fn look_up(
        &mut self,
        block: u64,
        slot: usize,
        write: u8,
        chunk: &mut Chunk,
        same: bool,
    ) -> Option<u8> {
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
        if chunk.block.len() - start == self.most {
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
        chunk.refs.push(self.previous | if same && self.keep { SAME_RECORD } else { 0 });
        None
    }

    /// The id of a block that may have ended, and whether its next write must be known. The window
    /// ends where this reference gives a page another frame, or may.
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
        if self.local.len() <= id as usize {
            self.local.resize(id as usize + 1, 0);
        }
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
        let mut wanted = if count == 0 { 0 } else { u64::MAX >> (MAX_BLOCKS - count) };
        let mut place = chunk.last.len() + count;
        chunk.last.resize(place, 0);
        let mut end = chunk.refs.len();
        let mut put = |local: usize| {
            place -= 1;
            chunk.last[place] = local as u8;
        };
        // From the last segment back: what a segment references again comes after its first.
        for local in (0..count).rev() {
            let first = chunk.segment[start + local] as usize;
            let mut here = wanted & chunk.again[start + local];
            wanted &= !here;
            for &byte in chunk.refs[first..end].iter().rev() {
                if here == 0 {
                    break;
                }
                let again = usize::from(byte & LOCAL);
                if here >> again & 1 == 1 {
                    here &= !(1 << again);
                    put(again);
                }
            }
            if wanted >> local & 1 == 1 {
                wanted &= !(1 << local);
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
        /// Batches cut eight records at a time and one by one come to the same windows, whose
        /// blocks are in the order of their last references.
        #[test]
        fn eight_at_a_time_are_one_by_one(
            most in 1usize..=64,
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
            let windower = || Windower::new(shift, most, KindSet(kinds));
            let (mut fast, mut plain) = (windower(), windower());
            fast.avx512 = Avx512::for_test();
            let (mut left, mut right) = (Chunk::default(), Chunk::default());
            for _ in 0..2 {
                fast.begin(&mut left);
                plain.begin(&mut right);
                for records in whole.chunks(whole.len() / batches + 1) {
                    let mut batch = Batch::default();
                    records.iter().for_each(|record| batch.push(*record));
                    fast.add(&batch, 0..batch.len(), &mut left);
                    plain.add_each(&batch, 0..batch.len(), &mut right);
                }
                fast.end(&mut left);
                plain.end(&mut right);
                prop_assert_eq!(&left, &right);
                let counted = whole.iter().filter(|record| KindSet(kinds).contains(record.kind));
                let ends = counted.map(|of| (of.addr, of.addr.saturating_add(u64::from(of.size) - 1)));
                let mut crossings = vec![0; 64];
                for ((addr, last), at) in ends.flat_map(|ends| (shift..64).map(move |at| (ends, at))) {
                    crossings[at as usize] += (last >> at) - (addr >> at);
                }
                prop_assert_eq!(&left.crossings, &crossings);
                for window in left.windows() {
                    let [from, to] = [window.start, window.end].map(|j| left.segment[j] as usize);
                    let mut last: Vec<u8> = Vec::new();
                    for byte in left.refs[from..to].iter().rev().map(|byte| byte & !WRITE) {
                        if !last.contains(&byte) {
                            last.insert(0, byte);
                        }
                    }
                    prop_assert_eq!(&left.last[window], &last);
                }
            }
        }
    }
}
