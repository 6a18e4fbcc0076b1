//! The order in which the program has changed its mappings.
//!
//! The kernel sends a userfaultfd message some time after the change: `munmap` and `mremap` have released the
//! address space by then, and other threads may have reused it and sent their messages first. While a message
//! is in flight (not read yet), the kernel refuses requests such as `UFFDIO_COPY`. So messages are collected
//! until none is in flight, and then applied in a possible order: the source of a move is mapped, its
//! destination is free.
//!
//! Several orders are possible if memory was moved to a range in use and several messages vacate that range:
//! each of these may have preceded the move. If one of them is itself a move, it has moved either the old or
//! the new pages of the range: the order is ambiguous, and the program must not continue.

use crate::{Event, Range, Regions, Va};

/// Messages about mappings that are not applied yet.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// In the order in which they were received.
    waiting: Vec<Event>,
    /// Sources of moves whose second message is expected: `mremap` also reports that it has unmapped its
    /// source, which may be in use again by then.
    echoes: Vec<Range>,
}

/// The order of the changes at this page is ambiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ambiguous(pub(crate) Va);

impl Order {
    /// Record a message that was read.
    pub(crate) fn receive(&mut self, event: Event) {
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

    /// Whether all messages were applied, and no expected message is missing.
    pub(crate) fn is_settled(&self) -> bool {
        self.waiting.is_empty() && self.echoes.is_empty()
    }

    /// Whether a message is missing: memory was moved to a range in use that no waiting message vacates.
    pub(crate) fn lacks(&self, known: &Regions) -> bool {
        self.waiting.iter().any(|event| {
            occupied(event, known).is_some_and(|range| self.vacating(range).next().is_none())
        })
    }

    /// The next message to apply. `known`: the regions after the messages applied so far. Call this only when
    /// no message is in flight.
    ///
    /// # Errors
    /// [`Ambiguous`] if several orders are possible and their results may differ.
    pub(crate) fn next(&mut self, known: &Regions) -> Result<Option<Event>, Ambiguous> {
        self.echoes.clear();
        let Some(first) = self.waiting.first() else { return Ok(None) };
        if let Some(range) = occupied(first, known) {
            let moved = |event: &Event| matches!(event, Event::Remapped(..));
            if self.vacating(range).any(moved) && self.vacating(range).count() > 1 {
                return Err(Ambiguous(range.from));
            }
        }
        // Take the first message that is possible now, or the first of all if none is: a killed thread's
        // message may be missing.
        let next = (0..self.waiting.len()).find(|at| self.can_happen(*at, known));
        Ok(Some(self.waiting.remove(next.unwrap_or(0))))
    }

    /// Moves that were not applied yet.
    pub(crate) fn moves(&self) -> impl Iterator<Item = Event> + '_ {
        self.waiting.iter().copied().filter(|event| matches!(event, Event::Remapped(..)))
    }

    /// The messages that vacate a part of this range.
    fn vacating(&self, range: Range) -> impl Iterator<Item = &Event> {
        self.waiting.iter().filter(move |event| {
            matches!(**event, Event::Unmapped(from) | Event::Remapped(from, _)
                if overlap(from, range))
        })
    }

    fn can_happen(&self, at: usize, known: &Regions) -> bool {
        let mut before = self.waiting[..at].iter();
        match self.waiting[at] {
            // After the destination's previous pages have left.
            Event::Remapped(range, to) => is_free(range.moved_to(to), known),
            // After moves out of the range, except of pages that were first moved into it.
            Event::Unmapped(range) => !self.waiting.iter().any(|event| {
                matches!(*event, Event::Remapped(from, _) if overlap(from, range)
                    && !self.waiting.iter().any(|event| moves_to(event, from)))
            }),
            // The program released the pages from before or after a move into the range: the order received
            // decides which.
            Event::Removed(range) => !before.any(|event| moves_to(event, range)),
            Event::Forked(_) => at == 0,
            Event::Fault { .. } => true,
        }
    }
}

