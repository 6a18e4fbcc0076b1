//! The `thp` study: a program under the kernel's settings for transparent huge pages.
//!
//! One pass over the trace simulates all settings with [`crate::paging::machine`]: private memory, TLBs, page
//! walks, faults, reclaim, swap, and khugepaged by the program's clock. Memory for files is not limited.

mod areas;

use nearfar_hardware::Machine;
use nearfar_hardware::Storage;
use nearfar_hardware::machine::MachineName;
use nearfar_hardware::processor::{Hierarchy, Processor};
use nearfar_kernel::replacement;
use nearfar_kernel::thp::khugepaged::Rules;
use nearfar_kernel::thp::{HUGE, ORDERS, Policy};
use nearfar_schema::{Bytes, Choice, Count, List, Nanoseconds, OneMemory, Runtime, none};
use nearfar_trace::{Error, KindSet, Reader, Result};

use crate::lifetimes;
use crate::paging;
use crate::paging::explain::memory_bytes;
use crate::paging::machine::touches::{Chunk, Touches};
use crate::paging::machine::waits::{Moment, PageSize};
use crate::paging::machine::{self, Settings};
use crate::paging::options::MemorySize;
pub use areas::Area;
use areas::{Areas, Born};

/// Faults longer than 100 us are stalls.
const STALL_NS: f64 = 100e3;
/// log2 of 4 KiB.
const SMALL: u32 = 12;
/// Minimum memory: far more than a thread's most recent pages, to which references are not simulated.
const MIN_PAGES: u64 = 64;

nearfar_schema::choices! {
    /// Kernel versions, which differ in the page size of a write to the huge zero page.
    pub enum Linux: "kernel" {
        /// or older: the first write to a 2 MiB range that was only read allocates a 4 KiB page
        Older = "6.12",
        /// or later: the first write to a 2 MiB range that was only read allocates a 2 MiB page
        Newer = "6.13",
    }
}

nearfar_schema::options! {
    /// The options of a study of huge pages as they are written.
    pub struct Request {
        /// Settings of huge pages to compare: a name, or a setting for each page size, such as
        /// 64K=always+2M=madvise.
        policy: List<Policy> = "never,madvise,always,64K=always",
        /// Machine name or file; it must describe the processor.
        machine: Option<MachineName> = none("here, if this machine was measured, else nvme"),
        /// Page size that the host uses for a virtual machine's memory: page walks then include the
        /// host's page table.
        nested: Option<Bytes> = none("from the machine file"),
        /// Version of the Linux kernel to model.
        #[metavar = "VERSION"]
        linux: Linux = "6.13",
        /// Free memory in blocks of 2 MiB when the program begins. A fault that finds none takes small
        /// pages, or compacts memory if the program advised huge pages there.
        free_huge: Option<Bytes> = none("as much as is needed"),
        /// Limit of private memory, as a share of the peak resident set (50%) or bytes (512M). At the limit,
        /// huge pages are split and memory is swapped.
        memory: Option<OneMemory> = none("unlimited"),
        /// Storage device that memory is swapped to.
        #[metavar = "NAME"]
        storage: Option<String> = none("the machine's first"),
        /// khugepaged: time between two scans.
        scan_sleep: Nanoseconds = "10s",
        /// khugepaged: number of 4 KiB pages per scan; 0 switches khugepaged off.
        pages_to_scan: Count<0, 1_000_000_000> = 4096,
        /// khugepaged: a range becomes a huge page if at most this many of its 512 pages are empty.
        /// When memory is short, a huge page with more empty pages is split, unless this is 511.
        max_ptes_none: Count<0, 511> = 511,
        /// khugepaged: a range becomes a huge page if at most this many of its 512 pages are shared
        /// with another process.
        max_ptes_shared: Count<0, 511> = 256,
        /// khugepaged: a range becomes a huge page if at most this many of its 512 pages are in swap.
        max_ptes_swap: Count<0, 511> = 64,
        /// Also show time and memory of each area, such as the heap, and which madvise suits it.
        by_area: bool = false,
        /// Number of points in time at which the result gives memory use.
        points: Count<1, 100_000> = 100,
        /// Threads; 0 = one per core.
        threads: Runtime<Count<0, 1024>> = 0,
    }
}

