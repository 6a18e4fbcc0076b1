//! Tests of samples: estimates against naive simulations, and intervals against whole traces.

use std::path::Path;

use nearfar_trace::hash::mix;
use nearfar_trace::sample::Burst;
use nearfar_trace::{
    Batch, Kind, KindSet, PageSample, Reader, Record, Source, Writer, WriterOptions, last_byte,
};

use super::*;
use crate::paging::options::MemorySize;
use crate::paging::simulate;
use crate::paging::tests::{naive_clock, naive_lru, naive_lru_misses, options, store};

/// Access patterns.
#[derive(Clone, Copy, Debug)]
enum Program {
    Uniform,
    /// Page n is referenced about 1 / n as often as the first.
    Skewed,
    /// Repeated sweeps, with a random jump in one of ten references.
    Sweeping,
    /// A small working set that moves.
    Phases,
}

fn references(program: Program, count: u64, pages: u64, seed: u64) -> Vec<Record> {
    let mut draw = mix(seed);
    let mut next = |bound: u64| {
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (u128::from(mix(draw)) * u128::from(bound) >> 64) as u64
    };
    let record = |at: u64| {
        let page = match program {
            Program::Uniform => next(pages),
            Program::Skewed => ((pages as f64).powf(next(1 << 30) as f64 / 2f64.powi(30))) as u64,
            Program::Sweeping if next(10) == 0 => next(pages),
            Program::Sweeping => at / 2 % pages,
            Program::Phases => (at / 50_000 * 1500 + next(2500)) % pages,
        };
        let (addr, size) = (0x40_0000 + page * 4096 + next(4096), 1 + next(16) as u16);
        let kind = if next(4) == 0 { Kind::Store } else { Kind::Load };
        Record { addr, kind, size, thread: 0, instr: 1 }
    };
    (0..count).map(record).collect()
}

const MEMORY: [f64; 6] = [0.1, 0.3, 0.5, 0.7, 0.9, 1.0];

fn options_of_4k(policy: &str, tlb: &str) -> Options {
    options(&[4096], MEMORY.map(MemorySize::Fraction).to_vec(), tlb, policy)
}

fn cells(reader: &Reader, options: &Options) -> Vec<Cell> {
    simulate(reader, options, &mut |_| Ok(())).unwrap().cells
}

/// Every page that a record touches, and whether it writes.
fn touched(records: &[Record], page: u64) -> Vec<(u64, bool)> {
    let pages = |of: &Record| {
        let write = of.kind == Kind::Store;
        (of.addr / page..=last_byte(of.addr, of.size) / page).map(move |number| (number, write))
    };
    records.iter().flat_map(pages).collect()
}

fn distinct(refs: impl Iterator<Item = (u64, bool)>) -> f64 {
    refs.map(|of| of.0).collect::<std::collections::HashSet<_>>().len() as f64
}

/// The records that a capture with `--sample` has: those of sampled pages, the first load and store
/// of every other page, and a burst of `length` records in every `distance` records.
fn captured(records: &[Record], rate: f64, seed: u64, bursts: (u64, u64), dir: &Path) -> Reader {
    let mut sample = PageSample { rate, seed, ..PageSample::default() };
    let (length, distance) = bursts;
    let mut seen = std::collections::HashSet::new();
    let mut kept = Vec::new();
    for (number, record) in (0..).zip(records) {
        let within = number % distance;
        let start = mix(seed ^ number / distance) % (distance - length);
        if within == start {
            sample.bursts.push(Burst {
                thread: 0,
                start: kept.len() as u64,
                end: 0,
                blocks: distance,
            });
        }
        let in_burst = (start..start + length).contains(&within);
        let mut keep = in_burst;
        for page in record.addr >> 12..=last_byte(record.addr, record.size) >> 12 {
            keep |= seen.insert((page, record.kind)) || sample.contains(page);
        }
        if keep {
            kept.push(*record);
        }
        if let (true, Some(burst)) = (in_burst, sample.bursts.last_mut()) {
            burst.end = kept.len() as u64;
        }
        *sample.references.entry(record.kind).or_default() += 1;
    }
    let source = Source { sample: Some(sample), ..Source::default() };
    let path = dir.join("t.trace");
    let mut writer = Writer::create(&path, source, WriterOptions::default()).unwrap();
    let mut batch = Batch::default();
    kept.iter().for_each(|record| batch.push(*record));
    writer.push_batch(&batch).unwrap();
    writer.finish(None).unwrap();
    Reader::open_sample(&path).unwrap()
}

