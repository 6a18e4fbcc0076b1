//! Where the misses of one row come from: the same simulation as the study's, reference by
//! reference, each TLB miss and fault counted in the region and address range it happened in.
//!
//! Slower than the study, which sees windows and not references, and exact in the same way: the
//! sums over regions, and over ranges, are the study's counts (`tests` below).

mod pages;
mod spent;
mod tally;

use nearfar_hardware::processor::Processor;
use nearfar_schema::{Bytes, List, OneMemory, none};
use nearfar_trace::{Batch, Columns, Kind, KindSet, Reader, Result, last_byte};
use serde::Serialize;

use super::options::{ClockInsert, Options};
use super::resident::{Make, Resident};
use super::simulate::{footprint_bytes, whole_bytes};
use pages::Pages;
use spent::Spent;
use tally::Tally;

/// Most address ranges in an answer: neighbours are taken together until there are no more.
pub const RANGES: usize = 256;
/// Most code sites in an answer; the rest are taken together. As many as functions can be made of.
pub const SITES: usize = 1 << 16;
const PROGRESS_STEP: u64 = 1 << 22;

nearfar_schema::options! {
    /// The options of `nearfar explain` as they are written: which row of a run.
    pub struct Asked {
        /// Page size of the row.
        page: Option<Bytes> = none("the fastest one"),
        /// Memory size of the row, as given to the run.
        memory: Option<OneMemory> = none("the largest; with --view paper the middle one"),
        /// Storage of the row.
        storage: Option<String> = none("the run's first"),
        /// Files and folders with symbols: the captured programs and libraries, their debug files,
        /// perf maps.
        symbols: Option<List<String>> = none("the files that the trace names, if unchanged"),
        /// Also show which page size suits which region; needs a run with `--view machine`.
        by_region: bool = false,
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
    /// Faults that gave a page without a device, as a machine counts them ([`OnMachine`]).
    pub given: u64,
    /// Picoseconds of these, and of walks and the second level of the TLB before any of it overlaps.
    pub given_ps: u64,
    /// See `given_ps`.
    pub walk_ps: u64,
    /// See `given_ps`.
    pub tlb_ps: u64,
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
        self.given += more.given;
        self.given_ps += more.given_ps;
        self.walk_ps += more.walk_ps;
        self.tlb_ps += more.tlb_ps;
    }
}

/// The processor that TLB misses are those of, in place of the TLB of the options.
#[derive(Clone, Copy, Debug)]
pub struct OnMachine<'a> {
    /// Its TLBs, caches and times.
    pub processor: &'a Processor,
    /// The page size that is switched on for private memory. Memory is short in the pages of the options.
    pub page_bytes: u64,
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
    /// Of a region, with a processor: the most bytes of private memory at once.
    pub resident_bytes: Option<u64>,
    /// What happened there.
    #[serde(flatten)]
    pub counts: Counts,
}

/// What the references of a piece of code met. They themselves are not counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Site {
    /// Region of the code.
    pub name: String,
    /// The program that ran it; empty: the one that the trace was begun with.
    pub program: String,
    /// Where it stands in its file, if the region is one.
    pub offset: Option<u64>,
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
    machine: Option<OnMachine<'_>>,
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
    let mut spent = match machine {
        Some(machine) => Some(Spent::new(reader, options, machine, lives)?),
        None => None,
    };

    let largest = machine.map_or(page_bytes, |machine| machine.page_bytes.max(page_bytes));
    let mut tally = Tally::new(reader, largest.trailing_zeros())?;
    let columns = match machine {
        Some(_) => Columns::ALL,
        None => Columns { thread: true, ..Columns::PAGING },
    };
    let mut batches = reader.batches(columns);
    let mut batch = Batch::default();
    let (mut at, mut next_progress) = (0u64, 0u64);
    while batches.next_into(&mut batch)? {
        for (index, &addr) in batch.addr.iter().enumerate() {
            let (thread, kind) = (batch.thread[index], batch.kind[index]);
            pages.events(at, &mut resident);
            if let Some(spent) = &mut spent {
                spent.events(at);
            }
            tally.record(at, thread);
            at += 1;
            // The engines know an address by its space, names do not.
            let placed = pages.place(thread, addr);
            if kind == Kind::Fetch as u8 {
                tally.fetch(thread, addr);
            }
            if let Some(spent) = &mut spent {
                spent.record(&batch, index, &mut tally);
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
                let reached = pages.reach(block, write, &mut resident);
                let mut met = resident.reference(reached, block != first);
                if spent.is_some() {
                    (met.tlb_misses, met.tlb_second_hits) = (0, 0);
                }
                // A record references each page once, though each block of it may meet something.
                let counted = u64::from(block == first || low & (page_bytes - 1) == 0);
                tally.reference(thread, here, met, counted);
            }
        }
        if at >= next_progress {
            on_progress(at)?;
            next_progress = at + PROGRESS_STEP;
        }
    }
    let resident = spent.map(Spent::into_resident);
    Ok(Explained { lifetimes: lives, ..tally.finish(resident.as_deref()) })
}

#[cfg(test)]
mod tests;
