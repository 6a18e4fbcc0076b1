//! A hash table from the numbers of blocks (address / block size) to their ordinals, in order of appearance.

use crate::hash::{PageMap, spread};

/// Bits of a slot that hold the ordinal. The bits above hold the block's number plus 1, so that a
/// slot of 0 is empty.
const ORDINAL_BITS: u32 = 24;
/// Blocks from this number on do not fit a slot; they are in a separate map.
const FAR: u64 = (1 << (64 - ORDINAL_BITS)) - 1;
const EMPTY: u64 = 0;
/// Minimum slots per block, so that second probes are rare.
const SPARSE: usize = 8;

/// The table: at most 2^24 blocks. In arguments, `block` is a block's number.
pub(super) struct BlockTable {
    slots: Vec<u64>,
    far: PageMap<u32>,
    /// By ordinal.
    numbers: Vec<u64>,
}

impl Default for BlockTable {
    fn default() -> Self {
        Self { slots: vec![EMPTY; 1 << 10], far: PageMap::default(), numbers: Vec::new() }
    }
}

impl BlockTable {
    /// Remove all blocks, but keep the memory.
    pub(super) fn clear(&mut self) {
        self.slots.fill(EMPTY);
        self.far.clear();
        self.numbers.clear();
    }

    /// Number of block `ordinal`.
    pub(super) fn number(&self, ordinal: u32) -> u64 {
        self.numbers[ordinal as usize]
    }

    /// Numbers of all blocks, by ordinal.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.numbers.iter().copied()
    }

    fn first_slot(&self, block: u64) -> usize {
        spread(block, self.slots.len().ilog2())
    }

    /// The ordinal of `block`, if the first slot probed contains it.
    pub(super) fn probe_once(&self, block: u64) -> Option<u32> {
        ordinal_in(self.slots[self.first_slot(block)], block)
    }

    /// The ordinal of `block`.
    pub(super) fn find(&self, block: u64) -> Option<u32> {
        if block >= FAR {
            return self.far.get(&block).copied();
        }
        let mut slot = self.first_slot(block);
        while self.slots[slot] != EMPTY {
            let found = ordinal_in(self.slots[slot], block);
            if found.is_some() {
                return found;
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        None
    }

    /// Add `block`, which must be new. Returns its ordinal.
    pub(super) fn insert(&mut self, block: u64) -> u32 {
        let ordinal = self.numbers.len() as u32;
        self.numbers.push(block);
        if block >= FAR {
            self.far.insert(block, ordinal);
        } else if self.numbers.len() * SPARSE > self.slots.len() {
            self.slots = vec![EMPTY; self.slots.len() * 2];
            for ordinal in 0..self.numbers.len() {
                self.put(ordinal as u32);
            }
        } else {
            self.put(ordinal);
        }
        ordinal
    }

    fn put(&mut self, ordinal: u32) {
        let block = self.number(ordinal);
        if block >= FAR {
            return;
        }
        let mut slot = self.first_slot(block);
        while self.slots[slot] != EMPTY {
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        self.slots[slot] = (block + 1) << ORDINAL_BITS | u64::from(ordinal);
    }
}

fn ordinal_in(slot: u64, block: u64) -> Option<u32> {
    (slot >> ORDINAL_BITS == block + 1).then_some(slot as u32 & ((1 << ORDINAL_BITS) - 1))
}
