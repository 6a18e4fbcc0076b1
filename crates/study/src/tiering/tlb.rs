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
    info: Vec<[u8; WAYS]>,
}

impl Tlb {
    /// A TLB of `entries`, rounded up to sets of four; none at all for 0.
    pub fn new(entries: u64) -> Self {
        let sets = (entries as usize).div_ceil(WAYS);
        Self { tags: vec![[NONE; WAYS]; sets], info: vec![[0; WAYS]; sets] }
    }

    #[inline]
    fn set(&self, page: u32) -> usize {
        // Fibonacci hashing, then a multiplication in place of a division.
        let hash = u64::from(page.wrapping_mul(0x9E37_79B1));
        (hash * self.tags.len() as u64 >> 32) as usize
    }

    /// The node of the page, if an entry allows the access without a walk.
    #[inline]
    pub fn hit(&self, page: u32, write: bool) -> Option<u8> {
        let set = self.set(page);
        let tags = self.tags.get(set)?;
        let info = &self.info[set];
        for way in 0..WAYS {
            if tags[way] == page && (!write || info[way] & WRITTEN != 0) {
                return Some(info[way] & 3);
            }
        }
        None
    }

    /// Keep a translation; `write` if the walk was for a write.
    #[inline]
    pub fn fill(&mut self, page: u32, node: u8, write: bool) {
        let set = self.set(page);
        let Some(tags) = self.tags.get_mut(set) else { return };
        let info = &mut self.info[set];
        let entry = node | if write { WRITTEN } else { 0 };
        // The page may be there as one not written yet.
        let last = tags.iter().position(|tag| *tag == page).unwrap_or(WAYS - 1);
        for way in (0..last).rev() {
            tags[way + 1] = tags[way];
            info[way + 1] = info[way];
        }
        tags[0] = page;
        info[0] = entry;
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
