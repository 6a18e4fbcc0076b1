//! Memory that is registered with userfaultfd.

use std::collections::BTreeMap;

use crate::{Range, Va};

/// A set of pages, as ranges that do not overlap.
#[derive(Debug, Default)]
pub struct Regions {
    ranges: BTreeMap<Va, Va>,
}

impl Regions {
    /// The parts of `range` that are in no region, in order.
    pub fn gaps(&self, range: Range) -> Vec<Range> {
        let mut gaps = Vec::new();
        let mut from = range.from;
        let before = self.ranges.range(..range.from).next_back();
        for (start, end) in before.into_iter().chain(self.ranges.range(range.from..range.to)) {
            if from < *start {
                gaps.push(Range::new(from, *start));
            }
            from = from.max(*end);
        }
        if from < range.to {
            gaps.push(Range::new(from, range.to));
        }
        gaps
    }

    /// The end of the region that contains the page `at`.
    pub fn end_of(&self, at: Va) -> Option<Va> {
        self.ranges.range(..=at).next_back().map(|(_, end)| *end).filter(|end| *end > at)
    }

    /// Add a range as a region. Older regions lose the pages in it.
    pub fn add(&mut self, range: Range) {
        self.remove(range);
        if range.pages() > 0 {
            self.ranges.insert(range.from, range.to);
        }
    }

    pub fn remove(&mut self, range: Range) {
        let touched: Vec<_> = self
            .ranges
            .range(..range.to)
            .rev()
            .take_while(|(_, to)| **to > range.from)
            .map(|(from, to)| Range::new(*from, *to))
            .collect();
        for old in touched {
            self.ranges.remove(&old.from);
            if old.from < range.from {
                self.ranges.insert(old.from, range.from);
            }
            if old.to > range.to {
                self.ranges.insert(range.to, old.to);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn regions_are_sets_of_pages(steps in prop::collection::vec((any::<bool>(), 0..40u64, 1..20u64), 0..60)) {
            let (mut regions, mut pages) = (Regions::default(), BTreeSet::new());
            for (add, from, length) in steps {
                let range = Range::new(Va::new(from), Va::new(from + length));
                if add {
                    regions.add(range);
                    pages.extend(range.each());
                } else {
                    regions.remove(range);
                    pages.retain(|at| !range.each().any(|gone| gone == *at));
                }
                for at in (0..64).map(Va::new) {
                    prop_assert_eq!(regions.end_of(at).is_some(), pages.contains(&at));
                    if let Some(end) = regions.end_of(at) {
                        prop_assert!(Range::new(at, end).each().all(|page| pages.contains(&page)));
                    }
                }
                let gaps = regions.gaps(range);
                let in_gaps: Vec<_> = gaps.iter().flat_map(|gap| gap.each()).collect();
                let missing: Vec<_> = range.each().filter(|at| !pages.contains(at)).collect();
                prop_assert_eq!(in_gaps, missing);
                prop_assert!(gaps.windows(2).all(|pair| pair[0].to < pair[1].from));
                let ranges = regions.ranges.iter().map(|(from, to)| Range::new(*from, *to));
                prop_assert!(ranges.flat_map(Range::each).eq(pages.iter().copied()));
            }
        }
    }
}
