//! The numbers that a policy knows the program's pages by.
//!
//! Addresses have 36 bits of page number, policies 32, and tables as long as the highest number. So
//! 512 pages that lie together get 512 numbers when the first of them is used, and the numbers are
//! free again when none of them is.

use nearfar_kernel::tiering::{HUGE, Page};
use rustc_hash::FxHashMap;

use crate::{Range, Va};

/// Pages that are numbered together.
const GROUP: u64 = HUGE as u64;

/// Page numbers in use.
#[derive(Debug)]
pub(crate) struct Numbers {
    groups: FxHashMap<u64, u32>,
    /// Of each group: its place, and how many of its pages are held.
    places: Vec<(u64, u32)>,
    free: Vec<u32>,
    limit: u32,
}

impl Numbers {
    /// Numbers below `limit`.
    pub(crate) fn new(limit: u32) -> Self {
        let limit = limit.next_multiple_of(HUGE);
        Self { groups: FxHashMap::default(), places: Vec::new(), free: Vec::new(), limit }
    }

    /// Numbers are below this.
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Numbers that were ever given out are below this.
    pub(crate) fn top(&self) -> u32 {
        self.places.len() as u32 * HUGE
    }

    /// The number of a page, if its group has any.
    pub(crate) fn get(&self, at: Va) -> Option<Page> {
        let group = *self.groups.get(&(at.number() / GROUP))?;
        Some(Page::new(group * HUGE + (at.number() % GROUP) as u32))
    }

    /// The address of a number that was given out.
    pub(crate) fn place(&self, page: Page) -> Va {
        let (place, _) = self.places[page.index() / HUGE as usize];
        Va::new(place * GROUP + u64::from(page.number() % HUGE))
    }

    /// Call `act` with each number whose page is in `range`, held or not, in order of groups.
    pub(crate) fn each_in(&self, range: Range, mut act: impl FnMut(Page, Va)) {
        let (first, last) = (range.from.number() / GROUP, range.to.number().div_ceil(GROUP));
        let mut of_group = |place: u64, group: u32| {
            let from = range.from.number().max(place * GROUP);
            let to = range.to.number().min((place + 1) * GROUP);
            for number in from..to {
                act(Page::new(group * HUGE + (number % GROUP) as u32), Va::new(number));
            }
        };
        if last.saturating_sub(first) > self.groups.len() as u64 {
            let inside = |(place, _): &(&u64, &u32)| (first..last).contains(*place);
            let mut groups: Vec<_> = self.groups.iter().filter(inside).collect();
            groups.sort_unstable();
            groups.into_iter().for_each(|(place, group)| of_group(*place, *group));
        } else {
            for place in first..last {
                if let Some(group) = self.groups.get(&place) {
                    of_group(place, *group);
                }
            }
        }
    }

    /// The number of a page, which is held until [`release`](Numbers::release); `None` if there are
    /// no more.
    pub(crate) fn hold(&mut self, at: Va) -> Option<Page> {
        let place = at.number() / GROUP;
        let group = match self.groups.get(&place) {
            Some(group) => *group,
            None => {
                let group = match self.free.pop() {
                    Some(group) => group,
                    None if (self.places.len() as u32) < self.limit / HUGE => {
                        self.places.push((0, 0));
                        self.places.len() as u32 - 1
                    }
                    None => return None,
                };
                self.places[group as usize] = (place, 0);
                self.groups.insert(place, group);
                group
            }
        };
        self.places[group as usize].1 += 1;
        Some(Page::new(group * HUGE + (at.number() % GROUP) as u32))
    }

    /// The page of this number is not held any more.
    pub(crate) fn release(&mut self, page: Page) {
        let group = page.number() / HUGE;
        let (place, held) = &mut self.places[group as usize];
        *held -= 1;
        if *held == 0 {
            self.groups.remove(place);
            self.free.push(group);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Each held page has one number, each number one page; there are numbers for as many groups
        /// as the limit has.
        #[test]
        fn numbers_go_both_ways(steps in prop::collection::vec((0..6u64, 0..GROUP, any::<bool>()), 0..200)) {
            let mut numbers = Numbers::new(4 * HUGE);
            let mut held = BTreeSet::new();
            for (group, page, hold) in steps {
                let at = Va::new(group * (1 << 20) * GROUP + page);
                if !hold {
                    if held.remove(&at) {
                        let page = numbers.get(at).unwrap();
                        numbers.release(page);
                    }
                } else if !held.contains(&at) {
                    let groups: BTreeSet<_> = held.iter().map(|at: &Va| at.number() / GROUP).collect();
                    let room = groups.len() < 4 || groups.contains(&(at.number() / GROUP));
                    prop_assert_eq!(numbers.hold(at).is_some(), room);
                    if room {
                        held.insert(at);
                    }
                }
                for at in &held {
                    let page = numbers.get(*at).unwrap();
                    prop_assert_eq!(numbers.place(page), *at);
                    prop_assert!(page.number() < numbers.limit());
                }
            }
        }
    }
}
