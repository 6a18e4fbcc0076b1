//! Options of a tiering study: parsed and checked.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nearfar_hardware::Machine;
use nearfar_hardware::machine::MachineName;
use nearfar_hardware::node::{KernelCosts, LINE, NodeModel};
use nearfar_kernel::tiering::{FRAME, HUGE};
use nearfar_schema::units::{self, MemorySize};
use nearfar_schema::{Bytes, Count, Memory, OneMemory, Runtime, Share, none};
use nearfar_trace::{Error, Result};

pub use super::given::{Loads, Policies, Scale, Seeds, Shares};

use super::counters::{Hardware, Program};
use super::engine::Access;
use super::trace::{Numbering, TracePages};
use super::workload::{Mix, Pattern, Placement, Prepared, Shape, generated};
use crate::filter::Filter;
use crate::lifetimes::Lifetimes;

nearfar_schema::options! {
    /// The options of a tiering study as they are written.
    pub struct Request {
        /// A generated workload (name or .toml file) or a trace folder; several, comma-separated, share the
        /// machine.
        workload: Loads = "nomad-medium",
        /// Each program's share of the fastest node, such as 2:1; a program above its share is demoted first
        /// and promoted last.
        share: Option<Shares> = none("no shares"),
        /// Policies, comma-separated, or `all`; a file such as mine.py holds a policy in Python.
        policy: Policies = "all",
        /// Machine name or file, with two to four nodes and [cost].
        machine: MachineName = "cxl-a",
        /// Loads and stores of a generated workload's rounds, unless its file sets `mix`.
        mix: Mix = "write",
        /// Popularity of the pages of a generated workload, as in YCSB.
        pattern: Pattern = "scrambled-zipf",
        /// Where in memory the hottest pages of a generated workload are.
        placement: Placement = "uniform",
        /// Rounds after the warm-up; for a trace, the number of replays.
        rounds: Option<Count<0, 1000>> = none("4; for a trace: 1"),
        /// Factor on the memory and operations of a generated workload and on the machine's memory; 1/1 is
        /// full size.
        scale: Scale = "1/64",
        /// Number of seeds, one run each, starting at --seed.
        seeds: Seeds = 1,
        /// Seed of the first run.
        seed: Count<0, { 1 << 63 }> = 1,
        /// Sizes of the fastest node: shares of the program's memory, such as 30%, or bytes at full scale;
        /// `10%,...,100%` has steps of 10 %.
        fast: Option<Memory> = none("the machine's; for a trace 10%,...,100%"),
        /// Size of the slowest node: a share of the program's memory or bytes at full scale.
        slow: Option<OneMemory> = none("the machine's"),
        /// Memory that a generated workload maps, at full scale.
        rss: Option<Bytes> = none("the workload's"),
        /// Size of a generated workload's working set, the last part of its memory, at full scale.
        wss: Option<Bytes> = none("the workload's"),
        /// Map memory as huge pages of 2 MiB.
        huge: bool = false,
        /// Factor on the times of the machine's [cost], such as of a hint fault or a page migration.
        cost_scale: f64 = 1.0,
        /// References of a trace to simulate: all (`none`), or those that miss the machine's
        /// caches.
        filter: Filter = "cache",
        /// Whether memory is freed when the program unmaps it, if the trace records that; never
        /// with `--filter cache-write-backs`.
        lifetimes: Lifetimes = "on",
        /// Instances of the traced program that run together, each with separate pages.
        copies: Count<1, 1_000_000> = 1,
        /// Accepted slowdown with the recommended size of fast memory, relative to all memory being fast.
        slowdown: Share = crate::SLOWDOWN,
        /// Points of the time series per phase.
        points: Count<1, 100_000> = 40,
        /// Threads; 0 = one per core. A policy in Python uses one.
        threads: Runtime<Count<0, 1024>> = 0,
    }
}

impl Request {
    pub fn shape(&self) -> Shape {
        let gib = |bytes: &Bytes| bytes.0 as f64 / f64::from(1 << 30);
        Shape {
            scrambled: self.pattern == Pattern::ScrambledZipf,
            hottest_first: self.placement == Placement::HottestFirst,
            mix: self.mix,
            rounds: self.rounds.map_or(4, |rounds| rounds.0 as u32),
            scale: self.scale.share,
            huge: self.huge,
            rss_gib: self.rss.as_ref().map(gib),
            wss_gib: self.wss.as_ref().map(gib),
        }
    }
}

/// Default sizes of the fastest node for traces, which are too small for the machines' own sizes.
const FAST_SIZES: &str = "10%,...,100%";

