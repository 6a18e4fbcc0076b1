//! Words become records with vector registers: 64 at a time, none of which leaves the registers
//! before it is a record.

use std::arch::x86_64::*;

use nearfar_trace::Kind;

use super::{BLOCK, COUNT_SHIFT, LANES, Piece, TOP, Within, top_of};
use crate::layout::{ADDR_BITS, INDEX_MASK, OTHER, SIZE_SHIFT, STORE};

/// Words that a register holds whole, and of which it holds the parts above the address.
const WHOLE: usize = 8;
const TOPS: usize = 32;
/// Words that are asked for before they are needed.
const AHEAD: usize = 2 * LANES;

/// What is above the address in 32 words, in their order.
#[target_feature(enable = "avx512bw")]
fn tops_of(words: [__m512i; TOPS / WHOLE]) -> __m512i {
    let [a, b, c, d] = words;
    // Side by side with those eight, sixteen and 24 places on; then each to its place.
    let ab = _mm512_mask_blend_epi16(
        0x2222_2222,
        _mm512_srli_epi64::<48>(a),
        _mm512_srli_epi64::<32>(b),
    );
    let cd = _mm512_mask_blend_epi16(0x8888_8888, _mm512_srli_epi64::<16>(c), d);
    let beside = _mm512_mask_blend_epi16(0xcccc_cccc, ab, cd);
    let mut order = [0; TOPS];
    for (place, from) in order.iter_mut().enumerate() {
        *from = (place % WHOLE * (TOPS / WHOLE) + place / WHOLE) as i16;
    }
    // SAFETY: as many bytes.
    let order = unsafe { _mm512_loadu_epi16(order.as_ptr()) };
    _mm512_permutexvar_epi16(order, beside)
}

/// For each of the lanes `of_block`, 0 elsewhere: of `counts` the one at the block before. That of the
/// block before them all is in every lane of `running`, which becomes the last of them.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,popcnt")]
fn counts_before(counts: __m512i, of_block: __mmask32, running: &mut __m512i) -> __m512i {
    let halves = [_mm512_castsi512_si256(counts), _mm512_extracti64x4_epi64::<1>(counts)];
    let [low, high] =
        [(halves[0], of_block), (halves[1], of_block >> 16)].map(|(counts, lanes)| {
            let lanes = lanes as __mmask16;
            let own = _mm512_maskz_compress_epi32(lanes, _mm512_cvtepu16_epi32(counts));
            let before = _mm512_alignr_epi32::<15>(own, *running);
            // The last of them; the one that was running when there is none.
            let last = _mm512_set1_epi32((lanes.count_ones().cast_signed() - 1) & 31);
            *running = _mm512_permutex2var_epi32(own, last, *running);
            _mm512_cvtepi32_epi16(_mm512_maskz_expand_epi32(lanes, before))
        });
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}

