//! `oracle`: clairvoyant placement, a bound.
//!
//! At the start of each phase it is told how often every page will be referenced in it and puts
//! the pages of most references per frame into the fast node, free of charge: no policy that keeps
//! a page where it is throughout a phase has a higher share of references to fast memory. Not a
//! policy anyone can run; it says how far each of the others is from the limit. One that moves a
//! page before the reference that asked for it is over (TPP) may have a higher share, at the price
//! of those moves.

use super::pages::PageSet;
use super::{Memory, Named, NodeId, Page, Policy};

/// The registry's entry.
pub static POLICY: Named = Named {
    what: "clairvoyant placement at the start of each phase, free of charge: a bound",
    foresees: true,
    knobs: Vec::new,
    make: |_| Ok(Box::new(Oracle::default())),
};

/// Places by the future.
#[derive(Debug, Default)]
pub struct Oracle {
    /// Pages that belong into the fast node, mapped already or not.
    chosen: PageSet,
}

impl Policy for Oracle {
    fn place(&mut self, mem: &dyn Memory, page: Page, frames: u32) -> NodeId {
        let room = |node: &NodeId| mem.free(*node) >= u64::from(frames);
        let first = usize::from(!self.chosen.is_empty() && !self.chosen.contains(page));
        NodeId::all(mem.nodes()).skip(first).find(room).unwrap_or(NodeId::FAST)
    }

    fn write_fault(&mut self, mem: &mut dyn Memory, page: Page) {
        let _ = mem.unprotect(page);
    }

    fn foresee(&mut self, mem: &mut dyn Memory, counts: &[u32]) {
        let mut heat = Vec::new();
        let mut number = 0;
        while number < mem.pages() {
            let page = Page::new(number);
            let span = if mem.mapped(page) { mem.span(page) } else { 1 };
            let inner = counts.get(page.index()..page.index() + span as usize).unwrap_or_default();
            let sum: u64 = inner.iter().map(|count| u64::from(*count)).sum();
            heat.push((sum / u64::from(span), page, span));
            number += span;
        }
        // Among equals those that are there already, so that they do not move.
        heat.sort_unstable_by_key(|(heat, page, _)| {
            let there = mem.mapped(*page) && mem.node_of(*page) == NodeId::FAST;
            (std::cmp::Reverse(*heat), !there, *page)
        });
        self.chosen = PageSet::new(mem.pages());
        let mut room = mem.capacity(NodeId::FAST);
        let (mut wanted, mut unwanted) = (Vec::new(), Vec::new());
        for (heat, page, span) in heat {
            let fits = heat > 0 && room >= u64::from(span);
            if fits {
                room -= u64::from(span);
                self.chosen.insert(page);
            }
            match (fits, mem.mapped(page), mem.node_of(page) == NodeId::FAST) {
                (true, true, false) => wanted.push(page),
                // The coldest are given up first.
                (false, true, true) => unwanted.push(page),
                _ => {}
            }
        }
        let down = |mem: &mut dyn Memory, page: Page| {
            NodeId::all(mem.nodes()).skip(1).any(|node| mem.move_page(page, node).is_ok())
        };
        for page in wanted {
            while mem.move_page(page, NodeId::FAST).is_err() {
                let Some(victim) = unwanted.pop() else { return };
                if !down(mem, victim) {
                    return;
                }
            }
        }
        // Room for chosen pages that are yet to be mapped.
        let room = room_wanted(mem, &self.chosen);
        while mem.free(NodeId::FAST) < room {
            let Some(victim) = unwanted.pop() else { return };
            if !down(mem, victim) {
                return;
            }
        }
    }
}

/// Frames of chosen pages that are not mapped.
fn room_wanted(mem: &dyn Memory, chosen: &PageSet) -> u64 {
    (0..mem.pages()).map(Page::new).filter(|p| chosen.contains(*p) && !mem.mapped(*p)).count() as u64
}
