//! `tpp`: Transparent Page Placement.
//!
//! Maruf et al., "TPP: Transparent Page Placement for CXL-Enabled Tiered-Memory", ASPLOS'23, as
//! the kernel patch of the NOMAD project has it (Linux 5.13). The scanner arms slow pages: the next
//! access takes a hint fault. A hint fault on an inactive page only marks it accessed and lets it
//! fault again at once, until the activation has passed the pagevec. One on an active page promotes
//! it while the program waits, if the fast node is above its high watermark. kswapd demotes from the
//! inactive list when the fast node falls below the demotion watermark.
//!
//! If the hot set does not fit, each promotion stops the program and forces the demotion of a page
//! that is soon promoted again.

use super::knobs::Knobs;
use super::reclaim::{ByCopy, Reclaim, ReclaimKnobs};
use super::scan::{ScanKnobs, Scanner};
use super::{Memory, Next, NodeId, Page, Policy, PolicyEntry, Thread};
use crate::knobs;

knobs! {
    /// What TPP adds to scanner and kswapd.
    TppKnobs {
        arm_demoted: bool = "true", "the next access to a demoted page takes a hint fault",
            "NOMAD's kernel tree, migrate_pages of a demotion (also in NOMAD's runs of TPP)";
    }
}

pub static POLICY: PolicyEntry = PolicyEntry {
    what: "Transparent Page Placement: synchronous promotion on hint faults, kswapd demotes",
    follows: "TPP (ASPLOS'23), as the kernel patch of NOMAD has it for Linux 5.13",
    leaves_out: "file pages, swap",
    not_for: "a hot set larger than the fast node",
    foresees: false,
    knobs: || [TppKnobs::declared(), ScanKnobs::declared(), ReclaimKnobs::declared()].concat(),
    make: |settings, mem| {
        let reclaim = Reclaim::new(mem, &ReclaimKnobs::read(settings)?);
        let (scanner, first_scan) = Scanner::new(mem, settings)?;
        let demotion = ByCopy { arm: TppKnobs::read(settings)?.arm_demoted };
        Ok((Box::new(Tpp { reclaim, scanner, demotion }), vec![first_scan]))
    },
};

#[derive(Debug)]
pub struct Tpp {
    reclaim: Reclaim,
    scanner: Scanner,
    demotion: ByCopy,
}

impl Policy for Tpp {
    fn place(&mut self, mem: &dyn Memory, _: Page, frames: u32) -> NodeId {
        self.reclaim.place(mem, frames)
    }

    fn allocated(&mut self, mem: &mut dyn Memory, page: Page) {
        self.reclaim.allocated(mem, page);
    }

    fn released(&mut self, _: &mut dyn Memory, page: Page, span: u32) {
        self.reclaim.released(page, span);
    }

    fn hint_fault(&mut self, mem: &mut dyn Memory, page: Page, _: bool) {
        let reclaim = &mut self.reclaim;
        self.scanner.fault(mem.now());
        if mem.node_of(page) != NodeId::FAST {
            let span = mem.span(page);
            if !reclaim.lists.is_active(page) {
                // The entry is not restored: the same reference faults again.
                return reclaim.lists.mark_accessed(page, span);
            }
            if reclaim.has_room(mem, NodeId::FAST, page)
                && mem.move_page(page, NodeId::FAST).is_ok()
            {
                reclaim.moved(mem, page, true);
            }
            reclaim.wake_if_short(mem);
        }
        mem.disarm_hint(page);
    }

    fn work(&mut self, mem: &mut dyn Memory, thread: Thread) -> Next {
        if thread == self.scanner.thread() {
            return self.scanner.work(mem, |_| {});
        }
        self.reclaim.kswapd(mem, &mut self.demotion)
    }
}
