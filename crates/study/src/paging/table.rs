//! Times from counts, in one row per page size x memory size x storage: the access-time model of
//! paper 000 (page-size advice), equations 1 to 3, which paper 001 (TLB and fault models) shares.

use nearfar_hardware::machine::FaultTimes;
use nearfar_hardware::{AccessTimes, Storage};
use nearfar_trace::{Error, Result};

use super::cell::{Cell, FaultKinds, MIN_FRAMES};
use super::machine::Time;
use super::simulate::Simulated;

nearfar_schema::columns! {
    /// A row of the study. Times are averages per reference.
    pub struct Row {
        /// Page size.
        page_bytes: u64 ["bytes"],
        /// Memory size.
        memory_bytes: u64 ["bytes"],
        /// Memory size as a fraction of the peak resident set (of all 4 KiB pages touched, if freed memory is
        /// not modelled); null if given in bytes.
        memory_fraction: Option<f64> ["of the peak resident set"],
        /// Page frames: memory size / page size, at least 8.
        frames: u64 ["pages"],
        /// References at this page size; one that crosses a page border counts for both pages, except with
        /// `--view machine`.
        references: u64,
        /// Page walks: misses of all TLB levels.
        tlb_misses: u64 as "TLB misses",
        /// TLB misses per reference (`e` in paper 000).
        tlb_miss_rate: f64 ["per reference"] as "TLB miss rate",
        /// First-level TLB misses that hit the second level; 0 if the TLB has one level.
        tlb_second_hits: u64 as "second TLB hits",
        /// Page faults; an estimate for a trace of `capture --sample`.
        faults: u64,
        /// Page faults per reference (`d` in paper 000).
        fault_rate: f64 ["per reference"],
        /// Error of the fault rate (standard error and bias) for a trace of `capture --sample`, else null.
        fault_rate_error: Option<f64> ["per reference"],
        /// Distinct pages touched; with a cold page cache, the minimum of `faults` at any memory size.
        pages: u64 ["pages"],
        /// Evictions of dirty pages.
        dirty_evictions: u64 as "dirty",
        /// The storage device of the machine.
        storage: String,
        /// Time of address translation (T_A in paper 000).
        translation_ns: f64 ["ns per reference"],
        /// All time except address translation, such as data access and faults (T_D in paper 000).
        data_ns: f64 ["ns per reference"],
        /// `translation_ns` + `data_ns`.
        total_ns: f64 ["ns per reference"],
        /// Faults that fill a page with zeros or with a copy. If freed memory is not modelled, all first
        /// touches count here.
        zero_fills: u64,
        /// Faults that read a page of a file for the first time.
        file_reads: u64,
        /// Faults that read a page back from swap.
        swap_ins: u64,
        /// Faults that read a page of a file again.
        file_rereads: u64,
        /// Evictions that wrote a page to swap.
        swap_outs: u64,
        /// Evictions that wrote a page to its file.
        write_backs: u64,
        /// Time of executing instructions, without waiting for misses; null without `--view machine`.
        cpu_ns: Option<f64> ["ns per reference"],
        /// Waiting for the second level of the TLB; null without `--view machine`.
        tlb_ns: Option<f64> ["ns per reference"] as "TLB",
        /// Waiting for page walks; null without `--view machine`.
        walk_ns: Option<f64> ["ns per reference"] as "walks",
        /// Waiting for CPU caches of the second and third level; null without `--view machine`.
        cache_ns: Option<f64> ["ns per reference"] as "caches",
        /// Waiting for memory; null without `--view machine`.
        dram_ns: Option<f64> ["ns per reference"] as "memory",
        /// The kernel's time for faults, except what `start_ns` counts; null without `--view machine`.
        fault_ns: Option<f64> ["ns per reference"] as "faults",
        /// Waiting for the storage, except what `start_ns` counts; null without `--view machine`.
        io_ns: Option<f64> ["ns per reference"] as "I/O",
        /// Peak private memory at this page size; null without `--view machine`.
        resident_bytes: Option<u64> ["bytes"],
        /// Share of 2 MiB pages that are read before they are written; Linux before 6.13 uses 4 KiB pages for
        /// these. 0 for smaller pages; null without `--view machine`.
        read_first_share: Option<f64>,
        /// The machine.
        machine: String,
        /// Lower end of the 95 % interval of the fault rate; null unless the trace is of `capture --sample`.
        fault_rate_low: Option<f64> ["per reference"],
        /// Upper end of the 95 % interval of the fault rate; null unless the trace is of `capture --sample`.
        fault_rate_high: Option<f64> ["per reference"],
        /// Lower end of the 95 % interval of the TLB miss rate; null with `--view machine`, or
        /// unless the trace is of `capture --sample`.
        tlb_miss_rate_low: Option<f64> ["per reference"] as "TLB miss rate low",
        /// Upper end of the 95 % interval of the TLB miss rate; null with `--view machine`, or
        /// unless the trace is of `capture --sample`.
        tlb_miss_rate_high: Option<f64> ["per reference"] as "TLB miss rate high",
        /// `total_ns` at the lower ends of the intervals of the fault and TLB miss rates; null
        /// unless the trace is of `capture --sample`.
        total_ns_low: Option<f64> ["ns per reference"],
        /// `total_ns` at the upper ends of the intervals of the fault and TLB miss rates; null
        /// unless the trace is of `capture --sample`.
        total_ns_high: Option<f64> ["ns per reference"],
        /// Time to fill memory: faults that raise the peak of private memory or map resident pages, and first
        /// reads of files. Null without `--view machine`.
        start_ns: Option<f64> ["ns per reference"] as "start",
    }
    keys [machine, storage, memory_fraction | memory_bytes, page_bytes]
    metrics [
        total_ns less,
        translation_ns less,
        data_ns less,
        tlb_miss_rate less,
        fault_rate less,
        tlb_misses less,
        faults less,
        dirty_evictions less,
    ]
    seed []
}

