//! Options of a tiering study: parsed and checked.

use std::path::Path;

use nearfar_hardware::Machine;
use nearfar_hardware::machine::MachineName;
use nearfar_hardware::node::{KernelCosts, LINE, NodeModel};
use nearfar_kernel::tiering::{FRAME, POLICIES};
use nearfar_schema::units::{self, MemorySize};
use nearfar_schema::{
    Bytes, Count, Entry, Given, Memory, OneMemory, Registry as _, Runtime, Share, Value, none,
};
use nearfar_trace::{Error, Result};
use serde_json::Value as Json;

use super::counters::Hardware;
use super::trace::{Numbering, TracePages};
use super::workload::{Mix, Pattern, Placement, Prepared, Shape, Workloads, generated};
use crate::filter::Filter;
use crate::lifetimes::Lifetimes;

nearfar_schema::options! {
    /// The options of a tiering study as they are written.
    pub struct Request {
        /// A generated workload, its .toml file, or a trace folder.
        workload: Load = "nomad-medium",
        /// Policies, comma-separated, or `all`; mine.py is a policy in Python.
        policy: Policies = "all",
        /// Machine name or file; it needs two to four nodes and [cost].
        machine: MachineName = "cxl-a",
        /// Loads and stores of a generated workload's rounds, unless its file says so.
        mix: Mix = "write",
        /// Popularity of the pages of a generated workload, as in YCSB.
        pattern: Pattern = "scrambled-zipf",
        /// Where the hottest pages of a generated workload are.
        placement: Placement = "uniform",
        /// Rounds after the warm-up; for a trace, the number of replays.
        rounds: Option<Count<0, 1000>> = none("4; for a trace: 1"),
        /// Scale of a generated workload and its machine, memory and work: 1/64, 1/1 for full size.
        scale: Scale = "1/64",
        /// Number of seeds, one run each, starting at --seed.
        seeds: Seeds = 1,
        /// The first seed.
        seed: Count<0, { 1 << 63 }> = 1,
        /// Sizes of the fastest node: 30% of the program's memory, or bytes at full scale; `...` for equal
        /// steps.
        fast: Option<Memory> = none("the machine's; for a trace 10%,...,100%"),
        /// Size of the slowest node, written as for --fast; one size.
        slow: Option<OneMemory> = none("the machine's"),
        /// Memory that a generated workload maps, at full scale.
        rss: Option<Bytes> = none("the workload's"),
        /// The part of --rss that is used, at its end.
        wss: Option<Bytes> = none("the workload's"),
        /// Map memory as huge pages of 2 MiB.
        huge: bool = false,
        /// Factor on all costs of kernel primitives.
        cost_scale: f64 = 1.0,
        /// References of a trace to simulate: all (`none`), or those that miss the machine's
        /// caches.
        filter: Filter = "cache",
        /// Whether memory is freed when the program unmaps it, if the trace has such events; never
        /// with cache-write-backs.
        lifetimes: Lifetimes = "on",
        /// Instances of the traced program that run together, each with separate pages.
        copies: Count<1, 1_000_000> = 1,
        /// Slowdown to accept in the recommended size of fast memory, compared with only fast
        /// memory.
        slowdown: Share = crate::SLOWDOWN,
        /// Points of the time series per phase; printed if not 40.
        points: Count<1, 100_000> = 40,
        /// Threads; 0 = one per core. A policy in Python uses one.
        threads: Runtime<Count<0, 1024>> = 0,
    }
}

/// What runs: the name of a generated workload, or what a trace is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load(pub String);

impl Value for Load {
    fn metavar() -> &'static str {
        Workloads::METAVAR
    }
    fn python() -> String {
        "str | Path".into()
    }
    fn registry() -> &'static str {
        Workloads::NAME
    }
    fn choices() -> Vec<Entry> {
        Workloads::entries()
    }
    fn open() -> bool {
        true
    }
    fn read(given: &Given) -> std::result::Result<Self, String> {
        String::read(given).map(Self)
    }
    fn plain(&self) -> Json {
        self.0.as_str().into()
    }
}

/// Names of policies. Policies written in Python are given beside them, not here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policies(pub Vec<String>);

impl Value for Policies {
    fn metavar() -> &'static str {
        "POLICIES"
    }
    fn python() -> String {
        "PolicyLike | Sequence[PolicyLike]".into()
    }
    fn registry() -> &'static str {
        "policy"
    }
    fn choices() -> Vec<Entry> {
        POLICIES.iter().map(|(name, policy)| Entry { name, what: policy.what.into() }).collect()
    }
    fn open() -> bool {
        true
    }
    fn read(given: &Given) -> std::result::Result<Self, String> {
        let names: Vec<_> = given.items().iter().map(Given::to_string).collect();
        Ok(match names.as_slice() {
            [all] if all == "all" => {
                Self(POLICIES.iter().map(|(name, _)| (*name).into()).collect())
            }
            _ => Self(names),
        })
    }
    fn plain(&self) -> Json {
        self.0.as_slice().into()
    }
}

/// A share of full size, above 0 and up to 16: `1/64`, `0.5`.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    /// What was written.
    pub text: String,
    /// What it says.
    pub share: f64,
}

