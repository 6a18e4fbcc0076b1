//! From words to records.

#[cfg(target_arch = "x86_64")]
mod wide;

use std::sync::atomic::Ordering::Relaxed;

use nearfar_trace::{Batch, Kind, Narrow, Record, Result};

use crate::layout::{
    ADDR_BITS, BLOCK, BLOCKS, BYTES_SHIFT, Block, COUNT_SHIFT, INDEX_MASK, INDEX_SHIFT, OTHER,
    SIZE_SHIFT, STORE,
};

/// Where a thread is, in instructions it has executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Index of the thread in the trace.
    pub thread: u32,
    /// Instructions before the block that runs now.
    block: u64,
    /// Instructions including all of that block.
    next: u64,
    /// Instructions accounted for by records.
    noted: u64,
}

impl Position {
    /// The start of thread `thread`.
    pub fn new(thread: u32) -> Self {
        Self { thread, ..Self::default() }
    }

    /// The gap of a record made after the current block, which is thereby accounted for.
    pub fn gap(&mut self) -> u32 {
        let gap = self.rest().min(u64::from(u32::MAX));
        self.noted += gap;
        gap as u32
    }

    /// Instructions executed since the last record.
    pub fn rest(&self) -> u64 {
        self.next.saturating_sub(self.noted)
    }

    /// Append a record of the kernel working for this thread.
    pub fn push_kernel(&mut self, kind: Kind, addr: u64, size: u16, out: &mut Batch) {
        let instr = self.gap();
        out.push(Record { addr, kind, size, thread: self.thread, instr });
    }
}

