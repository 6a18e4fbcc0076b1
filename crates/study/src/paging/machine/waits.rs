//! TLBs, page walks and waiting times at one page size.

mod course;

use nearfar_hardware::Storage;
use nearfar_hardware::processor::{
    Ages, Answer, Entry, Found, Line, Overlap, Processor, Translation, small_lines,
};
use nearfar_hardware::table::{grow, prefetch};
use nearfar_kernel::readahead::Fetch;
use nearfar_kernel::thp::ORDERS;
use nearfar_trace::hash::PageMap;

use super::areas::Areas;
use super::files::Files;
use super::pages::{Events, Faults, Pages, Settings};
use super::surroundings::Changed;
use super::touches::{AGED, Chunk, TlbOp, Touch};
use super::{SMALL, Time};
use crate::lifetimes::Change;
use course::Clock;
pub use course::Moment;

/// How many touches ahead page state is prefetched.
const AHEAD: usize = 16;

/// Waiting times of threads in picoseconds, before overlap: as if no two waits overlapped.
#[derive(Clone, Copy, Debug, Default)]
struct Terms {
    tlb: u64,
    walk: u64,
    cache: u64,
    dram: u64,
}

/// Costs so far, or of one reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    pub walks: u64,
    /// First-level TLB misses that hit the second level.
    pub second_hits: u64,
    /// Faults, except those that wait for a file.
    pub faults: u64,
    /// Time of these faults, in picoseconds.
    pub fault_ps: u64,
    /// Time of walks before overlap, in picoseconds.
    pub walk_ps: u64,
    /// Time of the second TLB level before overlap, in picoseconds.
    pub tlb_ps: u64,
}

impl Costs {
    pub fn since(&self, before: &Self) -> Self {
        Self {
            walks: self.walks - before.walks,
            second_hits: self.second_hits - before.second_hits,
            faults: self.faults - before.faults,
            fault_ps: self.fault_ps - before.fault_ps,
            walk_ps: self.walk_ps - before.walk_ps,
            tlb_ps: self.tlb_ps - before.tlb_ps,
        }
    }
}

/// Observes the processing of a chunk.
pub trait Watch {
    /// Number of the area (a named part of the address space) of a new block, if costs are counted by area.
    fn area(&mut self, _change: &Change) -> u32 {
        0
    }
    /// Blocks changed; `bytes` is the change of private memory.
    fn changed(&mut self, _change: &Change, _bytes: i64) {}
    /// The touch at this index was processed; `costs` returns the costs of all touches so far.
    fn touched(&mut self, _index: usize, _costs: impl FnOnce() -> Costs) {}
}

impl Watch for () {}

struct Thread {
    translation: Translation,
    overlap: Overlap,
    /// Instructions up to the last update.
    instructions: u64,
    /// Time of its faults, in picoseconds.
    fault_ps: u64,
    /// File reads, by storage.
    files: Vec<Files>,
}

impl Thread {
    /// Time of the thread, without waits for files.
    fn ns(&self, processor: &Processor) -> f64 {
        self.instructions as f64 * processor.instruction_ns
            + self.overlap.ns(processor.dependent)
            + self.fault_ps as f64 / 1e3
    }
}

/// Locates cache lines of page tables.
pub trait Lines {
    /// The cache level of a line that this touch uses.
    fn found(&mut self, line: Line, touch: &Touch) -> Found;
}

/// Estimates the cache level of a line from its last use and the ages at which caches evict lines.
#[derive(Default)]
struct Aged {
    /// Last use of lines with entries of 4 KiB pages, in the guest's and the host's table, by line
    /// number; 0 = never.
    small: [Vec<u64>; 2],
    /// Last use of other lines.
    others: PageMap<u64>,
    ages: Ages,
}

impl Lines for Aged {
    fn found(&mut self, line: Line, touch: &Touch) -> Found {
        let table = small_lines(touch.number << SMALL).iter().position(|&small| small == line);
        let used = match table {
            Some(table) => {
                let small = &mut self.small[table];
                grow(small, touch.line as usize + 1, 0);
                &mut small[touch.line as usize]
            }
            None => self.others.entry(line).or_default(),
        };
        match std::mem::replace(used, touch.now) {
            0 => Found::Memory,
            before => self.ages.found(touch.now - before),
        }
    }
}

