//! Result rows and points of time series, from the counters of a tenant (a program) at two moments.

use nearfar_kernel::tiering::{FRAME, Time};
use nearfar_schema::column::Seed;
use nearfar_trace::{Error, Result};
use serde::Serialize;

use super::counters::Counters;
use super::engine::Engine;
use super::options::Options;
use super::run::PolicySource;
use super::workload::{Phase, Prepared};

nearfar_schema::columns! {
    /// One size of fast memory x policy x seed x program x phase.
    pub struct Row {
        /// The tiering policy.
        policy: String,
        /// The generated workload, or the trace.
        workload: String,
        /// Loads and stores of the workload, as in `--mix`; `trace` for a trace.
        mix: &'static str,
        /// Seed of the random draws of the run.
        seed: Seed,
        /// The phase: `warm-up`, `round-1`, ..., or `trace`.
        phase: String,
        /// Memory accesses of the program.
        accesses: u64,
        /// Simulated duration of the accesses.
        seconds: f64 ["s"],
        /// Bytes of the program's accesses per second.
        bandwidth_mb_s: f64 ["MiB/s"] as "MiB/s",
        /// Mean time of an access of a thread, faults included.
        mean_latency_ns: f64 ["ns"] as "access",
        /// Share of accesses to the fastest node.
        fast_hit_ratio: f64 as "fast",
        /// Pages allocated on the fastest node.
        fast_allocated: u64 ["pages"],
        /// Pages of the fastest node that the program released.
        fast_freed: u64 ["pages"],
        /// Pages moved to a faster node.
        promotions: u64 ["pages"] as "up",
        /// Pages moved to a slower node.
        demotions: u64 ["pages"] as "down",
        /// Demotions without a copy: the page was remapped to its shadow, the old frame on the slower node.
        demotions_remapped: u64 ["pages"] as "remap",
        /// Demotions that copied the page.
        demotions_copied: u64 ["pages"] as "copied",
        /// Promotions that kept the page's old frame as a shadow.
        shadow_copies: u64 ["pages"] as "shadow",
        /// Shadows freed because their page was written.
        shadow_faults: u64 ["pages"] as "fault",
        /// Shadows freed to reclaim their frames.
        shadow_reclaims: u64 ["pages"] as "reclaim",
        /// Copies aborted because the page was written during the copy.
        aborts: u64 ["pages"],
        /// Hint faults: accesses to pages protected to detect use.
        hint_faults: u64 as "hints",
        /// Write-protect faults, on pages with and without a shadow.
        write_faults: u64,
        /// Bytes copied between nodes, including failed migrations.
        bytes_migrated: u64 ["bytes"],
        /// Peak memory that shadows take.
        shadow_bytes_peak: u64 ["bytes"],
        /// Pages on the fastest node at the end of the phase. With two nodes: the number at the end of the
        /// previous phase + `fast_allocated` + `promotions` - `fast_freed` - `demotions`.
        fast_pages: u64 ["pages"],
        /// Size of the fastest node.
        fast_node_bytes: u64 ["bytes"] as "fast memory",
        /// Size of the fastest node as a fraction of the program's memory; null unless given as a share.
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
        /// The tiering policy.
        policy: String,
        /// The generated workload, or the trace.
        workload: String,
        /// Loads and stores of the workload, as in `--mix`; `trace` for a trace.
        mix: &'static str,
        /// Seed of the random draws of the run.
        seed: Seed,
        /// Phase of the run: `warm-up`, `round-1`, ..., or `trace`.
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
        /// Bytes in use on nodes other than the fastest.
        slow_bytes: u64 ["bytes"],
        /// Memory that shadows take.
        shadow_bytes: u64 ["bytes"] as "in shadows",
        /// Shadows freed since the start because their page was written.
        shadow_faults: u64 ["pages"] as "fault",
        /// Shadows freed since the start to reclaim their frames.
        shadow_reclaims: u64 ["pages"] as "reclaim",
        /// Pages demoted since the start by remapping them to their shadow, without a copy.
        demotions_remapped: u64 ["pages"] as "remap",
        /// Size of the fastest node.
        fast_node_bytes: u64 ["bytes"] as "fast memory",
        /// Size of the fastest node as a fraction of the program's memory; null unless given as a share.
        fast_fraction: Option<f64> ["of the program's memory"],
    }
    keys [workload, mix, fast_fraction | fast_node_bytes, policy, phase, progress]
    metrics [bandwidth_mb_s more, fast_hit_ratio more]
    seed [seed]
}

/// The result of a study.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// A row for each size of the fastest node, policy, seed, tenant and phase.
    pub rows: Vec<Row>,
    /// The time series, in the same order.
    pub series: Vec<Point>,
}

impl FromIterator<Outcome> for Outcome {
    fn from_iter<T: IntoIterator<Item = Outcome>>(outcomes: T) -> Self {
        let mut all = Outcome::default();
        for outcome in outcomes {
            all.rows.extend(outcome.rows);
            all.series.extend(outcome.series);
        }
        all
    }
}

