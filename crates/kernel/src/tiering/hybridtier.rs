//! `hybridtier`: placement by frequency and by momentum (recent frequency), both counted in little memory.
//!
//! Song, Yang et al., "HybridTier: an Adaptive and Lightweight CXL-Memory Tiering System",
//! ASPLOS'25, as its runtime has it (`tiering_runtime/hybridtier.cpp`): the processor samples loads
//! that miss the last-level cache. Two counting Bloom filters of four hashes hold counts up to 15: a
//! large filter of frequency, halved after many samples, and a small one of momentum, halved sooner.
//! After each batch of samples, sampled pages with a high count in either move up. If the fast node is
//! nearly full, the runtime walks over its pages by address: pages with low counts in both move down;
//! frequent pages without momentum get a second chance and move down later unless sampled by then.

use std::collections::{BTreeMap, VecDeque};

use nearfar_trace::generate::rng::mix64;

use super::knobs::{Frames, Knobs};
use super::shares::may_demote;
use super::{
    Capability, Context, Memory, Next, NodeId, Page, Policy, PolicyEntry, Thread, Time,
    USE_HINT_FAULTS, need,
};
use crate::knobs;

knobs! {
    /// HybridTier's constants.
    HybridKnobs {
        load_period: u64 = "100001" (in tests "3"), "loads that miss the last-level cache, per sample",
            "HybridTier, perf_sample_freq_list";
        batch_samples: u64 = "100000" (in tests "8"), "samples that are processed together, as a batch",
            "HybridTier, SAMPLE_BATCH_SIZE";
        hot: u64 = "5" (in tests "2"), "frequency (count of samples, up to 15) from which a page is promoted", "HybridTier, initial_hot_thresh";
        momentum: u64 = "3" (in tests "2"), "momentum (count of recent samples, up to 15) from which a page is promoted", "HybridTier, momentum_thresh";
        momentum_samples: u64 = "1100000" (in tests "40"), "samples from one halving of all momentum counts to the next",
            "HybridTier, perf_func";
        frequency_samples: u64 = "160", "samples from one halving of all frequency counts to the next, per page of fast memory",
            "HybridTier, SAMPLE_SIZE";
        demote_share: f64 = "0.05", "free share of the fast node that demotion restores",
            "HybridTier, DEMOTE_WMARK";
        allocation_share: f64 = "0.0125", "free share of the fast node at or below which demotion starts", "HybridTier, ALLOC_WMARK";
        second_chance: Time = "60s" (in tests "200us"), "time between second looks at pages that are frequent but without momentum",
            "HybridTier, perf_func";
        second_chances: Frames = "40000KiB" (in tests "16KiB"), "maximum memory of pages that wait for a second look",
            "HybridTier, second_chance_queue: 10,000";
        batch: u64 = "32" (in tests "4"), "pages moved in a step", "assumption: as kswapd";
    }
}

pub static POLICY: PolicyEntry = PolicyEntry {
    what: "HybridTier: samples counted in Bloom filters, by frequency and by momentum",
    follows: "HybridTier (ASPLOS'25), its runtime",
    leaves_out: "pauses of sampling and of demotion, thresholds that fall when nothing moves",
    not_for: "short runs: it acts only after 10^10 loads that miss the cache",
    foresees: false,
    knobs: HybridKnobs::declared,
    make: |settings, mem| {
        // The processor does not sample references that fault.
        let required = [Capability::Samples, Capability::FarIsMapped];
        need(mem, &required, "hybridtier", USE_HINT_FAULTS)?;
        let mut knobs = HybridKnobs::read(settings)?;
        settings.scale_samples("batch_samples", &mut knobs.batch_samples);
        settings.scale_samples("momentum_samples", &mut knobs.momentum_samples);
        Ok((Box::new(Hybrid::new(knobs, mem)), Vec::new()))
    },
};

/// Counters of a Bloom filter for each page: a false positive in 1,000 with four hashes.
const COUNTERS_PER_PAGE: u64 = 21;
const MAX_COUNT: u8 = 15;

/// A counting Bloom filter.
#[derive(Debug)]
struct Counts {
    counters: Vec<u8>,
    samples: u64,
    /// Samples until all counts are halved.
    period: u64,
}

impl Counts {
    fn new(pages: u64, period: u64) -> Self {
        let counters = vec![0; (pages * COUNTERS_PER_PAGE).max(64) as usize];
        Self { counters, samples: 0, period: period.max(1) }
    }

    fn indices(&self, page: Page) -> [usize; 4] {
        [0, 1, 2, 3].map(|hash| {
            let hash = mix64(u64::from(page.number()) << 2 | hash);
            (u128::from(hash) * self.counters.len() as u128 >> 64) as usize
        })
    }

    fn of(&self, page: Page) -> u8 {
        self.indices(page).map(|index| self.counters[index]).into_iter().min().unwrap_or(0)
    }

    /// Add samples of a page. Returns its count.
    fn add(&mut self, page: Page, samples: u32) -> u8 {
        let more = samples.min(u32::from(MAX_COUNT)) as u8;
        for index in self.indices(page) {
            self.counters[index] = (self.counters[index] + more).min(MAX_COUNT);
        }
        self.samples += u64::from(samples);
        if self.samples >= self.period {
            self.samples = 0;
            self.counters.iter_mut().for_each(|count| *count /= 2);
        }
        self.of(page)
    }
}

