//! What actions cost, and what traffic does to that.

use nearfar_kernel::tiering::{Context, FRAME, Page, Time};

use super::super::counters::MAX_NODES;
use super::World;

impl World {
    #[inline]
    pub(in crate::tiering) fn charge(&mut self, ps: f64) {
        if !self.free_of_charge {
            self.charged += ps;
        }
    }

    /// What the event has cost, in whole picoseconds.
    pub(in crate::tiering) fn take_cost(&mut self) -> Time {
        Time::from_ps(std::mem::take(&mut self.charged).round() as u64)
    }

    /// Other cores forget a translation, as part of a migration: the program is interrupted. The
    /// price of a migration has the wait for one core in it; more are waited for here.
    pub(super) fn flush(&mut self, page: Page) {
        self.tlb.flush(page.number());
        if self.free_of_charge {
            return;
        }
        if self.by_kernel() {
            self.clock = self.clock.plus(Time::from_ps(self.hardware.costs.exception as u64));
        }
        if self.hardware.program_threads > 1 {
            self.charge(self.hardware.costs.shootdown);
        }
    }

    /// Whether a kernel thread acts.
    pub(super) fn by_kernel(&self) -> bool {
        self.running
            .and_then(|index| self.workers.get(index))
            .is_some_and(|worker| worker.context == Context::Kernel)
    }

    /// Traffic on a node by all threads but the running one and, for a kernel thread, the program.
    fn traffic(&self, node: usize) -> f64 {
        let others = self.workers.iter().enumerate();
        let others = others.filter(|(index, worker)| {
            self.running != Some(*index) && worker.busy_until > self.event
        });
        let program = if self.by_kernel() { self.program_busy[node] } else { 0.0 };
        others.map(|(_, worker)| worker.busy[node]).sum::<f64>() + program
    }

    pub(super) fn charge_copy(&mut self, from: usize, to: usize, frames: u64) {
        self.counters.frames_copied += frames;
        let bytes = frames * FRAME;
        let (busy_from, busy_to) = (self.traffic(from), self.traffic(to));
        let nodes = &self.hardware.nodes;
        let ps = nodes[from].copy_ps(&nodes[to], bytes, busy_from, busy_to);
        self.moved[from] += bytes as f64 * nodes[from].local.read.busy_ps;
        self.moved[to] += bytes as f64 * nodes[to].local.write.busy_ps;
        self.charge(ps);
    }

    /// The event is over at `end`: so are the copies that were begun in it.
    pub(in crate::tiering) fn event_ended(&mut self, end: Time) {
        for (_, thread) in std::mem::take(&mut self.begun) {
            if let Some(worker) = self.workers.get_mut(thread.index())
                && worker.due == Time::NEVER
            {
                worker.due = end;
            }
        }
    }

    /// End a step of a thread that took `step`; its traffic is spread over that time.
    pub(in crate::tiering) fn stepped(&mut self, index: usize, step: Time) {
        let moved = std::mem::take(&mut self.moved);
        let Some(worker) = self.workers.get_mut(index) else { return };
        let was = worker.busy;
        worker.busy = moved.map(|ps| ps / step.ps().max(1) as f64);
        worker.busy_until = self.event.plus(step);
        if was != worker.busy {
            self.update_costs();
        }
    }

    /// The program's own share of the bandwidth, since this was last asked.
    pub(in crate::tiering) fn meter(&mut self) {
        let elapsed = self.clock.since(self.metered.0).ps() as f64;
        if elapsed > 0.0 {
            for (node, model) in self.hardware.nodes.iter().enumerate() {
                let now = self.counters.accesses[node];
                let busy = [false, true].map(|write| {
                    let count = now[usize::from(write)] - self.metered.1[node][usize::from(write)];
                    count as f64 * model.local.direction(write).busy_ps
                });
                self.program_busy[node] =
                    (busy[0] + busy[1]) * self.hardware.access_bytes as f64 / elapsed;
            }
        }
        self.metered = (self.clock, self.counters.accesses);
        self.update_costs();
    }

    /// The costs of accesses with the current traffic.
    pub(super) fn update_costs(&mut self) {
        self.moved = [0.0; MAX_NODES];
        for node in 0..self.hardware.nodes.len() {
            let now = self.event.max(self.clock);
            let running = self.workers.iter().filter(|worker| worker.busy_until > now);
            let busy: f64 = running.map(|worker| worker.busy[node]).sum();
            let model = &self.hardware.nodes[node];
            self.cost[node] = [false, true]
                .map(|write| model.access_ps(self.hardware.access_bytes, write, busy) as u64);
        }
    }
}
