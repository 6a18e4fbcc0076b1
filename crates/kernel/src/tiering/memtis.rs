//! `memtis`: placement by the distribution of sampled accesses.
//!
//! Lee et al., "MEMTIS: Efficient Memory Tiering with Dynamic Page Classification and Page Size
//! Determination", SOSP'23, as its kernel has it (`cosmoss-jigu/memtis`): the processor samples
//! loads that miss the last-level cache and stores; a page's count goes into a histogram of 16
//! bins by its logarithm; the hot threshold is the lowest bin from which up everything fits the
//! fast node; counts are halved now and then (cooling). Migration threads wake periodically: one
//! demotes cold pages when the fast node is short, the other promotes hot ones while there is
//! room. Huge pages whose accesses are skewed are split when base pages would raise the hit ratio.
//!
//! The period of sampling is fixed, without the kernel's cap on its processor time. Sampling one in
//! hundreds of accesses needs seconds to see a page, and at 4 KiB an operation most pages are never
//! seen.

use std::ops::Range;

use super::knobs::{Frames, Knobs};
use super::lists::Lists;
use super::shares::{is_above, may_demote};
use super::{
    Capability, Context, HUGE, Memory, PolicyEntry, Next, NodeId, Page, Policy, Refused, Thread, Time,
    need,
};
use crate::knobs;

knobs! {
    /// Memtis's constants.
    MemtisKnobs {
        load_period: u64 = "199" (in tests "3"), "loads that miss the last-level cache to a sample",
            "Memtis, htmm_inst_period";
        store_period: u64 = "100007" (in tests "5"), "stores to a sample", "Memtis, htmm_inst_period of stores";
        cooling_samples: u64 = "2000000" (in tests "60"), "samples from one halving of counts to the next",
            "Memtis, htmm_cooling_period";
        adapt_samples: u64 = "100000" (in tests "15"), "samples from one threshold to the next",
            "Memtis, htmm_adaptation_period";
        threshold_headroom: f64 = "0.03", "share of the fast node that the hot set leaves free",
            "Memtis, htmm_core.c";
        migrate_period: Time = "500ms" (in tests "30us"), "time between runs of the migration threads",
            "Memtis, kmigrated";
        demote_share: f64 = "0.02", "free share of the fast node below which it demotes",
            "Memtis, htmm_core.c";
        demote_least: Frames = "50MB" (in tests "4KiB"), "at least", "Memtis, htmm_core.c";
        demote_most: Frames = "1000MB" (in tests "8KiB"), "at most", "Memtis, htmm_core.c";
        promote_share: f64 = "0.03", "free share that demotion for promotions restores",
            "Memtis, htmm_core.c";
        promote_least: Frames = "100MB" (in tests "8KiB"), "at least", "Memtis, htmm_core.c";
        promote_most: Frames = "1500MB" (in tests "16KiB"), "at most", "Memtis, htmm_core.c";
        split: bool = "true", "split skewed huge pages", "Memtis, htmm_thres_split";
        split_factor: f64 = "0.95", "split while this x the base-page hit ratio is above the real one",
            "Memtis, htmm_core.c";
        split_gain: f64 = "0.03", "least gain of hit ratio for a split", "Memtis, htmm_core.c";
        batch: u64 = "32" (in tests "4"), "pages moved in a step", "Linux 5.15, SWAP_CLUSTER_MAX";
    }
}

/// The registry's entry.
pub static POLICY: PolicyEntry = PolicyEntry {
    what: "Memtis: sampled access histogram, periodic migration, huge-page split",
    follows: "Memtis (SOSP'23), its kernel for Linux 5.15",
    leaves_out: "the cap on sampling's processor time, promotion of warm pages, collapsing of base pages",
    not_for: "a hot set that changes quicker than samples tell",
    foresees: false,
    knobs: MemtisKnobs::declared,
    make: |settings, mem| {
        let other = "choose a policy that uses hint faults, such as tpp";
        need(mem, Capability::Samples, "memtis", other)?;
        // References that are faults reach no counter of the processor.
        need(mem, Capability::FarIsMapped, "memtis", other)?;
        let mut knobs = MemtisKnobs::read(settings)?;
        // A shrunk run has fewer samples: its periods shrink with it.
        for (name, period) in [
            ("cooling_samples", &mut knobs.cooling_samples),
            ("adapt_samples", &mut knobs.adapt_samples),
        ] {
            if !settings.values.contains_key(name) {
                *period = ((*period as f64 * settings.scale) as u64).max(1);
            }
        }
        let policy = Memtis::new(knobs, mem);
        let first = mem.now().plus(policy.knobs.migrate_period);
        let wakes = vec![(policy.demoter, first), (policy.promoter, first)];
        Ok((Box::new(policy), wakes))
    },
};

