//! Average latency and bandwidth of a program under a placement mode, and the shares of its memory
//! accesses on DRAM and on other memory, local and remote.
//!
//! A [`Stream`] is counted in closed form ([`closed_form`] in memory mode, where DRAM caches other memory),
//! a trace access by access, after the CPU caches of the machine and, in memory mode, through the simulated
//! DRAM cache. The time is that of the slowest of: cores (each access takes one latency; as many are in
//! flight as all threads have fill buffers), each medium (bytes read and written at its bandwidth), and the
//! links between sockets. At the first touch of a page, the stores that clear it go through the DRAM cache.

use nearfar_hardware::Topology;
use nearfar_hardware::cache::{Filter, Geometry};
use nearfar_hardware::machine::NodeKind;
use nearfar_hardware::memory_side_cache::{MemorySideCache, Outcome, closed_form};
use nearfar_hardware::node::{LINE, PAGE, Pattern, View};
use nearfar_kernel::placement::{Allocator, Group, Memory, Mode, Placement, place, turn};
use nearfar_trace::generate::permutation::Permutation;
use nearfar_trace::{Batch, Columns, Kind, Reader, Result, last_byte};
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::alloc::{AllocOptions, check};

/// References to every line of `bytes` equally often; counted in closed form, not generated.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// Bytes of the working set.
    pub bytes: u64,
    /// In random order; otherwise in repeated sequential sweeps.
    pub random: bool,
    /// Share of stores, which bypass the CPU caches.
    pub writes: f64,
}

/// The references of a run.
pub enum Load<'a> {
    /// A recorded program, and the CPU caches that filter it, if any.
    Trace(&'a Reader, Option<Geometry>),
    Stream(Stream),
}

nearfar_schema::columns! {
    /// A node in use.
    pub struct NodeUse {
        /// Index of the node in the machine's topology.
        node: usize,
        /// Kind and number of the node, such as `pmem4`.
        label: String,
        /// Bytes read from the node's memory.
        read_bytes: f64 ["bytes"],
        /// Bytes written to the node's memory.
        written_bytes: f64 ["bytes"],
        /// Share of the run during which the node's memory is busy.
        busy: f64,
    }
    keys [node]
    metrics [busy less, read_bytes less, written_bytes less]
    seed []
}

nearfar_schema::columns! {
    /// Performance of a program under a mode.
    #[derive(Default)]
    pub struct RunRow {
        /// Mode of placement.
        mode: &'static str,
        /// Bytes of the pages touched.
        footprint_bytes: u64 ["bytes"],
        /// Whether all pages fit in memory; if false, all columns but `mode` and `footprint_bytes`
        /// are 0 or null.
        possible: bool,
        /// Memory accesses, in lines. A stream has 1, and its bytes in `nodes` are per access.
        accesses: f64 ["lines"],
        /// Share of accesses that are stores.
        store_share: f64,
        /// Share of accesses to DRAM of the socket whose cores run the work.
        local_dram_share: f64 as "DRAM near",
        /// Share of accesses to DRAM of other sockets.
        remote_dram_share: f64 as "DRAM far",
        /// Share of accesses to persistent or CXL memory of the socket whose cores run the work.
        local_far_share: f64 as "other near",
        /// Share of accesses to persistent or CXL memory of other sockets.
        remote_far_share: f64 as "other far",
        /// Hit rate of memory mode's DRAM cache; null in other modes.
        cache_hit_rate: Option<f64> as "cache hits",
        /// Average time of an access on an idle machine; null if not possible.
        latency_ns: Option<f64> ["ns"],
        /// Bandwidth of all threads together; null if not possible.
        gb_per_second: Option<f64> ["GB/s"] as "GB/s",
        /// What limits bandwidth: `cores`, a node's label or `link` (between sockets); null if not possible.
        bound_by: Option<String>,
    }
    keys [mode, footprint_bytes]
    metrics [latency_ns less, gb_per_second more, cache_hit_rate more]
    seed [seed]
}

/// The result of a run, and the media that it used.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ran {
    #[serde(flatten)]
    pub row: RunRow,
    /// Media in use.
    pub nodes: Vec<NodeUse>,
}

/// Counts of accesses to one memory, indexed by whether they store, whether they are random, and
/// [`OUTCOMES`]. Without a cache in front, all accesses count as hits.
#[derive(Clone, Debug, Default)]
struct Uses([[[f64; 3]; 2]; 2]);

