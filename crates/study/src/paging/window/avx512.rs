//! Records of blocks that have their tag, eight at a time.

use std::arch::x86_64::{
    __m512i, _mm_cvtsi64_si128, _mm_cvtsi128_si64, _mm_maskz_compress_epi8, _mm_maskz_loadu_epi8,
    _mm_maskz_loadu_epi16, _mm512_add_epi64, _mm512_and_si512, _mm512_cmpeq_epi64_mask,
    _mm512_cmpgt_epu64_mask, _mm512_cmpneq_epi8_mask, _mm512_cvtepi64_epi8, _mm512_cvtepu8_epi64,
    _mm512_cvtepu16_epi64, _mm512_i64gather_epi64, _mm512_loadu_epi8, _mm512_mask_or_epi64,
    _mm512_maskz_compress_epi8, _mm512_maskz_loadu_epi8, _mm512_maskz_loadu_epi64,
    _mm512_maskz_mov_epi64, _mm512_or_si512, _mm512_permutex2var_epi8, _mm512_reduce_or_epi64,
    _mm512_set1_epi8, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_sllv_epi64, _mm512_srl_epi64,
    _mm512_srli_epi64, _mm512_srlv_epi64, _mm512_storeu_epi8, _mm512_test_epi64_mask,
    _mm512_xor_si512,
};
use std::ops::Range;

use nearfar_simd::Avx512;
use nearfar_trace::{Batch, KindSet, last_byte};

use super::{Chunk, LOCAL_BITS, MAX_BLOCKS, SLOT_BITS, SLOTS, WRITE, Windower, slot_of};

/// Records that are looked at together.
const LANES: usize = 8;
/// Bytes of a register.
const BYTES: usize = 64;
/// For each byte of a register the one before it, of two registers in a row.
const BEFORE: [u8; BYTES] = {
    let mut before = [0; BYTES];
    let mut lane = 0;
    while lane < BYTES {
        before[lane] = (BYTES - 1 + lane) as u8;
        lane += 1;
    }
    before
};

/// Add the records of `batch` in `range`, up to the first that needs a block without its tag;
/// answers its place.
#[target_feature(enable = "avx512bw,avx512vl,avx512vbmi,avx512vbmi2,popcnt")]
pub fn add(
    token: Avx512,
    windower: &mut Windower,
    batch: &Batch,
    range: Range<usize>,
    chunk: &mut Chunk,
) -> usize {
    let all = |value: u64| _mm512_set1_epi64(value.cast_signed());
    let size_of_block = 1u64 << windower.shift;
    let shift = _mm_cvtsi64_si128(i64::from(windower.shift));
    let (wanted, writes) = (all(u64::from(windower.kinds.0)), all(u64::from(KindSet::WRITES.0)));
    let (one, in_block, block_bytes) = (all(1), all(size_of_block - 1), all(size_of_block));
    let mark = all(u64::from(WRITE));
    let (slots, locals) = (all(SLOTS as u64 - 1), all(MAX_BLOCKS as u64 - 1));
    let (mut again, mut again_written) = (_mm512_setzero_si512(), _mm512_setzero_si512());
    let (start, mut counted_records) = (chunk.refs.len(), 0);
    let mut filled = start;
    let (from, records) = (range.start, range.end);
    let (addrs, kinds, sizes) =
        (&batch.addr[..records], &batch.kind[..records], &batch.size[..records]);
    let mut place = from;
    // Each record adds two bytes at most, and a register is stored at a time.
    chunk.refs.reserve(2 * (records - from) + BYTES);
    let refs = chunk.refs.as_mut_ptr();
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
        let bytes = _mm_cvtsi128_si64(_mm_maskz_compress_epi8(counted.into(), bytes));
        // SAFETY: there is room for what is stored.
        unsafe { refs.add(filled).cast::<[u8; LANES]>().write_unaligned(bytes.to_le_bytes()) };
        filled += counted.count_ones() as usize;
        counted_records += u64::from(counted.count_ones());
        if stop == 0 {
            place += count;
            continue;
        }
        let lane = stop.trailing_zeros();
        place += lane as usize;
        // Nearly all that lie over a border lie in two blocks that are known.
        let (addr, size) = (addrs[place], sizes[place]);
        let last = last_byte(addr, size);
        let blocks = [addr, last].map(|addr| addr >> windower.shift);
        let tags = blocks.map(|block| windower.tags[slot_of(block)]);
        let known = |i: usize| tags[i] >> LOCAL_BITS == blocks[i];
        if blocks[1] - blocks[0] != 1 || !known(0) || !known(1) {
            break;
        }
        windower.borders[(addr ^ last).ilog2() as usize] += 1;
        counted_records += 1;
        let write = KindSet::WRITES.0 >> kinds[place] & 1;
        for tag in tags {
            let local = tag as u8 % MAX_BLOCKS as u8;
            windower.again |= 1 << local;
            windower.again_written |= u64::from(write) << local;
            // SAFETY: as above.
            unsafe { refs.add(filled).write(local | write << 7) };
            filled += 1;
        }
        place += 1;
    }
    chunk.records += counted_records;
    // SAFETY: what is counted has been stored, and there is room for a register beyond it.
    unsafe {
        let end = drop_repeats(token, refs, start..filled, windower.previous);
        chunk.refs.set_len(end);
    }
    if let Some(&last) = chunk.refs[start..].last() {
        windower.previous = last;
    }
    windower.again |= _mm512_reduce_or_epi64(again).cast_unsigned();
    windower.again_written |= _mm512_reduce_or_epi64(again_written).cast_unsigned();
    place
}

/// Leave one of consecutive equals in `range` of `refs`, which follows `previous`; answers the end.
///
/// # Safety
/// The range has been written, and there is room for a register after it.
#[target_feature(enable = "avx512bw,avx512vbmi,avx512vbmi2,popcnt")]
unsafe fn drop_repeats(_: Avx512, refs: *mut u8, range: Range<usize>, previous: u8) -> usize {
    // SAFETY: 64 bytes.
    let lane_before = unsafe { _mm512_loadu_epi8(BEFORE.as_ptr().cast()) };
    let mut last = _mm512_set1_epi8(previous.cast_signed());
    let mut kept = range.start;
    for place in range.clone().step_by(BYTES) {
        let lanes = u64::MAX >> BYTES.saturating_sub(range.end - place);
        // SAFETY: within the range, and its room; what is overwritten has been read.
        unsafe {
            let bytes = _mm512_maskz_loadu_epi8(lanes, refs.add(place).cast());
            let before = _mm512_permutex2var_epi8(last, lane_before, bytes);
            let fresh = _mm512_cmpneq_epi8_mask(bytes, before) & lanes;
            last = bytes;
            _mm512_storeu_epi8(refs.add(kept).cast(), _mm512_maskz_compress_epi8(fresh, bytes));
            kept += fresh.count_ones() as usize;
        }
    }
    kept
}
