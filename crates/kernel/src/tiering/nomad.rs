//! `nomad`: non-exclusive tiering with transactional page migration.
//!
//! Xiang et al., "Nomad: Non-Exclusive Memory Tiering via Transactional Page Migration", OSDI'24,
//! as its kernel module and patch for Linux 5.13 have it:
//!
//! * A hint fault restores the page's entry at once and puts the page on the promotion candidate
//!   queue (PCQ). Each fault walks the whole queue: a page that was promoted or awaits promotion is
//!   dropped; a young (accessed) and active one goes to the migration pending queue (MPQ); a young one
//!   that is not active is marked accessed and stays; any other is dropped beyond position `pcq_lookback`.
//! * kpromote copies pages of the MPQ while the program keeps running (a transaction). A page written
//!   during the copy stays where it is and is tried again in the next pass.
//! * The old frame is kept as a **shadow**, the promoted page is write-protected. The first write
//!   (shadow fault) frees the shadow; demotion of a page that still has it needs no copy.
//! * Shadows are reclaimed when the slow node runs short or has no frame for a demotion: here in the
//!   order of page numbers, in the kernel in the order of frame numbers.
//!
//! If the hot set is written and does not fit the fast node, shadows cost a fault each, hold slow memory,
//! and save few copies.

use std::collections::VecDeque;

use rustc_hash::FxHashSet;

use super::knobs::{Knob, Knobs, Settings};
use super::pages::PageSet;
use super::reclaim::{Demotion, Reclaim, ReclaimKnobs, arm_demoted};
use super::scan::{ScanKnobs, Scanner};
use super::{
    Commit, Context, DropReason, Made, Memory, Next, NodeId, Page, Policy, PolicyEntry, Refused,
    Tenant, Thread,
};
use crate::knobs;

knobs! {
    /// NOMAD's own constants.
    NomadKnobs {
        pcq_lookback: u64 = "20", "position in the promotion candidate queue beyond which unaccessed pages are dropped",
            "NOMAD, async_promote_main.c";
        mpq_size: u64 = "512" (in tests "4"), "maximum pages in the migration pending queue",
            "NOMAD, async_promote_main.c";
        run_pages: u64 = "512" (in tests "3"), "maximum pages of one run of kpromote, the promotion thread", "NOMAD, async_promote_main.c";
        run_passes: u64 = "10" (in tests "2"), "maximum passes of kpromote over the pages of a run", "NOMAD, async_promote_main.c";
        demotion_drops: u64 = "10", "shadows freed when a demotion or an allocation finds the slow node full",
            "NOMAD, nomad.patch, alloc_demote_page";
        arm_demoted: bool = "true", "the next access to a demoted page takes a hint fault", "NOMAD, nomad.patch";
        groups: u64 = "1", "number of memory control groups; a pass of kswapd frees shadows once for each",
            "NOMAD, nomad.patch, shrink_lruvec; 1: a system without control groups";
    }
}

pub static POLICY: PolicyEntry = PolicyEntry {
    what: "NOMAD: transactional promotion, a shadow kept for every promoted page",
    follows: "NOMAD (OSDI'24), kernel module and patch for Linux 5.13",
    leaves_out: "file and shared pages",
    not_for: "a hot set that is written and does not fit the fast node",
    foresees: false,
    knobs: declared,
    make: |settings, mem| Nomad::make(settings, mem, Always),
};

/// The knobs of every policy that is a [`Nomad`].
pub(super) fn declared() -> Vec<Knob> {
    [NomadKnobs::declared(), ScanKnobs::declared(), ReclaimKnobs::declared()].concat()
}

/// Which promoted pages keep a shadow: the part of NOMAD that SSP (`ssp.rs`) replaces.
pub trait ShadowRule: Send {
    /// Whether the page, about to be promoted, keeps a shadow. Called once per promotion.
    fn keep_shadow(&mut self, page: Page) -> bool;
    /// The page was promoted.
    fn promoted(&mut self, _page: Page) {}
    /// Whether a page promoted without a shadow is write-protected, so that its first write calls
    /// [`written`](ShadowRule::written) too. A page that cannot be protected counts as written.
    fn watch_unshadowed(&self) -> bool {
        false
    }
    /// A page of the fast node was written for the first time since it was promoted (or first
    /// since it was write-protected).
    fn written(&mut self, _page: Page) {}
    /// The page has left the fast node. `dirty`: by its dirty bit, it was written since its promotion;
    /// false for a page that was allocated there and never promoted.
    fn demoting(&mut self, _page: Page, _dirty: bool) {}
    /// The page was released.
    fn released(&mut self, _page: Page) {}
}

