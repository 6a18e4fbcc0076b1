//! Two virtual machines in memory mode: their slowdown by conflicts in the direct-mapped cache, for
//! given overlaps of their contiguous pages in the cache, and for shuffled pages.
//!
//! The guests take turns after each access. A guest loads lines of its memory uniformly at random, or
//! replays a trace. Without traces, memory and cache are scaled so that the cache has [`FRAMES`] pages:
//! hit rates depend only on the ratio of working set to cache.

use std::ops::Range;

use nearfar_hardware::Topology;
use nearfar_hardware::memory_side_cache::{MemorySideCache, Outcome};
use nearfar_hardware::node::{LINE, PAGE};
use nearfar_kernel::placement::Memory;
use nearfar_trace::generate::permutation::Permutation;
use nearfar_trace::generate::rng::Rng;
use nearfar_trace::{Batch, Columns, Error, Reader, Result};
use rustc_hash::FxHashMap;

/// Pages of the scaled cache.
pub const FRAMES: u64 = 4096;
/// A trace is read up to this number of accesses, and repeated as needed.
const MAX_ACCESSES: usize = 1 << 22;
/// Accesses between two calls of `on_progress`.
const PROGRESS_STEP: u64 = 1 << 20;
/// Lines per page.
const LINES: u64 = PAGE / LINE;

/// Called periodically with the number of accesses per guest so far; it restarts from 0 several times.
type OnProgress<'a> = &'a mut dyn FnMut(u64) -> Result<()>;

/// The accesses of a virtual machine.
pub enum Guest<'a> {
    /// Loads uniformly at random from this many bytes.
    Uniform(u64),
    /// A recorded program.
    Trace(&'a Reader),
}

#[derive(Clone, Debug)]
pub struct PairOptions {
    /// Requested shares, 0 to 1, of the smaller guest's pages that share the other's cache lines.
    pub overlaps: Vec<f64>,
    /// Size of the cache; `None`: the DRAM in front of the memory.
    pub cache_bytes: Option<u64>,
    /// Seed of random loads and of the shuffle.
    pub seed: u64,
}

nearfar_schema::columns! {
    /// Hit rates and times of a pair.
    pub struct PairRow {
        /// Whether the guests' pages are placed at random.
        shuffled: bool,
        /// Share of the smaller guest's pages that share DRAM cache lines with the other guest's pages; null
        /// when shuffled.
        overlap: Option<f64>,
        /// DRAM cache hit rate of the first guest when it runs alone.
        alone_hit_rate_a: f64,
        /// DRAM cache hit rate of the second guest when it runs alone.
        alone_hit_rate_b: f64,
        /// DRAM cache hit rate of the first guest when both run.
        together_hit_rate_a: f64,
        /// DRAM cache hit rate of the second guest when both run.
        together_hit_rate_b: f64,
        /// Mean access time of the first guest when it runs alone.
        alone_ns_a: f64 ["ns"],
        /// Mean access time of the second guest when it runs alone.
        alone_ns_b: f64 ["ns"],
        /// Mean access time of the first guest when both run.
        together_ns_a: f64 ["ns"],
        /// Mean access time of the second guest when both run.
        together_ns_b: f64 ["ns"],
        /// Slowdown of the first guest: `together_ns_a` / `alone_ns_a`.
        slowdown_a: f64,
        /// Slowdown of the second guest: `together_ns_b` / `alone_ns_b`.
        slowdown_b: f64,
    }
    keys [shuffled, overlap]
    metrics [
        slowdown_a less,
        slowdown_b less,
        together_ns_a less,
        together_ns_b less,
        together_hit_rate_a more,
        together_hit_rate_b more,
    ]
    seed [seed]
}

/// A guest that is ready to run.
struct Prepared {
    pages: u64,
    /// Accessed lines of a trace, in order; `None` for random loads.
    lines: Option<Vec<u64>>,
}

