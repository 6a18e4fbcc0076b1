//! Gathering with vector registers.

use std::arch::x86_64::*;

use super::{LANES, PAGE};

/// [`super::over_a_border`] for sizes that are bytes.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
pub(super) fn over_a_border(addr: &[u64; LANES], size: &[u8; LANES]) -> u64 {
    let over = |eight: usize| -> __mmask8 {
        // SAFETY: there are eight times as many of both.
        let (addr, size) = unsafe {
            let (addr, size) = (addr.as_ptr().add(eight * 8), size.as_ptr().add(eight * 8));
            (_mm512_loadu_epi64(addr.cast()), _mm_loadl_epi64(size.cast()))
        };
        let offset = _mm512_and_si512(addr, _mm512_set1_epi64(PAGE as i64 - 1));
        let end = _mm512_add_epi64(offset, _mm512_cvtepu8_epi64(size));
        _mm512_cmpgt_epi64_mask(end, _mm512_set1_epi64(PAGE as i64))
    };
    // Put together as masks: by shifts, compilers would make vectors of them again.
    let sixteen = |part: usize| -> __mmask16 {
        _mm512_kunpackb(over(part * 2 + 1).into(), over(part * 2).into())
    };
    let low = _mm512_kunpackw(sixteen(1).into(), sixteen(0).into());
    let high = _mm512_kunpackw(sixteen(3).into(), sixteen(2).into());
    _mm512_kunpackd(high.into(), low.into())
}

/// [`super::note_spanned`] for sizes that are bytes.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,bmi1,bmi2,popcnt")]
pub(super) fn note_spanned(spanned: &mut Vec<(u64, u8)>, addr: &[u64], size: &[u8], kind: &[u8]) {
    super::note_spanned(spanned, addr, size, kind, |addr, size| over_a_border(addr, size));
}
