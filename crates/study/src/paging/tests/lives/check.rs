//! Tests of studies with lifetimes against reference implementations.

use super::memories::replay;
use super::*;
use crate::paging::tests::linux::PlainLinux;
use crate::paging::tests::mglru::PlainMglru;

fn check_lives(steps: &[Step], pages: &[u64], tlb: &str, policy: &str) {
    let sizes = FRAMES.map(|frames| MemorySize::Bytes(frames * 4096));
    check_options(steps, &options(pages, sizes.to_vec(), tlb, policy));
}

fn check_options(steps: &[Step], options: &Options) {
    let folder = tempfile::tempdir().unwrap();
    let reader = trace(steps, &PROCESSES, folder.path());
    let options = Options { lifetimes: true, ..options.clone() };
    let (pages, policy) = (&options.page_sizes, options.replacement.name);
    let result = simulate(&reader, &options, &mut |_| Ok(())).unwrap();
    for &page in pages {
        let mut world = World::new(page, pages[0].min(4096), &PROCESSES);
        for step in steps {
            match step {
                Step::Event(event) => world.event(event),
                Step::Record(record) => world.record(record),
            }
        }
        let first = options.tlb.first;
        let missed = tlb_misses(&world.log, first.entries as usize, sets(first));
        let walks = match options.tlb.second {
            None => accesses(&missed),
            Some(level) => accesses(&tlb_misses(&missed, level.entries as usize, sets(level))),
        };
        for cell in result.cells.iter().filter(|cell| cell.page_bytes == page) {
            let place = format!("{:?} {policy} page {page} frames {}", options.tlb, cell.frames);
            assert_eq!(cell.tlb_misses, walks, "tlb, {place}");
            assert_eq!(cell.tlb_misses + cell.tlb_second_hits, accesses(&missed), "tlb, {place}");
            let frames = cell.frames as usize;
            let mut memory: Box<dyn PlainMemory> = match policy {
                "clock" => Box::new(PlainClock::new(frames)),
                "lru" => Box::new(PlainLru(Vec::new(), frames)),
                "linux" => {
                    Box::new(PlainLinux::new(frames, options.swappiness, options.statistics_every))
                }
                "mglru" => Box::new(PlainMglru::new(frames, options.swappiness)),
                _ => panic!("no reference implementation of {policy}"),
            };
            let counts = replay(&world, memory.as_mut());
            assert_eq!(
                (cell.faults, cell.dirty_evictions),
                (counts.faults, counts.dirty),
                "{place}"
            );
            assert_eq!(cell.kinds, counts.kinds, "{place}");
        }
    }
}

const PAGE_SIZES: [u64; 4] = [4096, 8192, 65_536, 2 << 20];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn clock_with_lifetimes_is_exact(
        steps in steps(),
        tlb in prop::sample::select(vec!["64", "3", "8x2", "4+16x4", "6x3+9"]),
    ) {
        check_lives(&steps, &PAGE_SIZES, tlb, "clock");
    }
    #[test]
    fn lru_with_lifetimes_is_exact(steps in steps()) {
        check_lives(&steps, &[1024, 4096, 16_384], "1", "lru");
    }
    #[test]
    fn linux_with_lifetimes_is_exact(
        steps in steps(),
        swappiness in prop::sample::select(vec![0u64, 1, 60, 100, 200]),
        every in prop::sample::select(vec![0u64, 1, 1, 3, 50]),
    ) {
        check_options(&steps, &linux_options("linux", &[4096, 16_384], &FRAMES, swappiness, every));
    }
    #[test]
    fn mglru_with_lifetimes_is_exact(
        steps in steps(),
        swappiness in prop::sample::select(vec![0u64, 1, 60, 100, 200]),
    ) {
        check_options(&steps, &linux_options("mglru", &[4096, 16_384], &FRAMES, swappiness, 1));
    }
}

/// Memory sizes in frames of 4 KiB.
const FRAMES: [u64; 10] = [1, 2, 3, 5, 8, 9, 12, 17, 40, 70];

/// Options for memories of `frames` times 4 KiB under one of Linux's policies.
fn linux_options(
    policy: &str,
    pages: &[u64],
    frames: &[u64],
    swappiness: u64,
    every: u64,
) -> Options {
    let sizes = frames.iter().map(|frames| MemorySize::Bytes(frames * 4096)).collect();
    options(pages, sizes, "12x3", policy)
        .with_swappiness(swappiness)
        .unwrap()
        .with_statistics_every(every)
        .unwrap()
}

/// Files, code and anonymous memory, of which parts are discarded or freed.
#[test]
fn linux_and_mglru_with_lifetimes_are_exact_in_large_memories() {
    const PAGES: u64 = 2048;
    let regions = [(0x1000_0000u64, "rw-p", 0), (0x2000_0000, "r--p", 1), (0x3000_0000, "r-xp", 2)];
    let event = |event, addr, pages| {
        let length = pages * 64;
        RegionEvent { thread: 0, event, addr, length, ..RegionEvent::default() }
    };
    let mut steps: Vec<Step> = regions
        .iter()
        .map(|&(addr, prot, inode)| {
            let map = event(RegionKind::Map, addr, PAGES);
            Step::Event(RegionEvent { prot: prot.into(), device: 1, inode, ..map })
        })
        .collect();
    let mut draw = 1u64;
    for i in 0..20_000u64 {
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let random = draw >> 33;
        let (region, _, _) = regions[(random % 7 % 3) as usize];
        // A repeated sweep, interleaved with references to a tenth of the pages.
        let page = if random & 8 == 0 { i / 6 % PAGES } else { (random >> 8) % (PAGES / 10) };
        let write = region == regions[0].0 && random & 4 == 0;
        let kind = if write { Kind::Store } else { Kind::Load };
        let addr = region + page * 64;
        steps.push(Step::Record(Record { addr, kind, size: 8, thread: 0, instr: 1 }));
        if i % 997 == 0 {
            let what = [RegionKind::Free, RegionKind::DontNeed][(i / 997 % 2) as usize];
            steps.push(Step::Event(event(
                what,
                regions[0].0 + (random % PAGES & !63) * 64,
                64 * 8,
            )));
        }
    }
    for (swappiness, every) in [(0, 1), (30, 1), (60, 1), (200, 1), (60, 0), (60, 1000)] {
        check_options(&steps, &linux_options("linux", &[64], &[16, 40, 72], swappiness, every));
        if every == 1 {
            check_options(&steps, &linux_options("mglru", &[64], &[16, 40, 72], swappiness, every));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Without memory for the cache, a first pass finds the peak.
    #[test]
    fn cached_windows_change_no_result(
        steps in steps(),
        page in prop::sample::select(vec![512, 4096, 65_536]),
        files in any::<bool>(),
        filtered in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let reader = trace(&steps, &PROCESSES, folder.path());
        let (tlb, memory) = ("16".parse().unwrap(), vec![MemorySize::Fraction(0.6)]);
        let clock = Choice::of("clock").unwrap();
        let options =
            Options::new(vec![page], memory, tlb, clock, KindSet::ALL).unwrap();
        let run = |max_memory| {
            let options = Options { lifetimes: true, files, filtered, max_memory, ..options.clone() };
            simulate(&reader, &options, &mut |_| Ok(())).unwrap()
        };
        prop_assert_eq!(run(u64::MAX), run(0));
    }
}
