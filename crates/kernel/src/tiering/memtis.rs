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
//! Left out: the processor-time cap on sampling (the period is fixed), warm pages that are promoted
//! when there is room to spare, collapsing base pages again.
//!
//! Not to be used where the hot set changes quicker than samples tell: sampling one in hundreds of
//! accesses needs seconds to see a page, and at 4 KiB an operation most pages are never seen.

use super::knobs::{Frames, Knobs};
use super::lists::Lists;
use super::{
    Context, HUGE, Memory, Named, Next, NodeId, Page, Policy, Thread, ThreadSpec, Time,
};
use crate::knobs;

knobs! {
    /// Memtis's constants.
    MemtisKnobs {
        load_period: u64 = "199", "loads that miss the last-level cache to a sample",
            "Memtis, htmm_inst_period";
        store_period: u64 = "100007", "stores to a sample", "Memtis, htmm_inst_period of stores";
        cooling_samples: u64 = "2000000", "samples from one halving of counts to the next",
            "Memtis, htmm_cooling_period";
        adapt_samples: u64 = "100000", "samples from one threshold to the next",
            "Memtis, htmm_adaptation_period";
        threshold_headroom: f64 = "0.03", "share of the fast node that the hot set leaves free",
            "Memtis, htmm_core.c";
        migrate_period: Time = "500ms", "time between runs of the migration threads",
            "Memtis, kmigrated";
        demote_share: f64 = "0.02", "free share of the fast node below which it demotes",
            "Memtis, htmm_core.c";
        demote_least: Frames = "50MB", "at least", "Memtis, htmm_core.c";
        demote_most: Frames = "1000MB", "at most", "Memtis, htmm_core.c";
        promote_share: f64 = "0.03", "free share that demotion for promotions restores",
            "Memtis, htmm_core.c";
        promote_least: Frames = "100MB", "at least", "Memtis, htmm_core.c";
        promote_most: Frames = "1500MB", "at most", "Memtis, htmm_core.c";
        split: bool = "true", "split skewed huge pages", "Memtis, htmm_thres_split";
        split_factor: f64 = "0.95", "split while this x the base-page hit ratio is above the real one",
            "Memtis, htmm_core.c";
        split_gain: f64 = "0.03", "least gain of hit ratio for a split", "Memtis, htmm_core.c";
        batch: u64 = "32", "pages moved in a step", "Linux 5.15, SWAP_CLUSTER_MAX";
    }
}

/// The registry's entry.
pub static POLICY: Named = Named {
    what: "Memtis: sampled access histogram, periodic migration, huge-page split",
    foresees: false,
    knobs: MemtisKnobs::declared,
    make: |settings| {
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
        Ok(Box::new(Memtis::new(knobs)))
    },
};

const BINS: usize = 16;
/// A sample of a base page counts as much as samples all over a huge page would.
const WEIGHT: u32 = HUGE;
const DEMOTER: Thread = Thread(0);
const PROMOTER: Thread = Thread(1);

fn bin(count: u32) -> usize {
    ((count + 1).ilog2() as usize).min(BINS - 1)
}

