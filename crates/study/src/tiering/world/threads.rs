//! Threads of the program that run at the same time: their clocks, and how their load slows memory.

use nearfar_hardware::load::{Demand, Supply, balance};
use nearfar_hardware::node::NodeModel;
use nearfar_kernel::tiering::{FRAME, Page, Time};

use super::super::counters::{Hardware, MAX_NODES};
use super::World;

/// What the threads did since the last measurement, and what followed from the one before.
#[derive(Clone, Debug, Default)]
pub(super) struct Load {
    /// Time of faults, interrupts and the kernel's work for the program, picoseconds.
    events: f64,
    /// Bytes that the program's own migrations read and wrote, by node.
    copied: [[f64; 2]; MAX_NODES],
    tlb_misses: u64,
    /// The last measurement: what was asked of each node, and time besides accesses.
    demands: Vec<Demand>,
    away: f64,
}

impl World {
    /// Whether several threads of the program run at the same time.
    pub(in crate::tiering) fn is_parallel(&self) -> bool {
        self.hardware.parallel > 1
    }

    /// What all threads have reached.
    pub(in crate::tiering) fn reached(&self) -> Time {
        let others = self.others().map(|(_, clock)| clock);
        let least = others.fold(self.clock, Time::min);
        // All threads have ended.
        if least == Time::NEVER { self.latest } else { least }
    }

    /// Index and clock of all threads but the current one.
    fn others(&self) -> impl Iterator<Item = (usize, Time)> {
        let clocks = self.clocks.iter().copied().enumerate();
        clocks.filter(|(index, _)| *index != self.current)
    }

    /// Go on with the thread that is furthest behind. Returns how far it may go: what the others
    /// have reached. None if all have ended.
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

    /// The current thread has nothing more to do.
    pub(in crate::tiering) fn end_thread(&mut self) {
        self.latest = self.latest.max(self.clock);
        self.clock = Time::NEVER;
    }

    /// All threads wait for the last one, and then go on together.
    pub(in crate::tiering) fn join(&mut self) {
        let ended = |clock: Time| if clock == Time::NEVER { Time::default() } else { clock };
        let others = self.others().map(|(_, clock)| ended(clock));
        let last = others.fold(ended(self.clock), Time::max).max(self.latest);
        self.clock = last;
        self.clocks.fill(last);
        self.current = 0;
    }

    /// All threads go on at `time`, if they have not come further. Sleeping threads took no interrupt.
    pub(in crate::tiering) fn wait_until(&mut self, time: Time) {
        self.clock = self.clock.max(time);
        self.clocks.fill(self.clock);
    }

    /// All threads forget a translation.
    pub(in crate::tiering) fn flush_tlbs(&mut self, page: Page) {
        for tlb in &mut self.tlbs {
            tlb.flush(page.number());
        }
    }

    /// Threads take an interrupt: the other ones, and the current one if `all`.
    pub(super) fn interrupt(&mut self, all: bool) {
        let exception = Time::from_ps(self.hardware.costs.exception as u64);
        if all {
            self.clock = self.clock.plus(exception);
        }
        if self.is_parallel() {
            for (index, clock) in self.clocks.iter_mut().enumerate() {
                *clock = if index == self.current { *clock } else { clock.plus(exception) };
            }
            let threads = self.clocks.len() - usize::from(!all);
            self.load.events += exception.ps() as f64 * threads as f64;
        }
    }

    /// An event took the program this long.
    pub(in crate::tiering) fn spent(&mut self, cost: Time) {
        self.load.events += cost.ps() as f64;
    }

    /// A thread of the program copied frames.
    pub(super) fn copied(&mut self, from: usize, to: usize, frames: u64) {
        self.load.copied[from][0] += (frames * FRAME) as f64;
        self.load.copied[to][1] += (frames * FRAME) as f64;
    }

    /// Measure the load since the last time, `before` accesses by node.
    pub(super) fn measure_load(&mut self, before: &[[u64; 2]; MAX_NODES]) {
        let Load { copied, events, tlb_misses, .. } = std::mem::take(&mut self.load);
        let bytes = self.hardware.access_bytes as f64;
        let mut accesses = 0;
        let mut demands = Vec::new();
        for (node, model) in self.hardware.nodes.iter().enumerate() {
            let now = self.counters.accesses[node];
            let [loads, stores] = [0, 1].map(|way| now[way] - before[node][way]);
            accesses += loads + stores;
            let idle = |write| {
                model.access_ps(self.hardware.access_bytes, write, 0.0, self.hardware.overlap)
            };
            demands.push(Demand {
                loads: loads as f64 * bytes + copied[node][0],
                stores: stores as f64 * bytes + copied[node][1],
                idle_ps: loads as f64 * idle(false) + stores as f64 * idle(true),
                others: 0.0,
            });
        }
        let misses = self.counters.tlb_misses - tlb_misses;
        self.load = Load {
            away: events + misses as f64 * self.walk as f64 + accesses as f64 * self.hardware.work,
            tlb_misses: self.counters.tlb_misses,
            demands,
            ..Load::default()
        };
    }

    /// What a node gives if all threads only load from it.
    fn alone(&self, node: &NodeModel) -> Supply {
        let Hardware { access_bytes, overlap, work, parallel, .. } = self.hardware;
        let threads = f64::from(parallel);
        let demand = Demand {
            loads: access_bytes as f64 * threads,
            idle_ps: node.access_ps(access_bytes, false, 0.0, overlap) * threads,
            ..Demand::default()
        };
        let supplies = balance(std::slice::from_ref(node), &[demand], threads, work * threads);
        Supply { busy: 0.0, ..supplies.first().copied().unwrap_or_default() }
    }

    /// The costs of accesses with the load of the last measurement, while kernel threads use the
    /// share `busy` of each node.
    pub(super) fn balance(&mut self, busy: &[f64; MAX_NODES]) {
        let mut demands = self.load.demands.clone();
        for (demand, busy) in demands.iter_mut().zip(busy) {
            demand.others = *busy;
        }
        let nodes = &self.hardware.nodes;
        let threads = f64::from(self.hardware.parallel);
        let supplies = match demands.is_empty() {
            // At first, as if each node had all accesses: the load must not begin above the peak.
            true => nodes.iter().map(|node| self.alone(node)).collect(),
            false => balance(nodes, &demands, threads, self.load.away),
        };
        for (node, (model, supply)) in nodes.iter().zip(&supplies).enumerate() {
            self.program_busy[node] = supply.busy;
            self.cost[node] = [false, true].map(|write| {
                let idle =
                    model.access_ps(self.hardware.access_bytes, write, 0.0, self.hardware.overlap);
                (idle * supply.stretch + self.hardware.work) as u64
            });
            self.latency[node] = (model.local.read.latency_ps * supply.stretch) as u64;
        }
    }
}
