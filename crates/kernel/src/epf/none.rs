//! `none` (the paper's no_EPF): the core waits for the device, the kernel is not notified.

use super::{Epf, Fault, Named, bare};

/// See the module.
pub struct None;

impl Epf for None {
    fn pass(&self, _: &Fault) -> bool {
        false
    }
}

pub(super) const NAMED: Named = Named {
    name: "none",
    usage: "none",
    what: "the core waits for the device; no fault goes to the kernel",
    make: |argument| bare(argument, None),
};
