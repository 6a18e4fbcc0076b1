//! What the program does to its mappings.

use super::{LOST, Manager, UNCLEAR};
use crate::children::Moves;
use crate::order::Unclear;
use crate::world::is;
use crate::{Child, Event, Fail, Kernel, Range, Va};

impl<K: Kernel> Manager<K> {
    /// Apply what was told, in order.
    pub(super) fn ordered(&mut self) {
        loop {
            match self.order.next(&self.regions) {
                Ok(None) => return,
                Ok(Some(event)) => self.event(|manager| manager.mappings(event)),
                Err(Unclear(at)) => {
                    let at = at.address();
                    return self.world.break_down(format!("{UNCLEAR} (at {at:#x})"));
                }
            }
        }
    }

    fn mappings(&mut self, event: Event) {
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

    /// Give a child all pages that were not in the program's memory when it was made, and let it go: it
    /// is not managed, and may use as much memory as it likes.
    fn forked(&mut self, child: Child) {
        // A message that arrives later may be about an earlier change.
        let mut told_later = Moves::default();
        self.order.moves().for_each(|event| told_later.note(event));
        // A child that forks while it is given its pages has a child that lacks the same ones.
        let mut children = vec![(child, Moves::default())];
        while let Some((child, moves)) = children.pop() {
            let lacks = self.world.give_all(child, moves, &told_later, &mut children);
            if self.world.broken.is_some() {
                // It waits for what it has not until it is killed: let go, it would read zeros.
                return;
            }
            self.world.counters.forks += 1;
            if lacks.is_empty() {
                self.world.kernel.let_go(child);
            } else {
                self.lacking.push((child, lacks));
            }
        }
    }

    /// What has become of the pages that children lack, now that all that was told is applied. As a rule
    /// the program has kept them from its children (`MADV_DONTFORK`). But a thread that moves memory and
    /// is killed before that was told is never heard of: then a child of another thread has the pages
    /// elsewhere, and nobody knows where.
    pub(super) fn look_for_lost(&mut self) {
        while let Some((child, mut lacks)) = self.lacking.pop() {
            while let Some(at) = lacks.pop() {
                let gone =
                    self.world.page_at(at).is_none_or(|page| self.world.has(page, is::PRESENT));
                // Of a page that is not there this says whether it could be.
                match if gone { Ok(()) } else { self.world.kernel.protect(at, false) } {
                    Ok(()) => {}
                    Err(fail) => {
                        lacks.push(at);
                        self.lacking.push((child, lacks));
                        if fail != Fail::Again {
                            let at = at.address();
                            self.world.break_down(format!("{LOST} (at {at:#x})"));
                        }
                        return;
                    }
                }
            }
            self.world.kernel.let_go(child);
        }
    }

    /// The pages of `range` that the policy knows.
    fn known(&mut self, range: Range) -> Vec<Va> {
        let mut pages = std::mem::take(&mut self.pages);
        pages.clear();
        let known = self.world.numbers.each_in(range);
        let known = known.filter(|(page, _)| self.world.has(*page, is::MAPPED));
        pages.extend(known.map(|(_, at)| at));
        pages
    }

    fn release(&mut self, range: Range) {
        let pages = self.known(range);
        for at in &pages {
            self.world.kernel.beat();
            self.release_page(*at);
        }
        self.pages = pages;
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
        self.release(Range::new(to, to.plus(range.pages())));
        self.world.move_unnumbered(range, to);
        let pages = self.known(range);
        for at in &pages {
            let Some(old) = self.world.page_at(*at) else { continue };
            self.world.kernel.beat();
            let new = to.plus(at.number() - range.from.number());
            let moving = self.world.take_away(old);
            self.policy.released(&mut self.world, old, 1);
            self.world.numbers.release(old);
            if let Some(page) = self.world.numbers.hold(new) {
                self.world.put(page, moving);
                self.policy.allocated(&mut self.world, page);
            } else {
                self.world.counters.over_budget += 1;
                self.world.put_unnumbered(new, moving);
            }
        }
        self.pages = pages;
        self.regions.remove(range);
        self.regions.add(Range::new(to, to.plus(range.pages())));
    }
}
