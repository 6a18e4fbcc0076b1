//! Where accesses come from: NOMAD's micro-benchmark, a pointer chase, a captured trace.

use std::sync::Arc;

use nearfar_kernel::tiering::{FRAME, HUGE, Time};
use nearfar_trace::generate::permutation::Permutation;
use nearfar_trace::generate::rng::Rng;
use nearfar_trace::{Error, Result};

use super::engine::{Access, Block};
use super::trace::{Replay, TracePages};
use super::zipf::{Draws, arrange, popularity};

/// A workload that is generated.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// One line for lists.
    pub what: &'static str,
    /// Memory it maps, GiB: a part for the warm-up only, and the working set after it.
    pub rss_gib: f64,
    /// The working set, GiB.
    pub wss_gib: f64,
    /// Operations of a round.
    pub operations: u64,
    /// Bytes of an operation.
    pub access_bytes: u64,
    /// Whether pages are chased in one cycle in place of being drawn by popularity.
    pub chase: bool,
}

/// Accesses that are drawn together: the table that they come from is larger than the caches.
const TOGETHER: usize = 64;

/// Fewest pages beside the working set for the warm-up to be there and not on the working set.
const WARM: u32 = 16;

/// Every generated workload. Sizes and operations: NOMAD, OSDI'24, micro-benchmark; an operation
/// of it copies a page, in its pointer chase it loads a line.
pub static WORKLOADS: &[Workload] = &[
    Workload {
        name: "nomad-small",
        what: "NOMAD's micro-benchmark: 10 GiB of 20 used, 18 M page copies per round",
        rss_gib: 20.0,
        wss_gib: 10.0,
        operations: 18_000_000,
        access_bytes: FRAME,
        chase: false,
    },
    Workload {
        name: "nomad-medium",
        what: "NOMAD's micro-benchmark: 13.5 GiB of 27 used, 30 M page copies per round",
        rss_gib: 27.0,
        wss_gib: 13.5,
        operations: 30_000_000,
        access_bytes: FRAME,
        chase: false,
    },
    Workload {
        name: "nomad-large",
        what: "NOMAD's micro-benchmark: all of 27 GiB used, 40 M page copies per round",
        rss_gib: 27.0,
        wss_gib: 27.0,
        operations: 40_000_000,
        access_bytes: FRAME,
        chase: false,
    },
    Workload {
        name: "pointer-chase",
        what: "13.5 GiB of 27 used: one load per page, all pages in one random cycle",
        rss_gib: 27.0,
        wss_gib: 13.5,
        operations: 30_000_000,
        access_bytes: 64,
        chase: true,
    },
];

nearfar_schema::choices! {
    /// Loads and stores.
    pub enum Mix: "mix" {
        /// loads only
        Read = "read",
        /// stores only
        Write = "write",
        /// half loads, half stores, drawn for each operation
        Mixed = "mixed",
        /// half of the pages are only loaded, the others only stored to
        Split = "split",
    }
}

nearfar_schema::choices! {
    /// How often which page is used.
    pub enum Pattern: "pattern" {
        /// ranks hashed onto records
        ScrambledZipf = "scrambled-zipf",
        /// the most popular record is the first
        Zipf = "zipf",
    }
}

nearfar_schema::choices! {
    /// Where popular pages lie in memory.
    pub enum Placement: "placement" {
        /// scattered
        Uniform = "uniform",
        /// the most popular ones first
        HottestFirst = "hottest-first",
    }
}

/// [`WORKLOADS`] as what an option chooses from.
pub struct Workloads;

impl nearfar_schema::Registry for Workloads {
    const NAME: &'static str = "workload";
    const KIND: &'static str = "workload";
    const METAVAR: &'static str = "WORKLOAD";
    fn entries() -> Vec<nearfar_schema::Entry> {
        let entry =
            |one: &Workload| nearfar_schema::Entry { name: one.name, what: one.what.into() };
        WORKLOADS.iter().map(entry).collect()
    }
}

impl Mix {
    fn write(self, page: u32, random: u64) -> bool {
        match self {
            Mix::Read => false,
            Mix::Write => true,
            Mix::Mixed => random & 1 == 1,
            // The top bit of a product with an odd constant: no pattern of places shows in it.
            Mix::Split => page.wrapping_mul(0x9E37_79B1) >> 31 == 1,
        }
    }
}

