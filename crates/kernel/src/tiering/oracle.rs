//! `oracle`: clairvoyant placement, a bound.
//!
//! At the start of each phase it is told how often every page will be referenced in it and puts
//! the pages of most references per frame into the fast node, free of charge: no policy that keeps
//! a page where it is throughout a phase has a higher share of references to fast memory. Not a
//! policy anyone can run; it says how far each of the others is from the limit. One that moves a
//! page before the reference that asked for it is over (TPP) may have a higher share, at the price
//! of those moves.

use super::{Memory, Named, NodeId, Page, Policy};

/// The registry's entry.
pub static POLICY: Named = Named {
    what: "clairvoyant placement at the start of each phase, free of charge: a bound",
    foresees: true,
    knobs: Vec::new,
    make: |_| Ok(Box::new(Oracle)),
};

/// Places by the future.
#[derive(Debug)]
pub struct Oracle;

impl Policy for Oracle {
    fn write_fault(&mut self, mem: &mut dyn Memory, page: Page) {
        let _ = mem.unprotect(page);
    }

    fn foresee(&mut self, mem: &mut dyn Memory, counts: &[u32]) {
        let mut mappings = Vec::new();
        for number in 0..mem.pages() {
            let page = Page::new(number);
            if mem.mapped(page) {
                let (from, span) = (page.index(), mem.span(page));
                let inner = counts.get(from..from + span as usize).unwrap_or_default();
                let sum: u64 = inner.iter().map(|count| u64::from(*count)).sum();
                mappings.push((sum / u64::from(span), page, span));
            }
        }
        // Among equals those that are there already, so that they do not move.
        mappings.sort_unstable_by_key(|(heat, page, _)| {
            (std::cmp::Reverse(*heat), mem.node_of(*page), *page)
        });
        // Keep room to swap through: a frame or huge page of the fast node may have to stay free.
        let mut room = mem.capacity(NodeId::FAST);
        let mut wanted = Vec::new();
        let mut unwanted = Vec::new();
        for (heat, page, span) in mappings {
            let fits = heat > 0 && room >= u64::from(span);
            if fits {
                room -= u64::from(span);
            }
            match (fits, mem.node_of(page) == NodeId::FAST) {
                (true, false) => wanted.push(page),
                // The coldest are given up first, and only as far as needed.
                (false, true) => unwanted.push(page),
                _ => {}
            }
        }
        for page in wanted {
            while mem.move_page(page, NodeId::FAST).is_err() {
                let Some(victim) = unwanted.pop() else { return };
                let down = NodeId::all(mem.nodes()).skip(1);
                if !down.into_iter().any(|node| mem.move_page(victim, node).is_ok()) {
                    return;
                }
            }
        }
    }
}
