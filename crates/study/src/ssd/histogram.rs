//! Counts of times, in eight classes an octave.

use serde::Serialize;

const OCTAVE: u32 = 8;

/// How often times of each class occurred.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum: u128,
}

/// One class of predicted and actual times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Class {
    /// Least time of the class, nanoseconds.
    pub low_ns: u64,
    /// The next class's least, nanoseconds.
    pub high_ns: u64,
    /// Services predicted to take so long.
    pub predicted: u64,
    /// Services that did.
    pub actual: u64,
}

fn class(ns: u64) -> usize {
    match ns.checked_ilog2() {
        Some(octave) if octave >= 3 => {
            ((octave - 3) * OCTAVE) as usize + (ns >> (octave - 3)) as usize
        }
        _ => ns as usize,
    }
}

fn least(class: usize) -> u64 {
    match class as u32 / OCTAVE {
        0 | 1 => class as u64,
        octave => u64::from(OCTAVE + class as u32 % OCTAVE) << (octave - 1),
    }
}

impl Histogram {
    /// Count one time.
    pub fn add(&mut self, ns: u64) {
        let class = class(ns);
        if class >= self.counts.len() {
            self.counts.resize(class + 1, 0);
        }
        self.counts[class] += 1;
        self.count += 1;
        self.sum += u128::from(ns);
    }

    /// How many times there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their mean in nanoseconds; 0 of none.
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    /// The classes of two histograms, those that are empty in both left out.
    pub fn classes(predicted: &Self, actual: &Self) -> Vec<Class> {
        let count = |histogram: &Self, class: usize| histogram.counts.get(class).copied();
        (0..predicted.counts.len().max(actual.counts.len()))
            .map(|class| Class {
                low_ns: least(class),
                high_ns: least(class + 1),
                predicted: count(predicted, class).unwrap_or(0),
                actual: count(actual, class).unwrap_or(0),
            })
            .filter(|class| class.predicted + class.actual > 0)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_time_is_in_its_class(ns in prop_oneof![0u64..200, 0u64..1 << 60]) {
            let found = class(ns);
            prop_assert!(least(found) <= ns && ns < least(found + 1), "{found}");
            prop_assert!(least(found + 1) - least(found) <= (ns / 8).max(1));
        }
    }
}