const BINS: usize = 16;
/// A sample of a base page counts as much as samples all over a huge page would.
const WEIGHT: u32 = HUGE;

fn bin(count: u32) -> usize {
    ((count + 1).ilog2() as usize).min(BINS - 1)
}

/// The places of a mapping's base pages in a table.
fn base_pages(page: Page, span: u32) -> Range<usize> {
    page.index()..page.index() + span as usize
}

/// Memtis.
#[derive(Debug)]
pub struct Memtis {
    knobs: MemtisKnobs,
    demoter: Thread,
    promoter: Thread,
    lists: Lists,
    /// Weighted count of each mapping, and of each base page; the latter only while there may be
    /// huge pages to split.
    counts: Vec<u32>,
    inner: Vec<u8>,
    /// Frames whose count is in a bin; of mappings, and of base pages.
    bins: [u64; BINS],
    inner_bins: [u64; BINS],
    threshold: usize,
    samples: u64,
    fast_samples: u64,
    base_samples: u64,
    window: u64,
}

impl Memtis {
    fn new(knobs: MemtisKnobs, mem: &mut dyn Memory) -> Self {
        mem.sample_every(knobs.load_period, knobs.store_period);
        Self {
            knobs,
            demoter: mem.spawn("kdemoted", Context::Kernel),
            promoter: mem.spawn("kpromoted", Context::Kernel),
            lists: Lists::new(mem.page_limit(), mem.nodes(), 1),
            counts: vec![0; mem.page_limit() as usize],
            inner: Vec::new(),
            bins: [0; BINS],
            inner_bins: [0; BINS],
            threshold: 1,
            samples: 0,
            fast_samples: 0,
            base_samples: 0,
            window: 0,
        }
    }

    fn hot(&self, page: Page) -> bool {
        bin(self.counts[page.index()]) >= self.threshold
    }

    /// The lowest bin from which up everything fits the fast node, at least 1.
    fn fitting(&self, bins: &[u64; BINS], mem: &dyn Memory) -> usize {
        let room = mem.capacity(NodeId::FAST) as f64 * (1.0 - self.knobs.threshold_headroom);
        let mut sum = 0;
        let mut lowest = BINS;
        for (index, frames) in bins.iter().enumerate().rev() {
            sum += frames;
            if sum as f64 > room {
                break;
            }
            lowest = index;
        }
        lowest.clamp(1, BINS - 1)
    }

    /// Put a page on the list that its count says.
    fn classify(&mut self, mem: &dyn Memory, page: Page) {
        let hot = self.hot(page);
        if self.lists.is_active(page) != hot {
            self.lists.relist(page, mem.span(page), hot);
        }
    }

    /// Halve every count; the threshold falls with them.
    fn cool(&mut self, mem: &dyn Memory) {
        self.bins = [0; BINS];
        self.inner_bins = [0; BINS];
        self.threshold = (self.threshold - 1).max(1);
        let mut next = mem.next_mapped(Page::new(0));
        while let Some(page) = next {
            let span = mem.span(page);
            if self.inner.is_empty() {
                self.inner_bins[0] += u64::from(span);
            } else {
                for inner in &mut self.inner[base_pages(page, span)] {
                    *inner /= 2;
                    self.inner_bins[bin(u32::from(*inner) * WEIGHT)] += 1;
                }
            }
            self.counts[page.index()] /= 2;
            self.bins[bin(self.counts[page.index()])] += u64::from(span);
            self.classify(mem, page);
            next = mem.next_mapped(page.skip(span));
        }
    }

