//! Costs of actions, which depend on traffic.

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

    /// Take the cost of the event, in whole picoseconds.
    pub(in crate::tiering) fn take_cost(&mut self) -> Time {
        Time::from_ps(std::mem::take(&mut self.charged).round() as u64)
    }

    /// Remove a translation from all TLBs, and interrupt the program. The cost of a migration, which callers
    /// charge, includes the shootdown of one core; with several threads, one more is charged here.
    pub(super) fn flush(&mut self, page: Page) {
        self.flush_tlbs(page);
        if self.free_of_charge {
            return;
        }
        self.interrupt(page, self.by_kernel());
        if self.program(page).threads > 1 {
            self.charge(self.hardware.costs.shootdown);
        }
    }

    /// Whether the current event is a step of a kernel thread.
    pub(super) fn by_kernel(&self) -> bool {
        self.running
            .and_then(|index| self.workers.get(index))
            .is_some_and(|worker| worker.context == Context::Kernel)
    }

    /// Share of a node's bandwidth that the other policy threads use. The program is included if it runs
    /// meanwhile: beside a kernel thread, or with several threads.
    fn traffic(&self, node: usize) -> f64 {
        let others = self.workers.iter().enumerate();
        let others = others.filter(|(index, worker)| {
            self.running != Some(*index) && worker.busy_until > self.event
        });
        let runs = self.by_kernel() || self.is_parallel();
        let program = if runs { self.program_busy[node] } else { 0.0 };
        others.map(|(_, worker)| worker.busy[node]).sum::<f64>() + program
    }

    pub(super) fn charge_copy(&mut self, page: Page, from: usize, to: usize, frames: u64) {
        self.tally(page, |count| count.frames_copied += frames);
        let bytes = frames * FRAME;
        let (busy_from, busy_to) = (self.traffic(from), self.traffic(to));
        let nodes = &self.hardware.nodes;
        let ps = nodes[from].copy_ps(&nodes[to], bytes, busy_from, busy_to);
        if self.by_kernel() {
            self.moved[from] += bytes as f64 * nodes[from].local.read.busy_ps;
            self.moved[to] += bytes as f64 * nodes[to].local.write.busy_ps;
        } else {
            // Copies by a thread of the program are part of its load.
            self.copied(from, to, frames);
        }
        self.charge(ps);
    }

    /// End the event at `end`: the copies that it began are complete, so their threads wake.
    pub(in crate::tiering) fn event_ended(&mut self, end: Time) {
        for (_, thread) in std::mem::take(&mut self.begun) {
            if let Some(worker) = self.workers.get_mut(thread.index())
                && worker.due == Time::NEVER
            {
                worker.due = end;
            }
        }
    }

    /// End a step of a policy's thread. Its traffic is spread evenly over the duration `step`.
    pub(in crate::tiering) fn stepped(&mut self, index: usize, step: Time) {
        let moved = std::mem::take(&mut self.moved);
        let Some(worker) = self.workers.get_mut(index) else { return };
        let before = worker.busy;
        worker.busy = moved.map(|ps| ps / step.ps().max(1) as f64);
        worker.busy_until = self.event.plus(step);
        if before != worker.busy {
            self.update_costs();
        }
    }

    /// Measure the program's share of the bandwidth since the last measurement.
    pub(in crate::tiering) fn meter(&mut self) {
        let clock = self.reached();
        let elapsed = clock.since(self.metered).ps() as f64;
        if elapsed > 0.0 {
            if self.is_parallel() {
                self.measure_load();
            }
            for (node, model) in self.hardware.nodes.iter().enumerate() {
                let tenants = self.accounts.iter().zip(&self.hardware.programs);
                let busy = tenants.map(|(account, program)| {
                    let busy = [false, true].map(|write| {
                        account.since_metered(node)[usize::from(write)] as f64
                            * model.local.direction(write).busy_ps
                    });
                    (busy[0] + busy[1]) * program.access_bytes as f64
                });
                self.program_busy[node] = busy.sum::<f64>() / elapsed;
            }
        }
        self.metered = clock;
        for account in &mut self.accounts {
            account.metered = account.counters.accesses;
        }
        self.update_costs();
    }

    /// Update the costs of accesses for the current traffic.
    pub(super) fn update_costs(&mut self) {
        let now = self.event.max(self.reached());
        let mut busy = [0.0; MAX_NODES];
        for worker in self.workers.iter().filter(|worker| worker.busy_until > now) {
            for (busy, share) in busy.iter_mut().zip(worker.busy) {
                *busy += share;
            }
        }
        if self.is_parallel() {
            // Parallel threads slow each other down, so their costs follow from the measured load.
            return self.balance(&busy);
        }
        let (Some(program), Some(account)) =
            (self.hardware.programs.first(), self.accounts.first_mut())
        else {
            return;
        };
        for (node, model) in self.hardware.nodes.iter().enumerate() {
            account.cost[node] = [false, true]
                .map(|write| (program.access_ps(model, write, busy[node]) + program.work) as u64);
            self.latency[node] = account.cost[node][0];
        }
    }
}
