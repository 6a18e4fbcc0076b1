//! Changes that a child makes to its mappings while its pages are copied.

use crate::{Event, Range, Va};

/// The current addresses of the pages at the fork.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moves {
    /// In order: ranges that were moved or unmapped (`None`).
    moves: Vec<(Range, Option<Va>)>,
}

impl Moves {
    /// Apply a message of the child.
    pub(crate) fn note(&mut self, event: Event) {
        match event {
            Event::Removed(range) | Event::Unmapped(range) => self.moves.push((range, None)),
            Event::Remapped(range, to) => {
                // The pages that were there are gone.
                self.moves.push((range.moved_to(to), None));
                self.moves.push((range, Some(to)));
            }
            Event::Fault { .. } | Event::Forked(_) => {}
        }
    }

    /// The current address of the page that was at `at`, unless it is gone.
    pub(crate) fn current(&self, at: Va) -> Option<Va> {
        self.moves.iter().try_fold(at, |at, (range, to)| {
            if !range.contains(at) {
                return Some(at);
            }
            to.map(|to| to.plus(at.number() - range.from.number()))
        })
    }
}
