//! Compares summaries with naive maps and loops, on traces with regions, processes and odd addresses.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nearfar_trace::{Error, ErrorKind, Record, RegionEvent, RegionKind};
use proptest::prelude::*;

use super::*;
use crate::paging::tests::lives::{self, Step, trace};

fn all(reader: &Reader) -> (Summary, HeatMap) {
    let options = Options { reuse: true, heat_map: true };
    let (summary, heat) = summarize(reader, options, &mut |_| Ok(())).unwrap();
    (summary, heat.unwrap())
}

fn pages(record: &Record) -> Vec<u64> {
    let last = record.addr.saturating_add(u64::from(record.size) - 1);
    (record.addr / 4096..=last / 4096).collect()
}

fn event(kind: RegionKind, thread: u32, addr: u64, length: u64, name: &str) -> Step {
    let name = name.to_owned();
    Step::Event(RegionEvent { thread, event: kind, addr, length, name, ..RegionEvent::default() })
}

fn load(addr: u64, thread: u32) -> Step {
    Step::Record(Record { addr, kind: Kind::Load, size: 8, thread, instr: 1 })
}

/// Region name to (records, pages), from a table with the name of every page.
fn naive_regions(processes: &[u32], steps: &[Step]) -> BTreeMap<String, (u64, u64)> {
    let mut spaces: HashMap<u32, HashMap<u64, String>> = HashMap::new();
    let mut files: HashMap<u64, String> = HashMap::new();
    let mut records: BTreeMap<String, u64> = BTreeMap::new();
    let mut touched: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    let mut running = processes[0];
    for step in steps {
        match step {
            Step::Event(e) => {
                let process = processes[e.thread as usize];
                let range = e.addr / 4096..=e.addr.saturating_add(e.length.max(1) - 1) / 4096;
                if e.event == RegionKind::File {
                    files.extend(range.map(|p| (p, format!("page cache: {}", e.name))));
                    continue;
                }
                let parent = spaces.get(&running).cloned().unwrap_or_default();
                let space = spaces.entry(process).or_default();
                match e.event {
                    RegionKind::Fork => {
                        if running != process {
                            *space = parent;
                        }
                    }
                    RegionKind::Exec => space.clear(),
                    RegionKind::Unmap => range.for_each(|p| drop(space.remove(&p))),
                    RegionKind::Brk => {
                        space.retain(|_, name| name != "[heap]");
                        space.extend(range.map(|p| (p, "[heap]".to_owned())));
                    }
                    _ => space.extend(range.map(|p| (p, e.name.clone()))),
                }
            }
            Step::Record(r) => {
                running = processes[r.thread as usize];
                for (i, page) in pages(r).into_iter().enumerate() {
                    let own = spaces.get(&running).and_then(|space| space.get(&page));
                    let file = if page >= 1 << 51 { files.get(&page) } else { None };
                    let name = file.or(own).map_or(names::UNNAMED, |n| n.as_str()).to_owned();
                    *records.entry(name.clone()).or_default() += u64::from(i == 0);
                    touched.entry(name).or_default().insert(page);
                }
            }
        }
    }
    touched
        .into_iter()
        .map(|(name, pages)| {
            let records = records.get(&name).copied().unwrap_or(0);
            (name, (records, pages.len() as u64))
        })
        .collect()
}

