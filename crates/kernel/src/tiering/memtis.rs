//! `memtis`: placement by the distribution of sampled accesses.
//!
//! Lee et al., "MEMTIS: Efficient Memory Tiering with Dynamic Page Classification and Page Size
//! Determination", SOSP'23, as its kernel has it (`cosmoss-jigu/memtis`, `mm/htmm_core.c` and
//! `mm/htmm_migrater.c`): the processor samples loads that miss the last-level cache, and stores. A page's
//! count goes into a histogram of 16 bins by its logarithm; the hot threshold is the lowest bin such that
//! the pages of this and higher bins fit the fast node (`__adjust_active_threshold`). Counts are halved
//! after many samples or much new memory (`__cooling`). A new page starts with a count just above the
//! threshold and keeps it at the first halving (`htmm_skip_cooling`), so it is hot until later halvings.
//!
//! Two threads wake periodically. One demotes pages that are neither hot nor warm, as many as the hot
//! pages of slower nodes need (`need_toptier_demotion`); the other promotes hot pages, as many as there
//! is room for (`promotion_available`). Memtis's limit of a program's memory on a node is here the node's
//! size. Huge pages whose accesses are skewed are split ([`split`]).
//!
//! One in hundreds of accesses is sampled, so seconds may pass before a page is sampled.

use std::ops::Range;

use super::knobs::{Frames, Knobs};
use super::lists::Lists;
use super::shares::{is_above, may_demote};
use super::{
    Capability, Context, HUGE, Memory, Next, NodeId, Page, Policy, PolicyEntry, Tenant, Thread,
    Time, USE_HINT_FAULTS, need,
};
use crate::knobs;

mod counts;
mod split;

use counts::{BINS, COUNTED, Counts, Histogram, WEIGHT, bin};
use split::Splitter;

knobs! {
    /// Memtis's constants.
    MemtisKnobs {
        load_period: u64 = "199" (in tests "3"), "loads that miss the last-level cache, per sample",
            "Memtis, htmm_inst_period";
        store_period: u64 = "100007" (in tests "5"), "stores per sample", "Memtis, htmm_inst_period of stores";
        cooling_samples: u64 = "2000000" (in tests "60"), "samples from one halving of counts to the next",
            "Memtis, htmm_cooling_period";
        cooling_alloc: Frames = "10GiB" (in tests "40KiB"), "growth of the memory in use after which counts are halved",
            "Memtis, htmm_thres_cooling_alloc";
        adapt_samples: u64 = "100000" (in tests "15"), "samples from one adaptation of the hot threshold to the next",
            "Memtis, htmm_adaptation_period";
        least_threshold: u64 = "1", "lowest bin of the histogram whose pages can be hot", "Memtis, htmm_thres_hot";
        migrate_period: Time = "500ms" (in tests "30us"), "time between runs of the migration threads",
            "Memtis, htmm_demotion_period_in_ms";
        demote_share: f64 = "0.02", "free share of the fast node below which pages are demoted",
            "Memtis, get_memcg_demotion_watermark";
        promote_share: f64 = "0.03", "free share of the fast node that promotions and the hot set leave",
            "Memtis, get_memcg_promotion_watermark";
        watermark_least: Frames = "50MiB" (in tests "4KiB"), "minimum of the demotion and promotion watermarks",
            "Memtis, MIN_WATERMARK_LOWER_LIMIT";
        watermark_most: Frames = "1000MiB" (in tests "8KiB"), "maximum of the demotion and promotion watermarks",
            "Memtis, MIN_WATERMARK_UPPER_LIMIT";
        pressure_extra: Frames = "50MiB" (in tests "4KiB"), "additional memory to demote after an allocation found the fast node full",
            "Memtis, need_toptier_demotion: 128 x 100 pages";
        split: bool = "true", "split huge pages with skewed accesses", "Memtis, htmm_thres_split";
        split_period: u64 = "2", "n: pages are split after more samples than the fast node has pages, and more than pages in use / 2^n", "Memtis, htmm_split_period";
        split_gain: f64 = "0.45", "share of the huge pages in use to split, per unit of hit ratio that base pages would gain",
            "Memtis, set_memcg_nr_split: .4 (htmm_gamma) x (170 - 80) / 80 ns";
        batch: u64 = "32" (in tests "4"), "pages moved in a step", "Linux 5.15, SWAP_CLUSTER_MAX";
    }
}