    /// Split the most skewed huge pages, as many as the gain of hit ratio is worth.
    fn split(&mut self, mem: &mut dyn Memory) {
        if self.inner.is_empty() || !self.knobs.split || self.window == 0 {
            return;
        }
        let real = self.fast_samples as f64 / self.window as f64;
        let base = self.base_samples as f64 / self.window as f64;
        if self.knobs.split_factor * base <= real || base - real < self.knobs.split_gain {
            return;
        }
        let mut skewed = Vec::new();
        let mut huge = 0u64;
        let mut next = mem.next_mapped(Page::new(0));
        while let Some(page) = next {
            let span = mem.span(page);
            next = mem.next_mapped(page.skip(span));
            if span == 1 {
                continue;
            }
            huge += 1;
            let inner = &self.inner[base_pages(page, span)];
            let squares: u64 = inner.iter().map(|n| u64::from(*n).pow(2)).sum();
            let touched = inner.iter().filter(|n| **n > 0).count() as u64;
            if touched > 0 {
                skewed.push((squares / touched.pow(2), page));
            }
        }
        skewed.sort_unstable_by_key(|(skew, page)| (std::cmp::Reverse(*skew), *page));
        let share = ((base - real) * huge as f64) as usize;
        for (_, page) in skewed.into_iter().take(share.max(1)) {
            let node = mem.node_of(page).index() as u8;
            if mem.split(page).is_err() {
                continue;
            }
            self.lists.remove(page, HUGE);
            self.bins[bin(self.counts[page.index()])] -= u64::from(HUGE);
            for number in page.number()..page.number() + HUGE {
                let base = Page::new(number);
                let count = u32::from(self.inner[base.index()]) * WEIGHT;
                self.counts[base.index()] = count;
                self.bins[bin(count)] += 1;
                let hot = self.hot(base);
                self.lists.add(base, 1, node, hot);
            }
        }
    }

    /// Move a page and list it there.
    fn migrate(&mut self, mem: &mut dyn Memory, page: Page, to: NodeId) -> Migrated {
        let (span, hot) = (mem.span(page), self.hot(page));
        match mem.move_page(page, to) {
            Ok(()) => {
                self.lists.remove(page, span);
                self.lists.add(page, span, to.index() as u8, hot);
                Migrated::Yes
            }
            Err(Refused::Pinned) => {
                // Let others go first.
                let active = self.lists.is_active(page);
                self.lists.relist(page, span, active);
                Migrated::Later
            }
            Err(_) => Migrated::No,
        }
    }

    /// A batch of the demoter; whether there is more to do at once.
    fn demote(&mut self, mem: &mut dyn Memory) -> bool {
        let Some(below) = NodeId::FAST.slower(mem.nodes()) else { return false };
        // Hot pages waiting below are a reason to make room, up to their number.
        let waiting = self.lists.frames(below.index() as u8, true);
        let (short, room) = (self.short(mem), self.room(mem));
        let target = if waiting > 0 { short.max(room) } else { short };
        let (mut moved, mut left) = (false, self.knobs.batch.max(1));
        // Once around the list, at most.
        let mut kept = self.lists.frames(0, false);
        while left > 0 {
            if mem.free(NodeId::FAST) >= target {
                return false;
            }
            let Some(page) = self.lists.oldest(0, false) else { return moved };
            let span = mem.span(page);
            if !may_demote(mem, page) {
                if kept < u64::from(span) {
                    return moved;
                }
                kept -= u64::from(span);
                self.lists.relist(page, span, false);
                continue;
            }
            left -= 1;
            match self.migrate(mem, page, below) {
                Migrated::Yes => moved = true,
                Migrated::Later => {}
                Migrated::No => return false,
            }
        }
        moved
    }

    /// A batch of the promoter; whether there is more to do at once.
    fn promote(&mut self, mem: &mut dyn Memory) -> bool {
        let short = self.short(mem);
        let slow = 1..mem.nodes();
        let mut done = false;
        for node in slow.clone() {
            for _ in 0..self.knobs.batch.max(1) {
                let Some(page) = self.lists.oldest(node, true) else { break };
                let span = mem.span(page);
                let half = (short + self.room(mem)) / 2;
                if is_above(mem, page) && mem.free(NodeId::FAST) < half + u64::from(span) {
                    mem.wake(self.demoter);
                    self.lists.relist(page, span, true);
                    continue;
                }
                if mem.free(NodeId::FAST) < short + u64::from(span) {
                    mem.wake(self.demoter);
                    return false;
                }
                if !self.hot(page) {
                    self.classify(mem, page);
                    done = true;
                    continue;
                }
                match self.migrate(mem, page, NodeId::FAST) {
                    Migrated::Yes => done = true,
                    Migrated::Later => {}
                    Migrated::No => return false,
                }
            }
        }
        done && { slow }.any(|node| self.lists.oldest(node, true).is_some())
    }

    /// Free frames of the fast node below which it demotes.
    fn short(&self, mem: &dyn Memory) -> u64 {
        let knobs = &self.knobs;
        mark(mem, knobs.demote_share, knobs.demote_least, knobs.demote_most)
    }

