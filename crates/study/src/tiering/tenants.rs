//! Several programs on one machine, each with its own pages, threads and phases.
//!
//! A tenant begins its next phase when all its threads have ended the previous one, whatever other tenants
//! do: they share only memory and the policy.

use std::sync::Arc;

use nearfar_kernel::tiering::{Page, Time};
use nearfar_trace::{Error, Result};

use crate::jobs::Advance;

use super::counters::Counters;
use super::engine::{Engine, Queue};
use super::rows::{Case, Moment, Outcome};
use super::run::{BLOCK, Program, trace_changed};
use super::workload::Prepared;

struct Tenant<'a> {
    index: usize,
    workload: &'a Arc<Prepared>,
    first_page: u32,
    /// Index of the current phase.
    phase: usize,
    program: Program,
    /// The same accesses, read ahead for policies that know the future.
    ahead: Program,
    /// Number of the next point of the series, from 1 in each phase.
    point: u64,
    /// Accesses in earlier phases.
    before: u64,
    /// Counters at the end of the previous phase.
    from: Counters,
    /// State at the previous point.
    last: Moment,
    /// Start of the phase.
    began: Time,
    over: bool,
}

impl<'a> Tenant<'a> {
    fn new(
        engine: &Engine,
        index: usize,
        workload: &'a Arc<Prepared>,
        first_page: u32,
        seed: u64,
    ) -> Result<Self> {
        Ok(Self {
            index,
            workload,
            first_page,
            phase: 0,
            program: Program::new(workload, 0, seed)?,
            ahead: Program::new(workload, 0, seed)?,
            point: 1,
            before: 0,
            from: Counters::default(),
            last: Moment::now(engine, index),
            began: Time::default(),
            over: workload.phases.is_empty(),
        })
    }

    /// Begin the phase; the previous one ended at `time`.
    fn begin(&mut self, case: &Case<'_>, engine: &mut Engine, time: Time) -> Result<()> {
        let Some(phase) = self.workload.phases.get(self.phase) else {
            self.over = true;
            return Ok(());
        };
        engine.world.resume(self.index, time.plus(phase.sleep));
        if self.phase > 0 {
            if self.workload.has_lives() {
                engine.end_pages(Page::new(self.first_page), self.workload.pages);
            }
            self.program = Program::new(self.workload, self.phase, case.seed)?;
            self.ahead = Program::new(self.workload, self.phase, case.seed)?;
        }
        engine.world.reset_peak(self.index);
        self.last = Moment::now(engine, self.index);
        (self.began, self.point) = (self.last.clock, 1);
        Ok(())
    }

    /// Accesses from the start of this phase to the next point.
    fn until(&self, case: &Case<'_>) -> u64 {
        let accesses = self.workload.phases.get(self.phase).map_or(0, |phase| phase.accesses);
        accesses * self.point / case.points()
    }

    /// Accesses in this phase so far.
    fn done(&self, engine: &Engine) -> u64 {
        Moment::now(engine, self.index).accesses()
            - self.from.accesses.iter().flatten().sum::<u64>()
    }

    /// Write the accesses of each of the tenant's pages into the forecast: for a trace up to the next point,
    /// otherwise for the phase.
    fn foresee(&mut self, case: &Case<'_>, engine: &Engine, forecast: &mut [u32]) -> Result<()> {
        let accesses = match self.workload.is_trace() {
            true => self.until(case).saturating_sub(self.done(engine)),
            false => u64::MAX,
        };
        let counts = self.ahead.counts(accesses, self.workload.pages)?;
        let pages = forecast.iter_mut().skip(self.first_page as usize);
        pages.zip(counts).for_each(|(page, count)| *page = count);
        Ok(())
    }

