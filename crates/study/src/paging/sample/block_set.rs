//! A set of memory blocks, one bit each.

use nearfar_trace::hash::PageMap;

/// log2 of the blocks per bitmap.
const BITMAP: u32 = 20;
const WORDS: usize = 1 << (BITMAP - 6);

pub struct BlockSet {
    /// log2 of the block size in bytes.
    shift: u32,
    /// Index of the bitmap by block number >> [`BITMAP`].
    bitmap_of: PageMap<usize>,
    bitmaps: Vec<Box<[u64; WORDS]>>,
    /// The last entry of `bitmap_of` that was used.
    last: (u64, usize),
}

impl BlockSet {
    pub fn new(shift: u32) -> Self {
        Self { shift, bitmap_of: PageMap::default(), bitmaps: Vec::new(), last: (u64::MAX, 0) }
    }

    #[inline]
    pub fn touch(&mut self, addr: u64) {
        let block = addr >> self.shift;
        if block >> BITMAP != self.last.0 {
            self.last = (block >> BITMAP, self.find(block >> BITMAP));
        }
        let within = block as usize % (1 << BITMAP);
        self.bitmaps[self.last.1][within / 64] |= 1 << (within % 64);
    }

    fn find(&mut self, high: u64) -> usize {
        *self.bitmap_of.entry(high).or_insert_with(|| {
            self.bitmaps.push(Box::new([0; WORDS]));
            self.bitmaps.len() - 1
        })
    }

    /// Number of pages with a block in the set; pages of 2^`shift` bytes, at least the block size.
    pub fn pages(&self, shift: u32) -> u64 {
        let order = shift - self.shift;
        let words = || self.bitmaps.iter().flat_map(|bits| bits.iter());
        if order < 6 {
            // Fold the bits of each page into its first bit.
            let first_bits = u64::MAX / ((1 << (1 << order)) - 1);
            let fold = |word: u64| (0..order).fold(word, |word, step| word | word >> (1 << step));
            words().map(|&word| u64::from((fold(word) & first_bits).count_ones())).sum()
        } else if order <= BITMAP {
            let touched = |page: &&[u64]| page.iter().any(|&word| word != 0);
            let pages = self.bitmaps.iter().flat_map(|bits| bits.chunks(1 << (order - 6)));
            pages.filter(touched).count() as u64
        } else {
            let mut pages: Vec<u64> =
                self.bitmap_of.keys().map(|high| high >> (order - BITMAP)).collect();
            pages.sort_unstable();
            pages.dedup();
            pages.len() as u64
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn page_counts_equal_a_hash_set(addrs in prop::collection::vec(
            prop_oneof![0u64..1 << 18, 0u64..1 << 34, any::<u64>()], 0..400,
        ), shift in 6u32..13) {
            let mut touched = BlockSet::new(shift);
            addrs.iter().for_each(|&addr| touched.touch(addr));
            for page in shift..41 {
                let pages: std::collections::HashSet<u64> =
                    addrs.iter().map(|addr| addr >> page).collect();
                prop_assert_eq!(touched.pages(page), pages.len() as u64, "2^{}", page);
            }
        }
    }
}
