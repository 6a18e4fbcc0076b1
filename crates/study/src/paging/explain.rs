//! Where the misses of one row come from: the same simulation as the study's, reference by
//! reference, each TLB miss and fault counted in the region and address range it happened in.
//!
//! Slower than the study, which sees windows and not references, and exact in the same way: the
//! sums over regions, and over ranges, are the study's counts (`tests` below).

mod pages;

use std::collections::BTreeMap;

use nearfar_schema::{Bytes, OneMemory, none, required};
use nearfar_trace::{Batch, Columns, Kind, KindSet, Reader, Result, last_byte};
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::options::{ClockInsert, Options};
use super::resident::{Make, Resident};
use super::simulate::{footprint_bytes, whole_bytes};
use crate::info::names::{Names, UNNAMED};
use pages::Pages;

/// Most address ranges in an answer: neighbours are taken together until there are no more.
pub const RANGES: usize = 256;
/// Most code sites in an answer; the rest are taken together.
pub const SITES: usize = 256;
/// log2 of the smallest range, or a page where that is larger.
const MIN_RANGE_SHIFT: u32 = 16;
const PROGRESS_STEP: u64 = 1 << 22;

nearfar_schema::options! {
    /// The options of `nearfar explain` as they are written: which row of a run.
    pub struct Asked {
        /// Page size of the row.
        page: Bytes = required(),
        /// Memory size of the row, as the run was asked for it.
        memory: Option<OneMemory> = none("the middle one"),
        /// Storage of the row.
        storage: Option<String> = none("the run's first"),
    }
}

/// What happened somewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// References, a page each.
    pub references: u64,
    /// Page walks.
    pub tlb_misses: u64,
    /// First-level TLB misses that the second level held.
    pub tlb_second_hits: u64,
    /// Page faults.
    pub faults: u64,
    /// Of these, those on pages never touched before: no memory can avoid them.
    pub first_touches: u64,
    /// Faults on pages that the kernel filled with zeros, or with a copy; where pages never end all
    /// memory counts as private. This and the three after it add up to the faults.
    pub zero_fills: u64,
    /// Faults that read a page of a file for the first time.
    pub file_reads: u64,
    /// Faults that read a page back from swap.
    pub swap_ins: u64,
    /// Faults that read a page of a file again.
    pub file_rereads: u64,
}

impl Counts {
    fn add(&mut self, more: &Counts) {
        self.references += more.references;
        self.tlb_misses += more.tlb_misses;
        self.tlb_second_hits += more.tlb_second_hits;
        self.faults += more.faults;
        self.first_touches += more.first_touches;
        self.zero_fills += more.zero_fills;
        self.file_reads += more.file_reads;
        self.swap_ins += more.swap_ins;
        self.file_rereads += more.file_rereads;
    }
}

/// Counts of a part of the address space.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Name of the region; several, joined by ` + `, where a range holds several.
    pub name: String,
    /// First byte of the lowest range with references.
    pub addr_low: u64,
    /// Byte after the highest; may be 2^64.
    pub addr_high: u128,
    /// What happened there.
    #[serde(flatten)]
    pub counts: Counts,
}

/// What the references of a piece of code met. They themselves are not counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Site {
    /// Region of the code.
    pub name: String,
    /// First byte of the last instructions that the thread had fetched: in a capture a block
    /// without a branch into or out of it. `None`: those of all further sites, or before any fetch.
    pub addr: Option<u64>,
    /// What happened there; `references` stays 0.
    #[serde(flatten)]
    pub counts: Counts,
}

/// Where misses and faults of one page size and memory size come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explained {
    /// Pages ended, as the trace's events say.
    pub lifetimes: bool,
    /// Everywhere.
    pub total: Counts,
    /// By region, most misses and faults first.
    pub regions: Vec<Place>,
    /// By address range, lowest first.
    pub ranges: Vec<Place>,
    /// By the code that made the reference, most misses and faults first; empty for a trace without
    /// fetches.
    pub sites: Vec<Site>,
}

