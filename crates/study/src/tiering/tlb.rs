//! The TLB of the simulated processor: sets of four entries, first in first out, each with a bit that
//! says whether a write has used it.
//!
//! A hit does not access the page table, so it sets no accessed bit. The first write through an entry
//! walks again to set the dirty bit. Entries need not hold the page's node: a page that moves is
//! [flushed](Tlb::flush), so the node in the page table is right also on a hit.

const WAYS: usize = 4;
const NONE: u32 = u32::MAX;

#[derive(Clone, Debug)]
pub struct Tlb {
    tags: Vec<[u32; WAYS]>,
    /// A bit for each way, the first lowest: whether a write has used it.
    written: Vec<u8>,
}

/// The result of a look-up.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    set: usize,
    /// A bit for the way; 0: not found.
    way: u8,
}

impl Tlb {
    /// A TLB of `entries`, rounded up to sets of four; with 0, nothing hits.
    pub fn new(entries: u64) -> Self {
        let sets = (entries as usize).div_ceil(WAYS);
        Self { tags: vec![[NONE; WAYS]; sets], written: vec![0; sets] }
    }

    #[inline]
    fn set(&self, page: u32) -> usize {
        // Fibonacci hashing, then a multiplication in place of a division.
        let hash = u64::from(page.wrapping_mul(0x9E37_79B1));
        (hash * self.tags.len() as u64 >> 32) as usize
    }

    /// A bit for each way that holds the page.
    #[inline]
    fn ways(tags: [u32; WAYS], page: u32) -> u8 {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{
                _mm_castsi128_ps, _mm_cmpeq_epi32, _mm_movemask_ps, _mm_set_epi32, _mm_set1_epi32,
            };
            // Three instructions; the compiler makes fifteen of the code below.
            let [first, second, third, fourth] = tags.map(u32::cast_signed);
            // SAFETY: every x86-64 processor has SSE2.
            unsafe {
                let tags = _mm_set_epi32(fourth, third, second, first);
                let same = _mm_cmpeq_epi32(tags, _mm_set1_epi32(page.cast_signed()));
                _mm_movemask_ps(_mm_castsi128_ps(same)) as u8
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            (0..WAYS).fold(0, |found, way| found | u8::from(tags[way] == page) << way)
        }
    }

    /// Look up a page. Returns whether an entry allows the access without a walk.
    #[inline]
    pub fn look_up(&self, page: u32, write: bool) -> (Found, bool) {
        let set = self.set(page);
        let (Some(tags), Some(written)) = (self.tags.get(set), self.written.get(set)) else {
            return (Found { set, way: 0 }, false);
        };
        let way = Self::ways(*tags, page);
        (Found { set, way }, way != 0 && (!write || written & way != 0))
    }

    /// Insert a translation after a walk. `found` is the result of [`look_up`](Tlb::look_up) before it;
    /// `write`: the walk was for a write.
    #[inline]
    pub fn insert(&mut self, found: Found, page: u32, write: bool) {
        let set = found.set;
        let (Some(tags), Some(written)) = (self.tags.get_mut(set), self.written.get_mut(set))
        else {
            return;
        };
        if found.way != 0 {
            // The entry exists, but no write had used it.
            *written |= if write { found.way } else { 0 };
            return;
        }
        *tags = [page, tags[0], tags[1], tags[2]];
        // Bits above the fourth are never read.
        *written = *written << 1 | u8::from(write);
    }

    #[inline]
    pub fn flush(&mut self, page: u32) {
        let set = self.set(page);
        let Some(tags) = self.tags.get_mut(set) else { return };
        for tag in tags.iter_mut().filter(|tag| **tag == page) {
            *tag = NONE;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// Reference: a list of each set's entries, newest first, each with whether a write used it.
    #[derive(Default)]
    struct Plain {
        sets: HashMap<usize, Vec<(u32, bool)>>,
    }

    impl Plain {
        fn access(&mut self, set: usize, page: u32, write: bool) -> bool {
            let entries = self.sets.entry(set).or_default();
            if let Some((_, written)) = entries.iter_mut().find(|(held, _)| *held == page) {
                let allowed = !write || *written;
                *written |= write;
                return allowed;
            }
            entries.insert(0, (page, write));
            entries.truncate(WAYS);
            false
        }

        /// A flushed page leaves an empty entry.
        fn flush(&mut self, set: usize, page: u32) {
            for entry in self.sets.entry(set).or_default() {
                if entry.0 == page {
                    *entry = (NONE, false);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn matches_a_list_per_set(
            entries in 0..40u64,
            // Page, write, and 0 for a flush.
            steps in prop::collection::vec((0..60u32, any::<bool>(), 0..8u8), 0..400),
        ) {
            let (mut tlb, mut plain) = (Tlb::new(entries), Plain::default());
            for (page, write, what) in steps {
                let set = tlb.set(page);
                if what == 0 {
                    tlb.flush(page);
                    plain.flush(set, page);
                    continue;
                }
                let (found, hit) = tlb.look_up(page, write);
                prop_assert_eq!(hit, entries > 0 && plain.access(set, page, write));
                if !hit {
                    tlb.insert(found, page, write);
                }
            }
        }
    }
}
