//! A set of pages that finds its lowest member quickly.

use nearfar_hardware::table::prefetch;

use super::Page;

/// A set of page numbers below a bound: a bit per page, and two levels of bits above it that say
/// which words are not empty.
#[derive(Clone, Debug, Default)]
pub struct PageSet {
    levels: [Vec<u64>; 3],
}

impl PageSet {
    /// An empty set of page numbers below `pages`.
    pub fn new(pages: u32) -> Self {
        let words = (pages as usize).div_ceil(64);
        let upper = words.div_ceil(64);
        let top = upper.div_ceil(64);
        Self { levels: [vec![0; words], vec![0; upper], vec![0; top]] }
    }

    pub fn is_empty(&self) -> bool {
        self.first().is_none()
    }

    /// Whether `page` is a member; page numbers out of bounds are not.
    pub fn contains(&self, page: Page) -> bool {
        self.levels[0]
            .get(page.index() / 64)
            .is_some_and(|word| word >> (page.index() % 64) & 1 == 1)
    }

    pub fn prefetch(&self, page: Page) {
        prefetch(&self.levels[0], page.index() / 64);
    }

    /// Add a page. Returns false if it is a member or out of bounds.
    pub fn insert(&mut self, page: Page) -> bool {
        if self.contains(page) {
            return false;
        }
        let mut at = page.index();
        for (depth, level) in self.levels.iter_mut().enumerate() {
            match level.get_mut(at / 64) {
                Some(word) => *word |= 1 << (at % 64),
                None if depth == 0 => return false,
                None => {}
            }
            at /= 64;
        }
        true
    }

    /// Remove a page. Returns false if it is not a member.
    pub fn remove(&mut self, page: Page) -> bool {
        if !self.contains(page) {
            return false;
        }
        let mut at = page.index();
        for level in &mut self.levels {
            let Some(word) = level.get_mut(at / 64) else { break };
            *word &= !(1 << (at % 64));
            if *word != 0 {
                break;
            }
            at /= 64;
        }
        true
    }

    /// The member with the lowest number.
    pub fn first(&self) -> Option<Page> {
        let top = self.levels[2].iter().position(|word| *word != 0)?;
        let upper = top * 64 + self.levels[2].get(top)?.trailing_zeros() as usize;
        let word = upper * 64 + self.levels[1].get(upper)?.trailing_zeros() as usize;
        let bit = self.levels[0].get(word)?.trailing_zeros();
        Some(Page::new(word as u32 * 64 + bit))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn equals_a_tree_set(pages in 1..40_000u32, steps in prop::collection::vec((0..40_000u32, any::<bool>()), 0..300)) {
            let (mut set, mut tree) = (PageSet::new(pages), BTreeSet::new());
            for (page, add) in steps {
                let number = Page::new(page);
                if add && page < pages {
                    prop_assert_eq!(set.insert(number), tree.insert(page));
                } else if !add {
                    prop_assert_eq!(set.remove(number), tree.remove(&page));
                }
                prop_assert_eq!(set.first().map(Page::number), tree.first().copied());
                prop_assert_eq!(set.is_empty(), tree.is_empty());
            }
        }
    }
}
