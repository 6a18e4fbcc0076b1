//! What a child has done to its mappings while it was given its pages.

use crate::{Event, Range, Va};

/// Where pages of the moment of the fork are now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moves {
    /// In order: a range that was moved, or that is gone.
    moves: Vec<(Range, Option<Va>)>,
}

impl Moves {
    /// A message of the child.
    pub(crate) fn note(&mut self, event: Event) {
        match event {
            Event::Removed(range) | Event::Unmapped(range) => self.moves.push((range, None)),
            Event::Remapped(range, to) => {
                // What was there before is gone.
                self.moves.push((Range::new(to, to.plus(range.pages())), None));
                self.moves.push((range, Some(to)));
            }
            Event::Fault { .. } | Event::Forked(_) => {}
        }
    }

    /// Where the page that was at `at` is, unless it is gone.
    pub(crate) fn place(&self, at: Va) -> Option<Va> {
        self.moves.iter().try_fold(at, |at, (range, to)| {
            let inside = range.from <= at && at < range.to;
            if !inside {
                return Some(at);
            }
            to.map(|to| to.plus(at.number() - range.from.number()))
        })
    }
}