impl Value for Scale {
    fn metavar() -> &'static str {
        "SHARE"
    }
    fn python() -> String {
        "str | float".into()
    }
    fn read(given: &Given) -> std::result::Result<Self, String> {
        let text = given.to_string();
        let share = match text.split_once('/') {
            Some((part, whole)) => part
                .trim()
                .parse::<f64>()
                .and_then(|part| whole.trim().parse::<f64>().map(|whole| part / whole)),
            None => text.trim().parse(),
        };
        match share {
            Ok(share) if share > 0.0 && share <= 16.0 => Ok(Self { text, share }),
            _ => Err(format!("'{}' is not a share; write for example 1/64", given.shown())),
        }
    }
    fn plain(&self) -> Json {
        self.text.as_str().into()
    }
}

/// How many seeds, or which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seeds {
    /// This many, from the first on.
    Many(u64),
    /// These.
    These(Vec<u64>),
}

/// Maximum number of seeds.
const MAX_SEEDS: usize = 10_000;

impl Seeds {
    /// The seeds, where `first` is the first of many.
    pub fn from(&self, first: u64) -> Vec<u64> {
        match self {
            Seeds::Many(count) => (first..first + count).collect(),
            Seeds::These(seeds) => seeds.clone(),
        }
    }
}

impl Value for Seeds {
    fn metavar() -> &'static str {
        "COUNT"
    }
    fn python() -> String {
        "int | Sequence[int]".into()
    }
    fn read(given: &Given) -> std::result::Result<Self, String> {
        let refused = || {
            format!(
                "'{}' is not a number of seeds; give 1 to {MAX_SEEDS}, or so many seeds from 0 to \
                 2^64 - 1",
                given.shown()
            )
        };
        match given {
            Given::List(seeds) if (1..=MAX_SEEDS).contains(&seeds.len()) => {
                let read = |seed| Count::<0>::read(seed).map(|seed| seed.0);
                seeds.iter().map(read).collect::<std::result::Result<_, _>>().map(Self::These)
            }
            one => Count::<1, { MAX_SEEDS as u64 }>::read(one).map(|count| Self::Many(count.0)),
        }
        .map_err(|_| refused())
    }
    fn plain(&self) -> Json {
        match self {
            Seeds::Many(count) => (*count).into(),
            Seeds::These(seeds) => seeds.as_slice().into(),
        }
    }
}

impl Request {
    /// The shape of a generated workload.
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

/// Default sizes of the fastest node for traces: machines are made
/// for programs that are larger.
const FAST_SIZES: &str = "10%,...,100%";

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
    /// Lines that a core can have under way.
    pub fill_buffers: u64,
    /// Sizes of the fastest node, each a run; none: the machine's.
    pub fast: Vec<MemorySize>,
    /// The slowest node's size in place of the machine's.
    pub slow: Option<MemorySize>,
    /// 1 for full size.
    pub scale: f64,
    /// Memory is mapped as huge pages.
    pub huge: bool,
    /// Runs at the same time; 0 = one per core.
    pub threads: usize,
    /// Points of the time series in a phase.
    pub points: u32,
}

/// Resident frames of the 27 GiB program that the policies were tuned with.
const TUNED_FRAMES: f64 = 27.0 * (1 << 18) as f64;

impl Request {
    /// Prepare the program: a replay of `trace`, or the generated workload.
    ///
    /// # Errors
    /// If the trace cannot be read or an option is invalid; errors of `on_progress`.
    pub fn prepare(
        &self,
        trace: Option<&Path>,
        on_progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Prepared> {
        let Some(path) = trace else { return generated(&self.workload.0, &self.shape()) };
        let rounds = self.rounds.map_or(1, |rounds| rounds.0 as u32);
        if rounds < 1 {
            return Err(Error::input("--rounds", "0 rounds of a trace; give 1 to 1000", ""));
        }
        let numbering = Numbering {
            huge: self.huge,
            private: false,
            // A line may be written back after its page was freed.
            lives: self.lifetimes == Lifetimes::On && self.filter != Filter::CacheWriteBacks,
            filtered: self.filter != Filter::None,
        };
        let pages = TracePages::open(path, numbering, on_progress)?.copied(self.copies.0 as u32)?;
        Ok(Prepared::trace(self.workload.0.clone(), pages, rounds))
    }

    /// Default scale of the policies' times and sizes. A trace is not scaled, so policies shrink to
    /// its size relative to the program that they were tuned with.
    pub fn policy_scale(&self, prepared: &Prepared) -> f64 {
        match prepared.is_trace() {
            true => (f64::from(prepared.resident) / TUNED_FRAMES).min(1.0),
            false => self.scale.share,
        }
    }
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
            fill_buffers: machine.fill_buffers(),
            fast: Vec::new(),
            slow: None,
            scale: 1.0,
            huge: false,
            threads: 0,
            points: 40,
        })
    }

    /// Check a request for `machine`. `trace`: of a trace, which is never scaled.
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
            ..Self::new(machine, request.cost_scale)?
        })
    }

    /// The hardware for a workload.
    pub(super) fn hardware(&self, workload: &Prepared) -> Hardware {
        let (row, lines) = (f64::from(workload.row), workload.access_bytes / LINE);
        // Rows are streamed; single lines overlap as far as the processor can.
        let misses = u64::from(workload.misses).min(self.fill_buffers);
        Hardware {
            nodes: self.nodes.clone(),
            costs: self.costs,
            first_touch: self.first_touch,
            tlb_entries: self.tlb_entries,
            program_threads: workload.threads,
            access_bytes: workload.access_bytes,
            parallel: workload.parallel,
            overlap: if lines > 1 { row } else { misses as f64 },
            work: workload.work.ps() as f64 / row,
        }
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

    /// Frames of each node, with `fast` for the fastest, for a program that has `pages` at once.
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
