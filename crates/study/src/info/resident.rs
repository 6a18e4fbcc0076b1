//! The resident set beside the counts: most touches do not change it.

use nearfar_trace::{KindSet, Reader, Result};

use super::PAGE_SHIFT;
use crate::lifetimes::{self, Events, PAGE, ResidentSet, Spaces};

const _: () = assert!(PAGE == PAGE_SHIFT);

/// The resident set, and how far it has come in the trace.
pub struct Resident {
    /// The set itself.
    pub set: ResidentSet,
    events: Events,
    /// Number of the current interval between two events that changed anything, from 1.
    interval: u32,
    /// Space of the thread that runs.
    space: u32,
}

impl Resident {
    /// Nothing was touched yet.
    pub fn new(reader: &Reader) -> Result<Self> {
        let set = ResidentSet::new(Spaces::new(&reader.info().threads), true);
        Ok(Self { set, events: Events::new(reader)?, interval: 1, space: 0 })
    }

    /// Apply the events that come before record number `at`.
    pub fn events(&mut self, at: u64) {
        while let Some(event) = self.events.before(at) {
            self.interval += u32::from(self.set.event(&event));
        }
    }

    /// The records that follow are of this thread.
    pub fn runs(&mut self, thread: u32) {
        self.space = self.set.spaces().of_thread(thread);
    }

    /// Touch page `number` of the process that runs. `mark` is what the last such touch returned, or 0:
    /// twice the interval in which a read changes nothing, and 1 more when a write does not either.
    #[inline]
    pub fn touch(&mut self, mark: u32, number: u64, kind: u8) -> u32 {
        let write = KindSet::WRITES.0 >> kind & 1 == 1;
        if mark == self.interval << 1 | 1 || mark == self.interval << 1 && !write {
            return mark;
        }
        self.reference(number, write)
    }

    #[cold]
    fn reference(&mut self, number: u64, write: bool) -> u32 {
        let number = lifetimes::place(self.space, number << PAGE) >> PAGE;
        self.interval << 1 | u32::from(self.set.reference(number, write))
    }
}
