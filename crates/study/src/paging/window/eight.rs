//! Records of blocks that have their tag, eight at a time.

use std::arch::x86_64::{
    __m512i, _mm_cmpneq_epi8_mask, _mm_cvtsi64_si128, _mm_cvtsi128_si64, _mm_maskz_compress_epi8,
    _mm_maskz_loadu_epi8, _mm_maskz_loadu_epi16, _mm512_add_epi64, _mm512_and_si512,
    _mm512_cmpeq_epi64_mask, _mm512_cmpgt_epu64_mask, _mm512_cvtepi64_epi8, _mm512_cvtepu8_epi64,
    _mm512_cvtepu16_epi64, _mm512_i64gather_epi64, _mm512_mask_or_epi64, _mm512_maskz_loadu_epi64,
    _mm512_maskz_mov_epi64, _mm512_or_si512, _mm512_reduce_or_epi64, _mm512_set1_epi64,
    _mm512_setzero_si512, _mm512_sllv_epi64, _mm512_srl_epi64, _mm512_srli_epi64,
    _mm512_srlv_epi64, _mm512_test_epi64_mask, _mm512_xor_si512,
};

use nearfar_trace::{Batch, KindSet};

use super::{Chunk, LOCAL_BITS, MOST, SLOT_BITS, SLOTS, WRITE, Windower};

/// Records that are looked at together.
const LANES: usize = 8;

/// Whether the processor has the instructions.
pub fn usable() -> bool {
    is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vbmi2")
}

/// Add the records of `batch` from `from` on, up to the first whose block has no tag or which lies
/// over a border; answers its place.
#[target_feature(enable = "avx512bw,avx512vl,avx512vbmi2,popcnt")]
pub fn add(windower: &mut Windower, batch: &Batch, from: usize, chunk: &mut Chunk) -> usize {
    let all = |value: u64| _mm512_set1_epi64(value.cast_signed());
    let size_of_block = 1u64 << windower.shift;
    let shift = _mm_cvtsi64_si128(i64::from(windower.shift));
    let (wanted, writes) = (all(u64::from(windower.kinds.0)), all(u64::from(KindSet::WRITES.0)));
    let (one, in_block, block_bytes) = (all(1), all(size_of_block - 1), all(size_of_block));
    let mark = all(u64::from(WRITE));
    let (slots, locals) = (all(SLOTS as u64 - 1), all(MOST as u64 - 1));
    let (mut again, mut again_written) = (_mm512_setzero_si512(), _mm512_setzero_si512());
    let mut previous = windower.previous;
    let records = batch.len();
    let (addrs, kinds, sizes) =
        (&batch.addr[..records], &batch.kind[..records], &batch.size[..records]);
    let mut place = from;
    // Each record adds a byte at most, and eight are stored at a time.
    chunk.refs.reserve(records - from + LANES);
    while place < records {
        let count = LANES.min(records - place);
        let lanes = u8::MAX >> (LANES - count);
        // SAFETY: the three are equally long, and only lanes within them are read.
        let (addr, kind, size) = unsafe {
            (
                _mm512_maskz_loadu_epi64(lanes, addrs.as_ptr().add(place).cast()),
                _mm_maskz_loadu_epi8(lanes.into(), kinds.as_ptr().add(place).cast()),
                _mm_maskz_loadu_epi16(lanes, sizes.as_ptr().add(place).cast()),
            )
        };
        let kind = _mm512_cvtepu8_epi64(kind);
        let of_kind = |set: __m512i| _mm512_test_epi64_mask(_mm512_srlv_epi64(set, kind), one);
        let block = _mm512_srl_epi64(addr, shift);
        let slot = _mm512_xor_si512(block, _mm512_srli_epi64::<SLOT_BITS>(block));
        let slot = _mm512_and_si512(slot, slots);
        // SAFETY: a slot is below the number of tags.
        let tag = unsafe { _mm512_i64gather_epi64::<8>(slot, windower.tags.as_ptr().cast()) };
        let known = _mm512_cmpeq_epi64_mask(_mm512_srli_epi64::<LOCAL_BITS>(tag), block);
        let end = _mm512_add_epi64(_mm512_and_si512(addr, in_block), _mm512_cvtepu16_epi64(size));
        let crosses = _mm512_cmpgt_epu64_mask(end, block_bytes);
        let mut counted = of_kind(wanted) & lanes;
        let stop = counted & (crosses | !known);
        // All before the first that stops; every lane when there is none.
        counted &= stop.wrapping_sub(1) & !stop;
        let written = of_kind(writes);
        let local = _mm512_and_si512(tag, locals);
        let bit = _mm512_sllv_epi64(one, local);
        again = _mm512_mask_or_epi64(again, counted, again, bit);
        again_written = _mm512_mask_or_epi64(again_written, counted & written, again_written, bit);
        let marks = _mm512_maskz_mov_epi64(written, mark);
        let bytes = _mm512_cvtepi64_epi8(_mm512_or_si512(local, marks));
        let bytes = _mm_maskz_compress_epi8(counted.into(), bytes);
        let number = counted.count_ones();
        // Each byte's predecessor.
        let word = _mm_cvtsi128_si64(bytes).cast_unsigned();
        let before = word << 8 | u64::from(previous);
        let fresh = _mm_cmpneq_epi8_mask(bytes, _mm_cvtsi64_si128(before.cast_signed()))
            & (1u16 << number).wrapping_sub(1);
        let packed = _mm_cvtsi128_si64(_mm_maskz_compress_epi8(fresh, bytes));
        // SAFETY: there is room for what is stored, and what is counted has been stored.
        unsafe {
            let filled = chunk.refs.len();
            chunk
                .refs
                .as_mut_ptr()
                .add(filled)
                .cast::<[u8; LANES]>()
                .write_unaligned(packed.to_le_bytes());
            chunk.refs.set_len(filled + fresh.count_ones() as usize);
        }
        previous = (u128::from(word) << 8 | u128::from(previous)).wrapping_shr(8 * number) as u8;
        chunk.records += u64::from(number);
        if stop != 0 {
            place += stop.trailing_zeros() as usize;
            break;
        }
        place += count;
    }
    windower.previous = previous;
    windower.again |= _mm512_reduce_or_epi64(again).cast_unsigned();
    windower.again_written |= _mm512_reduce_or_epi64(again_written).cast_unsigned();
    place
}
