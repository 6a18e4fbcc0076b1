//! A far tier that takes at least so long.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rustc_hash::FxHashSet;

use super::{Arrival, Far, Fault, Fetch};
use crate::Slot;

/// A far tier that is as quick as a copy, made slower. Any number of pages can be on their way at once.
pub struct Slow {
    far: Box<dyn Far>,
    at_least_ns: u64,
    /// On their way, the first to come first: when each was asked for.
    coming: VecDeque<(u64, Slot)>,
    /// Have come, and were not loaded yet.
    here: FxHashSet<Slot>,
    /// The last time that was told, and until when pages are stored.
    now: u64,
    busy_until: u64,
}

impl Slow {
    /// Each page stored or loaded takes at least this long.
    pub fn new(far: Box<dyn Far>, nanoseconds: u64) -> Self {
        let (coming, here) = (VecDeque::new(), FxHashSet::default());
        Self { far, at_least_ns: nanoseconds, coming, here, now: 0, busy_until: 0 }
    }
}

impl Far for Slow {
    /// Nobody waits for a page to be stored, but what is stored after it.
    fn store(&mut self, page: &[u8]) -> Result<Slot, Fault> {
        let slot = self.far.store(page)?;
        self.busy_until = self.busy_until.max(self.now) + self.at_least_ns;
        Ok(slot)
    }

    fn load(&mut self, slot: Slot, page: &mut [u8]) -> Result<(), Fault> {
        if !self.here.remove(&slot) {
            // Sleeping would take longer than most memories do.
            let began = Instant::now();
            while began.elapsed() < Duration::from_nanos(self.at_least_ns) {
                std::hint::spin_loop();
            }
        }
        self.far.load(slot, page)
    }

    fn free(&mut self, slot: Slot) {
        self.here.remove(&slot);
        self.far.free(slot);
    }

    fn fetch(&mut self, slot: Slot, now_ns: u64) -> Result<Fetch, Fault> {
        if self.here.contains(&slot) {
            return Ok(Fetch::Here);
        }
        let asked = self.coming.iter().find(|(_, other)| *other == slot);
        let began = asked.map_or(now_ns, |(began, _)| *began);
        if asked.is_none() {
            self.coming.push_back((now_ns, slot));
        }
        Ok(Fetch::Coming { predicted_ns: (began + self.at_least_ns).saturating_sub(now_ns) })
    }

    fn arrived(&mut self, now_ns: u64, into: &mut Vec<Arrival>) {
        self.now = now_ns;
        while let Some(&(began, slot)) = self.coming.front()
            && began + self.at_least_ns <= now_ns
        {
            self.coming.pop_front();
            self.here.insert(slot);
            into.push(Arrival { slot, predicted_ns: self.at_least_ns, took_ns: now_ns - began });
        }
    }

    fn due(&self) -> u64 {
        self.coming.front().map_or(u64::MAX, |(began, _)| began + self.at_least_ns)
    }

    fn busy_until(&self) -> u64 {
        self.busy_until
    }

    fn bytes(&self) -> u64 {
        self.far.bytes()
    }
}