/// Costs of events on one machine.
#[derive(Clone, Copy, Debug)]
pub struct Prices<'a> {
    pub name: &'a str,
    /// Times of a reference.
    pub times: AccessTimes,
    /// The kernel's time of a fault; required if pages have lifetimes (freed memory is modelled).
    pub faults: Option<FaultTimes>,
    pub storages: &'a [Storage],
    /// Charge a write for each dirty eviction.
    pub write_back: bool,
    /// Files are in the page cache when the program starts.
    pub warm: bool,
    /// Times of each page size with unlimited memory, for `--view machine`.
    pub machine: Option<&'a [Time]>,
}

/// For `--view machine`: the number of reads of pages that were in memory before, how many of these read
/// files, and the bytes per read. All three are for the study's smallest page size, because Linux reads
/// swap and files in 4 KiB pages.
fn repeated_reads(simulated: &Simulated, cell: &Cell) -> (u64, u64, u64) {
    let same_memory = simulated.cells.iter().filter(|other| {
        other.memory_bytes == cell.memory_bytes && other.memory_fraction == cell.memory_fraction
    });
    let smallest = same_memory.min_by_key(|cell| cell.page_bytes).unwrap_or(cell);
    let reads = smallest.faults.saturating_sub(smallest.pages);
    let files = smallest.kinds.file_rereads.min(reads);
    (reads, files, smallest.page_bytes)
}

/// Components of the time with `--view machine`, ns per reference.
#[derive(Clone, Copy)]
struct Spent {
    cpu_ns: f64,
    tlb_ns: f64,
    walk_ns: f64,
    cache_ns: f64,
    dram_ns: f64,
    fault_ns: f64,
    io_ns: f64,
    start_ns: f64,
}

