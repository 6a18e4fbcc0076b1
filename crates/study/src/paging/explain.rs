//! `nearfar explain`: attribution of the misses of one row to regions, address ranges and code.
//!
//! The simulation is that of the study, but reference by reference and therefore slower; with a
//! processor, it is that of `--view machine`. The sums over regions and over ranges equal the study's
//! counts.

mod machine_costs;
mod memory;
mod pages;
mod tally;

use nearfar_hardware::processor::Processor;
use nearfar_schema::{Bytes, List, OneMemory, none};
use nearfar_trace::{Batch, Columns, KindSet, Reader, Result, last_byte};
use serde::Serialize;

use super::options::Options;
use super::simulate::{footprint_bytes, whole_bytes};
use crate::lifetimes::{Events, Spaces};
use memory::{NewMemory, TlbAndMemory};
use pages::Pages;
use tally::Tally;

/// Maximum number of address ranges in a result; neighbours are merged.
pub const RANGES: usize = 256;
/// Maximum number of code sites in a result, enough to group by function; further sites are summed up.
pub const SITES: usize = 1 << 16;
/// Records between two calls of `on_progress`.
const PROGRESS_STEP: u64 = 1 << 22;

nearfar_schema::options! {
    /// The options of `nearfar explain` as they are written: which row of a run.
    pub struct Request {
        /// Page size of the row to explain.
        page: Option<Bytes> = none("the one that the run advises"),
        /// Memory size of the row to explain, as given to the run.
        memory: Option<OneMemory> = none("the largest; with --view paper the middle one"),
        /// Storage device of the row to explain.
        storage: Option<String> = none("the run's first"),
        /// Files and folders with symbols: the captured programs and libraries, their debug files,
        /// perf maps.
        symbols: Option<List<String>> = none("the files that the trace names, if unchanged"),
        /// Also show which page size suits which region; needs a run with `--view machine`.
        by_region: bool = false,
    }
}

/// Counts of events at one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// References; one per page that a record touches.
    pub references: u64,
    /// Page walks.
    pub tlb_misses: u64,
    /// First-level TLB misses that hit the second level.
    pub tlb_second_hits: u64,
    pub faults: u64,
    /// Faults on pages never touched before, which no memory size can avoid.
    pub first_touches: u64,
    /// Faults that zero-fill or copy a page; without [`crate::lifetimes`], all memory counts as private.
    /// `zero_fills`, `file_reads`, `swap_ins` and `file_rereads` add up to `faults`.
    pub zero_fills: u64,
    /// Faults that read a file page for the first time.
    pub file_reads: u64,
    /// Faults that read a page from swap.
    pub swap_ins: u64,
    /// Faults that read a file page again.
    pub file_rereads: u64,
    /// With a machine ([`explain_on_machine`]): faults that need no device.
    pub minor_faults: u64,
    /// Time of `minor_faults`, in picoseconds.
    pub minor_fault_ps: u64,
    /// Time of page walks in picoseconds, as if no two waits overlapped.
    pub walk_ps: u64,
    /// Time of the second TLB level in picoseconds, as if no two waits overlapped.
    pub tlb_ps: u64,
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        self.references += other.references;
        self.tlb_misses += other.tlb_misses;
        self.tlb_second_hits += other.tlb_second_hits;
        self.faults += other.faults;
        self.first_touches += other.first_touches;
        self.zero_fills += other.zero_fills;
        self.file_reads += other.file_reads;
        self.swap_ins += other.swap_ins;
        self.file_rereads += other.file_rereads;
        self.minor_faults += other.minor_faults;
        self.minor_fault_ps += other.minor_fault_ps;
        self.walk_ps += other.walk_ps;
        self.tlb_ps += other.tlb_ps;
    }
}

/// Counts of a part of the address space.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Name of the region; names of several regions of a range are joined by ` + `.
    pub name: String,
    /// First byte of the lowest range with references.
    pub addr_low: u64,
    /// Byte after the highest range with references; may be 2^64.
    pub addr_high: u128,
    /// Peak bytes of private memory; only for regions, and only with a processor.
    pub resident_bytes: Option<u64>,
    #[serde(flatten)]
    pub counts: Counts,
}

/// Events of the references by a piece of code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Site {
    /// Region of the code.
    pub name: String,
    /// The program that ran the code; empty for the first program of the trace.
    pub program: String,
    /// File offset, if the region is a file.
    pub offset: Option<u64>,
    /// Address of the thread's last instruction fetch: in a capture, the start of a basic block.
    /// `None` for the sum of all further sites and for references before any fetch.
    pub addr: Option<u64>,
    /// Counts of this site; `references` is 0.
    #[serde(flatten)]
    pub counts: Counts,
}

