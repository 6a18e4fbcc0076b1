//! The events of a trace, interleaved with its records.

use std::ops::Range;

use nearfar_trace::{Reader, RegionEvent, RegionKind, Result};

/// The remaining events of a trace, in order.
pub struct Events {
    events: std::vec::IntoIter<RegionEvent>,
    /// Records passed so far.
    at: u64,
}

/// The next event or records of a batch.
pub enum Next {
    Event(RegionEvent),
    /// Indices of records without an event between them.
    Records(Range<usize>),
}

impl Events {
    /// All events of a trace except [`RegionKind::Idle`].
    pub fn new(reader: &Reader) -> Result<Self> {
        Self::of(reader, |event| event.event != RegionKind::Idle)
    }

    /// All events of a trace.
    pub fn all(reader: &Reader) -> Result<Self> {
        Self::of(reader, |_| true)
    }

    fn of(reader: &Reader, wanted: impl FnMut(&RegionEvent) -> bool) -> Result<Self> {
        let mut events = reader.regions()?;
        events.retain(wanted);
        events.sort_by_key(|event| event.at);
        Ok(Self { events: events.into_iter(), at: 0 })
    }

    /// A trace without events.
    pub fn none() -> Self {
        Self { events: Vec::new().into_iter(), at: 0 }
    }

    /// For each remaining [`RegionKind::Idle`]: mean number of threads that ran since the previous one,
    /// outside idle time.
    pub fn parallel(&self) -> impl Iterator<Item = f64> + '_ {
        let idle = self.events.as_slice().iter().filter(|event| event.event == RegionKind::Idle);
        // `offset` is the number of threads x 1000. Outside idle time, at least one runs.
        idle.map(|event| (event.offset as f64 / 1000.0).max(1.0))
    }

    /// Number of the first record after the next event; `u64::MAX` if there is none.
    pub fn next_at(&self) -> u64 {
        self.events.as_slice().first().map_or(u64::MAX, |event| event.at)
    }

    /// The next event, if it precedes record number `at`.
    pub fn before(&mut self, at: u64) -> Option<RegionEvent> {
        (self.next_at() <= at).then(|| self.events.next())?
    }

    /// The next `records` records, with the events before each of them.
    pub fn among(&mut self, records: usize) -> impl Iterator<Item = Next> + '_ {
        let mut index = 0;
        std::iter::from_fn(move || {
            if index == records {
                return None;
            }
            if let Some(event) = self.before(self.at) {
                return Some(Next::Event(event));
            }
            let until = self.next_at() - self.at;
            let end = records.min(index.saturating_add(until.try_into().unwrap_or(usize::MAX)));
            let range = index..end;
            self.at += range.len() as u64;
            index = end;
            Some(Next::Records(range))
        })
    }
}
