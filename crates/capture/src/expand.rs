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

/// Most references of a block that are handled at once.
const LANES: usize = 7;
/// Words expanded at a time: what they become stays in the processor's cache.
const MOST: usize = 1 << 12;
/// What the bits of a word above its address say of the instruction.
const TOP: u64 = !((1 << ADDR_BITS) - 1);

/// What a block did when it last ran: which references, in what order. It does the same nearly
/// every time, and then its records are this one with other addresses.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Shape {
    /// Bits above the address of each reference.
    tops: [u64; LANES],
    /// Address of the block.
    home: u64,
    /// Columns of its records: the fetch, if it is recorded, then the references.
    kind: [u8; LANES + 1],
    size: [u8; LANES + 1],
    instr: [u8; LANES + 1],
    /// Instructions in the block, and those after its last record.
    count: u32,
    rest: u32,
    /// Records before the references: the fetch, or none.
    lead: u8,
    /// References; more than any block here has when nothing is known yet.
    references: u8,
}

const UNKNOWN: Shape = Shape {
    tops: [0; LANES],
    home: 0,
    kind: [0; LANES + 1],
    size: [0; LANES + 1],
    instr: [0; LANES + 1],
    count: 0,
    rest: 0,
    lead: 0,
    references: u8::MAX,
};

/// [`TOP`] for as many references as there are, then zeros.
const MASKS: [[u64; LANES]; LANES + 1] = {
    let mut masks = [[0; LANES]; LANES + 1];
    let mut references = 0;
    while references <= LANES {
        let mut lane = 0;
        while lane < references {
            masks[references][lane] = TOP;
            lane += 1;
        }
        references += 1;
    }
    masks
};

impl Shape {
    /// The shape of a block from what it did now; `None` when its records do not fit.
    fn of(block: &Block, fetch: bool, references: &[u64]) -> Option<Shape> {
        let (addr, code) = (block.addr.load(Relaxed), block.shape.load(Relaxed));
        let count = (code >> 32) as u32;
        let mut shape = Shape { home: addr, count, references: references.len() as u8, ..UNKNOWN };
        let mut made = 0;
        // A block that found no place in the table has no size, and makes no record.
        if fetch && code as u16 != 0 {
            shape.lead = 1;
            shape.kind[0] = Kind::Fetch as u8;
            shape.size[0] = u8::try_from(code as u16).ok()?;
            made = 1;
        }
        let mut noted = 0;
        for (lane, &word) in references.iter().enumerate() {
            let within = within(word);
            *shape.tops.get_mut(lane)? = word & TOP;
            shape.kind[made] = kind(word) as u8;
            shape.size[made] = size(word) as u8;
            shape.instr[made] = u8::try_from(within.checked_sub(noted)?).ok()?;
            noted = within;
            made += 1;
        }
        shape.rest = if made > 0 { count.checked_sub(noted as u32)? } else { count };
        Some(shape)
    }

    /// Records made.
    #[inline(always)]
    fn records(&self) -> usize {
        usize::from(self.lead + self.references)
    }

    /// Whether the block did the same now.
    #[inline(always)]
    fn fits(&self, references: usize, lanes: &[u64; LANES]) -> bool {
        let mask = &MASKS[references.min(LANES)];
        let mut other = 0;
        for lane in 0..LANES {
            other |= (lanes[lane] ^ self.tops[lane]) & mask[lane];
        }
        usize::from(self.references) == references && other == 0
    }
}

/// Instructions of the current block that a reference counts as executed.
fn within(word: u64) -> u64 {
    ((word >> INDEX_SHIFT) & INDEX_MASK) + 1
}

fn kind(word: u64) -> Kind {
    if word & STORE != 0 { Kind::Store } else { Kind::Load }
}

fn size(word: u64) -> u16 {
    1 << ((word >> SIZE_SHIFT) & 7)
}

/// Expands words into records; remembers what blocks do.
///
/// An instruction counts as executed from its own first reference on; a fetch comes before the
/// first instruction of its block.
pub struct Expander {
    fetch: bool,
    /// By index of the block.
    shapes: Vec<Shape>,
    /// Where blocks begin in the words at hand.
    starts: Vec<u32>,
    columns: Box<Columns>,
    wide: Batch,
}

/// Records being made: room for those of [`MOST`] words and one block more.
struct Columns {
    addr: [u64; MOST + LANES + 1],
    kind: [u8; MOST + LANES + 1],
    size: [u8; MOST + LANES + 1],
    instr: [u8; MOST + LANES + 1],
}