/// NOMAD's rule: every promoted page keeps a shadow.
#[derive(Debug)]
pub struct Always;

impl ShadowRule for Always {
    fn keep_shadow(&mut self, _: Page) -> bool {
        true
    }
}

/// NOMAD with some rule for shadows.
#[derive(Debug)]
pub struct Nomad<R> {
    knobs: NomadKnobs,
    rule: R,
    reclaim: Reclaim,
    scanner: Scanner,
    /// The promotion candidate queue, newest first.
    pcq: VecDeque<Page>,
    promote: Promote,
    /// Pages that were promoted at least once. If one is in the fast node, its last move was a promotion.
    promoted: PageSet,
    /// Pages that have or had a shadow. One that loses its shadow stays until shadows are reclaimed,
    /// because removing it at once would be another cache miss.
    shadows: PageSet,
}

/// kpromote and its queues.
#[derive(Debug)]
struct Promote {
    thread: Thread,
    /// The migration pending queue.
    mpq: VecDeque<Page>,
    run: VecDeque<Page>,
    retry: VecDeque<Page>,
    passes: u64,
    /// The page that is being copied, and whether it keeps a shadow.
    copying: Option<(Page, bool)>,
    /// The pages of these queues and of `copying`: a small set, which stays in the cache.
    pending: FxHashSet<Page>,
}

impl Promote {
    /// The next page to promote: of this run, of a further pass over it, or of a new run.
    fn next(&mut self, knobs: &NomadKnobs) -> Option<Page> {
        loop {
            if let Some(page) = self.run.pop_front() {
                return Some(page);
            }
            if !self.retry.is_empty() && self.passes < knobs.run_passes {
                self.passes += 1;
                self.run = std::mem::take(&mut self.retry);
                continue;
            }
            self.give_up_retries();
            if self.mpq.is_empty() {
                return None;
            }
            let size = self.mpq.len().min(knobs.run_pages.max(1) as usize);
            self.run = self.mpq.drain(..size).collect();
            self.passes = 1;
        }
    }

    fn give_up_retries(&mut self) {
        for page in self.retry.drain(..) {
            self.pending.remove(&page);
        }
    }

    /// Give up `page` and the rest of the run.
    fn give_up_run(&mut self, page: Page) {
        self.pending.remove(&page);
        for page in self.run.drain(..) {
            self.pending.remove(&page);
        }
        self.give_up_retries();
    }

    fn forget(&mut self, page: Page) {
        if self.pending.remove(&page) {
            for queue in [&mut self.mpq, &mut self.run, &mut self.retry] {
                queue.retain(|queued| *queued != page);
            }
            self.copying = self.copying.filter(|(copied, _)| *copied != page);
        }
    }
}

impl<R: ShadowRule + 'static> Nomad<R> {
    /// NOMAD with `rule`.
    ///
    /// # Errors
    /// A knob is invalid.
    pub fn make(settings: &Settings, mem: &mut dyn Memory, rule: R) -> nearfar_trace::Result<Made> {
        let reclaim = Reclaim::new(mem, &ReclaimKnobs::read(settings)?);
        let (scanner, first_scan) = Scanner::new(mem, settings)?;
        let policy = Self {
            knobs: NomadKnobs::read(settings)?,
            rule,
            reclaim,
            scanner,
            pcq: VecDeque::new(),
            promote: Promote {
                thread: mem.spawn("kpromote", Context::Kernel),
                mpq: VecDeque::new(),
                run: VecDeque::new(),
                retry: VecDeque::new(),
                passes: 0,
                copying: None,
                pending: FxHashSet::default(),
            },
            promoted: PageSet::new(mem.page_limit()),
            shadows: PageSet::new(mem.page_limit()),
        };
        Ok((Box::new(policy), vec![first_scan]))
    }
}