pub static POLICY: PolicyEntry = PolicyEntry {
    what: "Memtis: sampled access histogram, periodic migration, huge-page split",
    follows: "Memtis (SOSP'23), its kernel for Linux 5.15",
    leaves_out: "the cap on sampling's processor time, collapse into huge pages",
    not_for: "a hot set that changes faster than sampling can follow",
    foresees: false,
    knobs: MemtisKnobs::declared,
    make: |settings, mem| {
        // Far memory must be mapped: the processor does not sample references that fault.
        let required = [Capability::Samples, Capability::FarIsMapped];
        need(mem, &required, "memtis", USE_HINT_FAULTS)?;
        let mut knobs = MemtisKnobs::read(settings)?;
        settings.scale_samples("cooling_samples", &mut knobs.cooling_samples);
        settings.scale_samples("adapt_samples", &mut knobs.adapt_samples);
        let policy = Memtis::new(knobs, mem);
        let first = mem.now().plus(policy.knobs.migrate_period);
        let wakes = vec![(policy.demoter, first), (policy.promoter, first)];
        Ok((Box::new(policy), wakes))
    },
};

/// The lowest bin that fits `room` frames together with all higher bins, and the frames in these bins; if
/// none fits, the highest bin and 0.
fn fitting(bins: &Histogram, room: u64) -> (usize, u64) {
    let mut sum = 0;
    for (index, frames) in bins.iter().enumerate().rev() {
        if sum + frames > room {
            return ((index + 1).min(BINS - 1), sum);
        }
        sum += frames;
    }
    (0, sum)
}

/// Indices of the base pages of a mapping (a base page or a huge page).
fn base_pages(page: Page, span: u32) -> Range<usize> {
    page.index()..page.index() + span as usize
}

/// Flag of a mapping: allocated since the last halving; the next halving does not change its count.
const NEW: u8 = COUNTED << 1;

/// A migration thread's run.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// Frames that it may still move.
    left: u64,
    /// Frames that it may still scan.
    to_scan: u64,
    moved: u64,
    /// [`Memtis::colder_events`] when the run began, if no cold page was found so far.
    none_cold: Option<u64>,
}

#[derive(Debug)]
pub struct Memtis {
    knobs: MemtisKnobs,
    demoter: Thread,
    /// The demoter when an allocation wakes it before its time.
    pressed_demoter: Thread,
    promoter: Thread,
    lists: Lists,
    /// By mapping.
    counts: Counts,
    threshold: usize,
    /// Pages in this bin or a higher one are not demoted.
    warm: usize,
    samples: u64,
    /// Whether counts were halved since the threshold was last adapted.
    cooled: bool,
    /// Used frames at the last halving that new memory caused.
    used_at_cooling: u64,
    /// Whether an allocation found the fast node nearly full.
    pressed: bool,
    /// Number of events after which an inactive page may be colder than [`Self::warm`].
    colder_events: u64,
    /// [`Self::colder_events`] at the last scan of the fast node that found no page to demote. Until it
    /// changes, another scan would find none either.
    none_cold: Option<u64>,
    /// The demoter's run, and the promoter's by slow node.
    demotion: Option<Run>,
    promotion: Option<Vec<Run>>,
    splitter: Splitter,
}

impl Memtis {
    fn new(knobs: MemtisKnobs, mem: &mut dyn Memory) -> Self {
        mem.sample_every(knobs.load_period, knobs.store_period);
        let threshold = (knobs.least_threshold as usize).min(BINS - 1);
        Self {
            demoter: mem.spawn("kmigraterd0", Context::Kernel),
            pressed_demoter: mem.spawn("kmigraterd0", Context::Kernel),
            promoter: mem.spawn("kmigraterd1", Context::Kernel),
            lists: Lists::new(mem.page_limit(), mem.nodes(), 1),
            counts: Counts::new(mem.page_limit()),
            threshold,
            warm: threshold,
            samples: 0,
            cooled: false,
            used_at_cooling: 0,
            pressed: false,
            colder_events: 0,
            none_cold: None,
            demotion: None,
            promotion: None,
            splitter: Splitter::new(&knobs, threshold),
            knobs,
        }
    }

