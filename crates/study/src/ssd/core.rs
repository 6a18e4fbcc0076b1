//! Cores and threads, and the fast path for references that hit the TLB.

use nearfar_hardware::cache::Filter;
use nearfar_hardware::processor::{Line, Walker, mapping_line};
use nearfar_hardware::tlb::FullLru;
use nearfar_hardware::umd::Umd;
use nearfar_trace::{Kind, last_byte};

use super::cell::Cell;
use super::feed::{Chunk, Reference};
use super::options::{Host, L2p};

const NO_PAGE: (u64, u32) = (u64::MAX, u32::MAX);
/// Size of a core's direct-mapped table of recent pages, which makes the simulation faster.
const RECENT_PAGES: usize = 256;

pub struct Core {
    /// Clock, nanoseconds.
    pub time: u64,
    /// Picoseconds of execution not yet in `time`.
    ps: u64,
    /// Nanoseconds of accesses to the device that wait for the bus ([`super::Bus`]), not yet in `time`.
    pub pending_ns: u64,
    pub thread: Option<u32>,
    /// The page of the device that the core waits for.
    pub stalled: Option<u32>,
    /// Start of the current run or stall.
    pub since: u64,
    /// When the thread got the core.
    pub taken: u64,
    /// End of the thread's time slice.
    pub slice_end: u64,
    caches: Option<Filter>,
    /// By side: 0 for data, 1 for instructions.
    tlbs: [FullLru; 2],
    walker: Walker,
    /// The page last used in each TLB: page number, number on the device.
    last: [(u64, u32); 2],
    /// As `last`, by page number modulo its length; valid while the TLB has the page.
    recent_pages: Vec<(u64, u32)>,
    /// Nanoseconds of executing and waiting for DRAM.
    pub busy: u64,
    /// Nanoseconds of page walks; part of `busy`.
    pub walking: u64,
    /// Nanoseconds of waiting for the device's flash, or for the bus.
    pub stall: u64,
    /// Nanoseconds of exceptions and context switches.
    pub switch: u64,
    /// Nanoseconds without a thread.
    pub idle: u64,
}

impl Core {
    pub fn new(host: &Host) -> Self {
        Self {
            time: 0,
            ps: 0,
            pending_ns: 0,
            thread: None,
            stalled: None,
            since: 0,
            taken: 0,
            slice_end: u64::MAX,
            // `true` is for `Filter::records`, which is not called.
            caches: host.caches.as_ref().map(|geometry| Filter::new(geometry, true)),
            // 0 instruction entries: that TLB is not used, but an LRU buffer needs at least one entry.
            tlbs: [host.tlb_entries, host.instruction_tlb_entries.max(1)].map(FullLru::new),
            // `None`: no virtual machine.
            walker: Walker::new(host.directories[0], host.directories[1], None),
            last: [NO_PAGE; 2],
            recent_pages: vec![NO_PAGE; RECENT_PAGES],
            busy: 0,
            walking: 0,
            stall: 0,
            switch: 0,
            idle: 0,
        }
    }

    /// Walk the page table for `addr`, then the device's mapping table if the page is on the device. If
    /// the walk reads the device while the bus is held, its time is pending.
    pub fn walk(
        &mut self,
        addr: u64,
        page: Option<u32>,
        host: &Host,
        counts: &mut Cell,
        bus_held: bool,
    ) {
        let before = counts.accesses;
        let large = false;
        let (count, lines) = self.walker.walk(addr, large);
        let mut ns = lines[..count].iter().map(|line| self.read(*line, host, counts)).sum::<u64>();
        ns += match (page, host.l2p) {
            (None, _) => 0,
            (Some(page), L2p::Cached) => self.read(mapping_line(page), host, counts),
            (Some(_), L2p::Device) => {
                counts.accesses += 1;
                host.dram_ns
            }
        };
        counts.tlb_misses += 1;
        self.walking += ns;
        if bus_held && counts.accesses > before {
            self.pending_ns = ns;
        } else {
            self.time += ns;
            self.busy += ns;
        }
    }

    /// Complete the accesses that waited for the bus.
    pub fn add_pending(&mut self) {
        self.time += self.pending_ns;
        self.busy += self.pending_ns;
        self.pending_ns = 0;
    }

