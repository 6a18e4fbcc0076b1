//! Histograms of times, 8 bins per doubling.

use serde::Serialize;

/// 2^3, hence the 3 in [`bin_of`].
const BINS_PER_DOUBLING: u32 = 8;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// Number of times in each bin.
    counts: Vec<u64>,
    count: u64,
    sum: u128,
}

/// One bin of predicted and actual times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bin {
    /// Lowest time of the bin, nanoseconds.
    pub low_ns: u64,
    /// Lowest time of the next bin, nanoseconds.
    pub high_ns: u64,
    /// Predicted times in the bin.
    pub predicted: u64,
    /// Actual times in the bin.
    pub actual: u64,
}

/// Times below 16 ns have a bin each.
fn bin_of(ns: u64) -> usize {
    match ns.checked_ilog2() {
        Some(octave) if octave >= 3 => {
            ((octave - 3) * BINS_PER_DOUBLING) as usize + (ns >> (octave - 3)) as usize
        }
        _ => ns as usize,
    }
}

/// Lowest time of a bin, nanoseconds.
fn lowest(bin: usize) -> u64 {
    match bin as u32 / BINS_PER_DOUBLING {
        0 | 1 => bin as u64,
        group => u64::from(BINS_PER_DOUBLING + bin as u32 % BINS_PER_DOUBLING) << (group - 1),
    }
}

impl Histogram {
    pub fn add(&mut self, ns: u64) {
        let bin = bin_of(ns);
        if bin >= self.counts.len() {
            self.counts.resize(bin + 1, 0);
        }
        self.counts[bin] += 1;
        self.count += 1;
        self.sum += u128::from(ns);
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// Mean in nanoseconds; 0 without values.
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// The bins of two histograms, without those that are empty in both.
    pub fn bins(predicted: &Self, actual: &Self) -> Vec<Bin> {
        let count = |histogram: &Self, bin: usize| histogram.counts.get(bin).copied();
        (0..predicted.counts.len().max(actual.counts.len()))
            .map(|bin| Bin {
                low_ns: lowest(bin),
                high_ns: lowest(bin + 1),
                predicted: count(predicted, bin).unwrap_or(0),
                actual: count(actual, bin).unwrap_or(0),
            })
            .filter(|bin| bin.predicted + bin.actual > 0)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_time_is_in_its_bin(ns in prop_oneof![0u64..200, 0u64..1 << 60]) {
            let found = bin_of(ns);
            prop_assert!(lowest(found) <= ns && ns < lowest(found + 1), "{found}");
            prop_assert!(lowest(found + 1) - lowest(found) <= (ns / 8).max(1));
        }
    }
}