impl Prepared {
    fn new(guest: &Guest<'_>, scale: f64) -> Result<Self> {
        let reader = match guest {
            Guest::Uniform(bytes) => {
                let pages = ((*bytes / PAGE) as f64 * scale).round() as u64;
                return Ok(Self { pages: pages.max(1), lines: None });
            }
            Guest::Trace(reader) => reader,
        };
        let (mut known, mut lines) = (FxHashMap::default(), Vec::new());
        let mut batches =
            reader.batches(Columns { kind: false, size: false, thread: false, instr: false });
        let mut batch = Batch::default();
        while lines.len() < MAX_ACCESSES && batches.next_into(&mut batch)? {
            for addr in &batch.addr {
                let next = known.len() as u64;
                let page = *known.entry(addr / PAGE).or_insert(next);
                lines.push(page * LINES + addr / LINE % LINES);
            }
        }
        if lines.is_empty() {
            let place = reader.path().display().to_string();
            return Err(Error::input(place, "holds no references", "capture it again"));
        }
        Ok(Self { pages: known.len() as u64, lines: Some(lines) })
    }

    /// Accesses of one round: as many as the guest has lines, or the whole trace.
    fn round(&self) -> u64 {
        self.lines.as_ref().map_or(self.pages * LINES, |lines| lines.len() as u64)
    }

    fn line(&self, step: u64, rng: &mut Rng) -> u64 {
        match &self.lines {
            Some(lines) => lines[(step % lines.len() as u64) as usize],
            None => rng.below(self.pages * LINES),
        }
    }
}

/// Memory page of each guest page, by guest.
type Places = [Vec<u64>; 2];

