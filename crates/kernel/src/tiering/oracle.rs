//! `oracle`: clairvoyant placement, an upper bound.
//!
//! At the start of each phase, it places the pages with most references per frame in that phase in
//! the fast node, at no cost. Only a policy that moves pages within a phase can have a higher share of
//! references to fast memory, such as TPP, which moves a page before the faulting reference completes.

use std::cmp::Reverse;

use super::pages::PageSet;
use super::{Memory, NodeId, Page, Policy, PolicyEntry, Refused};

pub static POLICY: PolicyEntry = PolicyEntry {
    what: "best placement at the start of each phase, at no cost: an upper bound",
    follows: "",
    leaves_out: "",
    not_for: "anything but comparison: no kernel knows the future",
    foresees: true,
    knobs: Vec::new,
    make: |_, mem| Ok((Box::new(Oracle { chosen: PageSet::new(mem.page_limit()) }), Vec::new())),
};

#[derive(Debug)]
pub struct Oracle {
    /// Pages chosen for the fast node, mapped or not.
    chosen: PageSet,
}

impl Policy for Oracle {
    fn place(&mut self, mem: &dyn Memory, page: Page, frames: u32) -> NodeId {
        let room = |node: &NodeId| mem.free(*node) >= u64::from(frames);
        let first = usize::from(!self.chosen.is_empty() && !self.chosen.contains(page));
        NodeId::all(mem.nodes()).skip(first).find(room).unwrap_or(NodeId::FAST)
    }

    // A chosen page number stays chosen: it may be mapped again.
    fn released(&mut self, _: &mut dyn Memory, _: Page, _: u32) {}

    fn foresee(&mut self, mem: &mut dyn Memory, counts: &[u32]) {
        // Pages with less than one reference per frame are never chosen, only evicted.
        let (mut heat, mut cold) = (Vec::new(), Vec::new());
        let mut number = 0;
        while (number as usize) < counts.len() {
            let page = Page::new(number);
            let mapped = mem.mapped(page);
            let span = if mapped { mem.span(page) } else { 1 };
            let inner = counts.get(page.index()..page.index() + span as usize).unwrap_or_default();
            let sum: u64 = inner.iter().map(|count| u64::from(*count)).sum();
            let in_fast = mapped && mem.node_of(page) == NodeId::FAST;
            match sum / u64::from(span) {
                0 if in_fast => cold.push(page),
                0 => {}
                // Of equal pages, those already in the fast node come first, to avoid moves.
                mean => heat.push((Reverse(mean), !in_fast, page, span)),
            }
            number += span;
        }
        heat.sort_unstable();
        self.chosen = PageSet::new(mem.page_limit());
        let mut room = mem.capacity(NodeId::FAST);
        let (mut wanted, mut unwanted) = (Vec::new(), Vec::new());
        for (_, elsewhere, page, span) in heat {
            if room >= u64::from(span) {
                room -= u64::from(span);
                self.chosen.insert(page);
                if elsewhere && mem.mapped(page) {
                    wanted.push(page);
                }
            } else if !elsewhere {
                unwanted.push(page);
            }
        }
        // The coldest pages are evicted first.
        unwanted.extend(cold);
        let down = |mem: &mut dyn Memory, page: Page| {
            NodeId::all(mem.nodes()).skip(1).any(|node| mem.move_page(page, node).is_ok())
        };
        for page in wanted {
            // If the node is full, evict a victim first; pages that cannot be moved stay.
            while mem.move_page(page, NodeId::FAST) == Err(Refused::NoFrame) {
                let Some(victim) = unwanted.pop() else { return };
                if !down(mem, victim) {
                    return;
                }
            }
        }
        // Free frames for chosen pages that are not mapped yet.
        let room = unmapped_chosen(mem, &self.chosen, counts.len() as u32);
        while mem.free(NodeId::FAST) < room {
            let Some(victim) = unwanted.pop() else { return };
            if !down(mem, victim) {
                return;
            }
        }
    }
}

/// Number of chosen pages that are not mapped.
fn unmapped_chosen(mem: &dyn Memory, chosen: &PageSet, numbers: u32) -> u64 {
    (0..numbers).map(Page::new).filter(|p| chosen.contains(*p) && !mem.mapped(*p)).count() as u64
}

#[cfg(test)]
mod tests {
    use super::super::testing::{COSTS, ReferenceMemory};
    use super::super::{Memory, NodeId, Page, Settings};

    #[test]
    fn puts_the_most_referenced_into_the_fast_node() {
        let mut memory = ReferenceMemory::new(COSTS, &[4, 12], 12, /* huge: */ false);
        let mut policy = memory.start("oracle", &Settings::default()).unwrap();
        for page in 0..12 {
            memory.access(&mut *policy, Page::new(page), /* write: */ false).unwrap();
        }
        let counts: Vec<u32> = (0..12).map(|page| page * 7 % 12).collect();
        policy.foresee(&mut memory, &counts);
        memory.check().unwrap();
        let mut fast: Vec<u32> = (0..12u32)
            .filter(|page| memory.node_of(Page::new(*page)) == NodeId::FAST)
            .map(|page| counts[page as usize])
            .collect();
        fast.sort_unstable();
        assert_eq!(fast, [8, 9, 10, 11]);
    }
}
