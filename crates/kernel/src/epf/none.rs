//! `none` (no_EPF in paper 002): on an embedded page fault (EPF), the core waits for the device, and
//! the kernel is not notified.

use super::{Epf, Fault, PolicyEntry, bare};

pub struct None;

impl Epf for None {
    fn pass(&self, _: &Fault) -> bool {
        false
    }
}

pub(super) const POLICY: PolicyEntry = PolicyEntry {
    name: "none",
    usage: "none",
    what: "the core waits for the device; no fault goes to the kernel",
    make: |argument| bare(argument, None),
};
