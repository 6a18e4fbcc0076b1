//! `tpp`: Transparent Page Placement.
//!
//! Maruf et al., "TPP: Transparent Page Placement for CXL-Enabled Tiered-Memory", ASPLOS'23, as
//! the kernel patch of the NOMAD project has it (Linux 5.13): slow pages are armed by the scanner;
//! a hint fault on an inactive page only marks it accessed and lets it fault again at once, until
//! the activation has passed the pagevec; one on an active page moves it up while the program
//! waits, if the fast node is above its high watermark. kswapd demotes from the inactive list when
//! the fast node falls below the demotion watermark.
//!
//! Not to be used where the hot set does not fit the fast node: each promotion stops the program
//! and forces a demotion, which soon is promoted again.

use super::knobs::Knobs;
use super::reclaim::{Reclaim, ReclaimKnobs};
use super::scan::{ScanKnobs, Scanner};
use super::{Context, Memory, Named, Next, NodeId, Page, Policy, Thread, ThreadSpec, Time};
use crate::knobs;

knobs! {
    /// What TPP adds to scanner and kswapd.
    TppKnobs {
        arm_demoted: bool = "true", "a demoted page is armed at once",
            "NOMAD's kernel tree, migrate_pages of a demotion (its TPP runs too)";
    }
}

/// The registry's entry.
pub static POLICY: Named = Named {
    what: "Transparent Page Placement: synchronous promotion on hint faults, kswapd demotes",
    foresees: false,
    knobs: || [TppKnobs::declared(), ScanKnobs::declared(), ReclaimKnobs::declared()].concat(),
    make: |settings| {
        Ok(Box::new(Tpp {
            knobs: TppKnobs::read(settings)?,
            scanner: Scanner::new(settings)?,
            reclaim: None,
            settings: ReclaimKnobs::read(settings)?,
        }))
    },
};

const SCANNER: Thread = Thread(1);

/// The threads of a policy that scans and demotes.
pub(super) fn scan_and_demote() -> Vec<ThreadSpec> {
    vec![
        ThreadSpec { name: "kswapd", context: Context::Kernel },
        ThreadSpec { name: "scanner", context: Context::Program },
    ]
}

/// TPP.
#[derive(Debug)]
pub struct Tpp {
    knobs: TppKnobs,
    scanner: Scanner,
    settings: ReclaimKnobs,
    /// Made by `start`.
    reclaim: Option<Reclaim>,
}

impl Policy for Tpp {
    fn threads(&self) -> Vec<ThreadSpec> {
        scan_and_demote()
    }

    fn start(&mut self, mem: &mut dyn Memory) -> Vec<(Thread, Time)> {
        self.reclaim = Some(Reclaim::new(mem, &self.settings));
        vec![(SCANNER, self.scanner.begin(mem))]
    }

    fn place(&mut self, mem: &dyn Memory, _: Page, frames: u32) -> NodeId {
        self.reclaim.as_ref().map_or(NodeId::FAST, |reclaim| reclaim.place(mem, frames))
    }

    fn allocated(&mut self, mem: &mut dyn Memory, page: Page) {
        let Some(reclaim) = &mut self.reclaim else { return };
        reclaim.allocated(mem, page);
    }

    fn hint_fault(&mut self, mem: &mut dyn Memory, page: Page, _: bool) {
        let Some(reclaim) = &mut self.reclaim else { return mem.disarm_hint(page) };
        self.scanner.fault();
        if mem.node_of(page) != NodeId::FAST {
            let span = mem.span(page);
            if !reclaim.lists.is_active(page) {
                // The entry is not restored: the same reference faults again.
                return reclaim.lists.mark_accessed(page, span);
            }
            let room = mem.free(NodeId::FAST) >= reclaim.marks(NodeId::FAST).high + u64::from(span);
            if room && mem.move_page(page, NodeId::FAST).is_ok() {
                reclaim.moved(mem, page, true);
            }
            reclaim.wake_if_short(mem);
        }
        mem.disarm_hint(page);
    }

    fn write_fault(&mut self, mem: &mut dyn Memory, page: Page) {
        let _ = mem.unprotect(page);
    }

    fn work(&mut self, mem: &mut dyn Memory, thread: Thread) -> Next {
        if thread == SCANNER {
            return self.scanner.work(mem, |_| {});
        }
        let Some(reclaim) = &mut self.reclaim else { return Next::Idle };
        let arm = self.knobs.arm_demoted;
        let mut demote = |mem: &mut dyn Memory, page: Page, to: NodeId| {
            let moved = mem.move_page(page, to).is_ok();
            if moved && arm {
                mem.arm_hint(page);
            }
            moved
        };
        reclaim.kswapd(mem, &mut demote, &mut |_, _, _| 0)
    }
}