/// Takes what [`Expander::expand`] makes, in order.
pub trait Sink {
    /// Records whose sizes and gaps fit a byte.
    fn narrow(&mut self, records: Narrow<'_>) -> Result<()>;
    /// Any other records; empties the batch.
    fn wide(&mut self, records: &mut Batch) -> Result<()>;
}

/// Words expanded at a time: what they become stays in the processor's cache.
const MOST: usize = 1 << 11;
/// Words whose blocks are looked up together: a bit each.
const LANES: usize = 64;
/// What the bits of a word above its address say of the instruction.
const TOP: u64 = !((1 << ADDR_BITS) - 1);

/// The part of `word` above its address.
const fn top_of(word: u64) -> u16 {
    (word >> ADDR_BITS) as u16
}

/// Instructions of the current block that a reference counts as executed.
fn within_block(top: u16) -> u16 {
    (top >> (INDEX_SHIFT - ADDR_BITS) & INDEX_MASK as u16) + 1
}

fn kind_of(top: u16) -> Kind {
    if top & top_of(STORE) != 0 { Kind::Store } else { Kind::Load }
}

fn size_of(top: u16) -> u16 {
    1 << (top >> (SIZE_SHIFT - ADDR_BITS) & 7)
}

/// Bytes and instructions of a block; 0 when the table has them.
fn bytes_of(top: u16) -> u16 {
    top >> (BYTES_SHIFT - ADDR_BITS) & 0xff
}

fn count_of(top: u16) -> u16 {
    top >> (COUNT_SHIFT - ADDR_BITS) & 0x7f
}

/// Expands words into records.
///
/// An instruction counts as executed from its own first reference on; a fetch comes before the
/// first instruction of its block.
pub struct Expander {
    fetch: bool,
    wide_registers: bool,
    columns: Box<Columns>,
    wide: Batch,
}

/// The records of some words, one for each word: column by column, so that a vector register
/// holds what many words become and no branch depends on which of them are blocks.
struct Columns {
    addr: [u64; MOST],
    kind: [u8; MOST],
    size: [u16; MOST],
    /// Instructions since the record before.
    gap: [u16; MOST],
    /// The same with the fetches left out, which can add up.
    carried: [u32; MOST],
    /// `size`, and `gap` or `carried`, where a byte holds them.
    narrow: [[u8; MOST]; 2],
}

/// Where the records of [`LANES`] words go.
struct Piece<'a> {
    addr: &'a mut [u64; LANES],
    kind: &'a mut [u8; LANES],
    size: &'a mut [u16; LANES],
    gap: &'a mut [u16; LANES],
    /// The lower bytes of sizes and gaps.
    narrow: [&'a mut [u8; LANES]; 2],
}

/// Where a thread is within the words at hand.
struct Within {
    /// Instructions including the current block.
    next: u64,
    /// Instructions of the current block: accounted for by records, and all of them.
    noted: u16,
    all: u16,
    /// Not 0: there was a block without a size, or a number that is too large.
    odd: u32,
    /// Every bit of every size and gap: the topmost when a gap was below 0.
    bits: u16,
}

/// Blocks of the table that have more instructions than this are expanded one by one, so that the
/// topmost bit of a gap is its sign.
const MANY: u32 = 1 << 14;

impl Columns {
    /// The records of `words` for a thread that is at `position`, which is moved on, up to the first
    /// word that is neither a reference nor a block. Returns how many words those were, and whether a
    /// byte holds every size and gap; `None`, with nothing moved, when their records are not one for
    /// each or not in the order of their instructions.
    #[inline(always)]
    fn fill<const WIDE: bool>(
        &mut self,
        words: &[u64],
        blocks: &[Block; BLOCKS],
        position: &mut Position,
    ) -> Option<(usize, bool)> {
        let Position { block, next, .. } = *position;
        let (noted, all) = (position.noted.checked_sub(block)?, next - block);
        if noted.max(all) >= u64::from(MANY) {
            return None;
        }
        let mut within = Within { next, noted: noted as u16, all: all as u16, odd: 0, bits: 0 };
        let mut filled = 0;
        for words in words.chunks(LANES) {
            let mut to = self.piece(filled);
            let count = if let Ok(words) = words.try_into() {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the processor has the instructions.
                if WIDE && unsafe { wide::fill_piece(words, &mut to, &mut within) } {
                    filled += LANES;
                    continue;
                }
                to.fill(words, LANES, blocks, &mut within)
            } else {
                let mut piece = [0; LANES];
                piece[..words.len()].copy_from_slice(words);
                to.fill(&piece, words.len(), blocks, &mut within)
            };
            filled += count;
            if count < LANES {
                break;
            }
        }
        if within.odd | u32::from(within.bits >> 15) != 0 {
            return None;
        }
        position.next = within.next;
        position.block = within.next - u64::from(within.all);
        position.noted = position.block + u64::from(within.noted);
        Some((filled, within.bits <= u16::from(u8::MAX)))
    }

    fn piece(&mut self, start: usize) -> Piece<'_> {
        Piece {
            addr: piece(&mut self.addr, start),
            kind: piece(&mut self.kind, start),
            size: piece(&mut self.size, start),
            gap: piece(&mut self.gap, start),
            narrow: self.narrow.each_mut().map(|column| piece(column, start)),
        }
    }

    /// Leave out the fetches among the first `count` records: their instructions are those of the
    /// next record. Returns how many are left, and the instructions after the last one.
    #[inline(always)]
    fn drop_fetches(&mut self, count: usize, before: u32) -> (usize, u32) {
        let (mut kept, mut carried) = (0, before);
        for at in 0..count {
            let is_kept = self.kind[at] != Kind::Fetch as u8;
            carried += u32::from(self.gap[at]);
            self.addr[kept] = self.addr[at];
            self.kind[kept] = self.kind[at];
            self.size[kept] = self.size[at];
            self.carried[kept] = carried;
            kept += usize::from(is_kept);
            carried = if is_kept { 0 } else { carried };
        }
        (kept, carried)
    }
}

