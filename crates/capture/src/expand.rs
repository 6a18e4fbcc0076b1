//! From words to records.

use std::sync::atomic::Ordering::Relaxed;

use nearfar_trace::{Batch, Kind, Record};

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

/// Append the records of `words` to `out`, up to the first control word that is not a block.
/// Returns how many words that took. Without `FETCH`, blocks only count instructions.
///
/// An instruction counts as executed from its own first reference on; a fetch comes before the
/// first instruction of its block.
pub fn expand<const FETCH: bool>(
    words: &[u64],
    blocks: &[Block; BLOCKS],
    position: &mut Position,
    out: &mut Batch,
) -> usize {
    let end = words.iter().position(|&word| word >= OTHER).unwrap_or(words.len());
    let words = &words[..end];
    if !quick::<FETCH>(words, blocks, position, out) {
        plain::<FETCH>(words, blocks, position, out);
    }
    end
}

/// What a word says, given the block table.
#[derive(Clone, Copy)]
struct Meaning {
    is_block: bool,
    /// Instructions in the block; 0 for a reference.
    count: u64,
    /// Instructions of the current block that the reference counts as executed; 0 for a block.
    within: u64,
    addr: u64,
    kind: Kind,
    size: u16,
}

impl Meaning {
    /// No branches: blocks and references follow each other in no order that could be guessed.
    #[inline(always)]
    fn of(word: u64, blocks: &[Block; BLOCKS]) -> Self {
        let is_block = word >= BLOCK;
        // Entry 0 stands for no block, and is all zeros.
        let block = &blocks[if is_block { word as usize & (BLOCKS - 1) } else { 0 }];
        let shape = block.shape.load(Relaxed);
        let home = block.addr.load(Relaxed);
        let kind = if word & STORE != 0 { Kind::Store } else { Kind::Load };
        Self {
            is_block,
            count: shape >> 32,
            within: if is_block { 0 } else { ((word >> INDEX_SHIFT) & INDEX_MASK) + 1 },
            addr: if is_block { home } else { word & ((1 << ADDR_BITS) - 1) },
            kind: if is_block { Kind::Fetch } else { kind },
            size: if is_block { shape as u16 } else { 1 << ((word >> SIZE_SHIFT) & 7) },
        }
    }

    /// A block that found no place in the table has no size, and makes no record.
    #[inline(always)]
    fn makes_record<const FETCH: bool>(&self) -> bool {
        if FETCH { self.size != 0 } else { !self.is_block }
    }
}

/// One word after the other; the meaning of [`quick`], and what happens when that gives up.
fn plain<const FETCH: bool>(
    words: &[u64],
    blocks: &[Block; BLOCKS],
    position: &mut Position,
    out: &mut Batch,
) {
    for &word in words {
        let meaning = Meaning::of(word, blocks);
        if meaning.is_block {
            position.block = position.next;
            position.next += meaning.count;
        }
        if !meaning.makes_record::<FETCH>() {
            continue;
        }
        let at = position.block + meaning.within;
        // What does not fit the column is carried over to the next record.
        let gap = at.saturating_sub(position.noted).min(u64::from(u32::MAX));
        position.noted += gap;
        out.push(Record {
            addr: meaning.addr,
            kind: meaning.kind,
            size: meaning.size,
            thread: position.thread,
            instr: gap as u32,
        });
    }
}

/// The same without branches, a few nanoseconds a record. Gives up, with nothing changed, when a
/// gap does not fit its column.
fn quick<const FETCH: bool>(
    words: &[u64],
    blocks: &[Block; BLOCKS],
    position: &mut Position,
    out: &mut Batch,
) -> bool {
    let start = out.len();
    out.addr.reserve(words.len());
    out.kind.reserve(words.len());
    out.size.reserve(words.len());
    out.instr.reserve(words.len());
    let mut made = start;
    let mut too_large = 0;
    let Position { mut block, mut next, mut noted, .. } = *position;
    // SAFETY: there is room for as many values as there are words, and `made - start` is never
    // more than the number of words seen. The lengths are set to what has been written.
    unsafe {
        let (addrs, kinds) = (out.addr.as_mut_ptr(), out.kind.as_mut_ptr());
        let (sizes, instrs) = (out.size.as_mut_ptr(), out.instr.as_mut_ptr());
        for &word in words {
            let meaning = Meaning::of(word, blocks);
            block = if meaning.is_block { next } else { block };
            next += meaning.count;
            let at = block + meaning.within;
            let gap = at.wrapping_sub(noted);
            addrs.add(made).write(meaning.addr);
            kinds.add(made).write(meaning.kind as u8);
            sizes.add(made).write(meaning.size);
            instrs.add(made).write(gap as u32);
            let kept = meaning.makes_record::<FETCH>();
            made += usize::from(kept);
            noted = if kept { at } else { noted };
            too_large |= if kept { gap } else { 0 };
        }
        if too_large > u64::from(u32::MAX) {
            return false;
        }
        out.addr.set_len(made);
        out.kind.set_len(made);
        out.size.set_len(made);
        out.instr.set_len(made);
    }
    out.thread.resize(made, position.thread);
    (position.block, position.next, position.noted) = (block, next, noted);
    true
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
        let mut out = Batch::default();
        assert_eq!(expand::<true>(&words, &blocks, &mut position, &mut out), 6);
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
        let mut out = Batch::default();
        assert_eq!(expand::<true>(&words, &blocks, &mut Position::new(0), &mut out), 1);
        assert_eq!(out.len(), 1);
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
        let mut out = Batch::default();
        expand::<false>(&words, &blocks, &mut position, &mut out);
        assert_eq!(out.instr, [u32::MAX, u32::MAX, 1, 2]);
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

    proptest! {
        #[test]
        fn agrees_with_the_reference(
            entries in prop::collection::vec((any::<u64>(), 1u64..8000, 1u64..=512), 1..20),
            // Most indices rise within a block; some do not.
            raw in prop::collection::vec((any::<u64>(), 0u64..30, any::<bool>()), 0..300),
            cut in 0usize..300,
        ) {
            let blocks = table(&entries);
            let words: Vec<u64> = raw
                .iter()
                .map(|(bits, index, block)| {
                    if *block { BLOCK | (index % (entries.len() as u64 + 1)) } else { bits >> 3 }
                })
                .collect();
            for fetch in [true, false] {
                let mut position = Position::new(9);
                let mut out = Batch::default();
                // In two pieces, as rings are read.
                let (a, b) = words.split_at(cut.min(words.len()));
                for piece in [a, b] {
                    let taken = if fetch {
                        expand::<true>(piece, &blocks, &mut position, &mut out)
                    } else {
                        expand::<false>(piece, &blocks, &mut position, &mut out)
                    };
                    prop_assert_eq!(taken, piece.len());
                }
                let expected = reference_records(&words, &entries, fetch);
                prop_assert_eq!(out.iter().collect::<Vec<_>>(), expected);
                prop_assert_eq!(out.thread.len(), out.len());
            }
        }
    }
}