/// One page size, or one setting of huge pages.
pub struct PageSize<'a> {
    processor: &'a Processor,
    storages: &'a [Storage],
    shift: u32,
    pages: Pages,
    /// TLB entry of pages of each order.
    entries: [Entry; ORDERS],
    /// The course of the run (memory over time), if it is recorded. khugepaged runs at each moment.
    course: Option<Vec<Moment>>,
    clock: Clock,
    /// Costs by area, if they are counted.
    areas: Option<Areas>,
    threads: Vec<Thread>,
    aged: Aged,
    terms: Terms,
    second_hits: u64,
    walks: u64,
    file_requests: u64,
    /// Picoseconds of a fault that maps an existing page.
    map_ps: u64,
    /// Picoseconds of a fault that allocates a page, by its order.
    zero_fill_ps: [u64; ORDERS],
    /// Picoseconds of a fault that reads from swap, if memory is limited.
    swap_ps: Option<u64>,
}

impl<'a> PageSize<'a> {
    /// One page size everywhere.
    pub fn new(shift: u32, processor: &'a Processor, storages: &'a [Storage]) -> Self {
        Self { shift, ..Self::with_settings(&Settings::only(shift), processor, storages) }
    }

    /// Pages under settings of the kernel.
    pub fn with_settings(
        settings: &Settings,
        processor: &'a Processor,
        storages: &'a [Storage],
    ) -> Self {
        let entry = |shift| Translation::entry(&processor.tlbs, processor.host_shift, shift);
        let ps = |ns: f64| (ns * 1e3).round() as u64;
        Self {
            processor,
            storages,
            shift: SMALL,
            pages: Pages::new(settings),
            entries: std::array::from_fn(|order| entry(SMALL + order as u32)),
            course: None,
            clock: Clock::default(),
            areas: None,
            threads: Vec::new(),
            aged: Aged::default(),
            terms: Terms::default(),
            second_hits: 0,
            walks: 0,
            file_requests: 0,
            map_ps: ps(processor.map_ns),
            zero_fill_ps: std::array::from_fn(|order| {
                ps(processor.zero_fill_ns(SMALL + order as u32))
            }),
            swap_ps: None,
        }
    }

    /// Charge swap-ins, because memory is limited: swap reads a page of 4 KiB in `ns`.
    pub fn swapping(mut self, ns: f64) -> Self {
        self.swap_ps = Some(self.map_ps + (ns * 1e3).round() as u64);
        self
    }

    pub fn by_area(mut self) -> Self {
        self.areas = Some(Areas::default());
        self
    }

    /// Record the course of the run.
    pub fn recorded(mut self) -> Self {
        self.course = Some(Vec::new());
        self
    }

    pub fn chunk(&mut self, chunk: &Chunk, watch: &mut impl Watch) {
        let mut aged = std::mem::take(&mut self.aged);
        // The number of changes that were applied.
        let mut applied = 0;
        let mut fetches = chunk.fetches.iter().peekable();
        let mut idle = chunk.idle.iter().peekable();
        for (index, touch) in chunk.touches.iter().enumerate() {
            while let Some((_, until, idle)) = idle.next_if(|(before, ..)| *before <= index) {
                self.changes(&chunk.changes[applied..*until], Some(touch.thread), watch);
                applied = *until;
                self.idle(*idle);
            }
            let later = &chunk.changes[applied..];
            let due = later.iter().take_while(|(before, _)| *before <= index).count();
            self.changes(&later[..due], Some(touch.thread), watch);
            applied += due;
            while let Some((_, fetch)) = fetches.next_if(|(before, _)| *before <= index) {
                self.fetch(*fetch, touch.thread, touch.instructions);
            }
            if index % AGED == 0 {
                aged.ages = chunk.ages[index / AGED];
                self.thread(touch.thread).instructions = touch.instructions;
                self.moment();
            }
            if let Some(soon) =
                chunk.touches.get(index + AHEAD).filter(|soon| soon.tlb != TlbOp::None)
            {
                self.pages.prefetch(soon.block);
                aged.small.iter().for_each(|small| prefetch(small, soon.line as usize));
            }
            self.touch(touch, &mut aged);
            watch.touched(index, || self.costs());
        }
        for (_, until, idle) in idle {
            self.changes(&chunk.changes[applied..*until], None, watch);
            applied = *until;
            self.idle(*idle);
        }
        self.changes(&chunk.changes[applied..], None, watch);
        self.aged = aged;
    }

    /// All faults, events of huge pages and swap, and peak mapped private memory in bytes.
    pub fn counts(&self) -> (Faults, Events, u64) {
        (self.pages.faults, self.pages.events, self.pages.peak_mapped << SMALL)
    }

    pub fn shift(&self) -> u32 {
        self.shift
    }

