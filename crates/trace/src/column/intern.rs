//! Interns the addresses of a row group while records are gathered: builds a sorted dictionary and
//! each record's index in it.

mod table;

use table::BlockTable;

use super::ROW_GROUP;
use crate::footprint::PAGE_SHIFT;

/// Maximum entries of a dictionary: indices have 16 bits.
pub(super) const DICTIONARY: usize = 1 << 16;
/// Minimum records of a row group that ends because its dictionary is full. If the dictionary is
/// full earlier, the group continues without one: smaller groups would take more room (redis with a
/// quarter of this: 0.34 instead of 0.21 bytes per record) and not be faster to read.
const MIN_RECORDS: usize = ROW_GROUP / 8 * 7;
/// log2 of the bytes in a block of addresses, the unit of interning: in most programs, the table of
/// blocks fits the L1 cache, and [`Addresses::marks`] takes at most 16 MiB.
const BLOCK_SHIFT: u32 = 8;
const BLOCK: usize = 1 << BLOCK_SHIFT;
/// Addresses looked up in one pass, before the new ones are added.
const SLICE: usize = 1 << 11;
/// Sentinel in [`Addresses::codes`]: the block of the address is not in the first slot probed. No code
/// has this value, because a group has at most as many blocks as records.
const UNKNOWN: u32 = u32::MAX;

/// The addresses of a group, in order.
pub(super) struct Addresses {
    /// For each address, the ordinal of its block (high bits) and its offset in the block.
    codes: Vec<u32>,
    /// The addresses themselves, once there are too many distinct ones for a dictionary.
    plain: Vec<u64>,
    blocks: BlockTable,
    /// For every byte of every block, the kinds of its references (load, store, ...), one bit each.
    marks: Vec<u8>,
    /// Number of distinct addresses.
    distinct: usize,
    is_full: bool,
    /// Scratch of [`Self::look_up`].
    pending: Box<[u32; SLICE]>,
}

impl Default for Addresses {
    fn default() -> Self {
        Self {
            codes: Vec::new(),
            plain: Vec::new(),
            blocks: BlockTable::default(),
            marks: Vec::new(),
            distinct: 0,
            is_full: false,
            pending: Box::new([0; SLICE]),
        }
    }
}

impl Addresses {
    /// Remove all addresses, but keep the memory.
    pub(super) fn clear(&mut self) {
        self.codes.clear();
        self.plain.clear();
        self.blocks.clear();
        self.marks.clear();
        self.distinct = 0;
        self.is_full = false;
    }

    pub(super) fn reserve(&mut self, records: usize) {
        self.codes.reserve_exact(records.saturating_sub(self.codes.len()));
    }

    /// Whether the group must end here, because its dictionary is full.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Append addresses, with the kinds of their references. Stops at the first that does not fit the
    /// dictionary if the group is long enough to end there ([`MIN_RECORDS`]). Returns the number appended.
    pub(super) fn extend(&mut self, addr: &[u64], kind: &[u8]) -> usize {
        let mut done = 0;
        while done < addr.len() {
            let until = addr.len().min(done + SLICE);
            if !self.plain.is_empty() {
                self.plain.extend_from_slice(&addr[done..]);
                return addr.len();
            }
            done += self.intern(&addr[done..until], &kind[done..until]);
            if done == until {
                continue;
            }
            if self.codes.len() >= MIN_RECORDS {
                self.is_full = true;
                return done;
            }
            self.plain.reserve_exact(ROW_GROUP);
            let (codes, blocks) = (&self.codes, &self.blocks);
            self.plain.extend(codes.iter().map(|&code| {
                let (ordinal, offset) = (code >> BLOCK_SHIFT, code % BLOCK as u32);
                blocks.number(ordinal) << BLOCK_SHIFT | u64::from(offset)
            }));
            self.codes.clear();
        }
        done
    }

