//! The kernel's page lists: an active and an inactive one for each node, two-touch activation,
//! and the batch (pagevec) through which activations pass.
//!
//! Follows Linux 5.13: `mm/swap.c`, `mark_page_accessed` (the first mark sets PG_referenced, the
//! second clears it and queues the page for activation) and `activate_page` (a per-processor
//! pagevec of 15, duplicates allowed, applied when it is full or drained). Generations (MGLRU) and
//! file pages are left out. The links and flags of a page are 12 adjacent bytes: taking it off a list
//! is one cache miss for itself and one for each neighbour.

use nearfar_hardware::list::{self, Links};

use super::Page;

const ACTIVE: u32 = 1;
/// Bits 1 to 3: 0 for no list, else the node's number + 1.
const NODE: u32 = 0b1110;
const REFERENCED: u32 = 1 << 4;

#[derive(Clone, Copy, Debug, Default)]
struct List {
    pages: list::List,
    frames: u64,
}

/// The lists of all nodes.
#[derive(Clone, Debug)]
pub struct Lists {
    /// By page: its list neighbours, and its flags.
    links: Links,
    /// By node x 2 + active.
    lists: Vec<List>,
    batch: Vec<(Page, u32)>,
    batch_size: usize,
}

impl Lists {
    /// Values of the arguments `active`.
    pub const ACTIVE: bool = true;
    pub const INACTIVE: bool = false;

    /// Empty lists for page numbers below `pages` on `nodes` nodes (at most 7); activations are
    /// applied `batch_size` at a time.
    pub fn new(pages: u32, nodes: u8, batch_size: usize) -> Self {
        Self {
            links: Links::new(pages as usize),
            lists: vec![List::default(); usize::from(nodes) * 2],
            batch: Vec::with_capacity(batch_size),
            batch_size: batch_size.max(1),
        }
    }

    /// Frames of the pages on a list.
    pub fn frames(&self, node: u8, active: bool) -> u64 {
        self.lists[usize::from(node) * 2 + usize::from(active)].frames
    }

    /// The page that has been on a list for longest.
    pub fn oldest(&self, node: u8, active: bool) -> Option<Page> {
        self.lists[usize::from(node) * 2 + usize::from(active)].pages.oldest().map(Page::new)
    }

    pub fn prefetch(&self, page: Page) {
        self.links.prefetch(page.number());
    }

    /// Prefetch the list neighbours of a page whose entry is cached.
    pub fn prefetch_neighbours(&self, page: Page) {
        self.links.prefetch_neighbours(page.number());
    }

    /// The page that was added to the same list after this one.
    pub fn newer(&self, page: Page) -> Option<Page> {
        self.links.newer(page.number()).map(Page::new)
    }

    pub fn is_active(&self, page: Page) -> bool {
        self.links[page.number()] & ACTIVE != 0
    }

    /// PG_referenced.
    pub fn is_referenced(&self, page: Page) -> bool {
        self.links[page.number()] & REFERENCED != 0
    }

    pub fn set_referenced(&mut self, page: Page, on: bool) {
        let flags = &mut self.links[page.number()];
        *flags = *flags & !REFERENCED | if on { REFERENCED } else { 0 };
    }

    /// Add a page of `span` frames, which is on no list, to one as its newest page.
    pub fn add(&mut self, page: Page, span: u32, node: u8, active: bool) {
        let list = &mut self.lists[usize::from(node) * 2 + usize::from(active)];
        let flags = &mut self.links[page.number()];
        debug_assert_eq!(*flags & NODE, 0, "a page on two lists");
        *flags = *flags & REFERENCED | u32::from(node + 1) << 1 | u32::from(active);
        self.links.push(&mut list.pages, page.number());
        list.frames += u64::from(span);
    }

    /// The node whose list a page is on.
    fn listed(&self, page: Page) -> Option<u8> {
        let node = (self.links[page.number()] & NODE) >> 1;
        node.checked_sub(1).map(|node| node as u8)
    }

    /// Take a page of `span` frames off its list. Returns whether it was on one.
    pub fn remove(&mut self, page: Page, span: u32) -> bool {
        let Some(node) = self.listed(page) else { return false };
        let flags = self.links[page.number()];
        let list = &mut self.lists[usize::from(node) * 2 + (flags & ACTIVE) as usize];
        self.links.remove(&mut list.pages, page.number());
        list.frames -= u64::from(span);
        self.links[page.number()] = flags & REFERENCED;
        true
    }

    /// Forget a page of `span` frames: its list, flags and queued activation.
    pub fn forget(&mut self, page: Page, span: u32) {
        self.remove(page, span);
        self.links[page.number()] = 0;
        self.batch.retain(|(queued, _)| *queued != page);
    }

    /// Move a page to the young end of a list of its node, if it is on a list.
    pub fn relist(&mut self, page: Page, span: u32, active: bool) {
        if let Some(node) = self.listed(page) {
            self.remove(page, span);
            self.add(page, span, node, active);
        }
    }

    /// The page was used, as with `mark_page_accessed`: the second time it is queued for
    /// activation.
    pub fn mark_accessed(&mut self, page: Page, span: u32) {
        if !self.is_referenced(page) {
            self.set_referenced(page, true);
        } else if !self.is_active(page) {
            self.set_referenced(page, false);
            self.prefetch_neighbours(page);
            self.batch.push((page, span));
            if self.batch.len() >= self.batch_size {
                self.drain();
            }
        }
    }

    /// Apply the queued activations.
    pub fn drain(&mut self) {
        for (page, span) in std::mem::take(&mut self.batch) {
            if !self.is_active(page) {
                self.relist(page, span, true);
            }
        }
    }
}
