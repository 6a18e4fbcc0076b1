//! Watermarks, and kswapd that demotes from the inactive end of a node's lists.
//!
//! Follows Linux 5.13 `mm/vmscan.c` for anonymous pages without swap, with the demotion of TPP and
//! NOMAD: batches of 32 from the tail of the inactive list. A page with its accessed bit set stays
//! once (PG_referenced) and is activated the second time; an unreferenced page is demoted. Pages
//! move from the active to the inactive list, regardless of their accessed bit, while the inactive
//! list is smaller than the active one divided by sqrt(10 x size of both in GiB). After two scans of a
//! node without a freed page, kswapd sleeps until it is woken.

use super::generations::{Generations, Step};
use super::knobs::Frames;
use super::lists::Lists;
use super::shares::{is_above, may_demote};
use super::{Context, FRAME, Memory, Next, NodeId, Page, Thread};
use crate::knobs;

knobs! {
    /// Watermarks and lists.
    ReclaimKnobs {
        min_free: Frames = "44MiB" (in tests "4KiB"), "watermark `min` of a node, at most 1/8 of it",
            "Linux 5.13: half of the 88 MiB that khugepaged sets for the four zones of two nodes";
        watermark_scale: f64 = "10", "distance between watermarks `min`, `low` and `high`, in 1/10000 of the node",
            "Linux 5.13, sysctl watermark_scale_factor";
        demote_scale: f64 = "1000", "free share of the fast node that kswapd aims at, in 1/10000; 0 (default of autonuma, colloid): `high` plus the distance of `watermark_scale`",
            "NOMAD's runs set demote_scale_factor to 1000, TPP's default is 200";
        pagevec: u64 = "15" (in tests "3"), "activations of pages that are applied together", "Linux 5.13, PAGEVEC_SIZE";
        batch: u64 = "32", "pages that kswapd isolates at a time", "Linux 5.13, SWAP_CLUSTER_MAX";
    }
}

/// The knob `min_free` as Linux sets it for a single node of this size in bytes (`mm/page_alloc.c`,
/// `calculate_min_free_kbytes`).
pub fn default_min_free(node: u64) -> (&'static str, String) {
    let kib = ((node / 1024) as f64 * 16.0).sqrt() as u64;
    ("min_free", format!("{}KiB", kib.clamp(128, 256 << 10)))
}

/// Watermarks of one node, in free frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Below it, allocation requires reclaim.
    pub min: u64,
    /// Below it, kswapd works on the slowest node; with a `demote_scale` of 0, it is woken for any node.
    pub low: u64,
    /// New pages, and pages that a hint fault moves, leave this free.
    pub high: u64,
    /// Up to this, kswapd demotes pages if there is a slower node.
    pub demote: u64,
    /// Below it, kswapd begins to demote.
    pub wake: u64,
}

/// Lists and watermarks of all nodes.
#[derive(Debug)]
pub struct Reclaim {
    /// The page lists; unused if there are generations.
    pub lists: Lists,
    generations: Option<Generations>,
    marks: Vec<Watermarks>,
    /// Frames scanned since the last one was freed, by node.
    fruitless: Vec<u64>,
    batch: u64,
    kswapd: Thread,
}

/// How kswapd frees frames; policies differ in this.
pub trait Demotion {
    /// Move a page to a slower node. Returns whether it was moved.
    fn demote(&mut self, mem: &mut dyn Memory, page: Page, to: NodeId) -> bool;
    /// Free about `frames` frames of the slowest node. Returns how many were freed.
    fn relieve(&mut self, _mem: &mut dyn Memory, _frames: u64) -> u64 {
        0
    }
}

/// Demotion by a copy.
#[derive(Clone, Copy, Debug)]
pub struct ByCopy {
    /// Whether a demoted page is armed at once, so that its next reference is a hint fault.
    pub arm: bool,
}

impl Demotion for ByCopy {
    fn demote(&mut self, mem: &mut dyn Memory, page: Page, to: NodeId) -> bool {
        let moved = mem.move_page(page, to).is_ok();
        if moved && self.arm {
            arm_demoted(mem, page);
        }
        moved
    }
}

/// Arm a page that was just demoted.
pub fn arm_demoted(mem: &mut dyn Memory, page: Page) {
    // If it cannot be armed now, the scanner will do it.
    let _ = mem.arm_hint(page);
}

