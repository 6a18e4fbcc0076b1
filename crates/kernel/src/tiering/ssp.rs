//! `ssp`: Selective Shadow Paging.
//!
//! Kim and Shin, "Selective Shadow Paging for CXL-based Hierarchical Memory Structure Management"
//! (paper 003): NOMAD, but a shadow is kept only for pages that are expected to stay clean. A flag
//! a page, `fast_dirty`: 0 at birth, cleared by every promotion, set by a write while the page is
//! in the fast tier, kept by demotion. A promotion with the flag 0 keeps a shadow (a copy), one
//! with 1 moves the page.
//!
//! The paper does not say how a write to a page promoted without a shadow is noticed, as such a
//! page need not be write-protected. `notice` chooses:
//!
//! * `dirty-bit` (default): kswapd looks at the page's dirty bit when it demotes it. No fault.
//! * `write-protect`: the page is write-protected although it has no shadow; its first write is a
//!   fault that only sets the flag.
//! * `shadow-fault`: only writes that free a shadow are noticed, which is the literal text; a
//!   page that is written in every stay then keeps a shadow every other time.
//!
//! Not to be used where pages change between being read and being written from one stay in fast
//! memory to the next: history then predicts the wrong thing.

use super::knobs::{KnobValue, Knobs, Settings};
use super::nomad::{self, Nomad, ShadowRule};
use super::pages::PageSet;
use super::{Named, Page};
use crate::knobs;

/// How a write to a page without a shadow is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// By the dirty bit at demotion.
    DirtyBit,
    /// By write-protecting it.
    WriteProtect,
    /// Not at all.
    ShadowFault,
}

impl KnobValue for Notice {
    const KIND: &'static str = "dirty-bit, write-protect or shadow-fault";
    fn read(text: &str, _: f64) -> std::result::Result<Self, String> {
        match text {
            "dirty-bit" => Ok(Notice::DirtyBit),
            "write-protect" => Ok(Notice::WriteProtect),
            "shadow-fault" => Ok(Notice::ShadowFault),
            _ => Err(format!("write {}", Self::KIND)),
        }
    }
}

knobs! {
    /// SSP's own.
    SspKnobs {
        notice: Notice = "dirty-bit", "how a write to a page without a shadow is noticed",
            "paper 003 leaves it open";
    }
}

/// The registry's entry.
pub static POLICY: Named = Named {
    what: "Selective Shadow Paging: NOMAD, a shadow only for pages that stayed clean last time",
    foresees: false,
    knobs: || [SspKnobs::declared(), nomad::declared()].concat(),
    make: |settings| Ok(Box::new(Nomad::new(settings, Selective::new(settings)?)?)),
};

/// SSP's rule.
#[derive(Debug)]
pub struct Selective {
    notice: Notice,
    fast_dirty: PageSet,
}

impl Selective {
    fn new(settings: &Settings) -> nearfar_trace::Result<Self> {
        Ok(Self { notice: SspKnobs::read(settings)?.notice, fast_dirty: PageSet::default() })
    }
}

impl ShadowRule for Selective {
    fn start(&mut self, pages: u32) {
        self.fast_dirty = PageSet::new(pages);
    }

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
}