/// Misses and faults of one page size and memory size, by place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explained {
    /// Whether pages ended with the trace's events ([`crate::lifetimes`]).
    pub lifetimes: bool,
    /// Sum over all places.
    pub total: Counts,
    /// The kernel's part of `total`; its `references` is 0 if there is a processor.
    pub kernel: Counts,
    /// Instructions of the kernel, if there is a processor.
    pub kernel_instructions: u64,
    /// By region, most misses and faults first.
    pub regions: Vec<Place>,
    /// By address range, lowest first.
    pub ranges: Vec<Place>,
    /// By referencing code, most misses and faults first; empty for a trace without fetches.
    pub sites: Vec<Site>,
}

/// Simulate the first page size and the first memory size of `options`, and attribute the misses.
///
/// A reference counts in the region of its address, as mapped at that time, so a page larger than a
/// region can count in several.
///
/// # Errors
/// If the trace cannot be read or has no records of the selected kinds; errors of `on_progress`.
pub fn explain(
    reader: &Reader,
    options: &Options,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Explained> {
    let page_bytes = options.page_sizes[0];
    let (lives, (mut pages, mut simulation)) = start(reader, options, on_progress)?;
    let block_shift = pages.block_shift;
    let mut tally = Tally::new(reader, page_bytes.trailing_zeros())?;
    let mut batches = reader.batches(Columns { thread: true, ..Columns::PAGING });
    let mut batch = Batch::default();
    let (mut at, mut next_progress) = (0u64, 0u64);
    while batches.next_into(&mut batch)? {
        for (index, &addr) in batch.addr.iter().enumerate() {
            let (thread, kind) = (batch.thread[index], batch.kind[index]);
            pages.events(at, &mut simulation);
            tally.record(at, thread);
            at += 1;
            // The address, with the number of its address space.
            let placed = pages.place(thread, addr);
            if KindSet::FETCHES.has(kind) {
                tally.fetch(thread, addr);
            }
            if !options.kinds.has(kind) {
                continue;
            }
            let write = KindSet::WRITES.has(kind);
            let by_kernel = KindSet::KERNEL.has(kind);
            let first = placed >> block_shift;
            for block in first..=last_byte(placed, batch.size[index]) >> block_shift {
                // The part of the record in this block.
                let low = placed.max(block << block_shift);
                let block_addr = addr.wrapping_add(low - placed);
                let target = pages.reference(block, write, &mut simulation);
                let events = simulation.reference(target);
                // A record references each page once, even if it touches several blocks of it.
                let references = u64::from(block == first || low & (page_bytes - 1) == 0);
                tally.reference((thread, by_kernel), block_addr, events, references);
            }
        }
        if at >= next_progress {
            on_progress(at)?;
            next_progress = at + PROGRESS_STEP;
        }
    }
    Ok(Explained { lifetimes: lives, ..tally.finish() })
}

/// As [`explain`], with the TLBs and times of a processor, for private memory in pages of each of
/// `page_sizes`. Faults for lack of memory use the page size of the options, at least 4 KiB.
///
/// # Errors
/// As [`explain`].
pub fn explain_on_machine(
    reader: &Reader,
    options: &Options,
    processor: &Processor,
    page_sizes: &[u64],
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Vec<Explained>> {
    super::machine::check(&options.page_sizes)?;
    super::machine::check(page_sizes)?;
    let (lives, memory) = start(reader, options, on_progress)?;
    let sizes = (processor, page_sizes);
    let explained = machine_costs::explain(reader, options, sizes, memory, lives, on_progress)?;
    Ok(explained.into_iter().map(|size| Explained { lifetimes: lives, ..size }).collect())
}

/// Whether pages have lifetimes, and the first memory size of `options` in bytes.
///
/// # Errors
/// If the trace cannot be read or has no records of the selected kinds; errors of `on_progress`.
pub fn memory_bytes(
    reader: &Reader,
    options: &Options,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<(bool, u64)> {
    let footprint = footprint_bytes(reader, options)?;
    let (lives, whole) = whole_bytes(reader, options, footprint, on_progress)?;
    Ok((lives, options.memory_bytes(whole)[0].0))
}

/// Whether pages have lifetimes, and an empty page table, TLB and memory.
fn start(
    reader: &Reader,
    options: &Options,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<(bool, (Pages, TlbAndMemory))> {
    // A pass for the peak resident set does not count as progress.
    let (lives, memory_bytes) = memory_bytes(reader, options, &mut |_| on_progress(0))?;
    let page_bytes = options.page_sizes[0];
    let shift = page_bytes.trailing_zeros();
    let frames = (memory_bytes / page_bytes).max(1);
    let setup = options.setup(frames, page_bytes, lives);
    let memory = options.replacement.visit(NewMemory(setup));
    let (events, spaces) = match lives {
        true => (Events::new(reader)?, options.spaces(reader)),
        // All processes have one address space.
        false => (Events::none(), Spaces::new(&[])),
    };
    let pages = Pages::new(events, spaces, shift, options.files);
    Ok((lives, (pages, TlbAndMemory::new(options.tlb, memory))))
}

#[cfg(test)]
mod tests;
