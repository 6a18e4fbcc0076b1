//! What was seen lately and need not be looked at again.

const SLOTS: usize = 1 << 12;
const EMPTY: u64 = u64::MAX;

/// Blocks whose next references change nothing, by some bits of their numbers.
pub struct Recent(Vec<u64>);

impl Default for Recent {
    fn default() -> Self {
        Self(vec![EMPTY; SLOTS])
    }
}

impl Recent {
    /// Whether the block of this number is known to change nothing.
    #[inline]
    pub fn holds(&self, number: u64) -> bool {
        self.0[number as usize % SLOTS] == number
    }

    /// It changes nothing, until [`Recent::forget`].
    pub fn note(&mut self, number: u64) {
        self.0[number as usize % SLOTS] = number;
    }

    /// Any block may change something again.
    pub fn forget(&mut self) {
        self.0.fill(EMPTY);
    }
}