fn check_all(processes: &[u32], steps: &[Step], reader: &Reader) {
    let (found, heat) = all(reader);
    let records: Vec<Record> = steps
        .iter()
        .filter_map(|step| if let Step::Record(r) = step { Some(*r) } else { None })
        .collect();
    let total = records.len() as u64;
    assert_eq!(found.records, total);

    // Counts and footprint.
    let mut by_kind: BTreeMap<Kind, u64> = BTreeMap::new();
    let mut by_kind_pages: BTreeMap<Kind, BTreeSet<u64>> = BTreeMap::new();
    let mut footprint = BTreeSet::new();
    for r in &records {
        *by_kind.entry(r.kind).or_default() += 1;
        by_kind_pages.entry(r.kind).or_default().extend(pages(r));
        footprint.extend(pages(r));
    }
    assert_eq!(found.records_by_kind, by_kind);
    assert_eq!(found.footprint_bytes, footprint.len() as u64 * 4096);
    let kinds: BTreeMap<Kind, u64> =
        by_kind_pages.iter().map(|(kind, pages)| (*kind, pages.len() as u64 * 4096)).collect();
    assert_eq!(found.footprint_by_kind_bytes, kinds);
    assert_eq!(
        found.footprint_bytes,
        reader.info().footprint_pages(nearfar_trace::KindSet::ALL) * 4096
    );
    let mix = found.mix;
    assert_eq!(mix.reads + mix.writes + by_kind.get(&Kind::Fetch).copied().unwrap_or(0), total);

    // Working set.
    let per_bin = records.len().div_ceil(256);
    let window = (records.len() / 8).div_ceil(per_bin).max(1);
    assert_eq!(found.working_set_records, (window * per_bin) as u64);
    let mut seen = BTreeSet::new();
    let mut until = 0;
    let points: Vec<WorkingSet> = records
        .chunks(per_bin)
        .enumerate()
        .map(|(bin, chunk)| {
            seen.extend(chunk.iter().flat_map(pages));
            until += chunk.len() as u64;
            let from = (bin + 1).saturating_sub(window) * per_bin;
            let here: BTreeSet<u64> =
                records[from..until as usize].iter().flat_map(pages).collect();
            let (bytes, footprint_bytes) = (here.len() as u64 * 4096, seen.len() as u64 * 4096);
            WorkingSet { record: until, bytes, footprint_bytes, resident_bytes: None }
        })
        .collect();
    let plain = found.working_set.iter().map(|point| WorkingSet { resident_bytes: None, ..*point });
    assert_eq!(plain.collect::<Vec<_>>(), points);

    // Reuse: a list of pages, last touched first.
    let (mut list, mut first, mut bins) = (Vec::new(), 0, BTreeMap::new());
    for page in records.iter().flat_map(pages) {
        match list.iter().position(|&p| p == page) {
            Some(place) => {
                list.remove(place);
                *bins.entry((place as u32 + 1).ilog2()).or_insert(0) += 1;
            }
            None => first += 1,
        }
        list.insert(0, page);
    }
    let counted: BTreeMap<u32, u64> = found
        .reuse
        .iter()
        .filter_map(|bin| bin.distance_log2.map(|k| (k, bin.count)))
        .filter(|(_, count)| *count > 0)
        .collect();
    assert_eq!(counted, bins);
    assert_eq!(found.reuse.last(), Some(&ReuseBin { distance_log2: None, count: first }));

    // Regions.
    if steps.iter().any(|step| matches!(step, Step::Event(_))) {
        let counted: BTreeMap<String, (u64, u64)> =
            found.regions.iter().map(|r| (r.name.clone(), (r.records, r.pages))).collect();
        assert_eq!(counted, naive_regions(processes, steps));
    } else {
        // Without events, runs of touched 2 MiB blocks are regions.
        let mut clusters: Vec<Vec<u64>> = Vec::new();
        for &page in &footprint {
            match clusters.last_mut() {
                Some(last) if page / 512 - last[last.len() - 1] / 512 <= 1 => last.push(page),
                _ => clusters.push(vec![page]),
            }
        }
        let listed: BTreeSet<(Option<u64>, Option<u128>, u64)> =
            found.regions.iter().map(|r| (r.addr_low, r.addr_high, r.pages)).collect();
        let plain: BTreeSet<_> = clusters
            .iter()
            .map(|c| {
                let high = u128::from(c[c.len() - 1] + 1) * 4096;
                (Some(c[0] * 4096), Some(high), c.len() as u64)
            })
            .collect();
        assert_eq!(listed, plain);
    }
    assert_eq!(found.regions.iter().map(|r| r.records).sum::<u64>(), total);
    assert!(found.regions.is_sorted_by_key(|r| std::cmp::Reverse(r.records)));

    // Hot parts: disjoint, with a hot page at each end, and no hot page outside of them.
    let mut data: BTreeMap<u64, u64> = BTreeMap::new();
    for r in records.iter().filter(|r| r.kind != Kind::Fetch) {
        *data.entry(r.addr / 4096).or_default() += 1;
    }
    let all_data: u64 = data.values().sum();
    let is_hot = |page: u64| data.get(&page).is_some_and(|n| n * data.len() as u64 >= 8 * all_data);
    let ends = |part: &HotPart| (part.addr_low / 4096, ((part.addr_high - 1) / 4096) as u64);
    let mut covered = 0;
    for (low, high) in found.hot.iter().map(ends) {
        assert!(is_hot(low) && is_hot(high));
        covered += (low..=high).filter(|&page| is_hot(page)).count();
    }
    assert!(covered >= data.keys().filter(|&&page| is_hot(page)).count());
    assert!(found.hot.iter().map(|part| part.records).sum::<u64>() <= all_data);
    // With events, regions may have parts among those of others.
    if steps.iter().all(|step| matches!(step, Step::Record(_))) {
        for part in &found.hot {
            let (low, high) = ends(part);
            let inside: u64 = data.range(low..=high).map(|(_, n)| n).sum();
            assert_eq!((part.records, part.share), (inside, inside as f64 / all_data as f64));
        }
    }

    // Heat map: rows cover the footprint in order, cells count records.
    assert!(heat.address_bins.len() <= ROWS && heat.time_bins == points.len());
    assert_eq!(heat.address_bins.iter().map(|b| b.pages).sum::<u64>(), footprint.len() as u64);
    let ends: Vec<u128> =
        heat.address_bins.iter().flat_map(|b| [u128::from(b.addr_low), b.addr_high - 1]).collect();
    assert!(ends.is_sorted());
    let mut counts = vec![vec![0; heat.time_bins]; heat.address_bins.len()];
    for (i, r) in records.iter().enumerate() {
        let rows: BTreeSet<usize> = pages(r)
            .into_iter()
            .map(|page| {
                let inside = |b: &AddressBin| {
                    (u128::from(b.addr_low)..b.addr_high).contains(&(u128::from(page) * 4096))
                };
                heat.address_bins.iter().position(inside).unwrap()
            })
            .collect();
        rows.into_iter().for_each(|row| counts[row][i / per_bin] += 1);
    }
    assert_eq!((heat.counts, heat.records_per_bin), (counts, per_bin as u64));
}

