//! The order in which the program has changed its mappings.
//!
//! A message is told some time after what it tells of: `munmap` and `mremap` have let go of the
//! address space by then, and other threads may have it already and be heard of first. What such a
//! thread was given was free, so who had it before comes first; and what comes late is known to come,
//! as requests are refused until then.

use crate::{Event, Range, Regions};

/// Messages about mappings that are not applied yet.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// In the order told.
    waiting: Vec<Event>,
    /// Places that were moved from: `mremap` unmaps them, and tells that in a message of its own, after
    /// which they may be in use again.
    echoes: Vec<Range>,
    /// Nothing more is on its way: what waits for something waits in vain.
    in_vain: bool,
}

impl Order {
    /// A message was read.
    pub(crate) fn told(&mut self, event: Event) {
        match event {
            Event::Fault { .. } => return,
            Event::Unmapped(range) => {
                if let Some(at) = self.echoes.iter().position(|echo| *echo == range) {
                    self.echoes.swap_remove(at);
                    return;
                }
            }
            Event::Remapped(range, _) => self.echoes.push(range),
            Event::Removed(_) | Event::Forked(_) => {}
        }
        self.waiting.push(event);
    }

    /// No message is missing, as far as one can know.
    pub(crate) fn is_settled(&self) -> bool {
        self.waiting.is_empty() && self.echoes.is_empty()
    }

    /// No message is on its way.
    pub(crate) fn settle(&mut self) {
        self.echoes.clear();
        self.in_vain = true;
    }

    /// The next message to apply, where `known` is what is mapped by what was applied before.
    pub(crate) fn next(&mut self, known: &Regions) -> Option<Event> {
        let next = (0..self.waiting.len()).find(|at| self.in_vain || self.may_go(*at, known));
        let Some(at) = next else {
            self.in_vain &= !self.waiting.is_empty();
            return None;
        };
        Some(self.waiting.remove(at))
    }

    /// Whether what comes before this one was told.
    fn may_go(&self, at: usize, known: &Regions) -> bool {
        let before = &self.waiting[..at];
        match self.waiting[at] {
            // What was there before goes first.
            Event::Remapped(range, to) => {
                let target = Range::new(to, to.plus(range.pages()));
                known.gaps(target) == [target] && !before.iter().any(|event| moves_to(event, range))
            }
            // Of what is moved here, or of what was here before? It cannot be known, and need not be yet.
            Event::Removed(range) => !before.iter().any(|event| moves_to(event, range)),
            Event::Forked(_) => before.is_empty(),
            Event::Unmapped(_) | Event::Fault { .. } => true,
        }
    }
}

fn moves_to(event: &Event, range: Range) -> bool {
    let Event::Remapped(from, to) = event else { return false };
    *to < range.to && range.from < to.plus(from.pages())
}