impl Reclaim {
    /// Empty lists and the watermarks for `mem`, with a thread kswapd.
    pub fn new(mem: &mut dyn Memory, knobs: &ReclaimKnobs) -> Self {
        let marks = NodeId::all(mem.nodes()).map(|node| {
            let capacity = mem.capacity(node);
            // A tiny node must not consist of watermarks.
            let min = knobs.min_free.0.min(capacity / 8);
            let step = (capacity as f64 * knobs.watermark_scale / 1e4) as u64;
            let step = step.max(min / 4).max(1);
            let high = min + 2 * step;
            let low = min + step;
            let demote = (capacity as f64 * knobs.demote_scale / 1e4) as u64;
            if knobs.demote_scale > 0.0 {
                let demote = demote.max(2 * high);
                return Watermarks { min, low, high, demote, wake: demote };
            }
            // Linux without a demotion watermark: WMARK_PROMO.
            Watermarks { min, low, high, demote: high + step, wake: low }
        });
        let marks: Vec<_> = marks.collect();
        Self {
            lists: Lists::new(mem.page_limit(), mem.nodes(), knobs.pagevec as usize),
            generations: None,
            fruitless: vec![0; marks.len()],
            marks,
            batch: knobs.batch.max(1),
            kswapd: mem.spawn("kswapd", Context::Kernel),
        }
    }

    /// With the multi-generational LRU instead of lists.
    pub fn with_generations(self, mem: &dyn Memory) -> Self {
        Self { generations: Some(Generations::new(mem.page_limit(), mem.nodes())), ..self }
    }

    /// Whether the page is on an active list, or in a young generation.
    pub fn is_active(&self, page: Page) -> bool {
        self.generations
            .as_ref()
            .map_or_else(|| self.lists.is_active(page), |all| all.is_active(page))
    }

    pub fn marks(&self, node: NodeId) -> Watermarks {
        self.marks[node.index()]
    }

    /// Free frames that kswapd aims at.
    pub fn target(&self, mem: &dyn Memory, node: NodeId) -> u64 {
        match node.slower(mem.nodes()) {
            Some(_) => self.marks(node).demote,
            None => self.marks(node).low,
        }
    }

    /// Whether kswapd has something to do on a node.
    pub fn is_short(&self, mem: &dyn Memory, node: NodeId) -> bool {
        mem.free(node) < self.target(mem, node)
    }

    /// Add a new page to the lists of its node.
    pub fn allocated(&mut self, mem: &mut dyn Memory, page: Page) {
        let (span, node) = (mem.span(page), mem.node_of(page));
        match &mut self.generations {
            Some(generations) => generations.add(page, span, node, /* youngest: */ true),
            None => self.lists.add(page, span, node.index() as u8, Lists::INACTIVE),
        }
        self.wake_if_short(mem);
    }

    /// Forget a released page of `span` frames.
    pub fn released(&mut self, page: Page, span: u32) {
        match &mut self.generations {
            Some(generations) => generations.remove(page, span),
            None => self.lists.forget(page, span),
        }
    }

    /// Where to put a new page: as [`Policy::place`](super::Policy::place), keeping `high` free.
    pub fn place(&self, mem: &dyn Memory, frames: u32) -> NodeId {
        NodeId::all(mem.nodes())
            .find(|node| mem.free(*node) >= u64::from(frames) + self.marks(*node).high)
            .unwrap_or(NodeId::FAST)
    }

    /// Add a moved page to the lists of its new node.
    pub fn moved(&mut self, mem: &dyn Memory, page: Page, active: bool) {
        let (span, node) = (mem.span(page), mem.node_of(page));
        if let Some(generations) = &mut self.generations {
            generations.remove(page, span);
            return generations.add(page, span, node, active);
        }
        self.lists.remove(page, span);
        self.lists.add(page, span, node.index() as u8, active);
    }

    /// One batch of kswapd on the fastest node that is short.
    pub fn kswapd(&mut self, mem: &mut dyn Memory, how: &mut dyn Demotion) -> Next {
        let nodes = mem.nodes();
        for node in NodeId::all(nodes) {
            if !self.is_short(mem, node) {
                continue;
            }
            let next = match node.slower(nodes) {
                Some(to) => self.shrink(mem, node, to, how),
                None if how.relieve(mem, self.marks(node).high) > 0 => Next::Again,
                None => Next::Idle,
            };
            if next != Next::Idle {
                return next;
            }
        }
        Next::Idle
    }

