//! A window's references as runs: consecutive ones to a page made one.

use nearfar_simd::Avx512;

use super::engine::NO_STAND_IN;
use super::window::{MAX_BLOCKS, WRITE};

/// Replace `runs` by the runs of `refs` (local numbers with [`WRITE`]): the stand-in of their page
/// by `stand_in`, written if one of them writes. References without a stand-in are left out.
pub fn collapse(
    avx512: Option<Avx512>,
    refs: &[u8],
    stand_in: &[u8; MAX_BLOCKS],
    runs: &mut Vec<u8>,
) {
    #[cfg(target_arch = "x86_64")]
    if let Some(token) = avx512
        && !stand_in.contains(&NO_STAND_IN)
    {
        // SAFETY: the token says that the processor has the features.
        return unsafe { avx512::collapse(token, refs, stand_in, runs) };
    }
    let _ = avx512;
    scalar(refs, stand_in, runs);
}

fn scalar(refs: &[u8], stand_in: &[u8; MAX_BLOCKS], runs: &mut Vec<u8>) {
    runs.clear();
    // One more byte: the first reference ends a run that is not there.
    runs.resize(refs.len() + 1, 0);
    let out = runs.as_mut_slice();
    let (mut filled, mut run, mut before) = (0, 0, NO_STAND_IN);
    for &byte in refs {
        let local = stand_in[usize::from(byte) % MAX_BLOCKS];
        if local == NO_STAND_IN {
            continue;
        }
        let fresh = local != before;
        before = local;
        // Written again at each reference until the next run begins: no branch.
        filled += usize::from(fresh);
        run = local | (byte & WRITE) | (run & WRITE & u8::from(fresh).wrapping_sub(1));
        if let Some(place) = out.get_mut(filled) {
            *place = run;
        }
    }
    runs.truncate(filled + 1);
    runs.remove(0);
}

/// The same for 64 references at a time.
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::{
        _mm512_cmpneq_epi8_mask, _mm512_loadu_epi8, _mm512_mask_blend_epi8,
        _mm512_maskz_compress_epi8, _mm512_maskz_loadu_epi8, _mm512_movepi8_mask, _mm512_or_si512,
        _mm512_permutex2var_epi8, _mm512_permutexvar_epi8, _mm512_set1_epi8, _mm512_storeu_epi8,
        _pext_u64,
    };

    use nearfar_simd::Avx512;

    use super::super::lanes::{BEFORE, LANES};
    use super::{MAX_BLOCKS, NO_STAND_IN, WRITE};

    #[target_feature(enable = "avx512bw,avx512vbmi,avx512vbmi2,bmi2,popcnt")]
    pub fn collapse(_: Avx512, refs: &[u8], stand_in: &[u8; MAX_BLOCKS], runs: &mut Vec<u8>) {
        runs.clear();
        // A whole register is stored at a time.
        runs.resize(refs.len() + LANES, 0);
        // SAFETY: both are 64 bytes.
        let (table, lane_before) = unsafe {
            (_mm512_loadu_epi8(stand_in.as_ptr().cast()), _mm512_loadu_epi8(BEFORE.as_ptr().cast()))
        };
        let mark = _mm512_set1_epi8(WRITE.cast_signed());
        let mut last = _mm512_set1_epi8(NO_STAND_IN.cast_signed());
        let mut filled = 0;
        for piece in refs.chunks(LANES) {
            let lanes = u64::MAX >> (LANES - piece.len());
            // SAFETY: only the lanes of the piece are read.
            let refs = unsafe { _mm512_maskz_loadu_epi8(lanes, piece.as_ptr().cast()) };
            // The permutation looks at the low six bits: the local number.
            let locals = _mm512_permutexvar_epi8(refs, table);
            let before = _mm512_permutex2var_epi8(last, lane_before, locals);
            last = locals;
            let fresh = _mm512_cmpneq_epi8_mask(locals, before) & lanes;
            let written = _mm512_movepi8_mask(refs) & lanes;
            // The last lane of each run, or of its part in this piece.
            let ends = fresh >> 1 | (lanes ^ lanes >> 1);
            let marks = _pext_u64(any_up_to(written, ends), ends);
            // Lanes before the first run that begins here belong to the run before.
            let carried = !fresh & 1;
            if marks & carried != 0 {
                runs[filled - 1] |= WRITE;
            }
            let packed = _mm512_maskz_compress_epi8(fresh, locals);
            let marked = _mm512_or_si512(packed, mark);
            let packed = _mm512_mask_blend_epi8(marks >> carried, packed, marked);
            let room = &mut runs[filled..filled + LANES];
            // SAFETY: there is room for a register.
            unsafe { _mm512_storeu_epi8(room.as_mut_ptr().cast(), packed) };
            filled += fresh.count_ones() as usize;
        }
        runs.truncate(filled);
    }

    /// Those of `ends` that a mark of theirs leads up to: one at or before them, after the end before.
    #[inline(always)]
    fn any_up_to(marks: u64, ends: u64) -> u64 {
        // A mark below an end carries into it; an end itself carries nowhere.
        (((marks & !ends) + !ends) | marks) & ends
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A list and a loop.
    fn reference(refs: &[u8], stand_in: &[u8; MAX_BLOCKS]) -> Vec<u8> {
        let mut runs: Vec<u8> = Vec::new();
        for byte in refs {
            let local = stand_in[usize::from(byte & !WRITE)];
            match runs.last_mut() {
                _ if local == NO_STAND_IN => {}
                Some(run) if *run & !WRITE == local => *run |= byte & WRITE,
                _ => runs.push(local | (byte & WRITE)),
            }
        }
        runs
    }

    proptest! {
        #[test]
        fn runs_are_those_of_a_loop(
            pages in 1u8..=64,
            left_out in prop::bool::weighted(0.2),
            refs in prop::collection::vec((0u8..64, 0u8..6, 1usize..20), 0..300),
        ) {
            let mut stand_in = [0; MAX_BLOCKS];
            for (local, page) in (0..).zip(&mut stand_in) {
                let own = local % pages;
                *page = if left_out && own % 3 == 0 { NO_STAND_IN } else { own };
            }
            let refs: Vec<u8> = refs
                .iter()
                .flat_map(|&(local, write, times)| {
                    (0..times).map(move |i| local | if write == 0 && i + 1 == times { WRITE } else { 0 })
                })
                .collect();
            let expected = reference(&refs, &stand_in);
            for avx512 in [None, Avx512::for_test()] {
                let mut runs = vec![1, 2, 3];
                collapse(avx512, &refs, &stand_in, &mut runs);
                prop_assert_eq!(&runs, &expected);
            }
        }
    }
}