    fn changes(
        &mut self,
        changes: &[(usize, Changed)],
        thread: Option<u32>,
        watch: &mut impl Watch,
    ) {
        changes.iter().for_each(|(_, change)| self.watched_change(change, thread, watch));
    }

    fn watched_change(&mut self, change: &Changed, thread: Option<u32>, watch: &mut impl Watch) {
        let (before, faults) = (self.pages.resident(), self.pages.faults);
        if self.areas.is_some() {
            self.pages.area = watch.area(&change.0);
        }
        self.change(change, thread);
        // Allocating a large page takes long and adds much memory: record a moment.
        if self.pages.faults.pages[1..] != faults.pages[1..] {
            self.moment();
        }
        watch.changed(&change.0, (self.pages.resident() as i64 - before as i64) << SMALL);
    }

    pub fn change(&mut self, change: &Changed, thread: Option<u32>) {
        let before = (self.pages.faults, self.pages.fills);
        self.pages.apply(change);
        self.charge(before, thread);
    }

    /// Charge the faults since these counts to a thread, and remove translations.
    fn charge(&mut self, (faults, fills): (Faults, Faults), thread: Option<u32>) {
        if self.pages.faults != faults {
            let more = self.pages.faults.since(faults);
            let ps = self.fault_ps(more);
            if let Some(thread) = thread {
                self.thread(thread).fault_ps += ps;
            }
            let fills = self.pages.fills.since(fills);
            // Faults that fill memory: they raise its peak, or map existing pages.
            let start_ps = self.fault_ps(fills) + more.maps * self.map_ps;
            if let Some(areas) = &mut self.areas {
                let area = areas.of(self.pages.area);
                area.fault_ps += ps;
                area.start_ps += start_ps;
            }
        }
        self.shoot_down();
    }

    fn shoot_down(&mut self) {
        for (number, order) in self.pages.removed() {
            let entry = self.entries[usize::from(order)];
            for thread in &mut self.threads {
                thread.translation.remove(number << SMALL, entry);
            }
        }
    }

    fn thread(&mut self, index: u32) -> &mut Thread {
        while self.threads.len() <= index as usize {
            self.threads.push(Thread {
                translation: Translation::new(&self.processor.tlbs, self.processor.host_shift),
                overlap: Overlap::default(),
                instructions: 0,
                fault_ps: 0,
                files: vec![Files::default(); self.storages.len()],
            });
        }
        &mut self.threads[index as usize]
    }

    /// A thread reads pages of a file, after `instructions` of its instructions.
    pub fn fetch(&mut self, fetch: Fetch, thread: u32, instructions: u64) {
        let (processor, storages) = (self.processor, self.storages);
        let requests = u64::from(fetch.submitted.is_some());
        let request_ps = requests * self.map_ps;
        self.file_requests += requests;
        let thread = self.thread(thread);
        thread.fault_ps += request_ps;
        thread.instructions = instructions;
        let now_ns = thread.ns(processor);
        for (files, storage) in thread.files.iter_mut().zip(storages) {
            files.fetch(fetch, now_ns, storage);
        }
    }

    pub fn touch(&mut self, touch: &Touch, table_lines: &mut impl Lines) {
        let Processor { tlbs, latencies, window, .. } = self.processor;
        self.thread(touch.thread);
        if self.swap_ps.is_some() {
            let before = (self.pages.faults, self.pages.fills);
            if self.pages.reference(touch) {
                self.charge(before, Some(touch.thread));
            }
        }
        let mut ps = match touch.found {
            Found::First => 0,
            // Stores wait in the store buffer; only memory bandwidth delays the thread.
            Found::Second | Found::Third if touch.write => 0,
            Found::Streamed | Found::Memory if touch.write => latencies.streamed,
            // The time of instructions includes the latency of the first level.
            Found::Second => latencies.second.saturating_sub(latencies.first),
            Found::Third => latencies.third.saturating_sub(latencies.first),
            Found::Streamed => latencies.streamed,
            Found::Memory => latencies.memory,
        };
        match touch.found {
            Found::First | Found::Second | Found::Third => self.terms.cache += ps,
            Found::Streamed | Found::Memory => self.terms.dram += ps,
        }
        let thread = &mut self.threads[touch.thread as usize];
        // Traces without counts of parallel threads (older ones) update this only every [`AGED`]
        // touches, in `chunk`, so that their results stay the same.
        if self.clock.is_measured() {
            thread.instructions = touch.instructions;
        }
        if touch.tlb != TlbOp::None {
            let entry = self.entries[self.pages.order(touch.block)];
            let addr = touch.number << SMALL;
            if touch.tlb == TlbOp::Leave {
                return thread.translation.leave(addr, entry, touch.fetch);
            }
            let answer = thread.translation.enter(addr, entry, touch.fetch);
            if touch.tlb == TlbOp::Once {
                thread.translation.leave(addr, entry, touch.fetch);
            }
            match answer {
                Answer::First => {}
                Answer::Second => {
                    self.second_hits += 1;
                    self.terms.tlb += tlbs.second_ps;
                    ps += tlbs.second_ps;
                }
                Answer::Walk(count, lines) => {
                    self.walks += 1;
                    let walk: u64 = lines[..count]
                        .iter()
                        .map(|&line| match table_lines.found(line, touch) {
                            Found::First => latencies.first,
                            Found::Second => latencies.second,
                            Found::Third => latencies.third,
                            Found::Streamed | Found::Memory => latencies.memory,
                        })
                        .sum();
                    self.terms.tlb += tlbs.second_ps;
                    self.terms.walk += walk;
                    ps += tlbs.second_ps + walk;
                }
            }
        }
        if let Some(areas) = &mut self.areas {
            areas.of(self.pages.area_of(touch.block)).wait_ps += ps;
        }
        if ps > 0 {
            thread.overlap.miss(touch.instructions, ps, *window);
        }
    }