/// Run both guests on `memory`, which has a cache in front, from the node `from`.
///
/// Guests that do not fit in the cache side by side overlap more than requested; rows have the actual
/// overlap. In the last row, pages are shuffled.
///
/// # Errors
/// Input errors: no such cache, guests larger than the memory, a trace that cannot be read; the
/// error of `on_progress`.
pub fn pair(
    topology: &Topology,
    from: usize,
    memory: &Memory,
    guests: [&Guest<'_>; 2],
    options: &PairOptions,
    on_progress: OnProgress<'_>,
) -> Result<Vec<PairRow>> {
    let Some(front) = memory.cache else {
        let what = "has no DRAM cache in front of its memory";
        return Err(Error::input(format!("machine {}", topology.machine), what, "choose another"));
    };
    let seed = options.seed;
    let cache = options.cache_bytes.unwrap_or(topology.nodes[front].bytes) / PAGE;
    if cache == 0 {
        return Err(Error::input("--cache", "is less than a page", "give for example 96G"));
    }
    let traced = guests.iter().any(|guest| matches!(guest, Guest::Trace(_)));
    let (frames, scale) =
        if traced { (cache, 1.0) } else { (FRAMES, FRAMES as f64 / cache as f64) };
    let prepared = [Prepared::new(guests[0], scale)?, Prepared::new(guests[1], scale)?];
    // At least twice the cache, because `cache_bytes` may exceed the memory.
    let memory_pages = ((memory.free as f64 * scale) as u64).max(2 * frames);
    if prepared[0].pages + prepared[1].pages > memory_pages {
        let what = "the guests together are larger than a node's memory";
        return Err(Error::input("pair", what, "give smaller sizes"));
    }
    let random = true;
    let hit_ns = topology.view(from, front).load_ns(random);
    let miss_ns = hit_ns + topology.view(from, memory.backing).load_ns(random);
    let mut hits =
        |places: &Places, runs| hit_rates(&prepared, places, runs, frames, seed, on_progress);
    let row = |overlap: Option<f64>, alone: [f64; 2], together: [f64; 2]| {
        let ns = |rates: [f64; 2]| rates.map(|rate| rate * hit_ns + (1.0 - rate) * miss_ns);
        let (alone_ns, together_ns) = (ns(alone), ns(together));
        PairRow {
            shuffled: overlap.is_none(),
            overlap,
            alone_hit_rate_a: alone[0],
            alone_hit_rate_b: alone[1],
            together_hit_rate_a: together[0],
            together_hit_rate_b: together[1],
            alone_ns_a: alone_ns[0],
            alone_ns_b: alone_ns[1],
            together_ns_a: together_ns[0],
            together_ns_b: together_ns[1],
            slowdown_a: together_ns[0] / alone_ns[0],
            slowdown_b: together_ns[1] / alone_ns[1],
        }
    };
    let both_run = [true; 2];
    let mut rows = Vec::new();
    let (first, second) = (prepared[0].pages, prepared[1].pages);
    // Alone, contiguous pages have the same hit rate at any start.
    let mut alone_contiguous = None;
    for overlap in &options.overlaps {
        // The second overlaps the end of the first, modulo the cache size.
        let shared = (overlap * first.min(second) as f64).round() as u64;
        let start = first - shared + first.div_ceil(frames) * frames;
        let places = [(0..first).collect(), (start..start + second).collect()];
        let alone = match alone_contiguous {
            Some(known) => known,
            None => *alone_contiguous.insert(alone(&mut hits, &places)?),
        };
        let together = hits(&places, both_run)?;
        rows.push(row(Some(overlap_of(first, second, start, frames)), alone, together));
    }
    let order = Permutation::new(memory_pages, seed);
    let spread = |pages: Range<u64>| pages.map(|page| order.apply(page)).collect();
    let places = [spread(0..first), spread(first..first + second)];
    rows.push(row(None, alone(&mut hits, &places)?, hits(&places, both_run)?));
    Ok(rows)
}

/// Hit rates of each guest without the other.
fn alone(
    hits: &mut impl FnMut(&Places, [bool; 2]) -> Result<[f64; 2]>,
    places: &Places,
) -> Result<[f64; 2]> {
    Ok([hits(places, [true, false])?[0], hits(places, [false, true])?[1]])
}

/// Share of the smaller guest's pages that share cache lines with the other's.
fn overlap_of(first: u64, second: u64, start: u64, frames: u64) -> f64 {
    let mut used = vec![0u8; frames as usize];
    for page in 0..first.min(frames) {
        used[(page % frames) as usize] |= 1;
    }
    for page in 0..second.min(frames) {
        used[((start + page) % frames) as usize] |= 2;
    }
    let both = used.iter().filter(|mask| **mask == 3).count() as f64;
    both / first.min(second).min(frames) as f64
}

/// Hit rates of the guests that run, after a warm-up of as many accesses as are measured.
fn hit_rates(
    prepared: &[Prepared; 2],
    places: &Places,
    runs: [bool; 2],
    frames: u64,
    seed: u64,
    on_progress: OnProgress<'_>,
) -> Result<[f64; 2]> {
    let mut cache = MemorySideCache::new(frames * PAGE);
    let mut rngs = [Rng::stream(seed, 1), Rng::stream(seed, 2)];
    let longest = prepared[0].round().max(prepared[1].round());
    // More random loads have a smaller sampling error.
    let rounds = if prepared.iter().any(|p| p.lines.is_some()) { 1 } else { 4 };
    let steps = longest * rounds;
    let mut hits = [0u64; 2];
    let write = false;
    let address = |guest: usize, line: u64| {
        places[guest][(line / LINES) as usize] * PAGE + line % LINES * LINE
    };
    // Access every line once, because random loads may leave some out in the warm-up.
    for guest in (0..2).filter(|guest| runs[*guest] && prepared[*guest].lines.is_none()) {
        for line in 0..prepared[guest].round() {
            if line % PROGRESS_STEP == 0 {
                on_progress(line)?;
            }
            cache.access(address(guest, line), write);
        }
    }
    for step in 0..2 * steps {
        if step % PROGRESS_STEP == 0 {
            on_progress(step)?;
        }
        for guest in 0..2 {
            if runs[guest] {
                let line = prepared[guest].line(step, &mut rngs[guest]);
                let hit = cache.access(address(guest, line), write) == Outcome::Hit;
                hits[guest] += u64::from(hit && step >= steps);
            }
        }
    }
    Ok(hits.map(|count| count as f64 / steps as f64))
}