#[test]
fn estimates_equal_naive_simulations_of_groups_and_bursts() {
    let records = references(Program::Skewed, 400_000, 12_000, 3);
    let refs = touched(&records, 4096);
    let all = distinct(refs.iter().copied());
    for (policy, plain) in [("clock", naive_clock as fn(&_, _) -> _), ("lru", naive_lru)] {
        let folder = tempfile::tempdir().unwrap();
        let reader = captured(&records, 0.4, 5, (4000, 7000), folder.path());
        let found = cells(&reader, &options_of_4k(policy, "16x4"));
        assert_eq!(found.len(), MEMORY.len());
        for cell in found {
            assert_eq!((cell.references, cell.pages), (400_000, all as u64));
            // Repeated faults of the whole program, estimated from these groups.
            let of_groups = |groups: std::ops::Range<u8>| {
                let edge = |group| f64::from(group) * 0.4 / 8.0 * 2f64.powi(64);
                let hashes = edge(groups.start)..edge(groups.end);
                let taken = |page: u64| hashes.contains(&(mix(page ^ mix(5)) as f64));
                let own: Vec<_> = refs.iter().copied().filter(|of| taken(of.0)).collect();
                let pages = distinct(own.iter().copied());
                let share = pages / all;
                let faults = plain(&own, (cell.frames as f64 * share).round() as usize).0 as f64;
                (faults - pages) / share
            };
            let values: Vec<f64> = (0..8).map(|group| of_groups(group..group + 1)).collect();
            let (mean, error) = estimate(&values);
            // All groups as one have an eighth of the bias of a group.
            let bias = (mean - of_groups(0..8)) / 7.0;
            let (mean, error) = (all + (of_groups(0..8) - bias).max(0.0), error.hypot(bias));
            assert_eq!(cell.faults, mean.round() as u64, "{policy}");
            assert!((cell.faults_error.unwrap() - error).abs() < 1e-6 * mean);
            let (low, high) = cell.faults_interval.unwrap();
            if cell.frames >= cell.pages {
                assert_eq!((low, high), (all, all));
            } else {
                assert!(low <= mean && mean < high && high - mean > 2.0 * error);
            }

            let warm = 2000;
            let (mut misses, mut measured) = (0, 0);
            for number in 0..records.len() / 7000 {
                let start = number * 7000 + (mix(5 ^ number as u64) % 3000) as usize;
                let pages = |to: usize| -> Vec<u64> {
                    touched(&records[start..to], 4096).iter().map(|of| of.0).collect()
                };
                // The warm-up of 2000 references fills every set: no miss is uncertain.
                let count = |to| naive_lru_misses(&pages(to), 16, 4).len();
                misses += count(start + 4000) - count(start + warm);
                measured += 4000 - warm;
            }
            let whole = misses as f64 * 400_000.0 / measured as f64;
            assert_eq!(cell.tlb_misses, whole.round() as u64);
        }
    }
}

/// A share far below 95 % means too narrow intervals; one of nearly 100 %, too wide ones.
#[test]
fn about_95_percent_of_intervals_contain_the_true_value() {
    let (mut faults, mut walks) = ((0, 0), (0, 0));
    for program in [Program::Uniform, Program::Skewed, Program::Sweeping, Program::Phases] {
        let records = references(program, 400_000, 12_000, 1);
        let folder = tempfile::tempdir().unwrap();
        let whole = store(&records, folder.path());
        let exact = cells(&whole, &options_of_4k("clock", "64"));
        for seed in 0..10 {
            let folder = tempfile::tempdir().unwrap();
            let reader = captured(&records, 0.3, seed, (3500, 7000), folder.path());
            assert!(reader.info().records < records.len() as u64 / 10 * 9);
            let found = simulate(&reader, &options_of_4k("clock", "64"), &mut |_| Ok(())).unwrap();
            assert_eq!(found.records, records.len() as u64);
            assert_eq!(found.footprint_bytes, whole.info().footprint_pages(KindSet::ALL) * 4096);
            assert_eq!(found.cells.len(), exact.len());
            for (cell, exact) in found.cells.iter().zip(&exact) {
                assert_eq!(cell.memory_bytes, exact.memory_bytes);
                let contains = |interval: Option<(f64, f64)>, count: u64| {
                    interval.is_some_and(|(low, high)| (low..=high).contains(&(count as f64)))
                };
                // A memory that holds every page is exact.
                if cell.frames < cell.pages {
                    faults.0 += u64::from(contains(cell.faults_interval, exact.faults));
                    faults.1 += 1;
                }
                if cell.memory_fraction == Some(0.1) {
                    walks.0 += u64::from(contains(cell.tlb_interval, exact.tlb_misses));
                    walks.1 += 1;
                    let (low, high) = cell.tlb_interval.unwrap();
                    assert!(high - low < exact.tlb_misses as f64 / 5.0, "{program:?}");
                }
            }
        }
    }
    for (what, (held, of), most) in [("faults", faults, 0.995), ("walks", walks, 1.0)] {
        let share = held as f64 / of as f64;
        assert!((0.92..=most).contains(&share), "{what}: {held} of {of}");
    }
}

