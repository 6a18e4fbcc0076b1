//! Queues of pages that mostly leave at the oldest end. A queue is an array, so that the metadata of
//! the next pages can be prefetched; a linked list ([`nearfar_hardware::list`]) would load one link
//! after the other.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

use nearfar_hardware::table::{grow, prefetch};

use super::AccessBits;

/// In place of a page removed from the middle of a queue.
const TOMBSTONE: u32 = u32::MAX;

/// A queue with more tombstones than this is compacted when they outnumber the pages.
const MAX_TOMBSTONES: usize = 64;

/// Distance in the array from a page to the one whose metadata is prefetched.
const AHEAD: usize = 16;

#[derive(Clone, Debug, Default)]
pub struct Queue {
    /// Oldest first; neither end is a [`TOMBSTONE`].
    pages: VecDeque<u32>,
    /// [`Node::low`] of the oldest page; later elements count up from it, modulo 2^32.
    first: u32,
    tombstones: usize,
}

impl Queue {
    #[inline]
    pub fn len(&self) -> u64 {
        (self.pages.len() - self.tombstones) as u64
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Number of places (elements of the array), tombstones included.
    #[inline]
    pub fn places(&self) -> usize {
        self.pages.len()
    }

    /// The page in a place; 0 is the oldest.
    #[inline]
    pub fn at(&self, place: usize) -> Option<u32> {
        self.pages.get(place).copied().filter(|&page| page != TOMBSTONE)
    }

    /// Remove the oldest page.
    #[inline]
    fn pop(&mut self) -> Option<u32> {
        let page = self.pages.pop_front()?;
        self.first = self.first.wrapping_add(1);
        if self.tombstones > 0 {
            self.trim();
        }
        Some(page)
    }

    fn trim(&mut self) {
        while self.pages.front() == Some(&TOMBSTONE) {
            self.pages.pop_front();
            self.first = self.first.wrapping_add(1);
            self.tombstones -= 1;
        }
        while self.pages.back() == Some(&TOMBSTONE) {
            self.pages.pop_back();
            self.tombstones -= 1;
        }
    }
}

/// Flags of a page, and its place in a queue (`low` - [`Queue::first`]) or, outside queues, a time
/// (`high`, `low`).
#[derive(Clone, Copy, Debug, Default)]
struct Node {
    flags: u16,
    high: u16,
    low: u32,
}

/// Metadata of pages, each of which is in at most one [`Queue`]; the caller knows in which.
/// `info[page]` are the page's flags, initially 0. A page outside all queues has a time, initially
/// 0.
#[derive(Clone, Debug, Default)]
pub struct PageInfo {
    nodes: Vec<Node>,
}

impl PageInfo {
    /// Add entries up to `page`; new pages are in no queue.
    #[inline]
    pub fn grow(&mut self, page: u32) {
        if self.nodes.len() <= page as usize {
            self.grow_nodes(page as usize + 1);
        }
    }

