//! Tests of the study against plain reference simulations, theoretical bounds and known results.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use nearfar_hardware::Machine;
use nearfar_hardware::flash::{Overwrite, Precondition};
use nearfar_hardware::umd::Umd;
use nearfar_kernel::epf;
use nearfar_schema::Value as _;
use nearfar_trace::generate::rng::Rng;
use nearfar_trace::{Batch, Kind, KindSet, Record};
use proptest::prelude::*;

use super::cell::{Cell, Detail};
use super::host::Run;
use super::options::{Atomic, Bus, FileData, FirstTouch, Host, L2p, Options, Replay};
use super::timeline::State;

fn machine() -> Machine {
    Machine::load("umd", std::path::Path::new("")).unwrap()
}

/// [`machine`] with stripes over all dies.
fn striped() -> Machine {
    let mut machine = machine();
    let flash = machine.flash.as_mut().unwrap();
    let mut stripe = flash.dies_per_channel.clone();
    stripe.value.0 = 8;
    flash.stripe = Some(stripe);
    machine
}

/// The host of UMD without CPU caches and disk.
fn bare() -> Host {
    Host { caches: None, ..Host::new(&machine(), None).unwrap() }
}

/// [`bare`] with a kernel that takes no time, and exact timers.
fn free_kernel() -> Host {
    Host { exception_ns: 0, switch_ns: 0, page_fault_ns: 0, sleep_granularity_ns: 0, ..bare() }
}

const FRESH: Precondition =
    Precondition { sequential: 0.0, random: 0.0, overwrite: Overwrite::Drawn, seed: 0 };

const USED: Precondition =
    Precondition { sequential: 0.6, random: 0.5, overwrite: Overwrite::Drawn, seed: 1 };

struct Simulation<'a> {
    host: Host,
    epf: &'a str,
    frames: u64,
    replay: Replay,
    precondition: Precondition,
    machine: Machine,
}

fn simulation(host: &Host, epf: &'static str, frames: u64) -> Simulation<'static> {
    let (host, replay) = (host.clone(), Replay::default());
    Simulation { host, epf, frames, replay, precondition: FRESH, machine: machine() }
}

impl Simulation<'_> {
    fn run(&self, records: &[Record]) -> (Cell, Detail) {
        let mut umd = Umd::new(&self.machine, self.frames * 4096).unwrap();
        let conditioned = umd.precondition(&self.precondition);
        let policy = epf::parse(self.epf).unwrap();
        let run = Run::new(&self.host, policy, self.replay, umd, conditioned);
        let mut pieces = records.chunks(1000);
        let mut source = |batch: &mut Batch| {
            batch.clear();
            let piece = pieces.next();
            piece.unwrap_or_default().iter().for_each(|record| batch.push(*record));
            Ok(piece.is_some())
        };
        run.run(&mut source, &mut |_| Ok(())).unwrap()
    }

    fn cell(&self, records: &[Record]) -> Cell {
        self.run(records).0
    }
}

fn record(thread: u32, page: u64, kind: Kind, instr: u32) -> Record {
    Record { addr: page * 4096 + 8, kind, size: 8, thread, instr }
}

/// Random references of each thread to its own pages, `instr` instructions apart; `write` is the share of
/// stores.
fn random_references(
    threads: u32,
    pages: u64,
    length: u32,
    instr: u32,
    write: f64,
    seed: u64,
) -> Vec<Record> {
    let mut rng = Rng::new(seed);
    (0..length)
        .flat_map(|_| 0..threads)
        .map(|thread| {
            let page = u64::from(thread) * pages + rng.below(pages);
            let kind = if rng.unit() < write { Kind::Store } else { Kind::Load };
            record(thread, page, kind, instr)
        })
        .collect()
}

/// Move a number to the end of an LRU list of at most `most`. Returns whether it was in the list.
fn touch_lru(list: &mut Vec<u64>, number: u64, most: usize) -> bool {
    let place = list.iter().position(|other| *other == number);
    place.map(|place| list.remove(place));
    list.push(number);
    if list.len() > most {
        list.remove(0);
    }
    place.is_some()
}

