//! Options of a paging study: parsed and checked.

use nearfar_hardware::Machine;
use nearfar_hardware::machine::MachineNames;
use nearfar_hardware::tlb::TlbSpec;
use nearfar_kernel::replacement::linux::MAX_SWAPPINESS;
use nearfar_kernel::replacement::{self, PolicyEntry, Replacements, Setup};
pub use nearfar_schema::units::MemorySize;
use nearfar_schema::units::parse_page_sizes;
use nearfar_schema::{Bytes, Choice, Count, List, PageSizes, Runtime, Share, none};
use nearfar_trace::record::Kinds;
use nearfar_trace::{Error, KindSet, Reader, Result};

use super::cell::{MIN_FRAMES, Memory, TooFewFrames};
use super::machine;
use crate::filter::Filter;
pub use crate::lifetimes::Lifetimes;
use crate::lifetimes::Spaces;

/// Smallest page size, bytes: a cache line.
pub const MIN_PAGE: u64 = 64;
/// Largest page size, bytes.
pub const MAX_PAGE: u64 = 1 << 40;
/// The kernel's default swappiness.
const SWAPPINESS: u64 = 60;
/// Default of `--tlb`.
const TLB: &str = "64";
/// Default of `--page-sizes`.
const PAGE_SIZES: &str = "512,1K,...,2M";
/// Default of `--statistics-every`: Linux's statistics are always up to date.
const STATISTICS_EVERY: u64 = 1;
/// Default of [`Options::prefetch_pages`].
const PREFETCH_PAGES: usize = 1 << 14;
pub const MAX_MEMORIES: usize = 1024;

nearfar_schema::choices! {
    /// Whether files are in the page cache at the start.
    pub enum PageCache: "state of the page cache" {
        /// the first reference to a page of a file reads it from storage
        Cold = "cold",
        /// files are in the page cache; first faults on their pages are not counted
        Warm = "warm",
        /// files are in the page cache and take none of the simulated memory, as if charged to
        /// another control group
        Elsewhere = "elsewhere",
    }
}

nearfar_schema::choices! {
    /// How the time of a reference is computed.
    pub enum View: "view" {
        /// equations 1 to 3 of paper 000 on page-size advice, as published
        Paper = "paper",
        /// a model of the processor (caches, TLBs, page walks) and of the kernel's time for faults
        Machine = "machine",
    }
}

nearfar_schema::options! {
    /// The options of a paging study as they are written.
    pub struct Request {
        /// Page sizes, powers of two from 64 bytes to 1 TiB; `...`: all powers of two between. The default of
        /// `--view machine` is what Linux supports for anonymous memory: 4 KiB, and 16 KiB to 2 MiB.
        page_sizes: PageSizes = PAGE_SIZES,
        /// Memory sizes: shares of the peak resident set (50%) or bytes (512M); `10%,...,100%` has steps of
        /// 10 %.
        memory: nearfar_schema::Memory = "10%,...,100%",
        /// The TLB (LRU), for `--view paper`: entries (64), entries x ways (64x4), or two levels
        /// (64+1536x12).
        tlb: TlbSpec = TLB,
        /// Page replacement policy.
        replacement: Choice<Replacements> = "clock",
        /// The kernel's vm.swappiness, for `--replacement linux` or `mglru`: preference for evicting
        /// anonymous pages over file pages, from 0 to 200.
        swappiness: Count<0, MAX_SWAPPINESS> = SWAPPINESS,
        /// For `--replacement linux`: faults between updates of the statistics that balance the page lists; 0
        /// = no updates. A kernel updates them every two seconds.
        statistics_every: Count = STATISTICS_EVERY,
        /// Machine name or file; comma-separated machines are compared as whole hosts.
        machine: Option<MachineNames> = none("here, if this machine was measured, else nvme"),
        /// Names of storage devices to compare: of the machine or, with a single --machine, of built-in
        /// machines.
        #[metavar = "NAMES"]
        storage: Option<List<String>> = none("all"),
        /// Kinds of references to include.
        kinds: Option<List<Choice<Kinds>>> = none("all"),
        /// References to simulate: all (`none`), or those that miss the machine's caches.
        filter: Filter = "none",
        /// Whether memory is freed when the program unmaps it, if the trace records that.
        lifetimes: Lifetimes = "on",
        /// Whether files are in the page cache at the start.
        page_cache: PageCache = "cold",
        /// Charge a write for each eviction of a dirty page.
        write_back: bool = false,
        /// How the time of a reference is computed.
        view: Option<View> = none("machine if the machine file describes the processor, else paper"),
        /// Page size that the host uses for a virtual machine's memory, for `--view machine`: page
        /// walks then include the host's page table.
        nested: Option<Bytes> = none("from the machine file"),
        /// Accepted slowdown with the recommended memory size, relative to memory for the whole resident set.
        slowdown: Share = crate::SLOWDOWN,
        /// Choose the page size by the whole run, including the time to fill memory; otherwise by the time
        /// without filling memory. For `--view machine`.
        whole: bool = false,
        /// Threads; 0 = one per core.
        threads: Runtime<Count<0, 1024>> = 0,
        /// Memory limit of the simulation; if it needs more, it reads the trace several times.
        max_memory: Runtime<Bytes> = "12G",
    }
}