const OUTCOMES: [Outcome; 3] = [Outcome::Hit, Outcome::CleanMiss, Outcome::DirtyMiss];

/// Run `load` under `mode`. With `shuffle` (a seed), pages lie at random in each memory, as with
/// `page_alloc.shuffle=1` or after long use; otherwise they are contiguous.
///
/// # Errors
/// As for an allocation; a trace that cannot be read; the error of `on_progress`.
pub fn run(
    topology: &Topology,
    mode: &dyn Mode,
    load: &Load<'_>,
    options: &AllocOptions,
    shuffle: Option<u64>,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Ran> {
    let mut memories = mode.memories(topology)?;
    check(topology, &memories, options)?;
    let frames: Vec<u64> = memories.iter().map(|memory| memory.free).collect();
    let groups = mode.order(topology, &memories, options.from, &options.policy);
    let wanted = match load {
        // All of memory: the trace's number of pages is not known yet.
        Load::Trace(..) => frames.iter().sum(),
        Load::Stream(stream) => stream.bytes.div_ceil(PAGE),
    };
    let placement = place(&mut memories, &groups, wanted, Allocator::User);
    let (uses, pages) = match load {
        Load::Stream(stream) => {
            (stream_uses(topology, &memories, &placement, stream, shuffle.is_some()), wanted)
        }
        Load::Trace(reader, caches) => {
            let interleaved = groups.first().filter(|_| mode.by_number());
            let mut walk =
                Walk::new(topology, &memories, &placement, &frames, interleaved, shuffle);
            walk.trace(reader, caches.as_ref(), on_progress)?;
            let pages = walk.pages.len() as u64;
            (if walk.missing { None } else { Some(walk.uses) }, pages)
        }
    };
    let row = RunRow {
        mode: mode.name(),
        footprint_bytes: pages * PAGE,
        possible: uses.is_some(),
        ..RunRow::default()
    };
    Ok(match uses {
        Some(uses) => finish_row(topology, &memories, &uses, options, row),
        None => Ran { row, nodes: Vec::new() },
    })
}

/// Shares of a stream's accesses; `None` if the stream does not fit in memory.
fn stream_uses(
    topology: &Topology,
    memories: &[Memory],
    placement: &Placement,
    stream: &Stream,
    shuffled: bool,
) -> Option<Vec<Uses>> {
    if placement.missing > 0 {
        return None;
    }
    let pages = placement.pages(memories.len());
    let total: u64 = pages.iter().sum();
    let form = match (stream.random, shuffled) {
        (true, false) => closed_form::uniform_contiguous,
        (true, true) => closed_form::uniform_shuffled,
        (false, false) => closed_form::cyclic_contiguous,
        (false, true) => closed_form::cyclic_shuffled,
    };
    let use_of = |(memory, pages): (&Memory, u64)| {
        let mut counts = Uses::default();
        let share = pages as f64 / total.max(1) as f64;
        let hit = match memory.cache {
            Some(_) if pages == 0 => 1.0,
            Some(cache) => form((pages * PAGE) as f64 / topology.nodes[cache].bytes as f64),
            None => 1.0,
        };
        // The number of accesses to a line while cached has a geometric distribution; the line is
        // evicted clean if all are loads.
        let loads = 1.0 - stream.writes;
        let clean = loads * (1.0 - hit) / (1.0 - loads * hit).max(f64::MIN_POSITIVE);
        for (write, part) in [(0, loads), (1, stream.writes)] {
            let miss = share * part * (1.0 - hit);
            counts.0[write][usize::from(stream.random)] =
                [share * part * hit, miss * clean, miss * (1.0 - clean)];
        }
        counts
    };
    Some(memories.iter().zip(pages).map(use_of).collect())
}

/// Applies a trace to placement and to memory mode's caches.
struct Walk<'a> {
    placement: &'a Placement,
    /// Number of free frames of each memory before the trace.
    frames: &'a [u64],
    /// The group that is interleaved by page number; `None` if the mode places by first touch.
    interleaved: Option<&'a Group>,
    /// Memory and frame of each touched page, by page number.
    pages: FxHashMap<u64, (u32, u64)>,
    /// Number of used frames of each memory.
    taken: Vec<u64>,
    /// Shuffled order of the frames of each memory.
    order: Vec<Option<Permutation>>,
    caches: Vec<Option<MemorySideCache>>,
    /// The last line accessed by each thread.
    last: FxHashMap<u32, u64>,
    uses: Vec<Uses>,
    /// Some page found no room in any memory.
    missing: bool,
}

