//! Latency of memory nodes under the load of many threads.
//!
//! Latency rises with utilisation: slowly at first, steeply near the peak. At the peak, the node's
//! bandwidth limits the threads. Threads wait for their own accesses, so latency and bandwidth depend
//! on each other; [`balance`] solves for both.

use crate::machine::Curves;
use crate::node::NodeModel;

/// Maximum share of a node's bandwidth that other traffic can use, so that the program progresses.
const MAX_OTHERS: f64 = 0.9;
const BISECTION_STEPS: u32 = 50;

/// The program's accesses to a node in a period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Demand {
    /// Bytes loaded.
    pub loads: f64,
    /// Bytes stored.
    pub stores: f64,
    /// Time that all threads together would spend on these accesses on an idle node, picoseconds.
    pub idle_ps: f64,
    /// Share of the node's peak bandwidth that other traffic uses.
    pub others: f64,
}

/// How a node serves the program in a period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Supply {
    /// Latency relative to that of an idle node.
    pub stretch: f64,
    /// Share of the node's peak bandwidth that the program uses.
    pub busy: f64,
}

impl Default for Supply {
    fn default() -> Self {
        Self { stretch: 1.0, busy: 0.0 }
    }
}

impl NodeModel {
    /// Picoseconds that the node needs for these bytes at its peak bandwidth, and the share of reads. If
    /// the node has curves (latency by bandwidth, one per share of reads), a store is a read and a write.
    fn occupancy(&self, loads: f64, stores: f64) -> (f64, f64) {
        let Some(Curves(curves)) = &self.loaded else {
            let view = &self.local;
            return (loads * view.read.busy_ps + stores * view.write.busy_ps, 1.0);
        };
        let (bytes, reads) = (loads + 2.0 * stores, loads + stores);
        let share = if bytes > 0.0 { reads / bytes } else { 1.0 };
        let peak = interpolated(curves, share, |points| points.last().map_or(0.0, |last| last[0]));
        // 1 GB/s is a byte in 1,000 ps.
        (if peak > 0.0 { bytes * 1e3 / peak } else { 0.0 }, share)
    }

    /// Latency at this utilisation u (0 to 1) and share of reads, relative to that of an idle node.
    /// Without curves 1 + 0.1 u / (1 - u), at most 3: between the curves of DDR4, DDR5 and CXL memory in
    /// `machines/`.
    pub fn stretch(&self, reads: f64, utilisation: f64) -> f64 {
        let u = utilisation.clamp(0.0, 1.0);
        match &self.loaded {
            Some(Curves(curves)) => {
                interpolated(curves, reads, |points| relative_latency(points, u))
            }
            None => 1.0 + 0.1 * u / (1.0 - u).max(0.05),
        }
    }
}

/// `value` at the share `reads`, interpolated between the two curves with adjacent shares; outside the
/// range of the curves, `value` of the nearest one.
fn interpolated(
    curves: &[crate::machine::Curve],
    reads: f64,
    value: impl Fn(&[[f64; 2]]) -> f64,
) -> f64 {
    let next = curves.partition_point(|curve| curve.reads < reads).min(curves.len() - 1);
    let before = next.saturating_sub(usize::from(curves[next].reads > reads));
    let (low, high) = (&curves[before], &curves[next]);
    let part = if next > before { (reads - low.reads) / (high.reads - low.reads) } else { 0.0 };
    let (from, to) = (value(&low.points), value(&high.points));
    from + (to - from) * part
}

/// Latency at a share of a curve's peak, relative to that of its first point.
fn relative_latency(points: &[[f64; 2]], utilisation: f64) -> f64 {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return 1.0 };
    let gb_s = utilisation * last[0];
    let next = points.partition_point(|point| point[0] < gb_s).min(points.len() - 1);
    let ns = match points.get(next.wrapping_sub(1)) {
        Some(low) => {
            let high = points[next];
            low[1] + (high[1] - low[1]) * (gb_s - low[0]) / (high[0] - low[0])
        }
        None => first[1],
    };
    ns / first[1]
}