impl Piece<'_> {
    /// The records of the first `count` of `words`, up to the first word that is neither a reference
    /// nor a block. Returns how many.
    #[inline(always)]
    fn fill(
        self,
        words: &[u64; LANES],
        count: usize,
        blocks: &[Block; BLOCKS],
        within: &mut Within,
    ) -> usize {
        let Self { addr, kind, size, gap, narrow } = self;
        // A loop for each column: loops that compilers make wide.
        let (mut top, mut at) = ([0; LANES], [0; LANES]);
        for lane in 0..LANES {
            addr[lane] = words[lane] & !TOP;
            top[lane] = top_of(words[lane]);
        }
        let (mut starts, mut others) = (0u64, 0u64);
        for (lane, top) in top.iter().enumerate() {
            starts |= u64::from(*top >= top_of(BLOCK)) << lane;
            others |= u64::from(*top >= top_of(OTHER)) << lane;
        }
        let count = count.min(others.trailing_zeros() as usize);
        for lane in 0..LANES {
            let of_block = top[lane] >= top_of(BLOCK);
            kind[lane] = if of_block { Kind::Fetch } else { kind_of(top[lane]) } as u8;
            size[lane] = if of_block { bytes_of(top[lane]) } else { size_of(top[lane]) };
            at[lane] = if of_block { 0 } else { within_block(top[lane]) };
        }
        gap[0] = at[0].wrapping_sub(within.noted);
        for lane in 1..LANES {
            gap[lane] = at[lane].wrapping_sub(at[lane - 1]);
        }
        if count > 0 {
            within.noted = at[count - 1];
        }
        // Before a block comes what is left of the one before it.
        starts &= !u64::MAX.unbounded_shl(count as u32);
        while starts != 0 {
            let lane = starts.trailing_zeros() as usize;
            starts &= starts - 1;
            gap[lane] = gap[lane].wrapping_add(within.all);
            within.all = count_of(top[lane]);
            if within.all == 0 {
                let entry = &blocks[words[lane] as usize & (BLOCKS - 1)];
                let code = entry.shape.load(Relaxed);
                let (bytes, instructions) = (code as u32, (code >> 32) as u32);
                addr[lane] = entry.addr.load(Relaxed);
                (size[lane], within.all) = (bytes as u16, instructions as u16);
                // A block that found no place in the table has no size, and makes no record.
                within.odd |= bytes.wrapping_sub(1) >> 16 | instructions / MANY;
            }
            within.next += u64::from(within.all);
        }
        let [sizes, gaps] = narrow;
        for lane in 0..LANES {
            (sizes[lane], gaps[lane]) = (size[lane] as u8, gap[lane] as u8);
        }
        for lane in 0..count {
            within.bits |= size[lane] | gap[lane];
        }
        count
    }
}

/// `numbers` as bytes; false when one does not fit.
#[inline(always)]
fn narrowed<T: Copy + Into<u32>>(numbers: &[T], bytes: &mut [u8]) -> bool {
    let mut all = 0;
    for (number, byte) in numbers.iter().zip(bytes) {
        let number: u32 = (*number).into();
        *byte = number as u8;
        all |= number;
    }
    all <= u32::from(u8::MAX)
}

fn piece<T>(column: &mut [T; MOST], start: usize) -> &mut [T; LANES] {
    let (pieces, _) = column.as_chunks_mut();
    &mut pieces[start / LANES]
}

/// What became of some words.
struct Expanded {
    /// How many of them, up to a control word that is not a block.
    words: usize,
    /// Records made of these.
    records: usize,
    /// A byte holds every size and gap.
    narrow: bool,
}

impl Expander {
    /// With `fetch`, a block is a record; without, blocks only count instructions.
    pub fn new(fetch: bool) -> Self {
        let columns = Columns {
            addr: [0; MOST],
            kind: [0; MOST],
            size: [0; MOST],
            gap: [0; MOST],
            carried: [0; MOST],
            narrow: [[0; MOST]; 2],
        };
        let wide_registers = nearfar_trace::wide_registers();
        Self { fetch, wide_registers, columns: Box::new(columns), wide: Batch::default() }
    }

