//! The page numbers by which a policy knows the program's pages.
//!
//! A virtual page number has 36 bits, a policy's page number 32, and a policy's tables are as long as the
//! highest number. So an aligned group of 8 pages gets 8 consecutive numbers when its first page is used, and
//! frees them when none of its pages is. With larger groups, sparse accesses would use up the
//! numbers; with smaller ones, the table of groups would be larger.

use std::collections::BTreeMap;

use nearfar_kernel::tiering::Page;

use crate::{Range, Va};

/// Pages of a group.
pub(crate) const GROUP: u32 = 8;

/// The key of a page's group (virtual page number / [`GROUP`]), and the page's offset in the group.
fn split(at: Va) -> (u64, u32) {
    (at.number() / u64::from(GROUP), (at.number() % u64::from(GROUP)) as u32)
}

/// Page numbers in use.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// Index of each group in use, by key. Ordered, so that a scan of a range visits only groups in use.
    groups: BTreeMap<u64, u32>,
    /// The key and the number of held pages of each group, by index.
    group_info: Vec<(u64, u32)>,
    /// Indices of groups that are not in use.
    free: Vec<u32>,
    limit: u32,
}

impl Numbers {
    /// Numbers below `limit`, rounded up to whole groups.
    pub(crate) fn new(limit: u32) -> Self {
        let limit = limit.next_multiple_of(GROUP);
        Self { groups: BTreeMap::new(), group_info: Vec::new(), free: Vec::new(), limit }
    }

    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// All numbers that were ever allocated are below this.
    pub(crate) fn top(&self) -> u32 {
        self.group_info.len() as u32 * GROUP
    }

    /// The number of a page, if its group has any.
    pub(crate) fn get(&self, at: Va) -> Option<Page> {
        let (key, offset) = split(at);
        let group = *self.groups.get(&key)?;
        Some(Page::new(group * GROUP + offset))
    }

    /// The address of an allocated number.
    pub(crate) fn address_of(&self, page: Page) -> Va {
        let (key, _) = self.group_info[page.index() / GROUP as usize];
        Va::new(key * u64::from(GROUP) + u64::from(page.number() % GROUP))
    }

    /// The numbers, held or not, of the pages in `range` whose group is in use, in order of addresses.
    pub(crate) fn each_in(&self, range: Range) -> impl Iterator<Item = (Page, Va)> {
        let (first, last) = (split(range.from).0, range.to.number().div_ceil(GROUP.into()));
        // `BTreeMap::range` panics if the end is before the start.
        self.groups.range(first..last.max(first)).flat_map(move |(key, group)| {
            let (key, group) = (*key, *group);
            (0..GROUP)
                .map(move |offset| {
                    let at = Va::new(key * u64::from(GROUP) + u64::from(offset));
                    (Page::new(group * GROUP + offset), at)
                })
                .filter(move |(_, at)| range.contains(*at))
        })
    }

    /// Hold the number of a page until [`release`](Numbers::release). `None` if no number is free.
    pub(crate) fn hold(&mut self, at: Va) -> Option<Page> {
        let (key, offset) = split(at);
        let group = match self.groups.get(&key) {
            Some(group) => *group,
            None => {
                let group = match self.free.pop() {
                    Some(group) => group,
                    None if (self.group_info.len() as u32) < self.limit / GROUP => {
                        self.group_info.push((0, 0));
                        self.group_info.len() as u32 - 1
                    }
                    None => return None,
                };
                self.group_info[group as usize] = (key, 0);
                self.groups.insert(key, group);
                group
            }
        };
        self.group_info[group as usize].1 += 1;
        Some(Page::new(group * GROUP + offset))
    }

    pub(crate) fn release(&mut self, page: Page) {
        let group = page.number() / GROUP;
        let (key, held) = &mut self.group_info[group as usize];
        *held -= 1;
        if *held == 0 {
            self.groups.remove(key);
            self.free.push(group);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// A tebibyte in which one page of each mebibyte is used.
    #[test]
    fn pages_far_apart_take_a_group_each() {
        let pages = 1 << 20;
        let mut numbers = Numbers::new(GROUP * pages);
        for index in 0..u64::from(pages) {
            assert!(numbers.hold(Va::new(index << 8)).is_some(), "page {index}");
        }
        assert_eq!(numbers.hold(Va::new(1)).map(Page::number), Some(1));
        assert_eq!(numbers.hold(Va::new(1 << 40)), None);
        // Only used groups are visited: 7 pages of the first, and 1 of the second.
        let range = Range::new(Va::new(1), Va::new(1 + (1 << 8)));
        assert_eq!(numbers.each_in(range).count() as u32, GROUP - 1 + 1);
    }

    proptest! {
        /// Pages and numbers map one to one, up to the limit of groups, and a range has the numbers of its
        /// pages.
        #[test]
        fn pages_and_numbers_map_one_to_one(
            steps in prop::collection::vec((0..6u64, 0..u64::from(GROUP), any::<bool>()), 0..200),
            from in 0..60u64,
            pages in 0..60u64,
            apart in prop::sample::select(vec![1u64, 1 << 20]),
        ) {
            let size = u64::from(GROUP);
            let mut numbers = Numbers::new(4 * GROUP);
            let mut held = BTreeSet::new();
            for (group, page, hold) in steps {
                let at = Va::new(group * apart * size + page);
                if !hold {
                    if held.remove(&at) {
                        let page = numbers.get(at).unwrap();
                        numbers.release(page);
                    }
                } else if !held.contains(&at) {
                    let groups: BTreeSet<_> = held.iter().map(|at: &Va| at.number() / size).collect();
                    let room = groups.len() < 4 || groups.contains(&(at.number() / size));
                    prop_assert_eq!(numbers.hold(at).is_some(), room);
                    if room {
                        held.insert(at);
                    }
                }
                for at in &held {
                    let page = numbers.get(*at).unwrap();
                    prop_assert_eq!(numbers.address_of(page), *at);
                    prop_assert!(page.number() < numbers.limit());
                }
            }
            let range = Range::new(Va::new(from), Va::new(from + pages));
            let found: Vec<_> = numbers.each_in(range).map(|(_, at)| at).collect();
            let expected: Vec<_> = range.each().filter(|at| numbers.get(*at).is_some()).collect();
            prop_assert_eq!(found, expected);
            for (page, at) in numbers.each_in(range) {
                prop_assert_eq!(numbers.get(at), Some(page));
            }
        }
    }
}