    #[cold]
    fn grow_nodes(&mut self, count: usize) {
        grow(&mut self.nodes, count, Node::default());
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    #[inline]
    pub fn prefetch(&self, page: u32) {
        prefetch(&self.nodes, page as usize);
    }

    /// Prefetch the metadata of the page [`AHEAD`] places after `place`. Returns that page.
    #[inline]
    pub fn prefetch_after(
        &self,
        queue: &Queue,
        place: usize,
        bits: &impl AccessBits,
    ) -> Option<u32> {
        let page = queue.at(place + AHEAD)?;
        self.prefetch(page);
        bits.prefetch(page);
        Some(page)
    }

    /// Remove the oldest page, and prefetch one that follows.
    #[inline]
    pub fn pop(&self, queue: &mut Queue, bits: &impl AccessBits) -> Option<u32> {
        self.prefetch_after(queue, 0, bits);
        queue.pop()
    }

    /// The time of a page that has been in no queue since the time was set.
    #[inline]
    pub fn time(&self, page: u32) -> u64 {
        let Node { high, low, .. } = self.nodes[page as usize];
        u64::from(high) << u32::BITS | u64::from(low)
    }

    /// Set the time, below 2^48, of a page that is in no queue.
    #[inline]
    pub fn set_time(&mut self, page: u32, time: u64) {
        let node = &mut self.nodes[page as usize];
        (node.high, node.low) = ((time >> u32::BITS) as u16, time as u32);
    }

    /// Reset flags and time of a page that is in no queue.
    pub fn forget(&mut self, page: u32) {
        if let Some(node) = self.nodes.get_mut(page as usize) {
            *node = Node::default();
        }
    }

    /// Add a page that is in no queue as the newest of `queue`.
    #[inline]
    pub fn push(&mut self, queue: &mut Queue, page: u32) {
        if queue.tombstones > MAX_TOMBSTONES && 2 * queue.tombstones > queue.pages.len() {
            self.compact(queue);
        }
        self.nodes[page as usize].low = queue.first.wrapping_add(queue.pages.len() as u32);
        queue.pages.push_back(page);
    }

    #[cold]
    fn compact(&mut self, queue: &mut Queue) {
        queue.pages.retain(|&page| page != TOMBSTONE);
        (queue.first, queue.tombstones) = (0, 0);
        for (place, &page) in (0..).zip(&queue.pages) {
            self.nodes[page as usize].low = place;
        }
    }

    /// Remove a page from its queue.
    #[inline]
    pub fn remove(&mut self, queue: &mut Queue, page: u32) {
        let place = self.nodes[page as usize].low.wrapping_sub(queue.first);
        queue.pages[place as usize] = TOMBSTONE;
        queue.tombstones += 1;
        if place == 0 || place as usize + 1 == queue.pages.len() {
            queue.trim();
        }
    }
}

impl Index<u32> for PageInfo {
    type Output = u16;

    #[inline]
    fn index(&self, page: u32) -> &u16 {
        &self.nodes[page as usize].flags
    }
}

impl IndexMut<u32> for PageInfo {
    #[inline]
    fn index_mut(&mut self, page: u32) -> &mut u16 {
        &mut self.nodes[page as usize].flags
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// `Queue::first` may wrap around. Action 0 pops, 1 removes, others remove and push.
        #[test]
        fn equals_deques(
            first in prop::sample::select(vec![0, u32::MAX - 20]),
            steps in prop::collection::vec((0u32..200, 0usize..3, 0u8..4), 1..2000),
        ) {
            let mut pages = PageInfo::default();
            let mut queues = [(); 3].map(|()| Queue { first, ..Queue::default() });
            let mut deques: [VecDeque<u32>; 3] = Default::default();
            for (step, (page, to, action)) in (1..).zip(steps) {
                pages.grow(page);
                let from = deques.iter().position(|deque| deque.contains(&page));
                if action == 0 {
                    prop_assert_eq!(queues[to].pop(), deques[to].pop_front());
                } else if let Some(from) = from {
                    pages.remove(&mut queues[from], page);
                    deques[from].retain(|other| *other != page);
                    pages.set_time(page, step << 20);
                }
                if action > 1 && !deques.iter().any(|deque| deque.contains(&page)) {
                    pages.push(&mut queues[to], page);
                    deques[to].push_back(page);
                    pages[page] = step as u16;
                    prop_assert_eq!(pages[page], step as u16);
                    prop_assert!(queues[to].pages.len() <= 2 * deques[to].len() + MAX_TOMBSTONES + 1);
                } else if action == 1 && from.is_some() {
                    prop_assert_eq!(pages.time(page), step << 20);
                }
                for (queue, deque) in queues.iter().zip(&deques) {
                    prop_assert_eq!(queue.len(), deque.len() as u64);
                    prop_assert_eq!(queue.is_empty(), deque.is_empty());
                    let placed = (0..queue.places()).filter_map(|place| queue.at(place));
                    prop_assert_eq!(&placed.collect::<VecDeque<_>>(), deque);
                    prop_assert_eq!(queue.at(0), deque.front().copied());
                }
            }
        }
    }
}
