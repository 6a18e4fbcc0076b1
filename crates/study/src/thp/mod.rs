//! The `thp` study: a program under the kernel's settings for transparent huge pages.
//!
//! One pass over the trace, as the machine's view of [`crate::paging`]; what differs between settings
//! is simulated for each: the pages of private memory, TLBs and page walks, faults, and khugepaged in
//! the program's own time. Memory is unlimited, and files are in memory.

use nearfar_hardware::Machine;
use nearfar_hardware::machine::MachineName;
use nearfar_hardware::processor::{Hierarchy, Processor};
use nearfar_kernel::replacement;
use nearfar_kernel::thp::khugepaged::Rules;
use nearfar_kernel::thp::{HUGE, ORDERS, Policy};
use nearfar_schema::{Bytes, Choice, Count, List, Nanoseconds, Runtime, none};
use nearfar_trace::{Error, KindSet, Reader, Result};

use crate::lifetimes;
use crate::paging;
use crate::paging::machine::touches::{Chunk, Touches};
use crate::paging::machine::waits::{Moment, PageSize};
use crate::paging::machine::{self, Settings};
use crate::paging::options::MemorySize;

/// A fault that takes longer stalls its thread noticeably.
const STALL_NS: f64 = 100e3;
/// log2 of 4 KiB and of 2 MiB.
const SMALL: u32 = 12;

nearfar_schema::options! {
    /// The options of a study of huge pages as they are written.
    pub struct Request {
        /// Settings to compare: `never`, `madvise`, `always`, `defer`, or where each size is used, such
        /// as 64K=always+2M=madvise.
        policy: List<Policy> = "never,madvise,always,64K=always",
        /// Machine name or file; it must describe the processor.
        machine: Option<MachineName> = none("here, if this machine was measured, else nvme"),
        /// Page size that the host uses for a virtual machine's memory: page walks then include the
        /// host's page table.
        nested: Option<Bytes> = none("from the machine file"),
        /// Free memory in blocks of 2 MiB when the program begins. A fault that finds none takes small
        /// pages, or makes room if the program asked for huge pages there.
        free_huge: Option<Bytes> = none("as much as is needed"),
        /// khugepaged: time between two scans.
        scan_sleep: Nanoseconds = "10s",
        /// khugepaged: 4 KiB pages of a scan; 0 switches it off.
        pages_to_scan: Count<0, 1_000_000_000> = 4096,
        /// khugepaged: empty pages, of 512, with which a range becomes a huge page.
        max_ptes_none: Count<0, 511> = 511,
        /// khugepaged: pages, of 512, that a forked process may share.
        max_ptes_shared: Count<0, 511> = 256,
        /// Points of the course over time.
        points: Count<1, 100_000> = 100,
        /// Threads; 0 = one per core.
        threads: Runtime<Count<0, 1024>> = 0,
    }
}

nearfar_schema::columns! {
    /// A row of the study: a program under one policy. Times are averages per reference.
    pub struct Row {
        /// The policy.
        policy: String,
        /// References.
        references: u64,
        /// All time.
        total_ns: f64 ["ns per reference"] as "time",
        /// Instructions, when nothing misses.
        cpu_ns: f64 ["ns per reference"] as "cpu",
        /// Waiting for the second level of the TLB.
        tlb_ns: f64 ["ns per reference"] as "TLB",
        /// Waiting for page walks.
        walk_ns: f64 ["ns per reference"] as "walks",
        /// Waiting for caches.
        cache_ns: f64 ["ns per reference"] as "caches",
        /// Waiting for memory.
        dram_ns: f64 ["ns per reference"] as "memory",
        /// Faults on memory that was freed before, and copies.
        fault_ns: f64 ["ns per reference"] as "faults",
        /// Faults that fill memory for the first time.
        start_ns: f64 ["ns per reference"] as "start",
        /// Most private memory that was mapped at once, as `RssAnon` counts it.
        peak_bytes: u64 ["bytes"] as "peak",
        /// Its mean over time.
        mean_bytes: f64 ["bytes"] as "mean",
        /// Most memory in pages of which a part is mapped, as a memory limit counts it.
        held_bytes: u64 ["bytes"] as "held",
        /// Mean share of mapped private memory in pages of 2 MiB.
        huge_share: f64 ["share"] as "huge",
        /// Page walks.
        walks: u64 as "page walks",
        /// Faults on private memory.
        faults: u64,
        /// Faults that allocated a page of 2 MiB.
        huge_faults: u64 as "huge faults",
        /// Faults that found no free block of 2 MiB.
        fallbacks: u64,
        /// Faults that made a free block of 2 MiB; their time is not known.
        compactions: u64,
        /// Ranges that became a page of 2 MiB later, by khugepaged or `MADV_COLLAPSE`.
        merges: u64,
        /// Pages of 2 MiB that became small pages.
        splits: u64,
        /// Faults of more than 100 us.
        stalls: u64,
        /// The longest fault.
        longest_ns: f64 ["ns"] as "longest fault",
    }
    keys [policy]
    metrics [total_ns less, peak_bytes less, mean_bytes less, stalls less, walks less]
    seed []
}

nearfar_schema::columns! {
    /// A point in time of a run under a policy; the points divide the run into equal parts.
    pub struct Point {
        /// The policy.
        policy: String,
        /// Number of the point, from 0.
        point: u64,
        /// Time since the program began.
        ns: f64 ["ns"] as "time",
        /// Private memory that is mapped.
        mapped_bytes: u64 ["bytes"] as "mapped",
        /// The part in pages of 2 MiB.
        huge_bytes: u64 ["bytes"] as "huge",
    }
    keys [policy, point]
    metrics [mapped_bytes less]
    seed []
}

