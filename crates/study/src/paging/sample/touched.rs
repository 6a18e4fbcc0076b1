//! Which blocks of memory were referenced at all: a bit each.

use nearfar_trace::hash::PageMap;

/// log2 of the blocks whose bits lie together.
const SOME: u32 = 20;
const WORDS: usize = 1 << (SOME - 6);

/// The blocks that were touched.
pub struct Touched {
    /// log2 of the bytes of a block.
    shift: u32,
    place_of: PageMap<usize>,
    bits: Vec<Box<[u64; WORDS]>>,
    /// Where the last block was found.
    last: (u64, usize),
}

impl Touched {
    /// None yet, of 2^`shift` bytes.
    pub fn new(shift: u32) -> Self {
        Self { shift, place_of: PageMap::default(), bits: Vec::new(), last: (u64::MAX, 0) }
    }

    /// The block of an address was referenced.
    #[inline]
    pub fn touch(&mut self, addr: u64) {
        let block = addr >> self.shift;
        if block >> SOME != self.last.0 {
            self.last = (block >> SOME, self.find(block >> SOME));
        }
        let within = block as usize % (1 << SOME);
        self.bits[self.last.1][within / 64] |= 1 << (within % 64);
    }

    fn find(&mut self, high: u64) -> usize {
        *self.place_of.entry(high).or_insert_with(|| {
            self.bits.push(Box::new([0; WORDS]));
            self.bits.len() - 1
        })
    }

    /// How many pages of 2^`shift` bytes, no smaller than a block, were touched.
    pub fn pages(&self, shift: u32) -> u64 {
        let order = shift - self.shift;
        let words = || self.bits.iter().flat_map(|bits| bits.iter());
        if order < 6 {
            // The first bit of each page stands for all of them.
            let firsts = u64::MAX / ((1 << (1 << order)) - 1);
            let of = |word: u64| (0..order).fold(word, |word, step| word | word >> (1 << step));
            words().map(|&word| u64::from((of(word) & firsts).count_ones())).sum()
        } else if order <= SOME {
            let touched = |page: &&[u64]| page.iter().any(|&word| word != 0);
            let pages = self.bits.iter().flat_map(|bits| bits.chunks(1 << (order - 6)));
            pages.filter(touched).count() as u64
        } else {
            let mut pages: Vec<u64> =
                self.place_of.keys().map(|high| high >> (order - SOME)).collect();
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
        /// At every page size as many as a set counts.
        #[test]
        fn pages_are_counted(addrs in prop::collection::vec(
            prop_oneof![0u64..1 << 18, 0u64..1 << 34, any::<u64>()], 0..400,
        ), shift in 6u32..13) {
            let mut touched = Touched::new(shift);
            addrs.iter().for_each(|&addr| touched.touch(addr));
            for of in shift..41 {
                let pages: std::collections::HashSet<u64> = addrs.iter().map(|a| a >> of).collect();
                prop_assert_eq!(touched.pages(of), pages.len() as u64, "2^{}", of);
            }
        }
    }
}
