//! `ssp`: Selective Shadow Paging.
//!
//! Kim and Shin, "Selective Shadow Paging for CXL-based Hierarchical Memory Structure Management"
//! (SSP, paper 003): NOMAD, but a shadow is kept only for pages that are expected to stay clean. Each page
//! has a flag `fast_dirty`: initially 0, cleared by promotion, set by a write while the page is in the
//! fast tier, unchanged by demotion. A promotion with the flag 0 keeps a shadow (the old frame in the
//! slow tier), one with 1 moves the page.
//!
//! The flag is set by a write to **any** promoted page ("if a promoted page is requested to be
//! written"), and by no other write: a page that was allocated in the fast tier keeps the flag 0, so
//! its first promotion keeps a shadow. A page with a shadow is write-protected, and its first write
//! is a fault that sets the flag. `notice` chooses how the first write to a page promoted without a
//! shadow is noticed:
//!
//! * `dirty-bit` (default): kswapd reads the page's dirty bit when it demotes the page. The paper says
//!   only of pages with a shadow (master pages) that they are read-only, and explains SSP's higher
//!   bandwidth by fewer faults. NOMAD keeps the dirty bit usable: it clears the bit before it copies
//!   (`nomad_clean_pte`) and reads it to demote (`try_to_unmap`). If the memory has no dirty bits,
//!   `write-protect` is used.
//! * `write-protect`: the page is write-protected although it has no shadow, and its first write is
//!   a fault that only sets the flag. NOMAD protects every page that it promotes
//!   (`remap_clean_page`); if SSP kept that, there would be as many faults as in NOMAD.
//! * `shadow-fault`: only writes that free a shadow are noticed. A page that is written in every stay
//!   in fast memory then keeps a shadow at every other promotion.

use super::knobs::{KnobValue, Knobs, Settings};
use super::nomad::{self, Nomad, ShadowRule};
use super::pages::PageSet;
use super::{Capability, Memory, Page, PolicyEntry, need};
use crate::knobs;

/// How a write to a page without a shadow is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// By the dirty bit at demotion.
    DirtyBit,
    /// By write-protecting the page.
    WriteProtect,
    /// Not at all.
    ShadowFault,
}

impl KnobValue for Notice {
    const KIND: &'static str = "dirty-bit, write-protect or shadow-fault";
    const CHOICES: &'static [&'static str] = &["dirty-bit", "write-protect", "shadow-fault"];
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
    /// SSP's constants.
    SspKnobs {
        notice: Notice = "dirty-bit",
            "how a write to a page without a shadow is noticed; write-protect if there are no dirty bits",
            "SSP (003): only pages with a shadow are read-only, and the gain is due to fewer faults";
    }
}