impl<'a> Walk<'a> {
    fn new(
        topology: &Topology,
        memories: &[Memory],
        placement: &'a Placement,
        frames: &'a [u64],
        interleaved: Option<&'a Group>,
        shuffle: Option<u64>,
    ) -> Self {
        let order = |count: &u64| shuffle.map(|seed| Permutation::new((*count).max(1), seed));
        let cache = |memory: &Memory| {
            memory.cache.map(|node| MemorySideCache::new(topology.nodes[node].bytes))
        };
        Self {
            placement,
            frames,
            interleaved,
            pages: FxHashMap::default(),
            taken: vec![0; memories.len()],
            order: frames.iter().map(order).collect(),
            caches: memories.iter().map(cache).collect(),
            last: FxHashMap::default(),
            uses: vec![Uses::default(); memories.len()],
            missing: false,
        }
    }

    fn trace(
        &mut self,
        reader: &Reader,
        caches: Option<&Geometry>,
        on_progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let write_backs = true;
        let mut filter = caches.map(|geometry| Filter::new(geometry, write_backs));
        let mut batches = reader.batches(Columns::ALL);
        let (mut batch, mut missed, mut done) = (Batch::default(), Batch::default(), 0u64);
        while batches.next_into(&mut batch)? {
            done += batch.len() as u64;
            let accesses = match &mut filter {
                Some(filter) => {
                    missed.clear();
                    filter.records(&batch, 0..batch.len(), &mut missed);
                    &missed
                }
                None => &batch,
            };
            for record in accesses.iter() {
                let last = last_byte(record.addr, record.size) / LINE;
                for line in record.addr / LINE..=last {
                    self.line(line, record.kind, record.thread);
                }
            }
            on_progress(done)?;
        }
        Ok(())
    }

    fn line(&mut self, line: u64, kind: Kind, thread: u32) {
        let before = self.last.insert(thread, line);
        let random = before.is_none_or(|before| line.wrapping_sub(before) > 1);
        let (page, within) = (line / (PAGE / LINE), line % (PAGE / LINE));
        let known = self.pages.get(&page).copied();
        let Some((memory, frame)) = known.or_else(|| self.first_touch(page)) else {
            self.missing = true;
            return;
        };
        let memory = memory as usize;
        let outcome = match &mut self.caches[memory] {
            Some(cache) => cache.access(frame * PAGE + within * LINE, kind.writes()),
            None => Outcome::Hit,
        };
        let slot = OUTCOMES.iter().position(|o| *o == outcome).unwrap_or(0);
        self.uses[memory].0[usize::from(kind.writes())][usize::from(random)][slot] += 1.0;
    }

    /// Give a page its frame and clear it.
    fn first_touch(&mut self, page: u64) -> Option<(u32, u64)> {
        let memory = match self.interleaved {
            Some(group) => {
                let has_room = |memory: &usize| self.taken[*memory] < self.frames[*memory];
                turn(group, page)?.route.iter().copied().find(has_room)?
            }
            None => self.placement.memory_of(self.pages.len() as u64)?,
        };
        let next = self.taken[memory];
        self.taken[memory] += 1;
        let frame = self.order[memory].as_ref().map_or(next, |order| order.apply(next));
        if let Some(cache) = &mut self.caches[memory] {
            for line in 0..PAGE / LINE {
                let write = true;
                cache.access(frame * PAGE + line * LINE, write);
            }
        }
        self.pages.insert(page, (memory as u32, frame));
        Some((memory as u32, frame))
    }
}

/// Bytes moved on one node, indexed by whether they are stored and whether access is random.
type Moved = [[f64; 2]; 2];

