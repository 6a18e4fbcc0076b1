//! Tests that `verify` finds every difference between `trace.json` and the files of a trace.

use std::path::{Path, PathBuf};

use nearfar_trace::checksum::Checksum;
use nearfar_trace::column::ROW_GROUP;
use nearfar_trace::verify::{Verified, verify};
use nearfar_trace::{
    Info, Kind, Reader, Record, RegionEvent, RegionKind, Result, Source, Writer, WriterOptions,
};
use proptest::prelude::*;

fn check(path: &Path) -> Result<Vec<Verified>> {
    verify(&Reader::open(path)?, &mut |_| Ok(()))
}

fn write(path: &Path, records: &[Record], options: WriterOptions) -> Info {
    let mut writer = Writer::create(path, Source::default(), options).unwrap();
    for (index, record) in records.iter().enumerate() {
        writer.push(*record).unwrap();
        if index % 50 == 3 {
            let event = RegionKind::Unmap;
            let thread = record.thread;
            let event = RegionEvent { event, thread, length: 4096, ..RegionEvent::default() };
            writer.region(event).unwrap();
        }
        writer.add_instructions(record.thread, 2);
    }
    writer.finish(None).unwrap()
}

/// Loads and stores, on separate pages, of threads 0 and 5.
fn records(count: usize) -> Vec<Record> {
    let record = |index: usize| Record {
        addr: index as u64 % 40 * 1000,
        kind: if index % 40 < 25 { Kind::Load } else { Kind::Store },
        size: 8,
        thread: (index % 2) as u32 * 5,
        instr: 3,
    };
    (0..count).map(record).collect()
}

fn trace(folder: &Path) -> (PathBuf, Info) {
    let path = folder.join("a.trace");
    let info = write(&path, &records(400), WriterOptions::default());
    (path, info)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn a_written_trace_passes_verification(
        found in prop::collection::vec(
            (prop_oneof![4 => 0u64..1 << 20, 1 => any::<u64>()], 0u8..5, 1u16.., 0u32..9, 0u32..9),
            0..600,
        ),
    ) {
        let records: Vec<Record> = found
            .into_iter()
            .map(|(addr, kind, size, thread, instr)| {
                Record { addr, kind: Kind::from_u8(kind).unwrap(), size, thread, instr }
            })
            .collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.trace");
        let info = write(&path, &records, WriterOptions::default());
        let files = check(&path).unwrap();
        prop_assert_eq!(files.len(), info.parts.len() + 1);
        prop_assert_eq!(files.iter().map(|file| file.rows).sum::<u64>(),
            records.len() as u64 + info.regions.unwrap().events);
        for file in files {
            let (checksum, bytes) = Checksum::of_file(&path.join(&file.file)).unwrap();
            prop_assert_eq!((file.checksum, file.bytes), (Some(checksum), bytes));
        }
    }
}

#[test]
fn a_trace_of_schema_1_has_no_checksums() {
    let folder = tempfile::tempdir().unwrap();
    let (path, mut info) = trace(folder.path());
    info.schema = 1;
    info.regions = None;
    info.parts[0].checksum = None;
    info.store(&path).unwrap();
    assert!(!std::fs::read_to_string(path.join("trace.json")).unwrap().contains("checksum"));
    let files = check(&path).unwrap();
    assert_eq!(files.iter().map(|file| file.checksum).collect::<Vec<_>>(), [None, None]);
}

/// A killed capture leaves what it stored when its last complete part ended.
#[test]
fn the_finished_parts_of_a_killed_capture_keep_their_checksums() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.trace");
    let options =
        WriterOptions { in_place: true, part_records: ROW_GROUP, ..WriterOptions::default() };
    let mut writer = Writer::create(&path, Source::default(), options).unwrap();
    let mut all = records(40).into_iter().cycle();
    writer.region(RegionEvent::default()).unwrap();
    while Info::load(&path).unwrap().parts.is_empty() {
        let some = all.by_ref().take(ROW_GROUP / 2);
        some.for_each(|record| writer.push(record).unwrap());
    }
    drop(writer);
    let info = Info::load(&path).unwrap();
    assert!(!info.complete && info.parts.len() == 1);
    let files = check(&path).unwrap();
    let sums: Vec<_> =
        files.iter().map(|file| (&file.file[..4], file.checksum.is_some())).collect();
    // The table of events gets a checksum only at the end, because each part rewrites it.
    assert_eq!(sums, [("part", true), ("regi", false)]);
}