    fn is_hot(&self, page: Page) -> bool {
        bin(self.counts.of[page.index()]) >= self.threshold
    }

    /// Put a page on the active list if it is hot, else on the inactive one.
    fn classify(&mut self, mem: &dyn Memory, page: Page) {
        let hot = self.is_hot(page);
        if self.lists.is_active(page) != hot {
            self.lists.relist(page, mem.span(page), hot);
            self.colder_events += u64::from(!hot);
        }
    }

    /// Halve every count.
    fn cool(&mut self, mem: &dyn Memory) {
        self.splitter.begin_cooling();
        (self.cooled, self.colder_events) = (true, self.colder_events + 1);
        each(mem, |page, span| {
            let at = page.index();
            if self.counts.flags[at] & NEW != 0 {
                // Not halved: out of the histogram until it is sampled or halved.
                self.counts.uncount(at, span);
                self.counts.flags[at] = 0;
                self.splitter.forget(page, span);
            } else {
                let halved = self.counts.of[at] / 2;
                self.splitter.cool(page, span, bin(halved), self.threshold);
                self.counts.set(at, span, halved);
                self.classify(mem, page);
            }
        });
        self.splitter.end_cooling(used(mem), mem.capacity(NodeId::FAST));
    }

    /// Adapt the thresholds (`__adjust_active_threshold`).
    fn adapt(&mut self, mem: &dyn Memory) {
        let for_hot = mem.capacity(NodeId::FAST) - self.promotion_mark(mem);
        let (lowest, hot_frames) = fitting(&self.counts.bins, for_hot);
        let least = (self.knobs.least_threshold as usize).min(BINS - 1);
        let (lowest, before) = (lowest.max(least), self.threshold);
        // After counts were halved, not all pages are in the histogram yet: lower the threshold slowly.
        if self.cooled {
            if lowest < self.threshold && self.threshold > 1 {
                self.threshold -= 1;
            }
        } else if lowest > self.threshold || self.splitter.has_split() {
            // Between halvings the threshold only rises, except after splits.
            self.threshold = lowest;
        }
        let base = fitting(self.splitter.bins(), for_hot).0.max(least);
        self.splitter.adapt(base, self.cooled);
        let need_warm = hot_frames < for_hot * 3 / 4;
        self.set_warm(self.threshold.saturating_sub(usize::from(need_warm)));
        if self.cooled || self.threshold != before {
            each(mem, |page, _| self.classify(mem, page));
        }
        self.cooled = false;
    }

    fn set_warm(&mut self, warm: usize) {
        self.colder_events += u64::from(warm > self.warm);
        self.warm = warm;
    }

    /// Split some of the huge pages that the splitter chose.
    fn split(&mut self, mem: &mut dyn Memory) {
        for page in self.splitter.take() {
            let node = mem.node_of(page).index() as u8;
            if mem.split(page).is_err() {
                continue;
            }
            self.lists.remove(page, HUGE);
            self.counts.uncount(page.index(), HUGE);
            let new = std::mem::take(&mut self.counts.flags[page.index()]);
            self.colder_events += 1;
            for number in page.number()..page.number() + HUGE {
                let base = Page::new(number);
                self.counts.flags[base.index()] = new;
                self.counts.set(base.index(), 1, self.splitter.count_of(base));
                self.lists.add(base, 1, node, self.is_hot(base));
            }
        }
    }

    /// Move a page to another node and its lists. If that is refused, the page becomes the newest of
    /// its list.
    fn migrate(&mut self, mem: &mut dyn Memory, page: Page, to: NodeId) -> bool {
        let (span, active) = (mem.span(page), self.lists.is_active(page));
        let moved = mem.move_page(page, to).is_ok();
        if moved {
            self.lists.remove(page, span);
            self.lists.add(page, span, to.index() as u8, active);
        } else {
            self.lists.relist(page, span, active);
        }
        moved
    }

    /// Frames on the active lists of slow nodes.
    fn waiting(&self, mem: &dyn Memory) -> u64 {
        (1..mem.nodes()).map(|node| self.lists.frames(node, Lists::ACTIVE)).sum()
    }

