//! The order in which the program has changed its mappings.
//!
//! A message is told some time after what it tells of: `munmap` and `mremap` have let go of the
//! address space by then, and other threads may have it already and be heard of first. What comes late
//! is known to come, as requests are refused until then. So messages are kept until none is on its way,
//! and are then applied in an order in which each can have happened: what is moved is there, what it
//! is moved to is free.

use crate::{Event, Range, Regions};

/// Messages about mappings that are not applied yet.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// In the order told.
    waiting: Vec<Event>,
    /// Places that were moved from: `mremap` unmaps them, and tells that in a message of its own, after
    /// which they may be in use again.
    echoes: Vec<Range>,
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

    /// Everything that was told was applied, and nothing is missing as far as one can know.
    pub(crate) fn is_settled(&self) -> bool {
        self.waiting.is_empty() && self.echoes.is_empty()
    }

    /// A message is missing: something was moved to where something else is.
    pub(crate) fn lacks(&self, known: &Regions) -> bool {
        self.waiting.iter().any(|event| {
            let Event::Remapped(range, to) = *event else { return false };
            let target = Range::new(to, to.plus(range.pages()));
            let frees = |event: &Event| {
                matches!(*event, Event::Unmapped(from) | Event::Remapped(from, _)
                    if overlap(from, target))
            };
            !is_free(target, known) && !self.waiting.iter().any(frees)
        })
    }

    /// The next message to apply, where `known` is what is mapped by what was applied before; to be
    /// asked when nothing more is on its way.
    pub(crate) fn next(&mut self, known: &Regions) -> Option<Event> {
        self.echoes.clear();
        let all = 0..self.waiting.len();
        // As told, but for what could not have happened then.
        let next = all.clone().find(|at| self.can_happen(*at, known));
        (!all.is_empty()).then(|| self.waiting.remove(next.unwrap_or(0)))
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
    fn ordered(mapped: &[u64], told: &[Event]) -> Vec<Event> {
        let (mut known, mut order) = (Regions::default(), Order::default());
        mapped.iter().for_each(|number| known.add(part(*number)));
        told.iter().for_each(|event| order.told(*event));
        let mut applied = Vec::new();
        while let Some(event) = order.next(&known) {
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
        applied
    }

    #[test]
    fn what_must_have_happened_first_is_applied_first() {
        let moved = |from, to| Event::Remapped(part(from), part(to).from);
        let gone = |number| Event::Unmapped(part(number));
        let given = |number| Event::Removed(part(number));
        let fork = Event::Forked(crate::Child::new(0));
        // As told where that is possible.
        let told = [moved(1, 2), gone(1), moved(2, 3), gone(2), given(3), fork, gone(3)];
        assert_eq!(ordered(&[1], &told), [moved(1, 2), moved(2, 3), given(3), fork, gone(3)]);
        // Who had the place before is heard of late: it was unmapped, or moved away.
        assert_eq!(ordered(&[1, 2], &[moved(2, 1), gone(2), gone(1)]), [gone(1), moved(2, 1)]);
        let told = [moved(2, 1), gone(2), moved(1, 3), gone(1)];
        assert_eq!(ordered(&[1, 2], &told), [moved(1, 3), moved(2, 1)]);
        let told = [moved(2, 1), gone(2), moved(4, 2), gone(4), moved(1, 3), gone(1), given(1)];
        assert_eq!(ordered(&[1, 2, 4], &told), [moved(1, 3), moved(2, 1), moved(4, 2), given(1)]);
        // Of two ways that it can have been, the one that is nearer to what was told.
        let told = [moved(2, 1), gone(2), gone(1), moved(1, 3), gone(1)];
        assert_eq!(ordered(&[1, 2], &told), [gone(1), moved(2, 1), moved(1, 3)]);
        let told = [moved(2, 1), gone(2), moved(1, 3), gone(1), gone(1)];
        assert_eq!(ordered(&[1, 2], &told), [moved(1, 3), moved(2, 1), gone(1)]);
        // More was unmapped than what was moved away from there.
        let more = Event::Unmapped(Range::new(part(1).from, part(2).to));
        assert_eq!(ordered(&[1, 2], &[more, moved(1, 3), gone(1)]), [moved(1, 3), more]);
        // What was moved there is unmapped, not what is moved from there.
        assert_eq!(ordered(&[1], &[moved(1, 2), gone(1), gone(2)]), [moved(1, 2), gone(2)]);
    }
}