    /// Wake kswapd if any node is short.
    pub fn wake_if_short(&self, mem: &mut dyn Memory) {
        let below = |node: NodeId| match node.slower(mem.nodes()) {
            Some(_) => mem.free(node) < self.marks(node).wake,
            None => self.is_short(mem, node),
        };
        if NodeId::all(mem.nodes()).any(below) {
            self.wake(mem);
        }
    }

    /// Free frames that the promotion of a page must leave: `least`. If the page's tenant is above
    /// its fair share, also half of the frames that kswapd keeps free beyond `least`.
    pub fn reserve(&self, mem: &dyn Memory, page: Page, least: u64) -> u64 {
        let most = if is_above(mem, page) { self.marks(NodeId::FAST).demote } else { least };
        (least + most) / 2
    }

    /// Whether a hint fault may move a page to a node (`migrate_balanced_pgdat`). If not, wakes kswapd.
    pub fn has_room(&self, mem: &mut dyn Memory, node: NodeId, page: Page) -> bool {
        let high = self.marks(node).high;
        let left = if node == NodeId::FAST { self.reserve(mem, page, high) } else { high };
        let room = mem.free(node) >= left + u64::from(mem.span(page));
        if !room {
            self.wake(mem);
        }
        room
    }

    /// Wake kswapd.
    pub fn wake(&self, mem: &mut dyn Memory) {
        mem.wake(self.kswapd);
    }

    /// Prefetch the page after the next, in a walk from the tail of a list.
    fn prefetch_after(&self, mem: &dyn Memory, page: Page) {
        let next = self.lists.newer(page).and_then(|next| self.lists.newer(next));
        if let Some(next) = next {
            self.lists.prefetch(next);
            mem.prefetch(next);
        }
    }

    /// One batch of kswapd on a short node; `to` is the next slower one.
    fn shrink(
        &mut self,
        mem: &mut dyn Memory,
        node: NodeId,
        to: NodeId,
        how: &mut dyn Demotion,
    ) -> Next {
        let fruitless = &mut self.fruitless[node.index()];
        if let Some(generations) = &mut self.generations {
            match generations.shrink(mem, node, |mem, page| how.demote(mem, page, to)) {
                Step::Empty => return Next::Idle,
                Step::Freed => *fruitless = 0,
                Step::Scanned(frames) => *fruitless += frames,
            }
            // Twice the bound of lists below; here the walks of aging count as scans too.
            let gives_up = *fruitless > 4 * (mem.capacity(node) - mem.free(node));
            if gives_up {
                *fruitless = 0;
            }
            return if gives_up { Next::Idle } else { Next::Again };
        }
        let on = node.index() as u8;
        self.lists.drain();
        let (active, inactive) =
            (self.lists.frames(on, Lists::ACTIVE), self.lists.frames(on, Lists::INACTIVE));
        let total = active + inactive;
        if self.fruitless[node.index()] > 2 * total {
            self.fruitless[node.index()] = 0;
            return Next::Idle;
        }
        let gib = (total * FRAME) >> 30;
        let ratio = if gib > 0 { (10 * gib).isqrt() } else { 1 };
        if inactive * ratio < active {
            for _ in 0..self.batch {
                let Some(page) = self.lists.oldest(on, Lists::ACTIVE) else { break };
                self.prefetch_after(mem, page);
                mem.clear_accessed(page);
                self.lists.relist(page, mem.span(page), Lists::INACTIVE);
            }
        }
        let mut freed = false;
        for _ in 0..self.batch {
            let Some(page) = self.lists.oldest(on, Lists::INACTIVE) else { break };
            self.prefetch_after(mem, page);
            let span = mem.span(page);
            self.fruitless[node.index()] += u64::from(span);
            let used = mem.clear_accessed(page);
            let referenced = self.lists.is_referenced(page);
            self.lists.set_referenced(page, used);
            if used {
                self.lists.relist(page, span, referenced);
            } else if may_demote(mem, page) && how.demote(mem, page, to) {
                self.moved(mem, page, Lists::INACTIVE);
                freed = true;
            } else {
                self.lists.relist(page, span, Lists::INACTIVE);
            }
        }
        if freed {
            self.fruitless[node.index()] = 0;
        }
        if self.lists.oldest(on, Lists::INACTIVE).is_none()
            && self.lists.oldest(on, Lists::ACTIVE).is_none()
        {
            return Next::Idle;
        }
        Next::Again
    }
}
