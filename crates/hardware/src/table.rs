//! Huge pages and prefetching for tables larger than the caches and accessed at random.

/// Minimum bytes of a table on huge pages: a TLB can cover a smaller one with small pages.
const MIN_HUGE: usize = 4 << 20;

/// Advise the kernel to use huge pages for the untouched pages of a table.
pub fn on_huge_pages<T>(mut table: Vec<T>) -> Vec<T> {
    let bytes = table.capacity() * size_of::<T>();
    #[cfg(target_os = "linux")]
    if bytes >= MIN_HUGE {
        const PAGE: usize = 4096;
        let start = table.as_mut_ptr().cast::<u8>();
        let skipped = start.align_offset(PAGE).min(bytes);
        let length = (bytes - skipped) / PAGE * PAGE;
        // SAFETY: the pages are within the table's memory, and the advice does not change their
        // contents. An error is ignored.
        unsafe { libc::madvise(start.add(skipped).cast(), length, libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (bytes, &mut table);
    table
}

/// Grow `table` to `length` elements if it has fewer, on huge pages.
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

#[inline(always)]
pub fn prefetch<T>(table: &[T], index: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(element) = table.get(index) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch has no architectural effect.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(element).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (table, index);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_and_capacity_do_not_change() {
        for length in [0, 1, MIN_HUGE / 8, MIN_HUGE / 4 + 3] {
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