    /// Nanoseconds of a walk's read of this line.
    fn read(&mut self, line: Line, host: &Host, counts: &mut Cell) -> u64 {
        let (level, write_backs) =
            self.caches.as_mut().map_or((None, 0), |caches| caches.walk(line));
        counts.accesses += u64::from(level.is_none()) + u64::from(write_backs);
        level.map_or(host.dram_ns, |level| host.hit_ns[level])
    }

    /// Whether the TLB of `side` contains a page of the device.
    pub fn holds(&self, side: usize, device_page: u32) -> bool {
        self.tlbs[side].contains(device_page)
    }

    pub fn fill_tlb(&mut self, side: usize, page: u64, device_page: u32) {
        self.tlbs[side].access(device_page);
        self.last[side] = (page, device_page);
        self.recent_pages[page as usize % RECENT_PAGES] = (page, device_page);
    }

    /// Remove a page that left the device's DRAM from the TLBs.
    pub fn shoot_down(&mut self, device_page: u32) {
        for (tlb, last) in self.tlbs.iter_mut().zip(&mut self.last) {
            tlb.remove(device_page);
            if last.1 == device_page {
                *last = NO_PAGE;
            }
        }
    }
}

#[derive(Debug, Default)]
pub struct Thread {
    pub chunk: Chunk,
    /// Index of the current reference.
    pub at: usize,
    /// It runs or is in the run queue. Otherwise it waits for references: the window ([`super::feed`])
    /// admits no more yet, or the trace has ended.
    pub active: bool,
    /// The instructions of the current reference are charged.
    charged: bool,
    /// Completed pages of the current reference.
    pages_done: u64,
    /// The page table was already walked for the current page.
    pub walked: bool,
    /// The page of the device that the thread slept for.
    pub slept_for: Option<u32>,
}

/// Why a core left the fast path.
pub enum Event {
    /// The clock reached `until`.
    Until,
    /// The thread used up its references.
    Exhausted,
    Miss(Miss),
    /// An access to the device while the bus is held; its time is pending.
    Bus,
}

#[derive(Clone, Copy)]
pub struct Miss {
    pub page: u64,
    /// 0 for data, 1 for instructions.
    pub side: usize,
    pub kind: Kind,
}

/// Run references of `thread` that hit the TLB, until an event. From time `held_since` on, accesses to
/// the device wait for the bus.
#[inline]
#[allow(clippy::too_many_arguments, reason = "the state of a core and its thread")]
pub fn run_fast_path(
    core: &mut Core,
    thread: &mut Thread,
    umd: &mut Umd,
    host: &Host,
    shift: u32,
    counts: &mut Cell,
    until: u64,
    held_since: u64,
) -> Event {
    while let Some(&reference) = thread.chunk.references.get(thread.at) {
        if core.time >= until {
            return Event::Until;
        }
        let Reference { addr, instr, size, kind } = reference;
        if !thread.charged {
            let ps = core.ps + u64::from(instr) * host.instruction_ps;
            core.time += ps / 1000;
            core.ps = ps % 1000;
            counts.instructions += u64::from(instr);
            thread.charged = true;
        }
        let side = usize::from(kind.fetches() && host.instruction_tlb_entries > 0);
        let last = last_byte(addr, size) >> shift;
        let mut page = (addr >> shift) + thread.pages_done;
        loop {
            if core.last[side].0 != page {
                let entry = core.recent_pages[page as usize % RECENT_PAGES];
                if entry.0 != page || !core.tlbs[side].contains(entry.1) {
                    return Event::Miss(Miss { page, side, kind });
                }
                core.tlbs[side].access(entry.1);
                core.last[side] = entry;
            }
            umd.touch(core.last[side].1, kind.writes());
            if page == last {
                break;
            }
            page += 1;
            thread.pages_done += 1;
        }
        let lines = match &mut core.caches {
            Some(caches) => {
                let traffic = caches.access(addr, u64::from(size), kind);
                counts.accesses += u64::from(traffic.write_backs);
                u64::from(traffic.fills)
            }
            // Without caches, one access for each page of the reference.
            None => thread.pages_done + 1,
        };
        counts.accesses += lines;
        counts.references += 1;
        thread.at += 1;
        (thread.charged, thread.pages_done) = (false, 0);
        if lines > 0 && core.time >= held_since {
            core.pending_ns = lines * host.dram_ns;
            return Event::Bus;
        }
        core.time += lines * host.dram_ns;
    }
    Event::Exhausted
}
