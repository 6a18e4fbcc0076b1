//! `ssp`: Selective Shadow Paging.
//!
//! Kim and Shin, "Selective Shadow Paging for CXL-based Hierarchical Memory Structure Management"
//! (SSP, 003): NOMAD, but a shadow is kept only for pages that are expected to stay clean. A flag
//! a page, `fast_dirty`: 0 at birth, cleared by every promotion, set by a write while the page is
//! in the fast tier, kept by demotion. A promotion with the flag 0 keeps a shadow (a copy), one
//! with 1 moves the page.
//!
//! The flag is set by a write to **any** promoted page; the paper does not say how a write to one
//! promoted without a shadow is noticed, as it need not be write-protected. `notice` chooses:
//!
//! * `write-protect` (default): the page is write-protected although it has no shadow; its first
//!   write is a fault that only sets the flag. Nearest to the text, which has no other means.
//! * `dirty-bit`: kswapd looks at the page's dirty bit when it demotes it. No fault.
//! * `shadow-fault`: only writes that free a shadow are noticed, not those to any promoted page;
//!   one that is written in every stay then keeps a shadow every other time.
//!
//! Where pages change between being read and being written from one stay in fast memory to the
//! next, history predicts the wrong thing.

use super::knobs::{KnobValue, Knobs, Settings};
use super::nomad::{self, Nomad, ShadowRule};
use super::pages::PageSet;
use super::{Capability, Memory, PolicyEntry, Page, need};
use crate::knobs;

/// How a write to a page without a shadow is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// By write-protecting it.
    WriteProtect,
    /// By the dirty bit at demotion.
    DirtyBit,
    /// Not at all.
    ShadowFault,
}

impl KnobValue for Notice {
    const KIND: &'static str = "write-protect, dirty-bit or shadow-fault";
    const CHOICES: &'static [&'static str] = &["write-protect", "dirty-bit", "shadow-fault"];
    fn read(text: &str, _: f64) -> std::result::Result<Self, String> {
        match text {
            "write-protect" => Ok(Notice::WriteProtect),
            "dirty-bit" => Ok(Notice::DirtyBit),
            "shadow-fault" => Ok(Notice::ShadowFault),
            _ => Err(format!("write {}", Self::KIND)),
        }
    }
}

knobs! {
    /// SSP's own.
    SspKnobs {
        notice: Notice = "write-protect", "how a write to a page without a shadow is noticed",
            "SSP (003): by a write to any promoted page; how, it leaves open";
    }
}

/// The registry's entry.
pub static POLICY: PolicyEntry = PolicyEntry {
    what: "Selective Shadow Paging: NOMAD, a shadow only for pages that stayed clean last time",
    follows: "Selective Shadow Paging (SSP, 003), on NOMAD (OSDI'24)",
    leaves_out: "file and shared pages",
    not_for: "pages that are read in one stay in fast memory and written in the next",
    foresees: false,
    knobs: || [SspKnobs::declared(), nomad::declared()].concat(),
    make: |settings, mem| {
        let rule = Selective::new(settings, mem)?;
        Nomad::make(settings, mem, rule)
    },
};

/// SSP's rule.
#[derive(Debug)]
pub struct Selective {
    notice: Notice,
    fast_dirty: PageSet,
}

impl Selective {
    fn new(settings: &Settings, mem: &dyn Memory) -> nearfar_trace::Result<Self> {
        let notice = SspKnobs::read(settings)?.notice;
        if notice == Notice::DirtyBit {
            need(mem, Capability::DirtyBits, "ssp", "set --knob ssp.notice=write-protect")?;
        }
        Ok(Self { notice, fast_dirty: PageSet::new(mem.page_limit()) })
    }
}

impl ShadowRule for Selective {
    fn keep_shadow(&mut self, page: Page) -> bool {
        !self.fast_dirty.contains(page)
    }

    fn promoted(&mut self, page: Page) {
        self.fast_dirty.remove(page);
    }

    fn watch_unshadowed(&self) -> bool {
        self.notice == Notice::WriteProtect
    }

    fn written(&mut self, page: Page) {
        self.fast_dirty.insert(page);
    }

    fn demoting(&mut self, page: Page, dirty: bool) {
        if dirty && self.notice == Notice::DirtyBit {
            self.fast_dirty.insert(page);
        }
    }

    fn released(&mut self, page: Page) {
        self.fast_dirty.remove(page);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{run, settings, thrash, thrashing};
    use super::super::{Action, Commit};
    use super::{KnobValue, Notice};

    #[test]
    fn keeps_a_shadow_of_some() {
        let actions = thrash("ssp", 3);
        for kept in [true, false] {
            let is = |action: &Action| matches!(action, Action::Committed(_, Commit::Done, s) if *s == kept);
            assert!(actions.iter().any(is), "{kept}");
        }
    }

    /// Without writes in the fast node SSP is NOMAD.
    #[test]
    fn of_reads_it_is_nomad() {
        let (nodes, reads) = ([10, 26], thrashing(0));
        let nomad = run("nomad", &settings("nomad").unwrap(), &nodes, &reads, false);
        for notice in Notice::CHOICES {
            let mut settings = settings("ssp").unwrap();
            settings.values.insert("notice".into(), (*notice).into());
            assert_eq!(nomad.actions, run("ssp", &settings, &nodes, &reads, false).actions);
        }
    }
}
