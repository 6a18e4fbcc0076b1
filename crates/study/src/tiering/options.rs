//! What to simulate, checked once.

use nearfar_hardware::Machine;
use nearfar_hardware::node::{KernelCosts, NodeModel};
use nearfar_kernel::tiering::FRAME;
use nearfar_trace::{Error, Result};

use super::counters::Hardware;

/// A size of the fast or slow node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Size {
    /// This part of all the memory that the program maps.
    Fraction(f64),
    /// Bytes, at full scale.
    Bytes(u64),
}

/// The machine of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Nodes, fastest first.
    pub nodes: Vec<NodeModel>,
    /// What the kernel's primitives cost.
    pub costs: KernelCosts,
    /// What a first touch costs, picoseconds.
    pub first_touch: f64,
    /// Entries of the TLB.
    pub tlb_entries: u64,
    /// The fastest node's size in place of the machine's.
    pub fast: Option<Size>,
    /// The slowest node's size in place of the machine's.
    pub slow: Option<Size>,
    /// 1 for full size.
    pub scale: f64,
    /// Memory is mapped as huge pages.
    pub huge: bool,
    /// Runs at the same time; 0 = one per core.
    pub threads: usize,
    /// Points of the time series in a phase.
    pub points: u32,
}

impl Options {
    /// The nodes and costs of `machine`, costs times `cost_scale`.
    ///
    /// # Errors
    /// An input error: the machine lacks nodes or costs, or the factor is not above 0.
    pub fn new(machine: &Machine, cost_scale: f64) -> Result<Self> {
        if !(cost_scale.is_finite() && cost_scale >= 0.0) {
            return Err(Error::input(
                "--cost-scale",
                format!("{cost_scale} is not a factor"),
                "give a number from 0, such as 2",
            ));
        }
        let nodes = machine.nodes()?;
        let costs = machine.kernel_costs()?.scaled(cost_scale);
        Ok(Self {
            nodes,
            // A first touch is a minor fault; the machine files give it as the write fault.
            first_touch: costs.write_protect_fault,
            costs,
            tlb_entries: machine.tlb_reach(),
            fast: None,
            slow: None,
            scale: 1.0,
            huge: false,
            threads: 0,
            points: 40,
        })
    }

    /// The hardware for a program of `program_threads` threads with accesses of `access_bytes`.
    pub(super) fn hardware(&self, program_threads: u32, access_bytes: u64) -> Hardware {
        Hardware {
            nodes: self.nodes.clone(),
            costs: self.costs,
            first_touch: self.first_touch,
            tlb_entries: self.tlb_entries,
            program_threads,
            access_bytes,
        }
    }

    /// Frames of each node, for a program that maps `pages`.
    ///
    /// # Errors
    /// An input error: a node of no frames, or less memory than pages.
    pub fn frames(&self, pages: u32) -> Result<Vec<u64>> {
        let last = self.nodes.len().saturating_sub(1);
        let frames = self.nodes.iter().enumerate().map(|(index, node)| {
            let asked = if index == 0 {
                self.fast
            } else if index == last {
                self.slow
            } else {
                None
            };
            let bytes = |bytes: u64| (bytes as f64 * self.scale / FRAME as f64) as u64;
            let frames = match asked {
                Some(Size::Fraction(part)) => (f64::from(pages) * part).ceil() as u64,
                Some(Size::Bytes(size)) => bytes(size),
                None => bytes(node.available()),
            };
            if frames == 0 {
                let flag = if index == 0 { "--fast" } else { "--slow" };
                return Err(Error::input(
                    flag,
                    format!("node {} would have no frame", node.name),
                    "give more",
                ));
            }
            Ok(frames)
        });
        let frames = frames.collect::<Result<Vec<_>>>()?;
        let all: u64 = frames.iter().sum();
        if all < u64::from(pages) {
            return Err(Error::input(
                "tiering",
                format!("the program needs {pages} frames, the machine has {all}"),
                "choose a larger --fast or --slow, or another machine",
            ));
        }
        Ok(frames)
    }
}
