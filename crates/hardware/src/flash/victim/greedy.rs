//! The block with the fewest valid pages; among equals, the one that has had as many for longest.

use super::Victims;

const NONE: u32 = u32::MAX;

/// Lists of blocks by valid pages, oldest first: every operation takes constant time but for the
/// search of the first list that is not empty, which starts no lower than the last change.
#[derive(Debug)]
pub struct Greedy {
    lists: Vec<List>,
    links: Vec<Link>,
    least: usize,
}

#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
}

impl Greedy {
    /// No closed block yet, of `blocks` with `pages` each.
    pub fn new(blocks: u32, pages: u32) -> Self {
        Self {
            lists: vec![List { first: NONE, last: NONE }; pages as usize + 1],
            links: vec![Link { before: NONE, after: NONE }; blocks as usize],
            least: pages as usize,
        }
    }

    fn unlink(&mut self, block: u32, valid: usize) {
        let Link { before, after } = self.links[block as usize];
        match before {
            NONE => self.lists[valid].first = after,
            before => self.links[before as usize].after = after,
        }
        match after {
            NONE => self.lists[valid].last = before,
            after => self.links[after as usize].before = before,
        }
    }
}

impl Victims for Greedy {
    fn insert(&mut self, block: u32, valid: u32) {
        let list = &mut self.lists[valid as usize];
        let last = std::mem::replace(&mut list.last, block);
        match last {
            NONE => list.first = block,
            last => self.links[last as usize].after = block,
        }
        self.links[block as usize] = Link { before: last, after: NONE };
        self.least = self.least.min(valid as usize);
    }

    fn invalidated(&mut self, block: u32, valid: u32) {
        self.unlink(block, valid as usize + 1);
        self.insert(block, valid);
    }

    fn take(&mut self) -> Option<u32> {
        let full = self.lists.len() - 1;
        while self.least < full && self.lists[self.least].first == NONE {
            self.least += 1;
        }
        if self.least == full {
            return None;
        }
        let block = self.lists[self.least].first;
        self.unlink(block, self.least);
        Some(block)
    }
}