    /// The costs so far, without faults on files.
    fn costs(&self) -> Costs {
        let faults = self.pages.faults;
        Costs {
            walks: self.walks,
            second_hits: self.second_hits,
            faults: faults.count(),
            fault_ps: self.fault_ps(faults),
            walk_ps: self.terms.walk,
            tlb_ps: self.terms.tlb,
        }
    }

    fn fault_ps(&self, Faults { maps, pages, swap_ins }: Faults) -> u64 {
        let allocated = pages.iter().zip(self.zero_fill_ps).map(|(pages, ps)| pages * ps);
        let swapped = swap_ins * self.swap_ps.unwrap_or_default();
        maps * self.map_ps + allocated.sum::<u64>() + swapped
    }

    /// Waiting time after overlap in nanoseconds, for `ps` picoseconds before overlap.
    pub fn waited_ns(&self, ps: u64) -> f64 {
        let dependent = self.processor.dependent;
        let waited: f64 = self.threads.iter().map(|thread| thread.overlap.ns(dependent)).sum();
        let Terms { tlb, walk, cache, dram } = self.terms;
        let all = tlb + walk + cache + dram;
        if all == 0 { 0.0 } else { waited * (ps as f64 / all as f64) }
    }

    /// Take the costs by area, if they were counted.
    pub fn areas(&mut self) -> Option<Areas> {
        self.areas.take()
    }

    /// The times, for `instructions` of all threads and `maps` faults on files.
    pub fn time(self, (instructions, maps): (u64, u64)) -> Time {
        let Processor { instruction_ns, map_ns, .. } = *self.processor;
        let Terms { tlb, walk, cache, dram } = self.terms;
        let part = |ps: u64| self.waited_ns(ps);
        let fault_ns = |faults: Faults, maps: u64| {
            let orders = faults.pages.iter().zip(SMALL..);
            let allocated =
                orders.map(|(&pages, shift)| pages as f64 * self.processor.zero_fill_ns(shift));
            // Of a swap-in, only the kernel's time: the caller adds the device's.
            let maps = maps + faults.maps + faults.swap_ins;
            allocated.fold(maps as f64 * map_ns, |all, ns| all + ns)
        };
        let Faults { maps: mapped, pages, .. } = self.pages.faults;
        let large: u64 = pages[1..].iter().sum();
        let waited = |storage: usize| {
            self.threads.iter().map(|thread| thread.files[storage].waited_ns).sum()
        };
        Time {
            page_bytes: 1 << self.shift,
            cpu_ns: instructions as f64 * instruction_ns,
            tlb_ns: part(tlb),
            walk_ns: part(walk),
            cache_ns: part(cache),
            dram_ns: part(dram),
            fault_ns: fault_ns(self.pages.faults, maps),
            start_ns: fault_ns(self.pages.fills, maps + mapped),
            map_ns,
            tlb_second_hits: self.second_hits,
            walks: self.walks,
            resident_bytes: self.pages.peak << SMALL,
            read_first_share: self.pages.read_first as f64 / large.max(1) as f64,
            file_requests: self.file_requests,
            file_ns: (0..self.storages.len()).map(waited).collect(),
        }
    }
}
