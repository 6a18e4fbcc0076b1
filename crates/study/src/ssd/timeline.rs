//! Thread states over time, in at most [`MAX_STRETCHES`] equal intervals (stretches).

use serde::Serialize;

/// Largest number of stretches; when a run outgrows them, pairs are merged.
pub const MAX_STRETCHES: usize = 2048;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Runs, or takes an exception after which it does not sleep.
    Run = 0,
    /// Holds the core and waits for the device.
    Stall = 1,
    /// Sleeps for an embedded page fault: the device moves a page from its flash to its DRAM.
    Sleep = 2,
    /// Waits for the disk.
    Disk = 3,
}

/// Nanoseconds by [`State`], of one thread in one stretch.
pub type StateTimes = [u64; 4];

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timeline {
    /// Nanoseconds of a stretch.
    pub stretch_ns: u64,
    /// By thread, by stretch.
    pub threads: Vec<Vec<StateTimes>>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { stretch_ns: 1024, threads: Vec::new() }
    }
}

impl Timeline {
    /// `thread` was in `state` from `start` to `end`, nanoseconds.
    pub fn add(&mut self, thread: u32, state: State, start: u64, end: u64) {
        if end <= start {
            return;
        }
        while (end - 1) / self.stretch_ns >= MAX_STRETCHES as u64 {
            self.merge_pairs();
        }
        let stretches = crate::slot(&mut self.threads, thread);
        let last = ((end - 1) / self.stretch_ns) as usize;
        if last >= stretches.len() {
            stretches.resize(last + 1, StateTimes::default());
        }
        let first = (start / self.stretch_ns) as usize;
        for (number, stretch) in stretches.iter_mut().enumerate().take(last + 1).skip(first) {
            let low = start.max(number as u64 * self.stretch_ns);
            let high = end.min((number as u64 + 1) * self.stretch_ns);
            stretch[state as usize] += high - low;
        }
    }

    fn merge_pairs(&mut self) {
        self.stretch_ns *= 2;
        for stretches in &mut self.threads {
            *stretches = stretches
                .chunks(2)
                .map(|pair| {
                    let mut sum = pair[0];
                    if let Some(second) = pair.get(1) {
                        sum.iter_mut().zip(second).for_each(|(sum, ns)| *sum += ns);
                    }
                    sum
                })
                .collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_time_is_lost(
            spans in prop::collection::vec((0u32..3, 0usize..4, 0u64..50_000_000, 0u64..9_000_000), 1..60),
        ) {
            let states = [State::Run, State::Stall, State::Sleep, State::Disk];
            let mut timeline = Timeline::default();
            let mut sums = [StateTimes::default(); 3];
            for (thread, state, start, length) in spans {
                timeline.add(thread, states[state], start, start + length);
                sums[thread as usize][state] += length;
            }
            for (thread, stretches) in timeline.threads.iter().enumerate() {
                prop_assert!(stretches.len() <= MAX_STRETCHES);
                for state in 0..4 {
                    let sum: u64 = stretches.iter().map(|s| s[state]).sum();
                    prop_assert_eq!(sum, sums[thread][state]);
                }
            }
        }
    }
}
