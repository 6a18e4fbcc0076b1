//! Several threads of the program: their clocks, and the latency of memory under their load.

use std::ops::Range;

use nearfar_hardware::load::{Demand, Supply, balance};
use nearfar_hardware::node::NodeModel;
use nearfar_kernel::tiering::{FRAME, Page, Time};

use super::super::counters::MAX_NODES;
use super::World;
use super::tenants::Account;

/// Work of the threads since the last measurement, and that measurement's results.
#[derive(Clone, Debug, Default)]
pub(super) struct Load {
    /// Time of faults, interrupts and policy threads in the program's context, picoseconds.
    events: f64,
    /// Bytes that the program's own migrations read and wrote, by node.
    copied: [[f64; 2]; MAX_NODES],
    /// TLB misses until the last measurement.
    tlb_misses: u64,
    /// Demand on each node at the last measurement; empty before it.
    demands: Vec<Demand>,
    /// Time of the threads for all but accesses, between the last two measurements, picoseconds.
    other_work_ps: f64,
}

impl World {
    /// Whether several threads of the program run at the same time.
    pub(in crate::tiering) fn is_parallel(&self) -> bool {
        self.clocks.len() > 1
    }

    /// The program's clock: the earliest of its threads' clocks.
    pub(in crate::tiering) fn reached(&self) -> Time {
        let others = self.others().map(|(_, clock)| clock);
        let least = others.fold(self.clock, Time::min);
        // All threads have ended.
        if least == Time::NEVER { self.latest() } else { least }
    }

    /// End of the last thread that has ended.
    fn latest(&self) -> Time {
        self.accounts.iter().map(|account| account.latest).fold(Time::default(), Time::max)
    }

    pub(super) fn clocks_of(&self, threads: Range<usize>) -> impl Iterator<Item = Time> {
        let at = |index| if index == self.current { self.clock } else { self.clocks[index] };
        threads.map(at)
    }

    /// Index and clock of all threads but the current one.
    fn others(&self) -> impl Iterator<Item = (usize, Time)> {
        let clocks = self.clocks.iter().copied().enumerate();
        clocks.filter(|(index, _)| *index != self.current)
    }

    /// Switch to the thread with the earliest clock. Returns the time up to which it may run, the
    /// second-earliest clock; `None` if all threads have ended.
    pub(in crate::tiering) fn switch(&mut self) -> Option<Time> {
        self.clocks[self.current] = self.clock;
        let (mut least, mut horizon, mut first) = (Time::NEVER, Time::NEVER, None);
        for (index, clock) in self.clocks.iter().enumerate() {
            if *clock < least {
                (horizon, least, first) = (least, *clock, Some(index));
            } else {
                horizon = horizon.min(*clock);
            }
        }
        (self.current, self.clock) = (first?, least);
        Some(horizon)
    }

    pub(in crate::tiering) fn end_thread(&mut self) {
        let tenant = self.running_tenant();
        let latest = &mut self.accounts[tenant].latest;
        *latest = (*latest).max(self.clock);
        self.clock = Time::NEVER;
    }

    /// Set the clocks of all threads to that of the last one.
    pub(in crate::tiering) fn join(&mut self) {
        let ended = |clock: Time| if clock == Time::NEVER { Time::default() } else { clock };
        let others = self.others().map(|(_, clock)| ended(clock));
        let last = others.fold(ended(self.clock), Time::max).max(self.latest());
        self.clock = last;
        self.clocks.fill(last);
        self.current = 0;
    }

    /// Advance the clocks of all threads to `time`, if it is later. They sleep until then, so
    /// earlier interrupts do not delay them.
    pub(in crate::tiering) fn wait_until(&mut self, time: Time) {
        self.clock = self.clock.max(time);
        self.clocks.fill(self.clock);
    }

    pub(in crate::tiering) fn flush_tlbs(&mut self, page: Page) {
        for tlb in &mut self.tlbs {
            tlb.flush(page.number());
        }
    }

    /// Interrupt the threads of a page's program: all, or all but the current one.
    pub(super) fn interrupt(&mut self, page: Page, all: bool) {
        let exception = Time::from_ps(self.hardware.costs.exception as u64);
        let mut threads = 0;
        for index in self.account(page).threads.clone() {
            let clock = match index == self.current {
                true if all => &mut self.clock,
                true => continue,
                false => &mut self.clocks[index],
            };
            *clock = clock.plus(exception);
            threads += 1;
        }
        self.load.events += exception.ps() as f64 * f64::from(threads);
    }