/// The size of the fastest node in a run, and the frames of all nodes.
#[derive(Clone)]
pub(super) struct Fast {
    /// Size of the fastest node.
    pub bytes: u64,
    /// The same as a fraction of the program's memory, if given so.
    pub fraction: Option<f64>,
    /// Frames of each node.
    pub frames: Vec<u64>,
}

/// One run: a memory size, a policy and a seed.
pub(super) struct Case<'a> {
    pub options: &'a Options,
    pub fast: &'a Fast,
    pub source: &'a PolicySource<'a>,
    pub seed: u64,
}

/// A tenant's counters and clock at a moment.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    pub counters: Counters,
    pub clock: Time,
}

impl Moment {
    pub fn now(engine: &Engine, tenant: usize) -> Self {
        let world = &engine.world;
        Self { counters: *world.counters_of(tenant), clock: world.clock_of(tenant) }
    }

    /// The program's accesses so far.
    pub fn accesses(&self) -> u64 {
        self.counters.accesses.iter().flatten().sum()
    }
}

/// MiB/s and the fastest node's share of accesses, between two moments.
fn rates(access_bytes: u64, from: &Moment, to: &Moment) -> (f64, f64) {
    let [before, after] = [from, to].map(|moment| moment.counters.accesses[0].iter().sum::<u64>());
    let accesses = to.accesses() - from.accesses();
    let mib = (accesses * access_bytes) as f64 / f64::from(1 << 20);
    let seconds = (to.clock.since(from.clock).ps() as f64 / 1e12).max(1e-12);
    (mib / seconds, (after - before) as f64 / accesses.max(1) as f64)
}

impl Case<'_> {
    pub fn points(&self) -> u64 {
        u64::from(self.options.points.max(1))
    }

    /// Check the invariants at the end of a phase.
    pub fn check(&self, engine: &Engine, phase: &Phase) -> Result<()> {
        debug_assert_eq!(engine.world.check(), Ok(()));
        engine.world.adds_up().map_err(|what| {
            let place = format!("tiering: {}, {}", self.source.label, phase.name);
            Error::input(place, what, "report this")
        })
    }

    /// The current point of the series. `last` is the moment of the previous point, and is updated.
    pub fn point(
        &self,
        engine: &Engine,
        (tenant, workload): (usize, &Prepared),
        phase: &Phase,
        progress: f64,
        last: &mut Moment,
    ) -> Point {
        let moment = Moment::now(engine, tenant);
        let (bandwidth_mb_s, fast_hit_ratio) = rates(workload.access_bytes, last, &moment);
        *last = moment;
        let used = engine.world.used_frames(tenant);
        let (shadow_frames, _) = engine.world.shadows(tenant);
        let now = moment.counters;
        Point {
            policy: self.source.label.clone(),
            workload: workload.name.clone(),
            mix: workload.mix,
            seed: Seed(self.seed),
            phase: phase.name.clone(),
            progress,
            seconds: moment.clock.ps() as f64 / 1e12,
            bandwidth_mb_s,
            fast_hit_ratio,
            shadow_copies: now.shadow_copies,
            promotions: now.promotions,
            demotions: now.demotions,
            fast_bytes: used.first().copied().unwrap_or_default() * FRAME,
            slow_bytes: used.iter().skip(1).sum::<u64>() * FRAME,
            shadow_bytes: shadow_frames * FRAME,
            shadow_faults: now.shadow_faults,
            shadow_reclaims: now.shadow_reclaims,
            demotions_remapped: now.demotions_remapped,
            fast_node_bytes: self.fast.bytes,
            fast_fraction: self.fast.fraction,
        }
    }

    /// The row of a phase that began at `began`. It counts events since the previous phase ended (`from`).
    pub fn row(
        &self,
        engine: &Engine,
        (tenant, workload): (usize, &Prepared),
        phase: &Phase,
        from: &Counters,
        began: Time,
    ) -> Row {
        let now = Moment::now(engine, tenant);
        let from = Moment { counters: *from, clock: began };
        let elapsed = now.clock.since(began);
        let (bandwidth_mb_s, fast_hit_ratio) = rates(workload.access_bytes, &from, &now);
        let accesses = now.accesses() - from.accesses();
        let (_, shadow_peak) = engine.world.shadows(tenant);
        let count = |of: fn(&Counters) -> u64| of(&now.counters) - of(&from.counters);
        Row {
            policy: self.source.label.clone(),
            workload: workload.name.clone(),
            mix: workload.mix,
            seed: Seed(self.seed),
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
            shadow_bytes_peak: shadow_peak * FRAME,
            fast_pages: engine.world.fast_pages(tenant),
            fast_node_bytes: self.fast.bytes,
            fast_fraction: self.fast.fraction,
        }
    }
}
