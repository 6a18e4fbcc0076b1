//! Interning the addresses of a row group: a sorted dictionary, and each record's index in it.

use super::ROW_GROUP;
use crate::footprint::PAGE_SHIFT;

/// Most entries of a dictionary: indices have 16 bits.
pub(super) const DICTIONARY: usize = 1 << 16;
/// Fewest records of a row group that ends because its dictionary is full. One that is full much
/// earlier goes on without a dictionary: several would take more room (redis: 0.34 in place of
/// 0.21 bytes a record with a quarter of this), and be no faster to read.
const FEWEST: usize = ROW_GROUP / 8 * 7;
/// Addresses are interned by blocks of this many bytes (log2): few enough in most programs that
/// the look-up stays in the first-level cache, and at worst 32 MiB of marks.
const BLOCK_SHIFT: u32 = 8;
const BLOCK: usize = 1 << BLOCK_SHIFT;
/// Records interned at a time.
const SLICE: usize = 1 << 12;

/// A slot of the block table.
#[derive(Clone, Copy)]
struct Slot {
    block: u64,
    /// Ordinal of the block, shifted to make room for an offset.
    code: u32,
}

/// No address has this block.
const EMPTY: Slot = Slot { block: u64::MAX, code: 0 };

/// Addresses of records, in order.
pub(super) struct Addresses {
    /// As (ordinal of its block, offset in it) each; none when there are too many different ones
    /// for a dictionary.
    codes: Vec<u32>,
    slots: Vec<Slot>,
    /// Block numbers by ordinal.
    blocks: Vec<u64>,
    /// For every byte of every block, the kinds that touched that address (a bit each); in the end
    /// its place in the dictionary.
    marks: Vec<[u16; BLOCK]>,
    /// Different addresses.
    distinct: usize,
}

impl Default for Addresses {
    fn default() -> Self {
        Self {
            codes: Vec::new(),
            slots: vec![EMPTY; 1 << 10],
            blocks: Vec::new(),
            marks: Vec::new(),
            distinct: 0,
        }
    }
}

impl Addresses {
    /// Forget every address, keep the memory.
    fn clear(&mut self) {
        self.codes.clear();
        self.slots.fill(EMPTY);
        self.blocks.clear();
        self.marks.clear();
        self.distinct = 0;
    }

    /// Take `addr`, touched by `kind`, as far as one row group is to go: all of it, unless the
    /// dictionary gets full and the group is long enough to end there. Returns how many.
    pub(super) fn take(&mut self, addr: &[u64], kind: &[u8]) -> usize {
        self.clear();
        let mut taken = 0;
        while taken < addr.len() {
            let until = addr.len().min(taken + SLICE);
            taken += self.intern(&addr[taken..until], &kind[taken..until]);
            if taken == until {
                continue;
            }
            if self.distinct < DICTIONARY {
                self.insert(addr[taken] >> BLOCK_SHIFT);
            } else if taken >= FEWEST {
                return taken;
            } else {
                self.codes.clear();
                return addr.len();
            }
        }
        taken
    }

    /// Note the codes of addresses, up to the first of an unknown block or, in a full dictionary,
    /// the first new one. Returns how many.
    fn intern(&mut self, addr: &[u64], kind: &[u8]) -> usize {
        let (slots, marks) = (self.slots.as_slice(), self.marks.as_flattened_mut());
        let shift = 64 - slots.len().ilog2();
        let start = self.codes.len();
        self.codes.resize(start + addr.len(), 0);
        let (mut known, mut distinct) = (0, self.distinct);
        'records: for ((&addr, &kind), code) in addr.iter().zip(kind).zip(&mut self.codes[start..])
        {
            let block = addr >> BLOCK_SHIFT;
            let mut place = spread(block, shift);
            let mut slot = slots[place];
            while slot.block != block {
                if slot.block == EMPTY.block {
                    break 'records;
                }
                place = (place + 1) & (slots.len() - 1);
                slot = slots[place];
            }
            *code = slot.code | (addr as u32 & (BLOCK as u32 - 1));
            let mark = &mut marks[*code as usize];
            let bit = 1 << (kind & 7);
            if *mark & bit == 0 {
                if *mark == 0 {
                    if distinct == DICTIONARY {
                        break 'records;
                    }
                    distinct += 1;
                }
                *mark |= bit;
            }
            known += 1;
        }
        self.distinct = distinct;
        self.codes.truncate(start + known);
        known
    }

    fn insert(&mut self, block: u64) {
        // An eighth full at most: hardly ever a second look.
        if (self.blocks.len() + 1) * 8 > self.slots.len() {
            self.slots = vec![EMPTY; self.slots.len() * 2];
            for (ordinal, &block) in self.blocks.iter().enumerate() {
                put(&mut self.slots, block, ordinal);
            }
        }
        put(&mut self.slots, block, self.blocks.len());
        self.blocks.push(block);
        self.marks.push([0; BLOCK]);
    }

    /// The sorted different addresses, or `None` when they are too many for a dictionary. With
    /// them, their 4 KiB pages and the kinds that touched those (a bit each) are added to `pages`;
    /// a page may come several times.
    ///
    /// Sorted, neighbours in memory get neighbouring indices, which zstd compresses better than
    /// order of appearance (0.84 -> 0.80 bytes a reference on the gzip capture).
    pub(super) fn dictionary(&mut self, pages: &mut Vec<(u64, u8)>) -> Option<Vec<u64>> {
        if self.codes.is_empty() {
            return None;
        }
        let mut order: Vec<usize> = (0..self.blocks.len()).collect();
        order.sort_unstable_by_key(|&ordinal| self.blocks[ordinal]);
        let mut dictionary = Vec::with_capacity(self.distinct);
        for ordinal in order {
            let home = self.blocks[ordinal] << BLOCK_SHIFT;
            let mut kinds = 0;
            for (offset, mark) in self.marks[ordinal].iter_mut().enumerate() {
                if *mark != 0 {
                    kinds |= *mark as u8;
                    *mark = dictionary.len() as u16;
                    dictionary.push(home | offset as u64);
                }
            }
            pages.push((home >> PAGE_SHIFT, kinds));
        }
        Some(dictionary)
    }

    /// Append the index of each record in the dictionary of [`Self::dictionary`], two bytes each.
    pub(super) fn write_indices(&self, out: &mut Vec<u8>) {
        let marks = self.marks.as_flattened();
        for codes in self.codes.chunks(64) {
            let mut indices = [[0; 2]; 64];
            for (index, &code) in indices.iter_mut().zip(codes) {
                *index = marks[code as usize].to_le_bytes();
            }
            out.extend_from_slice(indices[..codes.len()].as_flattened());
        }
    }
}

fn put(slots: &mut [Slot], block: u64, ordinal: usize) {
    let mut place = spread(block, 64 - slots.len().ilog2());
    while slots[place].block != EMPTY.block {
        place = (place + 1) & (slots.len() - 1);
    }
    slots[place] = Slot { block, code: (ordinal << BLOCK_SHIFT) as u32 };
}

/// Fibonacci hashing (Knuth, TAOCP 6.4): the topmost bits of a product are spread for any stride.
#[inline(always)]
fn spread(block: u64, shift: u32) -> usize {
    (block.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> shift) as usize
}