/// A reference simulation, from the description in docs/ssd.md, of one thread without CPU caches under
/// policy `none`. A service takes 50 ns per DRAM access, 25 us per read and 200 us per program. Returns
/// nanoseconds, TLB misses, embedded faults, flash reads and programs for the host, and lines read by walks.
fn plain(
    records: &[Record],
    host: &Host,
    frames: usize,
    file_data: FileData,
    stripe: u64,
) -> (u64, [u64; 5]) {
    let mut ps = host.switch_ns * 1000;
    let (mut misses, mut faults, mut reads, mut programs, mut lines) = (0, 0, 0, 0, 0);
    let (mut directories, mut uppers) = (Vec::new(), Vec::new());
    let mut tlbs = [Vec::<u64>::new(), Vec::new()];
    let mut dram: Vec<u64> = Vec::new();
    let mut dirty: HashMap<u64, bool> = HashMap::new();
    let mut flash = HashSet::new();
    for r in records {
        ps += u64::from(r.instr) * host.instruction_ps;
        let side = usize::from(r.kind == Kind::Fetch);
        for page in r.addr / 4096..=(r.addr + u64::from(r.size) - 1) / 4096 {
            let tlb = &mut tlbs[side];
            if let Some(place) = tlb.iter().position(|p| *p == page) {
                tlb.remove(place);
            } else {
                misses += 1;
                // A walk reads the page's entry, those of its 2 MiB and 1 GiB directories unless the core
                // caches them, and the device's entry if the device has the page.
                let upper = touch_lru(&mut uppers, page >> 18, 4);
                let directory = touch_lru(&mut directories, page >> 9, 32);
                let walk = match (directory, upper) {
                    (true, _) => 1,
                    (false, true) => 2,
                    (false, false) => 3,
                };
                let walk = walk + u64::from(dirty.contains_key(&page));
                lines += walk;
                ps += walk * host.dram_ns * 1000;
                if !dirty.contains_key(&page) {
                    ps += host.page_fault_ns * 1000;
                }
                if !dram.contains(&page) {
                    let mut service = 0;
                    if dram.len() == frames {
                        let old = dram.remove(0);
                        tlbs.iter_mut().for_each(|tlb| tlb.retain(|p| *p != old));
                        if dirty.insert(old, false) == Some(true) {
                            programs += 1;
                            flash.insert(old);
                            // A stripe is programmed with its last page.
                            service += 50 + if programs % stripe == 0 { 200_000 } else { 0 };
                        }
                        service += 50;
                    }
                    match dirty.entry(page) {
                        Entry::Occupied(_) if flash.contains(&page) => {
                            reads += 1;
                            service += if service == 0 { 25_000 + 50 } else { 25_000 };
                        }
                        Entry::Occupied(mut entry) => {
                            // Evicted clean and never programmed: it is not read, and is dirty.
                            entry.insert(true);
                        }
                        Entry::Vacant(entry) => {
                            let of_file = matches!(r.kind, Kind::Fetch | Kind::KernelLoad);
                            entry.insert(!of_file || file_data == FileData::Dirty);
                        }
                    }
                    faults += u64::from(service > 0);
                    ps += service * 1000;
                }
                tlbs[side].truncate(31);
            }
            let tlb = &mut tlbs[side];
            tlb.insert(0, page);
            dram.retain(|p| *p != page);
            dram.push(page);
            if r.kind.writes() {
                dirty.insert(page, true);
            }
            ps += host.dram_ns * 1000;
        }
    }
    (ps / 1000, [misses, faults, reads, programs, lines])
}

/// A core of [`plain_bus`].
#[derive(Default)]
struct PlainCore {
    records: Vec<Record>,
    ns: u64,
    ps: u64,
    at: usize,
    charged: bool,
    walked: bool,
    tlb: Vec<u64>,
    directories: Vec<u64>,
    uppers: Vec<u64>,
}