    /// Append the codes of at most [`SLICE`] addresses, up to the first new one once the dictionary
    /// is full. Returns the number appended.
    fn intern(&mut self, addr: &[u64], kind: &[u8]) -> usize {
        let start = self.codes.len();
        self.codes.resize(start + addr.len(), 0);
        let pending = self.look_up(start, addr, kind);
        let Self { codes, blocks, marks, distinct, .. } = self;
        let codes = &mut codes[start..];
        for &index in &self.pending[..pending] {
            let index = index as usize;
            let (code, addr) = (&mut codes[index], addr[index]);
            if *code == UNKNOWN {
                let block = addr >> BLOCK_SHIFT;
                let ordinal = blocks.find(block).unwrap_or_else(|| {
                    let ordinal = blocks.insert(block);
                    let length = (ordinal as usize + 1) * BLOCK;
                    // Grow in few steps: from 256 KiB, fourfold.
                    if marks.capacity() < length {
                        marks.reserve_exact((marks.capacity() * 4).max(1 << 18) - marks.len());
                    }
                    marks.resize(length, 0);
                    ordinal
                });
                *code = ordinal << BLOCK_SHIFT | addr as u32 % BLOCK as u32;
            }
            let mark = &mut marks[*code as usize];
            if *mark == 0 {
                if *distinct == DICTIONARY {
                    self.codes.truncate(start + index);
                    return index;
                }
                *distinct += 1;
            }
            *mark |= bit_of(kind[index]);
        }
        addr.len()
    }

    /// Write the codes of the addresses from `start` on, or [`UNKNOWN`] if the block is not in the
    /// first slot probed. The indices of unknown addresses, and of those that this kind has not
    /// touched before, go to `pending`. Returns the number of pending indices.
    fn look_up(&mut self, start: usize, addr: &[u64], kind: &[u8]) -> usize {
        let mut count = 0;
        let codes = &mut self.codes[start..];
        for (index, ((&addr, &kind), code)) in addr.iter().zip(kind).zip(codes).enumerate() {
            let ordinal = self.blocks.probe_once(addr >> BLOCK_SHIFT);
            let found = ordinal.map(|ordinal| ordinal << BLOCK_SHIFT | addr as u32 % BLOCK as u32);
            *code = found.unwrap_or(UNKNOWN);
            let known = found.is_some_and(|code| self.marks[code as usize] & bit_of(kind) != 0);
            self.pending[count] = index as u32;
            count += usize::from(!known);
        }
        count
    }

    pub(super) fn plain(&self) -> Option<&[u64]> {
        (!self.plain.is_empty()).then_some(&self.plain)
    }

    /// The sorted distinct addresses; `positions` becomes their indices. Appends their 4 KiB pages to
    /// `pages`, each with the kinds of its references (one bit each); a page may appear several times.
    ///
    /// Sorting gives neighbours in memory neighbouring indices, which zstd compresses better than
    /// order of appearance (0.80 instead of 0.84 bytes per reference on the gzip capture).
    pub(super) fn dictionary(
        &self,
        positions: &mut Positions,
        pages: &mut Vec<(u64, u8)>,
    ) -> Vec<u64> {
        let mut order: Vec<(u64, usize)> = self.blocks.numbers().zip(0..).collect();
        order.sort_unstable();
        positions.0.resize(self.marks.len(), 0);
        let mut dictionary = Vec::with_capacity(self.distinct);
        for (block, ordinal) in order {
            let base = block << BLOCK_SHIFT;
            let mut kinds = 0;
            let start = ordinal * BLOCK;
            // Few bytes are marked; most words are 0.
            let (words, _) = self.marks[start..start + BLOCK].as_chunks();
            for (start, word) in (start..).step_by(size_of::<u64>()).zip(words) {
                let mut left = u64::from_le_bytes(*word);
                while left != 0 {
                    let byte = left.trailing_zeros() / 8;
                    kinds |= (left >> (byte * 8)) as u8;
                    left &= !(0xff << (byte * 8));
                    let index = start + byte as usize;
                    positions.0[index] = dictionary.len() as u16;
                    dictionary.push(base | (index % BLOCK) as u64);
                }
            }
            // `kinds` is 0 if the group ended just before the first address of this block.
            if kinds != 0 {
                pages.push((base >> PAGE_SHIFT, kinds));
            }
        }
        dictionary
    }

    /// Append each record's index in the dictionary of `positions`, as two bytes.
    pub(super) fn write_indices(&self, positions: &Positions, out: &mut Vec<u8>) {
        for codes in self.codes.chunks(64) {
            let mut indices = [[0; 2]; 64];
            for (index, &code) in indices.iter_mut().zip(codes) {
                *index = positions.0[code as usize].to_le_bytes();
            }
            out.extend_from_slice(indices[..codes.len()].as_flattened());
        }
    }
}

