//! Applies changes of the program's mappings.

use super::{AMBIGUOUS, LOST, Manager};
use crate::children::Moves;
use crate::order::Ambiguous;
use crate::{Child, Event, Fail, Kernel, Range, Va};

impl<K: Kernel> Manager<K> {
    /// Apply the messages that were read, in order.
    pub(super) fn apply_in_order(&mut self) {
        loop {
            match self.order.next(&self.regions) {
                Ok(None) => return,
                Ok(Some(event)) => self.event(|manager| manager.apply(event)),
                Err(Ambiguous(at)) => {
                    let at = at.address();
                    return self.world.break_down(format!("{AMBIGUOUS} (at {at:#x})"));
                }
            }
        }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Fault { .. } => {}
            Event::Removed(range) => self.release(range),
            Event::Unmapped(range) => {
                self.release(range);
                self.regions.remove(range);
            }
            Event::Remapped(range, to) => self.remap(range, to),
            Event::Forked(child) => self.forked(child),
        }
    }

    /// Copy to a child all pages that were not in the program's memory at the fork, and release the child: it
    /// is not managed, and its memory is not limited.
    fn forked(&mut self, child: Child) {
        // A message that arrives after that of the fork may be about a change before the fork.
        let mut later = Moves::default();
        self.order.moves().for_each(|event| later.note(event));
        // A child that forks before it has its pages creates a child that lacks the same pages.
        let mut children = vec![(child, Moves::default())];
        while let Some((child, moves)) = children.pop() {
            let lacking = self.world.copy_all_to_child(child, moves, &later, &mut children);
            if self.world.broken.is_some() {
                // The child waits for its pages until it is killed. If released, it would read zeros.
                return;
            }
            self.world.counters.forks += 1;
            if lacking.is_empty() {
                self.world.kernel.release_child(child);
            } else {
                self.lacking.push((child, lacking));
            }
        }
    }

    /// Check the pages that children lack, after all messages were applied. Usually the program excluded them
    /// from its children (`MADV_DONTFORK`). But if a thread is killed after it has moved memory and before
    /// its message, a child of another thread has the pages at an unknown address.
    pub(super) fn check_lacking(&mut self) {
        while let Some((child, mut lacking)) = self.lacking.pop() {
            while let Some(at) = lacking.pop() {
                let is_explained = self
                    .world
                    .page_at(at)
                    .is_none_or(|page| self.world.pages.state(page).is_resident());
                // `protect` succeeds if the address is still mapped: then the page was not moved.
                match if is_explained { Ok(()) } else { self.world.kernel.protect(at, false) } {
                    Ok(()) => {}
                    Err(fail) => {
                        lacking.push(at);
                        self.lacking.push((child, lacking));
                        if fail != Fail::Again {
                            let at = at.address();
                            self.world.break_down(format!("{LOST} (at {at:#x})"));
                        }
                        return;
                    }
                }
            }
            self.world.kernel.release_child(child);
        }
    }

    /// The mapped pages of `range` that have a page number (the others: `world/unnumbered.rs`).
    fn mapped_in(&self, range: Range) -> Vec<Va> {
        let numbered = self.world.numbers.each_in(range);
        let mapped = numbered.filter(|(page, _)| self.world.pages.state(*page).is_mapped());
        mapped.map(|(_, at)| at).collect()
    }

    fn release(&mut self, range: Range) {
        for at in self.mapped_in(range) {
            self.world.kernel.beat();
            self.release_page(at);
        }
        self.world.forget_unnumbered(range);
    }

    pub(super) fn release_page(&mut self, at: Va) {
        let Some(page) = self.world.page_at(at) else { return };
        self.world.forget(page);
        self.policy.released(&mut self.world, page, 1);
        self.world.numbers.release(page);
        self.world.counters.released += 1;
    }

    fn remap(&mut self, range: Range, to: Va) {
        self.release(range.moved_to(to));
        self.world.move_unnumbered(range, to);
        for at in self.mapped_in(range) {
            let Some(old) = self.world.page_at(at) else { continue };
            self.world.kernel.beat();
            let new = to.plus(at.number() - range.from.number());
            let entry = self.world.take(old);
            self.policy.released(&mut self.world, old, 1);
            self.world.numbers.release(old);
            if let Some(page) = self.world.numbers.hold(new) {
                self.world.put(page, entry);
                self.policy.allocated(&mut self.world, page);
            } else {
                self.world.counters.over_budget += 1;
                self.world.put_unnumbered(new, entry);
            }
        }
        self.regions.remove(range);
        self.regions.add(range.moved_to(to));
    }
}
