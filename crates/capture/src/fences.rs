//! Scans the streams of one process for fences, ahead of reading. A stream is the ring of words that one
//! thread writes. A fence encloses events of the address space, and lists, for each other stream, the
//! position up to which its words precede these events. `layout.rs` has the details.

use std::collections::{BTreeMap, VecDeque};

use crate::layout::{MIN_CONTROL, tag};
use crate::recording::control_word;
use crate::shared::StreamReader;

/// A fence that is not in the trace yet.
pub(crate) struct Fence {
    /// The stream that contains it: its order (`Slot::order`, a serial number).
    pub owner: u64,
    /// Position after its last word, once that is written.
    pub end: Option<u64>,
    /// Order of each other stream, and the position up to which it precedes the fence; sorted.
    before: Box<[(u64, u64)]>,
}

impl Fence {
    /// Position up to which stream `order` precedes the fence; 0 if the fence does not list it.
    pub fn before(&self, order: u64) -> u64 {
        let index = self.before.binary_search_by_key(&order, |(order, _)| *order);
        index.map_or(0, |index| self.before[index].1)
    }
}

/// The fences of one process, by ticket.
pub(crate) type Fences = BTreeMap<u64, Fence>;

/// The scan of one stream ahead of reading.
#[derive(Default)]
pub(crate) struct Lookahead {
    /// Position up to which the stream is scanned.
    scanned: u64,
    /// Fences that are not in the trace yet: ticket and start position.
    fences: VecDeque<(u64, u64)>,
    /// The last fence has not ended yet.
    open: bool,
    /// The scan found a fence that the plugin cannot have written.
    forged: bool,
}

impl Lookahead {
    pub fn is_forged(&self) -> bool {
        self.forged
    }

    /// Start position of the next fence.
    pub fn next(&self) -> Option<u64> {
        self.fences.front().map(|(_, start)| *start)
    }

    /// Remove the next fence: it is in the trace.
    pub fn pop(&mut self) {
        self.fences.pop_front();
    }

    /// Scan a stream up to position `until`, as far as it is published. Returns the number of new
    /// fences.
    pub fn scan(
        &mut self,
        (order, reader): (u64, &StreamReader<'_>),
        until: u64,
        words: &mut Vec<u64>,
        fences: &mut Fences,
    ) -> u64 {
        let mut found = 0;
        // Words that were read without a scan contained no fence.
        self.scanned = self.scanned.max(reader.taken());
        loop {
            reader.peek(self.scanned, until, words);
            let mut at = 0;
            while let Some(next) = words[at..].iter().position(|word| *word >= MIN_CONTROL) {
                at += next;
                let (kind, length) = control_word(words[at]);
                let after = (at + 1).saturating_add(length).min(words.len());
                let position = self.scanned + at as u64;
                match (kind, &words[at + 1..after]) {
                    (tag::FENCE, [ticket, others @ ..]) => {
                        // A stream has one open fence at a time, and tickets are unique.
                        self.forged |= self.open || fences.contains_key(ticket);
                        let (others, _) = others.as_chunks();
                        let mut before: Box<[_]> = others.iter().map(|[o, p]| (*o, *p)).collect();
                        before.sort_unstable();
                        fences.insert(*ticket, Fence { owner: order, end: None, before });
                        self.fences.push_back((*ticket, position));
                        self.open = true;
                        found += 1;
                    }
                    (tag::FENCE_END, _) => self.end_fence(self.scanned + after as u64, fences),
                    _ => {}
                }
                at = after;
            }
            if words.is_empty() {
                return found;
            }
            self.scanned += words.len() as u64;
        }
    }

    /// The stream is closed, which ends its open fence.
    pub fn close(&mut self, fences: &mut Fences) {
        self.end_fence(self.scanned, fences);
    }

    fn end_fence(&mut self, position: u64, fences: &mut Fences) {
        if std::mem::take(&mut self.open)
            && let Some((ticket, _)) = self.fences.back()
            && let Some(fence) = fences.get_mut(ticket)
        {
            fence.end = Some(position);
        }
    }
}
