//! Linux's two lists, as `mm/vmscan.c` and `mm/workingset.c` of 6.x treat mapped anonymous memory.
//!
//! New pages enter at the head of the inactive list. Reclaim looks at the inactive tail: a page
//! referenced since it was last looked at is marked and given another round (first time) or
//! activated (second time: the two-touch rule of `folio_check_references`); an unreferenced one is
//! evicted. When the inactive list is too short for the active one (`inactive_is_low`: active >
//! inactive x sqrt(10 x memory in GiB), at least 1), pages go from the active tail to the inactive
//! head with their bit cleared. A page that returns within a refault distance of the active list's
//! size is activated at once (`workingset_refault`).
//!
//! Left out, as a trace has no such thing: memory cgroups, the split between file and anonymous
//! memory, batches of 32 pages, several reclaimers. Do not use it for multi-generational LRU
//! kernels (`CONFIG_LRU_GEN`).

use super::{AccessBits, Replacement};

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    newer: u32,
    older: u32,
    list: List,
    /// `PG_referenced`: it was found referenced once while inactive.
    marked: bool,
    /// Eviction count + 1 when it was last evicted, 0 if never: the shadow entry.
    evicted_at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum List {
    Out,
    Inactive,
    Active,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    head: u32,
    tail: u32,
    length: u64,
}

/// The active and inactive lists over a fixed number of frames.
#[derive(Clone, Debug)]
pub struct TwoList {
    frames: u64,
    nodes: Vec<Node>,
    inactive: Ends,
    active: Ends,
    evictions: u64,
    ratio: u64,
}

impl TwoList {
    fn ends(&mut self, list: List) -> &mut Ends {
        if list == List::Active { &mut self.active } else { &mut self.inactive }
    }

    fn push_head(&mut self, page: u32, list: List) {
        let head = self.ends(list).head;
        let node = &mut self.nodes[page as usize];
        (node.newer, node.older, node.list) = (NONE, head, list);
        if head != NONE {
            self.nodes[head as usize].newer = page;
        }
        let ends = self.ends(list);
        ends.head = page;
        if ends.tail == NONE {
            ends.tail = page;
        }
        ends.length += 1;
    }

    fn take_tail(&mut self, list: List) -> u32 {
        let page = self.ends(list).tail;
        let newer = self.nodes[page as usize].newer;
        if newer != NONE {
            self.nodes[newer as usize].older = NONE;
        }
        let ends = self.ends(list);
        ends.tail = newer;
        if newer == NONE {
            ends.head = NONE;
        }
        ends.length -= 1;
        page
    }

    fn balance(&mut self, bits: &mut impl AccessBits) {
        while self.active.length > 0 && self.inactive.length * self.ratio < self.active.length {
            let page = self.take_tail(List::Active);
            bits.clear(page);
            self.nodes[page as usize].marked = false;
            self.push_head(page, List::Inactive);
        }
    }

    fn evict(&mut self, bits: &mut impl AccessBits) -> u32 {
        loop {
            self.balance(bits);
            // balance() leaves an inactive page whenever any page is resident.
            let page = self.take_tail(List::Inactive);
            let node = &mut self.nodes[page as usize];
            if bits.test(page) {
                bits.clear(page);
                let again = node.marked;
                node.marked = !again;
                self.push_head(page, if again { List::Active } else { List::Inactive });
                continue;
            }
            self.evictions += 1;
            (node.list, node.marked, node.evicted_at) = (List::Out, false, self.evictions);
            return page;
        }
    }
}

impl Replacement for TwoList {
    fn new(frames: u64, page_bytes: u64) -> Self {
        let gib = (frames.max(1) as u128 * u128::from(page_bytes) >> 30) as u64;
        let ends = Ends { head: NONE, tail: NONE, length: 0 };
        Self {
            frames: frames.max(1),
            nodes: Vec::new(),
            inactive: ends,
            active: ends,
            evictions: 0,
            ratio: if gib == 0 { 1 } else { (10 * gib).isqrt() },
        }
    }

    fn fault(&mut self, page: u32, bits: &mut impl AccessBits) -> Option<u32> {
        if self.nodes.len() <= page as usize {
            let fresh =
                Node { newer: NONE, older: NONE, list: List::Out, marked: false, evicted_at: 0 };
            self.nodes.resize(page as usize + 1, fresh);
        }
        let full = self.inactive.length + self.active.length == self.frames;
        let victim = full.then(|| self.evict(bits));
        let evicted_at = self.nodes[page as usize].evicted_at;
        let refault = evicted_at > 0 && self.evictions - evicted_at <= self.active.length;
        self.push_head(page, if refault { List::Active } else { List::Inactive });
        victim
    }
}