/// The destination of a move if it is in use.
fn occupied(event: &Event, known: &Regions) -> Option<Range> {
    let Event::Remapped(range, to) = *event else { return None };
    let destination = range.moved_to(to);
    (!is_free(destination, known)).then_some(destination)
}

fn is_free(range: Range, known: &Regions) -> bool {
    known.gaps(range) == [range]
}

fn overlap(a: Range, b: Range) -> bool {
    a.from < b.to && b.from < a.to
}

fn moves_to(event: &Event, range: Range) -> bool {
    let Event::Remapped(from, to) = event else { return false };
    overlap(from.moved_to(*to), range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Va;

    fn part(number: u64) -> Range {
        Range::new(Va::new(8 * number), Va::new(8 * number + 8))
    }

    /// The order in which `received` is applied if the parts `mapped` are mapped before.
    fn ordered(mapped: &[u64], received: &[Event]) -> Result<Vec<Event>, Ambiguous> {
        let (mut known, mut order) = (Regions::default(), Order::default());
        mapped.iter().for_each(|number| known.add(part(*number)));
        received.iter().for_each(|event| order.receive(*event));
        let mut applied = Vec::new();
        while let Some(event) = order.next(&known)? {
            match event {
                Event::Unmapped(range) => known.remove(range),
                Event::Remapped(range, to) => {
                    known.remove(range);
                    known.add(range.moved_to(to));
                }
                _ => {}
            }
            applied.push(event);
        }
        assert!(order.is_settled());
        Ok(applied)
    }

    #[test]
    fn changes_are_applied_in_a_possible_order() {
        let moved = |from, to| Event::Remapped(part(from), part(to).from);
        let gone = |number| Event::Unmapped(part(number));
        let released = |number| Event::Removed(part(number));
        let fork = Event::Forked(crate::Child::new(0));
        let is = |found: Result<Vec<Event>, _>, expected: &[Event]| {
            assert_eq!(found.as_deref(), Ok(expected));
        };
        // In the order received if possible.
        let received = [moved(1, 2), gone(1), moved(2, 3), gone(2), released(3), fork, gone(3)];
        is(ordered(&[1], &received), &[moved(1, 2), moved(2, 3), released(3), fork, gone(3)]);
        // The message about the previous pages is late: they were unmapped or moved.
        is(ordered(&[1, 2], &[moved(2, 1), gone(2), gone(1)]), &[gone(1), moved(2, 1)]);
        let received = [moved(2, 1), gone(2), moved(1, 3), gone(1)];
        is(ordered(&[1, 2], &received), &[moved(1, 3), moved(2, 1)]);
        let received =
            [moved(2, 1), gone(2), moved(4, 2), gone(4), moved(1, 3), gone(1), released(1)];
        is(ordered(&[1, 2, 4], &received), &[moved(1, 3), moved(2, 1), moved(4, 2), released(1)]);
        // The previous pages were unmapped and the new ones moved, or the other way round.
        let ambiguous = Err(Ambiguous(part(1).from));
        let received = [moved(2, 1), gone(2), gone(1), moved(1, 3), gone(1)];
        assert_eq!(ordered(&[1, 2], &received), ambiguous);
        let received = [moved(2, 1), gone(2), moved(1, 3), gone(1), moved(1, 4), gone(1)];
        assert_eq!(ordered(&[1, 2], &received), ambiguous);
        // The order does not matter if no pages were moved.
        let received = [moved(2, 1), gone(2), gone(1), gone(1)];
        is(ordered(&[1, 2], &received), &[gone(1), moved(2, 1), gone(1)]);
        // More was unmapped than was moved away.
        let more = Event::Unmapped(Range::new(part(1).from, part(2).to));
        is(ordered(&[1, 2], &[more, moved(1, 3), gone(1)]), &[moved(1, 3), more]);
        // The destination is unmapped, not the source.
        is(ordered(&[1], &[moved(1, 2), gone(1), gone(2)]), &[moved(1, 2), gone(2)]);
    }
}