impl Expander {
    /// With `fetch`, a block is a record; without, blocks only count instructions.
    pub fn new(fetch: bool) -> Self {
        const ROOM: usize = MOST + LANES + 1;
        let columns =
            Columns { addr: [0; ROOM], kind: [0; ROOM], size: [0; ROOM], instr: [0; ROOM] };
        Self {
            fetch,
            shapes: Vec::new(),
            starts: vec![0; MOST + 1],
            columns: Box::new(columns),
            wide: Batch::default(),
        }
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
        let count = self.find_blocks(words);
        let (first, end) = (self.starts[0] as usize, self.starts[count] as usize);
        // What follows a block whose start was in words seen earlier.
        self.plain(&words[..first], blocks, position, sink)?;
        let mut made = 0;
        for block in 0..count {
            let (start, after) = (self.starts[block] as usize, self.starts[block + 1] as usize);
            let index = words[start] as usize & (BLOCKS - 1);
            let references = after - start - 1;
            let mut padded = [0; LANES];
            let lanes = match words.get(start + 1..).and_then(|rest| rest.first_chunk()) {
                Some(lanes) => lanes,
                None => {
                    let rest = &words[start + 1..];
                    padded[..rest.len()].copy_from_slice(rest);
                    &padded
                }
            };
            let known = self.shapes.get(index).is_some_and(|shape| shape.fits(references, lanes));
            let gap = position.next.wrapping_sub(position.noted);
            if !(known || self.learn(index, &blocks[index], &words[start + 1..after]))
                || gap.saturating_add(u64::from(self.shapes[index].instr[0])) > u64::from(u8::MAX)
            {
                self.hand_over(made, position.thread, sink)?;
                made = 0;
                self.plain(&words[start..after], blocks, position, sink)?;
                continue;
            }
            let shape = &self.shapes[index];
            let (columns, to) = (&mut *self.columns, made + LANES + 1);
            columns.addr[made] = shape.home;
            let addrs = &mut columns.addr[made..][usize::from(shape.lead)..][..LANES];
            for (out, word) in addrs.iter_mut().zip(lanes) {
                *out = word & !TOP;
            }
            columns.kind[made..to].copy_from_slice(&shape.kind);
            columns.size[made..to].copy_from_slice(&shape.size);
            columns.instr[made..to].copy_from_slice(&shape.instr);
            columns.instr[made] += gap as u8;
            let records = shape.records();
            made += records;
            position.block = position.next;
            position.next += u64::from(shape.count);
            if records > 0 {
                position.noted = position.next - u64::from(shape.rest);
            }
        }
        self.hand_over(made, position.thread, sink)?;
        Ok(end)
    }

    /// Note where blocks begin, and after the last one where the words end: at their end, or at a
    /// control word that is not a block. Returns how many blocks.
    fn find_blocks(&mut self, words: &[u64]) -> usize {
        let mut count = 0;
        for (at, &word) in words.iter().enumerate() {
            self.starts[count] = at as u32;
            if word >= OTHER {
                return count;
            }
            count += usize::from(word >= BLOCK);
        }
        self.starts[count] = words.len() as u32;
        count
    }

    /// Remember what a block did; false when that cannot be.
    #[cold]
    #[inline(never)]
    fn learn(&mut self, index: usize, block: &Block, references: &[u64]) -> bool {
        let Some(shape) = Shape::of(block, self.fetch, references) else { return false };
        if index >= self.shapes.len() {
            self.shapes.resize(index + 1, UNKNOWN);
        }
        self.shapes[index] = shape;
        true
    }

    fn hand_over(&mut self, made: usize, thread: u32, sink: &mut impl Sink) -> Result<()> {
        if made == 0 {
            return Ok(());
        }
        let columns = &*self.columns;
        sink.narrow(Narrow {
            addr: &columns.addr[..made],
            kind: &columns.kind[..made],
            size: &columns.size[..made],
            instr: &columns.instr[..made],
            thread,
        })
    }

    /// One word after the other: the meaning of [`Self::expand`], for what fits no shape.
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
                (word & !TOP, kind(word), size(word), position.block + within(word))
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
        fetch: bool,
    ) -> Vec<Record> {
        let mut expander = Expander::new(fetch);
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
            for fetch in [true, false] {
                let mut position = Position::new(9);
                let found = expanded(&words, step, &blocks, &mut position, fetch);
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
            let found = expanded(&words, words.len(), &blocks, &mut Position::new(9), fetch);
            assert_eq!(found, reference_records(&words, &entries, fetch));
        }
    }
}
