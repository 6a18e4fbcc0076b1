//! `colloid`: NUMA balancing that evens out the latencies of the nodes under load.
//!
//! Vuppalapati and Agarwal, "Tiered Memory Management: Access Latency is the Key!", SOSP'24, as its
//! kernel for Linux 6.3 has it (`host-architecture/colloid`, `tpp`): `autonuma`, with hint faults on
//! all nodes. While loads from the fast node take longer than from the slow one, no page is promoted,
//! and a hot page of the fast node (its hint fault comes soon after arming) moves to the slower node
//! (`should_numa_migrate_memory`, `numa_migrate_memory_away_target` in `kernel/sched/fair.c`).
//! The period of scans never changes, because hint faults are not counted (`task_numa_fault`: Colloid's
//! README sets `numa_balancing` to 6, without `NUMA_BALANCING_NORMAL`). The latencies are read from the
//! processor and smoothed (`colloid-mon`).

use super::autonuma::{Autonuma, AutonumaKnobs};
use super::knobs::Knobs;
use super::reclaim::ReclaimKnobs;
use super::scan::ScanKnobs;
use super::{
    Capability, Context, Memory, Next, NodeId, Page, Policy, PolicyEntry, Thread, Time, need,
};
use crate::knobs;

knobs! {
    /// What Colloid adds to NUMA balancing.
    ColloidKnobs {
        sample_period: Time = "10ms" (in tests "10us"), "time between readings of the nodes' latencies",
            "Colloid, colloid-mon, SAMPLE_INTERVAL_MS";
        smoothing: u64 = "5", "n: a latency reading has the weight 1 / 2^n in the moving average", "Colloid, colloid-mon, EWMA_EXP";
    }
}

pub static POLICY: PolicyEntry = PolicyEntry {
    what: "Colloid: autonuma that keeps the fast node from becoming slower than the slow one",
    follows: "Colloid (SOSP'24), its kernel for Linux 6.3; lists of Linux 5.13",
    leaves_out: "file pages, swap, scans of more than one task",
    not_for: "a single thread, which never makes the fast node slower than the slow one",
    foresees: false,
    knobs: || {
        let colloid = ColloidKnobs::declared();
        [colloid, AutonumaKnobs::declared(), ScanKnobs::declared(), ReclaimKnobs::declared()]
            .concat()
    },
    make: |settings, mem| {
        // `Samples` stands for the processor's counters, which also measure the latencies.
        need(mem, &[Capability::Samples], "colloid", "choose another, such as autonuma")?;
        let knobs = ColloidKnobs::read(settings)?;
        let (mut autonuma, first_scan) = Autonuma::new(settings, mem)?;
        autonuma.scanner.arm_all_nodes();
        autonuma.scanner.fix_period();
        let monitor = mem.spawn("colloid-mon", Context::Kernel);
        let first = mem.now().plus(knobs.sample_period);
        let colloid = Colloid { autonuma, knobs, monitor, latencies: [0.0; 2] };
        Ok((Box::new(colloid), vec![first_scan, (monitor, first)]))
    },
};

#[derive(Debug)]
pub struct Colloid {
    autonuma: Autonuma,
    knobs: ColloidKnobs,
    monitor: Thread,
    /// Smoothed latencies of the fastest node and the next, picoseconds.
    latencies: [f64; 2],
}

impl Colloid {
    fn read_latencies(&mut self, mem: &dyn Memory) {
        let weight = 1.0 / 2f64.powi(self.knobs.smoothing.min(63) as i32);
        for (node, smoothed) in NodeId::all(mem.nodes()).zip(&mut self.latencies) {
            let latency = mem.loaded_latency(node).map_or(0.0, |time| time.ps() as f64);
            // The first reading replaces the initial 0.
            *smoothed += (latency - *smoothed) * if *smoothed > 0.0 { weight } else { 1.0 };
        }
    }

    fn is_congested(&self) -> bool {
        let [fast, slow] = self.latencies;
        fast > slow
    }
}

impl Policy for Colloid {
    fn place(&mut self, mem: &dyn Memory, page: Page, frames: u32) -> NodeId {
        self.autonuma.place(mem, page, frames)
    }

    fn allocated(&mut self, mem: &mut dyn Memory, page: Page) {
        self.autonuma.allocated(mem, page);
    }

    fn released(&mut self, mem: &mut dyn Memory, page: Page, span: u32) {
        self.autonuma.released(mem, page, span);
    }

    fn hint_fault(&mut self, mem: &mut dyn Memory, page: Page, write: bool) {
        let node = mem.node_of(page);
        if !self.is_congested() {
            return self.autonuma.hint_fault(mem, page, write);
        }
        if node != NodeId::FAST {
            self.autonuma.update_threshold(mem);
        } else if self.autonuma.is_recent(mem, page)
            && let Some(to) = node.slower(mem.nodes())
        {
            self.autonuma.migrate(mem, page, to);
        }
        mem.disarm_hint(page);
    }

    fn work(&mut self, mem: &mut dyn Memory, thread: Thread) -> Next {
        if thread == self.monitor {
            self.read_latencies(mem);
            return Next::At(mem.now().plus(self.knobs.sample_period));
        }
        self.autonuma.work(mem, thread)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{COSTS, ReferenceMemory, settings};
    use super::*;

    #[test]
    fn a_hot_page_leaves_a_congested_fast_node_and_returns_after_the_congestion() {
        let mut memory = ReferenceMemory::new(COSTS, &[8, 24], 24, /* huge: */ false);
        let mut policy = memory.start("colloid", &settings("colloid").unwrap()).unwrap();
        for page in 0..2 {
            memory.access(&mut *policy, Page::new(page), /* write: */ false).unwrap();
        }
        let page = Page::new(0);
        let mut at = |fast: u64, slow: u64| {
            memory.latencies = vec![Time::from_ps(fast), Time::from_ps(slow)];
            for _ in 0..4000 {
                memory.access(&mut *policy, page, /* write: */ false).unwrap();
            }
            memory.node_of(page)
        };
        assert_eq!(at(100, 200), NodeId::FAST);
        assert_eq!(at(900, 200), NodeId::new(1));
        assert_eq!(at(100, 200), NodeId::FAST);
    }
}
