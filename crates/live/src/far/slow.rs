//! A far tier that takes at least so long.

use std::time::{Duration, Instant};

use super::{Far, Fault};
use crate::Slot;

/// Any far tier, made slower.
pub struct Slow {
    far: Box<dyn Far>,
    at_least: Duration,
}

impl Slow {
    /// Each page stored or loaded takes at least this long.
    pub fn new(far: Box<dyn Far>, nanoseconds: u64) -> Self {
        Self { far, at_least: Duration::from_nanos(nanoseconds) }
    }

    fn taking<R>(&mut self, act: impl FnOnce(&mut dyn Far) -> R) -> R {
        let began = Instant::now();
        let done = act(&mut *self.far);
        // Sleeping would take longer than most memories do.
        while began.elapsed() < self.at_least {
            std::hint::spin_loop();
        }
        done
    }
}

impl Far for Slow {
    fn store(&mut self, page: &[u8]) -> Result<Slot, Fault> {
        self.taking(|far| far.store(page))
    }
    fn load(&mut self, slot: Slot, page: &mut [u8]) -> Result<(), Fault> {
        self.taking(|far| far.load(slot, page))
    }
    fn free(&mut self, slot: Slot) {
        self.far.free(slot);
    }
    fn bytes(&self) -> u64 {
        self.far.bytes()
    }
}
