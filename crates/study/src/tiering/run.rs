//! Fast memory sizes x policies x seeds, in parallel, into rows and time series.

use std::sync::Arc;

use nearfar_kernel::tiering::{FRAME, Made, Memory, Page, Time};
use nearfar_schema::column::Seed;
use nearfar_schema::units::MemorySize;
use nearfar_trace::{Error, Result};
use serde::Serialize;

use crate::jobs::{self, Advance};

use super::counters::Counters;
use super::engine::{Block, Engine, Queue};
use super::options::Options;
use super::workload::{Phase, Prepared, Source};
use super::world::World;

/// Makes a fresh policy for each run, in the memory that it is to act on.
pub type Make<'a> = Box<dyn Fn(&mut dyn Memory) -> Result<Made> + Sync + 'a>;

/// A policy to run, by its label in results.
pub struct PolicySource<'a> {
    /// Its label.
    pub label: String,
    /// Whether it knows the future.
    pub foresees: bool,
    /// Makes one.
    pub make: Make<'a>,
}

nearfar_schema::columns! {
    /// One policy x seed x phase.
    pub struct Row {
        /// The policy.
        policy: String,
        /// The generated workload, or the trace.
        workload: String,
        /// Its loads and stores: `trace` for a trace.
        mix: &'static str,
        /// The seed of the draws.
        seed: Seed,
        /// The phase: `warm-up`, `round-1`, ..., or `trace`.
        phase: String,
        /// The program's accesses.
        accesses: u64,
        /// How long they took, simulated.
        seconds: f64 ["s"],
        /// Bytes of the program's accesses per second.
        bandwidth_mb_s: f64 ["MiB/s"] as "MiB/s",
        /// Time of an access of a thread, all its faults included.
        mean_latency_ns: f64 ["ns"] as "access",
        /// Share of accesses to the fastest node.
        fast_hit_ratio: f64 as "fast",
        /// Pages allocated on the fastest node.
        fast_allocated: u64 ["pages"],
        /// Pages of the fastest node that the program released.
        fast_freed: u64 ["pages"],
        /// Pages moved up.
        promotions: u64 ["pages"] as "up",
        /// Pages moved down.
        demotions: u64 ["pages"] as "down",
        /// Of these, onto their shadow.
        demotions_remapped: u64 ["pages"] as "remap",
        /// Of these, by a copy.
        demotions_copied: u64 ["pages"] as "copied",
        /// Promotions that kept a shadow.
        shadow_copies: u64 ["pages"] as "shadow",
        /// Shadows freed by a write.
        shadow_faults: u64 ["pages"] as "fault",
        /// Shadows freed for their frame.
        shadow_reclaims: u64 ["pages"] as "reclaim",
        /// Copies given up because the page was written meanwhile.
        aborts: u64 ["pages"],
        /// Hint faults.
        hint_faults: u64 as "hints",
        /// Write-protect faults in all.
        write_faults: u64,
        /// Bytes copied between nodes.
        bytes_migrated: u64 ["bytes"],
        /// Most bytes in shadows at a time.
        shadow_bytes_peak: u64 ["bytes"],
        /// Pages on the fastest node at the end. With two nodes, that is as many as at the end of the phase
        /// before, plus those allocated and moved up, less those released and moved down.
        fast_pages: u64 ["pages"],
        /// Size of the fastest node.
        fast_node_bytes: u64 ["bytes"] as "fast memory",
        /// The same where it was given as a part of the program's memory, or null.
        fast_fraction: Option<f64> ["of the program's memory"],
    }
    keys [workload, mix, fast_fraction | fast_node_bytes, policy, phase]
    metrics [
        bandwidth_mb_s more,
        mean_latency_ns less,
        seconds less,
        fast_hit_ratio more,
        promotions less,
        demotions less,
        bytes_migrated less,
        hint_faults less,
        write_faults less,
        shadow_faults less,
        aborts less,
    ]
    seed [seed]
}