fn step() -> impl Strategy<Value = Step> {
    // Close pages, pages about a megabyte apart (fewer regions than `REGIONS`), the end of the address
    // space, and the start of its upper half.
    let base = prop_oneof![
        8 => 0u64..40,
        3 => (0u64..60).prop_map(|p| 1000 + p * 300),
        1 => (0u64..6).prop_map(|p| (1 << 52) - 1 - p),
        1 => (0u64..6).prop_map(|p| (1 << 51) + p),
    ];
    let record = (base.clone(), 0u64..4096, 0u8..5, 1u16..9000, 0u32..3).prop_map(
        |(page, offset, kind, size, thread)| {
            let kind = Kind::from_u8(kind).unwrap();
            let size = if size % 3 == 0 { size } else { size % 64 + 1 };
            Step::Record(Record { addr: page * 4096 + offset, kind, size, thread, instr: 1 })
        },
    );
    let range = (base, 1u64..20, 0u32..3, 0usize..3);
    let change = (0usize..6, range).prop_map(|(what, (page, length, thread, name))| {
        let name = ["a", "b", "c"][name];
        let addr = page * 4096;
        let length = (length * 4096 - 100).min(u64::MAX - addr);
        match what {
            0 => event(RegionKind::Unmap, thread, addr, length, ""),
            1 => event(RegionKind::Brk, thread, 4 * 4096, length, "[heap]"),
            2 => event(RegionKind::File, thread, (1 << 63) + (addr & 0xFFFF), length, name),
            3 => event(RegionKind::Fork, thread, 0, 0, ""),
            4 if page % 8 == 0 => event(RegionKind::Exec, thread, 0, 0, ""),
            _ => event(RegionKind::Map, thread, addr, length, name),
        }
    });
    prop_oneof![30 => record, 1 => change]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn resident_sets_equal_the_reference_implementation(steps in lives::steps()) {
        check_resident(&steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn summaries_equal_naive_maps_and_loops(
        mut steps in prop::collection::vec(step(), 1..1500),
        processes in prop_oneof![Just([7, 7, 7]), Just([1, 1, 2]), Just([1, 2, 3])],
        named in any::<bool>(),
    ) {
        steps.retain(|step| named || matches!(step, Step::Record(_)));
        steps.push(load(123, 0));
        if named {
            steps.insert(0, event(RegionKind::Map, 0, 0, 4096 * 10, "program"));
        }
        let dir = tempfile::tempdir().unwrap();
        let reader = trace(&steps, &processes, dir.path());
        check_all(&processes, &steps, &reader);
    }

    #[test]
    fn heat_map_rows_span_regions_only_if_runs_exceed_rows(
        runs in prop::collection::vec((1usize..900, 0u32..5), 0..400),
    ) {
        let mut pages = Vec::new();
        for (length, region) in runs {
            for _ in 0..length {
                pages.push((pages.len() as u64, region));
            }
        }
        let rows = heat::divide(&pages);
        let changes = pages.chunk_by(|a, b| a.1 == b.1).count();
        prop_assert!(rows.len() <= ROWS && rows.iter().all(|&n| n > 0));
        prop_assert_eq!(rows.iter().sum::<usize>(), pages.len());
        let mut from = 0;
        for share in rows {
            let row = &pages[from..from + share];
            from += share;
            prop_assert!(changes > ROWS || row.iter().all(|page| page.1 == row[0].1));
        }
    }
}

#[test]
fn anonymous_neighbours_are_one_region() {
    let dir = tempfile::tempdir().unwrap();
    let steps = [
        event(RegionKind::Map, 0, 0x40_0000, 0x1000, "/bin/program"),
        event(RegionKind::Map, 0, 0x7000_0000, 0x2000, ""),
        // Below the previous mapping, as the kernel places it.
        event(RegionKind::Map, 0, 0x6FFF_F000, 0x1000, ""),
        event(RegionKind::Map, 0, 0x5000_0000, 0x1000, ""),
        load(0x40_0010, 0),
        load(0x7000_0000, 0),
        load(0x6FFF_F000, 0),
        load(0x5000_0000, 0),
        load(0x9000_0000, 0),
        load(0x9000_0000, 0),
        load(0x9000_0000, 0),
    ];
    let (found, heat) = all(&trace(&steps, &[0], dir.path()));
    let found: Vec<_> =
        found.regions.iter().map(|r| (r.name.as_str(), r.records, r.pages)).collect();
    assert_eq!(
        found,
        [
            ("(unnamed)", 3, 1),
            ("(anonymous) 0x70000000", 2, 2),
            ("/bin/program", 1, 1),
            ("(anonymous) 0x50000000", 1, 1),
        ]
    );
    let labels: Vec<_> = heat.address_bins.iter().map(|bin| bin.label.as_str()).collect();
    assert_eq!(labels[0], "/bin/program");
    assert_eq!(labels[4], "(unnamed)");
}

#[test]
fn an_empty_trace_and_the_last_byte_of_memory_are_summarised() {
    let folders = [0; 2].map(|_| tempfile::tempdir().unwrap());
    let (found, heat) = all(&trace(&[], &[0], folders[0].path()));
    assert_eq!((found.records, found.footprint_bytes, found.regions.len()), (0, 0, 0));
    assert_eq!((heat.time_bins, heat.counts.len()), (0, 0));
    let end = Record { addr: u64::MAX, kind: Kind::Store, size: 65535, thread: 0, instr: 0 };
    let (found, heat) = all(&trace(&[Step::Record(end)], &[0], folders[1].path()));
    assert_eq!((found.footprint_bytes, found.mix.write_share), (4096, 1.0));
    assert_eq!(heat.address_bins[0].addr_high, 1 << 64);
    let text = serde_json::to_string(&heat).unwrap();
    assert!(text.contains("18446744073709551616"), "{text}");
}

#[test]
fn regions_beyond_the_maximum_are_summed_up() {
    let dir = tempfile::tempdir().unwrap();
    let steps: Vec<Step> =
        (0..130u64).flat_map(|i| (0..=i % 7).map(move |_| load(i * (8 << 20), 0))).collect();
    let (found, heat) = all(&trace(&steps, &[0], dir.path()));
    assert_eq!(found.regions.len(), REGIONS + 1);
    let last = &found.regions[REGIONS];
    assert_eq!((last.name.as_str(), last.pages, last.addr_low), ("(30 others)", 30, None));
    assert_eq!(found.regions.iter().map(|r| r.records).sum::<u64>(), steps.len() as u64);
    assert_eq!(heat.address_bins.len(), 130);
}

#[test]
fn an_error_of_on_progress_ends_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let reader = trace(&[load(1, 0)], &[0], dir.path());
    let options = Options { reuse: false, heat_map: false };
    let stop = &mut |_| Err(Error::cancelled());
    assert_eq!(summarize(&reader, options, stop).unwrap_err().kind(), ErrorKind::Cancelled);
}

/// Check resident bytes at the end of each interval, and their peak, against [`lives::World`].
fn check_resident(steps: &[Step]) {
    let folder = tempfile::tempdir().unwrap();
    let reader = trace(steps, &lives::PROCESSES, folder.path());
    let options = Options { reuse: false, heat_map: false };
    let (found, _) = summarize(&reader, options, &mut |_| Ok(())).unwrap();
    let mut world = lives::World::new(4096, 4096, &lives::PROCESSES);
    let mut points = found.working_set.iter().peekable();
    let mut done = 0;
    for step in steps {
        match step {
            Step::Event(event) => world.event(event),
            Step::Record(record) => {
                world.record(record);
                done += 1;
                if let Some(point) = points.next_if(|point| point.record == done) {
                    assert_eq!(point.resident_bytes, Some(world.resident() * 4096), "{done}");
                }
            }
        }
    }
    assert_eq!(points.next(), None);
    let all = nearfar_trace::KindSet::ALL;
    let set = lifetimes::ResidentSet::new(lifetimes::Spaces::new(&reader.info().threads), true);
    let alone = lifetimes::peak_resident(&reader, all, set, &mut |_| Ok(())).unwrap();
    assert_eq!(found.peak_resident_bytes, Some(alone));
    assert_eq!(alone, world.peak.max(1) * 4096);
}

#[test]
fn resident_bytes_fall_when_pages_are_unmapped() {
    let event = |kind, pages: u32| {
        let (addr, length, prot) = (0x10_0000, u64::from(pages) * 4096, "rw-p".to_owned());
        let event = RegionEvent { event: kind, addr, length, prot, ..RegionEvent::default() };
        Step::Event(event)
    };
    let touch = |page: u64, kind| {
        let addr = 0x10_0000 + page * 4096;
        Step::Record(Record { addr, kind, size: 8, thread: 0, instr: 1 })
    };
    let (load, store) = (Kind::Load, Kind::Store);
    let steps = [
        event(RegionKind::Map, 8),
        touch(0, store),
        touch(1, load),
        touch(1, store),
        touch(2, store),
        touch(2, load),
        event(RegionKind::Unmap, 2),
        touch(2, store),
        event(RegionKind::Map, 2),
        touch(0, load),
        touch(0, store),
    ];
    check_resident(&steps);
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let reader = trace(&steps, &lives::PROCESSES, folder.path());
    let (found, _) = all(&reader);
    let pages = |point: &WorkingSet| point.resident_bytes.unwrap() / 4096;
    let over_time: Vec<u64> = found.working_set.iter().map(pages).collect();
    // A page that is only read is the zero page, which is not resident.
    assert_eq!(over_time, [1, 1, 2, 3, 3, 1, 1, 2]);
    assert_eq!(found.peak_resident_bytes, Some(3 * 4096));
    assert_eq!(found.footprint_bytes, 3 * 4096);
    // Without events there is no resident set.
    let reader = trace(&steps[1..6], &lives::PROCESSES, other.path());
    let (found, _) = all(&reader);
    assert_eq!(found.peak_resident_bytes, None);
    assert!(found.working_set.iter().all(|point| point.resident_bytes.is_none()));
}

#[test]
fn hot_pages_of_a_large_mapping_and_their_code_are_found() {
    let fetch =
        |addr| Step::Record(Record { addr, kind: Kind::Fetch, size: 4, thread: 0, instr: 1 });
    let mut steps = vec![
        event(RegionKind::Map, 0, 0x1000, 0x1000, "/bin/a"),
        event(RegionKind::Map, 0, 1 << 24, 1000 << 12, ""),
    ];
    steps.push(fetch(0x1010));
    steps.extend((0..1000).map(|page| load((1 << 24) + (page << 12), 0)));
    for _ in 0..1000 {
        steps.push(fetch(0x1020));
        steps.extend([500, 501, 503].map(|page| load((1 << 24) + (page << 12) + 8, 0)));
    }
    let folder = tempfile::tempdir().unwrap();
    let (found, _) = all(&trace(&steps, &[1], folder.path()));
    let [part] = &found.hot[..] else { panic!("{:?}", found.hot) };
    assert_eq!((part.addr_low, part.addr_high), ((1 << 24) + 0x1F_4000, (1 << 24) + 0x1F_8000));
    // Page 502 lies between hot pages and was touched once.
    assert_eq!((part.pages, part.records, part.share), (4, 3004, 0.751));
    assert_eq!(part.name, "(anonymous) 0x1000000");
    let [code] = &found.hot_code[..] else { panic!("{:?}", found.hot_code) };
    assert_eq!((code.name.as_str(), code.addr, code.offset), ("/bin/a", 0x1020, Some(0x20)));
    assert!((45..=50).contains(&code.samples), "{}", code.samples);
}