#[derive(Debug)]
struct Hybrid {
    knobs: HybridKnobs,
    thread: Thread,
    frequency: Counts,
    momentum: Counts,
    /// Samples of the coming batch, by page.
    sampled: BTreeMap<u32, u32>,
    samples: u64,
    /// Pages to move up.
    hot: VecDeque<Page>,
    /// Where the walk over the fast node continues.
    cursor: u32,
    /// Page numbers left in the current walk.
    walk: Option<u32>,
    /// Frequent pages without momentum, with their frequency.
    waiting: VecDeque<(Page, u8)>,
    /// When the waiting pages get their second look.
    look: Time,
}

impl Hybrid {
    fn new(knobs: HybridKnobs, mem: &mut dyn Memory) -> Self {
        mem.sample_every(knobs.load_period, 0);
        let pages = mem.capacity(NodeId::FAST);
        Self {
            thread: mem.spawn("hybridtier", Context::Kernel),
            frequency: Counts::new(pages, pages * knobs.frequency_samples),
            momentum: Counts::new(pages / 100, knobs.momentum_samples),
            sampled: BTreeMap::new(),
            samples: 0,
            hot: VecDeque::new(),
            cursor: 0,
            walk: None,
            waiting: VecDeque::new(),
            look: knobs.second_chance,
            knobs,
        }
    }

    /// Count a batch of samples, and note which pages move up.
    fn count(&mut self) {
        self.samples = 0;
        for (number, samples) in std::mem::take(&mut self.sampled) {
            let page = Page::new(number);
            let frequency = self.frequency.add(page, samples);
            let momentum = self.momentum.add(page, samples);
            if u64::from(frequency) >= self.knobs.hot || u64::from(momentum) >= self.knobs.momentum
            {
                self.hot.push_back(page);
            }
        }
    }

    /// This share of the fast node, in frames.
    fn mark(mem: &dyn Memory, share: f64) -> u64 {
        (mem.capacity(NodeId::FAST) as f64 * share).ceil() as u64
    }

    fn promote(&mut self, mem: &mut dyn Memory) {
        for page in self.hot.drain(..self.hot.len().min(self.knobs.batch as usize)) {
            if mem.mapped(page) && mem.node_of(page) != NodeId::FAST {
                // If the node is full, the page stays until a later batch samples it again.
                let _ = mem.move_page(page, NodeId::FAST);
            }
        }
    }

    fn demote(mem: &mut dyn Memory, page: Page) {
        if mem.mapped(page) && mem.node_of(page) == NodeId::FAST && may_demote(mem, page) {
            let room = |node: &NodeId| mem.free(*node) >= u64::from(mem.span(page));
            if let Some(node) = NodeId::all(mem.nodes()).skip(1).find(room) {
                let _ = mem.move_page(page, node);
            }
        }
    }

    /// A step of the walk over the fast node. Returns false at its end.
    fn walk(&mut self, mem: &mut dyn Memory) -> bool {
        let Some(left) = &mut self.walk else { return false };
        let limit = mem.page_limit();
        for _ in 0..self.knobs.batch {
            if *left == 0 || mem.free(NodeId::FAST) >= Self::mark(mem, self.knobs.demote_share) {
                self.walk = None;
                return false;
            }
            let at = Page::new(self.cursor);
            let page = mem.next_mapped(at).unwrap_or(Page::new(limit));
            let span = if page.number() < limit { mem.span(page) } else { 0 };
            *left = left.saturating_sub(page.number() - at.number() + span);
            self.cursor = page.skip(span).number();
            if self.cursor >= limit {
                self.cursor = 0;
            }
            if span == 0 || mem.node_of(page) != NodeId::FAST || self.momentum.of(page) > 0 {
                continue;
            }
            let frequency = self.frequency.of(page);
            if u64::from(frequency) < self.knobs.hot {
                Self::demote(mem, page);
            } else if (self.waiting.len() as u64) < self.knobs.second_chances.0 {
                self.waiting.push_back((page, frequency));
            }
        }
        true
    }
}

impl Policy for Hybrid {
    fn released(&mut self, _: &mut dyn Memory, page: Page, _: u32) {
        self.waiting.retain(|(waits, _)| *waits != page);
    }

    fn sample(&mut self, mem: &mut dyn Memory, page: Page, _: Page, write: bool) {
        if !write {
            *self.sampled.entry(page.number()).or_default() += 1;
            self.samples += 1;
            if self.samples >= self.knobs.batch_samples {
                mem.wake(self.thread);
            }
        }
    }

    fn work(&mut self, mem: &mut dyn Memory, _: Thread) -> Next {
        if !self.hot.is_empty() {
            self.promote(mem);
            return Next::Again;
        }
        if self.walk(mem) {
            return Next::Again;
        }
        if self.samples < self.knobs.batch_samples {
            return Next::Idle;
        }
        self.count();
        if mem.free(NodeId::FAST) <= Self::mark(mem, self.knobs.allocation_share) {
            if mem.now() >= self.look {
                self.look = mem.now().plus(self.knobs.second_chance);
                for (page, frequency) in std::mem::take(&mut self.waiting) {
                    if self.frequency.of(page) == frequency {
                        Self::demote(mem, page);
                    }
                }
            }
            self.walk = Some(mem.page_limit());
        }
        Next::Again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_upper_bounds_and_are_halved() {
        let mut counts = Counts::new(1000, 4000);
        for page in 0..1000u32 {
            counts.add(Page::new(page), page % 4);
        }
        // Never too low, and too high for about one page in 1,000.
        let over = (0..1000u32).filter(|page| counts.of(Page::new(*page)) > (page % 4) as u8);
        assert!(over.count() < 10);
        assert!((0..1000u32).all(|page| counts.of(Page::new(page)) >= (page % 4) as u8));
        counts.add(Page::new(3), 4000);
        assert_eq!(counts.of(Page::new(3)), MAX_COUNT / 2);
    }
}