impl<R: ShadowRule> Nomad<R> {
    /// A step of kpromote: end the copy of one page, begin that of the next.
    fn kpromote(&mut self, mem: &mut dyn Memory) -> Next {
        if let Some((page, shadow)) = self.promote.copying {
            let outcome = mem.commit_copy(page, shadow);
            if outcome == Err(Refused::Busy) {
                return Next::Idle;
            }
            self.promote.copying = None;
            match outcome {
                Ok(Commit::Done) => self.promoted(mem, page, shadow),
                Ok(Commit::Dirtied | Commit::Pinned) => self.promote.retry.push_back(page),
                Err(_) => {
                    self.promote.pending.remove(&page);
                }
            }
        }
        while let Some(page) = self.promote.next(&self.knobs) {
            if mem.node_of(page) == NodeId::FAST {
                self.promote.pending.remove(&page);
                continue;
            }
            let span = u64::from(mem.span(page));
            let min = self.reclaim.marks(NodeId::FAST).min;
            let left = self.reclaim.reserve(mem, page, min);
            if left > min && mem.free(NodeId::FAST) < left + span {
                // The page's tenant is above its share: only this page is given up.
                self.promote.pending.remove(&page);
                self.reclaim.wake(mem);
                continue;
            }
            if mem.free(NodeId::FAST) < min + span {
                // Out of memory: the kernel gives up the whole run.
                self.promote.give_up_run(page);
                self.reclaim.wake(mem);
                continue;
            }
            if span > 1 {
                // Only base pages are copied in a transaction.
                if mem.move_page(page, NodeId::FAST).is_ok() {
                    self.arrived(mem, page);
                }
                self.promote.pending.remove(&page);
                return Next::Again;
            }
            match mem.begin_copy(page, NodeId::FAST, self.promote.thread) {
                Ok(()) => {
                    self.prefetch(mem, page);
                    self.promote.copying = Some((page, self.rule.keep_shadow(page)));
                    return Next::Idle;
                }
                Err(Refused::Pinned) => self.promote.retry.push_back(page),
                Err(_) => {
                    self.promote.pending.remove(&page);
                }
            }
        }
        Next::Idle
    }

    /// Prefetch what the end of this copy and the start of the next need.
    fn prefetch(&self, mem: &dyn Memory, copied: Page) {
        self.reclaim.lists.prefetch_neighbours(copied);
        if let Some(&next) = self.promote.run.front() {
            self.reclaim.lists.prefetch(next);
            self.shadows.prefetch(next);
            mem.prefetch(next);
        }
    }

    fn promoted(&mut self, mem: &mut dyn Memory, page: Page, shadow: bool) {
        self.promote.pending.remove(&page);
        self.arrived(mem, page);
        if shadow {
            self.shadows.insert(page);
        } else if self.rule.watch_unshadowed() && mem.write_protect(page).is_err() {
            self.rule.written(page);
        }
        self.reclaim.wake_if_short(mem);
    }

    /// The page was moved to the fast node.
    fn arrived(&mut self, mem: &dyn Memory, page: Page) {
        self.promoted.insert(page);
        self.rule.promoted(page);
        self.reclaim.moved(mem, page, true);
    }
}

/// Free up to `limit` shadows, in the order of page numbers. Returns how many were freed.
fn drop_shadows(shadows: &mut PageSet, mem: &mut dyn Memory, limit: u64) -> u64 {
    let mut dropped = 0;
    while dropped < limit {
        let Some(page) = shadows.first() else { break };
        shadows.remove(page);
        if mem.drop_shadow(page, DropReason::Reclaimed).is_ok() {
            dropped += 1;
        }
    }
    dropped
}

/// Demotion to the shadow, or by a copy.
struct ToShadow<'a, R> {
    knobs: &'a NomadKnobs,
    rule: &'a mut R,
    promoted: &'a PageSet,
    shadows: &'a mut PageSet,
}

impl<R: ShadowRule> Demotion for ToShadow<'_, R> {
    fn demote(&mut self, mem: &mut dyn Memory, page: Page, to: NodeId) -> bool {
        let from_fast = mem.node_of(page) == NodeId::FAST;
        let dirty = from_fast && mem.dirty(page) && self.promoted.contains(page);
        let mut done = mem.remap_to_shadow(page).is_ok();
        if !done {
            let moved = mem.move_page(page, to);
            done = moved.is_ok();
            if moved == Err(Refused::NoFrame)
                && drop_shadows(self.shadows, mem, self.knobs.demotion_drops) > 0
            {
                done = mem.move_page(page, to).is_ok();
            }
        }
        if done {
            if from_fast {
                self.rule.demoting(page, dirty);
            }
            if self.knobs.arm_demoted {
                arm_demoted(mem, page);
            }
        }
        done
    }

    fn relieve(&mut self, mem: &mut dyn Memory, frames: u64) -> u64 {
        let groups = self.knobs.groups.max(1);
        // `shrink_lruvec` asks for `nr_to_reclaim / 2`.
        drop_shadows(self.shadows, mem, (frames / 2).max(1).saturating_mul(groups))
    }
}

