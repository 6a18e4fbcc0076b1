//! Tests of the engines against naive implementations with lists and loops.

mod linux;
pub mod lives;
mod mglru;

use std::collections::{HashMap, HashSet};

use linux::naive_linux;
use lives::{Log, PlainClock, PlainLru, PlainMemory, tlb_misses};
use mglru::naive_mglru;
use nearfar_hardware::tlb::Level;
use nearfar_schema::Choice;
use nearfar_trace::{Batch, Kind, KindSet, Record};
use proptest::prelude::*;

use super::*;

/// Every reference of the records at a page size: each page a record overlaps, once.
fn references(records: &[Record], page: u64) -> Vec<(u64, bool)> {
    records
        .iter()
        .flat_map(|r| {
            let last = r.addr.saturating_add(u64::from(r.size).max(1) - 1);
            (r.addr / page..=last / page).map(|p| (p, r.kind.writes()))
        })
        .collect()
}

/// The pages of references that miss in a TLB level.
pub(in crate::paging) fn naive_lru_misses(pages: &[u64], entries: usize, sets: u64) -> Vec<u64> {
    let access = |&page: &u64| Log::Access { page, frame: None, write: false };
    let log: Vec<Log> = pages.iter().map(access).collect();
    let page = |step| match step {
        Log::Access { page, .. } => Some(page),
        _ => None,
    };
    tlb_misses(&log, entries, sets).into_iter().filter_map(page).collect()
}

/// (faults, dirty evictions) of references (page, whether it writes) in a memory.
fn naive(refs: &[(u64, bool)], memory: &mut dyn PlainMemory) -> (u64, u64) {
    let (mut faults, mut flushed) = (0, 0);
    let mut dirty = HashSet::new();
    for &(page, write) in refs {
        if let Some(victims) = memory.reference(page) {
            faults += 1;
            flushed += victims.iter().filter(|victim| dirty.remove(*victim)).count() as u64;
        }
        if write {
            dirty.insert(page);
        }
    }
    (faults, flushed)
}

pub(in crate::paging) fn naive_clock(refs: &[(u64, bool)], frames: usize) -> (u64, u64) {
    naive(refs, &mut PlainClock::new(frames))
}

pub(in crate::paging) fn naive_lru(refs: &[(u64, bool)], frames: usize) -> (u64, u64) {
    naive(refs, &mut PlainLru(Vec::new(), frames))
}

pub fn store(records: &[Record], folder: &std::path::Path) -> nearfar_trace::Reader {
    let steps: Vec<_> = records.iter().map(|record| lives::Step::Record(*record)).collect();
    lives::trace(&steps, &[], folder)
}

/// Faults and dirty evictions of references (page, whether it writes) in this number of frames.
type Plain = fn(&[(u64, bool)], usize) -> (u64, u64);

/// Options of a study of all records, with memories of any number of frames.
pub fn options(pages: &[u64], memory: Vec<MemorySize>, tlb: &str, policy: &str) -> Options {
    let (tlb, policy) = (tlb.parse().unwrap(), Choice::of(policy).unwrap());
    let options = Options::new(pages.to_vec(), memory, tlb, policy, KindSet::ALL).unwrap();
    Options { min_frames: 1, prefetch_pages: 8, ..options }
}

fn sets(level: Level) -> u64 {
    level.ways.map_or(1, |ways| u64::from(level.entries / ways))
}

