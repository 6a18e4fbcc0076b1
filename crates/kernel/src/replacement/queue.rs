//! Queues of pages that enter at one end and mostly leave at the other. Neighbours in a queue lie side by
//! side, so what is known of the pages that leave soon can be asked for in time; the links of a list
//! ([`nearfar_hardware::list`]) come from memory one after the other.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

use nearfar_hardware::table::{grow, prefetch};

use super::AccessBits;

/// Stands where a page was taken out of the midst of a queue.
const GONE: u32 = u32::MAX;

/// Pages gone from which on a queue is packed, if they are more than those that are left.
const LOOSE: usize = 64;

/// Places before whose turn it pays to ask for what is known of a page.
const AHEAD: usize = 16;

/// One queue.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    /// Oldest first; neither end is [`GONE`].
    pages: VecDeque<u32>,
    /// Place of the oldest. Places are counted modulo 2^32.
    first: u32,
    gone: usize,
}

impl Queue {
    /// How many pages are in it.
    #[inline]
    pub fn len(&self) -> u64 {
        (self.pages.len() - self.gone) as u64
    }

    /// Whether no page is in it.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// How many places it has, from that of the oldest page to that of the newest.
    #[inline]
    pub fn places(&self) -> usize {
        self.pages.len()
    }

    /// The page in a place; those of the oldest ones come first.
    #[inline]
    pub fn at(&self, place: usize) -> Option<u32> {
        self.pages.get(place).copied().filter(|&page| page != GONE)
    }

    /// Take out the oldest page.
    #[inline]
    fn pop(&mut self) -> Option<u32> {
        let page = self.pages.pop_front()?;
        self.first = self.first.wrapping_add(1);
        if self.gone > 0 {
            self.trim();
        }
        Some(page)
    }

    fn trim(&mut self) {
        while self.pages.front() == Some(&GONE) {
            self.pages.pop_front();
            self.first = self.first.wrapping_add(1);
            self.gone -= 1;
        }
        while self.pages.back() == Some(&GONE) {
            self.pages.pop_back();
            self.gone -= 1;
        }
    }
}

/// What is known of a page: flags, and its place in its queue, or a time while it is in none.
#[derive(Clone, Copy, Debug, Default)]
struct Node {
    flags: u16,
    high: u16,
    low: u32,
}

/// Pages from 0, each of which is in at most one of any number of [`Queue`]s. Each has flags, 0 at first:
/// `pages[page]`; which queue it is in is the caller's to know. One that is in none has a time in place
/// of the place there, 0 at first.
#[derive(Clone, Debug, Default)]
pub struct Pages {
    nodes: Vec<Node>,
}

impl Pages {
    /// Let there be pages up to this one; those that are new are in no queue.
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

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Ask for what is known of a page, which is needed soon.
    #[inline]
    pub fn prefetch(&self, page: u32) {
        prefetch(&self.nodes, page as usize);
    }

    /// Ask for what is known of the page whose turn comes a while after that of this place; answers it.
    #[inline]
    pub fn expect_after(&self, queue: &Queue, place: usize, bits: &impl AccessBits) -> Option<u32> {
        let page = queue.at(place + AHEAD)?;
        self.prefetch(page);
        bits.expect(page);
        Some(page)
    }

    /// Take out the oldest page, and ask for one whose turn comes in a while.
    #[inline]
    pub fn pop(&self, queue: &mut Queue, bits: &impl AccessBits) -> Option<u32> {
        self.expect_after(queue, 0, bits);
        queue.pop()
    }

    /// The time of a page that is in no queue, and was in none since it was set.
    #[inline]
    pub fn time(&self, page: u32) -> u64 {
        let Node { high, low, .. } = self.nodes[page as usize];
        u64::from(high) << u32::BITS | u64::from(low)
    }

    /// Give a page that is in no queue a time, below 2^48.
    #[inline]
    pub fn set_time(&mut self, page: u32, time: u64) {
        let node = &mut self.nodes[page as usize];
        (node.high, node.low) = ((time >> u32::BITS) as u16, time as u32);
    }

    /// A page that is in no queue has no flags and no time from now on.
    pub fn forget(&mut self, page: u32) {
        if let Some(node) = self.nodes.get_mut(page as usize) {
            *node = Node::default();
        }
    }

    /// Put a page that is in no queue into one, as its newest.
    #[inline]
    pub fn push(&mut self, queue: &mut Queue, page: u32) {
        if queue.gone > LOOSE && 2 * queue.gone > queue.pages.len() {
            self.pack(queue);
        }
        self.nodes[page as usize].low = queue.first.wrapping_add(queue.pages.len() as u32);
        queue.pages.push_back(page);
    }

    #[cold]
    fn pack(&mut self, queue: &mut Queue) {
        queue.pages.retain(|&page| page != GONE);
        (queue.first, queue.gone) = (0, 0);
        for (place, &page) in (0..).zip(&queue.pages) {
            self.nodes[page as usize].low = place;
        }
    }

    /// Take a page out of the queue that it is in.
    #[inline]
    pub fn remove(&mut self, queue: &mut Queue, page: u32) {
        let place = self.nodes[page as usize].low.wrapping_sub(queue.first);
        queue.pages[place as usize] = GONE;
        queue.gone += 1;
        if place == 0 || place as usize + 1 == queue.pages.len() {
            queue.trim();
        }
    }
}

impl Index<u32> for Pages {
    type Output = u16;

    #[inline]
    fn index(&self, page: u32) -> &u16 {
        &self.nodes[page as usize].flags
    }
}

impl IndexMut<u32> for Pages {
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
        /// Three queues over one set of pages, against deques, oldest first.
        #[test]
        fn equals_deques(
            first in prop::sample::select(vec![0, u32::MAX - 20]),
            steps in prop::collection::vec((0u32..200, 0usize..3, 0u8..4), 1..2000),
        ) {
            let mut pages = Pages::default();
            let mut queues = [(); 3].map(|()| Queue { first, ..Queue::default() });
            let mut deques: [VecDeque<u32>; 3] = Default::default();
            for (step, (page, to, what)) in (1..).zip(steps) {
                pages.grow(page);
                let from = deques.iter().position(|deque| deque.contains(&page));
                if what == 0 {
                    prop_assert_eq!(queues[to].pop(), deques[to].pop_front());
                } else if let Some(from) = from {
                    pages.remove(&mut queues[from], page);
                    deques[from].retain(|other| *other != page);
                    pages.set_time(page, step << 20);
                }
                if what > 1 && !deques.iter().any(|deque| deque.contains(&page)) {
                    pages.push(&mut queues[to], page);
                    deques[to].push_back(page);
                    pages[page] = step as u16;
                    prop_assert_eq!(pages[page], step as u16);
                    prop_assert!(queues[to].pages.len() <= 2 * deques[to].len() + LOOSE + 1);
                } else if what == 1 && from.is_some() {
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
