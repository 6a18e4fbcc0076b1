//! Ordinals of blocks of addresses.

use crate::hash::{PageMap, spread};

/// Bits of a slot that hold the ordinal; above is the block's number and one more, so that no block
/// has the slot that is 0.
pub(super) const ORDINAL_BITS: u32 = 24;
/// From here on a block's number does not fit a slot: those are in a map of their own.
const FAR: u64 = (1 << (64 - ORDINAL_BITS)) - 1;
const EMPTY: u64 = 0;
/// Slots for each block, at least: hardly ever a second look.
const SPARSE: usize = 8;

/// Blocks by number, each with its ordinal in order of appearance; at most 2^24 of them.
pub(super) struct Table {
    slots: Vec<u64>,
    far: PageMap<u32>,
    numbers: Vec<u64>,
}

impl Default for Table {
    fn default() -> Self {
        Self { slots: vec![EMPTY; 1 << 10], far: PageMap::default(), numbers: Vec::new() }
    }
}

impl Table {
    /// Forget every block, keep the memory.
    pub(super) fn clear(&mut self) {
        self.slots.fill(EMPTY);
        self.far.clear();
        self.numbers.clear();
    }

    /// The slots: a power of two of them, of which [`spread`] chooses the first to look at.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn slots(&self) -> &[u64] {
        &self.slots
    }

    /// Number of block `ordinal`.
    pub(super) fn number(&self, ordinal: u32) -> u64 {
        self.numbers[ordinal as usize]
    }

    /// Of all blocks, in the order of their ordinals.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.numbers.iter().copied()
    }

    fn first_place(&self, block: u64) -> usize {
        spread(block, self.slots.len().ilog2())
    }

    /// The ordinal of `block`, if the first slot that is looked at has it.
    pub(super) fn at_first_look(&self, block: u64) -> Option<u32> {
        ordinal_in(self.slots[self.first_place(block)], block)
    }

    /// The ordinal of `block`.
    pub(super) fn find(&self, block: u64) -> Option<u32> {
        if block >= FAR {
            return self.far.get(&block).copied();
        }
        let mut place = self.first_place(block);
        while self.slots[place] != EMPTY {
            let found = ordinal_in(self.slots[place], block);
            if found.is_some() {
                return found;
            }
            place = (place + 1) & (self.slots.len() - 1);
        }
        None
    }

    /// Add `block`, which is not there yet. Returns its ordinal.
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
        let mut place = self.first_place(block);
        while self.slots[place] != EMPTY {
            place = (place + 1) & (self.slots.len() - 1);
        }
        self.slots[place] = (block + 1) << ORDINAL_BITS | u64::from(ordinal);
    }
}

fn ordinal_in(slot: u64, block: u64) -> Option<u32> {
    (slot >> ORDINAL_BITS == block + 1).then_some(slot as u32 & ((1 << ORDINAL_BITS) - 1))
}
