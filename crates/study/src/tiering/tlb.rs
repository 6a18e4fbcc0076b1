//! The TLB of the simulated processor: sets of four, first in first out, with the two bits that an
//! entry caches.
//!
//! An access that hits does not look at the page table, so it sets no accessed bit; a write through
//! an entry that has not written yet walks again to set the dirty bit.

const WAYS: usize = 4;
const NONE: u32 = u32::MAX;
const WRITTEN: u8 = 4;

/// A TLB.
#[derive(Clone, Debug)]
pub struct Tlb {
    tags: Vec<[u32; WAYS]>,
    /// A byte for each way, the first lowest.
    info: Vec<u32>,
}

impl Tlb {
    /// A TLB of `entries`, rounded up to sets of four; none at all for 0.
    pub fn new(entries: u64) -> Self {
        let sets = (entries as usize).div_ceil(WAYS);
        Self { tags: vec![[NONE; WAYS]; sets], info: vec![0; sets] }
    }

    #[inline]
    fn set(&self, page: u32) -> usize {
        // Fibonacci hashing, then a multiplication in place of a division.
        let hash = u64::from(page.wrapping_mul(0x9E37_79B1));
        (hash * self.tags.len() as u64 >> 32) as usize
    }

    /// A bit for each way that holds the page.
    #[inline]
    fn ways(tags: &[u32; WAYS], page: u32) -> u32 {
        (0..WAYS).fold(0, |found, way| found | u32::from(tags[way] == page) << way)
    }

    /// The node of the page, if an entry allows the access without a walk.
    #[inline]
    pub fn hit(&self, page: u32, write: bool) -> Option<u8> {
        let set = self.set(page);
        let found = Self::ways(self.tags.get(set)?, page);
        if found == 0 {
            return None;
        }
        let entry = (self.info.get(set)? >> (8 * found.trailing_zeros())) as u8;
        (!write || entry & WRITTEN != 0).then_some(entry & 3)
    }

    /// Keep a translation after a walk; `write` if the walk was for a write.
    #[inline]
    pub fn fill(&mut self, page: u32, node: u8, write: bool) {
        let set = self.set(page);
        let (Some(tags), Some(info)) = (self.tags.get_mut(set), self.info.get_mut(set)) else {
            return;
        };
        let entry = u32::from(node | if write { WRITTEN } else { 0 });
        let found = Self::ways(tags, page);
        if found != 0 {
            // It was there as one not written yet.
            let shift = 8 * found.trailing_zeros();
            *info = *info & !(0xff << shift) | entry << shift;
            return;
        }
        *tags = [page, tags[0], tags[1], tags[2]];
        *info = *info << 8 | entry;
    }

    /// Forget a page.
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
    use super::*;

    #[test]
    fn holds_what_was_filled_last() {
        let mut tlb = Tlb::new(4);
        for page in 0..5 {
            assert_eq!(tlb.hit(page, false), None);
            tlb.fill(page, page as u8 & 3, page == 3);
        }
        let held: Vec<_> = (0..5).map(|page| tlb.hit(page, false)).collect();
        assert_eq!(held, [None, Some(1), Some(2), Some(3), Some(0)]);
        assert_eq!((tlb.hit(3, true), tlb.hit(4, true)), (Some(3), None));
        tlb.fill(4, 0, true);
        assert_eq!((tlb.hit(4, true), tlb.hit(1, false)), (Some(0), Some(1)));
        tlb.flush(4);
        assert_eq!(tlb.hit(4, false), None);
    }

    #[test]
    fn may_be_absent() {
        let mut tlb = Tlb::new(0);
        tlb.fill(1, 0, false);
        assert_eq!(tlb.hit(1, false), None);
        tlb.flush(1);
    }
}