/// A study, with its options checked.
pub struct Study {
    /// The options as they were given.
    pub request: Request,
    settings: Vec<Settings>,
    processor: Processor,
}

impl Study {
    /// Check a request for a machine.
    ///
    /// # Errors
    /// If an option is invalid, or the machine file does not describe the processor.
    pub fn new(machine: &Machine, request: Request) -> Result<Self> {
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
        };
        let free = request.free_huge.map_or(u64::MAX, |free| free.0 >> SMALL >> HUGE);
        let settings = |policy: &Policy| Settings {
            policy: policy.clone(),
            khugepaged: (rules.pages > 0).then_some(rules),
            free,
        };
        let settings = policies.iter().map(settings).collect();
        let processor = machine.processor(request.nested.map(|size| size.0))?;
        Ok(Self { request, settings, processor })
    }

    /// The rows and the course of each policy, and whether the trace says what was mapped.
    ///
    /// # Errors
    /// If the trace cannot be read; errors of `on_progress`.
    pub fn run(
        &self,
        reader: &Reader,
        on_progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<(Vec<Row>, Vec<Point>, bool)> {
        // Without events, all memory is private and in no area, so khugepaged finds nothing.
        let lives = lifetimes::known(reader)?;
        let threads = self.request.threads.0.0 as usize;
        let options = options(threads)?;
        let hierarchy = Hierarchy::new(&self.processor.caches);
        let mut touches = Touches::new(reader, &options, &self.processor, hierarchy, lives)?;
        touches.watch_areas();
        let on = |settings| PageSize::with(settings, &self.processor, &[]).recorded();
        let mut all: Vec<PageSize> = self.settings.iter().map(on).collect();
        let chunk = |one: &mut PageSize, chunk: &Chunk, (): &()| one.chunk(chunk, &mut ());
        machine::simulate(&mut touches, &mut all, threads, (&mut (), |()| (), chunk), on_progress)?;
        let (mut rows, mut points) = (Vec::new(), Vec::new());
        for (one, Settings { policy, .. }) in all.into_iter().zip(&self.settings) {
            let name = &policy.name;
            let (row, course) = self.row(name, one, touches.totals(), touches.records());
            rows.push(row);
            points.extend(at_equal_times(name, &course, self.request.points.0));
        }
        Ok((rows, points, lives))
    }

    fn row(
        &self,
        policy: &str,
        mut one: PageSize,
        totals: (u64, u64),
        references: u64,
    ) -> (Row, Vec<Moment>) {
        let course = one.course();
        let (faults, events, peak) = one.happened();
        let time = one.time(totals);
        let ns = |total: f64| total / references.max(1) as f64;
        let (mut mapped, mut huge) = (0.0, 0.0);
        for two in course.windows(2) {
            let passed = two[1].ns - two[0].ns;
            mapped += passed * two[0].mapped_bytes as f64;
            huge += passed * two[0].huge_bytes as f64;
        }
        let lasted = course.last().map_or(0.0, |last| last.ns).max(1.0);
        let used = (0..ORDERS).filter(|order| faults.pages[*order] > 0);
        let fault_ns = |order: usize| self.processor.zero_fill_ns(SMALL + order as u32);
        let stalls = used.clone().filter(|order| fault_ns(*order) > STALL_NS);
        let waits = time.tlb_ns + time.walk_ns + time.cache_ns + time.dram_ns;
        let row = Row {
            policy: policy.to_owned(),
            references,
            total_ns: ns(time.cpu_ns + waits + time.fault_ns),
            cpu_ns: ns(time.cpu_ns),
            tlb_ns: ns(time.tlb_ns),
            walk_ns: ns(time.walk_ns),
            cache_ns: ns(time.cache_ns),
            dram_ns: ns(time.dram_ns),
            fault_ns: ns(time.fault_ns - time.start_ns),
            start_ns: ns(time.start_ns),
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
            stalls: stalls.map(|order| faults.pages[order]).sum(),
            longest_ns: used.map(fault_ns).fold(0.0, f64::max),
        };
        (row, course)
    }
}

/// The options of the pass over the trace.
fn options(threads: usize) -> Result<paging::Options> {
    let clock = Choice::of(replacement::REPLACEMENTS[0].name);
    let policy = clock.ok_or_else(|| Error::input("thp", "has no replacement", ""))?;
    let tlb = "64".parse().map_err(|wrong: String| Error::input("--tlb", wrong, ""))?;
    let sizes = vec![1 << SMALL];
    let all = vec![MemorySize::Fraction(1.0)];
    let options = paging::Options::new(sizes, all, tlb, policy, KindSet::ALL)?;
    Ok(paging::Options { lifetimes: true, threads, ..options })
}

/// The course at equal steps of time.
fn at_equal_times<'a>(
    policy: &'a str,
    course: &'a [Moment],
    points: u64,
) -> impl Iterator<Item = Point> + 'a {
    let lasted = course.last().map_or(0.0, |last| last.ns);
    (0..points).map(move |point| {
        // In the middle of each part.
        let ns = lasted * (point as f64 + 0.5) / points as f64;
        let after = course.partition_point(|moment| moment.ns <= ns);
        let moment = course.get(after.saturating_sub(1)).copied().unwrap_or_default();
        let Moment { mapped_bytes, huge_bytes, .. } = moment;
        Point { policy: policy.to_owned(), point, ns, mapped_bytes, huge_bytes }
    })
}