    /// Hand the records of `words` to `sink`, up to the first control word that is not a block or
    /// as far as is handled at once. Returns how many words that took; none only when there are
    /// none or the first is such a control word.
    pub fn expand(
        &mut self,
        words: &[u64],
        blocks: &[Block; BLOCKS],
        position: &mut Position,
        sink: &mut impl Sink,
    ) -> Result<usize> {
        let words = &words[..words.len().min(MOST)];
        let Some(Expanded { words: taken, records, narrow }) =
            self.columns(words, blocks, position)
        else {
            return self.plain(words, blocks, position, sink);
        };
        let thread = position.thread;
        let Columns { addr, kind, size, gap, carried, narrow: [sizes, gaps] } = &*self.columns;
        let (addr, kind) = (&addr[..records], &kind[..records]);
        if records == 0 {
            // Nothing, or blocks alone whose fetches are left out.
        } else if narrow {
            let (size, instr) = (&sizes[..records], &gaps[..records]);
            sink.narrow(Narrow { addr, kind, size, instr, thread })?;
        } else {
            let wide = &mut self.wide;
            wide.addr.extend_from_slice(addr);
            wide.kind.extend_from_slice(kind);
            wide.size.extend_from_slice(&size[..records]);
            if self.fetch {
                wide.instr.extend(gap[..records].iter().map(|&gap| u32::from(gap)));
            } else {
                wide.instr.extend_from_slice(&carried[..records]);
            }
            wide.thread.resize(records, thread);
            sink.wide(wide)?;
        }
        Ok(taken)
    }

