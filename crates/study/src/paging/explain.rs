//! Where the misses of one row come from: the same simulation as the study's, reference by
//! reference, each TLB miss and fault counted in the region and address range it happened in.
//!
//! Slower than the study, which sees windows and not references, and exact in the same way: the
//! sums over regions, and over ranges, are the study's counts (`tests` below).

use std::collections::BTreeMap;

use nearfar_hardware::tlb::Buffer;
use nearfar_schema::{Bytes, OneMemory, none, required};
use nearfar_trace::hash::PageMap;
use nearfar_trace::{Batch, Columns, Kind, Reader, Result, last_byte};
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::options::{ClockInsert, Options};
use super::resident::Make;
use super::simulate::footprint_bytes;
use crate::info::names::{Names, UNNAMED};

/// Most address ranges in an answer: neighbours are taken together until there are no more.
pub const RANGES: usize = 256;
/// Most code sites in an answer; the rest are taken together.
pub const SITES: usize = 256;
/// log2 of the smallest range, or a page where that is larger.
const MIN_RANGE_SHIFT: u32 = 16;
const PROGRESS_STEP: u64 = 1 << 22;

nearfar_schema::options! {
    /// The options of `nearfar explain` as they are written: which row of a run.
    pub struct Asked {
        /// Page size of the row.
        page: Bytes = required(),
        /// Memory size of the row, as the run was asked for it.
        memory: Option<OneMemory> = none("the middle one"),
        /// Storage of the row.
        storage: Option<String> = none("the run's first"),
    }
}

/// What happened somewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// References, a page each.
    pub references: u64,
    /// Page walks.
    pub tlb_misses: u64,
    /// First-level TLB misses that the second level held.
    pub tlb_second_hits: u64,
    /// Page faults.
    pub faults: u64,
    /// Of these, those on pages never touched before: no memory can avoid them.
    pub first_touches: u64,
}

impl Counts {
    fn add(&mut self, more: &Counts) {
        self.references += more.references;
        self.tlb_misses += more.tlb_misses;
        self.tlb_second_hits += more.tlb_second_hits;
        self.faults += more.faults;
        self.first_touches += more.first_touches;
    }
}

/// Counts of a part of the address space.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Name of the region; several, joined by ` + `, where a range holds several.
    pub name: String,
    /// First byte of the lowest range with references.
    pub addr_low: u64,
    /// Byte after the highest; may be 2^64.
    pub addr_high: u128,
    /// What happened there.
    #[serde(flatten)]
    pub counts: Counts,
}

/// What the references of a piece of code met. They themselves are not counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Site {
    /// Region of the code.
    pub name: String,
    /// First byte of the last instructions that the thread had fetched: in a capture a block
    /// without a branch into or out of it. `None`: those of all further sites, or before any fetch.
    pub addr: Option<u64>,
    /// What happened there; `references` stays 0.
    #[serde(flatten)]
    pub counts: Counts,
}

/// Where misses and faults of one page size and memory size come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explained {
    /// Everywhere.
    pub total: Counts,
    /// By region, most misses and faults first.
    pub regions: Vec<Place>,
    /// By address range, lowest first.
    pub ranges: Vec<Place>,
    /// By the code that made the reference, most misses and faults first; empty for a trace without
    /// fetches.
    pub sites: Vec<Site>,
}

