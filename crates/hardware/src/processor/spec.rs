//! The parameters of a processor, from a machine file.

use nearfar_trace::{Error, Result};

use crate::cache::Level;
use crate::machine::{Count, Machine, Sourced, TlbLevel, remedy};
use crate::units::Time;

/// Set-associative caches of a core, including the last level, which cores may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caches {
    /// First level for instructions.
    pub instruction: Level,
    /// First level for data.
    pub data: Level,
    pub second: Level,
    pub third: Option<Level>,
    pub line_bytes: u64,
}

/// Latencies of lines, picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latencies {
    /// From the first level; included in [`Processor::instruction_ns`].
    pub first: u64,
    pub second: u64,
    /// From the third level; equals `memory` if there is none.
    pub third: u64,
    pub memory: u64,
    /// From memory, as a prefetched line of a sequential stream.
    pub streamed: u64,
}

/// Entries and ways of TLBs. The first level is modelled as fully associative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tlbs {
    /// Entries of the first level for instructions: for small pages, and for large ones if
    /// separate.
    pub instruction: (usize, Option<usize>),
    /// Entries of the first level for data.
    pub data: (usize, Option<usize>),
    /// Second level; fully associative if the ways equal the entries.
    pub second: Option<(Level, Option<Level>)>,
    /// Picoseconds that a hit in the second level adds.
    pub second_ps: u64,
    /// log2 of the bytes of contiguous small pages that can share an entry; 0 if none can.
    pub coalesced: u32,
    /// Entries of the cache of page directories (PDE cache).
    pub directories: usize,
    /// Entries of the cache of upper directories (PDPTE cache).
    pub upper_directories: usize,
}

/// The parameters of a processor that determine the time of references.
#[derive(Clone, Debug, PartialEq)]
pub struct Processor {
    /// Nanoseconds per instruction without misses.
    pub instruction_ns: f64,
    /// Instructions in flight.
    pub window: u64,
    /// Share of misses that depend on the previous miss.
    pub dependent: f64,
    pub caches: Caches,
    pub latencies: Latencies,
    pub tlbs: Tlbs,
    /// log2 of the host's page size, if the machine is virtual.
    pub host_shift: Option<u32>,
    /// Nanoseconds of a fault that maps an existing page, such as one in the page cache.
    pub map_ns: f64,
    /// Nanoseconds of a fault that allocates a zeroed page, by log2 of the page size, ascending.
    pub zero_fills: Vec<(u32, f64)>,
    /// Nanoseconds per byte for sizes that are not in `zero_fills`, in addition to `map_ns`.
    pub zero_byte_ns: f64,
}

impl Processor {
    /// Nanoseconds of a fault that allocates a zeroed page of 2^`shift` bytes.
    pub fn zero_fill_ns(&self, shift: u32) -> f64 {
        match self.zero_fills.binary_search_by_key(&shift, |(shift, _)| *shift) {
            Ok(found) => self.zero_fills[found].1,
            Err(_) => self.map_ns + self.zero_byte_ns * (1u64 << shift) as f64,
        }
    }
}

/// Reads keys and collects the missing ones.
struct Reading<'a> {
    machine: &'a Machine,
    missing: Vec<&'static str>,
}

impl Reading<'_> {
    fn need<T: Default>(&mut self, value: Option<T>, key: &'static str) -> T {
        value.unwrap_or_else(|| {
            self.missing.push(key);
            T::default()
        })
    }

    /// Sets and ways of a cache, and the picoseconds of a hit.
    fn cache(&mut self, name: &str, key: &'static str) -> (Level, u64) {
        let cache = self.machine.cache.get(name);
        cache.map(|cache| (cache.level(), cache.hit_time.value.ps())).unwrap_or_else(|| {
            self.missing.push(key);
            (Level { sets: 1, ways: 1 }, 0)
        })
    }
}

/// Sets and ways of a TLB: for small pages, and for large ones if separate.
fn tlb(level: &TlbLevel) -> (Level, Option<Level>) {
    let of = |entries: &Sourced<Count>, ways: &Option<Sourced<Count>>| {
        let ways = ways.as_ref().map_or(entries.value.0, |ways| ways.value.0);
        Level { sets: entries.value.0 / ways, ways: ways as usize }
    };
    let large = level.large_entries.as_ref().map(|entries| of(entries, &level.large_ways));
    (of(&level.entries, &level.ways), large)
}

fn first_level(level: &TlbLevel) -> (usize, Option<usize>) {
    let entries = |count: &Sourced<Count>| count.value.0 as usize;
    (entries(&level.entries), level.large_entries.as_ref().map(entries))
}

