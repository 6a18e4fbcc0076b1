//! Tests of `explain`: counts add up to those of the study, and places equal those of a plain loop.

use nearfar_hardware::processor::Hierarchy;
use nearfar_kernel::replacement::REPLACEMENTS;
use nearfar_trace::{Kind, KindSet, Record, RegionEvent, RegionKind};
use proptest::prelude::*;

use super::*;
use crate::paging::machine::touches::{Chunk, Touches};
use crate::paging::machine::waits::{Costs, PageSize, Watch};
use crate::paging::machine::{self, times};
use crate::paging::tests::lives::{PROCESSES, Step, steps, trace};
use crate::paging::tests::options;
use crate::paging::{Cell, FaultKinds, MemorySize, simulate};

fn store(records: &[Record], folder: &std::path::Path) -> Reader {
    let region = |(name, addr, length): (&str, u64, u64)| {
        let (prot, name) = ("rw-p".into(), name.into());
        Step::Event(RegionEvent { addr, length, prot, name, ..RegionEvent::default() })
    };
    let regions = [("low", LOW, 0x8000), ("high", HIGH, 0x1_0000)].map(region);
    let records = records.iter().map(|record| Step::Record(*record));
    trace(&regions.into_iter().chain(records).collect::<Vec<_>>(), &[], folder)
}

const LOW: u64 = 0x40_0000;
const HIGH: u64 = 0x7fff_0000_0000;

fn sum(places: &[Place]) -> Counts {
    let mut all = Counts::default();
    places.iter().for_each(|place| all.add(&place.counts));
    all
}

fn region_of(addr: u64) -> &'static str {
    match addr {
        LOW..0x40_8000 => "low",
        HIGH..0x7fff_0001_0000 => "high",
        _ => "(unnamed)",
    }
}

/// The counts that `explain` must find for a cell of the study.
fn of_cell(cell: &Cell) -> Counts {
    let FaultKinds { zero_fills, file_reads, swap_ins, file_rereads, .. } = cell.kinds;
    assert_eq!(zero_fills + file_reads + swap_ins + file_rereads, cell.faults);
    assert_eq!(file_reads, cell.file_pages);
    Counts {
        references: cell.references,
        tlb_misses: cell.tlb_misses,
        tlb_second_hits: cell.tlb_second_hits,
        faults: cell.faults,
        first_touches: cell.pages,
        zero_fills,
        file_reads,
        swap_ins,
        file_rereads,
        ..Counts::default()
    }
}

struct Plain<'a>(PageSize<'a>, Costs);

impl Watch for &mut Costs {
    fn touched(&mut self, _index: usize, costs: impl FnOnce() -> Costs) {
        **self = costs();
    }
}

/// The costs of a page size in a pass that skips no references.
fn plain(reader: &Reader, options: &Options, processor: &Processor, lives: bool) -> Costs {
    let hierarchy = Hierarchy::for_ages(&processor.caches);
    let mut touches = Touches::new(reader, options, processor, hierarchy, lives).unwrap();
    let size = PageSize::new(options.page_sizes[0].trailing_zeros(), processor, &[]);
    let mut sizes = [Plain(size, Costs::default())];
    let chunk = |Plain(size, costs): &mut Plain, chunk: &Chunk, (): &()| {
        size.chunk(chunk, &mut &mut *costs);
    };
    machine::simulate(&mut touches, &mut sizes, 1, (&mut (), |()| (), chunk), &mut |_| Ok(()))
        .unwrap();
    sizes[0].1
}