/// Simulate the first page size and the first memory size of `options` and say where misses are.
///
/// A reference counts in the region that its own address lies in, as mapped at that moment; a page
/// larger than a region so can count for several.
///
/// # Errors
/// A trace that cannot be read or holds no such records; what `on_progress` raises.
pub fn explain(
    reader: &Reader,
    options: &Options,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Explained> {
    let footprint = footprint_bytes(reader, options)?;
    let page_bytes = options.page_sizes[0];
    let shift = page_bytes.trailing_zeros();
    let frames = (options.memory_bytes(footprint)[0].0 / page_bytes).max(1);
    // No more pages than the footprint has room for.
    let most = footprint / page_bytes.min(4096) + 1;
    let loads_set = options.clock_insert == ClockInsert::Set;
    let mut memory = options.replacement.visit(Make { frames, page_bytes, most, loads_set });
    let mut first = Buffer::new(options.tlb.first);
    let mut second = options.tlb.second.map(Buffer::new);

    let info = reader.info();
    let process: FxHashMap<u32, u32> = info.threads.iter().map(|t| (t.index, t.process)).collect();
    let process_of = |thread: u32| process.get(&thread).copied().unwrap_or(0);
    let mut running = info.threads.first().map_or(0, |thread| thread.process);
    let mut names = Names::new(reader.regions()?);

    let mut ids: PageMap<u32> = PageMap::default();
    let cell_shift = shift.max(MIN_RANGE_SHIFT);
    let mut places: FxHashMap<(u32, u64), Counts> = FxHashMap::default();
    let mut code = Code::default();
    // Most references lie where the one before them did.
    let (mut known, mut region, mut counts) = (None, 0u32, Counts::default());
    let mut batches = reader.batches(Columns { thread: true, ..Columns::PAGING });
    let mut batch = Batch::default();
    let (mut at, mut next_progress) = (0u64, 0u64);
    while batches.next_into(&mut batch)? {
        for (index, &addr) in batch.addr.iter().enumerate() {
            if names.next_event() <= at {
                names.advance(at, process_of, running);
                commit(&mut places, region, &mut known, &mut counts);
            }
            at += 1;
            let seen = process_of(batch.thread[index]);
            if seen != running {
                running = seen;
                commit(&mut places, region, &mut known, &mut counts);
            }
            let kind = batch.kind[index];
            if kind == Kind::Fetch as u8 {
                code.fetch(batch.thread[index], addr);
            }
            if options.kinds.0 >> kind & 1 == 0 {
                continue;
            }
            let last = last_byte(addr, batch.size[index]);
            for number in addr >> shift..=last >> shift {
                // The part of the record that lies in this page.
                let here = addr.max(number << shift);
                let spot = (here >> 12, here >> cell_shift);
                if known != Some(spot) {
                    commit(&mut places, region, &mut known, &mut counts);
                    region = names.region(running, spot.0);
                    known = Some(spot);
                }
                let fresh = ids.len() as u32;
                let page = *ids.entry(number).or_insert(fresh);
                let mut met = Counts::default();
                if !first.access(page, number) {
                    let held = second.as_mut().is_some_and(|level| level.access(page, number));
                    if held { met.tlb_second_hits = 1 } else { met.tlb_misses = 1 }
                }
                if memory.reference(page) {
                    met.faults = 1;
                    met.first_touches = u64::from(page == fresh);
                }
                if met != Counts::default() {
                    code.met(batch.thread[index], &met, |page| names.region(running, page));
                    counts.add(&met);
                }
                counts.references += 1;
            }
        }
        if at >= next_progress {
            on_progress(at)?;
            next_progress = at + PROGRESS_STEP;
        }
    }
    commit(&mut places, region, &mut known, &mut counts);
    Ok(explained(places, code, names, cell_shift))
}

/// Which code made a reference: the last that its thread had fetched.
#[derive(Default)]
struct Code {
    last: FxHashMap<u32, u64>,
    sites: FxHashMap<Option<u64>, (u32, Counts)>,
}

impl Code {
    fn fetch(&mut self, thread: u32, addr: u64) {
        self.last.insert(thread, addr);
    }

    /// Count what a reference of `thread` met; `region_of` a page of its code.
    fn met(&mut self, thread: u32, counts: &Counts, region_of: impl FnOnce(u64) -> u32) {
        let addr = self.last.get(&thread).copied();
        let site = self.sites.entry(addr);
        let fresh = || (addr.map_or(0, |addr| region_of(addr >> 12)), Counts::default());
        site.or_insert_with(fresh).1.add(counts);
    }

    /// The sites that met most, the rest in one; `name_of` a region.
    fn into_sites(self, name_of: impl Fn(u32) -> String) -> Vec<Site> {
        if self.last.is_empty() {
            return Vec::new();
        }
        let mut sites: Vec<_> = self.sites.into_iter().collect();
        sites.sort_by_key(|(addr, (_, c))| {
            (addr.is_none(), std::cmp::Reverse(c.tlb_misses + c.faults), *addr)
        });
        let mut rest = Counts::default();
        let mut listed = Vec::new();
        for (addr, (region, counts)) in sites {
            if addr.is_some() && listed.len() < SITES {
                listed.push(Site { name: name_of(region), addr, counts });
            } else {
                rest.add(&counts);
            }
        }
        if rest != Counts::default() {
            listed.push(Site { name: "(others)".to_owned(), addr: None, counts: rest });
        }
        listed
    }
}

/// Put what was counted at one place where it belongs.
fn commit(
    places: &mut FxHashMap<(u32, u64), Counts>,
    region: u32,
    known: &mut Option<(u64, u64)>,
    counts: &mut Counts,
) {
    if let Some((_, cell)) = known.take() {
        places.entry((region, cell)).or_default().add(&std::mem::take(counts));
    }
}

/// From counts by region id and cell to named regions and ranges.
fn explained(
    places: FxHashMap<(u32, u64), Counts>,
    code: Code,
    names: Names,
    cell_shift: u32,
) -> Explained {
    let (merged, texts) = names.finish();
    let final_region = |id: u32| merged.get(id as usize).copied().unwrap_or(id) as usize;
    let mut total = Counts::default();
    let mut regions: BTreeMap<usize, (u64, u64, Counts)> = BTreeMap::new();
    let mut cells: BTreeMap<u64, (Vec<usize>, Counts)> = BTreeMap::new();
    for ((id, cell), counts) in places {
        total.add(&counts);
        let id = final_region(id);
        let (low, high, sum) = regions.entry(id).or_insert((cell, cell, Counts::default()));
        (*low, *high) = (cell.min(*low), cell.max(*high));
        sum.add(&counts);
        let (ids, sum) = cells.entry(cell).or_default();
        ids.push(id);
        sum.add(&counts);
    }
    // Aligned groups of 2, 4, 8, ... cells, so that a range begins and ends at round addresses.
    let mut size = 0;
    while cells.len() > RANGES {
        size += 1;
        let mut fewer: BTreeMap<u64, (Vec<usize>, Counts)> = BTreeMap::new();
        for (cell, (ids, counts)) in cells {
            let (all, sum) = fewer.entry(cell >> 1).or_default();
            all.extend(ids);
            sum.add(&counts);
        }
        cells = fewer;
    }
    let shift = cell_shift + size;
    let bounds = |low: u64, high: u64, shift: u32| (low << shift, u128::from(high + 1) << shift);
    let name = |id: usize| {
        texts.get(id).cloned().flatten().unwrap_or_else(|| {
            // Code that no reference was counted in has no bounds.
            let Some((low, high, _)) = regions.get(&id) else { return UNNAMED.to_owned() };
            let (low, high) = bounds(*low, *high, cell_shift);
            format!("{low:#x}-{high:#x}")
        })
    };
    let sites = code.into_sites(|id| name(final_region(id)));
    let ranges = cells
        .into_iter()
        .map(|(cell, (mut ids, counts))| {
            ids.sort_unstable();
            ids.dedup();
            let names: Vec<String> = ids.into_iter().map(name).collect();
            let (addr_low, addr_high) = bounds(cell, cell, shift);
            Place { name: names.join(" + "), addr_low, addr_high, counts }
        })
        .collect();
    let mut regions: Vec<Place> = regions
        .iter()
        .map(|(&id, &(low, high, counts))| {
            let (addr_low, addr_high) = bounds(low, high, cell_shift);
            Place { name: name(id), addr_low, addr_high, counts }
        })
        .collect();
    regions.sort_by_key(|r| (std::cmp::Reverse(r.counts.tlb_misses + r.counts.faults), r.addr_low));
    Explained { total, regions, ranges, sites }
}

#[cfg(test)]
mod tests {
    use nearfar_kernel::replacement::REPLACEMENTS;
    use nearfar_schema::Choice;
    use nearfar_trace::{KindSet, Record, RegionEvent, Source, Writer, WriterOptions};
    use proptest::prelude::*;

    use super::*;
    use crate::paging::{MemorySize, simulate};

    fn store(records: &[Record], folder: &std::path::Path) -> Reader {
        let path = folder.join("t.trace");
        let mut writer =
            Writer::create(&path, Source::default(), WriterOptions::default()).unwrap();
        for (name, addr, length) in [("low", LOW, 0x8000), ("high", HIGH, 0x1_0000)] {
            writer
                .region(RegionEvent {
                    addr,
                    length,
                    prot: "rw-p".into(),
                    name: name.into(),
                    ..RegionEvent::default()
                })
                .unwrap();
        }
        let mut batch = Batch::default();
        records.iter().for_each(|r| batch.push(*r));
        writer.push_batch(&batch).unwrap();
        writer.finish(None).unwrap();
        Reader::open(&path).unwrap()
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

    fn asked(
        page: u64,
        size: MemorySize,
        tlb: &str,
        policy: &str,
        insert: ClockInsert,
        kinds: KindSet,
    ) -> Options {
        let (tlb, policy) = (tlb.parse().unwrap(), Choice::of(policy).unwrap());
        Options::new(vec![page], vec![size], tlb, policy, insert, kinds).unwrap()
    }

    fn check(records: &[Record], tlb: &str, policy: &str, insert: ClockInsert) {
        let folder = tempfile::tempdir().unwrap();
        let reader = store(records, folder.path());
        for page in [64u64, 4096, 65_536] {
            for size in
                [MemorySize::Fraction(0.3), MemorySize::Bytes(5000), MemorySize::Fraction(1.0)]
            {
                let set = KindSet::ALL;
                let options = asked(page, size, tlb, policy, insert, set);
                let cell = &simulate(&reader, &options, &mut |_| Ok(())).unwrap().cells[0];
                let found = explain(&reader, &options, &mut |_| Ok(())).unwrap();
                let study = Counts {
                    references: cell.references,
                    tlb_misses: cell.tlb_misses,
                    tlb_second_hits: cell.tlb_second_hits,
                    faults: cell.faults,
                    first_touches: cell.pages,
                };
                assert_eq!(found.total, study, "{policy} {tlb} page {page} {size:?}");
                assert_eq!(sum(&found.regions), study);
                assert_eq!(sum(&found.ranges), study);
                assert!(found.ranges.len() <= RANGES);
                let mut sites = Counts { references: study.references, ..Counts::default() };
                found.sites.iter().for_each(|site| sites.add(&site.counts));
                let fetches = records.iter().any(|r| r.kind == Kind::Fetch);
                assert!(sites == study || !fetches && found.sites.is_empty());
                // Each page of each record counts where its first byte there lies.
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

    fn records() -> impl Strategy<Value = Vec<Record>> {
        let one = (0u64..2, 0u64..80_000, 0u8..5, prop_oneof![9 => 1u16..9, 1 => 1u16..5000]);
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
        fn sums_are_the_studys(
            records in records(),
            tlb in prop::sample::select(vec!["64", "3", "8x2", "4+16x4"]),
            policy in prop::sample::select(REPLACEMENTS),
        ) {
            check(&records, tlb, policy.name, ClockInsert::Set);
        }
        #[test]
        fn sums_are_the_studys_where_clock_loads_clear(records in records()) {
            check(&records, "16", "clock", ClockInsert::Clear);
        }
    }

    /// A miss belongs to the code that its own thread fetched last.
    #[test]
    fn code_is_that_of_the_thread() {
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
        let all = MemorySize::Fraction(1.0);
        let data = KindSet(1 << Kind::Load as u8 | 1 << Kind::Store as u8);
        let faults = |kinds| {
            let options = asked(4096, all, "64", "lru", ClockInsert::Set, kinds);
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
        // Fetches count at the code that they are of.
        assert_eq!(faults(KindSet::ALL)[0], (Some(LOW + 0x1000), low(), 3, 3));
        assert_eq!(faults(KindSet::ALL)[1], (Some(LOW), low(), 2, 2));
        assert_eq!(faults(KindSet::ALL)[3], others);
    }

    /// Far more cells than ranges, up to the top of the address space.
    #[test]
    fn ranges_are_taken_together() {
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
        let half = MemorySize::Fraction(0.5);
        let options = asked(4096, half, "64", "lru", ClockInsert::Set, KindSet::ALL);
        let found = explain(&reader, &options, &mut |_| Ok(())).unwrap();
        assert!(found.ranges.len() <= RANGES && found.ranges.len() > RANGES / 4);
        assert_eq!(sum(&found.ranges), found.total);
        assert_eq!(found.total.references, 2001);
        assert_eq!(found.ranges.last().unwrap().addr_high, 1u128 << 64);
        assert!(found.ranges.windows(2).all(|pair| pair[0].addr_high <= pair[1].addr_low.into()));
    }
}
