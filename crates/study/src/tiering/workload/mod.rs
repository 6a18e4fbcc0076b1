//! Where accesses come from: a generated workload, or a captured trace.

mod file;
mod region;

use std::sync::Arc;

use nearfar_hardware::node::LINE;
use nearfar_kernel::tiering::{FRAME, HUGE, Time};
use nearfar_trace::generate::rng::Rng;
use nearfar_trace::{Error, Result};

use super::engine::{Access, Block};
use super::trace::{Replay, TracePages};

pub use file::{Array, Distribution, Phases, Workload, Workloads};
use region::{Choice, Region};

/// Operations drawn at a time, so that cache misses on the popularity table overlap.
const DRAW_BATCH: usize = 64;

/// Minimum number of pages of an array for the warm-up alone; with fewer, the warm-up uses the arrays of
/// the rounds.
const MIN_WARM_UP: u32 = 16;

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
        /// Zipf with ranks hashed onto pages, which is flatter
        ScrambledZipf = "scrambled-zipf",
        /// popularity of rank r is proportional to r^-0.99
        Zipf = "zipf",
    }
}

nearfar_schema::choices! {
    /// Where popular pages lie in memory.
    pub enum Placement: "placement" {
        /// scattered
        Uniform = "uniform",
        /// the most popular pages at the lowest addresses
        HottestFirst = "hottest-first",
    }
}

impl Mix {
    fn write(self, page: u32, random: u64) -> bool {
        match self {
            Mix::Read => false,
            Mix::Write => true,
            Mix::Mixed => random & 1 == 1,
            // The top bit of a product with an odd constant is independent of patterns of page numbers.
            Mix::Split => page.wrapping_mul(0x9E37_79B1) >> 31 == 1,
        }
    }
}

/// How a generated workload is laid out and drawn.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Ranks are hashed onto records: YCSB's scrambled Zipf.
    pub scrambled: bool,
    /// The most popular records are first in memory; else scattered.
    pub hottest_first: bool,
    /// Loads and stores of the rounds; the warm-up always stores.
    pub mix: Mix,
    /// Rounds after the warm-up.
    pub rounds: u32,
    /// Scale of memory and operations; 1 for full size.
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
    /// Name in results.
    pub name: String,
    pub accesses: u64,
    /// Time that the program sleeps before the phase.
    pub sleep: Time,
    pub mix: Mix,
    /// The round, from 0; none for the warm-up.
    round: Option<u32>,
}

/// A workload ready to run, shared by all runs of it.
#[derive(Debug)]
pub struct Prepared {
    /// Name in results: a workload, or the path of a trace.
    pub name: String,
    /// Mix in results: `trace` for a trace.
    pub mix: &'static str,
    /// Upper bound of page numbers.
    pub pages: u32,
    /// Peak number of pages: the memory size of 100 %.
    pub resident: u32,
    /// Distinct 4 KiB pages.
    pub footprint: u64,
    /// Pages mapped before the first phase, in order of their numbers; others at first touch.
    pub mapped: u32,
    /// Bytes of an access: those of an operation, at most a page.
    pub access_bytes: u64,
    /// Accesses per operation: one for each page of the *row*, the part of an array that it uses.
    pub row: u32,
    pub phases: Vec<Phase>,
    /// Threads of the program, for TLB shootdowns.
    pub threads: u32,
    /// Threads that run at the same time; one for a trace.
    pub parallel: u32,
    /// Misses that a thread has in flight at once.
    pub misses: u32,
    /// Processor time of an operation besides its accesses.
    pub work: Time,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Generated(Vec<Region>),
    Trace(Box<TracePages>),
}

