//! Doubly linked lists of indices, with all links in one table: moves take constant time and no
//! allocation.

use std::ops::{Index, IndexMut};

use crate::table::{on_huge_pages, prefetch};

/// The links of an index in its list, and a word for the caller. A link is an index + 1, or 0 for
/// none: a table of zeros is allocated without writing to it.
type Node = [u32; 3];
const NEWER: usize = 0;
const OLDER: usize = 1;
const WORD: usize = 2;

/// One list: links to its ends.
#[derive(Clone, Copy, Debug, Default)]
pub struct List {
    newest: u32,
    oldest: u32,
}

impl List {
    /// The index that was added first.
    #[inline]
    pub fn oldest(&self) -> Option<u32> {
        self.oldest.checked_sub(1)
    }

    /// The index that was added last.
    #[inline]
    pub fn newest(&self) -> Option<u32> {
        self.newest.checked_sub(1)
    }
}

/// The links of indices, each in at most one [`List`], which the caller must know. `links[index]` is a
/// word for the caller, initially 0, stored next to the links.
#[derive(Clone, Debug, Default)]
pub struct Links {
    nodes: Vec<Node>,
}

impl Links {
    /// Create indices below `count`, which must be below 2^32 - 1, in no list.
    pub fn new(count: usize) -> Self {
        Self { nodes: on_huge_pages(vec![Node::default(); count]) }
    }

    /// Resize to indices below `count`. New ones are in no list.
    pub fn resize(&mut self, count: usize) {
        self.nodes.resize(count, Node::default());
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The index that was added to the same list just after this one.
    #[inline]
    pub fn newer(&self, index: u32) -> Option<u32> {
        self.nodes[index as usize][NEWER].checked_sub(1)
    }

    /// Prefetch the links and word of an index.
    #[inline]
    pub fn prefetch(&self, index: u32) {
        prefetch(&self.nodes, index as usize);
    }

    /// Prefetch the neighbours of an index, which will soon be removed from its list.
    #[inline]
    pub fn prefetch_neighbours(&self, index: u32) {
        let [newer, older, _] = self.nodes[index as usize];
        [newer, older]
            .into_iter()
            .filter_map(|link| link.checked_sub(1))
            .for_each(|at| self.prefetch(at));
    }

    /// Add an index that is in no list to `list`, as its newest.
    #[inline]
    pub fn push(&mut self, list: &mut List, index: u32) {
        let older = std::mem::replace(&mut list.newest, index + 1);
        let node = &mut self.nodes[index as usize];
        (node[NEWER], node[OLDER]) = (0, older);
        match older.checked_sub(1) {
            Some(older) => self.nodes[older as usize][NEWER] = index + 1,
            None => list.oldest = index + 1,
        }
    }

    /// Remove an index from `list`, which must contain it.
    #[inline]
    pub fn remove(&mut self, list: &mut List, index: u32) {
        let [newer, older, _] = self.nodes[index as usize];
        match newer.checked_sub(1) {
            Some(newer) => self.nodes[newer as usize][OLDER] = older,
            None => list.newest = older,
        }
        match older.checked_sub(1) {
            Some(older) => self.nodes[older as usize][NEWER] = newer,
            None => list.oldest = newer,
        }
    }

    /// Remove the oldest index.
    #[inline]
    pub fn pop(&mut self, list: &mut List) -> Option<u32> {
        let oldest = list.oldest()?;
        self.remove(list, oldest);
        Some(oldest)
    }
}

impl Index<u32> for Links {
    type Output = u32;

    #[inline]
    fn index(&self, index: u32) -> &u32 {
        &self.nodes[index as usize][WORD]
    }
}

impl IndexMut<u32> for Links {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut u32 {
        &mut self.nodes[index as usize][WORD]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lists_that_share_links_equal_deques(steps in prop::collection::vec((0u32..40, 0usize..3, any::<bool>()), 1..300)) {
            let mut links = Links::new(10);
            let mut lists = [List::default(); 3];
            let mut deques: [VecDeque<u32>; 3] = Default::default();
            for (step, (index, to, pop)) in (0..).zip(steps) {
                if index as usize >= links.len() {
                    links.resize(index as usize + 1);
                }
                if pop {
                    prop_assert_eq!(links.pop(&mut lists[to]), deques[to].pop_front());
                } else {
                    let from = deques.iter().position(|deque| deque.contains(&index));
                    if let Some(from) = from {
                        links.remove(&mut lists[from], index);
                        deques[from].retain(|other| *other != index);
                    }
                    links.push(&mut lists[to], index);
                    deques[to].push_back(index);
                    links[index] = step;
                    prop_assert_eq!(links[index], step);
                }
                for (list, deque) in lists.iter().zip(&deques) {
                    prop_assert_eq!(list.oldest(), deque.front().copied());
                    prop_assert_eq!(list.newest(), deque.back().copied());
                    let order = std::iter::successors(list.oldest(), |index| links.newer(*index));
                    prop_assert_eq!(order.collect::<VecDeque<_>>(), deque.clone());
                }
            }
        }
    }
}