/// A reference simulation of a bus that is held during services: one thread per core, no CPU caches, policy
/// `none`, no stripes. Each step is of the core with the earliest clock. Returns nanoseconds and services.
fn plain_bus(records: &[Record], host: &Host, frames: usize) -> (u64, u64) {
    // Threads get cores in the order of their first records.
    let mut threads = Vec::new();
    for r in records {
        if !threads.contains(&r.thread) {
            threads.push(r.thread);
        }
    }
    let mut cores: Vec<PlainCore> = threads
        .into_iter()
        .map(|thread| PlainCore {
            records: records.iter().filter(|r| r.thread == thread).copied().collect(),
            ns: host.switch_ns,
            ..PlainCore::default()
        })
        .collect();
    let mut dram: Vec<u64> = Vec::new();
    let (mut known, mut dirty, mut flash) = (HashSet::new(), HashSet::new(), HashSet::new());
    let (mut held, mut arriving, mut services) = (0..0, 0, 0);
    loop {
        let running = (0..cores.len()).filter(|&core| cores[core].at < cores[core].records.len());
        let Some(number) = running.min_by_key(|&core| cores[core].ns) else { break };
        let core = &mut cores[number];
        let r = core.records[core.at];
        if !core.charged {
            core.ps += u64::from(r.instr) * host.instruction_ps;
            core.ns += core.ps / 1000;
            core.ps %= 1000;
            core.charged = true;
        }
        let page = r.addr / 4096;
        if !core.tlb.contains(&page) && core.walked {
            if known.insert(page) {
                core.ns += host.page_fault_ns;
                continue;
            }
            let is_here = dram.contains(&page) && (arriving != page || !held.contains(&core.ns));
            if !is_here && held.contains(&core.ns) {
                core.ns = held.end;
                continue;
            }
            if !is_here {
                let mut service = 0;
                if dram.len() == frames {
                    let old = dram.remove(0);
                    cores.iter_mut().for_each(|core| core.tlb.retain(|p| *p != old));
                    service += 50;
                    if dirty.remove(&old) {
                        flash.insert(old);
                        service += 50 + 200_000;
                    }
                }
                if flash.contains(&page) {
                    service += 25_000 + if service == 0 { 50 } else { 0 };
                } else {
                    dirty.insert(page);
                }
                dram.push(page);
                if service > 0 {
                    let core = &mut cores[number];
                    (held, arriving) = (core.ns..core.ns + service, page);
                    core.ns = held.end;
                    services += 1;
                    continue;
                }
            }
            let core = &mut cores[number];
            core.walked = false;
            touch_lru(&mut core.tlb, page, 32);
            dram.retain(|p| *p != page);
            dram.push(page);
            continue;
        }
        if held.contains(&core.ns) {
            core.ns = held.end;
        }
        if !core.tlb.contains(&page) {
            let upper = touch_lru(&mut core.uppers, page >> 18, 4);
            let directory = touch_lru(&mut core.directories, page >> 9, 32);
            let lines = if directory { 1 } else { 3 - u64::from(upper) };
            core.ns += (lines + u64::from(known.contains(&page))) * host.dram_ns;
            core.walked = true;
        } else {
            touch_lru(&mut core.tlb, page, 32);
            dram.retain(|p| *p != page);
            dram.push(page);
            if r.kind.writes() {
                dirty.insert(page);
            }
            core.ns += host.dram_ns;
            core.at += 1;
            core.charged = false;
        }
    }
    (cores.iter().map(|core| core.ns).max().unwrap(), services)
}

