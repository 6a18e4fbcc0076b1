//! `nomad`: non-exclusive tiering with transactional page migration.
//!
//! Xiang et al., "Nomad: Non-Exclusive Memory Tiering via Transactional Page Migration", OSDI'24,
//! as its kernel module and patch for Linux 5.13 have it:
//!
//! * A hint fault restores the page's entry at once and puts the page on the promotion candidate
//!   queue (PCQ). Each fault walks the whole queue: a page that has left its node is dropped; one
//!   that is young and active goes to the migration pending queue (MPQ); a young one that is not
//!   yet active is marked accessed and stays; any other is dropped beyond the look-back.
//! * kpromote copies pages of the MPQ while the program goes on (a transaction). A page written
//!   meanwhile stays where it is and is tried again in the next pass.
//! * The old frame is kept as a **shadow**, the promoted page is write-protected. The first write
//!   (shadow fault) frees the shadow; demotion of a page that still has it needs no copy.
//! * Shadows are reclaimed in the order of their index when the slow node runs short or has no
//!   frame for a demotion.
//!
//! Left out: file and shared pages; the index is walked in order of page numbers, where the kernel
//! has the order of frames.
//!
//! Not to be used where the hot set is written and does not fit the fast node: shadows then cost a
//! fault each, hold slow memory, and save few copies (see `ssp`).

use std::collections::VecDeque;

use super::knobs::{Knob, Knobs, Settings};
use super::pages::PageSet;
use super::reclaim::{KSWAPD, Reclaim, ReclaimKnobs};
use super::scan::{ScanKnobs, Scanner};
use super::{
    Commit, Context, Drop, Memory, Named, Next, NodeId, Page, Policy, Thread, ThreadSpec, Time,
};
use crate::knobs;

knobs! {
    /// NOMAD's own constants.
    NomadKnobs {
        pcq_lookback: u64 = "20", "place in the candidate queue beyond which idle pages are dropped",
            "NOMAD, async_promote_main.c";
        mpq_size: u64 = "512", "pages that the migration pending queue holds",
            "NOMAD, async_promote_main.c";
        run_pages: u64 = "512", "most pages of one run of kpromote", "NOMAD, async_promote_main.c";
        run_passes: u64 = "10", "most passes over the pages of a run", "NOMAD, async_promote_main.c";
        demotion_drops: u64 = "10", "shadows freed when a demotion finds no frame",
            "NOMAD, nomad.patch, alloc_demote_page";
        arm_demoted: bool = "true", "a demoted page is armed at once", "NOMAD, nomad.patch";
    }
}

/// The registry's entry.
pub static POLICY: Named = Named {
    what: "NOMAD: transactional promotion, a shadow kept for every promoted page",
    foresees: false,
    knobs: declared,
    make: |settings| Ok(Box::new(Nomad::new(settings, Always)?)),
};

/// The knobs of every policy made of [`Nomad`].
pub(super) fn declared() -> Vec<Knob> {
    [NomadKnobs::declared(), ScanKnobs::declared(), ReclaimKnobs::declared()].concat()
}

/// Which promoted pages keep a shadow: what SSP changes of NOMAD.
pub trait ShadowRule: Send {
    /// Called once: page numbers are below `pages`.
    fn start(&mut self, pages: u32) {
        let _ = pages;
    }
    /// Whether the page, about to be promoted, keeps a shadow. Called once a promotion.
    fn keep_shadow(&mut self, page: Page) -> bool;
    /// The page was promoted.
    fn promoted(&mut self, page: Page) {
        let _ = page;
    }
    /// Whether a page promoted without a shadow is to be write-protected, so that its first write
    /// is [`written`](ShadowRule::written) too.
    fn watch_unshadowed(&self) -> bool {
        false
    }
    /// A page of the fast node was written for the first time since it was promoted (or first
    /// since it was write-protected).
    fn written(&mut self, page: Page) {
        let _ = page;
    }
    /// The page is about to be demoted; `dirty` is its dirty bit: written since its promotion.
    fn demoting(&mut self, page: Page, dirty: bool) {
        let _ = (page, dirty);
    }
}

/// NOMAD's own rule: always.
#[derive(Debug)]
pub struct Always;

impl ShadowRule for Always {
    fn keep_shadow(&mut self, _: Page) -> bool {
        true
    }
}

const SCANNER: Thread = Thread(1);
const KPROMOTE: Thread = Thread(2);

