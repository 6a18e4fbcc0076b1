//! The events of a trace, interleaved with its records.

use std::iter::Peekable;
use std::ops::Range;

use nearfar_trace::{Reader, RegionEvent, Result};

/// The remaining events, in order.
pub struct Events {
    events: Peekable<std::vec::IntoIter<RegionEvent>>,
    /// Records passed so far.
    at: u64,
}

/// The next part of a batch.
pub enum Next {
    /// An event.
    Event(RegionEvent),
    /// Records without an event between them.
    Records(Range<usize>),
}

impl Events {
    /// Before the first record of a trace.
    ///
    /// # Errors
    /// If the events cannot be read.
    pub fn new(reader: &Reader) -> Result<Self> {
        let mut events = reader.regions()?;
        events.sort_by_key(|event| event.at);
        Ok(Self { events: events.into_iter().peekable(), ..Self::none() })
    }

    /// A trace without events.
    pub fn none() -> Self {
        Self { events: Vec::new().into_iter().peekable(), at: 0 }
    }

    /// Number of the record after the next event.
    pub fn next_at(&mut self) -> u64 {
        self.events.peek().map_or(u64::MAX, |event| event.at)
    }

    /// The next event, if it happened before record number `at`.
    pub fn before(&mut self, at: u64) -> Option<RegionEvent> {
        self.events.next_if(|event| event.at <= at)
    }

    /// The next `records` records, with the events before each of them.
    pub fn among(&mut self, records: usize) -> impl Iterator<Item = Next> + '_ {
        let mut place = 0;
        std::iter::from_fn(move || {
            if place == records {
                return None;
            }
            if let Some(event) = self.before(self.at) {
                return Some(Next::Event(event));
            }
            let until = self.next_at() - self.at;
            let end = records.min(place.saturating_add(until.try_into().unwrap_or(usize::MAX)));
            let range = place..end;
            self.at += range.len() as u64;
            place = end;
            Some(Next::Records(range))
        })
    }
}