pub static POLICY: PolicyEntry = PolicyEntry {
    what: "Selective Shadow Paging: NOMAD with shadows only for pages not written in their last stay in fast memory",
    follows: "Selective Shadow Paging (SSP, paper 003), on NOMAD (OSDI'24)",
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
        let mut notice = SspKnobs::read(settings)?.notice;
        if notice == Notice::DirtyBit && !mem.has(Capability::DirtyBits) {
            if settings.values.contains_key("notice") {
                need(mem, &[Capability::DirtyBits], "ssp", "set --knob ssp.notice=write-protect")?;
            }
            notice = Notice::WriteProtect;
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
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::testing::{
        COSTS, PAGES, ReferenceMemory, Step, drive, run, settings, steps, thrash, thrashing,
    };
    use super::super::{Action, Capability, Commit, Memory, NodeId, Settings};
    use super::{KnobValue, Notice, Page};

    fn noticing(notice: &str) -> Settings {
        let mut settings = settings("ssp").unwrap();
        settings.values.insert("notice".into(), notice.into());
        settings
    }

    #[test]
    fn some_promotions_keep_a_shadow_and_some_do_not() {
        let actions = thrash("ssp", 3);
        for kept in [true, false] {
            let is = |action: &Action| matches!(action, Action::Committed(_, Commit::Done, s) if *s == kept);
            assert!(actions.iter().any(is), "{kept}");
        }
    }

    /// Every page is written before its first promotion, and only read afterwards.
    #[test]
    fn without_writes_to_promoted_pages_ssp_acts_as_nomad() {
        let born = (0..PAGES).map(Step::Write);
        let (nodes, steps) = ([10, 26], born.chain(thrashing(0)).collect::<Vec<_>>());
        let nomad =
            run("nomad", &settings("nomad").unwrap(), &nodes, &steps, /* huge: */ false);
        assert!(nomad.actions.iter().any(|(_, action)| matches!(action, Action::Remapped(_))));
        for notice in Notice::CHOICES {
            assert_eq!(
                nomad.actions,
                run("ssp", &noticing(notice), &nodes, &steps, /* huge: */ false).actions
            );
        }
    }

    /// Check that each page's flag, as the paper describes it, decides about shadows. A flag is `None`
    /// (either value) if the page was written and moved in one step. Returns the promotions without and
    /// with a shadow.
    fn check_flags(settings: &Settings, nodes: &[usize], steps: &[Step]) -> [u64; 2] {
        let mut memory = ReferenceMemory::new(COSTS, nodes, PAGES, /* huge: */ false);
        let mut policy = memory.start("ssp", settings).unwrap();
        let mut flags = vec![Some(false); PAGES as usize];
        let mut promoted = BTreeSet::new();
        let mut kept = [0; 2];
        for step in steps {
            let from = memory.actions.len();
            drive(&mut memory, &mut *policy, &[*step]);
            let written = match *step {
                Step::Write(page) => Some(Page::new(page % PAGES)),
                _ => None,
            };
            let mut moved = false;
            for (_, action) in &memory.actions[from..] {
                match *action {
                    Action::Committed(page, Commit::Done, shadow) => {
                        let flag = &mut flags[page.index()];
                        assert!(
                            flag.is_none_or(|flag| flag != shadow),
                            "{page:?}: {flag:?}, {shadow}"
                        );
                        kept[usize::from(shadow)] += 1;
                        promoted.insert(page);
                        *flag = Some(false);
                        moved |= written == Some(page);
                    }
                    Action::Moved(page, _) | Action::Remapped(page) => {
                        moved |= written == Some(page)
                    }
                    _ => {}
                }
            }
            if let Step::Release(page) = *step {
                flags[(page % PAGES) as usize] = Some(false);
                promoted.remove(&Page::new(page % PAGES));
            }
            if let Some(page) = written.filter(|page| promoted.contains(page)) {
                let flag = &mut flags[page.index()];
                if moved {
                    *flag = None;
                } else if memory.node_of(page) == NodeId::FAST {
                    *flag = Some(true);
                }
            }
        }
        kept
    }

    proptest! {
        #[test]
        fn a_write_to_a_promoted_page_prevents_its_next_shadow(steps in steps(), three: bool) {
            let nodes: &[usize] = if three { &[8, 12, 24] } else { &[10, 26] };
            for notice in ["dirty-bit", "write-protect"] {
                check_flags(&noticing(notice), nodes, &steps);
            }
        }
    }

    #[test]
    fn promotions_occur_with_both_flags() {
        for notice in ["dirty-bit", "write-protect"] {
            let [without, with] = check_flags(&noticing(notice), &[10, 26], &thrashing(3));
            assert!(without > 20 && with > 20, "{notice}: {without}, {with}");
        }
    }

    /// An explicit `dirty-bit` is refused instead.
    #[test]
    fn without_dirty_bits_the_default_is_write_protect() {
        let actions = |settings: &Settings, lacking: bool| {
            let memory = ReferenceMemory::new(COSTS, &[10, 26], PAGES, /* huge: */ false);
            let mut memory = if lacking { memory.lacking(Capability::DirtyBits) } else { memory };
            let mut policy = memory.start("ssp", settings).map_err(|error| error.to_string())?;
            drive(&mut memory, &mut *policy, &thrashing(3));
            Ok::<_, String>(memory.actions)
        };
        let default_settings = settings("ssp").unwrap();
        assert_eq!(actions(&default_settings, true), actions(&noticing("write-protect"), false));
        assert_eq!(actions(&default_settings, false), actions(&noticing("dirty-bit"), false));
        assert_ne!(actions(&default_settings, false), actions(&default_settings, true));
        assert!(actions(&noticing("dirty-bit"), true).unwrap_err().contains("write-protect"));
    }
}