impl Machine {
    /// The processor of the machine. `nested` overrides the host's page size, in bytes.
    ///
    /// # Errors
    /// Keys are missing (all are named), or no host has the page size.
    pub fn processor(&self, nested: Option<u64>) -> Result<Processor> {
        if let Some(size) = nested
            && ![1 << 12, 1 << 21, 1 << 30].contains(&size)
        {
            let what = format!("{size} bytes is not a host page size");
            return Err(Error::input("--nested", what, "give 4K, 2M or 1G"));
        }
        let mut reading = Reading { machine: self, missing: Vec::new() };
        let cpu = self.cpu.as_ref();
        let clock = reading.need(cpu.map(|cpu| cpu.clock.value.hz()), "cpu.clock");
        let ipc = cpu.and_then(|cpu| cpu.ipc.as_ref()).map(|ipc| ipc.value.0);
        let ipc = reading.need(ipc, "cpu.ipc");
        let window = cpu.and_then(|cpu| cpu.reorder_window.as_ref()).map(|count| count.value.0);
        let window = reading.need(window, "cpu.reorder_window");
        let dependent = cpu.and_then(|cpu| cpu.dependent_misses.as_ref());
        let dependent = reading.need(dependent.map(|part| part.value.0), "cpu.dependent_misses");
        let (data, first) = reading.cache("l1d", "cache.l1d");
        let instruction = match self.cache.contains_key("l1i") {
            true => reading.cache("l1i", "cache.l1i").0,
            false => data,
        };
        let (second, second_ps) = reading.cache("l2", "cache.l2");
        let third = self.cache.contains_key("l3").then(|| reading.cache("l3", "cache.l3"));
        let line_bytes = self.caches().map_or(64, |caches| caches.line_bytes);
        let dram = self.dram().ok();
        let memory = reading.need(dram.map(|node| node.local.read_latency.value.ps()), "node.dram");
        let bandwidth = dram.and_then(|node| {
            let local = &node.local;
            local.thread_read_bandwidth.as_ref().or(local.read_bandwidth.as_ref())
        });
        let streamed = bandwidth.map(|rate| (rate.value.ns_for(line_bytes) * 1e3) as u64);
        let streamed = reading.need(streamed, "node.dram.local.thread_read_bandwidth");
        let tlbs = self.tlb.as_ref();
        let data_tlb = reading.need(tlbs.map(|tlbs| first_level(&tlbs.first)), "tlb.first");
        let walk = tlbs.and_then(|tlbs| tlbs.walk.as_ref());
        let directories = walk.map(|walk| walk.directories.value.0 as usize);
        let directories = reading.need(directories, "tlb.walk");
        let cost = self.cost.as_ref();
        let page_fault = cost.and_then(|cost| cost.page_fault.as_ref());
        let map_ns = reading.need(page_fault.map(|time| time.value.ns()), "cost.page_fault");
        let zeroing = cost.and_then(|cost| cost.zeroing.as_ref());
        let zero_byte_ns = reading.need(zeroing.map(|rate| rate.value.ns_for(1)), "cost.zeroing");
        if !reading.missing.is_empty() {
            let keys = reading.missing.join(", ");
            return Err(Error::input(
                format!("machine {}", self.name),
                format!("has no {keys}, required to compute times of this machine"),
                remedy(&self.name, "add them", |machine| {
                    machine.tlb.as_ref().is_some_and(|tlb| tlb.walk.is_some())
                }) + "; or take the times of the papers with --view paper",
            ));
        }
        let shift = |bytes: u64| bytes.max(1).ilog2();
        let mut zero_fills: Vec<(u32, f64)> = self
            .fault
            .iter()
            .filter_map(|(name, fault)| {
                let size = crate::units::Size::parse(name).ok()?;
                // `again` is for reused memory; `first` is for memory never used before.
                let time: &Time = &fault.again.value;
                Some((shift(size.bytes()), time.ns()))
            })
            .collect();
        zero_fills.sort_by_key(|(shift, _)| *shift);
        let host_page =
            walk.and_then(|walk| walk.host_page.as_ref()).map(|size| size.value.bytes());
        let third_ps = third.map_or(memory, |(_, ps)| ps);
        Ok(Processor {
            instruction_ns: 1e9 / (clock as f64 * ipc),
            window,
            dependent,
            caches: Caches { instruction, data, second, third: third.map(|l| l.0), line_bytes },
            latencies: Latencies { first, second: second_ps, third: third_ps, memory, streamed },
            tlbs: Tlbs {
                instruction: tlbs
                    .and_then(|tlbs| tlbs.instruction.as_ref())
                    .map_or(data_tlb, first_level),
                data: data_tlb,
                second: tlbs.and_then(|tlbs| tlbs.second.as_ref()).map(tlb),
                second_ps: tlbs
                    .and_then(|tlbs| tlbs.second.as_ref())
                    .map_or(0, |level| level.hit_time.value.ps()),
                coalesced: tlbs
                    .and_then(|tlbs| tlbs.coalesced.as_ref())
                    .map_or(0, |size| shift(size.value.bytes())),
                directories,
                upper_directories: walk.map_or(1, |walk| walk.upper_directories.value.0 as usize),
            },
            host_shift: nested.or(host_page).map(shift),
            map_ns,
            zero_fills,
            zero_byte_ns,
        })
    }
}