impl Request {
    /// The requested view. By default [`View::Machine`], if the machine's file describes the processor
    /// and no option requires [`View::Paper`].
    pub fn view_on(&self, machine: &Machine) -> View {
        let supports_machine_view = || {
            self.tlb.to_string() == TLB
                && self.filter == Filter::None
                && (self.has_default_pages() || machine::check(&self.page_sizes.0).is_ok())
                && machine.processor(None).is_ok()
        };
        self.view.unwrap_or_else(|| match supports_machine_view() {
            true => View::Machine,
            false => View::Paper,
        })
    }

    fn has_default_pages(&self) -> bool {
        parse_page_sizes(PAGE_SIZES).as_ref() == Ok(&self.page_sizes.0)
    }
}

/// Options of a paging study, checked.
#[derive(Clone, Debug)]
pub struct Options {
    /// Page sizes, bytes: powers of two, ascending, each once.
    pub page_sizes: Vec<u64>,
    /// Smallest page size of the study, even if `page_sizes` is a subset. The unit of lifetimes has this
    /// size, but at most 4 KiB.
    pub finest: u64,
    pub memory: Vec<MemorySize>,
    /// Memories with fewer frames are not simulated.
    pub min_frames: u64,
    /// Number of pages above which page state is prefetched. Affects speed only.
    pub prefetch_pages: usize,
    pub tlb: TlbSpec,
    pub replacement: PolicyEntry,
    /// The kernel's `vm.swappiness`.
    pub swappiness: u64,
    /// Faults between two updates of Linux's statistics; 0 = never.
    pub statistics_every: u64,
    /// Kinds of references to include.
    pub kinds: KindSet,
    /// Pages have lifetimes if the trace has events.
    pub lifetimes: bool,
    /// With lifetimes: file pages take frames.
    pub files: bool,
    /// The trace was filtered, and lacks the stores that hit CPU caches.
    pub filtered: bool,
    /// Threads; 0 = one per core.
    pub threads: usize,
    /// Memory limit of the simulation in bytes; large footprints take several passes.
    pub max_memory: u64,
}

impl TryFrom<&Request> for Options {
    type Error = Error;

    fn try_from(request: &Request) -> Result<Self> {
        let kinds = request.kinds.as_ref().map_or(KindSet::ALL, |kinds| KindSet::of(&kinds.0));
        let mut page_sizes = request.page_sizes.0.clone();
        let refuse = |flag: &str, what: &str, fix: &str| Err(Error::input(flag, what, fix));
        if request.view == Some(View::Machine) {
            if request.has_default_pages() {
                // Linux has no anonymous pages of 8 KiB (`THP_ORDERS_ALL_ANON`).
                page_sizes
                    .retain(|size| size >> machine::SMALL != 2 && *size >= 1 << machine::SMALL);
            }
            machine::check(&page_sizes)?;
            if request.tlb.to_string() != TLB {
                let what = "does not apply to --view machine, which has the machine's TLBs";
                return refuse("--tlb", what, "change the machine: --set tlb.first.entries=128");
            }
            if request.filter != Filter::None {
                let what = "does not apply to --view machine, which simulates the machine's caches";
                return refuse("--filter", what, "leave it out, or use --view paper");
            }
        } else if request.nested.is_some() {
            let what = "does not apply to --view paper";
            return refuse("--nested", what, "use it with --view machine");
        } else if request.whole {
            let what = "does not apply to --view paper, which always uses the whole run";
            return refuse("--whole", what, "leave it out, or use --view machine");
        }
        let options = Self::new(
            page_sizes,
            request.memory.sizes.clone(),
            request.tlb,
            request.replacement,
            kinds,
        )?;
        Self {
            lifetimes: request.lifetimes == Lifetimes::On,
            filtered: request.filter != Filter::None,
            files: request.page_cache != PageCache::Elsewhere,
            threads: request.threads.0.0 as usize,
            max_memory: request.max_memory.0.0,
            ..options
        }
        .with_swappiness(request.swappiness.0)?
        .with_statistics_every(request.statistics_every.0)
    }
}

