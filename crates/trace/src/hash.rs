//! Hash maps with page numbers as keys.
//!
//! Page numbers come in strides, and a single multiplication (FxHash) maps some strides to few
//! buckets: 10^8 pages 4 KiB apart took hours instead of seconds. [`mix64`] of SplitMix64
//! (Steele, Lea, Flood, OOPSLA 2014) spreads them.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map keyed by page or block numbers.
pub type PageMap<V> = HashMap<u64, V, BuildHasherDefault<PageHasher>>;

/// Hashes one `u64`.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageHasher(u64);

impl Hasher for PageHasher {
    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.0 = mix(value);
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = mix(self.0 ^ u64::from(byte));
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// 2^64 divided by the golden ratio: the step of SplitMix64 and the factor of Fibonacci hashing.
pub(crate) const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Fibonacci hashing (Knuth, TAOCP 6.4): the topmost `bits` bits of a product, which are well
/// distributed for any stride.
#[inline(always)]
pub(crate) fn spread(value: u64, bits: u32) -> usize {
    (value.wrapping_mul(GOLDEN) >> (64 - bits)) as usize
}

/// SplitMix64's output function: a bijection of 64 bits in which every input bit affects every
/// output bit.
#[inline]
pub fn mix64(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// A step of SplitMix64: [`mix64`] that does not map 0 to 0.
#[inline]
pub fn mix(value: u64) -> u64 {
    mix64(value.wrapping_add(GOLDEN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_at_any_stride_spread_over_buckets() {
        for shift in 0..40 {
            let hashes = (0..4096u64).map(|i| mix(0x10_0000 + (i << shift)));
            let buckets: std::collections::HashSet<u64> = hashes.map(|h| h & 0xFFFF).collect();
            // 4,096 random hashes fill about 3,970 of 65,536 buckets.
            assert!(buckets.len() > 3900, "stride 2^{shift}: {} buckets", buckets.len());
        }
    }
}
