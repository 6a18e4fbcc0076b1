//! Options of an SSD study and the machine parameters that it uses: parsed and checked.

use nearfar_hardware::cache::Geometry as Caches;
use nearfar_hardware::flash::{Overwrite, Precondition};
use nearfar_hardware::machine::{MachineName, Sourced, TlbLevel, remedy};
use nearfar_hardware::units::Time;
use nearfar_hardware::{Machine, Storage};
use nearfar_kernel::epf;
use nearfar_schema::{
    Bytes, Count, Entry, Given, List, Nanoseconds, Registry as _, Runtime, Shares, Value, none,
};
use nearfar_trace::record::Kinds;
use nearfar_trace::{Error, Kind, KindSet, Result};
use serde_json::Value as Json;

/// Bytes that the kernel reads from disk at once: the default of `/sys/block/*/queue/read_ahead_kb`.
pub const READ_AHEAD_BYTES: u64 = 128 << 10;

/// Largest number of cells in one study.
pub const MAX_CELLS: usize = 4096;

/// One cell: a policy for embedded page faults (faults while the device moves a page from its flash to its
/// DRAM) and a size of the device's DRAM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The policy as it was written.
    pub epf: String,
    pub dram_bytes: u64,
}

/// Costs and sizes of the host, whole nanoseconds unless said otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    pub cores: u32,
    /// Picoseconds of an instruction that misses no cache.
    pub instruction_ps: u64,
    /// Caches of a core; without any, every reference goes to memory.
    pub caches: Option<Caches>,
    /// Entries of the data TLB.
    pub tlb_entries: u32,
    /// Entries of the instruction TLB; 0: the data TLB serves both.
    pub instruction_tlb_entries: u32,
    /// Reading a line from the device's DRAM.
    pub dram_ns: u64,
    /// Reading a page-table line from the first-level cache, and from the second-level cache.
    pub hit_ns: [u64; 2],
    /// Entries of a core's page-walk caches: for directories of 2 MiB, and of 1 GiB.
    pub directories: [usize; 2],
    pub l2p: L2p,
    pub bus: Bus,
    /// Entering and leaving the kernel for an embedded page fault.
    pub exception_ns: u64,
    /// A context switch.
    pub switch_ns: u64,
    /// An ordinary page fault, without its I/O.
    pub page_fault_ns: u64,
    /// Sleeping threads wake at multiples of this.
    pub sleep_granularity_ns: u64,
    /// A woken thread preempts one that has run longer by more than this; `None` = no wake-up
    /// preemption.
    pub wakeup_ns: Option<u64>,
    /// Time slice while other threads are ready; `None` = until the thread blocks.
    pub time_slice_ns: Option<u64>,
    /// Storage that holds the files; `None` = reading files takes no time.
    pub disk: Option<Storage>,
}

impl Host {
    /// The host of `machine`, with its storage `disk` for files; `None`: reading files takes no time.
    ///
    /// # Errors
    /// Input errors that name the section or key the machine lacks.
    pub fn new(machine: &Machine, disk: Option<&str>) -> Result<Self> {
        let has_flash = |machine: &Machine| machine.flash.is_some();
        let lacks = |key: &str| {
            Error::input(
                format!("machine {}", machine.name),
                format!("has no {key}, which the ssd study needs"),
                remedy(&machine.name, "add it", has_flash),
            )
        };
        let cpu = machine.cpu.as_ref().ok_or_else(|| lacks("[cpu]"))?;
        let ipc = cpu.ipc.as_ref().ok_or_else(|| lacks("cpu.ipc"))?.value.0;
        if ipc <= 0.0 {
            let place = format!("machine {} key cpu.ipc", machine.name);
            return Err(Error::input(place, "is 0", "write for example 1.0"));
        }
        let tlb = machine.tlb.as_ref().ok_or_else(|| lacks("[tlb.first]"))?;
        if tlb.second.is_some() {
            let place = format!("machine {} key tlb.second", machine.name);
            let what = "the ssd study supports only TLBs of one level";
            return Err(Error::input(place, what, remedy(&machine.name, "take it out", has_flash)));
        }
        let entries = |name: &str, level: &TlbLevel| {
            let entries = level.entries.value.0;
            let full = level.ways.as_ref().is_none_or(|ways| ways.value.0 == entries);
            match u32::try_from(entries) {
                Ok(entries) if full && entries <= 1 << 20 => Ok(entries),
                _ => Err(Error::input(
                    format!("machine {} key tlb.{name}", machine.name),
                    "the ssd study supports only fully associative TLBs of up to 1048576 entries",
                    "leave out ways, as in --machine umd",
                )),
            }
        };
        let walk = tlb.walk.as_ref().ok_or_else(|| lacks("[tlb.walk]"))?;
        let hit_ns = |level: &str| {
            machine.cache.get(level).map_or(0, |cache| cache.hit_time.value.ns().round() as u64)
        };
        let times = machine.access_times()?;
        let dram_ns = times.dram_ns.round() as u64;
        let cost = machine.cost.as_ref().ok_or_else(|| lacks("[cost]"))?;
        let ns = |key: &str, time: &Option<Sourced<Time>>| {
            let time = time.as_ref().ok_or_else(|| lacks(&format!("cost.{key}")))?;
            Ok::<u64, Error>(time.value.ns().round() as u64)
        };
        Ok(Self {
            cores: u32::try_from(cpu.cores.value.0).unwrap_or(u32::MAX),
            instruction_ps: (cpu.clock.value.cycle_ns() * 1000.0 / ipc).round() as u64,
            caches: machine.cache.contains_key("l1d").then(|| machine.caches()).transpose()?,
            tlb_entries: entries("first", &tlb.first)?,
            instruction_tlb_entries: match &tlb.instruction {
                Some(level) => entries("instruction", level)?,
                None => 0,
            },
            dram_ns,
            hit_ns: [hit_ns("l1d"), hit_ns("l2")],
            // An LRU buffer needs at least one entry.
            directories: [&walk.directories, &walk.upper_directories]
                .map(|entries| usize::try_from(entries.value.0).unwrap_or(1).max(1)),
            l2p: L2p::Cached,
            bus: Bus::Free,
            exception_ns: ns("exception", &cost.exception)?,
            switch_ns: ns("context_switch", &cost.context_switch)?,
            page_fault_ns: ns("page_fault", &cost.page_fault)?,
            sleep_granularity_ns: ns("timer_slack", &cost.timer_slack)?,
            wakeup_ns: cost.wakeup_granularity.as_ref().map(|time| time.value.ns().round() as u64),
            time_slice_ns: cost.time_slice.as_ref().map(|time| time.value.ns().round() as u64),
            disk: disk.map(|name| machine.storage(name)).transpose()?,
        })
    }
}

