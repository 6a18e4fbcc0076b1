//! CLOCK over two frames. It evicts the page loaded first, whatever the bits: that of the page
//! loaded last is set, and cleared only on the way round to the other one. So no accessed bit is
//! kept, and what faults can be told from the runs alone.

use std::hint::select_unpredictable;

use super::memory::Outcome;
use super::window::WRITE;

/// What two frames hold: local numbers, with [`WRITE`] where the page is dirty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The page that the next fault evicts.
    pub older: u8,
    /// The page loaded last.
    pub newer: u8,
}

impl Pair {
    /// Apply `runs` (local numbers with [`WRITE`], no two in a row to a page).
    pub fn advance(&mut self, runs: &[u8]) -> Outcome {
        #[cfg(target_arch = "x86_64")]
        if wide::usable() {
            // SAFETY: the processor has what it takes.
            return unsafe { wide::advance(self, runs) };
        }
        self.plain(runs)
    }

    fn plain(&mut self, runs: &[u8]) -> Outcome {
        let Self { mut older, mut newer } = *self;
        let mut outcome = Outcome::default();
        for &run in runs {
            let in_older = (run ^ older) & !WRITE == 0;
            let in_newer = (run ^ newer) & !WRITE == 0;
            let fault = !(in_older | in_newer);
            outcome.faults += u64::from(fault);
            outcome.dirty_evictions += u64::from(older >> 7) & u64::from(fault);
            let kept_older = older | select_unpredictable(in_older, run & WRITE, 0);
            let kept_newer = newer | select_unpredictable(in_newer, run & WRITE, 0);
            older = select_unpredictable(fault, newer, kept_older);
            newer = select_unpredictable(fault, run, kept_newer);
        }
        *self = Self { older, newer };
        outcome
    }
}