/// NOMAD with some rule for shadows.
#[derive(Debug)]
pub struct Nomad<R> {
    knobs: NomadKnobs,
    rule: R,
    scanner: Scanner,
    settings: ReclaimKnobs,
    kernel: Option<Kernel>,
    promote: Promote,
    pcq: VecDeque<Page>,
}

/// What `start` makes.
#[derive(Debug)]
struct Kernel {
    reclaim: Reclaim,
    shadows: PageSet,
    /// Pages on the MPQ or in kpromote's hands.
    pending: PageSet,
}

/// kpromote.
#[derive(Debug, Default)]
struct Promote {
    mpq: VecDeque<Page>,
    run: VecDeque<Page>,
    retry: VecDeque<Page>,
    passes: u64,
    copying: Option<(Page, bool)>,
}

impl<R: ShadowRule> Nomad<R> {
    /// NOMAD with `rule`.
    ///
    /// # Errors
    /// A knob out of place.
    pub fn new(settings: &Settings, rule: R) -> nearfar_trace::Result<Self> {
        Ok(Self {
            knobs: NomadKnobs::read(settings)?,
            rule,
            scanner: Scanner::new(settings)?,
            settings: ReclaimKnobs::read(settings)?,
            kernel: None,
            promote: Promote::default(),
            pcq: VecDeque::new(),
        })
    }

    /// A step of kpromote: end the copy of one page, begin that of the next.
    fn kpromote(&mut self, mem: &mut dyn Memory) -> Next {
        let Some(kernel) = &mut self.kernel else { return Next::Idle };
        let promote = &mut self.promote;
        if let Some((page, shadow)) = promote.copying.take() {
            match mem.commit_copy(page, shadow) {
                Ok(Commit::Dirtied) => promote.retry.push_back(page),
                Ok(Commit::Done) => {
                    kernel.promoted(mem, &mut self.rule, page, shadow);
                }
                Err(_) => {
                    kernel.pending.remove(page);
                }
            }
        }
        loop {
            let Some(page) = promote.run.pop_front() else {
                if !promote.retry.is_empty() && promote.passes < self.knobs.run_passes {
                    promote.passes += 1;
                    promote.run = std::mem::take(&mut promote.retry);
                    continue;
                }
                for page in promote.retry.drain(..) {
                    kernel.pending.remove(page);
                }
                if promote.mpq.is_empty() {
                    return Next::Idle;
                }
                let size = promote.mpq.len().min(self.knobs.run_pages as usize);
                promote.run = promote.mpq.drain(..size).collect();
                promote.passes = 1;
                continue;
            };
            if mem.node_of(page) == NodeId::FAST {
                kernel.pending.remove(page);
                continue;
            }
            let span = u64::from(mem.span(page));
            if mem.free(NodeId::FAST) < kernel.reclaim.marks(NodeId::FAST).min + span {
                // Out of memory: the rest of the run goes back to the lists.
                for page in promote.run.drain(..).chain(promote.retry.drain(..)).chain([page]) {
                    kernel.pending.remove(page);
                }
                mem.wake(KSWAPD);
                continue;
            }
            if span > 1 {
                // Only base pages are copied in a transaction.
                if mem.move_page(page, NodeId::FAST).is_ok() {
                    self.rule.promoted(page);
                    kernel.reclaim.moved(mem, page, true);
                }
                kernel.pending.remove(page);
                return Next::Again;
            }
            if mem.begin_copy(page, NodeId::FAST).is_ok() {
                let shadow = self.rule.keep_shadow(page);
                promote.copying = Some((page, shadow));
                return Next::Again;
            }
            kernel.pending.remove(page);
        }
    }
}

impl Kernel {
    fn promoted(&mut self, mem: &mut dyn Memory, rule: &mut dyn ShadowRule, page: Page, shadow: bool) {
        self.pending.remove(page);
        rule.promoted(page);
        if shadow {
            self.shadows.insert(page);
        } else if rule.watch_unshadowed() {
            mem.write_protect(page);
        }
        self.reclaim.moved(mem, page, true);
        self.reclaim.wake_if_short(mem);
    }
}

/// Free up to `most` shadows, in the order of the index; how many were freed.
fn drop_shadows(shadows: &mut PageSet, mem: &mut dyn Memory, most: u64) -> u64 {
    let mut dropped = 0;
    while dropped < most {
        let Some(page) = shadows.first() else { break };
        shadows.remove(page);
        if mem.drop_shadow(page, Drop::Reclaimed).is_ok() {
            dropped += 1;
        }
    }
    dropped
}