/// If memory holds all pages of a larger size, its cells have the faults of the whole run, and intervals
/// that contain its TLB misses; with less memory, the size has no cells.
#[test]
fn larger_pages_are_exact_if_memory_holds_all_of_them() {
    let records = references(Program::Skewed, 400_000, 12_000, 1);
    let folder = tempfile::tempdir().unwrap();
    let whole = store(&records, folder.path());
    let folder = tempfile::tempdir().unwrap();
    let reader = captured(&records, 0.3, 2, (3500, 7000), folder.path());
    let memory = |bytes: u64| vec![MemorySize::Fraction(0.5), MemorySize::Bytes(bytes)];
    let sizes = vec![1024, 4096, 65_536, 2 << 20];
    // 12,000 pages from 4 MiB on are 24 pages of 2 MiB. A record that crosses their end touches one more
    // page of 64 KiB: 751.
    let of = |bytes| options(&sizes, memory(bytes), "16x4", "clock");
    let found = simulate(&reader, &of(60 << 20), &mut |_| Ok(())).unwrap();
    assert_eq!(found.left_out, [LeftOut::without(1024)]);
    let exact = cells(&whole, &of(60 << 20));
    let larger: Vec<_> = found.cells.iter().filter(|cell| cell.page_bytes > 4096).collect();
    assert_eq!(larger.iter().map(|cell| cell.page_bytes).collect::<Vec<_>>(), sizes[2..]);
    for cell in larger {
        let place = |of: &Cell| (of.page_bytes, of.memory_bytes);
        let exact = exact.iter().find(|of| place(of) == place(cell)).unwrap();
        assert_eq!((cell.faults, cell.pages), (exact.faults, exact.pages));
        assert_eq!(cell.faults_interval, Some((exact.faults as f64, exact.faults as f64)));
        let (low, high) = cell.tlb_interval.unwrap();
        assert!((low..=high).contains(&(exact.tlb_misses as f64)), "{cell:?} {exact:?}");
        assert_eq!(cell.references, 400_000);
    }

    let found = simulate(&reader, &of(47 << 20), &mut |_| Ok(())).unwrap();
    let [_, LeftOut { page_bytes: 0x20_0000, least_memory: Some(least) }] = found.left_out[..]
    else {
        panic!("{:?}", found.left_out)
    };
    assert!(simulate(&reader, &of(least), &mut |_| Ok(())).unwrap().left_out.len() == 1);
}

#[test]
fn too_few_pages_are_refused_with_a_rate_that_suffices() {
    let records = references(Program::Uniform, 100_000, 6000, 2);
    let found = |rate| {
        let folder = tempfile::tempdir().unwrap();
        let reader = captured(&records, rate, 1, (4000, 16_000), folder.path());
        simulate(&reader, &options_of_4k("clock", "64"), &mut |_| Ok(()))
    };
    let refused = found(0.1).unwrap_err().to_string();
    let words: Vec<&str> = refused.split_whitespace().collect();
    let rate = words.iter().position(|&word| word == "--sample").unwrap() + 1;
    assert!(refused.contains("10 % of 6000 pages of 4 KiB is too few"), "{refused}");
    assert!(!found(words[rate].parse().unwrap()).unwrap().cells.is_empty(), "{refused}");
}

/// With too few bursts, fault intervals are those of the same sample with enough bursts.
#[test]
fn too_few_bursts_leave_tlb_misses_unbounded() {
    let records = references(Program::Uniform, 100_000, 6000, 1);
    let found = |bursts| {
        let folder = tempfile::tempdir().unwrap();
        let reader = captured(&records, 0.3, 1, bursts, folder.path());
        cells(&reader, &options_of_4k("clock", "64"))
    };
    let (few, many) = (found((4000, 16_000)), found((4, 16)));
    for (few, many) in few.iter().zip(&many) {
        assert_eq!(few.faults_interval, many.faults_interval);
        assert!(few.faults > 0 && few.tlb_misses > 0);
        assert_eq!(few.tlb_interval, Some((0.0, 100_000.0)));
        // Bursts of 4 references do not fill the TLB: each miss is uncertain.
        assert_eq!(many.tlb_interval, Some((0.0, 100_000.0)));
    }
    assert_eq!(few.len(), 6);
}
