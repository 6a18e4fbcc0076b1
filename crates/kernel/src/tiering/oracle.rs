//! `oracle`: clairvoyant placement, a bound.
//!
//! At the start of each phase it learns how often every page will be referenced in it and puts
//! the pages of most references per frame into the fast node, free of charge: no policy that keeps
//! a page where it is throughout a phase has a higher share of references to fast memory. Not a
//! policy anyone can run; it says how far each of the others is from the limit. One that moves a
//! page before the reference that asked for it is over (TPP) may have a higher share, at the price
//! of those moves.

use std::cmp::Reverse;

use super::pages::PageSet;
use super::{Memory, Named, NodeId, Page, Policy, Refused};

/// The registry's entry.
pub static POLICY: Named = Named {
    what: "best placement at the start of each phase, at no cost: an upper bound",
    follows: "",
    leaves_out: "",
    not_for: "anything but comparison: no kernel knows the future",
    foresees: true,
    knobs: Vec::new,
    make: |_, mem| Ok((Box::new(Oracle { chosen: PageSet::new(mem.page_limit()) }), Vec::new())),
};

/// Places by the future.
#[derive(Debug)]
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

    // What is foretold of a number holds for the page that it becomes.
    fn released(&mut self, _: &mut dyn Memory, _: Page, _: u32) {}

    fn foresee(&mut self, mem: &mut dyn Memory, counts: &[u32]) {
        // What is not referenced is not chosen: it matters only where it is in the way.
        let (mut heat, mut cold) = (Vec::new(), Vec::new());
        let mut number = 0;
        while (number as usize) < counts.len() {
            let page = Page::new(number);
            let mapped = mem.mapped(page);
            let span = if mapped { mem.span(page) } else { 1 };
            let inner = counts.get(page.index()..page.index() + span as usize).unwrap_or_default();
            let sum: u64 = inner.iter().map(|count| u64::from(*count)).sum();
            let there = mapped && mem.node_of(page) == NodeId::FAST;
            match sum / u64::from(span) {
                0 if there => cold.push(page),
                0 => {}
                // Among equals those that are there already, so that they do not move.
                mean => heat.push((Reverse(mean), !there, page, span)),
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
        // The coldest are given up first.
        unwanted.extend(cold);
        let down = |mem: &mut dyn Memory, page: Page| {
            NodeId::all(mem.nodes()).skip(1).any(|node| mem.move_page(page, node).is_ok())
        };
        for page in wanted {
            // A page that cannot be moved stays; one without room needs a victim.
            while mem.move_page(page, NodeId::FAST) == Err(Refused::NoFrame) {
                let Some(victim) = unwanted.pop() else { return };
                if !down(mem, victim) {
                    return;
                }
            }
        }
        // Room for chosen pages that are yet to be mapped.
        let room = room_wanted(mem, &self.chosen, counts.len() as u32);
        while mem.free(NodeId::FAST) < room {
            let Some(victim) = unwanted.pop() else { return };
            if !down(mem, victim) {
                return;
            }
        }
    }
}

/// Frames of chosen pages that are not mapped.
fn room_wanted(mem: &dyn Memory, chosen: &PageSet, numbers: u32) -> u64 {
    (0..numbers).map(Page::new).filter(|p| chosen.contains(*p) && !mem.mapped(*p)).count() as u64
}

#[cfg(test)]
mod tests {
    use super::super::testing::{COSTS, ReferenceMemory};
    use super::super::{Memory, NodeId, Page, Settings};

    #[test]
    fn puts_the_most_referenced_into_the_fast_node() {
        let mut memory = ReferenceMemory::new(COSTS, &[4, 12], 12, false);
        let mut policy = memory.start("oracle", &Settings::default()).unwrap();
        for page in 0..12 {
            memory.access(&mut *policy, Page::new(page), false).unwrap();
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
