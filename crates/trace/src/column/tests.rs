//! Tests that row groups of every layout are read as they were written.

use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::info::Source;
use crate::reader::{Columns, Reader};
use crate::record::{Batch, Kind, KindSet, NarrowBatch, Record};
use crate::writer::{Writer, WriterOptions};

fn write_and_read(batch: &Batch, options: WriterOptions) -> (Batch, crate::Info) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.trace");
    let mut writer = Writer::create(&path, Source::default(), options).unwrap();
    writer.push_batch(batch).unwrap();
    let written = writer.finish(None).unwrap();
    assert_eq!(Reader::open(&path).unwrap().info(), &written);
    let mut by_kind = std::collections::BTreeMap::new();
    batch.iter().for_each(|record| *by_kind.entry(record.kind).or_default() += 1);
    assert_eq!(written.records_by_kind, by_kind);
    (read(&path), written)
}

fn read(path: &Path) -> Batch {
    let (mut all, mut some) = (Batch::default(), Batch::default());
    let mut batches = Reader::open(path).unwrap().batches(Columns::ALL);
    while batches.next_into(&mut some).unwrap() {
        some.iter().for_each(|record| all.push(record));
    }
    all
}

fn record() -> impl Strategy<Value = Record> {
    let addr = prop_oneof![
        8 => (0u64..1 << 16).prop_map(|a| 0x7f00_0000_0000 + a),
        4 => 0u64..1 << 20,
        1 => any::<u64>(),
        1 => Just(u64::MAX),
    ];
    let kind = (0u8..5).prop_map(|k| Kind::from_u8(k).unwrap());
    let instr = prop_oneof![9 => 0u32..30, 1 => any::<u32>()];
    (addr, kind, 1u16..=u16::MAX, prop_oneof![3 => Just(0u32), 1 => any::<u32>()], instr)
        .prop_map(|(addr, kind, size, thread, instr)| Record { addr, kind, size, thread, instr })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn records_are_read_back_as_written(records in prop::collection::vec(record(), 1..3000)) {
        let mut batch = Batch::default();
        records.iter().for_each(|r| batch.push(*r));
        let (read, info) = write_and_read(&batch, WriterOptions::default());
        prop_assert_eq!(&read, &batch);
        prop_assert_eq!(info.records, records.len() as u64);
        let instructions: u64 = records.iter().map(|r| u64::from(r.instr)).sum();
        prop_assert_eq!(info.instructions, instructions);
        // The footprint of every set of kinds, against a hash set of pages.
        for kinds in 1..=KindSet::ALL.0 {
            let kinds = KindSet(kinds);
            let pages: std::collections::HashSet<u64> = records
                .iter()
                .filter(|r| kinds.contains(r.kind))
                .flat_map(|r| {
                    let last = r.addr.saturating_add(u64::from(r.size) - 1);
                    r.addr >> 12..=last >> 12
                })
                .collect();
            prop_assert_eq!(info.footprint_pages(kinds), pages.len() as u64);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn the_encoding_does_not_depend_on_batches(
        records in prop::collection::vec(record(), 1..3000),
        mostly_narrow in any::<bool>(),
        pieces in prop::collection::vec((1usize..400, any::<bool>()), 1..20),
    ) {
        let mut batch = Batch::default();
        for record in &records {
            let mut record = *record;
            if mostly_narrow && record.size > 4200 {
                // As in a capture, make most records narrow, and leave sizes of up to about a page.
                (record.size, record.instr, record.thread) = (record.size as u8 as u16 | 1, 7, 3);
            }
            batch.push(record);
        }
        let mut whole = Group::default();
        whole.extend(&batch, 0);
        let mut parts = Group::default();
        let mut from = 0;
        for &(length, narrow) in pieces.iter().cycle() {
            let to = batch.len().min(from + length);
            let mut piece = Batch::default();
            batch.iter().take(to).skip(from).for_each(|record| piece.push(record));
            let size: Option<Vec<u8>> =
                piece.size.iter().map(|&size| size.try_into().ok()).collect();
            let instr: Option<Vec<u8>> =
                piece.instr.iter().map(|&instr| instr.try_into().ok()).collect();
            let one_thread = piece.thread.iter().all(|&thread| thread == piece.thread[0]);
            let taken = match (size, instr) {
                (Some(size), Some(instr)) if narrow && one_thread => {
                    let (addr, kind) = (&piece.addr[..], &piece.kind[..]);
                    let (size, instr, thread) = (&size[..], &instr[..], piece.thread[0]);
                    parts.extend_narrow(NarrowBatch { addr, kind, size, instr, thread }, 0)
                }
                _ => parts.extend(&piece, 0),
            };
            prop_assert_eq!(taken, to - from);
            from = to;
            if from == batch.len() {
                break;
            }
        }
        let mut encoder = Encoder::new().unwrap();
        let [whole, parts] = [&mut whole, &mut parts].map(|group| encoder.encode(group).unwrap());
        prop_assert!(whole.bytes().eq(parts.bytes()));
        prop_assert_eq!(whole.pages, parts.pages);
        prop_assert_eq!(whole.by_kind, parts.by_kind);
        prop_assert_eq!(whole.threads, parts.threads);
    }
}

/// As many different numbers as a byte can index, largest first, one of them above 255.
#[test]
fn a_full_dictionary_of_numbers_is_read_back() {
    let mut batch = Batch::default();
    for i in (0..256u32).rev() {
        let instr = if i == 200 { 60_000 } else { i };
        batch.push(Record { addr: 0x1000, kind: Kind::Load, size: 8, thread: 0, instr });
    }
    assert_eq!(write_and_read(&batch, WriterOptions::default()).0, batch);
}

/// Every layout of every column, over several row groups and parts, with and without encoder threads.
#[test]
fn every_layout_is_read_back() {
    let mut batch = Batch::default();
    let mut state = 1u64;
    for i in 0..ROW_GROUP as u64 * 3 + 12_345 {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let group = i / ROW_GROUP as u64;
        let random = state >> 20;
        let (addr, instr, size, thread) = match group {
            0 => (0x1000 + i % 999 * 8, 3, 8, 0),
            // More pages and threads would take most of the time, in the footprint and trace.json.
            1 => (random % (1 << 32), random as u32, random as u16 | 1, (random % 70_000) as u32),
            2 => (u64::MAX - random % 4000, random as u32 % 3000, 1 + (random % 700) as u16, 7),
            _ => (42, (i % 255) as u32, 64, (i % 3) as u32),
        };
        let kind = Kind::from_u8((random % 5) as u8).unwrap();
        batch.push(Record { addr, kind, size, thread, instr });
    }
    let small_parts = WriterOptions { part_records: ROW_GROUP, ..WriterOptions::default() };
    let (one, info) = write_and_read(&batch, small_parts.clone());
    assert!(one == batch, "records differ");
    assert_eq!(info.parts.len(), 4);
    let threaded = WriterOptions { threads: 2, ..small_parts };
    let (read, same) = write_and_read(&batch, threaded);
    assert!(read == batch, "records differ when encoded by threads");
    assert_eq!(info, same);
}

/// A dictionary that becomes full in the last eighth of a row group ends the group; one that becomes
/// full earlier (76,000 addresses) is dropped.
#[test]
fn a_full_dictionary_ends_a_row_group() {
    for (addresses, row_groups) in [(65_536, 1), (65_537, 2), (70_000, 2), (76_000, 1)] {
        let mut batch = Batch::default();
        for i in 0..ROW_GROUP as u64 {
            let addr = i * addresses / ROW_GROUP as u64 * 24;
            let (instr, size) = ((i % 7) as u32, if i % 1000 == 3 { 4096 } else { 8 });
            batch.push(Record {
                addr,
                kind: Kind::Load,
                size,
                thread: (i / 1000 % 3) as u32,
                instr,
            });
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.trace");
        let mut writer =
            Writer::create(&path, Source::default(), WriterOptions::default()).unwrap();
        writer.push_batch(&batch).unwrap();
        writer.finish(None).unwrap();
        assert!(read(&path) == batch, "records differ: {addresses} addresses");
        let part = open_part(&path.join("part-00000.parquet")).unwrap();
        assert_eq!(part.groups(), row_groups, "{addresses} addresses");
    }
}
