//! A far tier with a minimum latency.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use rustc_hash::FxHashSet;

use super::{Arrival, Far, Fault, Fetch};
use crate::Slot;

/// Wraps a far tier. Any number of pages can be pending.
pub struct Slow {
    far: Box<dyn Far>,
    min_ns: u64,
    /// Pending pages, the earliest first.
    pending: VecDeque<Request>,
    /// Pending pages that the wrapped tier has not read yet.
    lacking: FxHashSet<Slot>,
    /// Pages that have arrived and are not loaded yet.
    ready: FxHashSet<Slot>,
    /// Scratch space for arrivals of the wrapped tier.
    arrivals: Vec<Arrival>,
    /// The time of the latest call of `arrived`.
    now: u64,
    busy_until: u64,
}

struct Request {
    slot: Slot,
    began: u64,
    predicted_ns: u64,
    /// The slot was freed meanwhile, so it may hold another page on arrival.
    is_freed: bool,
}

impl Slow {
    /// Each store or load takes at least `min_ns`.
    pub fn new(far: Box<dyn Far>, min_ns: u64) -> Self {
        Self {
            far,
            min_ns,
            pending: VecDeque::new(),
            lacking: FxHashSet::default(),
            ready: FxHashSet::default(),
            arrivals: Vec::new(),
            now: 0,
            busy_until: 0,
        }
    }
}

impl Far for Slow {
    /// Returns at once, but [`busy_until`](Far::busy_until) delays later stores.
    fn store(&mut self, page: &[u8]) -> Result<Slot, Fault> {
        let slot = self.far.store(page)?;
        self.busy_until = self.busy_until.max(self.now) + self.min_ns;
        Ok(slot)
    }

    fn load(&mut self, slot: Slot, page: &mut [u8]) -> Result<(), Fault> {
        if !self.ready.remove(&slot) {
            // Spin: a sleep would take longer than the latency of most memories.
            let began = Instant::now();
            while began.elapsed() < Duration::from_nanos(self.min_ns) {
                std::hint::spin_loop();
            }
        }
        self.far.load(slot, page)
    }

    fn free(&mut self, slot: Slot) {
        self.ready.remove(&slot);
        self.pending
            .iter_mut()
            .filter(|request| request.slot == slot)
            .for_each(|request| request.is_freed = true);
        self.far.free(slot);
    }

    fn fetch(&mut self, slot: Slot, now_ns: u64) -> Result<Fetch, Fault> {
        if self.ready.contains(&slot) {
            return Ok(Fetch::Ready);
        }
        if let Some(index) = self.pending.iter().position(|request| request.slot == slot) {
            let Request { began, predicted_ns, is_freed, .. } = self.pending[index];
            if !is_freed {
                let predicted_ns = (began + predicted_ns).saturating_sub(now_ns);
                return Ok(Fetch::Pending { predicted_ns });
            }
            // The slot holds another page now: report one arrival for both.
            self.pending.remove(index);
        }
        let mut predicted_ns = self.min_ns;
        if let Fetch::Pending { predicted_ns: tier_ns } = self.far.fetch(slot, now_ns)? {
            self.lacking.insert(slot);
            predicted_ns = predicted_ns.max(tier_ns);
        }
        self.pending.push_back(Request { slot, began: now_ns, predicted_ns, is_freed: false });
        Ok(Fetch::Pending { predicted_ns })
    }

    fn arrived(&mut self, now_ns: u64, into: &mut Vec<Arrival>) -> Result<(), Fault> {
        self.now = now_ns;
        self.far.arrived(now_ns, &mut self.arrivals)?;
        for arrival in self.arrivals.drain(..) {
            self.lacking.remove(&arrival.slot);
        }
        self.pending.retain(|&Request { slot, began, predicted_ns, is_freed }| {
            let waits = began + self.min_ns > now_ns || self.lacking.contains(&slot);
            if !waits {
                if !is_freed {
                    self.ready.insert(slot);
                }
                into.push(Arrival { slot, predicted_ns, took_ns: now_ns - began });
            }
            waits
        });
        Ok(())
    }

    fn due(&self) -> u64 {
        let next = self.pending.iter().find(|request| !self.lacking.contains(&request.slot));
        next.map_or(u64::MAX, |request| request.began + self.min_ns).min(self.far.due())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE;
    use crate::tests::Plain;

    #[test]
    fn a_page_in_the_slot_of_a_freed_one_takes_the_latency() {
        let mut far = Plain::of(1, /* slow: */ true);
        let mut arrivals = Vec::new();
        let first = far.store(&[1; PAGE]).unwrap();
        assert_eq!(far.fetch(first, 0), Ok(Fetch::Pending { predicted_ns: 700 }));
        far.free(first);
        assert_eq!(far.store(&[2; PAGE]), Ok(first));
        far.arrived(700, &mut arrivals).unwrap();
        assert_eq!(arrivals.iter().map(|one| one.slot).collect::<Vec<_>>(), [first]);
        assert_eq!(far.fetch(first, 700), Ok(Fetch::Pending { predicted_ns: 700 }));
        far.arrived(1400, &mut arrivals).unwrap();
        assert_eq!(far.fetch(first, 1400), Ok(Fetch::Ready));
        // The next page is requested before the freed one has arrived.
        far.free(first);
        assert_eq!(far.store(&[3; PAGE]), Ok(first));
        assert_eq!(far.fetch(first, 1500), Ok(Fetch::Pending { predicted_ns: 700 }));
        far.free(first);
        assert_eq!(far.store(&[4; PAGE]), Ok(first));
        assert_eq!(far.fetch(first, 2000), Ok(Fetch::Pending { predicted_ns: 700 }));
        arrivals.clear();
        far.arrived(2200, &mut arrivals).unwrap();
        assert_eq!(arrivals, []);
        far.arrived(2700, &mut arrivals).unwrap();
        assert_eq!(arrivals.iter().map(|one| one.took_ns).collect::<Vec<_>>(), [700]);
    }
}