    /// Frames that the demoter must move now (`need_toptier_demotion`).
    fn demand(&self, mem: &dyn Memory) -> u64 {
        let (all, keep_free) = (mem.capacity(NodeId::FAST), self.promotion_mark(mem));
        let used = all - mem.free(NodeId::FAST);
        if self.pressed && used + keep_free > all {
            return used + keep_free - all + self.knobs.pressure_extra.0;
        }
        let waiting = self.waiting(mem);
        let must_stay_free =
            if waiting > 0 { waiting + keep_free } else { self.demotion_mark(mem) };
        if used + must_stay_free <= all {
            return 0;
        }
        // Negative only if `demote_share` exceeds `promote_share`.
        (used + waiting + keep_free).saturating_sub(all)
    }

    /// A batch of the demoter. Returns whether there is more to do at once.
    fn demote(&mut self, mem: &mut dyn Memory) -> bool {
        let Some(below) = NodeId::FAST.slower(mem.nodes()) else { return false };
        let all_warm = self.none_cold == Some(self.colder_events);
        debug_assert!(!all_warm || !self.has_cold(mem));
        let mut run = self.demotion.take().unwrap_or_else(|| Run {
            left: self.demand(mem),
            // At most once around the list.
            to_scan: if all_warm { 0 } else { self.lists.frames(0, Lists::INACTIVE) },
            moved: 0,
            // Valid for one tenant only: shares change which pages may be demoted.
            none_cold: Some(self.colder_events).filter(|_| mem.tenants() == 1),
        });
        for _ in 0..self.knobs.batch.max(1) {
            let oldest =
                self.lists.oldest(0, Lists::INACTIVE).filter(|_| run.left > 0 && run.to_scan > 0);
            let Some(page) = oldest else {
                self.finish_demotion(mem, run);
                return false;
            };
            let span = mem.span(page);
            run.to_scan = run.to_scan.saturating_sub(span.into());
            if !may_demote(mem, page) || bin(self.counts.of[page.index()]) >= self.warm {
                self.lists.relist(page, span, Lists::INACTIVE);
                continue;
            }
            run.none_cold = None;
            if self.migrate(mem, page, below) {
                run.left = run.left.saturating_sub(span.into());
                run.moved += u64::from(span);
            }
        }
        self.demotion = Some(run);
        true
    }

    /// Whether an inactive page of the fast node is colder than [`Self::warm`].
    fn has_cold(&self, mem: &dyn Memory) -> bool {
        let mut found = false;
        each(mem, |page, _| {
            let inactive = mem.node_of(page) == NodeId::FAST && !self.lists.is_active(page);
            found |= inactive && bin(self.counts.of[page.index()]) < self.warm;
        });
        found
    }

    /// End a run. If it moved too little, warm pages are demoted from now on (`demote_node`).
    fn finish_demotion(&mut self, mem: &dyn Memory, run: Run) {
        if run.to_scan == 0 {
            self.none_cold = run.none_cold;
        }
        if run.moved < self.waiting(mem).min(run.left + run.moved) {
            self.set_warm(self.threshold);
        }
        if mem.free(NodeId::FAST) > self.demotion_mark(mem) {
            self.pressed = false;
        }
    }

    /// A batch of the promoter. Returns whether there is more to do at once.
    fn promote(&mut self, mem: &mut dyn Memory) -> bool {
        let keep_free = self.promotion_mark(mem);
        let mut runs = self.promotion.take().unwrap_or_else(|| {
            let free = mem.free(NodeId::FAST).saturating_sub(keep_free);
            let run = |node| {
                let waiting = self.lists.frames(node, Lists::ACTIVE);
                Run { left: free.min(waiting), to_scan: waiting, ..Run::default() }
            };
            (1..mem.nodes()).map(run).collect()
        });
        for (node, run) in (1..mem.nodes()).zip(&mut runs) {
            for _ in 0..self.knobs.batch.max(1) {
                let Some(page) = self
                    .lists
                    .oldest(node, Lists::ACTIVE)
                    .filter(|_| run.left > 0 && run.to_scan > 0)
                else {
                    run.left = 0;
                    break;
                };
                let span = mem.span(page);
                run.to_scan = run.to_scan.saturating_sub(span.into());
                let least = if is_above(mem, page) { 2 * keep_free } else { keep_free };
                if mem.free(NodeId::FAST) < least + u64::from(span) {
                    self.lists.relist(page, span, Lists::ACTIVE);
                } else if self.migrate(mem, page, NodeId::FAST) {
                    run.left = run.left.saturating_sub(span.into());
                }
            }
        }
        let more = runs.iter().any(|run| run.left > 0);
        self.promotion = more.then_some(runs);
        more
    }