/// Random references to seven ranges of 1 GiB, with two pages per page directory.
fn any_references(pages: u64, threads: u32) -> impl Strategy<Value = Vec<Record>> {
    let one = (0..pages, 0u8..5, 0u32..threads, 0u32..300, 0u64..4096, 1u16..400);
    prop::collection::vec(one, 1..600).prop_map(|records| {
        records
            .into_iter()
            .map(|(page, kind, thread, instr, offset, size)| {
                let kind = Kind::from_u8(kind).unwrap();
                let addr = (page % 7) << 32 | (page >> 1) << 22 | (page & 1) << 12;
                Record { addr: addr + offset, kind, size, thread, instr }
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn times_and_counts_match_the_reference_simulation(
        records in any_references(90, 1),
        frames in 2u64..80,
        clean in any::<bool>(),
        (stripe, machine) in prop_oneof![Just((1, machine())), Just((8, striped()))],
    ) {
        let host = bare();
        let file_data = if clean { FileData::Clean } else { FileData::Dirty };
        let (ns, [misses, faults, reads, programs, lines]) =
            plain(&records, &host, frames as usize, file_data, stripe);
        let replay = Replay { file_data, ..Replay::default() };
        let cell = Simulation { replay, machine, ..simulation(&host, "none", frames) }.cell(&records);
        prop_assert_eq!((cell.seconds * 1e9).round() as u64, ns);
        prop_assert_eq!([cell.tlb_misses, cell.embedded_faults], [misses, faults]);
        prop_assert_eq!([cell.flash_reads, cell.flash_programs], [reads, programs]);
        prop_assert_eq!((cell.cpu_walk * 1e9).round() as u64, lines * host.dram_ns);
        prop_assert_eq!((cell.from_flash, cell.faults_while_filling), (reads, 0));
        let touched: u64 =
            records.iter().map(|r| (r.addr + u64::from(r.size) - 1) / 4096 - r.addr / 4096 + 1).sum();
        prop_assert_eq!(cell.accesses, touched + lines);
    }

    /// The run itself asserts more.
    #[test]
    fn results_are_consistent_and_repeatable(
        records in any_references(60, 5),
        frames in 6u64..60,
        cores in 1u32..4,
        window in 1u64..300_000,
        slice in proptest::option::of(1000u64..100_000),
        wakeup_ns in proptest::option::of(1000u64..100_000),
        bus in prop_oneof![Just(Bus::Free), Just(Bus::Held)],
        policy in prop_oneof![Just("none"), Just("all"), Just("smart:50us")],
    ) {
        let host = Host { cores, time_slice_ns: slice, wakeup_ns, bus, ..bare() };
        let replay = Replay { window, ..Replay::default() };
        let simulation = Simulation { replay, ..simulation(&host, policy, frames) };
        let (cell, detail) = simulation.run(&records);
        prop_assert_eq!(simulation.run(&records), (cell.clone(), detail.clone()));
        prop_assert_eq!(cell.references as usize, records.len());
        let instructions: u64 = records.iter().map(|r| u64::from(r.instr)).sum();
        prop_assert_eq!(cell.instructions, instructions);
        let cpu = cell.cpu_busy + cell.cpu_stall + cell.cpu_switch + cell.cpu_idle;
        prop_assert!((cpu - cell.seconds * f64::from(cores)).abs() < 1e-9);
        // Neither the cores nor the 8 dies can work longer than the run.
        prop_assert!(cell.seconds + 1e-12 >= cell.cpu_busy / f64::from(cores));
        prop_assert!(cell.die_busy <= cell.seconds * 8.0 + 1e-12);
        let of = |state: State| -> f64 {
            let ns: u64 = detail.timeline.threads.iter().flatten().map(|s| s[state as usize]).sum();
            ns as f64 / 1e9
        };
        prop_assert!((of(State::Stall) - cell.cpu_stall).abs() < 1e-9);
        // A thread that may not sleep runs during the exception that passes its fault to the kernel.
        let more = of(State::Run) - cell.cpu_busy;
        prop_assert!(more > -1e-9 && more < cell.cpu_switch + 1e-9, "{more} {}", cell.cpu_switch);
        prop_assert_eq!(cell.embedded_faults, cell.services + cell.joined_faults);
        // Before the first eviction, no page is only in flash.
        prop_assert_eq!(cell.faults_while_filling, 0);
        // Delays by cause sum up to the error.
        let late = cell.late_die + cell.late_channel + cell.late_erase;
        let error = cell.prediction_error_us_mean * cell.services as f64 / 1e6;
        prop_assert!((late - error).abs() < 1e-9, "{late} {error}");
        prop_assert!(cell.late_services <= cell.services);
        let services: u64 = detail.service.iter().map(|bin| bin.actual).sum();
        prop_assert_eq!(services, cell.services);
        match policy {
            "none" => prop_assert_eq!(cell.passed_to_kernel + cell.slept, 0),
            "all" => prop_assert_eq!(cell.passed_to_kernel, cell.embedded_faults),
            _ => prop_assert!(cell.passed_to_kernel <= cell.embedded_faults),
        }
    }

    #[test]
    fn a_held_bus_matches_the_reference_simulation(
        records in prop::collection::vec((0u64..60, any::<bool>(), 0u32..3, 0u32..3000), 1..600),
        frames in 6u64..50,
        cores in 1u32..4,
    ) {
        let records: Vec<Record> = records
            .into_iter()
            .map(|(page, writes, thread, instr)| {
                let kind = if writes { Kind::Store } else { Kind::Load };
                record(thread % cores, (page >> 3) << 18 | page, kind, instr)
            })
            .collect();
        let host = Host { cores, bus: Bus::Held, ..bare() };
        let replay = Replay { window: 1 << 40, ..Replay::default() };
        let held = Simulation { replay, ..simulation(&host, "none", frames) }.cell(&records);
        let (ns, services) = plain_bus(&records, &host, frames as usize);
        prop_assert_eq!(((held.seconds * 1e9).round() as u64, held.services), (ns, services));
        prop_assert_eq!((held.late_die, held.late_channel), (0.0, 0.0));
        // A single core never waits for the bus.
        if cores == 1 {
            let free = Simulation { replay, ..simulation(&Host { cores, ..bare() }, "none", frames) };
            prop_assert_eq!(free.cell(&records), held);
        }
    }

    /// While a single thread sleeps, nothing runs. Its services never queue, so predictions are exact.
    #[test]
    fn a_single_thread_never_saves_time_by_sleeping(records in any_references(60, 1), frames in 6u64..50) {
        let none = simulation(&bare(), "none", frames).cell(&records);
        for policy in ["all", "smart:50us"] {
            let cell = simulation(&bare(), policy, frames).cell(&records);
            prop_assert!(cell.seconds >= none.seconds);
            prop_assert_eq!(cell.prediction_error_us_max, 0.0);
            prop_assert_eq!(cell.overruns, 0);
        }
        prop_assert_eq!(none.prediction_error_us_max, 0.0);
    }

    /// Under `all`, references of the kernel sleep only if they are not atomic.
    #[test]
    fn atomic_references_never_sleep(records in any_references(60, 4), frames in 6u64..50) {
        let kernel: Vec<Record> = records
            .iter()
            .map(|r| Record {
                kind: if r.kind.writes() { Kind::KernelStore } else { Kind::KernelLoad },
                ..*r
            })
            .collect();
        let cell = simulation(&bare(), "all", frames).cell(&kernel);
        prop_assert_eq!((cell.slept, cell.passed_to_kernel), (0, cell.embedded_faults));
        let replay = Replay { atomic: KindSet(0), ..Replay::default() };
        let cell = Simulation { replay, ..simulation(&bare(), "all", frames) }.cell(&kernel);
        // A thread does not sleep again for a page that was evicted while it slept.
        prop_assert!(cell.slept >= cell.embedded_faults / 2, "{cell:?}");
    }
}

/// If the flash has every page, a first touch is a read and the page is clean; a written page is
/// programmed when it is evicted.
#[test]
fn stored_pages_come_from_the_flash() {
    let used = Precondition { random: 0.0, ..USED };
    let replay = Replay { first_touch: FirstTouch::Stored, ..Replay::default() };
    let records: Vec<Record> = (0..300)
        .map(|page| record(0, page, if page < 50 { Kind::Store } else { Kind::Load }, 10))
        .collect();
    let cell = Simulation { replay, precondition: used, ..simulation(&bare(), "none", 100) }
        .cell(&records);
    // The first 100 pages fill the DRAM; the other 200 each evict a page, 50 of them a written one.
    assert_eq!((cell.page_faults, cell.embedded_faults, cell.flash_reads), (300, 300, 300));
    assert_eq!((cell.faults_while_filling, cell.from_flash), (100, 300));
    assert_eq!((cell.evictions, cell.dirty_evictions), (200, 50));
    let mean = (300.0 * 25.05 + 50.0 * 200.05) / 300.0;
    assert!((cell.predicted_us_mean - mean).abs() < 1e-9, "{cell:?}");
    // An empty flash is not read.
    let cell = Simulation { replay, ..simulation(&bare(), "none", 100) }.cell(&records);
    assert_eq!((cell.flash_reads, cell.dirty_evictions), (0, 200));
    assert_eq!((cell.faults_while_filling, cell.from_flash), (0, 0));
}

#[test]
fn atomic_kinds_are_read_by_name() {
    for (text, bits) in
        [("none", 0), ("kernel", 0b1_1000), ("kernel-store", 0b1_0000), ("load+store", 3)]
    {
        let atomic = Atomic::read(&text.into()).unwrap();
        assert_eq!((atomic.kinds, atomic.plain()), (KindSet(bits), text.into()));
    }
    for text in ["", "Kernel", "kernel+load", "load,store"] {
        let error = Atomic::read(&text.into()).unwrap_err();
        assert!(error.contains("write none, kernel, or kinds"), "{error}");
    }
}

#[test]
fn sleeping_saves_time_if_switches_are_free() {
    for seed in 0..8 {
        for (threads, instr, write) in [(2, 20_000, 0.0), (4, 20_000, 0.0), (8, 60_000, 0.3)] {
            let records = random_references(threads, 64, 400, instr, write, seed);
            let frames = 16 * u64::from(threads);
            let none = simulation(&free_kernel(), "none", frames).cell(&records);
            let all = simulation(&free_kernel(), "all", frames).cell(&records);
            assert!(all.seconds < none.seconds, "{threads} {seed}: {all:?} {none:?}");
            assert!(none.cpu_idle == 0.0 && all.slept > 100);
        }
    }
}

/// Asymptotic bounds of a closed system (Denning and Buzen 1978): with CPU demand D and flash
/// demand F of a reference and N threads, throughput X <= min(1/D, 1/F, N/(D+F)); with N = 1,
/// X = 1/(D+F).
#[test]
fn throughput_is_within_its_bounds() {
    for threads in [1, 2, 4, 16] {
        for instr in [2_000, 50_000, 200_000] {
            let records = random_references(threads, 64, 300, instr, 0.0, 7);
            let frames = 20 * u64::from(threads);
            let cell = simulation(&free_kernel(), "all", frames).cell(&records);
            let n = f64::from(threads);
            let flash = cell.services as f64 * cell.predicted_us_mean / 1e6;
            let least = cell.cpu_busy.max(cell.die_busy / 8.0).max((cell.cpu_busy + flash) / n);
            assert!(cell.seconds >= least - 1e-9, "{threads} {instr}: {cell:?}");
            if threads == 1 {
                assert!((cell.seconds / (cell.cpu_busy + flash) - 1.0).abs() < 1e-9, "{cell:?}");
            }
        }
    }
}

/// Services on the same die queue, so that some sleepers wake before their page arrives.
#[test]
fn queueing_makes_services_longer_than_predicted() {
    let records = random_references(16, 64, 300, 100, 0.5, 3);
    let cell = simulation(&free_kernel(), "all", 200).cell(&records);
    assert!(cell.prediction_error_us_mean > 10.0, "{cell:?}");
    assert!(cell.actual_us_mean > cell.predicted_us_mean && cell.overruns > 0, "{cell:?}");
    let error = cell.actual_us_mean - cell.predicted_us_mean - cell.prediction_error_us_mean;
    assert!(error.abs() < 1e-6);
}

/// Two threads with separate pages alternate every 100 references of 1,000 instructions. In a narrow
/// window each waits for the other; in a wide one, the second runs while the first sleeps.
#[test]
fn the_window_keeps_threads_in_the_order_of_the_trace() {
    let one = random_references(1, 64, 4000, 1000, 0.0, 1);
    let records: Vec<Record> = one
        .chunks(100)
        .flat_map(|turn| {
            let second = turn.iter().map(|r| Record { thread: 1, addr: r.addr + (64 << 12), ..*r });
            turn.iter().copied().chain(second)
        })
        .collect();
    let seconds = |window| {
        let simulation = Simulation {
            replay: Replay { window, ..Replay::default() },
            ..simulation(&free_kernel(), "all", 64)
        };
        simulation.cell(&records).seconds
    };
    let all: Vec<f64> = [1, 10_000, 100_000, 200_000, 400_000, 1 << 40].map(seconds).into();
    assert!(all.windows(2).all(|pair| pair[1] <= pair[0] * 1.02), "{all:?}");
    assert!(all[5] < 0.7 * all[0], "{all:?}");
    // The narrowest window: as if one thread made all references.
    let alone: Vec<Record> = records.iter().map(|r| Record { thread: 0, ..*r }).collect();
    let alone = simulation(&free_kernel(), "all", 64).cell(&alone).seconds;
    assert!((all[0] / alone - 1.0).abs() < 0.02, "{all:?} {alone}");
}

/// One thread often sleeps for flash, the other only computes. With wake-up preemption, the first ends
/// early in the run; without it, near the end.
#[test]
fn woken_threads_preempt_the_running_one() {
    let sleeper = random_references(1, 64, 200, 10, 0.0, 3);
    let hog = (0..1000).map(|_| record(1, 4000, Kind::Load, 100_000));
    let records: Vec<Record> = sleeper.into_iter().chain(hog).collect();
    let sleeper_end = |wakeup_ns| {
        let host = Host { wakeup_ns, ..free_kernel() };
        let window = 1 << 40;
        let simulation = Simulation {
            replay: Replay { window, ..Replay::default() },
            ..simulation(&host, "all", 20)
        };
        let (cell, detail) = simulation.run(&records);
        assert!(cell.slept > 50, "{cell:?}");
        detail.timeline.threads[0].len() as f64 * detail.timeline.stretch_ns as f64
            / 1e9
            / cell.seconds
    };
    let (takes, waits) = (sleeper_end(Some(1000)), sleeper_end(None));
    assert!(takes < 0.3 && waits > 0.9, "{takes} {waits}");
}

#[test]
fn garbage_collection_of_a_used_drive_raises_predictions() {
    let records = random_references(2, 3000, 6000, 100, 1.0, 5);
    let fresh = simulation(&bare(), "smart:50us", 1000).cell(&records);
    let simulation = Simulation { precondition: USED, ..simulation(&bare(), "smart:50us", 1000) };
    let (cell, detail) = simulation.run(&records);
    assert_eq!((fresh.gc_collections, fresh.write_amplification), (0, 1.0));
    assert!(detail.conditioned.unwrap().collecting);
    assert!(cell.gc_collections > 10 && cell.write_amplification > 1.0, "{cell:?}");
    assert!(cell.predicted_us_mean > fresh.predicted_us_mean);
    assert!(cell.erases_most > cell.erases_least);
}

/// Without queueing, a service takes longer than predicted only by its erases (1.5 ms each).
#[test]
fn predictions_omit_only_erases() {
    let records = random_references(1, 3000, 12000, 100, 1.0, 5);
    let cell =
        Simulation { precondition: USED, ..simulation(&bare(), "none", 1000) }.cell(&records);
    assert!(cell.gc_collections > 10 && cell.late_services <= cell.gc_collections, "{cell:?}");
    assert!((cell.late_erase - cell.gc_collections as f64 * 1.5e-3).abs() < 1e-9, "{cell:?}");
    assert_eq!((cell.late_die, cell.late_channel), (0.0, 0.0));
    // Predictions are reads (25 us), programs (200 us), and a DRAM access per page in and out (50 ns).
    let moved = cell.flash_reads as f64 * 25.0 + cell.flash_programs as f64 * 200.0;
    let dram = (cell.evictions + cell.dirty_evictions) as f64 * 0.05;
    let predicted = cell.predicted_us_mean * cell.services as f64;
    assert!((predicted / (moved + dram) - 1.0).abs() < 1e-9, "{cell:?}");
}

/// A walk reads the page table through the CPU caches, and the device's mapping table as `l2p` says.
#[test]
fn walks_read_both_tables() {
    let host = Host::new(&machine(), None).unwrap();
    // 40 pages in turn, too many for the TLB; their lines are in different cache sets.
    let records: Vec<Record> = (0..400)
        .map(|at| Record { addr: at % 40 * (4096 + 64), ..record(0, 0, Kind::Load, 10) })
        .collect();
    let [cached, device] = [L2p::Cached, L2p::Device].map(|l2p| {
        let cell = simulation(&Host { l2p, ..host.clone() }, "none", 100).cell(&records);
        assert_eq!(cell.tlb_misses, 400);
        (cell.accesses, (cell.cpu_walk * 1e9).round() as u64)
    });
    // 40 entries are 5 lines of either table; two lines of directories are read once. The first 40 walks
    // do not read the mapping table, as the device does not have the pages yet.
    assert_eq!(cached, (40 + 7 + 5, (7 + 5) * 50 + (400 - 5) + (360 - 5)));
    assert_eq!(device, (40 + 7 + 360, (7 + 360) * 50 + (400 - 5)));
}

/// A file is read from disk in units of 128 KiB, with the next unit prefetched; the thread sleeps
/// meanwhile and another runs.
#[test]
fn the_disk_reads_ahead() {
    let mut machine = machine();
    let desktop = Machine::load("desktop-hdd", "".as_ref()).unwrap();
    machine.storage.insert("disk".into(), desktop.storage["hdd"].clone());
    let host = Host::new(&machine, Some("disk")).unwrap();
    let run = |kind: Kind, page: &dyn Fn(u64) -> u64| {
        let mut records: Vec<Record> = (0..64).map(|at| record(0, page(at), kind, 10)).collect();
        records.extend((0..64).map(|_| record(1, 5, Kind::Load, 1000)));
        let (cell, detail) = simulation(&host, "all", 200).run(&records);
        let disk: u64 = detail.timeline.threads[0].iter().map(|s| s[State::Disk as usize]).sum();
        assert!((disk as f64 / 1e9 / cell.seconds - 1.0).abs() < 0.02, "{cell:?}");
        assert_eq!((cell.page_faults, cell.embedded_faults), (65, 0));
        (cell.disk_reads, cell.seconds)
    };
    // A random read: seek, half a rotation, transfer of 128 KiB. A sequential read is the transfer alone.
    // The 64 pages are two reads; the third is an unused prefetch.
    let transfer = 131_072.0 / 156e6;
    let access = 8.5e-3 + 4.166_667e-3 + transfer;
    let (reads, seconds) = run(Kind::KernelLoad, &|at| 1000 + at);
    assert!((seconds - access - transfer).abs() < 3e-4, "{seconds}");
    assert_eq!(reads, 3);
    // Scattered pages: a random read for each.
    let (reads, seconds) = run(Kind::KernelLoad, &|at| 1000 + at * 33);
    assert!((seconds / access / 64.0 - 1.0).abs() < 1e-3, "{seconds}");
    assert_eq!(reads, 64);
    // Code, backwards: a read includes pages before the requested one.
    assert_eq!(run(Kind::Fetch, &|at| 2000 - at).0, 4);
}

#[test]
fn caches_filter_what_reaches_the_device() {
    let host = Host::new(&machine(), None).unwrap();
    let records = random_references(2, 4, 4000, 10, 0.3, 1);
    let all = simulation(&bare(), "none", 20).cell(&records);
    let cell = simulation(&host, "none", 20).cell(&records);
    // Walks read eight entries, which are in one line, and two lines of directories.
    assert_eq!((all.accesses, cell.accesses), (8000 + 8 + 2, 8 + 1 + 2));
    assert!(cell.seconds < all.seconds);
}

#[test]
fn invalid_options_are_refused() {
    let options = |epf: &[&str], dram: &[u64]| {
        let epf: Vec<String> = epf.iter().map(|text| (*text).to_owned()).collect();
        Options::new(&epf, dram, bare(), USED, Replay::default())
    };
    assert_eq!(options(&["none", "all"], &[1 << 20, 1 << 21]).unwrap().settings.len(), 4);
    let error = options(&[], &[1]).unwrap_err().to_string();
    assert!(error.contains("make 0 combinations"), "{error}");
    let error = Host::new(&Machine::load("nvme", "".as_ref()).unwrap(), None).unwrap_err();
    assert!(error.to_string().contains("key tlb.second: the ssd study supports"), "{error}");
    assert!(
        error.to_string().contains("use --machine umd; or `nearfar machine show nvme"),
        "{error}"
    );
    let error = Host::new(&Machine::load("cxl", "".as_ref()).unwrap(), None).unwrap_err();
    assert!(error.to_string().contains("has no [cpu], which the ssd study needs"), "{error}");
    // Three threads and three frames.
    let umd = Umd::new(&machine(), 3 * 4096).unwrap();
    let conditioned = { umd }.precondition(&FRESH);
    let umd = Umd::new(&machine(), 3 * 4096).unwrap();
    let host = bare();
    let run = Run::new(&host, epf::parse("none").unwrap(), Replay::default(), umd, conditioned);
    let mut records = random_references(3, 4, 1, 1, 0.0, 1).into_iter();
    let mut source = |batch: &mut Batch| {
        batch.clear();
        records.by_ref().for_each(|record| batch.push(record));
        Ok(!batch.is_empty())
    };
    let error = run.run(&mut source, &mut |_| Ok(())).unwrap_err().to_string();
    assert!(error.contains("too few for 3 threads"), "{error}");
}
