//! `damon`: promotes hot regions and demotes cold ones, within self-tuning quotas.
//!
//! Follows Linux 6.16, `samples/damon/mtier.c` and `mm/damon/core.c`. Each sample checks one page of
//! each region (`kdamond_fn`). After each aggregation, neighbours of similar use become one region
//! (`damon_merge_regions_of`), and regions are split at random places (`damon_split_regions_of`).
//! Each second, two schemes visit the regions by priority (`damon_hot_score`, `damon_cold_score`), as
//! far as their quotas allow. One promotes accessed pages of used regions, the other demotes unaccessed
//! pages of unused regions. The promotion quota grows while the used share of the fast node is below
//! its goal, the demotion quota while the free share is below its goal; above the goal they shrink
//! (`damon_feed_loop_next_input`).

use nearfar_trace::generate::rng::Rng;

use super::knobs::{Frames, Knobs};
use super::shares::may_demote;
use super::{
    Capability, Context, Memory, Next, NodeId, Page, Policy, PolicyEntry, Thread, Time,
    USE_HINT_FAULTS, need,
};
use crate::knobs;

knobs! {
    /// DAMON's attributes and schemes.
    DamonKnobs {
        sample_interval: Time = "5ms" (in tests "2us"), "time between samples, each of one page per region",
            "Linux 6.16, mtier.c, sample_interval";
        aggregation: u64 = "20" (in tests "5"), "samples from one merging and splitting of regions to the next",
            "Linux 6.16, mtier.c, aggr_interval: 100 ms";
        min_regions: u64 = "10" (in tests "3"), "minimum number of regions", "Linux 6.16, mtier.c, min_nr_regions";
        max_regions: u64 = "1000" (in tests "12"), "maximum number of regions", "Linux 6.16, mtier.c, max_nr_regions";
        apply_interval: Time = "1s" (in tests "20us"), "time between runs of the promotion and demotion schemes; period of their quotas",
            "Linux 6.16, mtier.c, apply_interval_us";
        quota: Frames = "200MiB" (in tests "32KiB"), "maximum memory promoted, and maximum memory demoted, in `apply_interval`",
            "Linux 6.16, mtier.c, sz";
        used_goal: u64 = "9970" (in tests "8000"), "used share of the fast node that promotion aims at, in 1/10000",
            "Linux 6.16, mtier.c, DAMOS_QUOTA_NODE_MEM_USED_BP";
        free_goal: u64 = "50" (in tests "2500"), "free share of the fast node that demotion aims at, in 1/10000",
            "Linux 6.16, mtier.c, DAMOS_QUOTA_NODE_MEM_FREE_BP";
        batch: u64 = "32" (in tests "4"), "pages that a scheme visits in a step", "assumption: as kswapd";
    }
}

pub static POLICY: PolicyEntry = PolicyEntry {
    what: "DAMON: hot regions move up and cold ones down, within self-tuning quotas",
    follows: "Linux 6.16, samples/damon/mtier.c",
    leaves_out: "physical addresses (regions are virtual here), self-tuning intervals",
    not_for: "scattered hot pages: all pages of a region count as equally hot",
    foresees: false,
    knobs: DamonKnobs::declared,
    make: |settings, mem| {
        let required = [Capability::AccessedBits, Capability::FarIsMapped];
        need(mem, &required, "damon", USE_HINT_FAULTS)?;
        let damon = Damon::new(DamonKnobs::read(settings)?, mem);
        let first = (damon.thread, mem.now().plus(damon.knobs.sample_interval));
        Ok((Box::new(damon), vec![first]))
    },
};

/// The score of a quota whose goal is met exactly; also the denominator of shares.
const GOAL: u64 = 10_000;
/// DAMOS_MAX_SCORE: highest priority of a region.
const MAX_SCORE: u64 = 99;
/// DAMON_MAX_AGE_IN_LOG: largest logarithm of an age.
const MAX_AGE_LOG: u64 = 32;

/// Pages of similar use: from `first` to before `end`.
#[derive(Clone, Copy, Debug)]
struct Region {
    first: u32,
    end: u32,
    /// The page that the next sample checks.
    sampled: Page,
    /// Samples in which the sampled page was accessed.
    accesses: u64,
    /// `accesses` of the previous aggregation.
    before: u64,
    /// Aggregations since `accesses` changed.
    age: u64,
}

impl Region {
    fn pages(&self) -> u64 {
        u64::from(self.end - self.first)
    }
}

#[derive(Clone, Copy, Debug)]
struct Scheme {
    promotes: bool,
    /// Frames that it may move in an interval, as tuned.
    quota: u64,
}

/// A scheme that is being applied.
#[derive(Clone, Debug)]
struct Walk {
    promotes: bool,
    /// Page ranges not visited yet, the next one last.
    ranges: Vec<(u32, u32)>,
    /// Frames that it may still move.
    left: u64,
}

#[derive(Debug)]
struct Damon {
    knobs: DamonKnobs,
    thread: Thread,
    rng: Rng,
    regions: Vec<Region>,
    samples: u64,
    schemes: [Scheme; 2],
    walks: Vec<Walk>,
    next_sample: Time,
    next_apply: Time,
}

