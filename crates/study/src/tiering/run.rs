//! Runs each fast memory size x policy x seed in parallel, and collects their rows and time series. Several
//! programs run in [`super::tenants`].

use std::sync::Arc;

use nearfar_kernel::tiering::{FRAME, HUGE, Made, Memory, Page, Time};
use nearfar_schema::units::MemorySize;
use nearfar_trace::{Error, Result};

use crate::jobs::{self, Advance};

use super::counters::Counters;
use super::engine::{Block, Engine, Queue};
use super::options::{Options, resident};
use super::rows::{Case, Fast, Moment};
use super::tenants::run_tenants;
use super::workload::{Prepared, Source};
use super::world::World;

pub use super::rows::{Outcome, Point, Row};

/// Creates the policy of a run, for the memory that it acts on.
pub type Make<'a> = Box<dyn Fn(&mut dyn Memory) -> Result<Made> + Sync + 'a>;

/// A policy to run.
pub struct PolicySource<'a> {
    /// Name in results.
    pub label: String,
    /// Whether it knows the future.
    pub foresees: bool,
    pub make: Make<'a>,
}

/// Accesses generated at a time, few enough to stay in the processor's cache.
pub(super) const BLOCK: usize = 1 << 14;
/// As [`BLOCK`], for each thread of a program with several.
const THREAD_BLOCK: u64 = 1 << 10;

/// Run all `programs` together, with every fast memory size, policy and seed. `on_progress` is called with
/// the accesses so far; its error ends the run. With `options.threads` 1 all work is on the calling thread.
///
/// # Errors
/// Input errors: no policy or seed, too little memory, an invalid knob, a bad trace; the error of
/// `on_progress`.
pub fn run(
    options: &Options,
    programs: &[Arc<Prepared>],
    policies: &[PolicySource<'_>],
    seeds: &[u64],
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Outcome> {
    let mut jobs = Vec::new();
    for size in options.fast_sizes() {
        let frames = options.frames(resident(programs), size)?;
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
            run_case(&Case { options, fast, source: policy, seed: *seed }, programs, advance)
        })?;
    Ok(outcomes.into_iter().collect())
}

/// Run one policy with one seed. `advance` is called with the accesses done since its last call.
fn run_case(
    case: &Case<'_>,
    programs: &[Arc<Prepared>],
    advance: &mut Advance<'_>,
) -> Result<Outcome> {
    let (mut engine, firsts) = set_up(case, programs)?;
    match programs {
        [only] => run_alone(case, &mut engine, only, advance),
        _ => run_tenants(case, &mut engine, programs, &firsts, advance),
    }
}

/// The machine with the memory that programs map before they start, and the first page number of each
/// program.
pub(super) fn set_up(case: &Case<'_>, programs: &[Arc<Prepared>]) -> Result<(Engine, Vec<u32>)> {
    let (hardware, pages) = case.options.hardware(programs)?;
    let firsts: Vec<u32> = hardware.programs.iter().map(|program| program.first).collect();
    let world = World::new(hardware, &case.fast.frames, pages);
    let mut engine = Engine::new(world, &case.source.make, case.options.huge)?;
    let step = if case.options.huge { HUGE as usize } else { 1 };
    for (program, first) in programs.iter().zip(&firsts) {
        for page in (0..program.mapped).step_by(step) {
            engine.allocate(Page::new(first + page))?;
        }
    }
    Ok((engine, firsts))
}

/// Run the only program (tenant 0), phase by phase.
pub(super) fn run_alone(
    case: &Case<'_>,
    engine: &mut Engine,
    workload: &Arc<Prepared>,
    advance: &mut Advance<'_>,
) -> Result<Outcome> {
    let total: u64 = workload.phases.iter().map(|phase| phase.accesses).sum();
    let mut outcome = Outcome::default();
    let mut before = 0;
    // A row counts from the end of the previous phase, so that it includes allocation and the sleep.
    let mut from = Counters::default();
    for (index, phase) in workload.phases.iter().enumerate() {
        if phase.sleep > Time::default() {
            engine.sleep(phase.sleep);
        }
        if index > 0 && workload.has_lives() {
            engine.end_pages(Page::new(0), workload.pages);
        }
        // The same accesses as `program`, for a policy that knows the future.
        let mut ahead = Program::new(workload, index, case.seed)?;
        engine.world.reset_peak(0);
        let mut last = Moment::now(engine, 0);
        let began = last.clock;
        let mut program = Program::new(workload, index, case.seed)?;
        let mut done = 0;
        for point in 1..=case.points() {
            let until = phase.accesses * point / case.points();
            // The hot set of a trace changes, so the policy gets the counts up to the next point only.
            if case.source.foresees && (point == 1 || workload.is_trace()) {
                let accesses = if workload.is_trace() { until - done.min(until) } else { u64::MAX };
                engine.foresee(&ahead.counts(accesses, workload.pages)?);
            }
            while done < until {
                let count = program.run(engine, BLOCK.min((until - done) as usize))?;
                if count == 0 {
                    return Err(trace_changed());
                }
                done += count;
                advance(count)?;
            }
            let progress = (before + done) as f64 / total.max(1) as f64;
            outcome.series.push(case.point(engine, (0, workload), phase, progress, &mut last));
        }
        engine.world.join();
        before += phase.accesses;
        case.check(engine, phase)?;
        outcome.rows.push(case.row(engine, (0, workload), phase, &from, began));
        from = *engine.world.counters_of(0);
    }
    Ok(outcome)
}

/// The error of a trace that ended early.
pub(super) fn trace_changed() -> Error {
    Error::input("tiering", "the trace changed while it was read", "")
}

/// The accesses of a program's threads in a phase.
pub(super) struct Program {
    sources: Vec<Source>,
    /// Remaining accesses of each thread.
    left: Vec<u64>,
    queues: Vec<Queue>,
    /// Accesses generated at a time for each of several threads; they make up whole operations.
    at_once: u64,
    block: Block,
}

impl Program {
    pub(super) fn new(workload: &Arc<Prepared>, phase: usize, seed: u64) -> Result<Self> {
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

    /// Run about `count` accesses. Returns their number, 0 at the end.
    fn run(&mut self, engine: &mut Engine, count: usize) -> Result<u64> {
        if let [only] = self.sources.as_mut_slice() {
            only.fill(&mut self.block, count)?;
            engine.run_block(&self.block)?;
            return Ok(self.block.accesses.len() as u64);
        }
        let mut queues = std::mem::take(&mut self.queues);
        let mut refill = |thread, block: &mut Block| self.refill(thread, block);
        let done = engine.run_threads(&mut queues, count as u64, &mut refill);
        self.queues = queues;
        done
    }

    /// The next accesses of a thread; none at its end.
    pub(super) fn refill(&mut self, thread: usize, block: &mut Block) -> Result<()> {
        let next = self.left[thread].min(self.at_once);
        self.left[thread] -= next;
        self.sources[thread].fill(block, next as usize)
    }

    /// How often each page will be accessed in the next `accesses` of each thread, or until the phase ends.
    pub(super) fn counts(&mut self, accesses: u64, pages: u32) -> Result<Vec<u32>> {
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
