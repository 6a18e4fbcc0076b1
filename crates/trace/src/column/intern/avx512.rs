//! Interning with vector registers: sixteen records at a time, and no branch that depends on them.

use std::arch::x86_64::*;

use nearfar_simd::Avx512;

use super::table::{ORDINAL_BITS, Table};
use super::{BLOCK, BLOCK_SHIFT, SLICE, UNKNOWN};
use crate::hash::GOLDEN;

/// Records in a step.
const LANES: usize = 16;

/// The slots of eight blocks, and which of them have the block.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
unsafe fn slots_of(_: Avx512, slots: &[u64], shift: __m128i, addr: __m512i) -> (__m512i, __mmask8) {
    let block = _mm512_srli_epi64::<BLOCK_SHIFT>(addr);
    let product = _mm512_mullo_epi64(block, _mm512_set1_epi64(GOLDEN.cast_signed()));
    let place = _mm512_srl_epi64(product, shift);
    // SAFETY: a shifted product is the place of a slot, as of `spread`.
    let slot = unsafe { _mm512_i64gather_epi64::<8>(place, slots.as_ptr().cast()) };
    let number = _mm512_add_epi64(block, _mm512_set1_epi64(1));
    (slot, _mm512_cmpeq_epi64_mask(_mm512_srli_epi64::<ORDINAL_BITS>(slot), number))
}

/// The codes of eight addresses.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl")]
fn codes_of(_: Avx512, slot: __m512i, addr: __m512i) -> __m256i {
    let offset = _mm512_and_epi64(addr, _mm512_set1_epi64(BLOCK as i64 - 1));
    // What is above the ordinal is cut off.
    _mm512_cvtepi64_epi32(_mm512_or_epi64(_mm512_slli_epi64::<BLOCK_SHIFT>(slot), offset))
}

/// [`super::look_up`].
///
/// # Safety
/// `marks` has [`BLOCK`] elements for each of `blocks`, and [`super::MARGIN`] more.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,popcnt")]
pub(super) unsafe fn look_up(
    token: Avx512,
    blocks: &Table,
    marks: &[u8],
    addr: &[u64],
    kind: &[u8],
    codes: &mut [u32],
    pending: &mut [u32; SLICE],
) -> usize {
    assert!(addr.len() <= SLICE && kind.len() == addr.len() && codes.len() == addr.len());
    let slots = blocks.slots();
    let shift = _mm_cvtsi32_si128(64 - slots.len().ilog2().cast_signed());
    let mut count = 0;
    for start in (0..addr.len()).step_by(LANES) {
        let left = addr.len() - start;
        let lanes = if left < LANES { (1 << left) - 1 } else { __mmask16::MAX };
        // SAFETY: only the lanes that are there are read and written. Every slot that has its block
        // gives a code that has its mark. `pending` has room for a step more than there are
        // records before this one.
        unsafe {
            let at = addr.as_ptr().add(start).cast();
            let low = _mm512_maskz_loadu_epi64(lanes as __mmask8, at);
            let high = _mm512_maskz_loadu_epi64((lanes >> 8) as __mmask8, at.wrapping_add(8));
            let (low_slot, low_known) = slots_of(token, slots, shift, low);
            let (high_slot, high_known) = slots_of(token, slots, shift, high);
            let known = lanes & (__mmask16::from(high_known) << 8 | __mmask16::from(low_known));
            let low_half = _mm512_castsi256_si512(codes_of(token, low_slot, low));
            let code = _mm512_inserti64x4::<1>(low_half, codes_of(token, high_slot, high));
            let unknown = _mm512_set1_epi32(UNKNOWN.cast_signed());
            let known_code = _mm512_mask_mov_epi32(unknown, known, code);
            _mm512_mask_storeu_epi32(codes.as_mut_ptr().add(start).cast(), lanes, known_code);
            let kind = _mm_maskz_loadu_epi8(lanes, kind.as_ptr().add(start).cast());
            let bits = _mm512_sllv_epi32(_mm512_set1_epi32(1), _mm512_cvtepu8_epi32(kind));
            let none = _mm512_setzero_si512();
            let mark = _mm512_mask_i32gather_epi32::<1>(none, known, code, marks.as_ptr().cast());
            let new = lanes & !_mm512_test_epi32_mask(mark, bits);
            let order = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            let place = _mm512_add_epi32(order, _mm512_set1_epi32(start as i32));
            let place = _mm512_maskz_compress_epi32(new, place);
            _mm512_storeu_epi32(pending.as_mut_ptr().add(count).cast(), place);
            count += new.count_ones() as usize;
        }
    }
    count
}
