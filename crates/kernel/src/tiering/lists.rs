//! The kernel's page lists: an active and an inactive one for each node, two-touch activation,
//! and the batch (pagevec) through which activations pass.
//!
//! Follows Linux 5.13: `mm/swap.c`, `mark_page_accessed` (the first mark sets PG_referenced, the
//! second clears it and queues the page for activation) and `activate_page` (a per-processor
//! pagevec of 15, duplicates allowed, applied when it is full or drained). Generations (MGLRU) and
//! file pages are left out. 12 bytes a page, together: a page taken off a list is one look into
//! memory for itself and one for each neighbour.

use super::Page;

const NONE: u32 = u32::MAX;
const ACTIVE: u8 = 1;
/// Bits 1 to 3: 0 for no list, else the node's number + 1.
const NODE: u8 = 0b1110;
const REFERENCED: u8 = 1 << 4;

#[derive(Clone, Copy, Debug)]
struct List {
    newest: u32,
    oldest: u32,
    frames: u64,
}

const EMPTY: List = List { newest: NONE, oldest: NONE, frames: 0 };

/// What a page knows of its list.
#[derive(Clone, Copy, Debug)]
struct Links {
    newer: u32,
    older: u32,
    flags: u8,
}

/// The lists of all nodes.
#[derive(Clone, Debug)]
pub struct Lists {
    links: Vec<Links>,
    /// By node x 2 + active.
    lists: Vec<List>,
    batch: Vec<(Page, u32)>,
    batch_size: usize,
}

impl Lists {
    /// Empty lists for page numbers below `pages` on `nodes` nodes (at most 7); activations are
    /// applied `batch_size` at a time.
    pub fn new(pages: u32, nodes: u8, batch_size: usize) -> Self {
        Self {
            links: vec![Links { newer: NONE, older: NONE, flags: 0 }; pages as usize],
            lists: vec![EMPTY; usize::from(nodes) * 2],
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
        let oldest = self.lists[usize::from(node) * 2 + usize::from(active)].oldest;
        (oldest != NONE).then(|| Page::new(oldest))
    }

    /// Whether the page is on an active list.
    pub fn is_active(&self, page: Page) -> bool {
        self.links[page.index()].flags & ACTIVE != 0
    }

    /// PG_referenced.
    pub fn is_referenced(&self, page: Page) -> bool {
        self.links[page.index()].flags & REFERENCED != 0
    }

    /// Set or clear PG_referenced.
    pub fn set_referenced(&mut self, page: Page, on: bool) {
        let flags = &mut self.links[page.index()].flags;
        *flags = *flags & !REFERENCED | if on { REFERENCED } else { 0 };
    }

    /// Put a page of `span` frames that is on no list at the young end of one.
    pub fn add(&mut self, page: Page, span: u32, node: u8, active: bool) {
        let at = page.number();
        let list = &mut self.lists[usize::from(node) * 2 + usize::from(active)];
        let links = &mut self.links[page.index()];
        debug_assert_eq!(links.flags & NODE, 0, "a page on two lists");
        links.flags = links.flags & REFERENCED | (node + 1) << 1 | u8::from(active);
        links.older = list.newest;
        links.newer = NONE;
        if list.newest == NONE {
            list.oldest = at;
        } else {
            self.links[list.newest as usize].newer = at;
        }
        list.newest = at;
        list.frames += u64::from(span);
    }

    /// Take a page of `span` frames off its list; whether it was on one.
    pub fn remove(&mut self, page: Page, span: u32) -> bool {
        let Links { newer, older, flags } = self.links[page.index()];
        let Some(node) = (flags & NODE).checked_sub(1 << 1) else { return false };
        let list = &mut self.lists[usize::from(node) + usize::from(flags & ACTIVE)];
        if newer == NONE {
            list.newest = older;
        } else {
            self.links[newer as usize].older = older;
        }
        if older == NONE {
            list.oldest = newer;
        } else {
            self.links[older as usize].newer = newer;
        }
        list.frames -= u64::from(span);
        self.links[page.index()].flags = flags & REFERENCED;
        true
    }

    /// Move a page to the young end of a list of the node it is listed on.
    pub fn relist(&mut self, page: Page, span: u32, active: bool) {
        if let Some(node) = (self.links[page.index()].flags & NODE).checked_sub(1 << 1) {
            self.remove(page, span);
            self.add(page, span, node >> 1, active);
        }
    }

    /// The page was used, as `mark_page_accessed` is told: the second time it is queued for
    /// activation.
    pub fn mark_accessed(&mut self, page: Page, span: u32) {
        if !self.is_referenced(page) {
            self.set_referenced(page, true);
        } else if !self.is_active(page) {
            self.set_referenced(page, false);
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
