//! Memory that is registered with userfaultfd.

use std::collections::BTreeMap;

use crate::{Range, Va};

/// Ranges that do not overlap.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    ranges: BTreeMap<Va, Va>,
}

impl Regions {
    /// Whether all of `range` is in one of them.
    pub(crate) fn hold(&self, range: Range) -> bool {
        self.end_of(range.from).is_some_and(|end| end >= range.to)
    }

    /// The end of the one that holds this page.
    pub(crate) fn end_of(&self, at: Va) -> Option<Va> {
        self.ranges.range(..=at).next_back().map(|(_, end)| *end).filter(|end| *end > at)
    }

    /// Add a range in place of whatever was there.
    pub(crate) fn add(&mut self, range: Range) {
        self.remove(range);
        if range.pages() > 0 {
            self.ranges.insert(range.from, range.to);
        }
    }

    /// Remove a range.
    pub(crate) fn remove(&mut self, range: Range) {
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
        fn like_a_set_of_pages(steps in prop::collection::vec((any::<bool>(), 0..40u64, 1..20u64), 0..60)) {
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
                        prop_assert!(regions.hold(Range::new(at, end)));
                        prop_assert!(!regions.hold(Range::new(at, end.plus(1))));
                    }
                }
            }
        }
    }
}
