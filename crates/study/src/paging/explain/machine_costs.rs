//! Costs on a machine by place (an address range of a region) and site (the code), and the private
//! memory of each region.
//!
//! The pass over the trace is that of `--view machine` ([`Touches`]); all page sizes share it. Only
//! references that every page size must process (touches), or that may fault, get a place and a
//! site; most references are only counted by block.

use nearfar_hardware::processor::{Hierarchy, Processor};
use nearfar_trace::{Batch, KindSet, Reader, Result};
use rustc_hash::FxHashMap;

use super::memory::TlbAndMemory;
use super::pages::Pages;
use super::tally::{Counted, MIN_RANGE_SHIFT};
use super::{Counts, Explained};
use crate::info::names::{Code, Names};
use crate::lifetimes::{self, Change, PAGE_SHIFT};
use crate::paging::machine::observe::{Access, Observe};
use crate::paging::machine::simulate;
use crate::paging::machine::touches::{Chunk, Touches};
use crate::paging::machine::waits::{Costs, PageSize, Watch};
use crate::paging::options::Options;
use crate::slot;

/// Attribute the costs at each of `page_sizes`. `memory`: a page table, a TLB and a memory, all empty, to
/// simulate faults for lack of memory.
pub fn explain(
    reader: &Reader,
    options: &Options,
    (processor, page_sizes): (&Processor, &[u64]),
    memory: (Pages, TlbAndMemory),
    lives: bool,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Vec<Explained>> {
    // Finds every line in the first level, as `Observe::SKIPS` requires.
    let hierarchy = Hierarchy::for_ages(&processor.caches);
    let mut touches = Touches::new(reader, options, processor, hierarchy, lives)?;
    let mut places = Places::new(reader, options.page_sizes[0], memory)?;
    let mut sizes: Vec<Size> = page_sizes
        .iter()
        .map(|size| Size {
            // No storages: waits for files are not attributed.
            size: PageSize::new(size.trailing_zeros(), processor, &[]),
            before: Costs::default(),
            counts: ByPlace::default(),
            memory: RegionMemory::default(),
        })
        .collect();
    let taken = |places: &mut Places| std::mem::take(&mut places.entries);
    let chunk = |size: &mut Size, chunk: &Chunk, entries: &Vec<Entry>| size.chunk(chunk, entries);
    let observer = (&mut places, taken, chunk);
    simulate(&mut touches, &mut sizes, options.threads, observer, on_progress)?;
    let (_, maps) = touches.totals();
    debug_assert_eq!(maps, places.mapped);
    places.finish(sizes, processor.map_ns)
}

/// Counts by id of the place and of the site, and the kernel's counts.
#[derive(Clone, Default)]
struct ByPlace {
    places: Vec<Counts>,
    sites: Vec<Counts>,
    kernel: Counts,
}

impl ByPlace {
    fn add(&mut self, (place, site, by_kernel): (u32, u32, bool), counts: &Counts) {
        for (all, id) in [(&mut self.places, place), (&mut self.sites, site)] {
            slot(all, id).add(counts);
        }
        if by_kernel {
            self.kernel.add(counts);
        }
    }
}

/// Numbers values in the order of their first use.
struct Ids<T>(FxHashMap<T, u32>);

impl<T: Eq + std::hash::Hash> Ids<T> {
    fn of(&mut self, value: T) -> u32 {
        let next = self.0.len() as u32;
        *self.0.entry(value).or_insert(next)
    }
}

/// A reference that added touches to the chunk.
struct Entry {
    /// Number of touches in the chunk up to the end of this reference.
    until: usize,
    place: u32,
    site: u32,
    by_kernel: bool,
    region: u32,
}

/// State of a block of 4 KiB.
#[derive(Clone, Copy, Default)]
struct BlockState {
    /// References since its place last changed.
    references: u64,
    /// If it is [`Places::stamp`], further references have no effect on the memory.
    stamp: u64,
    place: u32,
}

/// Places of references, and the effects that do not depend on the page size.
struct Places {
    names: Names,
    /// The thread of the previous record, unless an event followed.
    running: Option<usize>,
    /// The thread of the current record.
    thread: usize,
    /// The current record is of the kernel.
    by_kernel: bool,
    kernel_instructions: u64,
    /// The last fetch by thread.
    fetched: Vec<Option<u64>>,
    /// By region and address >> [`MIN_RANGE_SHIFT`].
    places: Ids<(u32, u64)>,
    sites: Ids<Option<(Code, u64)>>,
    /// Place and region by process and page, until the next event.
    known_places: FxHashMap<(u32, u64), (u32, u32)>,
    /// Site by process and address, until the next event.
    known_sites: FxHashMap<(u32, u64), u32>,
    counts: ByPlace,
    page_bytes: u64,
    pages: Pages,
    memory: TlbAndMemory,
    blocks: Vec<BlockState>,
    /// Changes whenever a repeated reference may have an effect again.
    stamp: u64,
    /// Number of faults so far that mapped pages of the page cache.
    mapped: u64,
    entries: Vec<Entry>,
}

impl Places {
    fn new(
        reader: &Reader,
        page_bytes: u64,
        (pages, memory): (Pages, TlbAndMemory),
    ) -> Result<Self> {
        Ok(Self {
            names: Names::new(reader)?,
            running: None,
            thread: 0,
            by_kernel: false,
            kernel_instructions: 0,
            fetched: Vec::new(),
            places: Ids(FxHashMap::default()),
            sites: Ids(FxHashMap::default()),
            known_places: FxHashMap::default(),
            known_sites: FxHashMap::default(),
            counts: ByPlace::default(),
            page_bytes,
            pages,
            memory,
            blocks: Vec::new(),
            stamp: 1,
            mapped: 0,
            entries: Vec::new(),
        })
    }

    /// The place and the region of a 4 KiB page.
    fn place(&mut self, number: u64) -> (u32, u32) {
        let Self { names, places, known_places, .. } = self;
        *known_places.entry((names.process, number)).or_insert_with(|| {
            let addr = lifetimes::address(number << PAGE_SHIFT);
            let region = names.region(addr >> PAGE_SHIFT);
            (places.of((region, addr >> MIN_RANGE_SHIFT)), region)
        })
    }

    /// The code that the current thread fetched last.
    fn site(&mut self) -> u32 {
        let Some(addr) = self.fetched[self.thread] else { return self.sites.of(None) };
        let Self { names, sites, known_sites, .. } = self;
        *known_sites
            .entry((names.process, addr))
            .or_insert_with(|| sites.of(Some((names.code(addr), addr))))
    }

    /// Apply a reference to the memory.
    fn apply(&mut self, access: Access) {
        let Access { number, block, write, .. } = access;
        let (place, _) = self.place(number);
        let state = slot(&mut self.blocks, block);
        if state.place != place {
            let references = std::mem::take(&mut state.references);
            slot(&mut self.counts.places, state.place).references += references;
            state.place = place;
        }
        // Not `number`: without lifetimes, `pages` has one address space.
        let addr = lifetimes::address(number << PAGE_SHIFT);
        let placed = self.pages.place(self.thread as u32, addr);
        let unit = placed >> self.pages.block_shift;
        let target = self.pages.reference(unit, write, &mut self.memory);
        let events = self.memory.reference(target);
        // Each page size counts its own TLB misses.
        let events = Counts { tlb_misses: 0, tlb_second_hits: 0, ..events };
        if events != Counts::default() {
            let site = self.site();
            self.counts.add((place, site, self.by_kernel), &events);
            self.stamp += 1;
        } else if !self.memory.needs_every_reference() {
            self.blocks[block as usize].stamp = self.stamp;
        }
    }

    fn finish(mut self, sizes: Vec<Size<'_>>, map_ns: f64) -> Result<Vec<Explained>> {
        for state in &self.blocks {
            slot(&mut self.counts.places, state.place).references += state.references;
        }
        let map_ps = (map_ns * 1e3).round() as u64;
        let ByPlace { places, sites, kernel } = &mut self.counts;
        for counts in places.iter_mut().chain(sites).chain([kernel]) {
            counts.minor_fault_ps += counts.minor_faults * map_ps;
        }
        let by_code = self.fetched.iter().any(Option::is_some);
        let programs = self.names.programs().to_vec();
        let names = self.names.finish();
        let mut explained_sizes = Vec::new();
        for Size { counts, memory, size, .. } in sizes {
            let cell_shift = size.shift().max(MIN_RANGE_SHIFT);
            let mut counted = Counted::default();
            for part in [&self.counts, &counts] {
                counted.kernel.add(&part.kernel);
                for (&(region, cell), &id) in &self.places.0 {
                    let cell = cell >> (cell_shift - MIN_RANGE_SHIFT);
                    let total = counted.places.entry((region, cell)).or_default();
                    total.add(part.places.get(id as usize).unwrap_or(&Counts::default()));
                }
                for (&site, &id) in self.sites.0.iter().filter(|_| by_code) {
                    let total = counted.sites.entry(site).or_default();
                    total.add(part.sites.get(id as usize).unwrap_or(&Counts::default()));
                }
            }
            counted.sites.retain(|_, counts| *counts != Counts::default());
            let resident: Vec<u64> = memory.bytes.iter().map(|&(_, peak)| peak as u64).collect();
            let kernel_instructions = self.kernel_instructions;
            let explained = counted.explained(&names, &programs, cell_shift, Some(&resident));
            explained_sizes.push(Explained { kernel_instructions, ..explained });
        }
        Ok(explained_sizes)
    }
}

impl Observe for Places {
    const SKIPS: bool = true;

    fn batch(&mut self, batch: &Batch) {
        let records = batch.kind.iter().zip(&batch.instr);
        let by_kernel = records.filter(|record| KindSet::KERNEL.has(*record.0));
        self.kernel_instructions += by_kernel.map(|record| u64::from(*record.1)).sum::<u64>();
    }

    fn event(&mut self) {
        self.stamp += 1;
        self.running = None;
    }

    #[inline]
    fn record(&mut self, at: u64, thread: usize, addr: u64, kind: u8) {
        self.by_kernel = KindSet::KERNEL.has(kind);
        if self.names.advance(at) {
            self.known_places.clear();
            self.known_sites.clear();
            self.stamp += 1;
        }
        if self.running != Some(thread) {
            (self.running, self.thread) = (Some(thread), thread);
            self.pages.events(at, &mut self.memory);
            // Switch the address space.
            self.pages.place(thread as u32, addr);
            self.stamp += u64::from(self.names.switch_to(thread as u32));
            slot(&mut self.fetched, thread as u32);
        }
        if KindSet::FETCHES.has(kind) {
            self.fetched(thread, addr);
        }
    }

    #[inline]
    fn access(&mut self, access: Access) {
        let known = self.blocks.get(access.block as usize);
        if access.changes && access.write || known.is_none_or(|state| state.stamp != self.stamp) {
            self.apply(access);
        }
        // Count one reference per page: at the record's first line, and at each page's first line.
        let new = access.first || access.addr.is_multiple_of(self.page_bytes);
        self.blocks[access.block as usize].references += u64::from(new);
    }

    fn stable_until(&self, thread: usize) -> u64 {
        if self.running == Some(thread) { self.names.next_event } else { 0 }
    }

    #[inline]
    fn repeats(&mut self, block: u32) -> bool {
        let state = &mut self.blocks[block as usize];
        let repeats = state.stamp == self.stamp;
        state.references += u64::from(repeats);
        repeats
    }

    fn fetched(&mut self, thread: usize, addr: u64) {
        self.fetched[thread] = Some(lifetimes::address(addr));
    }

    fn touched(&mut self, chunk: &Chunk, number: u64, maps: u64) {
        let ((place, region), site, by_kernel) = (self.place(number), self.site(), self.by_kernel);
        if maps != self.mapped {
            let minor_faults = maps - self.mapped;
            let counts = Counts { minor_faults, ..Counts::default() };
            self.counts.add((place, site, by_kernel), &counts);
            self.mapped = maps;
        }
        self.entries.push(Entry { until: chunk.touches.len(), place, site, by_kernel, region });
    }
}

/// One page size.
struct Size<'a> {
    size: PageSize<'a>,
    /// Costs up to the end of the previous entry.
    before: Costs,
    counts: ByPlace,
    memory: RegionMemory,
}

