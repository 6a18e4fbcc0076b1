//! Memory that is registered with userfaultfd.

use nearfar_trace::ranges::Ranges;

use crate::{Range, Va};

/// A set of pages, as ranges that do not overlap.
#[derive(Debug, Default)]
pub struct Regions(Ranges<()>);

impl Regions {
    /// The parts of `range` that are in no region, in order.
    pub fn gaps(&self, range: Range) -> Vec<Range> {
        let Some((first, last)) = ends(range) else { return Vec::new() };
        let mut gaps = Vec::new();
        let mut from = range.from;
        for (first, last, ()) in self.0.within(first, last) {
            if from.number() < first {
                gaps.push(Range::new(from, Va::new(first)));
            }
            from = Va::new(last + 1);
        }
        if from < range.to {
            gaps.push(Range::new(from, range.to));
        }
        gaps
    }

    /// The end of the region that contains the page `at`.
    pub fn end_of(&self, at: Va) -> Option<Va> {
        let (first, last, ()) = self.0.at_or_after(at.number())?;
        (first <= at.number()).then(|| Va::new(last + 1))
    }

    /// Add a range as a region. Older regions lose the pages in it.
    pub fn add(&mut self, range: Range) {
        if let Some((first, last)) = ends(range) {
            self.0.map(first, last, ());
        }
    }

    pub fn remove(&mut self, range: Range) {
        if let Some((first, last)) = ends(range) {
            self.0.unmap(first, last);
        }
    }
}

/// First and last page of a range, unless it is empty.
fn ends(range: Range) -> Option<(u64, u64)> {
    (range.pages() > 0).then(|| (range.from.number(), range.to.number() - 1))
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
                let ranges = regions.0.within(0, u64::MAX);
                let all = ranges.flat_map(|(first, last, ())| (first..=last).map(Va::new));
                prop_assert!(all.eq(pages.iter().copied()));
            }
        }
    }
}