/// On a processor, walks, second-level hits and fault times equal those of `--view machine`, and
/// places sum to the total.
fn check_on_machine(steps: &[Step], lives: bool) {
    let folder = tempfile::tempdir().unwrap();
    let reader = trace(steps, &PROCESSES, folder.path());
    let kinds = KindSet::ALL;
    if reader.info().records_of(kinds) == 0 {
        return;
    }
    let memory = vec![MemorySize::Fraction(0.5)];
    let options = options(&[4096], memory, "64", "linux");
    let options = Options { lifetimes: lives, ..options };
    let processor = crate::paging::machine::tests::processor(None);
    let cell = simulate(&reader, &options, &mut |_| Ok(())).unwrap();
    if cell.cells.is_empty() {
        return;
    }
    let page_sizes = [4096u64, 65_536, 2 << 20];
    let all =
        explain_on_machine(&reader, &options, &processor, &page_sizes, &mut |_| Ok(())).unwrap();
    for (index, page_bytes) in page_sizes.into_iter().enumerate() {
        let sizes = Options { page_sizes: vec![page_bytes], ..options.clone() };
        let lives = cell.lifetimes;
        let host = (&processor, &[][..]);
        let time = times(&reader, &sizes, host, lives, &mut |_| Ok(())).unwrap().remove(0);
        let found = &all[index];
        let Counts { tlb_misses, tlb_second_hits, references, minor_fault_ps, .. } = found.total;
        assert_eq!((tlb_misses, tlb_second_hits), (time.walks, time.tlb_second_hits));
        assert_eq!(references, cell.cells[0].references);
        assert!((minor_fault_ps as f64 - time.fault_ns * 1e3).abs() <= 1.0);
        let plain = plain(&reader, &sizes, &processor, lives);
        let Counts { walk_ps, tlb_ps, .. } = found.total;
        assert_eq!((walk_ps, tlb_ps), (plain.walk_ps, plain.tlb_ps));
        let mut sites = Counts { references, ..Counts::default() };
        found.sites.iter().for_each(|site| sites.add(&site.counts));
        assert!(sites == found.total || found.sites.is_empty());
        let Counts { faults, first_touches, file_reads, .. } = found.total;
        let reads = faults - first_touches + file_reads;
        let first = cell.cells[0].pages - cell.cells[0].file_pages;
        assert_eq!(reads, cell.cells[0].faults - first);
        assert_eq!(sum(&found.regions), found.total);
        assert_eq!(sum(&found.ranges), found.total);
        let held: u64 = found.regions.iter().filter_map(|region| region.resident_bytes).sum();
        assert!(held >= time.resident_bytes, "{held} of {}", time.resident_bytes);
    }
}

fn check_lives(steps: &[Step], tlb: &str, policy: &str, kinds: KindSet) {
    let folder = tempfile::tempdir().unwrap();
    let reader = trace(steps, &PROCESSES, folder.path());
    if reader.info().records_of(kinds) == 0 {
        return;
    }
    for page in [256u64, 4096, 16_384, 65_536, 2 << 20] {
        let sizes = [0.4, 1.0].map(MemorySize::Fraction);
        let bytes = [1, 3, 9, 30].map(|frames| MemorySize::Bytes(frames * page));
        for size in sizes.into_iter().chain(bytes) {
            let options = options(&[page], vec![size], tlb, policy);
            let options = Options { kinds, lifetimes: true, ..options };
            let study = simulate(&reader, &options, &mut |_| Ok(())).unwrap();
            let found = explain(&reader, &options, &mut |_| Ok(())).unwrap();
            assert_eq!(found.lifetimes, study.lifetimes);
            let Some(cell) = study.cells.first() else { continue };
            let counts = of_cell(cell);
            assert_eq!(found.total, counts, "{policy} {tlb} page {page} {size:?}");
            assert_eq!(sum(&found.regions), counts);
            assert_eq!(sum(&found.ranges), counts);
        }
    }
}

