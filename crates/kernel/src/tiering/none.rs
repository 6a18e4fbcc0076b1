//! `none`: pages stay where they were first put.
//!
//! First touch fills the fast node, then the next. The base line of every comparison; the NOMAD
//! paper found it the best choice for Redis, whose accesses have no hot set that is worth moving.
//! Not to be used where the hot set is touched after the fast node has filled.

use super::{Memory, Named, Page, Policy};

/// The registry's entry.
pub static POLICY: Named = Named {
    what: "pages stay where first touched",
    foresees: false,
    knobs: Vec::new,
    make: |_| Ok(Box::new(Never)),
};

/// Does nothing.
#[derive(Debug)]
pub struct Never;

impl Policy for Never {
    fn write_fault(&mut self, mem: &mut dyn Memory, page: Page) {
        // It protects nothing; whatever did, the write must go through.
        let _ = mem.unprotect(page);
    }
}
