//! A map from non-overlapping ranges of pages (or other numbers) to values, for the mappings of a process.

use std::collections::BTreeMap;

/// Last page and value of each range, by its first page.
#[derive(Clone, Debug)]
pub struct Ranges<T>(BTreeMap<u64, (u64, T)>);

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Clone> Ranges<T> {
    /// The number of ranges.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The value of the range that contains `page`.
    pub fn find(&self, page: u64) -> Option<T> {
        let (_, (last, value)) = self.0.range(..=page).next_back()?;
        (page <= *last).then(|| value.clone())
    }

    /// The ranges, cut to `first..=last`, in ascending order: first page, last page, value.
    pub fn within(&self, first: u64, last: u64) -> impl Iterator<Item = (u64, u64, T)> + '_ {
        let before = self.0.range(..first).next_back().filter(|(_, (end, _))| *end >= first);
        let inside = (first <= last).then(|| self.0.range(first..=last));
        (before.into_iter().chain(inside.into_iter().flatten()))
            .map(move |(&start, (end, value))| (start.max(first), (*end).min(last), value.clone()))
    }

    /// Remove `first..=last`, splitting ranges that overlap it.
    pub fn unmap(&mut self, first: u64, last: u64) {
        let cut: Vec<(u64, u64, T)> = self.within(first, last).collect();
        for (from, to, _) in cut {
            let Some((&start, _)) = self.0.range(..=from).next_back() else { continue };
            let Some((end, value)) = self.0.remove(&start) else { continue };
            if start < from {
                self.0.insert(start, (from - 1, value.clone()));
            }
            if end > to {
                self.0.insert(to + 1, (end, value));
            }
        }
    }

    /// Insert the range `first..=last`, replacing what it overlaps.
    pub fn map(&mut self, first: u64, last: u64, value: T) {
        self.unmap(first, last);
        self.0.insert(first, (last, value));
    }

    /// Insert the range `first..=last`, and join it with its neighbours of the same value.
    pub fn map_joined(&mut self, mut first: u64, mut last: u64, value: T)
    where
        T: PartialEq,
    {
        self.unmap(first, last);
        if let Some((&start, (end, before))) = self.0.range(..first).next_back()
            && end + 1 == first
            && *before == value
        {
            first = start;
        }
        if let Some((end, after)) = last.checked_add(1).and_then(|next| self.0.get(&next))
            && *after == value
        {
            let end = *end;
            self.0.remove(&(last + 1));
            last = end;
        }
        self.0.insert(first, (last, value));
    }

    /// The first range that contains `page` or begins after it, uncut: first page, last page, value.
    pub fn at_or_after(&self, page: u64) -> Option<(u64, u64, T)> {
        let before = self.0.range(..=page).next_back().filter(|(_, (last, _))| *last >= page);
        let (&first, (last, value)) = before.or_else(|| self.0.range(page..).next())?;
        Some((first, *last, value.clone()))
    }

    /// Move the ranges in `first..=last` by `by` pages (modulo 2^64) and apply `moved` to their values. The
    /// destination loses its old ranges.
    pub fn shift(&mut self, first: u64, last: u64, by: u64, moved: impl Fn(T) -> T) {
        let ranges: Vec<(u64, u64, T)> = self.within(first, last).collect();
        self.unmap(first, last);
        self.unmap(first.wrapping_add(by), last.wrapping_add(by));
        for (from, to, value) in ranges {
            self.0.insert(from.wrapping_add(by), (to.wrapping_add(by), moved(value)));
        }
    }

    /// Remove all ranges except those whose value satisfies `keep`.
    pub fn retain(&mut self, mut keep: impl FnMut(T) -> bool) {
        self.0.retain(|_, (_, value)| keep(value.clone()));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_equal_a_table_of_pages(
            steps in prop::collection::vec((0u8..4, 0u64..40, 0u64..12, 0u64..40), 0..40),
        ) {
            let mut ranges = Ranges::default();
            let mut plain: Vec<Option<usize>> = vec![None; 64];
            for (value, (what, first, length, to)) in steps.into_iter().enumerate() {
                let last = first + length;
                let pages = first as usize..=last as usize;
                match what {
                    0 => {
                        ranges.unmap(first, last);
                        plain[pages].fill(None);
                    }
                    1 => {
                        let moved: Vec<_> = plain[pages.clone()].to_vec();
                        plain[pages].fill(None);
                        plain[to as usize..=(to + length) as usize].copy_from_slice(&moved);
                        ranges.shift(first, last, to.wrapping_sub(first), |value| value);
                    }
                    _ => {
                        ranges.map(first, last, value);
                        plain[pages].fill(Some(value));
                    }
                }
                for (page, value) in plain.iter().enumerate() {
                    prop_assert_eq!(ranges.find(page as u64), *value);
                }
                let inside: Vec<_> = ranges
                    .within(first, last)
                    .flat_map(|(from, to, value)| (from..=to).map(move |page| (page, value)))
                    .collect();
                let expected: Vec<_> = (first..=last)
                    .filter_map(|page| Some((page, plain[page as usize]?)))
                    .collect();
                prop_assert_eq!(inside, expected);
            }
        }
    }

    proptest! {
        #[test]
        fn joined_ranges_are_runs_of_pages_with_equal_values(
            steps in prop::collection::vec((0u8..4, 0u64..40, 0u64..12), 0..40),
        ) {
            let mut ranges = Ranges::default();
            let mut plain: Vec<Option<u8>> = vec![None; 64];
            for (what, first, length) in steps {
                let last = first + length;
                let value = (what > 0).then_some(what % 2);
                match value {
                    None => ranges.unmap(first, last),
                    Some(value) => ranges.map_joined(first, last, value),
                }
                plain[first as usize..=last as usize].fill(value);
            }
            let mut page = 0;
            for run in plain.chunk_by(|one, next| one == next) {
                let last = page + run.len() as u64 - 1;
                if let Some(value) = run[0] {
                    prop_assert_eq!(ranges.at_or_after(page), Some((page, last, value)));
                    prop_assert_eq!(ranges.at_or_after(last), Some((page, last, value)));
                }
                page = last + 1;
            }
            prop_assert_eq!(ranges.at_or_after(64), None);
        }
    }
}
