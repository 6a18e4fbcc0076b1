//! Tests of the machine's view: against its reference implementation, and with small hand-made traces.

use std::path::Path;

use nearfar_hardware::Machine;
use nearfar_hardware::cache::Level;
use nearfar_hardware::processor::{Caches, Latencies, Processor, Tlbs};
use nearfar_schema::Choice;
use nearfar_trace::{Kind, KindSet, Record, RegionEvent, RegionKind};
use proptest::prelude::*;

use super::super::options::MemorySize;
use super::super::tests::lives::{PROCESSES, Step, steps, trace};
use super::*;

const LARGE_BYTES: u64 = 1 << LARGE;
const SIZES: [u64; 4] = [4096, 16_384, 65_536, LARGE_BYTES];

fn level(sets: u64, ways: usize) -> Level {
    Level { sets, ways }
}

/// A processor whose caches and TLBs are so small that each misses at times.
pub(crate) fn processor(host_shift: Option<u32>) -> Processor {
    with_entries(host_shift, 2)
}

fn with_entries(host_shift: Option<u32>, entries: usize) -> Processor {
    Processor {
        instruction_ns: 0.25,
        window: 40,
        dependent: 0.5,
        caches: Caches {
            instruction: level(2, 2),
            data: level(4, 2),
            second: level(8, 4),
            third: Some(level(16, 4)),
            line_bytes: 64,
        },
        latencies: Latencies {
            first: 1_000,
            second: 4_000,
            third: 15_000,
            memory: 100_000,
            streamed: 5_000,
        },
        tlbs: Tlbs {
            instruction: (entries, None),
            data: (3 * entries, Some(2 * entries)),
            second: Some((level(2, 4), None)),
            second_ps: 2_000,
            coalesced: 14,
            directories: 2,
            upper_directories: 1,
        },
        host_shift,
        map_ns: 1.0,
        // Factors of 1000, so that `faults` can derive counts from the sum.
        zero_fills: vec![(12, 1e3), (14, 1e6), (16, 1e6), (21, 1e9)],
        zero_byte_ns: 0.1,
    }
}

fn options() -> Options {
    let memory = vec![MemorySize::Fraction(1.0)];
    let (tlb, policy) = ("64".parse().unwrap(), Choice::of("clock").unwrap());
    let options = Options::new(SIZES.to_vec(), memory, tlb, policy, KindSet::ALL).unwrap();
    Options { lifetimes: true, threads: 1, ..options }
}

fn fast_and_slow(steps: &[Step], processor: &Processor, lives: bool) -> Vec<(Time, Time)> {
    let folder = tempfile::tempdir().unwrap();
    let reader = trace(steps, &PROCESSES, folder.path());
    let options = options();
    let storages = Machine::load("nvme", Path::new("")).unwrap().storages().unwrap();
    let host = (processor, &*storages);
    let fast = times(&reader, &options, host, lives, &mut |_| Ok(())).unwrap();
    let slow = SIZES.map(|size| reference::time(&reader, &options, host, lives, size).unwrap());
    fast.into_iter().zip(slow).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn counts_equal_the_reference_implementation(
        steps in steps(),
        host in prop::sample::select(vec![None, Some(12), Some(21)]),
        lives in any::<bool>(),
        entries in prop::sample::select(vec![1usize, 3, 6]),
    ) {
        for (fast, slow) in fast_and_slow(&steps, &with_entries(host, entries), lives) {
            let counts = |time: &Time| {
                let Time { walks, tlb_second_hits, resident_bytes, file_requests, .. } = *time;
                (time.page_bytes, walks, tlb_second_hits, resident_bytes, file_requests)
            };
            prop_assert_eq!(counts(&fast), counts(&slow));
            let faults = |time: &Time| (time.cpu_ns, time.fault_ns, time.start_ns);
            prop_assert_eq!(faults(&fast), faults(&slow));
            // Only the reference implementation keeps lines of page tables in its caches.
            prop_assert!(fast.walk_ns >= 0.0 && (fast.walk_ns > 0.0) == (fast.walks > 0));
        }
    }
}

/// Start of the mapped memory, aligned to large pages.
const BASE: u64 = 0x4000_0000;

fn event(event: RegionKind, addr: u64, length: u64) -> Step {
    let prot = "rw-p".into();
    Step::Event(RegionEvent { event, addr, length, prot, ..RegionEvent::default() })
}

fn touch(kind: Kind, addr: u64) -> Step {
    Step::Record(Record { addr, kind, size: 8, thread: 0, instr: 1 })
}

