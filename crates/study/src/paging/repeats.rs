//! Runs of pages that take turns, of which a memory under CLOCK soon sees nothing new.
//!
//! Let the runs from some place on go round `period` pages, and the memory have no fewer frames. As
//! long as one of the pages is missing, some frame holds an *outside page*: a page of none of these
//! runs, whose accessed bit is not set again.
//!
//! * As long as some outside page's bit is set the hand has not passed it, so it has visited no frame
//!   twice. Where it meets a page that was referenced meanwhile it clears the bit and goes on, and
//!   it never meets one that faulted: a page faults at its first run or not at all.
//! * At a fault `t`, so `t < period`, the last of those bits is cleared. From then on the hand evicts
//!   every outside page it meets, and with the last of them gone no page is missing. Again it visits no
//!   frame twice: a page faults at its first run after `t` or not at all, and if it is cleared by
//!   such a fault its next run marks it.
//!
//! No fault comes after run `2 period - 2`, then, and no bit changes after run `3 period - 3` (for
//! two pages after run 2: a fault of the one does not meet the other). Later runs change nothing,
//! unless they write where the round before did not. They are left out.

#![cfg_attr(not(any(test, target_arch = "x86_64")), allow(dead_code, unused_imports))]

use nearfar_simd::Avx512;

use super::window::WRITE;

/// What no run is.
const NO_RUN: u8 = !WRITE;

/// Periods that are looked for, and how many runs one after the other must go to the page of that
/// many runs before for the last of them to change nothing. No two runs in a row go to one page, so
/// runs alike at a distance of two or three take turns.
const PERIODS: [(usize, usize); 2] = [(2, 2), (3, 5)];
/// Fewest frames of a memory for which the others can be left out.
pub const FRAMES: usize = 3;

/// Replace `kept` by `runs` (no two in a row to a page) without those that change no memory of
/// [`FRAMES`] frames or more. Answers false, and leaves `kept` alone, where they would be looked at
/// one by one: that costs more than it saves.
pub fn drop_repeats(avx512: Option<Avx512>, runs: &[u8], kept: &mut Vec<u8>) -> bool {
    #[cfg(target_arch = "x86_64")]
    if let Some(token) = avx512 {
        // SAFETY: the token says that the processor has the features.
        unsafe { avx512::drop_repeats(token, runs, kept) };
        return true;
    }
    let _ = (avx512, runs, kept);
    false
}

/// 64 runs at a time.
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::{
        _mm512_andnot_si512, _mm512_loadu_epi8, _mm512_maskz_compress_epi8,
        _mm512_maskz_loadu_epi8, _mm512_movepi8_mask, _mm512_permutex2var_epi8, _mm512_set1_epi8,
        _mm512_storeu_epi8, _mm512_testn_epi8_mask, _mm512_xor_si512,
    };

    use nearfar_simd::Avx512;

    use super::super::lanes::{LANES, lanes_before};
    use super::{NO_RUN, PERIODS, WRITE};

    const BEFORE: [[u8; LANES]; PERIODS.len()] =
        [lanes_before(PERIODS[0].0), lanes_before(PERIODS[1].0)];

    #[target_feature(enable = "avx512bw,avx512vbmi,avx512vbmi2,popcnt")]
    pub fn drop_repeats(_: Avx512, runs: &[u8], kept: &mut Vec<u8>) {
        kept.clear();
        // A whole register is stored at a time.
        kept.resize(runs.len() + LANES, 0);
        // SAFETY: 64 bytes each.
        let lanes_before =
            BEFORE.each_ref().map(|of| unsafe { _mm512_loadu_epi8(of.as_ptr().cast()) });
        let local = _mm512_set1_epi8((!WRITE).cast_signed());
        let (mut last, mut alike) = (_mm512_set1_epi8(NO_RUN.cast_signed()), [0u64; PERIODS.len()]);
        let mut filled = 0;
        for piece in runs.chunks(LANES) {
            let lanes = u64::MAX >> (LANES - piece.len());
            // SAFETY: only the lanes of the piece are read.
            let runs = unsafe { _mm512_maskz_loadu_epi8(lanes, piece.as_ptr().cast()) };
            let mut left = lanes;
            for period in 0..PERIODS.len() {
                let before = _mm512_permutex2var_epi8(last, lanes_before[period], runs);
                let same = _mm512_testn_epi8_mask(_mm512_xor_si512(runs, before), local);
                // Above those of the piece before.
                let wide = u128::from(same) << LANES | u128::from(alike[period]);
                alike[period] = same;
                let mut in_a_row = wide;
                for back in 1..PERIODS[period].1 {
                    in_a_row &= wide << back;
                }
                let writes = _mm512_movepi8_mask(_mm512_andnot_si512(before, runs));
                left &= !((in_a_row >> LANES) as u64) | writes;
            }
            last = runs;
            let packed = _mm512_maskz_compress_epi8(left, runs);
            let room = &mut kept[filled..filled + LANES];
            // SAFETY: there is room for a register.
            unsafe { _mm512_storeu_epi8(room.as_mut_ptr().cast(), packed) };
            filled += left.count_ones() as usize;
        }
        kept.truncate(filled);
    }
}