    /// Free frames that demotion for promotions restores.
    fn room(&self, mem: &dyn Memory) -> u64 {
        let knobs = &self.knobs;
        mark(mem, knobs.promote_share, knobs.promote_least, knobs.promote_most)
    }
}

/// A share of the fast node, within bounds.
fn mark(mem: &dyn Memory, share: f64, min: Frames, max: Frames) -> u64 {
    let capacity = mem.capacity(NodeId::FAST);
    let frames = (capacity as f64 * share) as u64;
    frames.clamp(min.0.min(max.0), max.0.max(min.0)).min(capacity / 4)
}

/// What became of a migration.
enum Migrated {
    Yes,
    /// Not now: the page is pinned.
    Later,
    No,
}

impl Policy for Memtis {
    fn allocated(&mut self, mem: &mut dyn Memory, page: Page) {
        let span = mem.span(page);
        if span > 1 && self.inner.is_empty() {
            self.inner = vec![0; mem.page_limit() as usize];
        }
        self.bins[0] += u64::from(span);
        self.inner_bins[0] += u64::from(span);
        self.lists.add(page, span, mem.node_of(page).index() as u8, false);
    }

    fn released(&mut self, _: &mut dyn Memory, page: Page, span: u32) {
        self.lists.forget(page, span);
        let count = std::mem::take(&mut self.counts[page.index()]);
        self.bins[bin(count)] -= u64::from(span);
        if self.inner.is_empty() {
            self.inner_bins[0] -= u64::from(span);
        } else {
            for inner in &mut self.inner[base_pages(page, span)] {
                self.inner_bins[bin(u32::from(std::mem::take(inner)) * WEIGHT)] -= 1;
            }
        }
    }

    fn sample(&mut self, mem: &mut dyn Memory, page: Page, at: Page, _: bool) {
        let span = mem.span(page);
        let before = bin(self.counts[page.index()]);
        let count = self.counts[page.index()].saturating_add(if span == 1 { WEIGHT } else { 1 });
        self.counts[page.index()] = count;
        if bin(count) != before {
            self.bins[before] -= u64::from(span);
            self.bins[bin(count)] += u64::from(span);
        }
        self.samples += 1;
        self.window += 1;
        self.fast_samples += u64::from(mem.node_of(page) == NodeId::FAST);
        if let Some(inner) = self.inner.get_mut(at.index()) {
            let was = bin(u32::from(*inner) * WEIGHT);
            *inner = inner.saturating_add(1);
            let is = bin(u32::from(*inner) * WEIGHT);
            self.inner_bins[was] -= 1;
            self.inner_bins[is] += 1;
            self.base_samples += u64::from(is >= self.fitting(&self.inner_bins.clone(), mem));
        }
        self.classify(mem, page);
        if self.samples.is_multiple_of(self.knobs.adapt_samples.max(1)) {
            // The threshold only rises here; it falls by cooling and by splits.
            self.threshold = self.threshold.max(self.fitting(&self.bins.clone(), mem));
            self.split(mem);
            (self.window, self.fast_samples, self.base_samples) = (0, 0, 0);
        }
        if self.samples.is_multiple_of(self.knobs.cooling_samples.max(1)) {
            self.cool(mem);
        }
    }

    fn work(&mut self, mem: &mut dyn Memory, thread: Thread) -> Next {
        let more =
            if thread == self.demoter { self.demote(mem) } else { self.promote(mem) };
        if more {
            Next::Again
        } else {
            Next::At(mem.now().plus(self.knobs.migrate_period))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Step, is_demotion, is_promotion, run, settings, thrash};
    use super::super::{Action, HUGE};

    #[test]
    fn promotes_and_demotes() {
        let actions = thrash("memtis", 3);
        assert!(actions.iter().any(is_promotion) && actions.iter().any(is_demotion));
    }

    #[test]
    fn splits_skewed_huge_pages() {
        // One base page of each huge page is hot: half of the huge pages fit, all hot base pages
        // would.
        let all = (0..4).map(|huge| Step::Read(huge * HUGE));
        let steps: Vec<_> = all.chain((0..4000).map(|i| Step::Read(i % 4 * HUGE + 7))).collect();
        let nodes = [2 * HUGE as usize, 5 * HUGE as usize];
        let memory = run("memtis", &settings("memtis").unwrap(), &nodes, &steps, true);
        assert!(memory.actions.iter().any(|(_, action)| matches!(action, Action::Split(_))));
    }
}