impl<R: ShadowRule> Policy for Nomad<R> {
    fn place(&mut self, mem: &dyn Memory, _: Page, frames: u32) -> NodeId {
        self.reclaim.place(mem, frames)
    }

    fn allocated(&mut self, mem: &mut dyn Memory, page: Page) {
        self.reclaim.allocated(mem, page);
    }

    fn released(&mut self, _: &mut dyn Memory, page: Page, span: u32) {
        self.reclaim.released(page, span);
        self.pcq.retain(|candidate| *candidate != page);
        self.promote.forget(page);
        self.promoted.remove(page);
        self.shadows.remove(page);
        self.rule.released(page);
    }

    fn pressure(&mut self, mem: &mut dyn Memory, node: NodeId, _: Tenant) {
        // Shadows that fill a slow node can be freed.
        if node != NodeId::FAST {
            drop_shadows(&mut self.shadows, mem, self.knobs.demotion_drops);
        }
    }

    fn hint_fault(&mut self, mem: &mut dyn Memory, page: Page, _: bool) {
        mem.disarm_hint(page);
        self.scanner.fault(mem.now());
        if mem.node_of(page) == NodeId::FAST {
            return;
        }
        let (promote, lists) = (&mut self.promote, &mut self.reclaim.lists);
        // Prefetched while the queue is walked.
        lists.prefetch(page);
        let mut position = 0;
        let mut woken = false;
        self.pcq.retain(|candidate| {
            position += 1;
            if mem.node_of(*candidate) == NodeId::FAST || promote.pending.contains(candidate) {
                return false;
            }
            if !mem.accessed(*candidate) {
                return position <= self.knobs.pcq_lookback;
            }
            if !lists.is_active(*candidate) {
                lists.mark_accessed(*candidate, mem.span(*candidate));
                return true;
            }
            // A full queue drops the page silently; it will fault again.
            if promote.mpq.len() < self.knobs.mpq_size as usize {
                promote.mpq.push_back(*candidate);
                promote.pending.insert(*candidate);
                woken = true;
            }
            false
        });
        if woken {
            mem.wake(promote.thread);
        }
        if !promote.pending.contains(&page) {
            // Newest first, as in the kernel, so that the look-back covers the latest faults.
            self.pcq.push_front(page);
        }
    }

    fn write_fault(&mut self, mem: &mut dyn Memory, page: Page) {
        // Refused if there is no shadow.
        let _ = mem.drop_shadow(page, DropReason::Written);
        if mem.unprotect(page).is_ok() && mem.node_of(page) == NodeId::FAST {
            self.rule.written(page);
        }
    }

    fn work(&mut self, mem: &mut dyn Memory, thread: Thread) -> Next {
        if thread == self.scanner.thread() {
            return self.scanner.work(mem, |_| {});
        }
        if thread == self.promote.thread {
            return self.kpromote(mem);
        }
        let Self { knobs, rule, reclaim, promoted, shadows, .. } = self;
        reclaim.kswapd(mem, &mut ToShadow { knobs, rule, promoted, shadows })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{is_demotion, run, settings, thrash, thrashing};
    use super::super::{Action, Commit, DropReason};

    #[test]
    fn thrashing_takes_all_paths_of_promotion_and_demotion() {
        let actions = thrash("nomad", 3);
        let has = |path: fn(&Action) -> bool| actions.iter().any(path);
        assert!(has(|action| matches!(action, Action::Committed(_, Commit::Done, true))));
        assert!(!has(|action| matches!(action, Action::Committed(_, Commit::Done, false))));
        assert!(has(|action| matches!(action, Action::Committed(_, Commit::Dirtied, _))));
        assert!(has(|action| matches!(action, Action::Dropped(_, DropReason::Written))));
        assert!(has(|action| matches!(action, Action::Remapped(_))));
        assert!(has(is_demotion));
    }

    #[test]
    fn a_full_slow_node_reclaims_shadows() {
        let settings = settings("nomad").unwrap();
        let memory = run("nomad", &settings, &[10, 17], &thrashing(1), /* huge: */ false);
        let reclaimed =
            |action: &Action| matches!(action, Action::Dropped(_, DropReason::Reclaimed));
        assert!(memory.actions.iter().any(|(_, action)| reclaimed(action)));
    }
}