#[cfg(test)]
mod tests {
    use nearfar_kernel::replacement::clock::BitClock;
    use proptest::prelude::*;

    use super::*;

    /// One run at a time.
    fn scalar(runs: &[u8]) -> Vec<u8> {
        let (mut kept, mut alike) = (Vec::new(), [0; PERIODS.len()]);
        for (index, &run) in runs.iter().enumerate() {
            let mut left = true;
            for ((period, enough), alike) in PERIODS.into_iter().zip(&mut alike) {
                let before = index.checked_sub(period).map_or(NO_RUN, |index| runs[index]);
                *alike = if (run ^ before) & !WRITE == 0 { *alike + 1 } else { 0 };
                left &= *alike < enough || run & !before & WRITE != 0;
            }
            if left {
                kept.push(run);
            }
        }
        kept
    }

    /// A memory, a run at a time.
    #[derive(Debug, PartialEq)]
    struct Memory {
        clock: BitClock,
        /// Page and whether it is dirty, by frame.
        held: Vec<(u8, bool)>,
        faults: u64,
        dirty_evictions: u64,
    }

    impl Memory {
        /// Filled with pages above the local numbers, all marked.
        fn new(frames: u8) -> Self {
            let clock = BitClock::new(frames.into(), 0, (1 << frames) - 1);
            let held = (0..frames).map(|frame| (64 + frame, false)).collect();
            Self { clock, held, faults: 0, dirty_evictions: 0 }
        }

        fn run(&mut self, run: u8) {
            let page = run & !WRITE;
            let found = self.held.iter().position(|held| held.0 == page);
            let frame = found.unwrap_or_else(|| {
                let frame = self.clock.fault() as usize;
                let (_, dirty) = std::mem::replace(&mut self.held[frame], (page, false));
                self.faults += 1;
                self.dirty_evictions += u64::from(dirty);
                frame
            });
            self.clock.referenced |= 1 << frame;
            self.held[frame].1 |= run & WRITE != 0;
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        /// What is left out changes no memory, whatever came before; many at a time are one by one.
        #[test]
        fn what_is_left_out_changes_nothing(
            frames in FRAMES as u8..12,
            before in prop::collection::vec((0u8..14, any::<bool>()), 0..60),
            turns in prop::collection::vec(
                (prop::collection::vec((0u8..14, prop::bool::weighted(0.1)), 1..6), 1usize..30),
                1..12,
            ),
        ) {
            let mut runs: Vec<u8> = Vec::new();
            for (round, times) in turns {
                for (step, (local, write)) in round.iter().cycle().take(round.len() * times).enumerate() {
                    // Now and then a round writes what others do not.
                    let write = *write && step % 7 != 3;
                    if runs.last().is_none_or(|run| run & !WRITE != *local) {
                        runs.push(local | if write { WRITE } else { 0 });
                    }
                }
            }
            let (kept, mut many_at_a_time) = (scalar(&runs), vec![1, 2, 3]);
            if drop_repeats(Avx512::for_test(), &runs, &mut many_at_a_time) {
                prop_assert_eq!(&many_at_a_time, &kept);
            }

            let (mut whole, mut part) = (Memory::new(frames), Memory::new(frames));
            for memory in [&mut whole, &mut part] {
                for (local, write) in &before {
                    memory.run(local | if *write { WRITE } else { 0 });
                }
            }
            runs.iter().for_each(|run| whole.run(*run));
            kept.iter().for_each(|run| part.run(*run));
            prop_assert_eq!(whole, part);
        }
    }

    /// From every state of memories of up to five frames: the last run that changes something.
    #[test]
    fn turns_change_nothing_for_longer_from_any_state() {
        for (period, enough) in PERIODS {
            let outside = period;
            for frames in FRAMES..=5 {
                let mut last = 0;
                for code in 0..(period + 1).pow(frames as u32) {
                    let held = |frame: u32| code / (period + 1).pow(frame) % (period + 1);
                    let start: Vec<usize> = (0..frames as u32).map(held).collect();
                    if (0..period)
                        .any(|page| start.iter().filter(|held| **held == page).count() > 1)
                    {
                        continue;
                    }
                    for marks in 0..1u64 << frames {
                        let mut clock = BitClock::new(frames as u32, 0, marks);
                        let mut held = start.clone();
                        for run in 0..8 * period {
                            let page = run % period;
                            let frame = held.iter().position(|held| *held == page);
                            let frame = frame.unwrap_or_else(|| clock.fault() as usize);
                            if held[frame] != page || clock.referenced >> frame & 1 == 0 {
                                last = last.max(run);
                            }
                            held[frame] = page;
                            clock.referenced |= 1 << frame;
                        }
                        assert!(frames == period || held.contains(&outside));
                    }
                }
                assert_eq!(last, period + enough - 2, "{period} pages, {frames} frames");
            }
        }
    }

    /// The runs that [`PERIODS`] says are needed are left.
    #[test]
    fn turns_end() {
        for (period, enough) in PERIODS {
            let runs: Vec<u8> = (0..200).map(|run| run % period as u8).collect();
            assert_eq!(scalar(&runs), runs[..period + enough - 1]);
        }
    }
}