#[test]
fn a_trace_json_that_contradicts_the_files_is_reported() {
    type Change = fn(&mut Info);
    let cases: &[(&str, Change, &str)] = &[
        (
            "footers",
            |info| {
                info.parts[0].records += 1;
                info.threads[0].records += 1;
                info.records += 1;
                *info.records_by_kind.get_mut(&Kind::Load).unwrap() += 1;
            },
            "part-00000.parquet: has 400 records, but 401 in trace.json",
        ),
        (
            "kinds",
            |info| {
                *info.records_by_kind.get_mut(&Kind::Load).unwrap() += 1;
                *info.records_by_kind.get_mut(&Kind::Store).unwrap() -= 1;
            },
            "trace.json: `records_by_kind` has 251 of `load`, the parts have 250",
        ),
        (
            "threads",
            |info| {
                info.threads[0].records += 1;
                info.threads[1].records -= 1;
            },
            "trace.json: `threads` has 201 records of thread 0, the parts have 200",
        ),
        (
            "an event of another thread",
            |info| info.threads[1].index = 6,
            "regions.parquet: row 0 is of thread 5, which is not in trace.json",
        ),
        (
            "another thread",
            |info| info.threads[0].index = 6,
            "trace.json: `threads` has 200 records of thread 6",
        ),
        (
            "instructions",
            |info| {
                info.threads[1].instructions -= 401;
                info.instructions -= 401;
            },
            "trace.json: `threads` has 599 instructions of thread 5, the parts have 600",
        ),
        (
            "pages",
            |info| {
                *info.pages_by_kinds.get_mut("load").unwrap() += 1;
            },
            "trace.json: `pages_by_kinds` has 7 pages of `load`, the parts have 6",
        ),
        (
            "pages of other kinds",
            |info| {
                info.pages_by_kinds.remove("load+store");
                *info.pages_by_kinds.get_mut("load").unwrap() += 1;
            },
            "trace.json: `pages_by_kinds` has 7 pages of `load`, the parts have 6",
        ),
        ("bytes", |info| info.parts[0].bytes += 1, "part-00000.parquet: has "),
        (
            "checksum",
            |info| {
                info.parts[0].checksum = info.regions.as_ref().map(|regions| regions.checksum);
            },
            "part-00000.parquet: has the checksum xxh3-128:",
        ),
        (
            "checksum of events",
            |info| {
                info.regions.as_mut().unwrap().checksum = info.parts[0].checksum.unwrap();
            },
            "regions.parquet: has the checksum xxh3-128:",
        ),
        (
            "events",
            |info| info.regions.as_mut().unwrap().events += 1,
            "regions.parquet: has 8 events, but 9 in trace.json",
        ),
        (
            "bytes of events",
            |info| info.regions.as_mut().unwrap().bytes -= 1,
            "regions.parquet: has ",
        ),
    ];
    let folder = tempfile::tempdir().unwrap();
    let (path, info) = trace(folder.path());
    check(&path).unwrap();
    for (name, change, expected) in cases {
        let mut changed = info.clone();
        change(&mut changed);
        changed.store(&path).unwrap();
        let text = check(&path).expect_err(name).to_string();
        assert!(text.contains(expected) && text.lines().count() == 1, "{name}: {text}");
    }
}

#[test]
fn a_range_beyond_the_end_of_memory_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    for (length, fits) in [(1 << 12, true), ((1 << 12) + 1, false)] {
        let path = folder.path().join(format!("{length}.trace"));
        let mut writer =
            Writer::create(&path, Source::default(), WriterOptions::default()).unwrap();
        writer.push(records(1)[0]).unwrap();
        let addr = u64::MAX << 12;
        writer.region(RegionEvent { addr, length, ..RegionEvent::default() }).unwrap();
        writer.finish(None).unwrap();
        let text = check(&path).err().map(|error| error.to_string());
        let expected = "regions.parquet: the range in row 0 exceeds the address space";
        assert_eq!(text.is_none(), fits);
        assert!(text.is_none_or(|text| text.contains(expected)));
    }
}

#[test]
fn a_missing_file_that_is_listed_is_reported() {
    for file in ["part-00000.parquet", "regions.parquet"] {
        let folder = tempfile::tempdir().unwrap();
        let (path, _) = trace(folder.path());
        std::fs::remove_file(path.join(file)).unwrap();
        let text = Reader::open(&path).unwrap_err().to_string();
        assert!(text.contains(&format!("{file}: listed in trace.json but missing")), "{text}");
    }
}