impl Options {
    /// Check and normalise these options; the others have defaults.
    ///
    /// # Errors
    /// If an option is invalid.
    pub fn new(
        mut page_sizes: Vec<u64>,
        memory: Vec<MemorySize>,
        tlb: TlbSpec,
        replacement: Choice<Replacements>,
        kinds: KindSet,
    ) -> Result<Self> {
        for &size in &page_sizes {
            if !size.is_power_of_two() || !(MIN_PAGE..=MAX_PAGE).contains(&size) {
                return Err(Error::input(
                    "--page-sizes",
                    format!("{size} is not a page size"),
                    format!("give powers of two from {MIN_PAGE} bytes to 1 TiB, such as 4K,64K,2M"),
                ));
            }
        }
        page_sizes.sort_unstable();
        page_sizes.dedup();
        let Some(&finest) = page_sizes.first() else {
            return Err(Error::input(
                "--page-sizes",
                "names no page size",
                "give for example 4K,64K,2M",
            ));
        };
        if memory.is_empty() || memory.len() > MAX_MEMORIES {
            return Err(Error::input(
                "--memory",
                format!("names {} memory sizes", memory.len()),
                format!("give 1 to {MAX_MEMORIES}, such as 10%,50%,100% or 512M"),
            ));
        }
        let policy = replacement::find(replacement.name).expect("a choice is of the registry");
        if kinds.0 & KindSet::ALL.0 == 0 {
            return Err(Error::input(
                "--kinds",
                "names no kind of reference",
                "give for example load,store,fetch",
            ));
        }
        Ok(Self {
            page_sizes,
            finest,
            memory,
            min_frames: MIN_FRAMES,
            prefetch_pages: PREFETCH_PAGES,
            tlb,
            replacement: policy,
            swappiness: SWAPPINESS,
            statistics_every: STATISTICS_EVERY,
            kinds,
            lifetimes: false,
            files: true,
            filtered: false,
            threads: 0,
            max_memory: u64::MAX,
        })
    }

    pub fn spaces(&self, reader: &Reader) -> Spaces {
        Spaces::new(&reader.info().threads).filtered(self.filtered)
    }

    /// Set the swappiness.
    ///
    /// # Errors
    /// If it is not the default and the policy does not use it.
    pub fn with_swappiness(self, swappiness: u64) -> Result<Self> {
        self.only_for("--swappiness", swappiness != SWAPPINESS, PolicyEntry::has_swappiness)?;
        Ok(Self { swappiness, ..self })
    }

    /// Set the number of faults between two updates of Linux's statistics.
    ///
    /// # Errors
    /// If it is not the default and the policy does not use it.
    pub fn with_statistics_every(self, faults: u64) -> Result<Self> {
        self.only_for(
            "--statistics-every",
            faults != STATISTICS_EVERY,
            PolicyEntry::has_statistics,
        )?;
        Ok(Self { statistics_every: faults, ..self })
    }

    /// Refuse an option that the policy does not use.
    fn only_for(&self, option: &str, given: bool, has: fn(PolicyEntry) -> bool) -> Result<()> {
        if !given || has(self.replacement) {
            return Ok(());
        }
        let policies = replacement::REPLACEMENTS.iter().filter(|policy| has(**policy));
        let names: Vec<&str> = policies.map(|policy| policy.name).collect();
        Err(Error::input(
            option,
            format!("does not apply to --replacement {}", self.replacement.name),
            format!("use it with --replacement {}", names.join(" or ")),
        ))
    }

    /// The parameters of a simulated memory. Without lifetimes (`lives`) all pages are anonymous, so
    /// swappiness is at its maximum.
    pub fn setup(&self, frames: u64, page_bytes: u64, lives: bool) -> Setup {
        let swappiness = if lives { self.swappiness } else { MAX_SWAPPINESS };
        let statistics_every = self.statistics_every;
        Setup { frames, page_bytes, swappiness, statistics_every, share: 1.0 }
    }

    /// The memories to simulate at a page size. `sizes`: the result of [`Options::memory_bytes`].
    pub fn memories(&self, page_bytes: u64, sizes: &[(u64, Option<f64>)]) -> Vec<Memory> {
        let memory = |&(bytes, fraction)| Memory { bytes, fraction, frames: bytes / page_bytes };
        sizes.iter().map(memory).filter(|memory| memory.frames >= self.min_frames).collect()
    }

    /// The page sizes, smallest first, at which at least one of these memories has enough frames.
    pub fn simulated_pages(&self, sizes: &[(u64, Option<f64>)]) -> &[u64] {
        let largest = sizes.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0);
        let count = self.page_sizes.partition_point(|page| largest / page >= self.min_frames);
        &self.page_sizes[..count]
    }

    /// The pairs of page size and memory size that are not simulated, by page size.
    pub fn too_few_frames(&self, sizes: &[(u64, Option<f64>)]) -> Vec<TooFewFrames> {
        let cells = self.page_sizes.iter().flat_map(|&page_bytes| {
            let few = sizes.iter().filter(move |(bytes, _)| bytes / page_bytes < self.min_frames);
            few.map(move |&(memory_bytes, memory_fraction)| TooFewFrames {
                page_bytes,
                memory_bytes,
                memory_fraction,
            })
        });
        cells.collect()
    }

    pub fn has_fractions(&self) -> bool {
        self.memory.iter().any(|size| matches!(size, MemorySize::Fraction(_)))
    }

    /// Each memory size in bytes, with its fraction of `whole` bytes if it was given as one.
    pub fn memory_bytes(&self, whole: u64) -> Vec<(u64, Option<f64>)> {
        self.memory
            .iter()
            .map(|size| match *size {
                MemorySize::Fraction(f) => {
                    // Round before truncating, because 0.7 x 10 pages should be 7 pages, not 6.999.
                    let bytes = (f * whole as f64 * 1024.0).round() / 1024.0;
                    ((bytes as u64).max(1), Some(f))
                }
                MemorySize::Bytes(bytes) => (bytes, None),
            })
            .collect()
    }
}
