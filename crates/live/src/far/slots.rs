//! Allocation of slots, the places of pages in a far tier.

use super::Fault;
use crate::Slot;

/// The free slots: those in `free`, and those from `next` to below `limit`.
#[derive(Debug)]
pub(crate) struct Slots {
    free: Vec<u32>,
    next: u32,
    limit: u32,
}

impl Slots {
    pub(crate) fn new(limit: u32) -> Self {
        Self { free: Vec::new(), next: 0, limit }
    }

    pub(crate) fn take(&mut self) -> Result<Slot, Fault> {
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.next < self.limit => {
                self.next += 1;
                self.next - 1
            }
            None => return Err(Fault::Full),
        };
        Ok(Slot::new(number))
    }

    pub(crate) fn free(&mut self, slot: Slot) {
        self.free.push(slot.number());
    }
}