nearfar_schema::columns! {
    /// One point of the time series of a run.
    pub struct Point {
        /// The policy.
        policy: String,
        /// The generated workload, or the trace.
        workload: String,
        /// Its loads and stores: `trace` for a trace.
        mix: &'static str,
        /// The seed of the draws.
        seed: Seed,
        /// The phase.
        phase: String,
        /// Share of the run's accesses done, 0 to 1.
        progress: f64,
        /// Simulated time since the start.
        seconds: f64 ["s"],
        /// Bytes of the program's accesses per second, since the point before.
        bandwidth_mb_s: f64 ["MiB/s"] as "MiB/s",
        /// Share of accesses to the fastest node, since the point before.
        fast_hit_ratio: f64 as "fast",
        /// Shadows made since the start.
        shadow_copies: u64 ["pages"] as "shadow",
        /// Pages promoted since the start.
        promotions: u64 ["pages"] as "up",
        /// Pages demoted since the start.
        demotions: u64 ["pages"] as "down",
        /// Bytes in use on the fastest node.
        fast_bytes: u64 ["bytes"],
        /// Bytes in use on the other nodes.
        slow_bytes: u64 ["bytes"],
        /// Of these, shadows.
        shadow_bytes: u64 ["bytes"] as "in shadows",
        /// Shadows freed by a write since the start.
        shadow_faults: u64 ["pages"] as "fault",
        /// Shadows freed for their frame since the start.
        shadow_reclaims: u64 ["pages"] as "reclaim",
        /// Pages demoted onto their shadow since the start.
        demotions_remapped: u64 ["pages"] as "remap",
        /// Size of the fastest node.
        fast_node_bytes: u64 ["bytes"] as "fast memory",
        /// The same where it was given as a part of the program's memory, or null.
        fast_fraction: Option<f64> ["of the program's memory"],
    }
    keys [workload, mix, fast_fraction | fast_node_bytes, policy, phase, progress]
    metrics [bandwidth_mb_s more, fast_hit_ratio more]
    seed [seed]
}

/// What a study found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// A row for each size of the fastest node, policy, seed and phase.
    pub rows: Vec<Row>,
    /// The time series, in the same order.
    pub series: Vec<Point>,
}

/// Accesses generated at a time: they stay in the processor's cache.
const BLOCK: usize = 1 << 14;
/// The same for each of several threads.
const THREAD_BLOCK: u64 = 1 << 10;