/// Complete `row` from the counted accesses.
fn finish_row(
    topology: &Topology,
    memories: &[Memory],
    uses: &[Uses],
    options: &AllocOptions,
    mut row: RunRow,
) -> Ran {
    let mut moved: Vec<Moved> = vec![Moved::default(); topology.nodes.len()];
    let (mut latency, mut hits, mut cached) = (0.0, 0.0, 0.0);
    let (mut link_ns, mut crossing) = (0.0f64, [0.0f64; 2]);
    for (memory, counts) in memories.iter().zip(uses) {
        let node = &topology.nodes[memory.backing];
        let back = topology.view(options.from, memory.backing);
        let remote = !topology.same_socket(memory.backing, options.from);
        let (mut sum, mut bytes) = (0.0, [0.0; 2]);
        for write in [false, true] {
            for random in [false, true] {
                for (slot, outcome) in OUTCOMES.into_iter().enumerate() {
                    let count = counts.0[usize::from(write)][usize::from(random)][slot];
                    if count == 0.0 {
                        continue;
                    }
                    let time = |view: &View| view.load_ns(random);
                    sum += count;
                    bytes[usize::from(write)] += count * LINE as f64;
                    row.store_share += if write { count } else { 0.0 };
                    let mut add = |node: usize, write: bool, lines: u64| {
                        moved[node][usize::from(write)][usize::from(random)] +=
                            count * (lines * LINE) as f64;
                    };
                    match memory.cache {
                        None => {
                            add(memory.backing, write, 1);
                            latency += count * time(back);
                        }
                        Some(front) => {
                            let traffic = outcome.traffic(write);
                            add(front, false, traffic.dram_reads);
                            add(front, true, traffic.dram_writes);
                            add(memory.backing, false, traffic.far_reads);
                            add(memory.backing, true, traffic.far_writes);
                            let hit = outcome == Outcome::Hit;
                            cached += count;
                            hits += if hit { count } else { 0.0 };
                            latency += count * time(topology.view(options.from, front));
                            latency += if hit { 0.0 } else { count * time(back) };
                        }
                    }
                }
            }
        }
        row.accesses += sum;
        *match (node.kind == NodeKind::Dram, remote) {
            (true, false) => &mut row.local_dram_share,
            (true, true) => &mut row.remote_dram_share,
            (false, false) => &mut row.local_far_share,
            (false, true) => &mut row.remote_far_share,
        } += sum;
        if remote && sum > 0.0 {
            let seen = memory.cache.map_or(back, |front| topology.view(options.from, front));
            let at = |write| seen.bandwidth(Pattern { write, random: false });
            let unmixed_ns = bytes[0] / at(false) + bytes[1] / at(true);
            let mixed = seen.mixed.filter(|_| bytes[0] > 0.0 && bytes[1] > 0.0);
            let memory_ns = mixed.map_or(unmixed_ns, |mixed| (bytes[0] + bytes[1]) / mixed);
            link_ns = link_ns.max(memory_ns);
            crossing[0] += bytes[0];
            crossing[1] += bytes[1];
        }
    }
    if row.accesses == 0.0 {
        return Ran { row, nodes: Vec::new() };
    }
    // The link's bandwidth is per direction: loaded and stored data cross in opposite ones.
    if let Some(link) = topology.link {
        link_ns = link_ns.max(crossing[0].max(crossing[1]) / link);
    }
    let core_ns = latency / (topology.fill_buffers * options.threads) as f64;
    let mut slowest = (core_ns, "cores".to_owned());
    if link_ns > slowest.0 {
        slowest = (link_ns, "link".to_owned());
    }
    let mut busy = vec![0.0; topology.nodes.len()];
    for (node, moved) in moved.iter().enumerate() {
        for write in [false, true] {
            for random in [false, true] {
                let rate = topology.nodes[node].local.bandwidth(Pattern { write, random });
                busy[node] += moved[usize::from(write)][usize::from(random)] / rate;
            }
        }
        if busy[node] > slowest.0 {
            slowest = (busy[node], topology.label(node));
        }
    }
    let total = row.accesses;
    for share in [
        &mut row.store_share,
        &mut row.local_dram_share,
        &mut row.remote_dram_share,
        &mut row.local_far_share,
        &mut row.remote_far_share,
    ] {
        *share /= total;
    }
    row.cache_hit_rate = (cached > 0.0).then(|| hits / cached);
    row.latency_ns = Some(latency / total);
    row.gb_per_second = Some(total * LINE as f64 / slowest.0);
    let nodes = (0..moved.len())
        .filter(|node| busy[*node] > 0.0)
        .map(|node| NodeUse {
            node,
            label: topology.label(node),
            read_bytes: moved[node][0].iter().sum(),
            written_bytes: moved[node][1].iter().sum(),
            busy: busy[node] / slowest.0,
        })
        .collect();
    row.bound_by = Some(slowest.1);
    Ran { row, nodes }
}
