//! A keyed bijection of 0..n without a table: a Feistel network with cycle walking.
//!
//! A balanced Feistel network permutes numbers of an even number of bits, whatever its round
//! function (Luby and Rackoff 1988); an image beyond n is put through again until it falls inside
//! (cycle walking: Black and Rogaway 2002), which keeps it a bijection of 0..n and takes 4 rounds
//! of the network at most on average.

use super::rng::mix64;

const ROUNDS: u64 = 6;

/// A bijection of 0..n chosen by a key.
#[derive(Clone, Debug)]
pub struct Permutation {
    n: u64,
    half: u32,
    keys: [u64; ROUNDS as usize],
}

impl Permutation {
    /// The bijection of 0..`n` (`n` at least 1) that `key` chooses.
    pub fn new(n: u64, key: u64) -> Self {
        let bits = u64::BITS - n.saturating_sub(1).leading_zeros();
        let half = bits.div_ceil(2).max(1);
        let mut keys = [0; ROUNDS as usize];
        for (round, slot) in (1..).zip(&mut keys) {
            *slot = mix64(mix64(key) ^ mix64(round));
        }
        Self { n, half, keys }
    }

    /// Where `index` (below n) goes.
    pub fn apply(&self, index: u64) -> u64 {
        let mask = (1u64 << self.half) - 1;
        let mut value = index;
        loop {
            let (mut left, mut right) = (value >> self.half & mask, value & mask);
            for key in self.keys {
                (left, right) = (right, left ^ mix64(right ^ key) & mask);
            }
            value = left << self.half | right;
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
    fn it_is_a_bijection_of_every_size() {
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
    fn keys_choose_and_neighbours_part() {
        let (one, two) = (Permutation::new(1 << 20, 1), Permutation::new(1 << 20, 2));
        let same = (0..1 << 20).filter(|&i| one.apply(i) == two.apply(i)).count();
        assert!(same < 20, "{same} images in common");
        let near = (0..1 << 20).filter(|&i| one.apply(i).abs_diff(one.apply(i ^ 1)) < 8).count();
        assert!(near < 100, "{near} neighbours stayed together");
        assert!(Permutation::new(u64::MAX, 3).apply(5) < u64::MAX);
    }
}