/// How a generated workload is laid out and drawn.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Ranks hashed onto records (YCSB's scrambled Zipf) or not.
    pub scrambled: bool,
    /// The most popular records first in memory, or scattered.
    pub hottest_first: bool,
    /// Loads and stores of the rounds; the warm-up always stores.
    pub mix: Mix,
    /// Rounds after the warm-up.
    pub rounds: u32,
    /// 1 for full size; memory and operations shrink alike.
    pub scale: f64,
    /// Memory is a whole number of huge pages.
    pub huge: bool,
    /// Memory mapped, GiB, in place of the workload's.
    pub rss_gib: Option<f64>,
    /// The working set, GiB, in place of the workload's.
    pub wss_gib: Option<f64>,
}

/// One phase of a run.
#[derive(Clone, Debug)]
pub struct Phase {
    /// Its name in results.
    pub name: String,
    /// Accesses.
    pub accesses: u64,
    /// How long the program sleeps before it.
    pub sleep: Time,
    /// Loads and stores.
    pub mix: Mix,
}

/// A workload ready to run, shared by all runs of it.
#[derive(Debug)]
pub struct Prepared {
    /// Its name in results: a workload, or the path of a trace.
    pub name: String,
    /// Its mix in results: `trace` for a trace.
    pub mix: &'static str,
    /// Page numbers are below.
    pub pages: u32,
    /// Pages that there are at once, at most: what memory must hold, and sizes are parts of.
    pub resident: u32,
    /// 4 KiB pages that are ever used.
    pub footprint: u64,
    /// Pages mapped before it begins, in order of their numbers; others at first touch.
    pub mapped: u32,
    /// Bytes of an access.
    pub access_bytes: u64,
    /// Its phases.
    pub phases: Vec<Phase>,
    /// Threads of the program.
    pub threads: u32,
    kind: Kind,
}

/// What NOMAD's warm-up draws from: pages of its own, where there are any.
#[derive(Debug)]
enum Warm {
    /// The working set.
    Rounds,
    /// As many pages before it: the same table.
    Alike,
    /// Pages before it, more or fewer of them.
    Own(Draws),
}

#[derive(Debug)]
enum Kind {
    /// Records drawn in the rounds from `first`; in the warm-up, a draw of its own, as `warm` says.
    Draws {
        first: u32,
        draws: Draws,
        warm: Warm,
    },
    Chase {
        first: u32,
        order: Vec<u32>,
    },
    Trace(Box<TracePages>),
}

/// The generated workload of this name.
///
/// # Errors
/// An input error: no such workload, or a scale that leaves nothing of it.
pub fn generated(name: &str, shape: &Shape) -> Result<Prepared> {
    let workload = WORKLOADS.iter().find(|workload| workload.name == name).ok_or_else(|| {
        let names: Vec<_> = WORKLOADS.iter().map(|workload| workload.name).collect();
        Error::input(
            "--workload",
            format!("no workload is called `{}`", name.chars().take(40).collect::<String>()),
            format!("choose one of {}, or give a trace", names.join(", ")),
        )
    })?;
    let unit = if shape.huge { HUGE } else { 1 };
    let frames = |gib: f64| {
        let frames = gib * shape.scale * (1u64 << 30) as f64 / FRAME as f64;
        (frames as u64 / u64::from(unit)) as u32 * unit
    };
    let rss_gib = shape.rss_gib.unwrap_or(workload.rss_gib);
    let wss_gib = shape.wss_gib.unwrap_or(workload.wss_gib.min(rss_gib));
    // Access::MAX_PAGES of 4 KiB are a page less than 8 TiB.
    if !(0.0..8192.0).contains(&(rss_gib * shape.scale)) || wss_gib > rss_gib {
        return Err(Error::input(
            "--rss",
            format!("{wss_gib} GiB used of {rss_gib} GiB"),
            "give --wss not above --rss, and less than 8 TiB",
        ));
    }
    let (rss, wss) = (frames(rss_gib), frames(wss_gib));
    let operations = (workload.operations as f64 * shape.scale) as u64;
    if !(shape.scale > 0.0 && shape.scale <= 16.0) || wss < 16 || operations < 1 {
        return Err(Error::input(
            "--scale",
            format!("{} leaves nothing of {name}, or is too much", shape.scale),
            "give a share such as 1/64",
        ));
    }
    let first = rss - wss;
    let kind = if workload.chase {
        let order = Permutation::new(u64::from(wss), 0);
        Kind::Chase { first, order: (0..wss).map(|i| order.apply(u64::from(i)) as u32).collect() }
    } else {
        let draws = |of| Draws::new(&arrange(popularity(of, shape.scrambled), shape.hottest_first));
        let warm = match first {
            0..WARM => Warm::Rounds,
            _ if first == wss => Warm::Alike,
            _ => Warm::Own(draws(first)),
        };
        Kind::Draws { first, draws: draws(wss), warm }
    };
    let pause = Time::from_ps((10e12 * shape.scale) as u64);
    let mut phases = vec![Phase {
        name: "warm-up".to_owned(),
        accesses: operations,
        sleep: Time::default(),
        mix: Mix::Write,
    }];
    phases.extend((1..=shape.rounds).map(|round| Phase {
        name: format!("round-{round}"),
        accesses: operations,
        sleep: pause,
        mix: shape.mix,
    }));
    let access_bytes = workload.access_bytes;
    let (name, mix) = (name.to_owned(), shape.mix.name());
    Ok(Prepared {
        name,
        mix,
        pages: rss,
        resident: rss,
        footprint: rss.into(),
        mapped: rss,
        access_bytes,
        phases,
        threads: 1,
        kind,
    })
}

