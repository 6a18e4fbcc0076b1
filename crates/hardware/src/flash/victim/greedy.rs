//! Selects the block with the fewest valid pages; among equals, the first that reached this number.

use super::Victims;
use crate::list::{Links, List};

/// A list of blocks for each number of valid pages. `least` is a lower bound of the first list that is
/// not empty.
#[derive(Debug)]
pub struct Greedy {
    lists: Vec<List>,
    links: Links,
    least: usize,
}

impl Greedy {
    /// Empty, for `blocks` blocks with `pages` pages each.
    pub fn new(blocks: u32, pages: u32) -> Self {
        Self {
            lists: vec![List::default(); pages as usize + 1],
            links: Links::new(blocks as usize),
            least: pages as usize,
        }
    }
}

impl Victims for Greedy {
    fn insert(&mut self, block: u32, valid: u32) {
        self.links.push(&mut self.lists[valid as usize], block);
        self.least = self.least.min(valid as usize);
    }

    fn invalidated(&mut self, block: u32, valid: u32) {
        self.links.remove(&mut self.lists[valid as usize + 1], block);
        self.insert(block, valid);
    }

    fn take(&mut self) -> Option<u32> {
        let full = self.lists.len() - 1;
        while self.least < full && self.lists[self.least].oldest().is_none() {
            self.least += 1;
        }
        if self.least == full {
            return None;
        }
        self.links.pop(&mut self.lists[self.least])
    }
}
