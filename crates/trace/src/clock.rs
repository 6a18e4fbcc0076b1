//! Wall-clock times of a capture's records.

use serde::{Deserialize, Serialize};

/// Maximum number of samples kept.
const MAX_SAMPLES: usize = 128;

/// Samples of a capture's progress: numbers of records and milliseconds since the first record.
/// Between samples, records are assumed to be evenly spaced.
///
/// Capture time is not program time: a capture slows a program several times, and not uniformly.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clock {
    /// Times of the samples, ascending.
    pub milliseconds: Vec<u64>,
    /// Records so far at each sample, ascending.
    pub records: Vec<u64>,
    /// Minimum milliseconds between samples.
    #[serde(skip)]
    interval: u64,
    /// The latest sample, even if it was not kept.
    #[serde(skip)]
    last: (u64, u64),
}

impl Clock {
    /// Add a sample, unless it is too soon after the last one kept. At [`MAX_SAMPLES`], every other
    /// sample is dropped, and the interval at least doubles.
    pub fn note(&mut self, milliseconds: u64, records: u64) {
        self.last = (milliseconds, records);
        let too_soon = |last: &u64| milliseconds < last + self.interval.max(1);
        if self.milliseconds.last().is_some_and(too_soon) {
            return;
        }
        if self.milliseconds.len() == MAX_SAMPLES {
            for list in [&mut self.milliseconds, &mut self.records] {
                *list = list.iter().skip(1).step_by(2).copied().collect();
            }
            self.interval = (2 * self.interval).max(2 * milliseconds / MAX_SAMPLES as u64);
        }
        self.keep();
    }

    fn keep(&mut self) {
        self.milliseconds.push(self.last.0);
        self.records.push(self.last.1);
    }

    /// End the recording: keep the latest sample.
    pub fn end(&mut self) {
        if self.records.last().is_some_and(|last| *last < self.last.1) {
            self.keep();
        }
    }

    /// Seconds from the first record until there were `records` records.
    pub fn seconds(&self, records: u64) -> f64 {
        let next = self.records.partition_point(|known| *known < records);
        let sample = |at: usize| (self.records[at] as f64, self.milliseconds[at] as f64 / 1e3);
        let before = next.checked_sub(1).map_or((0.0, 0.0), sample);
        if next == self.records.len() {
            return before.1;
        }
        let after = sample(next);
        before.1 + (after.1 - before.1) * (records as f64 - before.0) / (after.0 - before.0)
    }

    /// A message if the samples contradict a trace of `records` records.
    pub(crate) fn contradiction(&self, records: u64) -> Option<String> {
        let ascend = self.milliseconds.is_sorted() && self.records.is_sorted();
        if self.milliseconds.len() != self.records.len() || !ascend {
            return Some("`clock` is not two ascending lists of the same length".to_owned());
        }
        let last = self.records.last().copied().unwrap_or(0);
        (last > records).then(|| {
            format!("`clock` has a sample with {last} records, but `records` is {records}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_samples_of_a_long_capture_cover_all_of_it() {
        let mut clock = Clock::default();
        for second in 0..10_000u64 {
            // 10 records a second, and 20 in the second half.
            clock.note(second * 1000, second * 10 + 10 * second.saturating_sub(5000));
        }
        clock.note(9_999_500, 149_995);
        clock.end();
        assert!(
            (MAX_SAMPLES / 2..=MAX_SAMPLES + 1).contains(&clock.records.len()),
            "{}",
            clock.records.len()
        );
        assert_eq!(clock.contradiction(149_995), None);
        for (records, seconds) in [(0, 0.0), (25_000, 2500.0), (100_000, 7500.0)] {
            assert!((clock.seconds(records) - seconds).abs() < 80.0, "{}", clock.seconds(records));
        }
        assert_eq!(clock.seconds(149_995), 9999.5);
        assert_eq!(clock.seconds(200_000), 9999.5);
    }

    #[test]
    fn of_samples_in_one_millisecond_the_first_and_a_final_one_are_kept() {
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