/// Simulate the first page size and the first memory size of `options` and say where misses are.
///
/// A reference counts in the region that its own address lies in, as mapped at that moment; a page
/// larger than a region so can count for several.
///
/// # Errors
/// A trace that cannot be read or holds no such records; what `on_progress` raises.
pub fn explain(
    reader: &Reader,
    options: &Options,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Explained> {
    let footprint = footprint_bytes(reader, options)?;
    let (lives, whole) = whole_bytes(reader, options, footprint, &mut |_| on_progress(0))?;
    let page_bytes = options.page_sizes[0];
    let shift = page_bytes.trailing_zeros();
    let frames = (options.memory_bytes(whole)[0].0 / page_bytes).max(1);
    let loads_set = options.clock_insert == ClockInsert::Set;
    let setup = options.setup(frames, page_bytes, lives);
    let memory = options.replacement.visit(Make { setup, loads_set });
    let mut resident = Resident::new(options.tlb, memory);
    let mut pages = match lives {
        true => Pages::lives(reader, options.spaces(reader), shift, options.files)?,
        false => Pages::endless(shift),
    };
    let block_shift = pages.block_shift();

    let info = reader.info();
    let process: FxHashMap<u32, u32> = info.threads.iter().map(|t| (t.index, t.process)).collect();
    let process_of = |thread: u32| process.get(&thread).copied().unwrap_or(0);
    let mut running = info.threads.first().map_or(0, |thread| thread.process);
    let mut names = Names::new(reader.regions()?);

    let cell_shift = shift.max(MIN_RANGE_SHIFT);
    let mut places: FxHashMap<(u32, u64), Counts> = FxHashMap::default();
    let mut code = Code::default();
    // Most references lie where the one before them did.
    let (mut known, mut region, mut counts) = (None, 0u32, Counts::default());
    let mut batches = reader.batches(Columns { thread: true, ..Columns::PAGING });
    let mut batch = Batch::default();
    let (mut at, mut next_progress) = (0u64, 0u64);
    while batches.next_into(&mut batch)? {
        for (index, &addr) in batch.addr.iter().enumerate() {
            if names.next_event() <= at {
                names.advance(at, process_of, running);
                commit(&mut places, region, &mut known, &mut counts);
            }
            pages.events(at, &mut resident);
            at += 1;
            let thread = batch.thread[index];
            let seen = process_of(thread);
            if seen != running {
                running = seen;
                commit(&mut places, region, &mut known, &mut counts);
            }
            // The engines know an address by its space, names do not.
            let placed = pages.place(thread, addr);
            let kind = batch.kind[index];
            if kind == Kind::Fetch as u8 {
                code.fetch(thread, addr);
            }
            if options.kinds.0 >> kind & 1 == 0 {
                continue;
            }
            let write = KindSet::WRITES.0 >> kind & 1 == 1;
            let first = placed >> block_shift;
            for block in first..=last_byte(placed, batch.size[index]) >> block_shift {
                // The part of the record that lies in this block.
                let low = placed.max(block << block_shift);
                let here = addr.wrapping_add(low - placed);
                let spot = (here >> 12, here >> cell_shift);
                if known != Some(spot) {
                    commit(&mut places, region, &mut known, &mut counts);
                    region = names.region(running, spot.0);
                    known = Some(spot);
                }
                let reached = pages.reach(block, write, &mut resident);
                let met = resident.reference(reached, block != first);
                if met != Counts::default() {
                    code.met(thread, &met, |page| names.region(running, page));
                    counts.add(&met);
                }
                // A record references each page once, though each block of it may meet something.
                counts.references += u64::from(block == first || low & (page_bytes - 1) == 0);
            }
        }
        if at >= next_progress {
            on_progress(at)?;
            next_progress = at + PROGRESS_STEP;
        }
    }
    commit(&mut places, region, &mut known, &mut counts);
    Ok(Explained { lifetimes: lives, ..explained(places, code, names, cell_shift) })
}

/// Which code made a reference: the last that its thread had fetched.
#[derive(Default)]
struct Code {
    last: FxHashMap<u32, u64>,
    sites: FxHashMap<Option<u64>, (u32, Counts)>,
}

impl Code {
    fn fetch(&mut self, thread: u32, addr: u64) {
        self.last.insert(thread, addr);
    }

    /// Count what a reference of `thread` met; `region_of` a page of its code.
    fn met(&mut self, thread: u32, counts: &Counts, region_of: impl FnOnce(u64) -> u32) {
        let addr = self.last.get(&thread).copied();
        let site = self.sites.entry(addr);
        let fresh = || (addr.map_or(0, |addr| region_of(addr >> 12)), Counts::default());
        site.or_insert_with(fresh).1.add(counts);
    }

    /// The sites that met most, the rest in one; `name_of` a region.
    fn into_sites(self, name_of: impl Fn(u32) -> String) -> Vec<Site> {
        if self.last.is_empty() {
            return Vec::new();
        }
        let mut sites: Vec<_> = self.sites.into_iter().collect();
        sites.sort_by_key(|(addr, (_, c))| {
            (addr.is_none(), std::cmp::Reverse(c.tlb_misses + c.faults), *addr)
        });
        let mut rest = Counts::default();
        let mut listed = Vec::new();
        for (addr, (region, counts)) in sites {
            if addr.is_some() && listed.len() < SITES {
                listed.push(Site { name: name_of(region), addr, counts });
            } else {
                rest.add(&counts);
            }
        }
        if rest != Counts::default() {
            listed.push(Site { name: "(others)".to_owned(), addr: None, counts: rest });
        }
        listed
    }
}

/// Put what was counted at one place where it belongs.
fn commit(
    places: &mut FxHashMap<(u32, u64), Counts>,
    region: u32,
    known: &mut Option<(u64, u64)>,
    counts: &mut Counts,
) {
    if let Some((_, cell)) = known.take() {
        places.entry((region, cell)).or_default().add(&std::mem::take(counts));
    }
}

/// From counts by region id and cell to named regions and ranges.
fn explained(
    places: FxHashMap<(u32, u64), Counts>,
    code: Code,
    names: Names,
    cell_shift: u32,
) -> Explained {
    let (merged, texts) = names.finish();
    let final_region = |id: u32| merged.get(id as usize).copied().unwrap_or(id) as usize;
    let mut total = Counts::default();
    let mut regions: BTreeMap<usize, (u64, u64, Counts)> = BTreeMap::new();
    let mut cells: BTreeMap<u64, (Vec<usize>, Counts)> = BTreeMap::new();
    for ((id, cell), counts) in places {
        total.add(&counts);
        let id = final_region(id);
        let (low, high, sum) = regions.entry(id).or_insert((cell, cell, Counts::default()));
        (*low, *high) = (cell.min(*low), cell.max(*high));
        sum.add(&counts);
        let (ids, sum) = cells.entry(cell).or_default();
        ids.push(id);
        sum.add(&counts);
    }
    // Aligned groups of 2, 4, 8, ... cells, so that a range begins and ends at round addresses.
    let mut size = 0;
    while cells.len() > RANGES {
        size += 1;
        let mut fewer: BTreeMap<u64, (Vec<usize>, Counts)> = BTreeMap::new();
        for (cell, (ids, counts)) in cells {
            let (all, sum) = fewer.entry(cell >> 1).or_default();
            all.extend(ids);
            sum.add(&counts);
        }
        cells = fewer;
    }
    let shift = cell_shift + size;
    let bounds = |low: u64, high: u64, shift: u32| (low << shift, u128::from(high + 1) << shift);
    let name = |id: usize| {
        texts.get(id).cloned().flatten().unwrap_or_else(|| {
            // Code that no reference was counted in has no bounds.
            let Some((low, high, _)) = regions.get(&id) else { return UNNAMED.to_owned() };
            let (low, high) = bounds(*low, *high, cell_shift);
            format!("{low:#x}-{high:#x}")
        })
    };
    let sites = code.into_sites(|id| name(final_region(id)));
    let ranges = cells
        .into_iter()
        .map(|(cell, (mut ids, counts))| {
            ids.sort_unstable();
            ids.dedup();
            let names: Vec<String> = ids.into_iter().map(name).collect();
            let (addr_low, addr_high) = bounds(cell, cell, shift);
            Place { name: names.join(" + "), addr_low, addr_high, counts }
        })
        .collect();
    let mut regions: Vec<Place> = regions
        .iter()
        .map(|(&id, &(low, high, counts))| {
            let (addr_low, addr_high) = bounds(low, high, cell_shift);
            Place { name: name(id), addr_low, addr_high, counts }
        })
        .collect();
    regions.sort_by_key(|r| (std::cmp::Reverse(r.counts.tlb_misses + r.counts.faults), r.addr_low));
    Explained { lifetimes: false, total, regions, ranges, sites }
}

#[cfg(test)]
mod tests;