    /// The columns of `words`; `None`, with the position not moved, when that has to be done one by
    /// one.
    fn columns(
        &mut self,
        words: &[u64],
        blocks: &[Block; BLOCKS],
        position: &mut Position,
    ) -> Option<Expanded> {
        #[cfg(target_arch = "x86_64")]
        if self.wide_registers {
            // SAFETY: the processor has the instructions.
            return unsafe { self.columns_in_wide_registers(words, blocks, position) };
        }
        self.columns_in_any::<false>(words, blocks, position)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,bmi1,bmi2,popcnt")]
    fn columns_in_wide_registers(
        &mut self,
        words: &[u64],
        blocks: &[Block; BLOCKS],
        position: &mut Position,
    ) -> Option<Expanded> {
        self.columns_in_any::<true>(words, blocks, position)
    }

    #[inline(always)]
    fn columns_in_any<const WIDE: bool>(
        &mut self,
        words: &[u64],
        blocks: &[Block; BLOCKS],
        position: &mut Position,
    ) -> Option<Expanded> {
        // Blocks whose fetch is left out are not accounted for yet.
        let behind = position.block.saturating_sub(position.noted);
        if behind >> 31 != 0 || self.fetch && behind > 0 {
            return None;
        }
        let mut moved = Position { noted: position.noted + behind, ..*position };
        let columns = &mut *self.columns;
        let (words, mut narrow) = columns.fill::<WIDE>(words, blocks, &mut moved)?;
        let mut records = words;
        if !self.fetch {
            let (kept, behind) = columns.drop_fetches(words, behind as u32);
            moved.noted -= u64::from(behind);
            records = kept;
            let [sizes, gaps] = &mut columns.narrow;
            narrow =
                narrowed(&columns.size[..kept], sizes) & narrowed(&columns.carried[..kept], gaps);
        }
        *position = moved;
        Some(Expanded { words, records, narrow })
    }

    /// One word after the other: the meaning of [`Self::expand`], for what has no columns.
    fn plain(
        &mut self,
        words: &[u64],
        blocks: &[Block; BLOCKS],
        position: &mut Position,
        sink: &mut impl Sink,
    ) -> Result<usize> {
        let mut taken = 0;
        for &word in words.iter().take_while(|word| **word < OTHER) {
            taken += 1;
            let top = top_of(word);
            let (addr, kind, size, at) = if word >= BLOCK {
                let (addr, bytes, count) = match count_of(top) {
                    0 => {
                        let block = &blocks[word as usize & (BLOCKS - 1)];
                        let code = block.shape.load(Relaxed);
                        (block.addr.load(Relaxed), code as u16, code >> 32)
                    }
                    count => (word & !TOP, bytes_of(top), u64::from(count)),
                };
                position.block = position.next;
                position.next += count;
                (addr, Kind::Fetch, bytes, position.block)
            } else {
                let at = position.block + u64::from(within_block(top));
                (word & !TOP, kind_of(top), size_of(top), at)
            };
            if kind == Kind::Fetch && (!self.fetch || size == 0) {
                continue;
            }
            // What does not fit the column is carried over to the next record.
            let gap = at.saturating_sub(position.noted).min(u64::from(u32::MAX));
            position.noted += gap;
            let (thread, instr) = (position.thread, gap as u32);
            self.wide.push(Record { addr, kind, size, thread, instr });
        }
        if !self.wide.is_empty() {
            sink.wide(&mut self.wide)?;
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use proptest::prelude::*;

    use super::*;
    use crate::layout::{CONTROL, block_word, tag};

    /// Blocks 1.. as `(address, bytes, instructions)`; mostly untouched memory, so cheap.
    fn table(entries: &[(u64, u64, u64)]) -> Box<[Block; BLOCKS]> {
        let size = std::alloc::Layout::new::<[Block; BLOCKS]>();
        // SAFETY: all zeros is a valid table, and the layout is that of the box.
        let table =
            unsafe { Box::from_raw(std::alloc::alloc_zeroed(size).cast::<[Block; BLOCKS]>()) };
        for (index, (addr, bytes, count)) in entries.iter().enumerate() {
            let store = |place: &AtomicU64, value| place.store(value, Relaxed);
            store(&table[index + 1].addr, *addr);
            store(&table[index + 1].shape, count << 32 | bytes);
        }
        table
    }

    fn reference(addr: u64, index: u64, size_log2: u64, store: bool) -> u64 {
        addr | (index << INDEX_SHIFT) | (size_log2 << SIZE_SHIFT) | (u64::from(store) * STORE)
    }

    /// Everything in one batch.
    #[derive(Default)]
    struct All(Batch);

    impl Sink for All {
        fn narrow(&mut self, records: Narrow<'_>) -> Result<()> {
            self.0.addr.extend(records.addr);
            self.0.kind.extend(records.kind);
            self.0.size.extend(records.size.iter().map(|&size| u16::from(size)));
            self.0.instr.extend(records.instr.iter().map(|&instr| u32::from(instr)));
            self.0.thread.resize(self.0.addr.len(), records.thread);
            Ok(())
        }

        fn wide(&mut self, records: &mut Batch) -> Result<()> {
            records.iter().for_each(|record| self.0.push(record));
            records.clear();
            Ok(())
        }
    }

    #[test]
    fn a_block_and_its_references() {
        let blocks = table(&[(0xffff_ffff_ff60_0000, 17, 5), (0x2000, 4, 1)]);
        let words = [
            BLOCK | 1,
            reference(0x7fff_ffff_fff8, 1, 3, false),
            reference(0x10, 1, 0, true),
            reference(0x20, 4, 6, true),
            BLOCK | 2,
            BLOCK | 1,
        ];
        let mut position = Position::new(3);
        let mut out = All::default();
        let mut expander = Expander::new(true);
        assert_eq!(expander.expand(&words, &blocks, &mut position, &mut out).unwrap(), 6);
        let out = out.0;
        let found: Vec<_> =
            out.iter().map(|r| (r.addr, r.kind, r.size, r.thread, r.instr)).collect();
        let expected = [
            (0xffff_ffff_ff60_0000, Kind::Fetch, 17, 3, 0),
            (0x7fff_ffff_fff8, Kind::Load, 8, 3, 2),
            (0x10, Kind::Store, 1, 3, 0),
            (0x20, Kind::Store, 64, 3, 3),
            (0x2000, Kind::Fetch, 4, 3, 0),
            (0xffff_ffff_ff60_0000, Kind::Fetch, 17, 3, 1),
        ];
        assert_eq!(found, expected);
        assert_eq!(position.rest(), 5);
    }

    #[test]
    fn stops_at_other_control_words() {
        let blocks = table(&[(0x1000, 4, 1)]);
        let words = [BLOCK | 1, CONTROL | tag::PAD << 56, BLOCK | 1];
        let mut out = All::default();
        let (mut expander, mut position) = (Expander::new(true), Position::new(0));
        assert_eq!(expander.expand(&words, &blocks, &mut position, &mut out).unwrap(), 1);
        assert_eq!(expander.expand(&words[1..], &blocks, &mut position, &mut out).unwrap(), 0);
        assert_eq!(out.0.len(), 1);
    }

    #[test]
    fn a_gap_beyond_the_column_is_carried_over() {
        let most = u64::from(u32::MAX);
        let blocks = table(&[(0x1000, 4, most), (0x2000, 4, 10)]);
        let words = [BLOCK | 1, BLOCK | 1, BLOCK | 2]
            .into_iter()
            .chain([reference(0x10, 0, 0, false), reference(0x20, 0, 0, false)])
            .chain([reference(0x30, 0, 0, false), reference(0x40, 2, 0, false)])
            .collect::<Vec<_>>();
        let mut position = Position::new(0);
        let mut out = All::default();
        let mut expander = Expander::new(false);
        expander.expand(&words, &blocks, &mut position, &mut out).unwrap();
        assert_eq!(out.0.instr, [u32::MAX, u32::MAX, 1, 2]);
        assert_eq!(position.rest(), 7);
    }

    /// Address, bytes and instructions of the block that `word` begins.
    fn block_of(word: u64, entries: &[(u64, u64, u64)]) -> (u64, u64, u64) {
        match word >> 56 & 0x7f {
            0 if word & 0xffff_ffff == 0 => (0, 0, 0),
            0 => entries[(word & 0xffff_ffff) as usize - 1],
            count => (word & 0xffff_ffff_ffff, word >> 48 & 0xff, count),
        }
    }

    /// The reference: a list of instructions, each with the records made before it counts.
    fn reference_records(words: &[u64], entries: &[(u64, u64, u64)], fetch: bool) -> Vec<Record> {
        let (mut executed, mut noted, mut start) = (0u64, 0u64, 0u64);
        let mut records = Vec::new();
        let mut current = 0;
        for word in words {
            let (addr, kind, size, at);
            if word >> 63 == 1 {
                executed += current;
                start = executed;
                let (home, bytes, count) = block_of(*word, entries);
                current = count;
                (addr, kind, size, at) = (home, Kind::Fetch, bytes, start);
                if !fetch || bytes == 0 {
                    continue;
                }
            } else {
                addr = word & 0xffff_ffff_ffff;
                kind = if word >> 60 & 1 == 1 { Kind::Store } else { Kind::Load };
                size = 1 << (word >> 57 & 7);
                at = start + (word >> 48 & 0x1ff) + 1;
            }
            let instr = at.saturating_sub(noted) as u32;
            noted = noted.max(at);
            records.push(Record { addr, kind, size: size as u16, thread: 9, instr });
        }
        records
    }

    /// What `expander` makes of `words`, `step` at a time as rings are read.
    fn expanded(
        words: &[u64],
        step: usize,
        blocks: &[Block; BLOCKS],
        position: &mut Position,
        mut expander: Expander,
    ) -> Vec<Record> {
        let mut out = All::default();
        for mut piece in words.chunks(step) {
            while !piece.is_empty() {
                let taken = expander.expand(piece, blocks, position, &mut out).unwrap();
                assert!(taken > 0);
                piece = &piece[taken..];
            }
        }
        assert_eq!(out.0.thread.len(), out.0.len());
        out.0.iter().collect()
    }

    proptest! {
        /// Words in any order, and blocks of a few kinds that mostly do the same again.
        #[test]
        fn agrees_with_the_reference(
            entries in prop::collection::vec(
                (any::<(u64, bool)>(), 1u64..600, prop_oneof![0u64..=512, 1u64..130]), 1..20),
            raw in prop::collection::vec((any::<u64>(), 0u64..30, any::<bool>()), 0..300),
            bodies in prop::collection::vec(
                prop::collection::vec((0u64..12, 0u64..8, any::<bool>()), 0..30), 1..4),
            turns in prop::collection::vec((0usize..4, any::<u32>(), 0u8..20), 0..200),
            step in prop_oneof![1usize..300, (1usize..4).prop_map(|pieces| pieces * LANES)],
            all_fit in any::<bool>(),
        ) {
            // Blocks that fit a word and references in their order: what is expanded in columns.
            let raw = if all_fit { Vec::new() } else { raw };
            let fitting =
                |addr: u64, bytes: u64, count: u64| (addr >> 16, bytes % 255 + 1, 119 - count % 60);
            let entries: Vec<(u64, u64, u64)> = entries
                .into_iter()
                .map(|((addr, fits), bytes, count)| {
                    if all_fit || fits { fitting(addr, bytes, count) } else { (addr, bytes, count) }
                })
                .collect();
            let blocks = table(&entries);
            // Place 0 stands for none; the others are words of their own, all of them or some.
            let block = |index: u64| {
                let place = index % (entries.len() as u64 + 1);
                let place = if all_fit { place.max(1) } else { place };
                let own = entries.get((place as usize).wrapping_sub(1));
                own.filter(|_| all_fit || !index.is_multiple_of(3))
                    .and_then(|&(addr, bytes, count)| block_word(addr, bytes, count))
                    .unwrap_or(BLOCK | place)
            };
            let mut words: Vec<u64> = raw
                .iter()
                .map(|&(bits, index, is_block)| if is_block { block(index) } else { bits >> 3 })
                .collect();
            for (body, addr, cut) in turns {
                let index = body % bodies.len();
                words.push(block(index as u64 + 1));
                let (mut at, body) = (0, &bodies[index]);
                // Now and then one reference less.
                for (more, size, store) in &body[usize::from(cut == 0).min(body.len())..] {
                    at += if all_fit { more % 2 } else { *more };
                    words.push(reference(u64::from(addr) + at, at, *size, *store));
                }
            }
            for (fetch, wide) in [(true, true), (true, false), (false, true), (false, false)] {
                let mut position = Position::new(9);
                let mut expander = Expander::new(fetch);
                expander.wide_registers &= wide;
                let found = expanded(&words, step, &blocks, &mut position, expander);
                prop_assert_eq!(found, reference_records(&words, &entries, fetch));
                let executed: u64 = words
                    .iter()
                    .filter(|&&word| word >> 63 == 1)
                    .map(|&word| block_of(word, &entries).2)
                    .sum();
                prop_assert_eq!(position.next, executed);
            }
        }
    }

    /// More words than are handled at once.
    #[test]
    fn many_words() {
        let entries = [(0x1000, 12, 4), (0x2000, 300, 200), (0x3000, 9, 3)];
        let blocks = table(&entries);
        for of_table in [true, false] {
            let words: Vec<u64> = (0..MOST as u64 * 3)
                .map(|i| match i % 7 {
                    0 if of_table && i.is_multiple_of(2) => BLOCK | (1 + i / 7 % 3),
                    0 => block_word(0x1000 + i, i % 255 + 1, i % 119 + 1).unwrap(),
                    n => reference(0x7000_0000 + i * 64, n, n % 4, n == 2),
                })
                .collect();
            for fetch in [true, false] {
                let (expander, mut position) = (Expander::new(fetch), Position::new(9));
                let found = expanded(&words, words.len(), &blocks, &mut position, expander);
                assert_eq!(found, reference_records(&words, &entries, fetch));
            }
        }
    }
}
