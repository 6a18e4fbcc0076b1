//! A keyed bijection of 0..n without a table: a Feistel network with cycle walking.
//!
//! A balanced Feistel network permutes numbers of an even number of bits for any round function
//! (Luby and Rackoff 1988). An image of n or more is mapped again until it is below n (cycle
//! walking: Black and Rogaway 2002), which makes it a bijection of 0..n and takes at most 4 passes
//! on average.

use super::rng::mix64;

const ROUNDS: u64 = 6;

/// A bijection of 0..n chosen by a key.
#[derive(Clone, Debug)]
pub struct Permutation {
    n: u64,
    half_bits: u32,
    keys: [u64; ROUNDS as usize],
}

impl Permutation {
    /// The bijection of 0..`n` with this key; `n` must not be 0.
    pub fn new(n: u64, key: u64) -> Self {
        let bits = u64::BITS - n.saturating_sub(1).leading_zeros();
        let half_bits = bits.div_ceil(2).max(1);
        let mut keys = [0; ROUNDS as usize];
        for (round, round_key) in (1..).zip(&mut keys) {
            *round_key = mix64(mix64(key) ^ mix64(round));
        }
        Self { n, half_bits, keys }
    }

    /// The image of `index`, which must be below n.
    pub fn apply(&self, index: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let mut value = index;
        loop {
            let (mut left, mut right) = (value >> self.half_bits & mask, value & mask);
            for key in self.keys {
                (left, right) = (right, left ^ mix64(right ^ key) & mask);
            }
            value = left << self.half_bits | right;
            if value < self.n {
                return value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_is_a_bijection_for_every_size() {
        for n in (1..70).chain([1000, 4095, 4096, 4097, 65_537]) {
            let permutation = Permutation::new(n, n ^ 0xabc);
            let mut seen = vec![false; n as usize];
            for index in 0..n {
                let image = permutation.apply(index) as usize;
                assert!(!seen[image], "{image} twice of {n}");
                seen[image] = true;
            }
        }
    }

    #[test]
    fn permutations_differ_by_key_and_separate_neighbours() {
        let (first, second) = (Permutation::new(1 << 20, 1), Permutation::new(1 << 20, 2));
        let same = (0..1 << 20).filter(|&i| first.apply(i) == second.apply(i)).count();
        assert!(same < 20, "{same} images in common");
        let near = |&i: &u64| first.apply(i).abs_diff(first.apply(i ^ 1)) < 8;
        let near = (0..1 << 20).filter(near).count();
        assert!(near < 100, "{near} neighbours stayed together");
        assert!(Permutation::new(u64::MAX, 3).apply(5) < u64::MAX);
    }
}
