//! A far tier that takes at least so long.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use rustc_hash::FxHashSet;

use super::{Arrival, Far, Fault, Fetch};
use crate::Slot;

/// A far tier made slower. Any number of pages can be on their way at once.
pub struct Slow {
    far: Box<dyn Far>,
    at_least_ns: u64,
    /// On their way, the first to have taken long enough first.
    coming: VecDeque<Asked>,
    /// Of these, pages that the tier itself has not brought yet.
    lacking: FxHashSet<Slot>,
    /// Have come, and were not loaded yet.
    here: FxHashSet<Slot>,
    /// What has come from the tier.
    arrivals: Vec<Arrival>,
    /// The last time that was told, and until when pages are stored.
    now: u64,
    busy_until: u64,
}

/// A page that was asked for, and when.
struct Asked {
    slot: Slot,
    began: u64,
    predicted_ns: u64,
}

impl Slow {
    /// Each page stored or loaded takes at least this long.
    pub fn new(far: Box<dyn Far>, nanoseconds: u64) -> Self {
        Self {
            far,
            at_least_ns: nanoseconds,
            coming: VecDeque::new(),
            lacking: FxHashSet::default(),
            here: FxHashSet::default(),
            arrivals: Vec::new(),
            now: 0,
            busy_until: 0,
        }
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
        if let Some(asked) = self.coming.iter().find(|asked| asked.slot == slot) {
            let predicted_ns = (asked.began + asked.predicted_ns).saturating_sub(now_ns);
            return Ok(Fetch::Coming { predicted_ns });
        }
        let mut predicted_ns = self.at_least_ns;
        if let Fetch::Coming { predicted_ns: of_tier } = self.far.fetch(slot, now_ns)? {
            self.lacking.insert(slot);
            predicted_ns = predicted_ns.max(of_tier);
        }
        self.coming.push_back(Asked { slot, began: now_ns, predicted_ns });
        Ok(Fetch::Coming { predicted_ns })
    }

    fn arrived(&mut self, now_ns: u64, into: &mut Vec<Arrival>) {
        self.now = now_ns;
        self.far.arrived(now_ns, &mut self.arrivals);
        for arrival in self.arrivals.drain(..) {
            self.lacking.remove(&arrival.slot);
        }
        self.coming.retain(|&Asked { slot, began, predicted_ns }| {
            let waits = began + self.at_least_ns > now_ns || self.lacking.contains(&slot);
            if !waits {
                self.here.insert(slot);
                into.push(Arrival { slot, predicted_ns, took_ns: now_ns - began });
            }
            waits
        });
    }

    fn due(&self) -> u64 {
        let next = self.coming.iter().find(|asked| !self.lacking.contains(&asked.slot));
        next.map_or(u64::MAX, |asked| asked.began + self.at_least_ns).min(self.far.due())
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.far.descriptor()
    }

    fn busy_until(&self) -> u64 {
        self.busy_until
    }

    fn bytes(&self) -> u64 {
        self.far.bytes()
    }
}