impl<R: ShadowRule> Policy for Nomad<R> {
    fn threads(&self) -> Vec<ThreadSpec> {
        let mut threads = super::tpp::scan_and_demote();
        threads.push(ThreadSpec { name: "kpromote", context: Context::Kernel });
        threads
    }

    fn start(&mut self, mem: &mut dyn Memory) -> Vec<(Thread, Time)> {
        self.kernel = Some(Kernel {
            reclaim: Reclaim::new(mem, &self.settings),
            shadows: PageSet::new(mem.pages()),
            pending: PageSet::new(mem.pages()),
        });
        self.rule.start(mem.pages());
        vec![(SCANNER, self.scanner.begin(mem))]
    }

    fn place(&mut self, mem: &dyn Memory, _: Page, frames: u32) -> NodeId {
        self.kernel.as_ref().map_or(NodeId::FAST, |kernel| kernel.reclaim.place(mem, frames))
    }

    fn allocated(&mut self, mem: &mut dyn Memory, page: Page) {
        let Some(kernel) = &mut self.kernel else { return };
        kernel.reclaim.allocated(mem, page);
    }

    fn pressure(&mut self, mem: &mut dyn Memory, node: NodeId) {
        // A slow node full of shadows is not full.
        if let Some(kernel) = &mut self.kernel
            && node != NodeId::FAST
        {
            drop_shadows(&mut kernel.shadows, mem, self.knobs.demotion_drops);
        }
    }

    fn hint_fault(&mut self, mem: &mut dyn Memory, page: Page, _: bool) {
        mem.disarm_hint(page);
        self.scanner.fault();
        let Some(kernel) = &mut self.kernel else { return };
        if mem.node_of(page) == NodeId::FAST {
            return;
        }
        let mut place = 0;
        let mut woken = false;
        self.pcq.retain(|candidate| {
            place += 1;
            if mem.node_of(*candidate) == NodeId::FAST || kernel.pending.contains(*candidate) {
                return false;
            }
            if !mem.accessed(*candidate) {
                return place <= self.knobs.pcq_lookback;
            }
            if !kernel.reclaim.lists.is_active(*candidate) {
                kernel.reclaim.lists.mark_accessed(*candidate, mem.span(*candidate));
                return true;
            }
            // A full queue drops the page silently; it will fault again.
            if self.promote.mpq.len() < self.knobs.mpq_size as usize {
                self.promote.mpq.push_back(*candidate);
                kernel.pending.insert(*candidate);
                woken = true;
            }
            false
        });
        if woken {
            mem.wake(KPROMOTE);
        }
        if !kernel.pending.contains(page) {
            // The kernel's list has the newest first; so the look-back is of the latest faults.
            self.pcq.push_front(page);
        }
    }

    fn write_fault(&mut self, mem: &mut dyn Memory, page: Page) {
        if let Some(kernel) = &mut self.kernel
            && mem.shadow_of(page).is_some()
            && mem.drop_shadow(page, Drop::Written).is_ok()
        {
            kernel.shadows.remove(page);
        }
        if mem.unprotect(page).is_ok() && mem.node_of(page) == NodeId::FAST {
            self.rule.written(page);
        }
    }

    fn work(&mut self, mem: &mut dyn Memory, thread: Thread) -> Next {
        match thread {
            SCANNER => return self.scanner.work(mem, |_| {}),
            KPROMOTE => return self.kpromote(mem),
            _ => {}
        }
        let Some(Kernel { reclaim, shadows, .. }) = &mut self.kernel else { return Next::Idle };
        let (knobs, rule) = (&self.knobs, &mut self.rule);
        // Demotion and relief both free shadows; one at a time.
        let shadows = std::cell::RefCell::new(shadows);
        let mut demote = |mem: &mut dyn Memory, page: Page, to: NodeId| {
            let shadows = &mut **shadows.borrow_mut();
            let dirty = mem.dirty(page);
            let mut done = mem.remap_to_shadow(page).is_ok();
            if done {
                shadows.remove(page);
            } else {
                done = mem.move_page(page, to).is_ok();
                if !done && drop_shadows(shadows, mem, knobs.demotion_drops) > 0 {
                    done = mem.move_page(page, to).is_ok();
                }
            }
            if done {
                rule.demoting(page, dirty);
                if knobs.arm_demoted {
                    mem.arm_hint(page);
                }
            }
            done
        };
        let mut relieve = |mem: &mut dyn Memory, _: NodeId, frames: u64| {
            drop_shadows(&mut shadows.borrow_mut(), mem, (frames / 2).max(1))
        };
        reclaim.kswapd(mem, &mut demote, &mut relieve)
    }
}
