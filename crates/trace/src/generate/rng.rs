//! Random numbers: xoshiro256++ seeded by SplitMix64.
//!
//! Implemented here, because the bytes of a generated trace must not change with the version of a
//! crate. Sources: Blackman and Vigna, "Scrambled linear pseudorandom number
//! generators", ACM TOMS 47(4), 2021 (xoshiro256++ 1.0); Steele, Lea and Flood, "Fast splittable
//! pseudorandom number generators", OOPSLA 2014 (SplitMix64); Lemire, "Fast random integer
//! generation in an interval", ACM TOMACS 29(1), 2019 (`below`).

use crate::hash::GOLDEN;
pub use crate::hash::mix64;

/// A xoshiro256++ stream.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    pub fn new(seed: u64) -> Self {
        let mut state = [0; 4];
        for (word, step) in state.iter_mut().zip(1u64..) {
            *word = mix64(seed.wrapping_add(GOLDEN.wrapping_mul(step)));
        }
        Self { state }
    }

    /// Stream `number` of the independent streams of a seed; number 0 is [`Rng::new`].
    pub fn stream(seed: u64, number: u64) -> Self {
        if number == 0 { Self::new(seed) } else { Self::new(mix64(mix64(seed) ^ number)) }
    }

    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let shifted = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= shifted;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A uniform draw from [0, 1), a multiple of 2^-53.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * 2f64.powi(-53)
    }

    /// An exactly uniform draw from 0..`bound`, which must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        loop {
            let product = u128::from(self.next_u64()) * u128::from(bound);
            let low = product as u64;
            // 2^64 mod `bound` draws are in excess: reject those with the lowest `low`.
            if low >= bound || low >= bound.wrapping_neg() % bound {
                return (product >> 64) as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_the_published_values() {
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let first: Vec<_> = (0..5).map(|_| rng.next_u64()).collect();
        assert_eq!(
            first,
            [41943041, 58720359, 3588806011781223, 3591011842654386, 9228616714210784205]
        );
        let splitmix: Vec<_> =
            (1..=3u64).map(|i| mix64(1234567u64.wrapping_add(GOLDEN.wrapping_mul(i)))).collect();
        assert_eq!(splitmix, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
    }

    #[test]
    fn below_is_uniform_and_bounded() {
        let mut rng = Rng::new(7);
        let mut counts = [0u32; 6];
        for _ in 0..60_000 {
            counts[rng.below(6) as usize] += 1;
        }
        // Chi-square with 5 degrees of freedom: exceeds 20.5 for one in a thousand seeds.
        let chi: f64 = counts.iter().map(|&n| (f64::from(n) - 1e4).powi(2) / 1e4).sum();
        assert!(chi < 20.5, "{chi}");
        assert!((0..1000).all(|_| rng.below(1) == 0 && rng.below(u64::MAX) < u64::MAX));
        assert!((0..1000).all(|_| (0.0..1.0).contains(&rng.unit())));
    }
}
