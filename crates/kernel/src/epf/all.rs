//! `all` (all_EPF in paper 002): every embedded page fault goes to the kernel.

use super::{Epf, Fault, PolicyEntry, bare};

pub struct All;

impl Epf for All {
    fn pass(&self, _: &Fault) -> bool {
        true
    }
}

pub(super) const POLICY: PolicyEntry = PolicyEntry {
    name: "all",
    usage: "all",
    what: "every embedded page fault goes to the kernel, where the thread sleeps",
    make: |argument| bare(argument, All),
};