/// Memtis.
#[derive(Debug)]
pub struct Memtis {
    knobs: MemtisKnobs,
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
    fn new(knobs: MemtisKnobs) -> Self {
        Self {
            knobs,
            lists: Lists::new(0, 1, 1),
            counts: Vec::new(),
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
        for number in 0..mem.pages() {
            let page = Page::new(number);
            if let Some(inner) = self.inner.get_mut(page.index()) {
                *inner /= 2;
                self.inner_bins[bin(u32::from(*inner) * WEIGHT)] += 1;
            }
            if mem.mapped(page) {
                self.counts[page.index()] /= 2;
                self.bins[bin(self.counts[page.index()])] += u64::from(mem.span(page));
                self.classify(mem, page);
            }
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
        for number in (0..mem.pages()).step_by(HUGE as usize) {
            let page = Page::new(number);
            if !mem.mapped(page) || mem.span(page) == 1 {
                continue;
            }
            huge += 1;
            let inner = &self.inner[page.index()..page.index() + HUGE as usize];
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

    fn mark(&self, mem: &dyn Memory, share: f64, least: Frames, most: Frames) -> u64 {
        let frames = (mem.capacity(NodeId::FAST) as f64 * share) as u64;
        frames.clamp(least.0.min(most.0), most.0.max(least.0)).min(mem.capacity(NodeId::FAST) / 4)
    }

    /// Move a page and list it there; false if it could not be moved.
    fn migrate(&mut self, mem: &mut dyn Memory, page: Page, to: NodeId) -> bool {
        let moved = mem.move_page(page, to).is_ok();
        if moved {
            let (span, hot) = (mem.span(page), self.hot(page));
            self.lists.remove(page, span);
            self.lists.add(page, span, to.index() as u8, hot);
        }
        moved
    }

    fn step(&mut self, mem: &mut dyn Memory, thread: Thread) -> bool {
        let knobs = &self.knobs;
        let short = self.mark(mem, knobs.demote_share, knobs.demote_least, knobs.demote_most);
        let room = self.mark(mem, knobs.promote_share, knobs.promote_least, knobs.promote_most);
        let batch = knobs.batch.max(1);
        let Some(below) = NodeId::FAST.slower(mem.nodes()) else { return false };
        if thread == DEMOTER {
            // Hot pages waiting below are a reason to make room, up to their number.
            let waiting = self.lists.frames(below.index() as u8, true);
            let target = if waiting > 0 { short.max(room) } else { short };
            for done in 0..batch {
                if mem.free(NodeId::FAST) >= target {
                    return false;
                }
                let Some(page) = self.lists.oldest(0, false) else { return done > 0 };
                if !self.migrate(mem, page, below) {
                    return false;
                }
            }
            return true;
        }
        for node in NodeId::all(mem.nodes()).skip(1) {
            for _ in 0..batch {
                let Some(page) = self.lists.oldest(node.index() as u8, true) else { break };
                if mem.free(NodeId::FAST) < short + u64::from(mem.span(page)) {
                    mem.wake(DEMOTER);
                    return false;
                }
                if !self.hot(page) {
                    self.classify(mem, page);
                } else if !self.migrate(mem, page, NodeId::FAST) {
                    return false;
                }
            }
        }
        NodeId::all(mem.nodes()).skip(1).any(|n| self.lists.oldest(n.index() as u8, true).is_some())
    }
}

impl Policy for Memtis {
    fn threads(&self) -> Vec<ThreadSpec> {
        ["kdemoted", "kpromoted"]
            .map(|name| ThreadSpec { name, context: Context::Kernel })
            .to_vec()
    }

    fn start(&mut self, mem: &mut dyn Memory) -> Vec<(Thread, Time)> {
        self.lists = Lists::new(mem.pages(), mem.nodes(), 1);
        self.counts = vec![0; mem.pages() as usize];
        mem.sample_every(self.knobs.load_period, self.knobs.store_period);
        let first = mem.now().plus(self.knobs.migrate_period);
        vec![(DEMOTER, first), (PROMOTER, first)]
    }

    fn allocated(&mut self, mem: &mut dyn Memory, page: Page) {
        let span = mem.span(page);
        if span > 1 && self.inner.is_empty() {
            self.inner = vec![0; mem.pages() as usize];
            self.inner_bins[0] = u64::from(mem.pages());
        }
        self.bins[0] += u64::from(span);
        self.lists.add(page, span, mem.node_of(page).index() as u8, false);
    }

    fn write_fault(&mut self, mem: &mut dyn Memory, page: Page) {
        let _ = mem.unprotect(page);
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
        if self.step(mem, thread) {
            Next::Again
        } else {
            Next::At(mem.now().plus(self.knobs.migrate_period))
        }
    }
}