/// Find the period in which `threads` threads complete their accesses (`demands`, one for each node)
/// and other work of `other_work_ps` in total. Returns the supply of each node in this period.
pub fn balance(
    nodes: &[NodeModel],
    demands: &[Demand],
    threads: f64,
    other_work_ps: f64,
) -> Vec<Supply> {
    let nodes: Vec<_> = nodes
        .iter()
        .zip(demands)
        .map(|(node, demand)| {
            let (busy, reads) = node.occupancy(demand.loads, demand.stores);
            (node, demand, busy, reads, demand.others.clamp(0.0, MAX_OTHERS))
        })
        .collect();
    // The period cannot be shorter than the busiest node needs.
    let shortest = nodes.iter().map(|(_, _, busy, _, others)| busy / (1.0 - others));
    let shortest = shortest.fold(0.0, f64::max);
    let supply = |period: f64| -> Vec<Supply> {
        let each = nodes.iter().map(|(node, _, busy, reads, others)| {
            let busy = if period > 0.0 { busy / period } else { 0.0 };
            Supply { stretch: node.stretch(*reads, busy + others), busy }
        });
        each.collect()
    };
    let spent = |supplies: &[Supply]| -> f64 {
        let each =
            nodes.iter().zip(supplies).map(|((_, demand, ..), one)| demand.idle_ps * one.stretch);
        other_work_ps + each.sum::<f64>()
    };
    let mut fastest = supply(shortest);
    let slack = threads * shortest - spent(&fastest);
    if slack >= 0.0 {
        // The busiest node limits the threads: they spend the slack waiting for its accesses.
        let busiest = nodes
            .iter()
            .zip(&mut fastest)
            .find(|((_, _, busy, _, others), _)| *busy > 0.0 && busy / (1.0 - others) >= shortest);
        if let Some(((_, demand, ..), one)) = busiest
            && demand.idle_ps > 0.0
        {
            one.stretch += slack / demand.idle_ps;
        }
        return fastest;
    }
    let (mut low, mut high) = (shortest, spent(&fastest) / threads);
    for _ in 0..BISECTION_STEPS {
        let middle = (low + high) / 2.0;
        if threads * middle < spent(&supply(middle)) {
            low = middle;
        } else {
            high = middle;
        }
    }
    supply(high)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Machine;

    fn nodes(machine: &str) -> Vec<NodeModel> {
        Machine::load(machine, Path::new("")).unwrap().nodes().unwrap()
    }

    /// Measures like the Mess benchmark, the source of the curves: the latency of a pointer chase while
    /// a stream of each bandwidth runs.
    #[test]
    fn streams_of_each_bandwidth_reproduce_the_curve() {
        let mut points = 0;
        for (machine, _) in crate::machine::builtin() {
            let machine = Machine::load(machine, Path::new("")).unwrap();
            let Ok(nodes) = machine.nodes() else { continue };
            for node in nodes {
                let Some(Curves(curves)) = &node.loaded else { continue };
                for curve in curves {
                    for [gb_s, ns] in &curve.points {
                        // A store is a read and a write: reads = loads + stores, writes = stores.
                        let (loads, stores) = (2.0 * curve.reads - 1.0, 1.0 - curve.reads);
                        let (threads, bytes) = (40.0, 64e6);
                        // The first point has 0 GB/s.
                        let period = bytes * (loads + 2.0 * stores) * 1e3 / gb_s.max(0.01);
                        let demand = Demand {
                            loads: loads * bytes,
                            stores: stores * bytes,
                            idle_ps: 1e-3 * period,
                            others: 0.0,
                        };
                        // The threads compute for the rest of the period.
                        let other_work =
                            threads * period - demand.idle_ps * ns / curve.points[0][1];
                        let supply =
                            balance(std::slice::from_ref(&node), &[demand], threads, other_work)[0];
                        let found = supply.stretch * curve.points[0][1];
                        assert!(
                            (found / ns - 1.0).abs() < 0.05,
                            "{}: {found} for {ns} ns at {gb_s} GB/s",
                            node.name
                        );
                        points += 1;
                    }
                }
            }
        }
        assert!(points > 50, "{points}");
    }

    #[test]
    fn many_threads_saturate_a_node_and_few_do_not() {
        let nodes = nodes("cxl-a");
        let direction = nodes[0].local.read;
        let bytes = 64e6;
        let pace = |threads: f64| {
            let idle_ps = bytes / 64.0 * direction.latency_ps;
            let demand = Demand { loads: bytes, idle_ps, ..Demand::default() };
            let supply = balance(&nodes[..1], &[demand], threads, 0.0)[0];
            (idle_ps * supply.stretch / threads, supply)
        };
        let (alone, one) = pace(1.0);
        assert!(one.stretch < 1.01 && alone < 1.01 * bytes / 64.0 * direction.latency_ps);
        let (period, many) = pace(400.0);
        assert!((period / (bytes * direction.busy_ps) - 1.0).abs() < 1e-9 && many.busy == 1.0);
        assert!((pace(800.0).1.stretch / many.stretch - 2.0).abs() < 1e-9);
    }

    #[test]
    fn other_traffic_limits_the_programs_share_of_bandwidth() {
        let nodes = nodes("cxl-a");
        let demand = Demand { loads: 64e6, idle_ps: 1.0, others: 0.5, ..Demand::default() };
        let supply = balance(&nodes[..1], &[demand], 8.0, 0.0)[0];
        assert_eq!(supply.busy, 0.5);
        let idle = balance(&nodes[..1], &[Demand::default()], 8.0, 0.0)[0];
        assert_eq!(idle, Supply::default());
    }
}