nearfar_schema::choices! {
    /// What the flash holds of a page that the program touches for the first time.
    pub enum FirstTouch: "content before the first touch" {
        /// nothing, as the device knows: the page is not read from flash, and is dirty
        New = "new",
        /// old data, because the device does not know which pages are free: the page is read from flash, and
        /// clean until it is written
        Stored = "stored",
    }
}

nearfar_schema::choices! {
    /// What the device sees of the file data that a disk controller writes to memory.
    pub enum FileData: "state of file data" {
        /// the device sees the disk controller's write: the page is dirty
        Dirty = "dirty",
        /// the device does not see the disk controller's write, as in MARSSx86: the page is clean
        Clean = "clean",
    }
}

nearfar_schema::choices! {
    /// What the memory bus does while a core waits for the device.
    pub enum Bus: "state of the bus" {
        /// other cores access the DRAM while one core waits
        Free = "free",
        /// other cores' accesses wait until the page arrives, because a DDR device cannot delay its response
        Held = "held",
    }
}

nearfar_schema::choices! {
    /// Where a walk reads the device's table of logical and physical pages.
    pub enum L2p: "place of the mapping table" {
        /// through the CPU caches, like the page table
        Cached = "cached",
        /// always in the device's DRAM, because a cached copy may be stale
        Device = "device",
    }
}

/// Kinds of the references that the kernel makes for the program.
const KERNEL: KindSet = KindSet(1 << Kind::KernelLoad as u8 | 1 << Kind::KernelStore as u8);

/// Kinds of references during which a thread may not sleep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Atomic {
    /// As it was written.
    pub text: String,
    pub kinds: KindSet,
}

impl Value for Atomic {
    const METAVAR: &'static str = "KINDS";
    const REGISTRY: &'static str = "atomic";
    fn python() -> String {
        "str".into()
    }
    fn choices() -> Vec<Entry> {
        let groups = [
            ("none", "no kind: threads sleep on every fault that goes to the kernel"),
            ("kernel", "the kernel's copies to and from the program's memory"),
        ];
        let groups = groups.map(|(name, what)| Entry { name, what: what.into() });
        groups.into_iter().chain(Kinds::entries()).collect()
    }
    fn open() -> bool {
        // Several kinds can be joined by `+`.
        true
    }
    fn read(given: &Given) -> std::result::Result<Self, String> {
        let text = String::read(given)?;
        let kinds = match text.as_str() {
            "none" => KindSet(0),
            "kernel" => KERNEL,
            names => names.split('+').try_fold(KindSet(0), |set, name| {
                let kind = Kind::from_name(name).ok_or_else(|| {
                    let fix = "write none, kernel, or kinds such as kernel-load or load+store";
                    format!("no kind of reference is called {name:?}; {fix}")
                })?;
                Ok::<_, String>(KindSet(set.0 | kind.bit()))
            })?,
        };
        Ok(Self { text, kinds })
    }
    fn plain(&self) -> Json {
        self.text.as_str().into()
    }
}