/// [`Piece::fill`] for [`LANES`] words that are references, and blocks that fit a word. False, with
/// nothing moved, when there are others.
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,popcnt")]
pub(super) fn fill_piece(words: &[u64; LANES], to: &mut Piece<'_>, within: &mut Within) -> bool {
    const HALVES: usize = LANES / TOPS;
    let number = |number: u16| _mm512_set1_epi16(number.cast_signed());
    let mut whole = [_mm512_setzero_si512(); LANES / WHOLE];
    for (words, whole) in words.as_chunks::<WHOLE>().0.iter().zip(&mut whole) {
        // The ring is seldom in the first-level cache.
        _mm_prefetch::<_MM_HINT_T0>(words.as_ptr().wrapping_add(AHEAD).cast());
        // SAFETY: as many bytes.
        *whole = unsafe { _mm512_loadu_epi64(words.as_ptr().cast()) };
    }
    let [a, b, c, d, e, f, g, h] = whole;
    let tops: [__m512i; HALVES] = [tops_of([a, b, c, d]), tops_of([e, f, g, h])];
    let mut others = 0;
    for tops in tops {
        others |= _mm512_cmpge_epu16_mask(tops, number(top_of(OTHER)));
        others |= _mm512_cmpeq_epi16_mask(tops, number(top_of(BLOCK)));
    }
    if others != 0 {
        return false;
    }
    for (whole, addr) in whole.iter().zip(to.addr.as_chunks_mut::<WHOLE>().0) {
        let own = _mm512_andnot_si512(_mm512_set1_epi64(TOP.cast_signed()), *whole);
        // SAFETY: as many bytes.
        unsafe { _mm512_storeu_epi64(addr.as_mut_ptr().cast(), own) };
    }
    // Each lane takes the one before it; the first has none.
    let mut before = [0; TOPS];
    for (place, from) in before.iter_mut().enumerate() {
        *from = (place as i16 - 1) & (TOPS as i16 - 1);
    }
    // SAFETY: as many bytes.
    let before = unsafe { _mm512_loadu_epi16(before.as_ptr()) };
    let shift = |by: u32| _mm_cvtsi32_si128(by.cast_signed());
    // Instructions of the block that runs before the records at hand, in every lane.
    let mut running = _mm512_set1_epi32(i32::from(within.all));
    let mut last = within.noted;
    let mut bits = _mm512_setzero_si512();
    for (half, tops) in tops.into_iter().enumerate() {
        let of_block = _mm512_movepi16_mask(tops);
        let store = _mm512_test_epi16_mask(tops, number(top_of(STORE)));
        let kind =
            _mm512_mask_mov_epi16(number(Kind::Load as u16), store, number(Kind::Store as u16));
        let kind = _mm512_mask_mov_epi16(kind, of_block, number(Kind::Fetch as u16));
        let log =
            _mm512_and_si512(_mm512_srl_epi16(tops, shift(SIZE_SHIFT - ADDR_BITS)), number(7));
        let size = _mm512_sllv_epi16(number(1), log);
        let size = _mm512_mask_mov_epi16(size, of_block, _mm512_and_si512(tops, number(0xff)));
        let index = _mm512_and_si512(tops, number(INDEX_MASK as u16));
        let at = _mm512_maskz_add_epi16(!of_block, index, number(1));
        let first = number(last);
        let earlier = _mm512_mask_permutexvar_epi16(first, !1, before, at);
        let gap = _mm512_sub_epi16(at, earlier);
        last = _mm_extract_epi16::<7>(_mm512_extracti32x4_epi32::<3>(at)) as u16;
        // To a block's first record comes what is left of the block before it.
        let counts =
            _mm512_and_si512(_mm512_srl_epi16(tops, shift(COUNT_SHIFT - ADDR_BITS)), number(0x7f));
        let gap = _mm512_add_epi16(gap, counts_before(counts, of_block, &mut running));
        // SAFETY: `half` of `HALVES` times `TOPS` elements, which make up the `LANES` of each array.
        unsafe {
            _mm256_storeu_epi8(
                to.kind.as_mut_ptr().add(half * TOPS).cast(),
                _mm512_cvtepi16_epi8(kind),
            );
            _mm512_storeu_epi16(to.size.as_mut_ptr().add(half * TOPS).cast(), size);
            _mm512_storeu_epi16(to.gap.as_mut_ptr().add(half * TOPS).cast(), gap);
        }
        let [sizes, gaps] = &mut to.narrow;
        for (numbers, bytes) in [(size, sizes), (gap, gaps)] {
            // SAFETY: as above.
            unsafe {
                let place = bytes.as_mut_ptr().add(half * TOPS).cast();
                _mm256_storeu_epi8(place, _mm512_cvtepi16_epi8(numbers));
            }
        }
        bits = _mm512_or_si512(bits, _mm512_or_si512(size, gap));
        let pairs = _mm512_madd_epi16(_mm512_maskz_mov_epi16(of_block, counts), number(1));
        within.next += _mm512_reduce_add_epi32(pairs) as u64;
    }
    let bits = _mm512_or_si512(bits, _mm512_srli_epi32::<16>(bits));
    within.bits |= _mm512_reduce_or_epi32(bits) as u16;
    within.noted = last;
    within.all = _mm512_cvtsi512_si32(running) as u16;
    true
}
