//! Draws records of an array by popularity: one random number and one table look-up per draw.
//!
//! The popularities are those of YCSB's generators, which NOMAD's micro-benchmark uses. `zipf`: the
//! popularity of rank r is proportional to r^-0.99. `scrambled-zipf`: 10^10 such ranks are hashed onto
//! the records, so that several ranks share a record and the distribution is flatter. Drawing is by
//! Walker's alias method (A. J. Walker, "An efficient method for generating discrete random variables
//! with general distributions", ACM TOMS 3(3), 1977; built as M. D. Vose, IEEE TSE 17(9), 1991). The
//! generators of `nearfar generate` draw exactly and without a table, but compute a power for each draw,
//! which takes several times as long.

use std::hint::select_unpredictable;

use libm::pow;
use nearfar_hardware::table::{on_huge_pages, prefetch};
use nearfar_trace::generate::permutation::Permutation;
use nearfar_trace::generate::rng::mix64;

/// YCSB's skew.
pub const THETA: f64 = 0.99;
/// zeta(0.99) of the 10^10 ranks of YCSB's `ScrambledZipfianGenerator`.
const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;
/// Ranks hashed to records one by one. The popularity of all other ranks is spread evenly.
const HEAD: u64 = 1 << 22;

/// The popularity of each of `records`, with a sum of about 1; in order of rank unless scrambled.
pub fn popularity(records: u32, scrambled: bool) -> Vec<f64> {
    let n = records as usize;
    if !scrambled {
        let weights: Vec<f64> = (1..=n).map(|rank| pow(rank as f64, -THETA)).collect();
        let sum: f64 = weights.iter().sum();
        return weights.into_iter().map(|weight| weight / sum).collect();
    }
    let head = HEAD.max(u64::from(records));
    let mut weights = vec![0.0; n];
    let mut sum = 0.0;
    for rank in 1..=head {
        let share = pow(rank as f64, -THETA) / SCRAMBLED_ZETA;
        let record = (u128::from(mix64(rank)) * u128::from(records)) >> 64;
        weights[record as usize] += share;
        sum += share;
    }
    let rest = (1.0 - sum) / n as f64;
    weights.iter_mut().for_each(|weight| *weight += rest);
    weights
}

/// Put the most popular records first, or scatter them by a fixed bijection.
pub fn arrange(mut popularity: Vec<f64>, hottest_first: bool) -> Vec<f64> {
    if hottest_first {
        popularity.sort_by(|a, b| b.total_cmp(a));
        return popularity;
    }
    let scatter = Permutation::new(popularity.len() as u64, 0);
    let mut scattered = vec![0.0; popularity.len()];
    for (index, weight) in (0..).zip(&popularity) {
        scattered[scatter.apply(index) as usize] = *weight;
    }
    scattered
}

/// The table of the alias method.
#[derive(Debug)]
pub struct Draws {
    /// For each slot: the threshold below which a 31-bit draw gives the slot itself, and the record for other
    /// draws.
    slots: Vec<(u32, u32)>,
}

impl Draws {
    /// A table of these popularities, at least one of them above 0.
    pub fn new(popularity: &[f64]) -> Self {
        let n = popularity.len();
        let sum: f64 = popularity.iter().sum();
        let mut scaled: Vec<f64> = popularity.iter().map(|p| p / sum * n as f64).collect();
        let mut slots: Vec<(u32, u32)> = on_huge_pages(Vec::with_capacity(n));
        slots.extend((0..n as u32).map(|slot| (1 << 31, slot)));
        let (mut small, mut large): (Vec<u32>, Vec<u32>) =
            (0..n as u32).partition(|slot| scaled[*slot as usize] < 1.0);
        while let (Some(poor), Some(rich)) = (small.pop(), large.last().copied()) {
            let share = scaled[poor as usize];
            slots[poor as usize] = ((share * f64::from(1u32 << 31)) as u32, rich);
            scaled[rich as usize] -= 1.0 - share;
            if scaled[rich as usize] < 1.0 {
                large.pop();
                small.push(rich);
            }
        }
        Self { slots }
    }

    /// Prefetch the slot for a later [`draw`](Self::draw) with these random bits.
    #[inline]
    pub fn prefetch(&self, random: u64) {
        prefetch(&self.slots, self.slot(random));
    }

    #[inline]
    fn slot(&self, random: u64) -> usize {
        ((random >> 32) * self.slots.len() as u64 >> 32) as usize
    }

    /// The record that 64 random bits choose; bit 0 is left to choose load or store.
    #[inline]
    pub fn draw(&self, random: u64) -> u32 {
        let slot = self.slot(random);
        let (threshold, other) = self.slots[slot];
        // A branch would be unpredictable; without one, the loads of many draws overlap.
        select_unpredictable((random as u32) >> 1 < threshold, slot as u32, other)
    }
}

#[cfg(test)]
mod tests {
    use nearfar_trace::generate::rng::Rng;

    use super::*;

    #[test]
    fn draws_follow_the_popularity() {
        for scrambled in [false, true] {
            let popularity = arrange(popularity(50, scrambled), false);
            assert!((popularity.iter().sum::<f64>() - 1.0).abs() < 1e-6);
            let (draws, mut rng) = (Draws::new(&popularity), Rng::new(3));
            let mut counts = [0u32; 50];
            for _ in 0..200_000 {
                counts[draws.draw(rng.next_u64()) as usize] += 1;
            }
            // Chi-square with 49 degrees of freedom: beyond 85.4 once in a thousand seeds.
            let expected = popularity.iter().map(|p| p * 2e5);
            let chi: f64 =
                counts.iter().zip(expected).map(|(n, e)| (f64::from(*n) - e).powi(2) / e).sum();
            assert!(chi < 85.4, "{chi}");
        }
    }

    #[test]
    fn popularities_are_those_of_ycsb() {
        // YCSB: the first of 10^10 ranks is drawn once in 26.469 times.
        let scrambled = popularity(1000, true);
        let most = scrambled.iter().copied().fold(0.0, f64::max);
        assert!((1.0 / 26.47..1.0 / 26.47 + 0.02).contains(&most), "{most}");
        let plain = popularity(1000, false);
        assert!((plain[0] / plain[1] - 2f64.powf(0.99)).abs() < 1e-12);
        let first = arrange(scrambled, true);
        assert!(first.is_sorted_by(|a, b| a >= b));
    }
}