    /// Record points that were passed, and the end of a phase. Returns whether a new forecast is due.
    fn record(
        &mut self,
        case: &Case<'_>,
        engine: &mut Engine,
        outcome: &mut Outcome,
    ) -> Result<bool> {
        let Some(phase) = self.workload.phases.get(self.phase) else { return Ok(false) };
        let done = self.done(engine);
        let total: u64 = self.workload.phases.iter().map(|phase| phase.accesses).sum();
        let point = self.point;
        while self.point <= case.points() && done >= self.until(case) {
            let progress = (self.before + self.until(case)) as f64 / total.max(1) as f64;
            let tenant = (self.index, &**self.workload);
            outcome.series.push(case.point(engine, tenant, phase, progress, &mut self.last));
            self.point += 1;
        }
        let due = self.point > point && self.point <= case.points() && self.workload.is_trace();
        let Some(end) = engine.world.ended(self.index) else { return Ok(due) };
        if done != phase.accesses {
            return Err(trace_changed());
        }
        case.check(engine, phase)?;
        let tenant = (self.index, &**self.workload);
        outcome.rows.push(case.row(engine, tenant, phase, &self.from, self.began));
        self.from = *engine.world.counters_of(self.index);
        self.before += phase.accesses;
        self.phase += 1;
        self.begin(case, engine, end)?;
        Ok(!self.over)
    }
}

/// Run all programs until the last one ends; rows and series are in the order of tenants.
///
/// # Errors
/// As [`run`](super::run::run).
pub(super) fn run_tenants(
    case: &Case<'_>,
    engine: &mut Engine,
    programs: &[Arc<Prepared>],
    firsts: &[u32],
    advance: &mut Advance<'_>,
) -> Result<Outcome> {
    let mut tenants = Vec::new();
    // By thread of the machine: its tenant, and its number in the tenant.
    let mut owners = Vec::new();
    let mut forecast = Vec::new();
    for (index, (workload, first)) in programs.iter().zip(firsts).enumerate() {
        tenants.push(Tenant::new(engine, index, workload, *first, case.seed)?);
        owners.extend((0..workload.parallel as usize).map(|thread| (index, thread)));
        forecast.resize((first + workload.pages) as usize, 0);
    }
    for tenant in &mut tenants {
        tenant.begin(case, engine, Time::default())?;
        if case.source.foresees {
            tenant.foresee(case, engine, &mut forecast)?;
        }
    }
    if case.source.foresees {
        engine.foresee(&forecast);
    }
    let mut queues: Vec<Queue> = owners.iter().map(|_| Queue::default()).collect();
    let mut outcomes: Vec<Outcome> = tenants.iter().map(|_| Outcome::default()).collect();
    let mut total = 0;
    while tenants.iter().any(|tenant| !tenant.over) {
        let running = tenants.iter().filter(|tenant| !tenant.over);
        let left = running.map(|tenant| tenant.until(case).saturating_sub(tenant.done(engine)));
        // At least 1: the first points of a short phase are due at access 0.
        let count = left.min().unwrap_or(0).clamp(1, BLOCK as u64);
        let done = engine.run_threads(&mut queues, count, &mut |thread, block| {
            let (index, thread) = owners[thread];
            let tenant = &mut tenants[index];
            tenant.program.refill(thread, block)?;
            block.shift(tenant.first_page);
            Ok(())
        })?;
        total += done;
        advance(done)?;
        let mut forecast_changed = false;
        for (tenant, outcome) in
            tenants.iter_mut().zip(&mut outcomes).filter(|(tenant, _)| !tenant.over)
        {
            if tenant.record(case, engine, outcome)? && case.source.foresees {
                tenant.foresee(case, engine, &mut forecast)?;
                forecast_changed = true;
            }
        }
        if forecast_changed {
            engine.foresee(&forecast);
        }
    }
    let counts = (0..tenants.len()).map(|tenant| Moment::now(engine, tenant).accesses());
    let counted: u64 = counts.sum();
    if counted != total {
        let what = format!("{total} accesses, counted {counted}");
        return Err(Error::input(format!("tiering: {}", case.source.label), what, "report this"));
    }
    Ok(outcomes.into_iter().collect())
}