fn stores(addr: u64, pages: u64) -> impl Iterator<Item = Step> {
    (0..pages).map(move |page| touch(Kind::Store, addr + 4096 * page))
}

/// Faults that allocated a large page, those that allocated a small page, and peak private memory in
/// small pages.
fn faults(steps: &[Step], page_bytes: u64) -> (u64, u64, u64) {
    let mut all = fast_and_slow(steps, &processor(None), true);
    all.retain(|(time, _)| time.page_bytes == page_bytes);
    let [(fast, slow)] = &all[..] else { panic!("one size") };
    assert_eq!(fast.fault_ns, slow.fault_ns);
    let large_ns = if page_bytes > 1 << LARGE - 1 { 1e9 } else { 1e6 };
    let large = (fast.fault_ns / large_ns) as u64;
    let small = ((fast.fault_ns - large as f64 * large_ns) / 1e3) as u64;
    (large, small, fast.resident_bytes >> SMALL)
}

#[test]
fn large_pages_are_aligned_and_inside_the_mapping() {
    // A small page, two large pages and half of a third.
    let mut steps = vec![event(RegionKind::Map, BASE - 4096, 4096 + 5 * LARGE_BYTES / 2)];
    steps.extend(stores(BASE - 4096, 1 + 5 * 512 / 2));
    assert_eq!(faults(&steps, LARGE_BYTES), (2, 1 + 256, 1 + 5 * 256));
    // With pages of 16 KiB, only the first page is small.
    assert_eq!(faults(&steps, 16_384), (5 * 64, 1, 1 + 5 * 256));
}

#[test]
fn one_touch_allocates_a_whole_page() {
    let steps = [
        event(RegionKind::Map, BASE, 2 * LARGE_BYTES),
        touch(Kind::Store, BASE + 5000),
        touch(Kind::Store, BASE + LARGE_BYTES + 9),
    ];
    assert_eq!(faults(&steps, LARGE_BYTES), (2, 0, 1024));
    assert_eq!(faults(&steps, 65_536), (2, 0, 32));
}

#[test]
fn a_first_read_maps_the_zero_page() {
    let loads = |pages: u64| (0..pages).map(|page| touch(Kind::Load, BASE + 4096 * page));
    let mut steps = vec![event(RegionKind::Map, BASE, LARGE_BYTES)];
    steps.extend(loads(3));
    // Mapping the zero page takes no memory, and too little time to count as a fault here.
    for size in [4096, 16_384, LARGE_BYTES] {
        assert_eq!(faults(&steps, size), (0, 0, 0));
    }
    // Below 2 MiB, writes to a large page of which a part was read allocate small pages.
    steps.extend(stores(BASE, 16));
    assert_eq!(faults(&steps, 4096), (0, 16, 16));
    assert_eq!(faults(&steps, 65_536), (0, 16, 16));
    assert_eq!(faults(&steps, 16_384), (3, 4, 16));
    // The first write replaces the huge zero page.
    assert_eq!(faults(&steps, LARGE_BYTES), (1, 0, 512));
    // One large page was read first, three were not.
    steps.push(event(RegionKind::Map, 2 * BASE, 3 * LARGE_BYTES));
    steps.extend(stores(2 * BASE, 3 * 512));
    for (time, _) in fast_and_slow(&steps, &processor(None), true) {
        let share = if time.page_bytes == LARGE_BYTES { 0.25 } else { 0.0 };
        assert_eq!(time.read_first_share, share, "{}", time.page_bytes);
    }
}

#[test]
fn an_instruction_that_modifies_memory_faults_as_a_write() {
    let load = Record { addr: BASE + 8, kind: Kind::Load, size: 8, thread: 0, instr: 1 };
    // `instr` is 0 if the store is of the same instruction as the load.
    for (instr, expected) in [(0, (1, 0, 16)), (1, (0, 1, 1))] {
        let store = Record { kind: Kind::Store, instr, ..load };
        let steps =
            [event(RegionKind::Map, BASE, LARGE_BYTES), Step::Record(load), Step::Record(store)];
        assert_eq!(faults(&steps, 65_536), expected, "{instr}");
    }
}

