//! When records were made, by the clock of the capture.

use serde::{Deserialize, Serialize};

/// Most moments that are kept.
const MOST: usize = 128;

/// Moments of a capture: so many records at so many milliseconds after the first. Between two of them
/// records are taken to come evenly.
///
/// A program runs several times slower under a capture than alone, and not evenly so: these are times
/// of the capture, not of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clock {
    /// Ascending.
    pub milliseconds: Vec<u64>,
    /// Records by then: ascending, up to those of the trace.
    pub records: Vec<u64>,
    /// Milliseconds between two moments, at least.
    #[serde(skip)]
    between: u64,
    /// The last moment, whether it is kept or not.
    #[serde(skip)]
    last: (u64, u64),
}

impl Clock {
    /// Note a moment; it is kept if it is not too soon after the one before. Of twice as many as are
    /// wanted every other is forgotten.
    pub fn note(&mut self, milliseconds: u64, records: u64) {
        self.last = (milliseconds, records);
        let soon = |last: &u64| milliseconds < last + self.between.max(1);
        if self.milliseconds.last().is_some_and(soon) {
            return;
        }
        if self.milliseconds.len() == MOST {
            for list in [&mut self.milliseconds, &mut self.records] {
                *list = list.iter().skip(1).step_by(2).copied().collect();
            }
            self.between = (2 * self.between).max(2 * milliseconds / MOST as u64);
        }
        self.keep();
    }

    fn keep(&mut self) {
        self.milliseconds.push(self.last.0);
        self.records.push(self.last.1);
    }

    /// There are no more: the last moment is kept.
    pub fn end(&mut self) {
        if self.records.last().is_some_and(|last| *last < self.last.1) {
            self.keep();
        }
    }

    /// Seconds after the first record at which there were `records`.
    pub fn seconds(&self, records: u64) -> f64 {
        let next = self.records.partition_point(|known| *known < records);
        let known = |at: usize| (self.records[at] as f64, self.milliseconds[at] as f64 / 1e3);
        let before = next.checked_sub(1).map_or((0.0, 0.0), known);
        if next == self.records.len() {
            return before.1;
        }
        let after = known(next);
        before.1 + (after.1 - before.1) * (records as f64 - before.0) / (after.0 - before.0)
    }

    /// What is wrong with it in a trace of `records`.
    pub(crate) fn contradiction(&self, records: u64) -> Option<String> {
        let ascend = self.milliseconds.is_sorted() && self.records.is_sorted();
        if self.milliseconds.len() != self.records.len() || !ascend {
            return Some("`clock` is not two lists of as many numbers, both ascending".to_owned());
        }
        let last = self.records.last().copied().unwrap_or(0);
        (last > records)
            .then(|| format!("`clock` has a moment with {last} records, `records` says {records}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_capture_keeps_moments_of_all_of_it() {
        let mut clock = Clock::default();
        for second in 0..10_000u64 {
            // Twice as fast in its second half.
            clock.note(second * 1000, second * 10 + 10 * second.saturating_sub(5000));
        }
        clock.note(9_999_500, 149_995);
        clock.end();
        assert!((MOST / 2..=MOST + 1).contains(&clock.records.len()), "{}", clock.records.len());
        assert_eq!(clock.contradiction(149_995), None);
        for (records, seconds) in [(0, 0.0), (25_000, 2500.0), (100_000, 7500.0)] {
            assert!((clock.seconds(records) - seconds).abs() < 80.0, "{}", clock.seconds(records));
        }
        assert_eq!(clock.seconds(149_995), 9999.5);
        assert_eq!(clock.seconds(200_000), 9999.5);
    }

    #[test]
    fn few_moments_are_all_kept() {
        let mut clock = Clock::default();
        assert_eq!(clock.seconds(7), 0.0);
        for (milliseconds, records) in [(10, 5), (10, 6), (30, 7), (30, 9)] {
            clock.note(milliseconds, records);
        }
        clock.end();
        clock.end();
        assert_eq!((&*clock.milliseconds, &*clock.records), (&[10, 30, 30][..], &[5, 7, 9][..]));
        assert_eq!(clock.seconds(5), 0.01);
        assert_eq!(clock.seconds(7), 0.03);
    }
}