/// Check each cell of a study against the naive implementation `plain`.
fn check(records: &[Record], pages: &[u64], tlb: &str, policy: &str, plain: Plain) {
    let folder = tempfile::tempdir().unwrap();
    let reader = store(records, folder.path());
    let memory: Vec<MemorySize> = (1..=10)
        .map(|i| MemorySize::Fraction(f64::from(i) / 10.0))
        .chain([1, 5000, 70_000].map(MemorySize::Bytes))
        .chain((1..=5).map(|i| MemorySize::Bytes(i * 9001)))
        .collect();
    let options = options(pages, memory, tlb, policy);
    let result = simulate(&reader, &options, &mut |_| Ok(())).unwrap();
    // One pass for each page size and one for all give the same result.
    let alone = Options { max_memory: 0, ..options.clone() };
    assert_eq!(result, simulate(&reader, &alone, &mut |_| Ok(())).unwrap());
    assert_eq!(result.records, records.len() as u64);
    let mut seen = HashMap::new();
    for cell in &result.cells {
        let refs = references(records, cell.page_bytes);
        let place = format!("{tlb} {policy} page {} frames {}", cell.page_bytes, cell.frames);
        assert_eq!(cell.references, refs.len() as u64, "references, {place}");
        let (misses, second) = *seen.entry(cell.page_bytes).or_insert_with(|| {
            let numbers: Vec<u64> = refs.iter().map(|r| r.0).collect();
            let first = options.tlb.first;
            let missed = naive_lru_misses(&numbers, first.entries as usize, sets(first));
            match options.tlb.second {
                None => (missed.len() as u64, 0),
                Some(level) => {
                    let walks =
                        naive_lru_misses(&missed, level.entries as usize, sets(level)).len();
                    (walks as u64, (missed.len() - walks) as u64)
                }
            }
        });
        assert_eq!((cell.tlb_misses, cell.tlb_second_hits), (misses, second), "tlb, {place}");
        let expected = plain(&refs, cell.frames as usize);
        assert_eq!((cell.faults, cell.dirty_evictions), expected, "faults, {place}");
        let distinct: HashSet<_> = refs.iter().map(|r| r.0).collect();
        assert_eq!(cell.pages, distinct.len() as u64);
        assert!(cell.faults >= cell.pages, "compulsory bound, {place}");
    }
}

fn records() -> impl Strategy<Value = Vec<Record>> {
    // Phases over a few regions, so that pages are reused, evicted and come back.
    let one = (0u64..3, 0u64..40_000, 0u8..5, prop_oneof![9 => 1u16..9, 1 => 1u16..5000]);
    (prop::collection::vec(one, 1..1500), 1u64..40_000, 1usize..400).prop_map(
        |(parts, span, phase)| {
            parts
                .iter()
                .enumerate()
                .map(|(i, &(region, offset, kind, size))| {
                    let base = [0x40_0000, 0x7fff_0000_0000, 0x5555_0000_0800][region as usize];
                    let addr = base + (offset % span) + (i / phase) as u64 * 777;
                    let kind = Kind::from_u8(kind).unwrap();
                    Record { addr, kind, size, thread: 0, instr: 1 }
                })
                .collect()
        },
    )
}

