//! The resident set over the trace. A mark per page lets most touches skip the update.

use nearfar_trace::{KindSet, Reader, Result};

use crate::lifetimes::{self, Events, PAGE_SHIFT, ResidentSet, Spaces};

/// The resident set at the current position in the trace.
pub struct ResidentTracker {
    pub set: ResidentSet,
    events: Events,
    /// Number of events so far that changed a page or an address space, plus 1.
    epoch: u32,
    /// Address space of the running thread.
    space: u32,
}

impl ResidentTracker {
    pub fn new(reader: &Reader) -> Result<Self> {
        let files = true;
        let set = ResidentSet::new(Spaces::new(&reader.info().threads), files);
        Ok(Self { set, events: Events::new(reader)?, epoch: 1, space: 0 })
    }

    /// Apply the events before record number `at`.
    pub fn events(&mut self, at: u64) {
        while let Some(event) = self.events.before(at) {
            self.epoch += u32::from(self.set.event(&event));
        }
    }

    pub fn switch_to(&mut self, thread: u32) {
        self.space = self.set.spaces().of_thread(thread);
    }

    /// Touch page `number` of the running process. `mark` is the result of the last touch of this
    /// page by this process, or 0. It is an epoch, shifted left by 1: during that epoch, further reads
    /// of the page have no effect. If bit 0 is set, writes have none either.
    #[inline]
    pub fn touch(&mut self, mark: u32, number: u64, kind: u8) -> u32 {
        let write = KindSet::WRITES.has(kind);
        if mark == self.epoch << 1 | 1 || mark == self.epoch << 1 && !write {
            return mark;
        }
        self.reference(number, write)
    }

    #[cold]
    fn reference(&mut self, number: u64, write: bool) -> u32 {
        let number = lifetimes::place(self.space, number << PAGE_SHIFT) >> PAGE_SHIFT;
        self.epoch << 1 | u32::from(self.set.reference(number, write))
    }
}
