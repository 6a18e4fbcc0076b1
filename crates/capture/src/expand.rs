//! From words to records.

use std::sync::atomic::Ordering::Relaxed;

use nearfar_trace::{Batch, Kind, Narrow, Record, Result};

use crate::layout::{
    ADDR_BITS, BLOCK, BLOCKS, Block, INDEX_MASK, INDEX_SHIFT, OTHER, SIZE_SHIFT, STORE,
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

/// Instructions of the current block that a reference counts as executed.
fn within_block(word: u64) -> u64 {
    ((word >> INDEX_SHIFT) & INDEX_MASK) + 1
}

fn kind_of(word: u64) -> Kind {
    if word & STORE != 0 { Kind::Store } else { Kind::Load }
}

fn size_of(word: u64) -> u16 {
    1 << ((word >> SIZE_SHIFT) & 7)
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
    gap: [u32; MOST],
    /// `size` and `gap` where a byte holds them.
    narrow: [[u8; MOST]; 2],
}

/// Where a thread is within the words at hand.
struct Within {
    /// Instructions before the current block, and including it.
    block: u64,
    next: u64,
    /// Instructions of the current block: accounted for by records, and all of them.
    noted: u32,
    all: u32,
    /// Not 0: there was a block without a size, or a number that is too large.
    odd: u32,
    /// Every bit of every gap: the topmost when one was below 0.
    gaps: u32,
}

impl Columns {
    /// The records of `words`, references and blocks only, for a thread that is at `position`,
    /// which is moved on. False, with nothing moved, when they are not one for each word or not in
    /// the order of their instructions.
    #[inline(always)]
    fn fill(&mut self, words: &[u64], blocks: &[Block; BLOCKS], position: &mut Position) -> bool {
        let Position { block, next, .. } = *position;
        let Some(noted) = position.noted.checked_sub(block) else { return false };
        let (Ok(noted), Ok(all)) = (u32::try_from(noted), u32::try_from(next - block)) else {
            return false;
        };
        let mut within = Within { block, next, noted, all, odd: all >> 16, gaps: 0 };
        let (pieces, rest) = words.as_chunks();
        for (start, words) in (0..).step_by(LANES).zip(pieces) {
            self.fill_piece(start, words, LANES, blocks, &mut within);
        }
        if !rest.is_empty() {
            let mut piece = [0; LANES];
            piece[..rest.len()].copy_from_slice(rest);
            self.fill_piece(words.len() - rest.len(), &piece, rest.len(), blocks, &mut within);
        }
        if within.odd | within.gaps >> 31 != 0 {
            return false;
        }
        (position.block, position.next) = (within.block, within.next);
        position.noted = within.block + u64::from(within.noted);
        true
    }

    /// The first `count` of `words`, whose records begin at `start`.
    #[inline(always)]
    fn fill_piece(
        &mut self,
        start: usize,
        words: &[u64; LANES],
        count: usize,
        blocks: &[Block; BLOCKS],
        within: &mut Within,
    ) {
        let addr = piece(&mut self.addr, start);
        let kind = piece(&mut self.kind, start);
        let size = piece(&mut self.size, start);
        let gap = piece(&mut self.gap, start);
        // As if all were references, a loop for each column: loops that compilers make wide.
        let mut at = [0; LANES];
        for lane in 0..LANES {
            addr[lane] = words[lane] & !TOP;
        }
        for lane in 0..LANES {
            let of_block = words[lane] >= BLOCK;
            kind[lane] = if of_block { Kind::Fetch } else { kind_of(words[lane]) } as u8;
        }
        for lane in 0..LANES {
            size[lane] = size_of(words[lane]);
        }
        for lane in 0..LANES {
            let of_block = words[lane] >= BLOCK;
            at[lane] = if of_block { 0 } else { within_block(words[lane]) as u32 };
        }
        gap[0] = at[0].wrapping_sub(within.noted);
        for lane in 1..LANES {
            gap[lane] = at[lane].wrapping_sub(at[lane - 1]);
        }
        within.noted = at[count - 1];
        let mut starts = 0;
        for (lane, word) in words.iter().enumerate() {
            starts |= (word >> 63) << lane;
        }
        // Then the blocks among them.
        while starts != 0 {
            let lane = starts.trailing_zeros() as usize;
            starts &= starts - 1;
            let entry = &blocks[words[lane] as usize & (BLOCKS - 1)];
            let code = entry.shape.load(Relaxed);
            let (bytes, instructions) = (code as u32, (code >> 32) as u32);
            addr[lane] = entry.addr.load(Relaxed);
            size[lane] = bytes as u16;
            gap[lane] = gap[lane].wrapping_add(within.all);
            // A block that found no place in the table has no size, and makes no record.
            within.odd |= bytes.wrapping_sub(1) >> 16 | instructions >> 16;
            within.all = instructions;
            within.block = within.next;
            within.next += u64::from(instructions);
        }
        within.gaps |= gap[..count].iter().fold(0, |all, gap| all | gap);
    }

    /// Leave out the fetches among the first `count` records: their instructions are those of the
    /// next record. Returns how many are left, and the instructions after the last one.
    #[inline(always)]
    fn drop_fetches(&mut self, count: usize, before: u32) -> (usize, u32) {
        let (mut kept, mut carried) = (0, before);
        for at in 0..count {
            let is_kept = self.kind[at] != Kind::Fetch as u8;
            carried += self.gap[at];
            self.addr[kept] = self.addr[at];
            self.kind[kept] = self.kind[at];
            self.size[kept] = self.size[at];
            self.gap[kept] = carried;
            kept += usize::from(is_kept);
            carried = if is_kept { 0 } else { carried };
        }
        (kept, carried)
    }

    /// Sizes and gaps of the first `count` records as bytes; false when one does not fit.
    #[inline(always)]
    fn narrow(&mut self, count: usize) -> bool {
        let [sizes, gaps] = &mut self.narrow;
        let mut all = 0;
        for at in 0..count.next_multiple_of(LANES).min(MOST) {
            (sizes[at], gaps[at]) = (self.size[at] as u8, self.gap[at] as u8);
        }
        for (size, gap) in self.size[..count].iter().zip(&self.gap[..count]) {
            all |= u32::from(*size) | gap;
        }
        all <= u32::from(u8::MAX)
    }
}

/// How many of `words` come before the first control word that is not a block.
#[inline(always)]
fn until_other(words: &[u64]) -> usize {
    let (pieces, _) = words.as_chunks::<LANES>();
    let mut clear = 0;
    for piece in pieces {
        if piece.iter().fold(false, |any, word| any | (*word >= OTHER)) {
            break;
        }
        clear += LANES;
    }
    while clear < words.len() && words[clear] < OTHER {
        clear += 1;
    }
    clear
}

fn piece<T>(column: &mut [T; MOST], start: usize) -> &mut [T; LANES] {
    let (pieces, _) = column.as_chunks_mut();
    &mut pieces[start / LANES]
}

/// What became of some words.
struct Expanded {
    /// How many of them, up to a control word that is not a block.
    words: usize,
    /// Records made of these; `None`, with the position not moved, when that has to be done one by
    /// one.
    records: Option<usize>,
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
        let expanded = self.columns(words, blocks, position);
        let words = &words[..expanded.words];
        let Some(records) = expanded.records else {
            self.plain(words, blocks, position, sink)?;
            return Ok(words.len());
        };
        let thread = position.thread;
        let Columns { addr, kind, size, gap, narrow: [sizes, gaps] } = &*self.columns;
        let (addr, kind) = (&addr[..records], &kind[..records]);
        if records == 0 {
            // Nothing, or blocks alone whose fetches are left out.
        } else if expanded.narrow {
            let (size, instr) = (&sizes[..records], &gaps[..records]);
            sink.narrow(Narrow { addr, kind, size, instr, thread })?;
        } else {
            let wide = &mut self.wide;
            wide.addr.extend_from_slice(addr);
            wide.kind.extend_from_slice(kind);
            wide.size.extend_from_slice(&size[..records]);
            wide.instr.extend_from_slice(&gap[..records]);
            wide.thread.resize(records, thread);
            sink.wide(wide)?;
        }
        Ok(words.len())
    }

    fn columns(
        &mut self,
        words: &[u64],
        blocks: &[Block; BLOCKS],
        position: &mut Position,
    ) -> Expanded {
        #[cfg(target_arch = "x86_64")]
        if self.wide_registers {
            // SAFETY: the processor has the instructions.
            return unsafe { self.columns_in_wide_registers(words, blocks, position) };
        }
        self.columns_in_any(words, blocks, position)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,bmi1,bmi2,popcnt")]
    fn columns_in_wide_registers(
        &mut self,
        words: &[u64],
        blocks: &[Block; BLOCKS],
        position: &mut Position,
    ) -> Expanded {
        self.columns_in_any(words, blocks, position)
    }

    #[inline(always)]
    fn columns_in_any(
        &mut self,
        words: &[u64],
        blocks: &[Block; BLOCKS],
        position: &mut Position,
    ) -> Expanded {
        let words = &words[..until_other(words)];
        let mut expanded = Expanded { words: words.len(), records: None, narrow: false };
        // Blocks whose fetch is left out are not accounted for yet.
        let behind = position.block.saturating_sub(position.noted);
        if behind >> 31 != 0 || self.fetch && behind > 0 {
            return expanded;
        }
        let mut moved = Position { noted: position.noted + behind, ..*position };
        if !self.columns.fill(words, blocks, &mut moved) {
            return expanded;
        }
        let mut records = words.len();
        if !self.fetch {
            let (kept, behind) = self.columns.drop_fetches(records, behind as u32);
            moved.noted -= u64::from(behind);
            records = kept;
        }
        *position = moved;
        expanded.records = Some(records);
        expanded.narrow = self.columns.narrow(records);
        expanded
    }

    /// One word after the other: the meaning of [`Self::expand`], for what has no columns.
    fn plain(
        &mut self,
        words: &[u64],
        blocks: &[Block; BLOCKS],
        position: &mut Position,
        sink: &mut impl Sink,
    ) -> Result<()> {
        for &word in words {
            let (addr, kind, size, at) = if word >= BLOCK {
                let block = &blocks[word as usize & (BLOCKS - 1)];
                let code = block.shape.load(Relaxed);
                position.block = position.next;
                position.next += code >> 32;
                (block.addr.load(Relaxed), Kind::Fetch, code as u16, position.block)
            } else {
                (word & !TOP, kind_of(word), size_of(word), position.block + within_block(word))
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
        if self.wide.is_empty() { Ok(()) } else { sink.wide(&mut self.wide) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use proptest::prelude::*;

    use super::*;
    use crate::layout::{CONTROL, tag};

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
                let index = (word & 0xffff_ffff) as usize;
                let (home, bytes, count) = if index == 0 { (0, 0, 0) } else { entries[index - 1] };
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
            entries in prop::collection::vec((any::<u64>(), 1u64..600, 0u64..=512), 1..20),
            raw in prop::collection::vec((any::<u64>(), 0u64..30, any::<bool>()), 0..300),
            bodies in prop::collection::vec(
                prop::collection::vec((0u64..12, 0u64..8, any::<bool>()), 0..10), 1..4),
            turns in prop::collection::vec((0usize..4, any::<u32>(), 0u8..20), 0..200),
            step in 1usize..300,
        ) {
            let blocks = table(&entries);
            let block = |index: u64| BLOCK | (index % (entries.len() as u64 + 1));
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
                    at += more;
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
                    .filter(|&&word| word >> 63 == 1 && word & 0xffff_ffff != 0)
                    .map(|word| entries[(word & 0xffff_ffff) as usize - 1].2)
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
        let words: Vec<u64> = (0..MOST as u64 * 3)
            .map(|i| match i % 7 {
                0 => BLOCK | (1 + i / 7 % 3),
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