/// Generate a workload by name or from a file.
///
/// # Errors
/// If there is no such workload, or the scale leaves no pages.
pub fn generated(name: &str, shape: &Shape) -> Result<Prepared> {
    let mut workload = Workload::load(name)?;
    let row = workload.access.bytes().div_ceil(FRAME) as u32;
    let unit = match shape.huge {
        true if HUGE.is_multiple_of(row) => HUGE,
        true => HUGE * row,
        false => row,
    };
    let gib = |size: &nearfar_schema::units::Size| size.bytes() as f64 / f64::from(1 << 30);
    let sizes: Vec<f64> = workload.array.iter().map(|array| gib(&array.size)).collect();
    let sizes = resized(&mut workload.array, sizes, shape)?;
    // A whole number of pages, of rows and of huge pages.
    let frames = |gib: f64| {
        let frames = gib * shape.scale * (1u64 << 30) as f64 / FRAME as f64;
        (frames as u64 / u64::from(unit)) as u32 * unit
    };
    if !(shape.scale > 0.0 && shape.scale <= 16.0) {
        let what = format!("{} is not above 0 and at most 16", shape.scale);
        return Err(Error::input("--scale", what, "give a share such as 1/64"));
    }
    let operations = (workload.operations as f64 * shape.scale) as u64;
    let mut regions = Vec::new();
    // Arrays of one size share a table of popularity.
    let mut tables: Vec<(u32, Choice)> = Vec::new();
    let mut first = 0;
    for (array, gib) in workload.array.iter().zip(sizes) {
        let pages = frames(gib);
        let used = array.phase != Phases::Never;
        let warms = array.phase == Phases::WarmUp;
        let small = used && !warms && pages < 16.max(row);
        if small || operations < u64::from(workload.threads) {
            let what = match small {
                true => format!(
                    "leaves fewer than 16 pages, or less than one `access`, of an array of {} bytes",
                    array.size.bytes()
                ),
                false => {
                    format!(
                        "leaves fewer operations (of {} at full scale) than threads",
                        workload.operations
                    )
                }
            };
            let what = format!("{}: scale {} {what}", name, shape.scale);
            return Err(Error::input("--scale", what, "give a larger share, such as 1/64"));
        }
        let rows = pages / row;
        let same =
            |(of, _): &&(u32, Choice)| *of == rows && array.distribution == Distribution::Zipf;
        let choice = match tables.iter().find(same) {
            Some((_, table)) if used => table.clone(),
            _ => array.choice(rows, shape),
        };
        if used && array.distribution == Distribution::Zipf {
            tables.push((rows, choice.clone()));
        }
        let draws = (array.draws as f64 * shape.scale).ceil() as u64;
        let (weight, shift, phase) = (array.weight, array.shift, array.phase);
        regions.push(Region { first, rows, phase, weight, choice, draws, shift });
        first += pages;
    }
    if regions
        .iter()
        .any(|region| region.phase == Phases::WarmUp && region.rows * row < MIN_WARM_UP)
    {
        regions.retain(|region| region.phase != Phases::WarmUp || region.rows * row >= MIN_WARM_UP);
        for region in regions.iter_mut().filter(|region| region.phase == Phases::Rounds) {
            region.phase = Phases::Both;
        }
    }
    let scaled = |time: Option<nearfar_schema::units::Time>| {
        Time::from_ps((time.map_or(0, |time| time.ps()) as f64 * shape.scale) as u64)
    };
    let pause = scaled(workload.pause);
    let mix = workload.mix.unwrap_or(shape.mix);
    let accesses = operations * u64::from(row);
    let mut phases = Vec::new();
    if regions.iter().any(|region| region.is_of(None)) {
        let (name, sleep) = ("warm-up".to_owned(), Time::default());
        phases.push(Phase { name, accesses, sleep, mix: Mix::Write, round: None });
    }
    phases.extend((0..shape.rounds).map(|round| Phase {
        name: format!("round-{}", round + 1),
        accesses,
        sleep: pause,
        mix,
        round: Some(round),
    }));
    Ok(Prepared {
        name: name.to_owned(),
        mix: mix.name(),
        pages: first,
        resident: first,
        footprint: first.into(),
        mapped: first,
        access_bytes: workload.access.bytes().min(FRAME),
        row,
        phases,
        threads: workload.threads,
        parallel: workload.threads,
        misses: workload.misses,
        work: Time::from_ps(workload.work.map_or(0, |work| work.ps())),
        kind: Kind::Generated(regions),
    })
}