nearfar_schema::columns! {
    /// A row of the study: a program under one policy. Times are averages per reference.
    pub struct Row {
        /// Setting of huge pages, as in `--policy`.
        policy: String,
        /// References.
        references: u64,
        /// Total time.
        total_ns: f64 ["ns per reference"] as "time",
        /// Executing instructions, without waiting for misses.
        cpu_ns: f64 ["ns per reference"] as "cpu",
        /// Waiting for the second level of the TLB.
        tlb_ns: f64 ["ns per reference"] as "TLB",
        /// Waiting for page walks.
        walk_ns: f64 ["ns per reference"] as "walks",
        /// Waiting for CPU caches of the second and third level.
        cache_ns: f64 ["ns per reference"] as "caches",
        /// Waiting for memory.
        dram_ns: f64 ["ns per reference"] as "memory",
        /// The kernel's time for faults that `start_ns` does not count: on memory freed before,
        /// copies on write, reads from swap.
        fault_ns: f64 ["ns per reference"] as "faults",
        /// The kernel's time for faults that raise the peak of private memory or map existing pages.
        start_ns: f64 ["ns per reference"] as "start",
        /// Waiting for swap.
        io_ns: f64 ["ns per reference"] as "I/O",
        /// Peak mapped private memory, as `RssAnon` counts it.
        peak_bytes: u64 ["bytes"] as "peak",
        /// Mean mapped private memory over time.
        mean_bytes: f64 ["bytes"] as "mean",
        /// Peak memory of pages mapped at least in part, each counted whole, as memory control groups do.
        held_bytes: u64 ["bytes"] as "held",
        /// Mean share of mapped private memory in pages of 2 MiB.
        huge_share: f64 ["share"] as "huge",
        /// Page walks.
        walks: u64 as "page walks",
        /// Faults on private memory.
        faults: u64,
        /// Faults that allocated a page of 2 MiB.
        huge_faults: u64 as "huge faults",
        /// Faults that took smaller pages, because no block of 2 MiB was free or memory was at its limit.
        fallbacks: u64,
        /// Faults that compacted memory to free a block of 2 MiB; the time of compaction is not modelled.
        compactions: u64,
        /// Ranges of 2 MiB that khugepaged or `MADV_COLLAPSE` merged into one page.
        merges: u64,
        /// Pages of 2 MiB that became small pages.
        splits: u64,
        /// Faults of more than 100 us.
        stalls: u64,
        /// The longest fault.
        longest_ns: f64 ["ns"] as "longest fault",
        /// Limit of private memory; null if unlimited.
        memory_bytes: Option<u64> ["bytes"] as "memory",
        /// Large pages that were split at the memory limit to free their empty parts.
        shrunk: u64 as "splits at the limit",
        /// Pages of 4 KiB that were read from swap.
        swap_ins: u64 as "swap-ins",
        /// 4 KiB pages swapped out, including those whose copy was still in swap.
        swap_outs: u64 as "swap-outs",
    }
    keys [policy]
    metrics [total_ns less, peak_bytes less, mean_bytes less, stalls less, walks less]
    seed []
}

nearfar_schema::columns! {
    /// A point in time of a run under a policy: the middle of one of equal parts of the run.
    pub struct Point {
        /// Setting of huge pages, as in `--policy`.
        policy: String,
        /// Number of the point, from 0.
        point: u64,
        /// Time since the program began.
        ns: f64 ["ns"] as "time",
        /// Private memory that is mapped.
        mapped_bytes: u64 ["bytes"] as "mapped",
        /// Mapped private memory in pages of 2 MiB.
        huge_bytes: u64 ["bytes"] as "huge",
    }
    keys [policy, point]
    metrics [mapped_bytes less]
    seed []
}

/// A study, with its options checked.
pub struct Study {
    /// The options as given, with the storage for swap.
    pub request: Request,
    settings: Vec<Settings>,
    processor: Processor,
    /// For swap, if memory is limited.
    storage: Option<Storage>,
}

/// The result of a study.
pub struct Outcome {
    pub rows: Vec<Row>,
    pub points: Vec<Point>,
    /// Empty without `--by-area`.
    pub areas: Vec<Area>,
    /// The trace has lifetimes.
    pub lifetimes: bool,
}