/// The same for 64 runs at a time.
///
/// From a fault to the next, runs alternate between two pages. So a run two or more places after a
/// fault faults if its page is not that of two runs before. At the place right after a fault, the
/// page that stayed is that of the fault before: the page of two runs before if the two faults are
/// an odd number of places apart, that of three runs before if they are an even number apart. These
/// two comparisons of a run are the input of an automaton of four states, taken four runs at a time.
#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{
        _mm512_and_si512, _mm512_cmpneq_epi8_mask, _mm512_loadu_epi8, _mm512_maskz_loadu_epi8,
        _mm512_movepi8_mask, _mm512_permutex2var_epi8, _mm512_set1_epi8, _pdep_u64, _pext_u64,
    };

    use super::super::runs::wide::{LANES, lanes_before};
    use super::{Outcome, Pair, WRITE};

    /// The run before faulted, at an odd or even distance from the fault before it; or the last
    /// fault is that far from this run, and two or more.
    #[derive(Clone, Copy)]
    enum After {
        OddFault,
        EvenFault,
        Odd,
        Even,
    }

    /// One run, by whether its page differs from that of two runs before and of three: whether it
    /// faults, whether it is to the newer page then, and the state after it.
    const fn step(state: After, second: bool, third: bool) -> (bool, bool, After) {
        match (state, second, third) {
            (After::OddFault, true, _) | (After::EvenFault, _, true) => {
                (true, true, After::OddFault)
            }
            (After::OddFault | After::EvenFault, ..) => (false, false, After::Even),
            (After::Odd, true, _) => (true, true, After::OddFault),
            (After::Even, true, _) => (true, true, After::EvenFault),
            (After::Odd, false, _) => (false, false, After::Even),
            (After::Even, false, _) => (false, true, After::Odd),
        }
    }

    /// Bits a state has in an entry of [`FOUR`].
    const FIELD: u32 = 16;
    /// The lower half of each byte.
    const LOWER: u64 = 0x0f0f_0f0f_0f0f_0f0f;

    /// Four runs, by their comparisons (second in the lower half of the index, third in the upper).
    /// A field a state: the place of the next state's field, then what faults and what is to the
    /// newer page, four bits each.
    const FOUR: [u64; 256] = {
        let mut table = [0; 256];
        let mut index = 0;
        while index < 256 {
            let mut from = 0;
            while from < 4 {
                let mut state = match from {
                    0 => After::OddFault,
                    1 => After::EvenFault,
                    2 => After::Odd,
                    _ => After::Even,
                };
                let mut field = 0;
                let mut run = 0;
                while run < 4 {
                    let (second, third) = (index >> run & 1 == 1, index >> (4 + run) & 1 == 1);
                    let (fault, newer, next) = step(state, second, third);
                    field |= (fault as u64) << (8 + run) | (newer as u64) << (12 + run);
                    state = next;
                    run += 1;
                }
                field |= state as u64 * FIELD as u64;
                table[index] |= field << (from * FIELD);
                from += 1;
            }
            index += 1;
        }
        table
    };

    /// For each lane the one two before it, of two registers in a row.
    const SECOND: [u8; LANES] = lanes_before(2);
    /// The one three before it.
    const THIRD: [u8; LANES] = lanes_before(3);

    /// Whether the processor has the instructions.
    pub fn usable() -> bool {
        is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vbmi")
            && is_x86_feature_detected!("bmi2")
    }

    #[target_feature(enable = "avx512bw,avx512vbmi,bmi2,lzcnt,popcnt")]
    pub fn advance(pair: &mut Pair, mut runs: &[u8]) -> Outcome {
        let mut outcome = Outcome::default();
        // Runs are no two in a row to a page, but the first may be to the newer page.
        if let Some((&first, rest)) = runs.split_first()
            && (first ^ pair.newer) & !WRITE == 0
        {
            pair.newer |= first & WRITE;
            runs = rest;
        }
        let local = _mm512_set1_epi8((!WRITE).cast_signed());
        // SAFETY: both are 64 bytes.
        let (second, third) = unsafe {
            (_mm512_loadu_epi8(SECOND.as_ptr().cast()), _mm512_loadu_epi8(THIRD.as_ptr().cast()))
        };
        // As if the two pages had just been loaded, one after the other.
        let mut history = [0u8; LANES];
        history[LANES - 2] = pair.older & !WRITE;
        history[LANES - 1] = pair.newer & !WRITE;
        // SAFETY: 64 bytes.
        let mut last = unsafe { _mm512_loadu_epi8(history.as_ptr().cast()) };
        // The state's field; the bits of a shift's count beyond the sixth do not matter.
        let mut field = After::OddFault as u64 * u64::from(FIELD);
        let mut dirty = u128::from(pair.older >> 7) | u128::from(pair.newer >> 7) << 1;
        for piece in runs.chunks(LANES) {
            let lanes = u64::MAX >> (LANES - piece.len());
            // SAFETY: only the lanes of the piece are read.
            let bytes = unsafe { _mm512_maskz_loadu_epi8(lanes, piece.as_ptr().cast()) };
            let written = _mm512_movepi8_mask(bytes);
            let locals = _mm512_and_si512(bytes, local);
            let differs = |before| {
                _mm512_cmpneq_epi8_mask(locals, _mm512_permutex2var_epi8(last, before, locals))
            };
            let (second, third) = (differs(second), differs(third));
            last = locals;
            let (mut faults, mut newer) = (0, 0);
            for half in [0, 32] {
                let mut indices =
                    _pdep_u64(second >> half, LOWER) | _pdep_u64(third >> half, !LOWER);
                let mut answers = 0;
                for _ in 0..8 {
                    field = FOUR[(indices & 0xff) as usize].wrapping_shr(field as u32);
                    indices >>= 8;
                    answers = answers >> 8 | (field & 0xff00) << 48;
                }
                faults |= _pext_u64(answers, LOWER) << half;
                newer |= _pext_u64(answers, !LOWER) << half;
            }
            faults &= lanes;
            // Pages by when they were loaded: the older, the newer, then one a fault. A page is
            // the newer one up to the next fault and the older one up to the fault after that.
            dirty |= any(written & newer, faults) << 1 | any(written & !newer, faults);
            let count = faults.count_ones();
            outcome.faults += u64::from(count);
            outcome.dirty_evictions += u64::from((dirty & !(u128::MAX << count)).count_ones());
            dirty >>= count;
            if faults != 0 {
                let place = faults.ilog2();
                let before = faults & !(1 << place);
                pair.older = if before == 0 { pair.newer } else { piece[before.ilog2() as usize] };
                pair.newer = piece[place as usize];
            }
        }
        pair.older = pair.older & !WRITE | (dirty as u8) << 7;
        pair.newer = pair.newer & !WRITE | (dirty as u8 >> 1) << 7;
        outcome
    }

    /// Whether one of `marks` is before the first of `starts`, then for each of them whether one
    /// is from it up to the next: a bit each.
    #[inline]
    #[target_feature(enable = "bmi2")]
    fn any(marks: u64, starts: u64) -> u128 {
        // The last bit of each stretch. A mark below it makes an addition carry into it.
        let ends = starts >> 1 | 1 << 63;
        let carried = (marks & !ends).wrapping_add(!ends);
        // Nothing is before the first when that is at 0.
        u128::from(_pext_u64((carried | marks) & ends, ends)) << (starts & 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// A queue with second chances: its front is the hand.
    fn reference(pair: &mut Pair, runs: &[u8]) -> Outcome {
        let mut outcome = Outcome::default();
        let mut queue = VecDeque::from([(pair.older, true), (pair.newer, true)]);
        for &run in runs {
            if let Some(found) = queue.iter_mut().find(|(page, _)| (page ^ run) & !WRITE == 0) {
                *found = (found.0 | run & WRITE, true);
                continue;
            }
            outcome.faults += 1;
            while let Some((page, referenced)) = queue.pop_front() {
                if !referenced {
                    outcome.dirty_evictions += u64::from(page >> 7);
                    break;
                }
                queue.push_back((page, false));
            }
            queue.push_back((run, true));
        }
        (pair.older, pair.newer) = (queue[0].0, queue[1].0);
        outcome
    }

    proptest! {
        #[test]
        fn a_pair_is_a_queue_of_two(
            pages in 2u8..6,
            held in (0u8..66, 0u8..66, any::<bool>(), any::<bool>()),
            writes in 0u8..4,
            steps in prop::collection::vec((1u8..6, 0u8..4), 0..400),
        ) {
            let mut page = 0;
            let runs: Vec<u8> = steps
                .iter()
                .map(|&(step, write)| {
                    page = (page + 1 + step % (pages - 1)) % pages;
                    page | if write < writes { WRITE } else { 0 }
                })
                .collect();
            // Pages that are not in the window have the same number.
            let (older, newer, older_dirty, newer_dirty) = held;
            let older = older.min(64);
            let newer = if newer == older && newer < 64 { newer + 1 } else { newer.min(64) };
            let mark = |dirty| if dirty { WRITE } else { 0 };
            let before = Pair { older: older | mark(older_dirty), newer: newer | mark(newer_dirty) };
            let mut expected = before;
            let outcome = reference(&mut expected, &runs);
            let mut pair = before;
            prop_assert_eq!(pair.advance(&runs), outcome);
            prop_assert_eq!(pair, expected);
            let mut pair = before;
            prop_assert_eq!(pair.plain(&runs), outcome);
            prop_assert_eq!(pair, expected);
        }
    }
}