const PAGES: [u64; 6] = [64, 512, 1024, 4096, 65_536, 2 << 20];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn clock_is_exact(records in records(), tlb in prop::sample::select(vec!["64", "3", "8x2", "4+16x4", "6x3+9"])) {
        check(&records, &PAGES, tlb, "clock", naive_clock);
    }
    #[test]
    fn lru_is_exact(records in records()) {
        check(&records, &PAGES, "1", "lru", naive_lru);
    }
    #[test]
    fn linux_is_exact(records in records()) {
        check(&records, &PAGES, "12x3", "linux", naive_linux);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn mglru_is_exact(records in records()) {
        check(&records, &PAGES, "12x3", "mglru", naive_mglru);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn cells_of_too_few_frames_are_left_out_and_listed(
        records in records(),
        policy in prop::sample::select(vec!["clock", "lru", "linux", "mglru"]),
        min_frames in 2u64..12,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let reader = store(&records, folder.path());
        let memory = [
            MemorySize::Fraction(0.2), MemorySize::Fraction(1.0), MemorySize::Bytes(9000),
        ];
        let all = options(&PAGES, memory.to_vec(), "4", policy);
        let some = Options { min_frames, ..all.clone() };
        let [all, some] =
            [all, some].map(|options| simulate(&reader, &options, &mut |_| Ok(())).unwrap());
        let (enough, few): (Vec<Cell>, Vec<Cell>) =
            all.cells.into_iter().partition(|cell| cell.frames >= min_frames);
        prop_assert_eq!(enough, some.cells);
        let too_few = |cell: Cell| TooFewFrames {
            page_bytes: cell.page_bytes,
            memory_bytes: cell.memory_bytes,
            memory_fraction: cell.memory_fraction,
        };
        // Memories smaller than a page have no cell even without a minimum.
        let mut few: Vec<TooFewFrames> = few.into_iter().map(too_few).chain(all.too_few_frames).collect();
        let place = |cell: &TooFewFrames| (cell.page_bytes, cell.memory_bytes);
        few.sort_by_key(place);
        let mut left_out = some.too_few_frames;
        left_out.sort_by_key(place);
        prop_assert_eq!(few, left_out);
    }
}

#[test]
fn records_at_the_top_of_the_address_space_are_exact() {
    let at = |addr, size| Record { addr, kind: Kind::Store, size, thread: 0, instr: 1 };
    let records = [at(u64::MAX, 8), at(0, 1), at(u64::MAX - 5000, 5001), at(u64::MAX, 1)];
    check(&records, &PAGES, "64", "clock", naive_clock);
    check(&records[..1], &PAGES, "64", "lru", naive_lru);
}

/// With over 4096 frames, a reclaim evicts a whole batch.
#[test]
fn linux_and_mglru_are_exact_in_large_memories() {
    let mut draw = 1u64;
    let records: Vec<Record> = (0..30_000u64)
        .map(|i| {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let random = draw >> 33;
            // A repeated sweep over 8192 blocks, interleaved with references to some of them.
            let block =
                if i % 3 == 0 { i / 3 % 8192 } else { random % 8192 * (random >> 20 & 1) / 10 * 7 };
            let kind = if random & 4 == 0 { Kind::Load } else { Kind::Store };
            Record { addr: 0x40_0000 + block * 64, kind, size: 8, thread: 0, instr: 1 }
        })
        .collect();
    check(&records, &[64], "1", "linux", naive_linux);
    check(&records, &[64], "1", "mglru", naive_mglru);
}

/// A captured SQLite, which looks data up in random order.
#[test]
fn mglru_is_exact_on_a_real_program() {
    let capture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/captures/sqlite.trace");
    let reader = nearfar_trace::Reader::open(std::path::Path::new(capture)).unwrap();
    let mut batches = reader.batches(nearfar_trace::Columns::ALL);
    let (mut batch, mut records) = (Batch::default(), Vec::new());
    while batches.next_into(&mut batch).unwrap() {
        records.extend(batch.iter());
    }
    records.truncate(100_000);
    check(&records, &[4096], "64", "mglru", naive_mglru);
}

/// A working set that is referenced repeatedly becomes active. The kernel deactivates no page of it
/// while its statistics are older.
#[test]
fn linux_is_exact_with_stale_statistics() {
    let mut draw = 1u64;
    let records: Vec<Record> = (0..60_000u64)
        .map(|i| {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let random = draw >> 33;
            let block = if i % 5 == 0 { i % 12_000 } else { random % (500 + i / 12) };
            let kind = if random & 1 << 20 == 0 { Kind::Load } else { Kind::Store };
            Record { addr: 0x40_0000 + block * 64, kind, size: 8, thread: 0, instr: 1 }
        })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let reader = store(&records, folder.path());
    let memory = [30, 700, 2000, 4500, 5500].map(|frames| MemorySize::Bytes(frames * 64)).to_vec();
    let options = options(&[64], memory, "1", "linux");
    let refs = references(&records, 64);
    let mut found = Vec::new();
    for every in [0, 1, 2, 1000] {
        let options = options.clone().with_statistics_every(every).unwrap();
        for cell in simulate(&reader, &options, &mut |_| Ok(())).unwrap().cells {
            let expected = linux::with_statistics(&refs, cell.frames as usize, every);
            found.push((cell.faults, cell.dirty_evictions));
            assert_eq!(found.last(), Some(&expected), "every {every}, frames {}", cell.frames);
        }
    }
    assert_ne!(found[..5], found[5..10], "old statistics change nothing");
}