impl Study {
    /// Check a request for a machine.
    ///
    /// # Errors
    /// If an option is invalid, or the machine file does not describe the processor.
    pub fn new(machine: &Machine, mut request: Request) -> Result<Self> {
        let policies = &request.policy.0;
        let twice = |policy: &&Policy| policies.iter().filter(|other| other == policy).count() > 1;
        if let Some(policy) = policies.iter().find(twice) {
            let what = format!("{:?} is given twice", policy.name);
            return Err(Error::input("--policy", what, "give different policies"));
        }
        let rules = Rules {
            sleep_ns: request.scan_sleep.0 as f64,
            pages: request.pages_to_scan.0,
            max_none: request.max_ptes_none.0,
            max_shared: request.max_ptes_shared.0,
            max_swap: request.max_ptes_swap.0,
        };
        let free = request.free_huge.map_or(u64::MAX, |free| free.0 >> SMALL >> HUGE);
        let settings = |policy: &Policy| {
            let mut policy = policy.clone();
            policy.splits_zero = request.linux == Linux::Older;
            Settings {
                policy,
                khugepaged: (rules.pages > 0).then_some(rules),
                free,
                limit: None,
                max_none: rules.max_none,
            }
        };
        let settings = policies.iter().map(settings).collect();
        let processor = machine.processor(request.nested.map(|size| size.0))?;
        let storage = match (&request.memory, &request.storage) {
            (None, None) => None,
            (None, Some(_)) => {
                let what = "has no effect without --memory, at whose limit memory is swapped";
                return Err(Error::input("--storage", what, "add --memory"));
            }
            (Some(_), name) => {
                let first = machine.storage.keys().next().map_or("swap", String::as_str);
                Some(machine.storage(name.as_deref().unwrap_or(first))?)
            }
        };
        request.storage = storage.as_ref().map(|storage| storage.name.clone());
        Ok(Self { request, settings, processor, storage })
    }