    /// Add the time of an event of the program.
    pub(in crate::tiering) fn spent(&mut self, cost: Time) {
        self.load.events += cost.ps() as f64;
    }

    /// A thread of the program copied frames.
    pub(super) fn copied(&mut self, from: usize, to: usize, frames: u64) {
        self.load.copied[from][0] += (frames * FRAME) as f64;
        self.load.copied[to][1] += (frames * FRAME) as f64;
    }

    /// Measure the load since the last measurement.
    pub(super) fn measure_load(&mut self) {
        let Load { copied, events, tlb_misses, .. } = std::mem::take(&mut self.load);
        let mut work = 0.0;
        let mut demands = vec![Demand::default(); self.hardware.nodes.len()];
        for (account, program) in self.accounts.iter().zip(&self.hardware.programs) {
            let bytes = program.access_bytes as f64;
            let mut accesses = 0;
            for (node, (model, demand)) in self.hardware.nodes.iter().zip(&mut demands).enumerate()
            {
                let [loads, stores] = account.since_metered(node);
                accesses += loads + stores;
                let idle = |write| program.access_ps(model, write, 0.0);
                demand.loads += loads as f64 * bytes;
                demand.stores += stores as f64 * bytes;
                demand.idle_ps += loads as f64 * idle(false) + stores as f64 * idle(true);
            }
            work += accesses as f64 * program.work;
        }
        for (demand, [loads, stores]) in demands.iter_mut().zip(copied) {
            demand.loads += loads;
            demand.stores += stores;
        }
        let misses = self.accounts.iter().map(|account| account.counters.tlb_misses).sum();
        let new_misses: u64 = misses - tlb_misses;
        self.load = Load {
            other_work_ps: events + new_misses as f64 * self.walk as f64 + work,
            tlb_misses: misses,
            demands,
            ..Load::default()
        };
    }

    /// The supply of a node if all threads only load from it.
    fn supply_alone(&self, node: &NodeModel) -> Supply {
        let mut demand = Demand::default();
        let mut work = 0.0;
        for program in &self.hardware.programs {
            let threads = f64::from(program.parallel);
            demand.loads += program.access_bytes as f64 * threads;
            demand.idle_ps += program.access_ps(node, false, 0.0) * threads;
            work += program.work * threads;
        }
        let threads = self.clocks.len() as f64;
        let supplies = balance(std::slice::from_ref(node), &[demand], threads, work);
        // The program has used no bandwidth yet.
        Supply { busy: 0.0, ..supplies.first().copied().unwrap_or_default() }
    }

    /// Threads that have not ended and whose program does not sleep; at least one.
    fn running(&self) -> usize {
        let now = self.reached();
        let awake = self.accounts.iter().filter(|account| account.resumes <= now);
        let running = |account: &Account| {
            self.clocks_of(account.threads.clone()).filter(|clock| *clock != Time::NEVER).count()
        };
        awake.map(running).sum::<usize>().max(1)
    }

    /// Update the costs of accesses for the load of the last measurement, while kernel threads use the
    /// share `busy` of each node.
    pub(super) fn balance(&mut self, busy: &[f64; MAX_NODES]) {
        let mut demands = self.load.demands.clone();
        for (demand, busy) in demands.iter_mut().zip(busy) {
            demand.others = *busy;
        }
        let nodes = &self.hardware.nodes;
        let threads = self.running() as f64;
        let supplies = match demands.is_empty() {
            // Before the first measurement, assume that each node serves all accesses, so that the load
            // starts below the peak.
            true => nodes.iter().map(|node| self.supply_alone(node)).collect(),
            false => balance(nodes, &demands, threads, self.load.other_work_ps),
        };
        for (node, (model, supply)) in nodes.iter().zip(&supplies).enumerate() {
            self.program_busy[node] = supply.busy;
            for (account, program) in self.accounts.iter_mut().zip(&self.hardware.programs) {
                account.cost[node] = [false, true].map(|write| {
                    let idle = program.access_ps(model, write, 0.0);
                    (idle * supply.stretch + program.work) as u64
                });
            }
            self.latency[node] = (model.local.read.latency_ps * supply.stretch) as u64;
        }
    }
}
