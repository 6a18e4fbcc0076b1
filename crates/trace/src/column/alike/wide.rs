//! Finding repeats with vector registers.

use std::arch::x86_64::*;

use zstd::zstd_safe::zstd_sys::ZSTD_Sequence;

use super::Columns;

/// Bytes compared at once.
const LANES: usize = 64;

/// [`super::find`].
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,bmi1,bmi2,popcnt")]
pub(super) fn find(columns: &Columns<'_>, table: &mut [u32], sequences: &mut Vec<ZSTD_Sequence>) {
    super::find(columns, table, sequences, |columns, early, late, end| {
        same(columns, early, late, end)
    });
}

/// [`super::same`]. Most repeats are shorter than a register: one look, with no byte at a time
/// after it.
#[inline]
#[target_feature(enable = "avx512bw,avx512dq,avx512vl,bmi1,bmi2,popcnt")]
fn same(columns: &Columns<'_>, early: usize, late: usize, end: usize) -> usize {
    assert!(early < late && late <= end && columns.iter().all(|column| column.len() >= end));
    let mut done = 0;
    loop {
        let left = end - late - done;
        let lanes = _bzhi_u64(u64::MAX, left.min(LANES) as u32);
        let mut equal = lanes;
        for column in columns {
            // SAFETY: only bytes before `end` are read.
            let [one, other] = [early + done, late + done].map(|at| unsafe {
                _mm512_maskz_loadu_epi8(lanes, column.as_ptr().add(at).cast())
            });
            equal &= _mm512_cmpeq_epi8_mask(one, other);
        }
        if equal != u64::MAX {
            return late + done + equal.trailing_ones() as usize;
        }
        done += LANES;
    }
}