/// The rows of a study: each [`Cell`] (page size x memory size) on each storage device.
///
/// T_A and T_D are those of [`AccessTimes`].
///
/// If pages have lifetimes, the cost of a fault depends on its kind: the kernel's time, plus clearing the
/// page for zero-fills, plus the read of a page from storage, t_IO(p), for files and swap. If files start
/// in the page cache, their first references cost the kernel's time and do not count as faults.
///
/// With `prices.machine`, T_A is the time of TLBs and walks, T_D all other time
/// ([`super::machine`]).
///
/// # Errors
/// If every memory has too few frames, if a two-level TLB was simulated and the machine has no time
/// for the second level, or if fault times are missing.
pub fn rows(simulated: &Simulated, prices: Prices<'_>) -> Result<Vec<Row>> {
    let Prices { name, times, faults, storages, write_back, warm, machine } = prices;
    let kernel = match (simulated.lifetimes, faults) {
        (true, None) => {
            return Err(Error::input("paging", "has no costs for kinds of faults", ""));
        }
        (true, faults) => faults,
        (false, _) => None,
    };
    if simulated.cells.is_empty()
        && let Some(smallest) = simulated.too_few_frames.iter().map(|cell| cell.page_bytes).min()
    {
        return Err(Error::input(
            "--memory",
            format!(
                "no size holds {MIN_FRAMES} pages of {smallest} bytes; with fewer pages, every program thrashes"
            ),
            format!("give {} bytes or more, or smaller --page-sizes", MIN_FRAMES * smallest),
        ));
    }
    let mut rows = Vec::with_capacity(simulated.cells.len() * storages.len());
    for cell in &simulated.cells {
        let time = machine.and_then(|times| times.iter().find(|t| t.page_bytes == cell.page_bytes));
        // `--view machine` compares page sizes, so all have the same number of references.
        let references = if time.is_some() { simulated.records } else { cell.references };
        let per_reference = |count: u64| count as f64 / references as f64;
        let tlb_miss_rate = per_reference(cell.tlb_misses);
        let mut kinds = cell.kinds;
        let mut faults = cell.faults;
        let mapped = if warm { std::mem::take(&mut kinds.file_reads) } else { 0 };
        faults -= mapped.min(faults);
        // Mapping a page that is in the page cache does not count as a fault.
        let rate = |count: f64, mapped: u64| (count - mapped as f64).max(0.0) / references as f64;
        let rates = |(low, high), mapped| (rate(low, mapped), rate(high, mapped));
        let (fault_rate_low, fault_rate_high) =
            cell.faults_interval.map(|counts| rates(counts, mapped)).unzip();
        let walks = cell.tlb_interval.filter(|_| time.is_none());
        let (tlb_miss_rate_low, tlb_miss_rate_high) = walks.map(|counts| rates(counts, 0)).unzip();
        let fault_rate = per_reference(faults);
        if cell.tlb_second_hits > 0 && times.stlb_ns.is_none() {
            return Err(Error::input(
                "--tlb",
                "has two levels, but the machine gives no time for the second",
                "add [tlb.second] to the machine file or give one level",
            ));
        }
        let translation_ns =
            times.translation_ns(tlb_miss_rate, per_reference(cell.tlb_second_hits));
        let (repeats, file_repeats, repeat_bytes) = repeated_reads(simulated, cell);
        // Share of file pages among repeated faults.
        let repeat_faults = kinds.swap_ins + kinds.file_rereads;
        let file_share = kinds.file_rereads as f64 / repeat_faults.max(1) as f64;
        for (index, storage) in storages.iter().enumerate() {
            let disk = storage.files();
            let io_ns = storage.io_ns(cell.page_bytes);
            // Extra time of a file read over a read from swap.
            let file_extra_ns = |bytes| disk.io_ns(bytes) - storage.io_ns(bytes);
            let FaultKinds { zero_fills, file_reads, swap_ins, file_rereads, .. } = kinds;
            let reads = per_reference(file_reads + swap_ins + file_rereads);
            let files = per_reference(file_reads + file_rereads);
            let data_ns = match kernel {
                None => times.data_ns(fault_rate, io_ns),
                Some(FaultTimes { fault_ns, zero_ns }) => {
                    let zero_ns = zero_ns * cell.page_bytes as f64;
                    times.dram_ns
                        + (per_reference(mapped) * fault_ns
                            + per_reference(zero_fills) * (fault_ns + zero_ns)
                            + reads * (fault_ns + io_ns)
                            + files * file_extra_ns(cell.page_bytes))
                }
            };
            let write_ns = match write_back {
                true => {
                    let [swap, file] = [storage, disk].map(|one| one.write_ns(cell.page_bytes));
                    per_reference(cell.dirty_evictions) * swap
                        + per_reference(kinds.write_backs) * (file - swap)
                }
                false => 0.0,
            };
            let spent = time.map(|time| {
                let ns = |total: f64| total / references as f64;
                let (repeats, of_files) = (per_reference(repeats), per_reference(file_repeats));
                let (mut first_ns, mut wait_ns) = (0.0, 0.0);
                if !warm {
                    first_ns = ns(time.file_requests as f64 * time.map_ns);
                    wait_ns = ns(time.file_ns[index]);
                }
                Spent {
                    cpu_ns: ns(time.cpu_ns),
                    tlb_ns: ns(time.tlb_ns),
                    walk_ns: ns(time.walk_ns),
                    cache_ns: ns(time.cache_ns),
                    dram_ns: ns(time.dram_ns),
                    fault_ns: ns(time.fault_ns - time.start_ns) + repeats * time.map_ns,
                    io_ns: repeats * storage.io_ns(repeat_bytes)
                        + of_files * file_extra_ns(repeat_bytes)
                        + write_ns,
                    start_ns: ns(time.start_ns) + first_ns + wait_ns,
                }
            });
            let (translation_ns, data_ns) = match &spent {
                None => (translation_ns, data_ns + write_ns),
                Some(spent) => {
                    let waits = spent.cache_ns + spent.dram_ns + spent.fault_ns + spent.io_ns;
                    (spent.tlb_ns + spent.walk_ns, spent.cpu_ns + waits + spent.start_ns)
                }
            };
            let total_ns = translation_ns + data_ns;
            // Marginal times of a fault and of a walk.
            let read_ns =
                |map_ns, bytes| map_ns + storage.io_ns(bytes) + file_share * file_extra_ns(bytes);
            // With `--view machine`, page walks have no interval.
            let (one_fault_ns, one_walk_ns) = match (time, kernel) {
                (Some(time), _) => (read_ns(time.map_ns, repeat_bytes), 0.0),
                (None, Some(kernel)) => (read_ns(kernel.fault_ns, cell.page_bytes), times.dram_ns),
                (None, None) => (io_ns, times.dram_ns),
            };
            let total_at = |fault: Option<f64>, walk: Option<f64>| {
                let more_walks = walk.map_or(0.0, |rate| rate - tlb_miss_rate);
                let more = |rate| (rate - fault_rate) * one_fault_ns + more_walks * one_walk_ns;
                fault.map(|rate| total_ns + more(rate))
            };
            let tlb = time.map_or((cell.tlb_misses, cell.tlb_second_hits), |time| {
                (time.walks, time.tlb_second_hits)
            });
            rows.push(Row {
                page_bytes: cell.page_bytes,
                memory_bytes: cell.memory_bytes,
                memory_fraction: cell.memory_fraction,
                frames: cell.frames,
                references,
                tlb_misses: tlb.0,
                tlb_miss_rate: per_reference(tlb.0),
                tlb_second_hits: tlb.1,
                faults,
                fault_rate,
                fault_rate_error: cell.faults_error.map(|e| e / references as f64),
                pages: cell.pages,
                dirty_evictions: cell.dirty_evictions,
                zero_fills: kinds.zero_fills,
                file_reads: kinds.file_reads,
                swap_ins: kinds.swap_ins,
                file_rereads: kinds.file_rereads,
                swap_outs: kinds.swap_outs,
                write_backs: kinds.write_backs,
                storage: storage.name.clone(),
                translation_ns,
                data_ns,
                total_ns,
                cpu_ns: spent.map(|spent| spent.cpu_ns),
                tlb_ns: spent.map(|spent| spent.tlb_ns),
                walk_ns: spent.map(|spent| spent.walk_ns),
                cache_ns: spent.map(|spent| spent.cache_ns),
                dram_ns: spent.map(|spent| spent.dram_ns),
                fault_ns: spent.map(|spent| spent.fault_ns),
                io_ns: spent.map(|spent| spent.io_ns),
                resident_bytes: time.map(|time| time.resident_bytes),
                read_first_share: time.map(|time| time.read_first_share),
                machine: name.to_owned(),
                fault_rate_low,
                fault_rate_high,
                tlb_miss_rate_low,
                tlb_miss_rate_high,
                total_ns_low: total_at(fault_rate_low, tlb_miss_rate_low),
                total_ns_high: total_at(fault_rate_high, tlb_miss_rate_high),
                start_ns: spent.map(|spent| spent.start_ns),
            });
        }
    }
    Ok(rows)
}