fn check(records: &[Record], tlb: &str, policy: &str) {
    let folder = tempfile::tempdir().unwrap();
    let reader = store(records, folder.path());
    for page in [64u64, 4096, 65_536] {
        for size in [MemorySize::Fraction(0.3), MemorySize::Bytes(5000), MemorySize::Fraction(1.0)]
        {
            let options = options(&[page], vec![size], tlb, policy);
            let study = simulate(&reader, &options, &mut |_| Ok(())).unwrap();
            let Some(cell) = study.cells.first() else { continue };
            let found = explain(&reader, &options, &mut |_| Ok(())).unwrap();
            let study = of_cell(cell);
            assert_eq!(found.total, study, "{policy} {tlb} page {page} {size:?}");
            assert_eq!(sum(&found.regions), study);
            assert_eq!(sum(&found.ranges), study);
            assert!(found.ranges.len() <= RANGES);
            let mut sites = Counts { references: study.references, ..Counts::default() };
            found.sites.iter().for_each(|site| sites.add(&site.counts));
            let fetches = records.iter().any(|r| r.kind.fetches());
            assert!(sites == study || !fetches && found.sites.is_empty());
            // A record counts for each of its pages, in the region of its first byte in the page.
            for name in ["low", "high", "(unnamed)"] {
                let own: usize = records
                    .iter()
                    .map(|r| {
                        let last = r.addr + u64::from(r.size).max(1) - 1;
                        (r.addr / page..=last / page)
                            .filter(|p| region_of(r.addr.max(p * page)) == name)
                            .count()
                    })
                    .sum();
                let region = found.regions.iter().find(|region| region.name == name);
                let counted = region.map_or(0, |region| region.counts.references);
                assert_eq!(counted, own as u64, "{name} at {page}");
            }
        }
    }
}

/// Puts only the kernel's references into region `high`, whose counts must equal the kernel's counts.
fn check_kernel(records: &[Record], tlb: &str) {
    let by_kernel = |r: &Record| KindSet::KERNEL.contains(r.kind);
    let records: Vec<Record> = records
        .iter()
        .map(|r| Record { addr: [LOW, HIGH][usize::from(by_kernel(r))] + (r.addr & 0xffff), ..*r })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let reader = store(&records, folder.path());
    let memory = vec![MemorySize::Fraction(0.5)];
    let options = options(&[4096], memory, tlb, "clock");
    let processor = crate::paging::machine::tests::processor(None);
    let on_machine =
        explain_on_machine(&reader, &options, &processor, &[4096], &mut |_| Ok(())).unwrap();
    let found = explain(&reader, &options, &mut |_| Ok(())).unwrap();
    let by_kernel_instr = records.iter().filter(|&r| by_kernel(r)).map(|r| u64::from(r.instr));
    assert_eq!(on_machine[0].kernel_instructions, by_kernel_instr.sum::<u64>());
    for (found, all_references) in [(&found, true), (&on_machine[0], false)] {
        let high = found.regions.iter().find(|region| region.name == "high");
        let counts = high.map_or(Counts::default(), |region| region.counts);
        let references = if all_references { counts.references } else { 0 };
        assert_eq!(found.kernel, Counts { references, ..counts });
    }
}

