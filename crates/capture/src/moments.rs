//! Moments of the streams of one process: which there are, and how far they let others be read.
//!
//! Streams are looked through ahead of what is taken from them; see `layout.rs` for what a moment is.

use std::collections::{BTreeMap, VecDeque};

use crate::events::control_word;
use crate::layout::{OTHER, tag};
use crate::shared::ReadingEnd;

/// One moment that is not in the trace yet.
pub(crate) struct Moment {
    /// Order of the stream that it is in.
    pub owner: u64,
    /// Position after its last word, once that is written.
    pub to: Option<u64>,
    /// How far other streams had come: order and position, sorted.
    before: Box<[(u64, u64)]>,
}

impl Moment {
    /// Position up to which stream `order` comes before it.
    pub fn before(&self, order: u64) -> u64 {
        let place = self.before.binary_search_by_key(&order, |(order, _)| *order);
        place.map_or(0, |place| self.before[place].1)
    }
}

/// Those of one process, by ticket.
pub(crate) type Moments = BTreeMap<u64, Moment>;

/// What is known of the words of a stream that are not taken yet.
#[derive(Default)]
pub(crate) struct Ahead {
    /// Position up to which they are looked through.
    looked: u64,
    /// Its moments that are not in the trace yet, by ticket: where they begin.
    own: VecDeque<(u64, u64)>,
    /// Its last one is not over yet.
    within: bool,
    /// There was one that no plugin writes.
    forged: bool,
}

impl Ahead {
    /// Whether there was a moment that no plugin writes.
    pub fn is_forged(&self) -> bool {
        self.forged
    }

    /// Where its next moment begins.
    pub fn next(&self) -> Option<u64> {
        self.own.front().map(|(_, from)| *from)
    }

    /// Its first moment is in the trace.
    pub fn pop(&mut self) {
        self.own.pop_front();
    }

    /// Look through a stream up to position `until`, as far as it is published. Answers how many
    /// moments that are new have been found.
    pub fn look(
        &mut self,
        (order, end): (u64, &ReadingEnd<'_>),
        until: u64,
        words: &mut Vec<u64>,
        moments: &mut Moments,
    ) -> u64 {
        let mut found = 0;
        // Whatever was taken without a look had no moment in it.
        self.looked = self.looked.max(end.taken());
        loop {
            end.look(self.looked, until, words);
            let mut at = 0;
            while let Some(next) = words[at..].iter().position(|word| *word >= OTHER) {
                at += next;
                let (kind, length) = control_word(words[at]);
                let after = (at + 1).saturating_add(length).min(words.len());
                let position = self.looked + at as u64;
                match (kind, &words[at + 1..after]) {
                    (tag::MOMENT, [ticket, others @ ..]) => {
                        // One at a time, and no ticket twice.
                        self.forged |= self.within || moments.contains_key(ticket);
                        let (others, _) = others.as_chunks();
                        let mut before: Box<[_]> = others.iter().map(|[o, p]| (*o, *p)).collect();
                        before.sort_unstable();
                        let moment = Moment { owner: order, to: None, before };
                        moments.insert(*ticket, moment);
                        self.own.push_back((*ticket, position));
                        self.within = true;
                        found += 1;
                    }
                    (tag::DONE, _) => self.over(self.looked + after as u64, moments),
                    _ => {}
                }
                at = after;
            }
            if words.is_empty() {
                return found;
            }
            self.looked += words.len() as u64;
        }
    }

    /// The stream has ended: so have its moments.
    pub fn closed(&mut self, moments: &mut Moments) {
        self.over(self.looked, moments);
    }

    fn over(&mut self, position: u64, moments: &mut Moments) {
        if std::mem::take(&mut self.within)
            && let Some((ticket, _)) = self.own.back()
            && let Some(moment) = moments.get_mut(ticket)
        {
            moment.to = Some(position);
        }
    }
}