impl Size<'_> {
    fn chunk(&mut self, chunk: &Chunk, entries: &[Entry]) {
        let Self { size, before, counts, memory } = self;
        size.chunk(chunk, &mut Attribution { entries, before, counts, memory });
    }
}

/// Attributes the costs of a chunk to its entries.
struct Attribution<'a> {
    /// Entries with remaining touches.
    entries: &'a [Entry],
    before: &'a mut Costs,
    counts: &'a mut ByPlace,
    memory: &'a mut RegionMemory,
}

impl Watch for Attribution<'_> {
    fn changed(&mut self, change: &Change, bytes: i64) {
        if let (Change::Born { block, .. }, Some(entry)) = (change, self.entries.first()) {
            *slot(&mut self.memory.region_of, *block) = entry.region;
        }
        self.memory.changed(change, bytes);
    }

    #[inline]
    fn touched(&mut self, index: usize, costs: impl FnOnce() -> Costs) {
        if let [entry, rest @ ..] = self.entries
            && entry.until == index + 1
        {
            let now = costs();
            let costs = now.since(self.before);
            *self.before = now;
            self.entries = rest;
            if costs != Costs::default() {
                let counts = Counts {
                    tlb_misses: costs.walks,
                    tlb_second_hits: costs.second_hits,
                    minor_faults: costs.faults,
                    minor_fault_ps: costs.fault_ps,
                    walk_ps: costs.walk_ps,
                    tlb_ps: costs.tlb_ps,
                    ..Counts::default()
                };
                self.counts.add((entry.place, entry.site, entry.by_kernel), &counts);
            }
        }
    }
}

/// Private memory by region.
#[derive(Default)]
struct RegionMemory {
    /// Region of the first reference, by block.
    region_of: Vec<u32>,
    /// Current and peak bytes by region.
    bytes: Vec<(i64, i64)>,
}

impl RegionMemory {
    /// Attribute a change to the region of its first block (not exact when a process ends).
    fn changed(&mut self, change: &Change, bytes: i64) {
        let first = match change {
            Change::Ended { blocks, .. } | Change::Discarded(blocks) => blocks.first().copied(),
            Change::Moved { blocks, .. } => blocks.first().map(|(block, _)| *block),
            Change::Forked(blocks) => {
                for &(block, copy, _) in blocks {
                    *slot(&mut self.region_of, copy) = *slot(&mut self.region_of, block);
                }
                None
            }
            Change::Born { block, .. } | Change::Written(block) => Some(*block),
            Change::Area { .. } | Change::Collapse { .. } => None,
        };
        if let Some(first) = first
            && bytes != 0
        {
            let region = *slot(&mut self.region_of, first);
            let (now, peak) = slot(&mut self.bytes, region);
            *now += bytes;
            *peak = (*now).max(*peak);
        }
    }
}
