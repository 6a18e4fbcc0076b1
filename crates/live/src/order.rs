//! The order in which the program has changed its mappings.
//!
//! A message is told some time after what it tells of: `munmap` and `mremap` have let go of the
//! address space by then, and other threads may have it already and be heard of first. What comes late
//! is known to come, as requests are refused until then. So messages are kept until none is on its way,
//! and are then applied in an order in which each can have happened: what is moved is there, what it
//! is moved to is free.
//!
//! There may be two such orders. Where memory was moved to a place in use, and several have left that place
//! since, one of them had it before; if any of them took along what was there, nobody can know who, and
//! the program must not go on.

use crate::{Event, Range, Regions, Va};

/// Messages about mappings that are not applied yet.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// In the order told.
    waiting: Vec<Event>,
    /// Places that were moved from: `mremap` unmaps them, and tells that in a message of its own, after
    /// which they may be in use again.
    echoes: Vec<Range>,
}

/// It cannot be known what is here, or where it was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unclear(pub(crate) Va);

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

    /// Everything that was told was applied, and nothing is missing as far as one can know.
    pub(crate) fn is_settled(&self) -> bool {
        self.waiting.is_empty() && self.echoes.is_empty()
    }

    /// A message is missing: something was moved to where something else is.
    pub(crate) fn lacks(&self, known: &Regions) -> bool {
        self.waiting.iter().any(|event| {
            occupied(event, known).is_some_and(|place| self.leaving(place).next().is_none())
        })
    }

    /// The next message to apply, where `known` is what is mapped by what was applied before; to be
    /// asked when nothing more is on its way.
    ///
    /// # Errors
    /// [`Unclear`], where it may be either of two.
    pub(crate) fn next(&mut self, known: &Regions) -> Result<Option<Event>, Unclear> {
        self.echoes.clear();
        let Some(first) = self.waiting.first() else { return Ok(None) };
        if let Some(place) = occupied(first, known) {
            let moved = |event: &Event| matches!(event, Event::Remapped(..));
            if self.leaving(place).any(moved) && self.leaving(place).count() > 1 {
                return Err(Unclear(place.from));
            }
        }
        // As told, but for what could not have happened then.
        let next = (0..self.waiting.len()).find(|at| self.can_happen(*at, known));
        Ok(Some(self.waiting.remove(next.unwrap_or(0))))
    }

    /// What is told of as moved and not applied yet.
    pub(crate) fn moves(&self) -> impl Iterator<Item = Event> + '_ {
        self.waiting.iter().copied().filter(|event| matches!(event, Event::Remapped(..)))
    }

    /// Those that were at this place, or at a part of it.
    fn leaving(&self, place: Range) -> impl Iterator<Item = &Event> {
        self.waiting.iter().filter(move |event| {
            matches!(**event, Event::Unmapped(from) | Event::Remapped(from, _)
                if overlap(from, place))
        })
    }

    fn can_happen(&self, at: usize, known: &Regions) -> bool {
        let mut before = self.waiting[..at].iter();
        match self.waiting[at] {
            // What was there before goes first.
            Event::Remapped(range, to) => is_free(Range::new(to, to.plus(range.pages())), known),
            // What is moved from there, and is not moved there first, has left before.
            Event::Unmapped(range) => !self.waiting.iter().any(|event| {
                matches!(*event, Event::Remapped(from, _) if overlap(from, range)
                    && !self.waiting.iter().any(|event| moves_to(event, from)))
            }),
            // Of what is moved here, or of what was here before? What was told first.
            Event::Removed(range) => !before.any(|event| moves_to(event, range)),
            Event::Forked(_) => at == 0,
            Event::Fault { .. } => true,
        }
    }
}

/// Where something is moved to, if something else is there.
fn occupied(event: &Event, known: &Regions) -> Option<Range> {
    let Event::Remapped(range, to) = *event else { return None };
    let place = Range::new(to, to.plus(range.pages()));
    (!is_free(place, known)).then_some(place)
}