/// Run every policy with every seed. `on_progress` is called with the accesses so far; its error
/// ends the run. With `options.threads` 1 everything runs on the calling thread.
///
/// # Errors
/// Input errors: no policy or seed, memory that does not suffice, a knob, a bad trace; the error of
/// `on_progress`.
pub fn run(
    options: &Options,
    workload: &Arc<Prepared>,
    policies: &[PolicySource<'_>],
    seeds: &[u64],
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Outcome> {
    let mut jobs = Vec::new();
    for size in options.fast_sizes() {
        let frames = options.frames(workload.resident, size)?;
        let fast = Fast {
            bytes: frames.first().copied().unwrap_or_default() * FRAME,
            fraction: match size {
                Some(MemorySize::Fraction(part)) => Some(part),
                Some(MemorySize::Bytes(_)) | None => None,
            },
            frames,
        };
        for policy in policies {
            jobs.extend(seeds.iter().map(|seed| (fast.clone(), policy, *seed)));
        }
    }
    if jobs.is_empty() {
        return Err(Error::input("tiering", "no policy or no seed", "give at least one of each"));
    }
    let outcomes =
        jobs::run(&jobs, options.threads, on_progress, |(fast, policy, seed), advance| {
            one(options, workload, fast, policy, *seed, advance)
        })?;
    let mut all = Outcome::default();
    for outcome in outcomes {
        all.rows.extend(outcome.rows);
        all.series.extend(outcome.series);
    }
    Ok(all)
}

/// The memory of a run, by the size of its fastest node.
#[derive(Clone)]
struct Fast {
    bytes: u64,
    fraction: Option<f64>,
    /// Of every node.
    frames: Vec<u64>,
}

/// One policy with one seed. `advance` is called with the accesses done since its last call.
fn one(
    options: &Options,
    workload: &Arc<Prepared>,
    fast_node: &Fast,
    source: &PolicySource<'_>,
    seed: u64,
    advance: &mut Advance<'_>,
) -> Result<Outcome> {
    let hardware = options.hardware(workload);
    let world = World::new(hardware, &fast_node.frames, workload.pages);
    let mut engine = Engine::new(world, &source.make, options.huge)?;
    let step = if options.huge { nearfar_kernel::tiering::HUGE as usize } else { 1 };
    for page in (0..workload.mapped).step_by(step) {
        engine.allocate(Page::new(page))?;
    }
    let total: u64 = workload.phases.iter().map(|phase| phase.accesses).sum();
    let mut outcome = Outcome::default();
    let mut before = 0;
    // A phase counts what happened since the one before: allocation, and the sleep before it.
    let mut from = Counters::default();
    for (index, phase) in workload.phases.iter().enumerate() {
        if phase.sleep > Time::default() {
            engine.sleep(phase.sleep);
        }
        if index > 0 && workload.has_lives() {
            engine.end_all();
        }
        let mut ahead = Program::new(workload, index, seed)?;
        engine.world.forget_peak();
        let (mut last, mut last_clock) = (*engine.world.counters(), engine.world.clock());
        let began = last_clock;
        let mut program = Program::new(workload, index, seed)?;
        let mut done = 0;
        for point in 1..=u64::from(options.points.max(1)) {
            let until = phase.accesses * point / u64::from(options.points.max(1));
            // A trace changes on the way: it learns of the future piece by piece.
            if source.foresees && (point == 1 || workload.is_trace()) {
                let known = if workload.is_trace() { until - done.min(until) } else { u64::MAX };
                engine.foresee(&ahead.counts(known, workload.pages)?);
            }
            while done < until {
                let count = program.run(&mut engine, BLOCK.min((until - done) as usize))?;
                if count == 0 {
                    return Err(Error::input("tiering", "the trace changed while it was read", ""));
                }
                done += count;
                advance(count)?;
            }
            let (now, clock) = (*engine.world.counters(), engine.world.clock());
            let used = engine.world.used_frames();
            let fast = used.first().copied().unwrap_or_default();
            let span = Span {
                accesses: 0,
                bytes: workload.access_bytes,
                elapsed: clock.since(last_clock),
            };
            let (rate, hits) = span.rates(&last, &now);
            outcome.series.push(Point {
                policy: source.label.clone(),
                workload: workload.name.clone(),
                mix: workload.mix,
                seed: Seed(seed),
                phase: phase.name.clone(),
                progress: (before + done) as f64 / total.max(1) as f64,
                seconds: clock.ps() as f64 / 1e12,
                bandwidth_mb_s: rate,
                fast_hit_ratio: hits,
                shadow_copies: now.shadow_copies,
                promotions: now.promotions,
                demotions: now.demotions,
                fast_bytes: fast * FRAME,
                slow_bytes: used.iter().skip(1).sum::<u64>() * FRAME,
                shadow_bytes: engine.world.shadows().0 * FRAME,
                shadow_faults: now.shadow_faults,
                shadow_reclaims: now.shadow_reclaims,
                demotions_remapped: now.demotions_remapped,
                fast_node_bytes: fast_node.bytes,
                fast_fraction: fast_node.fraction,
            });
            (last, last_clock) = (now, clock);
        }
        engine.join();
        before += phase.accesses;
        debug_assert_eq!(engine.world.check(), Ok(()));
        engine.world.adds_up().map_err(|what| {
            let place = format!("tiering: {}, {}", source.label, phase.name);
            Error::input(place, what, "report this")
        })?;
        outcome.rows.push(row(&engine, workload, fast_node, source, seed, phase, &from, began));
        from = *engine.world.counters();
    }
    Ok(outcome)
}

/// What rates are of.
struct Span {
    accesses: u64,
    bytes: u64,
    elapsed: Time,
}

impl Span {
    /// MiB a second and the fastest node's share of accesses, between two counts.
    fn rates(mut self, from: &Counters, to: &Counters) -> (f64, f64) {
        let mut fast = 0;
        for (node, (was, is)) in from.accesses.iter().zip(&to.accesses).enumerate() {
            let count = is[0] + is[1] - was[0] - was[1];
            self.accesses += count;
            fast += if node == 0 { count } else { 0 };
        }
        let mib = (self.accesses * self.bytes) as f64 / f64::from(1 << 20);
        let seconds = (self.elapsed.ps() as f64 / 1e12).max(1e-12);
        (mib / seconds, fast as f64 / self.accesses.max(1) as f64)
    }
}

/// The accesses of a phase, thread by thread.
struct Program {
    sources: Vec<Source>,
    /// Accesses that each thread has left.
    left: Vec<u64>,
    queues: Vec<Queue>,
    /// Accesses that a thread of several generates at a time, in whole rows.
    at_once: u64,
    block: Block,
}

impl Program {
    fn new(workload: &Arc<Prepared>, phase: usize, seed: u64) -> Result<Self> {
        let threads = 0..workload.parallel;
        let sources = threads.clone().map(|thread| workload.source(phase, seed, thread));
        Ok(Self {
            sources: sources.collect::<Result<_>>()?,
            left: threads.clone().map(|thread| workload.share(phase, thread)).collect(),
            queues: threads.map(|_| Queue::default()).collect(),
            at_once: THREAD_BLOCK.next_multiple_of(workload.row.into()),
            block: Block::default(),
        })
    }

    /// Run about `count` accesses; returns how many. 0 at the end.
    fn run(&mut self, engine: &mut Engine, count: usize) -> Result<u64> {
        let Self { sources, left, queues, at_once, block } = self;
        if let [only] = sources.as_mut_slice() {
            only.fill(block, count)?;
            engine.run_block(block)?;
            return Ok(block.accesses.len() as u64);
        }
        engine.run_threads(queues, count as u64, &mut |thread, block| {
            let next = left[thread].min(*at_once);
            left[thread] -= next;
            sources[thread].fill(block, next as usize)
        })
    }

    /// How often each page will be accessed in the next `accesses`, or until the end of the phase.
    fn counts(&mut self, accesses: u64, pages: u32) -> Result<Vec<u32>> {
        let mut counts = vec![0u32; pages as usize];
        for (source, left) in self.sources.iter_mut().zip(&mut self.left) {
            let mut accesses = accesses.min(*left);
            *left -= accesses;
            while accesses > 0 {
                source.fill(&mut self.block, BLOCK.min(accesses as usize))?;
                if self.block.accesses.is_empty() {
                    break;
                }
                accesses = accesses.saturating_sub(self.block.accesses.len() as u64);
                for access in &self.block.accesses {
                    if let Some(count) = counts.get_mut(access.page().index()) {
                        *count += 1;
                    }
                }
            }
        }
        Ok(counts)
    }
}

#[allow(clippy::too_many_arguments)]
fn row(
    engine: &Engine,
    workload: &Prepared,
    fast_node: &Fast,
    source: &PolicySource<'_>,
    seed: u64,
    phase: &Phase,
    from: &Counters,
    began: Time,
) -> Row {
    let now = engine.world.counters();
    let elapsed = engine.world.clock().since(began);
    let span = Span { accesses: 0, bytes: workload.access_bytes, elapsed };
    let (bandwidth_mb_s, fast_hit_ratio) = span.rates(from, now);
    let count = |of: fn(&Counters) -> u64| of(now) - of(from);
    let accesses = count(|c| c.accesses.iter().flatten().sum());
    Row {
        policy: source.label.clone(),
        workload: workload.name.clone(),
        mix: workload.mix,
        seed: Seed(seed),
        phase: phase.name.clone(),
        accesses,
        seconds: elapsed.ps() as f64 / 1e12,
        bandwidth_mb_s,
        mean_latency_ns: elapsed.ps() as f64 / 1e3 * f64::from(workload.parallel)
            / accesses.max(1) as f64,
        fast_hit_ratio,
        fast_allocated: count(|c| c.fast_allocated),
        fast_freed: count(|c| c.fast_freed),
        promotions: count(|c| c.promotions),
        demotions: count(|c| c.demotions),
        demotions_remapped: count(|c| c.demotions_remapped),
        demotions_copied: count(|c| c.demotions_copied),
        shadow_copies: count(|c| c.shadow_copies),
        shadow_faults: count(|c| c.shadow_faults),
        shadow_reclaims: count(|c| c.shadow_reclaims),
        aborts: count(|c| c.aborts),
        hint_faults: count(|c| c.hint_faults),
        write_faults: count(|c| c.write_faults),
        bytes_migrated: count(|c| c.frames_copied) * FRAME,
        shadow_bytes_peak: engine.world.shadows().1 * FRAME,
        fast_pages: engine.world.fast_pages(),
        fast_node_bytes: fast_node.bytes,
        fast_fraction: fast_node.fraction,
    }
}