/// Time of loads from `pages` of a mapped file.
fn mapped_file(pages: impl IntoIterator<Item = u64>) -> Time {
    let prot = "r--s".into();
    let map = RegionKind::Map;
    let (name, inode) = ("/file".into(), 7);
    let length = 1 << 30;
    let event = RegionEvent { event: map, addr: BASE, length, prot, name, inode, ..<_>::default() };
    let mut steps = vec![Step::Event(event)];
    steps.extend(pages.into_iter().map(|page| touch(Kind::Load, BASE + 4096 * page)));
    let (fast, slow) = fast_and_slow(&steps, &processor(None), true).remove(0);
    assert_eq!(fast.file_requests, slow.file_requests);
    fast
}

#[test]
fn files_are_read_ahead() {
    let storage = Machine::load("nvme", Path::new("")).unwrap().storages().unwrap().remove(0);
    let transfer = storage.io_ns(2 << 17) - storage.io_ns(1 << 17);
    let all = mapped_file(0..320);
    // The first fault reads 32 pages; page 24, then every 32nd, is marked and reads the next 32.
    assert_eq!(all.file_requests, 11);
    // The program hardly computes, so it waits for 10 transfers of 128 KiB.
    let (least, most) = (storage.io_ns(1 << 17) + 9.0 * transfer, 1.5 * storage.io_ns(10 << 17));
    assert!((least..most).contains(&all.file_ns[0]), "{:?} {least} {most}", all.file_ns);
    // Each random page is a request: of 32 pages for the first 100 misses, then of one page.
    let random = mapped_file((0..150).map(|page| 1000 * page));
    let alone = 100.0 * storage.io_ns(1 << 17) + 50.0 * storage.io_ns(4096);
    assert_eq!(random.file_requests, 150);
    assert!((random.file_ns[0] / alone - 1.0).abs() < 1e-9, "{:?} {alone}", random.file_ns);
}

#[test]
fn only_faults_that_raise_the_peak_count_as_start() {
    let mut steps = Vec::new();
    for _ in 0..3 {
        steps.push(event(RegionKind::Map, BASE, 64 * 4096));
        steps.extend(stores(BASE, 64));
        steps.push(event(RegionKind::Unmap, BASE, 64 * 4096));
    }
    let (time, _) = fast_and_slow(&steps, &processor(None), true).remove(0);
    assert_eq!((time.fault_ns, time.start_ns), (3.0 * 64e3, 64e3));
}

#[test]
fn a_heap_that_grows_in_small_steps_has_no_huge_pages() {
    let mut steps = vec![event(RegionKind::Brk, BASE, 0)];
    for step in 1..=16 {
        steps.push(event(RegionKind::Brk, BASE, step * LARGE_BYTES / 16));
        steps.extend(stores(BASE + (step - 1) * LARGE_BYTES / 16, 32));
    }
    assert_eq!(faults(&steps, LARGE_BYTES), (0, 512, 512));
    assert_eq!(faults(&steps, 65_536), (32, 0, 512));
}

#[test]
fn unmapped_and_released_memory_is_allocated_again() {
    let mut steps = vec![event(RegionKind::Map, BASE, LARGE_BYTES)];
    steps.extend(stores(BASE, 512));
    steps.push(event(RegionKind::Unmap, BASE, LARGE_BYTES));
    steps.push(event(RegionKind::Map, BASE, LARGE_BYTES));
    steps.extend(stores(BASE, 1));
    assert_eq!(faults(&steps, LARGE_BYTES), (2, 0, 512));
    // A released part of a huge page is refilled with small pages.
    steps.extend(stores(BASE, 512));
    steps.push(event(RegionKind::DontNeed, BASE + 8 * 4096, 8 * 4096));
    steps.extend(stores(BASE, 512));
    assert_eq!(faults(&steps, LARGE_BYTES), (2, 8, 512 + 8));
    // At 16 KiB, these eight small pages are two whole pages.
    assert_eq!(faults(&steps, 16_384), (128 + 128 + 2, 0, 512));
}

#[test]
fn a_write_after_a_fork_copies_a_small_page() {
    let mut steps = vec![event(RegionKind::Map, BASE, LARGE_BYTES)];
    steps.extend(stores(BASE, 512));
    steps.push(Step::Event(RegionEvent {
        event: RegionKind::Fork,
        to: u64::from(PROCESSES[3]),
        ..RegionEvent::default()
    }));
    steps.extend(stores(BASE, 3));
    assert_eq!(faults(&steps, LARGE_BYTES), (1, 3, 512 + 3));
}

#[test]
fn unsupported_page_sizes_are_refused() {
    for size in [2048, 1 << 30] {
        let text = check(&[4096, size]).unwrap_err().to_string();
        assert!(text.contains("--page-sizes 4K,...,2M"), "{text}");
    }
}