/// The machine and settings of a study.
#[derive(Clone, Debug)]
pub struct Options {
    /// Nodes, fastest first.
    pub nodes: Vec<NodeModel>,
    pub costs: KernelCosts,
    /// Cost of a first touch, picoseconds.
    pub first_touch: f64,
    pub tlb_entries: u64,
    /// Lines that a core can have in flight.
    pub fill_buffers: u64,
    /// Sizes of the fastest node, each a run; empty: the machine's.
    pub fast: Vec<MemorySize>,
    /// The slowest node's size in place of the machine's.
    pub slow: Option<MemorySize>,
    /// Scale of memory; 1 for full size.
    pub scale: f64,
    /// Memory is mapped as huge pages.
    pub huge: bool,
    /// Maximum concurrent runs; 0 = one per core.
    pub threads: usize,
    /// Points of the time series in a phase.
    pub points: u32,
    /// Shares of the fastest node, in proportion: one for each program, or empty.
    pub shares: Vec<f64>,
}

/// Resident frames of the 27 GiB program that the policies were tuned with.
const TUNED_FRAMES: f64 = 27.0 * (1 << 18) as f64;

impl Request {
    /// Prepare the programs: replays of `traces`, or generated workloads.
    ///
    /// # Errors
    /// If a trace cannot be read or an option is invalid; errors of `on_progress`.
    pub fn prepare(
        &self,
        traces: &[PathBuf],
        on_progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Vec<Arc<Prepared>>> {
        let names = &self.workload.0;
        if let Some(shares) = self.share.as_ref().map(|share| share.0.len())
            && (shares != names.len() || shares < 2)
        {
            let what = format!("{shares} shares for {} programs", names.len());
            return Err(Error::input(
                "--share",
                what,
                "give one for each of at least two programs, such as 2:1",
            ));
        }
        let mut programs = Vec::new();
        for (index, name) in names.iter().enumerate() {
            let mut program = match traces.get(index) {
                Some(path) => self.prepare_trace(name, path, on_progress)?,
                None => generated(name, &self.shape())?,
            };
            let same = names.iter().take(index).filter(|other| *other == name).count();
            if same > 0 {
                program.name = format!("{name} ({})", same + 1);
            }
            programs.push(Arc::new(program));
        }
        Ok(programs)
    }

    fn prepare_trace(
        &self,
        name: &str,
        path: &Path,
        on_progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Prepared> {
        let rounds = self.rounds.map_or(1, |rounds| rounds.0 as u32);
        if rounds < 1 {
            return Err(Error::input("--rounds", "0 rounds of a trace; give 1 to 1000", ""));
        }
        let numbering = Numbering {
            huge: self.huge,
            // A line may be written back after its page was freed.
            lives: self.lifetimes == Lifetimes::On && self.filter != Filter::CacheWriteBacks,
            filtered: self.filter != Filter::None,
        };
        let pages = TracePages::open(path, numbering, on_progress)?.copied(self.copies.0 as u32)?;
        Ok(Prepared::trace(name.to_owned(), pages, rounds))
    }

    /// Default scale of the policies' times and sizes. For traces, which are not scaled, it is their peak
    /// memory relative to `TUNED_FRAMES`, at most 1.
    pub fn policy_scale(&self, programs: &[Arc<Prepared>]) -> f64 {
        match programs.iter().any(|program| program.is_trace()) {
            true => (f64::from(resident(programs)) / TUNED_FRAMES).min(1.0),
            false => self.scale.share,
        }
    }
}

/// Peak number of pages of all programs.
pub fn resident(programs: &[Arc<Prepared>]) -> u32 {
    programs.iter().map(|program| program.resident).fold(0, u32::saturating_add)
}

impl Options {
    /// The nodes and costs of `machine`, costs times `cost_scale`.
    ///
    /// # Errors
    /// An input error: the machine lacks nodes or costs, or the factor is negative.
    pub fn new(machine: &Machine, cost_scale: f64) -> Result<Self> {
        if !(cost_scale.is_finite() && cost_scale >= 0.0) {
            return Err(Error::input(
                "--cost-scale",
                format!("{cost_scale} is not a factor"),
                "give a number from 0, such as 2",
            ));
        }
        let nodes = machine.nodes()?;
        let costs = machine.kernel_costs(cost_scale)?;
        Ok(Self {
            nodes,
            // A first touch is a minor fault, whose time machine files give as `write_protect_fault`.
            first_touch: costs.write_protect_fault,
            costs,
            tlb_entries: machine.tlb_entries(),
            fill_buffers: machine.fill_buffers(),
            fast: Vec::new(),
            slow: None,
            scale: 1.0,
            huge: false,
            threads: 0,
            points: 40,
            shares: Vec::new(),
        })
    }

    /// Check a request for `machine`. `trace`: whether the program is a trace, which is never scaled.
    ///
    /// # Errors
    /// As [`Options::new`]; copies of a generated workload.
    pub fn from_request(machine: &Machine, request: &Request, trace: bool) -> Result<Self> {
        if !trace && request.copies.0 > 1 {
            let what = "a generated workload has one instance; copies are of a trace";
            return Err(Error::input("--copies", what, "give a larger --scale instead"));
        }
        let fast = match &request.fast {
            Some(fast) => fast.sizes.clone(),
            None if trace => units::parse_memory(FAST_SIZES)
                .map_err(|wrong| Error::input("--fast", wrong, ""))?,
            None => Vec::new(),
        };
        Ok(Self {
            fast,
            slow: request.slow.as_ref().map(|slow| slow.size),
            scale: if trace { 1.0 } else { request.scale.share },
            huge: request.huge,
            threads: request.threads.0.0 as usize,
            points: request.points.0 as u32,
            shares: request.share.as_ref().map_or_else(Vec::new, |share| share.0.clone()),
            ..Self::new(machine, request.cost_scale)?
        })
    }

    /// The hardware for `programs`, and the upper bound of their page numbers.
    ///
    /// # Errors
    /// More than 2^31 pages.
    pub(super) fn hardware(&self, programs: &[Arc<Prepared>]) -> Result<(Hardware, u32)> {
        let total: f64 = self.shares.iter().sum();
        let (mut next, mut placed) = (0u64, Vec::new());
        for (index, program) in programs.iter().enumerate() {
            // Programs share no huge page.
            let first = next.next_multiple_of(HUGE.into());
            next = first + u64::from(program.pages);
            if next > Access::MAX_PAGES.into() {
                return Err(Error::input(
                    "tiering",
                    "more than 2^31 pages",
                    "give smaller programs",
                ));
            }
            let (row, lines) = (f64::from(program.row), program.access_bytes / LINE);
            // Operations on one line: a thread has several in flight, which share the latency. Operations
            // on a row (adjacent pages): each row takes the latency once.
            let misses = u64::from(program.misses).min(self.fill_buffers);
            placed.push(Program {
                first: first as u32,
                share: self.shares.get(index).map_or(0.0, |share| share / total),
                threads: program.threads,
                access_bytes: program.access_bytes,
                parallel: program.parallel,
                overlap: if lines > 1 { row } else { misses as f64 },
                work: program.work.ps() as f64 / row,
            });
        }
        let hardware = Hardware {
            nodes: self.nodes.clone(),
            costs: self.costs,
            first_touch: self.first_touch,
            tlb_entries: self.tlb_entries,
            programs: placed,
        };
        Ok((hardware, next as u32))
    }

    /// Sizes of the fastest node, each a run; `None` for the machine's.
    pub fn fast_sizes(&self) -> Vec<Option<MemorySize>> {
        if self.fast.is_empty() {
            return vec![None];
        }
        self.fast.iter().copied().map(Some).collect()
    }

    /// The size of this number of frames at full scale, in GiB.
    fn gib(&self, frames: u64) -> f64 {
        (frames * FRAME) as f64 / self.scale / f64::from(1 << 30)
    }

    /// Frames of each node, for a program with a peak of `pages`; `fast` is the size of the fastest.
    ///
    /// # Errors
    /// An input error: a node of no frames, or less memory than pages.
    pub fn frames(&self, pages: u32, fast: Option<MemorySize>) -> Result<Vec<u64>> {
        let last = self.nodes.len().saturating_sub(1);
        let frames = self.nodes.iter().enumerate().map(|(index, node)| {
            let requested = if index == 0 {
                fast
            } else if index == last {
                self.slow
            } else {
                None
            };
            let bytes = |bytes: u64| (bytes as f64 * self.scale / FRAME as f64) as u64;
            let frames = match requested {
                Some(MemorySize::Fraction(part)) => (f64::from(pages) * part).ceil() as u64,
                Some(MemorySize::Bytes(size)) => bytes(size),
                None => bytes(node.available()),
            };
            if frames == 0 {
                let flag = match index {
                    0 => "--fast",
                    _ if index == last => "--slow",
                    _ => "--machine",
                };
                return Err(Error::input(
                    flag,
                    format!("node {} would have no page frame", node.name),
                    "give a larger size",
                ));
            }
            Ok(frames)
        });
        let frames = frames.collect::<Result<Vec<_>>>()?;
        let all: u64 = frames.iter().sum();
        if all < u64::from(pages) {
            return Err(Error::input(
                "tiering",
                format!(
                    "the program needs {pages} frames ({:.1} GiB at full scale), the machine has {all} ({:.1} GiB)",
                    self.gib(pages.into()),
                    self.gib(all),
                ),
                "choose a larger --fast or --slow, or another machine",
            ));
        }
        Ok(frames)
    }
}