/// The sizes of arrays in GiB after `--rss` and `--wss`: the last array is the working set, and the one
/// before it all other memory.
fn resized(arrays: &mut Vec<Array>, mut sizes: Vec<f64>, shape: &Shape) -> Result<Vec<f64>> {
    let (all, last) = (sizes.iter().sum::<f64>(), sizes.last().copied().unwrap_or_default());
    let rss = shape.rss_gib.unwrap_or(all);
    let wss = shape.wss_gib.unwrap_or(last.min(rss));
    // Access::MAX_PAGES of 4 KiB are a page less than 8 TiB.
    if !(0.0..8192.0).contains(&(rss * shape.scale)) {
        let what = format!("{rss} GiB of memory at scale {}", shape.scale);
        return Err(Error::input("tiering", what, "give less than 8 TiB after scaling"));
    }
    if wss > rss {
        let what = format!("a working set of {wss} GiB in {rss} GiB of memory");
        return Err(Error::input("--rss", what, "give --wss not above --rss"));
    }
    if shape.rss_gib.is_none() && shape.wss_gib.is_none() {
        return Ok(sizes);
    }
    if arrays.len() > 2 {
        let what = "a workload of more than two arrays has fixed sizes";
        return Err(Error::input("--rss", what, "change its file"));
    }
    if arrays.len() == 1
        && let Some(array) = arrays.first_mut()
        && rss > wss
    {
        let rest = Array { phase: Phases::WarmUp, ..array.clone() };
        array.phase = Phases::Rounds;
        arrays.insert(0, rest);
    }
    sizes = if arrays.len() == 2 { vec![rss - wss, wss] } else { vec![wss] };
    Ok(sizes)
}

impl Prepared {
    /// A trace, replayed `rounds` times; `name` is its name in results.
    pub fn trace(name: String, pages: TracePages, rounds: u32) -> Self {
        let phases = (1..=rounds.max(1)).map(|round| Phase {
            name: if rounds <= 1 { "trace".to_owned() } else { format!("round-{round}") },
            accesses: pages.accesses(),
            sleep: Time::default(),
            // Not used: the trace has loads and stores.
            mix: Mix::Read,
            round: Some(round - 1),
        });
        Self {
            name,
            mix: "trace",
            pages: pages.pages(),
            resident: pages.resident(),
            footprint: pages.footprint(),
            mapped: 0,
            access_bytes: LINE,
            row: 1,
            phases: phases.collect(),
            threads: pages.threads(),
            parallel: 1,
            misses: 1,
            work: Time::default(),
            kind: Kind::Trace(Box::new(pages)),
        }
    }

    /// Whether it is a trace, whose hot set may change within a phase.
    pub fn is_trace(&self) -> bool {
        matches!(self.kind, Kind::Trace(_))
    }

    /// Whether its pages have lifetimes. Remaining pages are freed at the end of a phase, because
    /// the next phase runs the program again.
    pub fn has_lives(&self) -> bool {
        matches!(&self.kind, Kind::Trace(pages) if pages.has_lives())
    }

    /// Accesses of a phase that `thread` makes.
    pub fn share(&self, phase: usize, thread: u32) -> u64 {
        let accesses = self.phases.get(phase).map_or(0, |phase| phase.accesses);
        let (row, threads) = (u64::from(self.row), u64::from(self.parallel));
        let operations = accesses / row;
        (operations / threads + u64::from(u64::from(thread) < operations % threads)) * row
    }