    /// Free frames of the fast node below which it demotes.
    fn demotion_mark(&self, mem: &dyn Memory) -> u64 {
        self.mark(mem, self.knobs.demote_share)
    }

    /// Free frames that promotions and the hot set leave.
    fn promotion_mark(&self, mem: &dyn Memory) -> u64 {
        self.mark(mem, self.knobs.promote_share)
    }

    /// A share of the fast node, between the two `watermark` knobs (in either order), at most a quarter.
    fn mark(&self, mem: &dyn Memory, share: f64) -> u64 {
        let (least, most) = (self.knobs.watermark_least.0, self.knobs.watermark_most.0);
        let capacity = mem.capacity(NodeId::FAST);
        let frames = (capacity as f64 * share) as u64;
        frames.clamp(least.min(most), most.max(least)).min(capacity / 4)
    }
}

/// Call `with` for each mapping and its frames.
fn each(mem: &dyn Memory, mut with: impl FnMut(Page, u32)) {
    let mut next = mem.next_mapped(Page::new(0));
    while let Some(page) = next {
        let span = mem.span(page);
        with(page, span);
        next = mem.next_mapped(page.skip(span));
    }
}

fn used(mem: &dyn Memory) -> u64 {
    NodeId::all(mem.nodes()).map(|node| mem.capacity(node) - mem.free(node)).sum()
}

impl Policy for Memtis {
    fn allocated(&mut self, mem: &mut dyn Memory, page: Page) {
        let span = mem.span(page);
        // `get_accesses_from_idx(active_threshold + 1)`: enough to be hot at the next `classify`.
        let count = 1 << (self.threshold + 1).min(BINS);
        self.counts.of[page.index()] = count;
        self.counts.flags[page.index()] = NEW;
        self.splitter.allocated(mem, page, span, count);
        self.lists.add(page, span, mem.node_of(page).index() as u8, Lists::INACTIVE);
        if mem.free(NodeId::FAST) <= self.demotion_mark(mem) {
            self.pressed = true;
            mem.wake(self.pressed_demoter);
        }
    }

    fn released(&mut self, _: &mut dyn Memory, page: Page, span: u32) {
        self.lists.forget(page, span);
        self.counts.uncount(page.index(), span);
        (self.counts.of[page.index()], self.counts.flags[page.index()]) = (0, 0);
        self.splitter.released(page, span);
    }

    fn sample(&mut self, mem: &mut dyn Memory, page: Page, at: Page, _: bool) {
        let span = mem.span(page);
        let (index, more) = (page.index(), if span == 1 { WEIGHT } else { 1 });
        self.counts.set(index, span, self.counts.of[index].saturating_add(more));
        self.splitter.sample(at, mem.node_of(page) == NodeId::FAST);
        self.classify(mem, page);
        self.samples += 1;
        let used = used(mem);
        let grown = used >= self.used_at_cooling + self.knobs.cooling_alloc.0;
        if grown {
            self.used_at_cooling = used;
        }
        if grown || self.samples.is_multiple_of(self.knobs.cooling_samples.max(1)) {
            self.cool(mem);
        } else if self.samples.is_multiple_of(self.knobs.adapt_samples.max(1)) {
            self.adapt(mem);
        }
    }

    fn pressure(&mut self, mem: &mut dyn Memory, node: NodeId, _: Tenant) {
        if node == NodeId::FAST {
            self.pressed = true;
            mem.wake(self.pressed_demoter);
        }
    }

    fn work(&mut self, mem: &mut dyn Memory, thread: Thread) -> Next {
        self.split(mem);
        let more = if thread == self.promoter { self.promote(mem) } else { self.demote(mem) };
        match more {
            true => Next::Again,
            false if thread == self.pressed_demoter => Next::Idle,
            false => Next::At(mem.now().plus(self.knobs.migrate_period)),
        }
    }
}

#[cfg(test)]
mod tests;