fn is_free(range: Range, known: &Regions) -> bool {
    known.gaps(range) == [range]
}

fn overlap(a: Range, b: Range) -> bool {
    a.from < b.to && b.from < a.to
}

fn moves_to(event: &Event, range: Range) -> bool {
    let Event::Remapped(from, to) = event else { return false };
    overlap(Range::new(*to, to.plus(from.pages())), range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Va;

    fn part(number: u64) -> Range {
        Range::new(Va::new(8 * number), Va::new(8 * number + 8))
    }

    /// The order in which these are applied, where `mapped` is mapped before.
    fn ordered(mapped: &[u64], told: &[Event]) -> Result<Vec<Event>, Unclear> {
        let (mut known, mut order) = (Regions::default(), Order::default());
        mapped.iter().for_each(|number| known.add(part(*number)));
        told.iter().for_each(|event| order.told(*event));
        let mut applied = Vec::new();
        while let Some(event) = order.next(&known)? {
            match event {
                Event::Unmapped(range) => known.remove(range),
                Event::Remapped(range, to) => {
                    known.remove(range);
                    known.add(Range::new(to, to.plus(range.pages())));
                }
                _ => {}
            }
            applied.push(event);
        }
        assert!(order.is_settled());
        Ok(applied)
    }

    #[test]
    fn what_must_have_happened_first_is_applied_first() {
        let moved = |from, to| Event::Remapped(part(from), part(to).from);
        let gone = |number| Event::Unmapped(part(number));
        let given = |number| Event::Removed(part(number));
        let fork = Event::Forked(crate::Child::new(0));
        let is = |found: Result<Vec<Event>, _>, expected: &[Event]| {
            assert_eq!(found.as_deref(), Ok(expected));
        };
        // As told where that is possible.
        let told = [moved(1, 2), gone(1), moved(2, 3), gone(2), given(3), fork, gone(3)];
        is(ordered(&[1], &told), &[moved(1, 2), moved(2, 3), given(3), fork, gone(3)]);
        // Who had the place before is heard of late: it was unmapped, or moved away.
        is(ordered(&[1, 2], &[moved(2, 1), gone(2), gone(1)]), &[gone(1), moved(2, 1)]);
        let told = [moved(2, 1), gone(2), moved(1, 3), gone(1)];
        is(ordered(&[1, 2], &told), &[moved(1, 3), moved(2, 1)]);
        let told = [moved(2, 1), gone(2), moved(4, 2), gone(4), moved(1, 3), gone(1), given(1)];
        is(ordered(&[1, 2, 4], &told), &[moved(1, 3), moved(2, 1), moved(4, 2), given(1)]);
        // Who had it has unmapped it, and who has it has moved on; or the other way round.
        let unclear = Err(Unclear(part(1).from));
        let told = [moved(2, 1), gone(2), gone(1), moved(1, 3), gone(1)];
        assert_eq!(ordered(&[1, 2], &told), unclear);
        let told = [moved(2, 1), gone(2), moved(1, 3), gone(1), moved(1, 4), gone(1)];
        assert_eq!(ordered(&[1, 2], &told), unclear);
        // That does not matter where nobody took anything along.
        let told = [moved(2, 1), gone(2), gone(1), gone(1)];
        is(ordered(&[1, 2], &told), &[gone(1), moved(2, 1), gone(1)]);
        // More was unmapped than what was moved away from there.
        let more = Event::Unmapped(Range::new(part(1).from, part(2).to));
        is(ordered(&[1, 2], &[more, moved(1, 3), gone(1)]), &[moved(1, 3), more]);
        // What was moved there is unmapped, not what is moved from there.
        is(ordered(&[1], &[moved(1, 2), gone(1), gone(2)]), &[moved(1, 2), gone(2)]);
    }
}