impl Damon {
    fn new(knobs: DamonKnobs, mem: &mut dyn Memory) -> Self {
        let limit = mem.page_limit();
        let parts = knobs.min_regions.clamp(1, u64::from(limit).max(1));
        let at = |part: u64| (u64::from(limit) * part / parts) as u32;
        let region = |part| Region {
            first: at(part),
            end: at(part + 1),
            sampled: Page::new(at(part)),
            accesses: 0,
            before: 0,
            age: 0,
        };
        let scheme = |promotes| Scheme { promotes, quota: knobs.quota.0.max(1) };
        Self {
            thread: mem.spawn("kdamond", Context::Kernel),
            // A fixed seed: runs are reproducible.
            rng: Rng::stream(0, 0),
            regions: (0..parts).map(region).filter(|region| region.pages() > 0).collect(),
            samples: 0,
            schemes: [scheme(true), scheme(false)],
            walks: Vec::new(),
            next_sample: mem.now().plus(knobs.sample_interval),
            next_apply: mem.now().plus(knobs.apply_interval),
            knobs,
        }
    }

    /// Count an access to each region whose sampled page was accessed, and choose the next pages to
    /// sample.
    fn take_sample(&mut self, mem: &mut dyn Memory) {
        for region in &mut self.regions {
            if mem.mapped(region.sampled) && mem.accessed(region.sampled) {
                region.accesses += 1;
            }
            let random = self.rng.next_u64() >> 32;
            let place = random * region.pages() >> 32;
            region.sampled = Page::new(region.first + place as u32);
            // An inner page of a huge page is not `mapped`: the accessed bit is that of the first page.
            if !mem.mapped(region.sampled) {
                let head = region.sampled.number() / super::HUGE * super::HUGE;
                region.sampled = Page::new(head);
            }
            if mem.mapped(region.sampled) {
                mem.clear_accessed(region.sampled);
            }
        }
    }

    fn merge(&mut self) {
        let max = self.regions.iter().map(|region| region.accesses).max().unwrap_or(0);
        let total: u64 = self.regions.iter().map(Region::pages).sum();
        let limit = (total / self.knobs.min_regions.max(1)).max(1);
        let tolerance = max / 10;
        let mut merged: Vec<Region> = Vec::with_capacity(self.regions.len());
        for mut region in self.regions.drain(..) {
            let changed = region.accesses.abs_diff(region.before) > tolerance;
            region.age = if changed { 0 } else { region.age + 1 };
            match merged.last_mut() {
                Some(last)
                    if last.accesses.abs_diff(region.accesses) <= tolerance
                        && last.pages() + region.pages() <= limit =>
                {
                    let (one, other) = (last.pages(), region.pages());
                    let mean = |a: u64, b: u64| (a * one + b * other) / (one + other);
                    last.accesses = mean(last.accesses, region.accesses);
                    last.age = mean(last.age, region.age);
                    last.end = region.end;
                }
                _ => merged.push(region),
            }
        }
        self.regions = merged;
    }

    /// Reset the counts, and split regions in two while there are few.
    fn split(&mut self) {
        let may_split = self.regions.len() as u64 <= self.knobs.max_regions / 2;
        let mut split = Vec::with_capacity(self.regions.len() * 2);
        for mut region in self.regions.drain(..) {
            (region.before, region.accesses) = (region.accesses, 0);
            if may_split && region.pages() > 1 {
                // At one to nine tenths of the region (`damon_split_regions_of`).
                let tenths = 1 + (self.rng.next_u64() >> 32) * 9 / (1 << 32);
                let place = (region.pages() * tenths / 10).clamp(1, region.pages() - 1) as u32;
                let middle = region.first + place;
                split.push(Region { end: middle, ..region });
                split.push(Region { first: middle, sampled: Page::new(middle), ..region });
            } else {
                split.push(region);
            }
        }
        self.regions = split;
    }

    /// How hot a region is, 0 to 99 (`damon_hot_score`), with equal weights of frequency and age.
    fn hotness(&self, region: &Region) -> u64 {
        let frequency = region.accesses * 100 / self.knobs.aggregation.max(1);
        let interval = self.knobs.sample_interval.ps() * self.knobs.aggregation;
        // The kernel takes the age in seconds; here it is in `apply_interval`s, by default a second.
        let intervals = region.age * interval / self.knobs.apply_interval.ps().max(1);
        let log = u64::from(intervals.checked_ilog2().map_or(0, |log| log + 1)).min(MAX_AGE_LOG);
        let age = if frequency == 0 { MAX_AGE_LOG - log } else { MAX_AGE_LOG + log };
        ((frequency.min(100) + age * 100 / MAX_AGE_LOG / 2) / 2).min(MAX_SCORE)
    }

