//! `none`: pages stay where they were first put.
//!
//! First touch fills the fast node, then the next.

use super::{Memory, Page, Policy, PolicyEntry};

pub static POLICY: PolicyEntry = PolicyEntry {
    what: "pages stay where first touched",
    follows: "",
    leaves_out: "",
    not_for: "a hot set that is first touched after the fast node has filled",
    foresees: false,
    knobs: Vec::new,
    make: |_, _| Ok((Box::new(Never), Vec::new())),
};

/// Does nothing.
#[derive(Debug)]
pub struct Never;

impl Policy for Never {
    fn released(&mut self, _: &mut dyn Memory, _: Page, _: u32) {}
}

#[cfg(test)]
mod tests {
    use super::super::testing::thrash;

    #[test]
    fn takes_no_action() {
        assert!(thrash("none", 3).is_empty());
    }
}