impl Prepared {
    /// A trace, replayed `rounds` times; `name` is its name in results.
    pub fn trace(name: String, pages: TracePages, rounds: u32) -> Self {
        let phases = (1..=rounds.max(1)).map(|round| Phase {
            name: if rounds <= 1 { "trace".to_owned() } else { format!("round-{round}") },
            accesses: pages.accesses(),
            sleep: Time::default(),
            mix: Mix::Read,
        });
        Self {
            name,
            mix: "trace",
            pages: pages.pages(),
            resident: pages.resident(),
            footprint: pages.footprint(),
            mapped: 0,
            access_bytes: 64,
            phases: phases.collect(),
            threads: pages.threads(),
            kind: Kind::Trace(Box::new(pages)),
        }
    }

    /// Whether it is a trace, whose hot set may change within a phase.
    pub fn is_trace(&self) -> bool {
        matches!(self.kind, Kind::Trace(_))
    }

    /// Whether its pages end. Those that are left end with a phase: the next is the program again.
    pub fn has_lives(&self) -> bool {
        matches!(&self.kind, Kind::Trace(pages) if pages.has_lives())
    }

    /// The accesses of a phase, from its beginning. Every round of a seed has the same.
    ///
    /// # Errors
    /// The trace cannot be read.
    pub fn source(self: &Arc<Self>, phase: usize, seed: u64) -> Result<Source> {
        let mix = self.phases.get(phase).map_or(Mix::Read, |phase| phase.mix);
        // The warm-up is another draw than the rounds.
        let rng = Rng::stream(seed, u64::from(phase > 0));
        let replay = match &self.kind {
            Kind::Trace(pages) => Some(pages.replay()?),
            _ => None,
        };
        Ok(Source { workload: self.clone(), rng, mix, warm_up: phase == 0, at: 0, replay })
    }
}

/// A stream of accesses.
pub struct Source {
    workload: Arc<Prepared>,
    rng: Rng,
    mix: Mix,
    warm_up: bool,
    at: usize,
    replay: Option<Replay>,
}

impl Source {
    /// Replace `block` by up to `count` further accesses; a trace may end earlier, with none.
    ///
    /// # Errors
    /// The trace cannot be read.
    pub fn fill(&mut self, block: &mut Block, count: usize) -> Result<()> {
        block.clear();
        let out = &mut block.accesses;
        match (&self.workload.kind, &mut self.replay) {
            (Kind::Draws { first, draws, warm }, _) => {
                let (first, draws) = match warm {
                    Warm::Alike if self.warm_up => (0, draws),
                    Warm::Own(own) if self.warm_up => (0, own),
                    _ => (*first, draws),
                };
                let (mut rng, mix) = (self.rng.clone(), self.mix);
                let (mut randoms, mut left) = ([0; TOGETHER], count);
                while left > 0 {
                    let randoms = &mut randoms[..left.min(TOGETHER)];
                    for random in &mut *randoms {
                        *random = rng.next_u64();
                        draws.expect(*random);
                    }
                    out.extend(randoms.iter().map(|&random| {
                        let page = first + draws.draw(random);
                        Access::new(page, mix.write(page, random))
                    }));
                    left -= randoms.len();
                }
                self.rng = rng;
            }
            (Kind::Chase { first, order }, _) => {
                for _ in 0..count {
                    let page = order.get(self.at).copied().unwrap_or_default();
                    self.at = if self.at + 1 >= order.len() { 0 } else { self.at + 1 };
                    let random = if self.mix == Mix::Mixed { self.rng.next_u64() } else { 0 };
                    let write = self.mix.write(first + page, random);
                    out.push(Access::new(first + page, write));
                }
            }
            (Kind::Trace(pages), Some(replay)) => pages.fill(replay, block, count)?,
            (Kind::Trace(_), None) => {}
        }
        Ok(())
    }
}
