//! Changes that a child makes to its mappings while pages are copied to it.

use crate::{Event, Range, Va};

/// Maps the address of a page at the fork to its current address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moves {
    /// Changes in order: a range, and its new start, or `None` if it was released or unmapped.
    moves: Vec<(Range, Option<Va>)>,
}

impl Moves {
    /// Record a message of the child's userfaultfd.
    pub(crate) fn note(&mut self, event: Event) {
        match event {
            Event::Removed(range) | Event::Unmapped(range) => self.moves.push((range, None)),
            Event::Remapped(range, to) => {
                // The pages at the destination were unmapped.
                self.moves.push((range.moved_to(to), None));
                self.moves.push((range, Some(to)));
            }
            Event::Fault { .. } | Event::Forked(_) => {}
        }
    }

    /// The current address of the page that was at `at` at the fork; `None` if it is gone.
    pub(crate) fn current(&self, at: Va) -> Option<Va> {
        self.moves.iter().try_fold(at, |at, (range, to)| {
            if !range.contains(at) {
                return Some(at);
            }
            to.map(|to| to.plus(at.number() - range.from.number()))
        })
    }
}