    /// Simulate each policy.
    ///
    /// # Errors
    /// If the trace cannot be read; errors of `on_progress`.
    pub fn run(
        &self,
        reader: &Reader,
        on_progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Outcome> {
        paging::check_nested(reader, self.request.nested)?;
        // Without events, all memory is private and in no area, so khugepaged has nothing to scan.
        let has_lifetimes = lifetimes::known(reader)?;
        let threads = self.request.threads.0.0 as usize;
        let options = options(threads, self.request.memory.as_ref())?;
        let bytes = match &self.request.memory {
            None => None,
            Some(_) => {
                // The pass that measures memory is not part of the progress.
                let (_, bytes) = memory_bytes(reader, &options, &mut |_| on_progress(0))?;
                Some(bytes)
            }
        };
        let hierarchy = Hierarchy::new(&self.processor.caches);
        let mut touches =
            Touches::new(reader, &options, &self.processor, hierarchy, has_lifetimes)?;
        touches.watch_areas();
        let limit = bytes.map(|bytes| bytes >> SMALL);
        if limit.is_some_and(|limit| limit < MIN_PAGES) {
            let what =
                format!("is less than {MIN_PAGES} pages of 4 KiB, which is too few to predict");
            return Err(Error::input("--memory", what, "give more memory"));
        }
        let mut areas = self.request.by_area.then(|| Areas::new(reader)).transpose()?;
        let simulation = |settings: &Settings| {
            let settings = Settings { limit, ..settings.clone() };
            // No storage for files; `swapping` sets the time of swap.
            let page_size = PageSize::with_settings(&settings, &self.processor, &[]).recorded();
            let page_size = if areas.is_some() { page_size.by_area() } else { page_size };
            match limit {
                Some(_) => page_size.swapping(self.swap_ns()),
                None => page_size,
            }
        };
        let mut page_sizes: Vec<PageSize> = self.settings.iter().map(simulation).collect();
        match &mut areas {
            None => {
                let chunk = |page_size: &mut PageSize, chunk: &Chunk, (): &()| {
                    page_size.chunk(chunk, &mut ())
                };
                // The observer `()` ignores the references.
                let callbacks = (&mut (), |(): &mut ()| (), chunk);
                machine::simulate(&mut touches, &mut page_sizes, threads, callbacks, on_progress)?;
            }
            Some(areas) => {
                let chunk = |page_size: &mut PageSize, chunk: &Chunk, born: &Vec<u32>| {
                    page_size.chunk(chunk, &mut Born(born.iter()));
                };
                let callbacks = (areas, Areas::take, chunk);
                machine::simulate(&mut touches, &mut page_sizes, threads, callbacks, on_progress)?;
            }
        }
        let named = areas.map(Areas::finish);
        let mut outcome = Outcome {
            rows: Vec::new(),
            points: Vec::new(),
            areas: Vec::new(),
            lifetimes: has_lifetimes,
        };
        let references = touches.records();
        for (mut page_size, Settings { policy, .. }) in page_sizes.into_iter().zip(&self.settings) {
            let (name, course) = (&policy.name, page_size.course());
            if let Some(named) = &named {
                let lasted_ns = course.last().map_or(0.0, |last| last.ns);
                let times = (references, lasted_ns, self.processor.map_ns);
                outcome.areas.extend(named.rows(name, &mut page_size, times));
            }
            let row = self.row(name, page_size, &course, (touches.totals(), references));
            outcome.rows.push(Row { memory_bytes: bytes, ..row });
            outcome.points.extend(at_equal_times(name, &course, self.request.points.0));
        }
        Ok(outcome)
    }

    /// Nanoseconds to read a page from swap; 0 without a memory limit.
    fn swap_ns(&self) -> f64 {
        self.storage.as_ref().map_or(0.0, |storage| storage.io_ns(1 << SMALL))
    }

    fn row(
        &self,
        policy: &str,
        page_size: PageSize,
        course: &[Moment],
        (totals, references): ((u64, u64), u64),
    ) -> Row {
        let (faults, events, peak) = page_size.counts();
        let time = page_size.time(totals);
        let ns = |total: f64| total / references.max(1) as f64;
        let (mut mapped, mut huge) = (0.0, 0.0);
        for pair in course.windows(2) {
            let passed = pair[1].ns - pair[0].ns;
            mapped += passed * pair[0].mapped_bytes as f64;
            huge += passed * pair[0].huge_bytes as f64;
        }
        let lasted = course.last().map_or(0.0, |last| last.ns).max(1.0);
        // Duration and number of each kind of fault.
        let allocated = (0..ORDERS)
            .map(|order| (self.processor.zero_fill_ns(SMALL + order as u32), faults.pages[order]));
        let swapped = (self.processor.map_ns + self.swap_ns(), faults.swap_ins);
        let kinds = allocated.chain([swapped]).filter(|(_, count)| *count > 0);
        let stalls = kinds.clone().filter(|(ns, _)| *ns > STALL_NS);
        let waits = time.tlb_ns + time.walk_ns + time.cache_ns + time.dram_ns;
        let io_ns = faults.swap_ins as f64 * self.swap_ns();
        Row {
            policy: policy.to_owned(),
            references,
            total_ns: ns(time.cpu_ns + waits + time.fault_ns + io_ns),
            cpu_ns: ns(time.cpu_ns),
            tlb_ns: ns(time.tlb_ns),
            walk_ns: ns(time.walk_ns),
            cache_ns: ns(time.cache_ns),
            dram_ns: ns(time.dram_ns),
            fault_ns: ns(time.fault_ns - time.start_ns),
            start_ns: ns(time.start_ns),
            io_ns: ns(io_ns),
            peak_bytes: peak,
            mean_bytes: mapped / lasted,
            held_bytes: time.resident_bytes,
            huge_share: if mapped > 0.0 { huge / mapped } else { 0.0 },
            walks: time.walks,
            faults: faults.count(),
            huge_faults: faults.pages[HUGE as usize],
            fallbacks: events.fallbacks,
            compactions: events.compactions,
            merges: events.merges,
            splits: events.splits,
            stalls: stalls.map(|(_, count)| count).sum(),
            longest_ns: kinds.map(|(ns, _)| ns).fold(0.0, f64::max),
            memory_bytes: None,
            shrunk: events.shrunk,
            swap_ins: faults.swap_ins + events.merge_swap_ins,
            swap_outs: events.swap_outs,
        }
    }
}

/// The options of the pass over the trace, in which TLB and replacement have no effect.
fn options(threads: usize, memory: Option<&OneMemory>) -> Result<paging::Options> {
    let clock = Choice::of(replacement::REPLACEMENTS[0].name);
    let policy = clock.ok_or_else(|| Error::input("thp", "has no replacement", ""))?;
    let tlb = "64".parse().map_err(|wrong: String| Error::input("--tlb", wrong, ""))?;
    let sizes = vec![1 << SMALL];
    let memory = vec![memory.map_or(MemorySize::Fraction(1.0), |memory| memory.size)];
    let options = paging::Options::new(sizes, memory, tlb, policy, KindSet::ALL)?;
    Ok(paging::Options { lifetimes: true, files: false, threads, ..options })
}

/// Memory in the middle of each of `points` equal parts of the run.
fn at_equal_times<'a>(
    policy: &'a str,
    course: &'a [Moment],
    points: u64,
) -> impl Iterator<Item = Point> + 'a {
    let lasted = course.last().map_or(0.0, |last| last.ns);
    (0..points).map(move |point| {
        let ns = lasted * (point as f64 + 0.5) / points as f64;
        let after = course.partition_point(|moment| moment.ns <= ns);
        let moment = course.get(after.saturating_sub(1)).copied().unwrap_or_default();
        let Moment { mapped_bytes, huge_bytes, .. } = moment;
        Point { policy: policy.to_owned(), point, ns, mapped_bytes, huge_bytes }
    })
}
