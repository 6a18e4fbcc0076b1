//! Simulated work of a program between faults: data and code that compete with the kernel's fault
//! handler for caches and branch predictors. A fault that immediately follows another finds
//! everything cached, and takes half the time.

use std::hint::black_box;

use nearfar_trace::Result;

use crate::chase::Random;
use crate::mapping::{Mapping, Pages};

/// More than the capacity of a core's caches.
const DATA: usize = 4 << 20;
const LINE: usize = 64;
/// Loads and calls of each part of the work: about ten microseconds, the interval between faults of programs
/// with many faults.
const LOADS: usize = 1000;
const CALLS: usize = 1000;

type Step = fn(u64) -> u64;

/// A different function for each row and column of [`STEPS`], with branches that depend on its argument.
#[inline(never)]
fn step<const ROW: u32, const COLUMN: u32>(input: u64) -> u64 {
    let constant = u64::from(ROW * 16 + COLUMN) * 2 + 1;
    let mut state = input.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(constant);
    if state & (1 << (20 + ROW)) != 0 {
        state = black_box(state ^ u64::from(ROW * 77));
    }
    if state & (1 << (40 + COLUMN)) != 0 {
        state = black_box(state.rotate_right(ROW + 1));
    }
    state
}

macro_rules! row {
    ($row:literal: $($column:literal)*) => { [$(step::<$row, $column>),*] };
    ($row:literal) => { row!($row: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15) };
}

macro_rules! rows {
    ($($row:literal)*) => { [$(row!($row)),*] };
}

const STEPS: [[Step; 16]; 16] = rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);

/// Random loads of more memory than fits a core's caches, and calls of random functions; deterministic.
#[derive(Debug)]
pub struct Work {
    data: Mapping,
    random: Random,
}

impl Work {
    /// Allocate the data.
    ///
    /// # Errors
    /// The system denies memory.
    pub fn new() -> Result<Self> {
        let mut data = Mapping::new(DATA, Pages::Huge, None)?;
        data.fill();
        Ok(Self { data, random: Random(1) })
    }

    /// Restart the random sequence.
    pub(crate) fn begin(&mut self) {
        self.random = Random(1);
    }

    pub(crate) fn part(&mut self) {
        let words = self.data.words();
        let mut sum = 0_u64;
        for _ in 0..LOADS {
            let line = self.random.below((DATA / LINE) as u64) as usize;
            // No other load depends on this one, as is typical of programs.
            sum = sum.wrapping_add(words[line * (LINE / 8)]);
        }
        let mut state = black_box(sum);
        for _ in 0..CALLS {
            let [row, column] = [state >> 56 & 15, state >> 60];
            state = STEPS[row as usize][column as usize](state);
        }
        black_box(state);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn steps_are_different_functions() {
        let addresses: HashSet<usize> = STEPS.iter().flatten().map(|step| *step as usize).collect();
        assert_eq!(addresses.len(), 256);
        let results: HashSet<u64> = STEPS.iter().flatten().map(|step| step(u64::MAX)).collect();
        assert!(results.len() > 128, "{}", results.len());
    }

    /// Ten parts call most functions, whatever the first state.
    #[test]
    fn calls_reach_most_functions() {
        for begin in 0..100_u64 {
            let (mut state, mut seen) = (begin, HashSet::new());
            for _ in 0..10 * CALLS {
                seen.insert(state >> 56);
                let [row, column] = [state >> 56 & 15, state >> 60];
                state = STEPS[row as usize][column as usize](state);
            }
            assert!(seen.len() > 200, "{begin}: {}", seen.len());
        }
    }
}
