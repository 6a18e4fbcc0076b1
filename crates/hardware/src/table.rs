//! Tables larger than the caches, looked up at random.

/// Bytes from which on a table is worth huge pages: a TLB reaches less far with small ones.
const LARGE: usize = 4 << 20;

/// The same table, in huge pages as far as the kernel has any; those of its pages that nobody has touched
/// yet.
pub fn on_huge_pages<T>(mut table: Vec<T>) -> Vec<T> {
    let bytes = table.capacity() * size_of::<T>();
    #[cfg(target_os = "linux")]
    if bytes >= LARGE {
        const PAGE: usize = 4096;
        let start = table.as_mut_ptr().cast::<u8>();
        let skipped = start.align_offset(PAGE).min(bytes);
        let length = (bytes - skipped) / PAGE * PAGE;
        // SAFETY: the pages lie within the table's own memory, and what they hold stays as it is. A
        // kernel that declines leaves all as it was.
        unsafe { libc::madvise(start.add(skipped).cast(), length, libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (bytes, &mut table);
    table
}

/// Let `table` have `length` elements, if it has fewer; its memory is on huge pages as it grows.
#[inline]
pub fn grow<T: Clone>(table: &mut Vec<T>, length: usize, value: T) {
    if length > table.capacity() {
        table.reserve(length - table.len());
        *table = on_huge_pages(std::mem::take(table));
    }
    if length > table.len() {
        table.resize(length, value);
    }
}

/// Ask for an element that is needed soon.
#[inline(always)]
pub fn prefetch<T>(table: &[T], index: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(element) = table.get(index) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction reads nothing that the program sees.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(element).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (table, index);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On huge pages or not, a table keeps what it holds and what it has room for.
    #[test]
    fn tables_stay_as_they_are() {
        for length in [0, 1, LARGE / 8, LARGE / 4 + 3] {
            let table: Vec<u64> = (0..length as u64).collect();
            let capacity = table.capacity();
            let mut grown = Vec::new();
            table.iter().for_each(|&value| grow(&mut grown, value as usize + 1, value));
            grow(&mut grown, 0, 7);
            assert_eq!(grown, table);
            let table = on_huge_pages(table);
            assert_eq!((table.len(), table.capacity()), (length, capacity));
            assert!((0..).zip(&table).all(|(expected, &found)| expected == found));
            prefetch(&table, length);
        }
    }
}