fn records() -> impl Strategy<Value = Vec<Record>> {
    let one = (0u64..2, 0u64..80_000, 0u8..6, prop_oneof![9 => 1u16..9, 1 => 1u16..5000]);
    prop::collection::vec(one, 1..1200).prop_map(|parts| {
        parts
            .iter()
            .map(|&(side, offset, kind, size)| Record {
                addr: [LOW, HIGH][side as usize] + offset % 50_000,
                kind: Kind::from_u8(kind).unwrap(),
                size,
                thread: 0,
                instr: 1,
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn counts_sum_to_those_of_the_study(
        records in records(),
        tlb in prop::sample::select(vec!["64", "3", "8x2", "4+16x4"]),
        policy in prop::sample::select(REPLACEMENTS),
    ) {
        check(&records, tlb, policy.name);
        check_kernel(&records, tlb);
    }
    #[test]
    fn costs_on_a_machine_sum_to_those_of_its_view(steps in steps(), lives in any::<bool>()) {
        check_on_machine(&steps, lives);
    }
    #[test]
    fn counts_with_lifetimes_sum_to_those_of_the_study(
        steps in steps(),
        tlb in prop::sample::select(vec!["64", "3", "8x2", "4+16x4"]),
        policy in prop::sample::select(REPLACEMENTS),
        kinds in prop_oneof![2 => Just(KindSet::ALL), 1 => (1u8..32).prop_map(KindSet)],
    ) {
        check_lives(&steps, tlb, policy.name, kinds);
    }
}

#[test]
fn a_miss_belongs_to_the_code_that_its_thread_fetched_last() {
    let one = |addr, kind, thread| Record { addr, kind, size: 4, thread, instr: 1 };
    let page = |n: u64| HIGH + n * 4096;
    let records = [
        one(LOW, Kind::Fetch, 0),
        one(LOW + 0x1000, Kind::Fetch, 1),
        one(page(1), Kind::Load, 0),
        one(page(2), Kind::Store, 1),
        one(page(3), Kind::Load, 1),
        one(page(4), Kind::Load, 2),
        one(LOW + 0x40, Kind::Fetch, 0),
        one(page(5), Kind::Load, 0),
    ];
    let folder = tempfile::tempdir().unwrap();
    let reader = store(&records, folder.path());
    let all = vec![MemorySize::Fraction(1.0)];
    let data = KindSet(1 << Kind::Load as u8 | 1 << Kind::Store as u8);
    let faults = |kinds| {
        let options = Options { kinds, ..options(&[4096], all.clone(), "64", "lru") };
        let found = explain(&reader, &options, &mut |_| Ok(())).unwrap();
        let facts = |s: &Site| (s.addr, s.name.clone(), s.counts.faults, s.counts.tlb_misses);
        found.sites.iter().map(facts).collect::<Vec<_>>()
    };
    let low = || "low".to_owned();
    let others = (None, "(others)".to_owned(), 1, 1);
    assert_eq!(
        faults(data),
        [
            (Some(LOW + 0x1000), low(), 2, 2),
            (Some(LOW), low(), 1, 1),
            (Some(LOW + 0x40), low(), 1, 1),
            others.clone(),
        ]
    );
    // A fetch counts for the code that it fetches.
    assert_eq!(faults(KindSet::ALL)[0], (Some(LOW + 0x1000), low(), 3, 3));
    assert_eq!(faults(KindSet::ALL)[1], (Some(LOW), low(), 2, 2));
    assert_eq!(faults(KindSet::ALL)[3], others);
}

#[test]
fn code_is_identified_by_program_and_file_offset_at_any_address() {
    let map = |thread, addr, offset, name: &str| {
        Step::Event(RegionEvent {
            thread,
            addr,
            length: 0x4000,
            offset,
            prot: "r-xp".into(),
            name: name.into(),
            ..RegionEvent::default()
        })
    };
    let one = |thread, addr, kind| Step::Record(Record { addr, kind, size: 4, thread, instr: 1 });
    let exec = RegionEvent { event: RegionKind::Exec, name: "/bin/b".into(), ..<_>::default() };
    let steps = [
        map(0, LOW, 0x7000, "/lib/c"),
        one(0, LOW + 0x1010, Kind::Fetch),
        one(0, HIGH, Kind::Load),
        Step::Event(RegionEvent {
            event: RegionKind::Move,
            addr: LOW,
            length: 0x4000,
            to: LOW + 0x10_0000,
            ..RegionEvent::default()
        }),
        one(0, LOW + 0x10_1010, Kind::Fetch),
        one(0, HIGH + 0x1000, Kind::Load),
        Step::Event(exec),
        map(0, LOW, 0, "/lib/c"),
        one(0, LOW + 0x8, Kind::Fetch),
        one(0, HIGH + 0x2000, Kind::Load),
        map(0, LOW, 0, ""),
        one(0, LOW + 0x8, Kind::Fetch),
        one(0, HIGH + 0x3000, Kind::Load),
    ];
    let folder = tempfile::tempdir().unwrap();
    let reader = trace(&steps, &PROCESSES, folder.path());
    let all = vec![MemorySize::Bytes(1 << 20)];
    let loads = KindSet(1 << Kind::Load as u8);
    let options = Options { kinds: loads, ..options(&[4096], all, "64", "lru") };
    let found = explain(&reader, &options, &mut |_| Ok(())).unwrap();
    let facts = |s: &Site| (s.program.clone(), s.name.clone(), s.offset, s.counts.faults);
    let mut sites: Vec<_> = found.sites.iter().map(facts).collect();
    sites.sort();
    let of = |program: &str, name: &str, offset| (program.to_owned(), name.to_owned(), offset, 1);
    let anonymous = format!("(anonymous) {LOW:#x}");
    assert_eq!(
        sites,
        [
            of("", "/lib/c", Some(0x8010)),
            of("", "/lib/c", Some(0x8010)),
            of("/bin/b", &anonymous, None),
            of("/bin/b", "/lib/c", Some(8)),
        ]
    );
}

#[test]
fn ranges_are_merged_to_the_maximum_number() {
    let records: Vec<Record> = (0..2000u64)
        .map(|i| Record {
            addr: (i * 7919 % 1000) << 20,
            kind: Kind::Load,
            size: 8,
            thread: 0,
            instr: 1,
        })
        .chain([Record { addr: u64::MAX - 7, kind: Kind::Load, size: 8, thread: 0, instr: 1 }])
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let reader = store(&records, folder.path());
    let memory = vec![MemorySize::Fraction(0.5)];
    let options = options(&[4096], memory, "64", "lru");
    let found = explain(&reader, &options, &mut |_| Ok(())).unwrap();
    assert!(found.ranges.len() <= RANGES && found.ranges.len() > RANGES / 4);
    assert_eq!(sum(&found.ranges), found.total);
    assert_eq!(found.total.references, 2001);
    assert_eq!(found.ranges.last().unwrap().addr_high, 1u128 << 64);
    assert!(found.ranges.windows(2).all(|pair| pair[0].addr_high <= pair[1].addr_low.into()));
}

#[test]
fn processes_have_their_own_memory_and_names_at_an_address() {
    let event = |event, thread, name: &str| {
        let (addr, length, prot) = (LOW, 4096, "rw-p".into());
        let name = name.into();
        Step::Event(RegionEvent {
            thread,
            event,
            addr,
            length,
            prot,
            name,
            ..RegionEvent::default()
        })
    };
    let store = |thread| {
        Step::Record(Record { addr: LOW + 8, kind: Kind::Store, size: 8, thread, instr: 1 })
    };
    let steps = [
        event(RegionKind::Map, 0, "one"),
        event(RegionKind::Map, 2, "two"),
        store(0),
        store(2),
        store(0),
        event(RegionKind::DontNeed, 2, ""),
        store(2),
        store(0),
    ];
    let folder = tempfile::tempdir().unwrap();
    let reader = trace(&steps, &PROCESSES, folder.path());
    let all = vec![MemorySize::Bytes(1 << 20)];
    let options = Options { lifetimes: true, ..options(&[4096], all, "64", "lru") };
    let found = explain(&reader, &options, &mut |_| Ok(())).unwrap();
    let facts = |place: &Place| {
        let Counts { references, tlb_misses, faults, first_touches, zero_fills, .. } = place.counts;
        (place.name.clone(), references, tlb_misses, faults, first_touches, zero_fills)
    };
    let places: Vec<_> = found.regions.iter().map(facts).collect();
    assert_eq!(places, [("two".to_owned(), 2, 2, 2, 2, 2), ("one".to_owned(), 3, 1, 1, 1, 1)]);
    // Without lifetimes, both processes share one page.
    let options = Options { lifetimes: false, ..options };
    let found = explain(&reader, &options, &mut |_| Ok(())).unwrap();
    assert_eq!((found.total.faults, found.total.references), (1, 5));
}