nearfar_schema::options! {
    /// The options of an ssd study as they are written.
    pub struct Request {
        /// Machine name or file, with `[flash]`, `[cpu]` and `[cost]`.
        machine: MachineName = "umd",
        /// Sizes of the device's DRAM.
        dram: List<Bytes> = "100M,150M",
        /// Policies for embedded page faults: the core waits (`none`), the thread sleeps (`all`),
        /// or sleeps only for long waits (`smart:50us`).
        epf: List<epf::PolicyText> = "none,all,smart:50us",
        /// Storage device of the machine that holds the files.
        #[metavar = "NAME"]
        disk: Option<String> = none("none: reading files takes no time"),
        /// Before the run: share of the flash filled in order, then share overwritten at random.
        precondition: Shares<2> = "60%,50%",
        /// Which pages --precondition overwrites at random.
        overwrite: Overwrite = "drawn",
        /// Sleeping threads wake at multiples of this time.
        sleep_granularity: Option<Nanoseconds> = none("the machine's cost.timer_slack"),
        /// Kinds of references during which a thread must not sleep, joined by `+`.
        atomic: Atomic = "kernel",
        /// Whether the flash holds a page before its first reference.
        first_touch: FirstTouch = "new",
        /// State in which a page of file data is loaded; such a page is first executed, or first read by the
        /// kernel.
        file_data: FileData = "dirty",
        /// Where a page walk reads the device's mapping table.
        l2p: L2p = "cached",
        /// State of the memory bus while a core waits for the device.
        bus: Bus = "free",
        /// Instructions that a thread may run ahead of the others in the trace.
        window: Count<1> = 1 << 20,
        /// Seed of the random writes of the preconditioning.
        seed: Count = 1,
        /// Rows simulated at once; 0 = one per core.
        threads: Runtime<Count<0, 1024>> = 0,
    }
}

/// How the program is replayed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Replay {
    /// Kinds of references during which a thread may not sleep.
    pub atomic: KindSet,
    pub first_touch: FirstTouch,
    pub file_data: FileData,
    /// Instructions that a thread may run ahead of the others in the trace.
    pub window: u64,
}

impl Default for Replay {
    fn default() -> Self {
        Self {
            atomic: KERNEL,
            first_touch: FirstTouch::New,
            file_data: FileData::Dirty,
            window: 1 << 20,
        }
    }
}

/// Options of a study, checked.
#[derive(Clone, Debug)]
pub struct Options {
    /// Cells, in the order of the rows.
    pub settings: Vec<Setting>,
    pub host: Host,
    /// Writes to the flash before the run.
    pub precondition: Precondition,
    pub replay: Replay,
    /// Cells simulated at a time; 0 = one per core.
    pub threads: usize,
}

impl Options {
    /// Check a request for this machine.
    ///
    /// # Errors
    /// As [`Self::new`] and [`Host::new`].
    pub fn from_request(request: &Request, machine: &Machine) -> Result<Self> {
        let (l2p, bus) = (request.l2p, request.bus);
        let mut host = Host { l2p, bus, ..Host::new(machine, request.disk.as_deref())? };
        if let Some(time) = request.sleep_granularity {
            host.sleep_granularity_ns = time.0;
        }
        let [sequential, random] = request.precondition.0;
        let (overwrite, seed) = (request.overwrite, request.seed.0);
        let replay = Replay {
            atomic: request.atomic.kinds,
            first_touch: request.first_touch,
            file_data: request.file_data,
            window: request.window.0,
        };
        let epf: Vec<String> = request.epf.0.iter().map(|policy| policy.0.clone()).collect();
        let dram: Vec<u64> = request.dram.0.iter().map(|size| size.0).collect();
        let precondition = Precondition { sequential, random, overwrite, seed };
        let threads = request.threads.0.0 as usize;
        Ok(Self { threads, ..Self::new(&epf, &dram, host, precondition, replay)? })
    }

    /// A cell for each policy and size, in order of size. Checks what does not depend on the trace.
    ///
    /// # Errors
    /// Input errors that name the option.
    pub fn new(
        epf: &[String],
        dram_bytes: &[u64],
        host: Host,
        precondition: Precondition,
        replay: Replay,
    ) -> Result<Self> {
        let cells = epf.len().saturating_mul(dram_bytes.len());
        if cells == 0 || cells > MAX_CELLS {
            return Err(Error::input(
                "--epf, --dram",
                format!("make {cells} combinations of policy and DRAM size"),
                format!("give 1 to {MAX_CELLS}, such as --epf none,all --dram 100M,150M"),
            ));
        }
        if host.cores > 1024 {
            return Err(Error::input("cpu.cores", "more than 1024 cores", "describe fewer"));
        }
        let settings = dram_bytes
            .iter()
            .flat_map(|&dram_bytes| {
                epf.iter().map(move |epf| Setting { epf: epf.clone(), dram_bytes })
            })
            .collect();
        Ok(Self { settings, host, precondition, replay, threads: 0 })
    }
}
