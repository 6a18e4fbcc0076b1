//! A cache of blocks (small pages): further references to these have no effect and can be skipped.

const SLOTS: usize = 1 << 12;
const EMPTY: u64 = u64::MAX;

/// A direct-mapped cache of block numbers. The caller inserts a block once references to it have no effect,
/// and clears the cache when they may have an effect again.
pub struct Recent(Vec<u64>);

impl Default for Recent {
    fn default() -> Self {
        Self(vec![EMPTY; SLOTS])
    }
}

impl Recent {
    /// Whether the cache contains the block of this number.
    #[inline]
    pub fn contains(&self, number: u64) -> bool {
        self.0[number as usize % SLOTS] == number
    }

    pub fn insert(&mut self, number: u64) {
        self.0[number as usize % SLOTS] = number;
    }

    pub fn clear(&mut self) {
        self.0.fill(EMPTY);
    }
}