    /// The accesses of a thread in a phase. All rounds of a seed have the same random numbers.
    ///
    /// # Errors
    /// The trace cannot be read.
    pub fn source(self: &Arc<Self>, phase: usize, seed: u64, thread: u32) -> Result<Source> {
        let (mix, round) =
            self.phases.get(phase).map_or((Mix::Read, None), |phase| (phase.mix, phase.round));
        // The warm-up draws other numbers than the rounds.
        let rng = Rng::stream(seed, u64::from(round.is_some()) + 2 * u64::from(thread));
        let replay = match &self.kind {
            Kind::Trace(pages) => Some(pages.replay()?),
            Kind::Generated(_) => None,
        };
        let workload = self.clone();
        Ok(Source { workload, begin: rng.clone(), rng, mix, round, thread, at: 0, replay })
    }
}

/// A stream of accesses.
pub struct Source {
    workload: Arc<Prepared>,
    /// The initial state of `rng`, restored each time that draws repeat ([`Array::draws`]).
    begin: Rng,
    rng: Rng,
    mix: Mix,
    round: Option<u32>,
    thread: u32,
    /// Operations so far.
    at: u64,
    replay: Option<Replay>,
}

impl Source {
    /// Replace `block` by `count` further accesses, rounded up to whole operations, or by fewer at the end of
    /// a trace.
    ///
    /// # Errors
    /// The trace cannot be read.
    pub fn fill(&mut self, block: &mut Block, count: usize) -> Result<()> {
        block.clear();
        let workload = self.workload.clone();
        match (&workload.kind, &mut self.replay) {
            (Kind::Generated(regions), _) => self.generate(regions, &mut block.accesses, count),
            (Kind::Trace(pages), Some(replay)) => pages.fill(replay, block, count)?,
            (Kind::Trace(_), None) => {}
        }
        Ok(())
    }

    fn generate(&mut self, regions: &[Region], out: &mut Vec<Access>, count: usize) {
        let used: Vec<&Region> = regions.iter().filter(|region| region.is_of(self.round)).collect();
        let Some(first) = used.first() else { return };
        let (row, threads) = (self.workload.row, u64::from(self.workload.parallel));
        let weight: f64 = used.iter().map(|region| region.weight).sum();
        let repeat = used.iter().map(|region| region.draws).max().unwrap_or(0).div_ceil(threads);
        let offset_of = |region: &Region| {
            let rounds = f64::from(self.round.unwrap_or(0)) * region.shift;
            (rounds.fract() * f64::from(region.rows)) as u64
        };
        let offsets: Vec<u64> = used.iter().map(|region| offset_of(region)).collect();
        let mut randoms = [0; DRAW_BATCH];
        let mut left = count.div_ceil(row as usize);
        while left > 0 {
            let mut batch = left.min(DRAW_BATCH);
            if repeat > 0 {
                let done = self.at % repeat;
                if done == 0 {
                    self.rng = self.begin.clone();
                }
                batch = batch.min((repeat - done) as usize);
            }
            let randoms = &mut randoms[..batch];
            for random in &mut *randoms {
                *random = self.rng.next_u64();
                // A guess: the array is chosen below.
                if let Choice::Draws(draws) = &first.choice {
                    draws.prefetch(*random);
                }
            }
            for random in &*randoms {
                let mut chosen = 0;
                if used.len() > 1 {
                    // Independent random bits without another draw.
                    let mixed = nearfar_trace::generate::rng::mix64(*random);
                    let mut part = mixed as f64 / u64::MAX as f64 * weight;
                    while chosen + 1 < used.len() && part >= used[chosen].weight {
                        part -= used[chosen].weight;
                        chosen += 1;
                    }
                }
                let region = used[chosen];
                let mut index = region.row(*random, self.at, self.thread, threads);
                if offsets[chosen] > 0 {
                    index = ((u64::from(index) + offsets[chosen]) % u64::from(region.rows)) as u32;
                }
                let page = region.first + index * row;
                let write = self.mix.write(page, *random);
                if row == 1 {
                    out.push(Access::new(page, write));
                } else {
                    out.extend((page..page + row).map(|page| Access::new(page, write)));
                }
                self.at += 1;
            }
            left -= batch;
        }
    }
}