/// For every byte of every block of [`Addresses`], the index of that address in the dictionary, if
/// it is an entry.
#[derive(Default)]
pub(super) struct Positions(Vec<u16>);

fn bit_of(kind: u8) -> u8 {
    1 << (kind & 7)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::footprint::PAGE_SHIFT;

    fn addr() -> impl Strategy<Value = u64> {
        prop_oneof![
            6 => (0u64..1 << 12).prop_map(|a| 0x7f00_0000_0000 + a),
            2 => 0u64..1 << 20,
            // Around the largest block that fits a slot of `BlockTable`, and around the last block.
            1 => (0u64..1 << 10).prop_map(|a| (1 << 48) - 768 + a),
            1 => (0u64..1 << 10).prop_map(|a| u64::MAX - a),
            1 => any::<u64>(),
        ]
    }

    proptest! {
        #[test]
        fn indices_are_positions_in_a_sorted_set(
            records in prop::collection::vec((addr(), 0u8..5), 1..3000),
            step in 1usize..5000,
        ) {
            let (addr, kind): (Vec<u64>, Vec<u8>) = records.iter().copied().unzip();
            let entries: Vec<u64> = addr.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
            let indices: Vec<u8> = addr
                .iter()
                .flat_map(|addr| (entries.binary_search(addr).unwrap() as u16).to_le_bytes())
                .collect();
            let touched: BTreeSet<(u64, u8)> =
                records.iter().map(|&(addr, kind)| (addr >> PAGE_SHIFT, kind)).collect();
            let mut addresses = Addresses::default();
            // Reuse a cleared value, as groups do.
            addresses.extend(&[1, 2, 3], &[0, 1, 2]);
            addresses.clear();
            for (addr, kind) in addr.chunks(step).zip(kind.chunks(step)) {
                prop_assert_eq!(addresses.extend(addr, kind), addr.len());
            }
            let (mut positions, mut pages, mut found) = Default::default();
            prop_assert_eq!(&addresses.dictionary(&mut positions, &mut pages), &entries);
            addresses.write_indices(&positions, &mut found);
            prop_assert_eq!(&found, &indices);
            let pages: BTreeSet<(u64, u8)> = pages
                .into_iter()
                .flat_map(|(page, kinds)| (0..8).map(move |kind| (page, kind, kinds)))
                .filter(|(_, kind, kinds)| kinds >> kind & 1 != 0)
                .map(|(page, kind, _)| (page, kind))
                .collect();
            prop_assert_eq!(&pages, &touched);
        }
    }

    #[test]
    fn the_first_excess_address_ends_a_long_group_or_the_dictionary() {
        // From 14 repeats on, the group has `MIN_RECORDS`.
        for repeats in [1, 14, 15] {
            let mut addresses = Addresses::default();
            let all: Vec<u64> =
                (0..DICTIONARY as u64 * repeats).map(|i| i / repeats * 40).collect();
            let kind = vec![0; all.len()];
            assert_eq!(addresses.extend(&all, &kind), all.len());
            assert!(addresses.plain().is_none() && !addresses.is_full());
            // Two known addresses, then a new one, on a new page.
            let new = 1 << 40;
            let more = [80, 0, new, 40];
            let appended = addresses.extend(&more, &[0; 4]);
            if all.len() + 2 < MIN_RECORDS {
                assert_eq!((appended, addresses.is_full()), (4, false), "{repeats} times");
                let expected: Vec<u64> = all.iter().chain(&more).copied().collect();
                assert_eq!(addresses.plain(), Some(&expected[..]));
            } else {
                assert_eq!((appended, addresses.is_full()), (2, true), "{repeats} times");
                assert!(addresses.plain().is_none());
                let (mut positions, mut pages) = Default::default();
                assert_eq!(addresses.dictionary(&mut positions, &mut pages).len(), DICTIONARY);
                assert!(pages.iter().all(|&(page, kinds)| page != new >> PAGE_SHIFT && kinds == 1));
            }
        }
    }
}