    /// Tune the quotas, and start both schemes.
    fn begin_schemes(&mut self, mem: &dyn Memory) {
        let (all, free) = (mem.capacity(NodeId::FAST).max(1), mem.free(NodeId::FAST));
        let mut regions: Vec<(u64, u64, Region)> = self
            .regions
            .iter()
            .map(|region| (self.hotness(region), region.accesses, *region))
            .collect();
        regions.sort_by_key(|(hotness, _, region)| (*hotness, region.first));
        for scheme in &mut self.schemes {
            let (share, goal) = match scheme.promotes {
                true => ((all - free.min(all)) * GOAL / all, self.knobs.used_goal),
                false => (free * GOAL / all, self.knobs.free_goal),
            };
            scheme.quota = tuned(scheme.quota, share * GOAL / goal.max(1));
            let left = scheme.quota.min(self.knobs.quota.0);
            let wanted = |accesses: u64| (accesses > 0) == scheme.promotes;
            // The last is walked first: the hottest to move up, the coldest to move down.
            let mut ranges: Vec<(u32, u32)> = regions
                .iter()
                .filter(|(_, accesses, _)| wanted(*accesses))
                .map(|(.., region)| (region.first, region.end))
                .collect();
            if !scheme.promotes {
                ranges.reverse();
            }
            self.walks.push(Walk { promotes: scheme.promotes, ranges, left });
        }
    }

    /// Visit some pages of a scheme's ranges. Returns false if no scheme is left.
    fn walk(&mut self, mem: &mut dyn Memory) -> bool {
        let Some(walk) = self.walks.last_mut() else { return false };
        for _ in 0..self.knobs.batch {
            let Some((first, end)) = walk.ranges.last_mut() else { break };
            let page = mem.next_mapped(Page::new(*first)).filter(|page| page.number() < *end);
            let Some(page) = page.filter(|_| walk.left > 0) else {
                walk.ranges.pop();
                continue;
            };
            let (node, span) = (mem.node_of(page), mem.span(page));
            *first = page.skip(span).number();
            let to = match walk.promotes {
                true if node != NodeId::FAST => NodeId::FAST,
                false if node == NodeId::FAST && may_demote(mem, page) => {
                    match node.slower(mem.nodes()) {
                        Some(slower) => slower,
                        None => continue,
                    }
                }
                _ => continue,
            };
            // Promote accessed pages, demote others.
            if mem.clear_accessed(page) == walk.promotes && mem.move_page(page, to).is_ok() {
                walk.left = walk.left.saturating_sub(span.into());
            }
        }
        if walk.ranges.is_empty() || walk.left == 0 {
            self.walks.pop();
        }
        true
    }
}

/// The next quota, which brings the present `score` nearer to [`GOAL`].
fn tuned(quota: u64, score: u64) -> u64 {
    // The kernel's quotas are in bytes, from 10,000 to ULONG_MAX; the maximum here is 2^40 frames.
    let change = quota.saturating_mul(score.abs_diff(GOAL)) / GOAL;
    let min = GOAL.div_ceil(super::FRAME);
    match score {
        GOAL => quota,
        _ if score >= 2 * GOAL => min,
        _ if score > GOAL => (quota - change).max(min),
        _ => quota.saturating_add(change.max(1)).min(1 << 40),
    }
}

impl Policy for Damon {
    fn released(&mut self, _: &mut dyn Memory, _: Page, _: u32) {}

    fn work(&mut self, mem: &mut dyn Memory, _: Thread) -> Next {
        let now = mem.now();
        if now >= self.next_sample {
            self.next_sample = now.plus(self.knobs.sample_interval);
            self.take_sample(mem);
            self.samples += 1;
            if self.samples >= self.knobs.aggregation {
                self.samples = 0;
                self.merge();
                if now >= self.next_apply {
                    self.next_apply = now.plus(self.knobs.apply_interval);
                    self.walks.clear();
                    self.begin_schemes(mem);
                }
                self.split();
            }
            return Next::Again;
        }
        if self.walk(mem) { Next::Again } else { Next::At(self.next_sample) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{COSTS, ReferenceMemory, settings};
    use super::*;

    #[test]
    fn a_quota_grows_below_its_goal_and_shrinks_above() {
        assert_eq!(tuned(1000, 5_000), 1500);
        assert_eq!(tuned(1000, 10_000), 1000);
        assert_eq!(tuned(1000, 12_000), 800);
        assert_eq!((tuned(1000, 20_000), tuned(1, 19_999)), (3, 3));
    }

    #[test]
    fn a_bounded_number_of_regions_partitions_all_pages() {
        let mut memory = ReferenceMemory::new(COSTS, &[8, 40], 40, /* huge: */ false);
        let settings = settings("damon").unwrap();
        let mut damon = Damon::new(DamonKnobs::read(&settings).unwrap(), &mut memory);
        for round in 0..200u32 {
            for region in &mut damon.regions {
                region.accesses = u64::from(region.first * round % 6);
            }
            damon.merge();
            damon.split();
            let mut at = 0;
            for region in &damon.regions {
                assert!(
                    region.first == at
                        && region.end > at
                        && region.first <= region.sampled.number()
                );
                at = region.end;
            }
            assert_eq!(at, 40);
            assert!(damon.regions.len() <= 24);
        }
    }
}
