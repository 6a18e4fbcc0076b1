//! Tests that the import of an exported trace returns its records, as far as the format holds them.

use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::import;
use crate::info::Source;
use crate::record::Kind;
use crate::writer::{Writer, WriterOptions};

/// References on a few pages, or anywhere up to the end of the address space.
fn record() -> impl Strategy<Value = Record> {
    let addr = prop_oneof![0u64..20_000, any::<u64>(), Just(u64::MAX)];
    (addr, 0u8..5, 1u16..=9000, 0u32..4, any::<u32>()).prop_map(
        |(addr, kind, size, thread, instr)| {
            let room = (u64::MAX - addr).min(u64::from(size) - 1) as u16;
            let kind = Kind::from_u8(kind).unwrap_or(Kind::Load);
            Record { addr, kind, size: room + 1, thread, instr }
        },
    )
}

fn trace(dir: &Path, records: &[Record]) -> PathBuf {
    let path = dir.join("t.trace");
    let mut writer =
        Writer::create(&path, Source::default(), WriterOptions::default()).expect("a writer");
    for &record in records {
        writer.push(record).expect("a push");
    }
    writer.finish(None).expect("a trace");
    path
}

/// Export `records` in the format `name`, and import the result.
fn round_trip(name: &str, records: &[Record], options: &Options) -> Vec<Record> {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("out");
    export(&trace(dir.path(), records), &to, name, false, options, &mut |_| Ok(())).unwrap();
    let mut input = import::Input::open(&to).unwrap();
    let import_options =
        import::Options { object_bytes: options.page_bytes, ..import::Options::default() };
    let mut back = Vec::new();
    let importer = import::by_name(name).unwrap();
    import::read(importer, &mut input, &import_options, &mut |record| {
        back.push(record);
        Ok(())
    })
    .unwrap();
    back
}

/// What the dinero format keeps of a reference.
fn through_dinero(record: &Record) -> Record {
    let kind = match record.kind {
        Kind::KernelLoad => Kind::Load,
        Kind::KernelStore => Kind::Store,
        Kind::KernelFetch => Kind::Fetch,
        kind => kind,
    };
    Record { kind, thread: 0, instr: u32::from(kind == Kind::Fetch), ..*record }
}

/// What the oracle-general format keeps of references: requests of pages.
fn through_pages(records: &[Record], page_bytes: u64) -> Vec<Record> {
    let size = page_bytes.min(65535) as u16;
    records
        .iter()
        .flat_map(|r| r.addr / page_bytes..=(r.addr + (u64::from(r.size) - 1)) / page_bytes)
        .map(|page| Record { addr: page * page_bytes, kind: Kind::Load, size, thread: 0, instr: 0 })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn csv_loses_nothing(records in prop::collection::vec(record(), 1..60)) {
        prop_assert_eq!(round_trip("csv", &records, &Options::default()), records);
    }

    #[test]
    fn dinero_keeps_kinds_addresses_and_sizes(records in prop::collection::vec(record(), 1..60)) {
        let expected: Vec<_> = records.iter().map(through_dinero).collect();
        prop_assert_eq!(round_trip("dinero", &records, &Options::default()), expected);
    }

    #[test]
    fn oracle_general_keeps_pages(
        records in prop::collection::vec(record(), 1..60),
        shift in prop_oneof![Just(9u32), Just(12), Just(21)],
    ) {
        let page_bytes = 1 << shift;
        let options = Options { page_bytes: Some(page_bytes), ..Options::default() };
        let expected = through_pages(&records, page_bytes);
        prop_assert_eq!(round_trip("oracle-general", &records, &options), expected);
    }

    /// With a window of a few requests, `next` is also set in the file, late and in any order.
    #[test]
    fn next_is_the_next_request_to_the_page(
        pages in prop::collection::vec(0u64..12, 1..200),
        window in 1usize..20,
    ) {
        let mut file = tempfile::tempfile().unwrap();
        let mut requests = Box::new(oracle_general::Requests::new(
            file.try_clone().unwrap(), 4096, window,
        ));
        for &page in &pages {
            let record = Record { addr: page << 12, kind: Kind::Load, size: 8, thread: 0, instr: 0 };
            requests.put(record).unwrap();
        }
        requests.finish().unwrap();
        let mut bytes = Vec::new();
        io::Seek::rewind(&mut file).unwrap();
        io::Read::read_to_end(&mut file, &mut bytes).unwrap();
        prop_assert_eq!(bytes.len(), pages.len() * 24);
        for (number, request) in bytes.chunks_exact(24).enumerate() {
            let next = pages.iter().skip(number + 1).position(|page| *page == pages[number]);
            let next = next.map_or(-1, |ahead| (number + 1 + ahead) as i64);
            prop_assert_eq!(&request[4..12], &pages[number].to_le_bytes()[..]);
            prop_assert_eq!(&request[16..24], &next.to_le_bytes()[..]);
        }
    }
}

fn reference(kind: Kind) -> Record {
    Record { addr: 0x1234, kind, size: 8, thread: 0, instr: 0 }
}

#[test]
fn kinds_and_max_refs_select_records() {
    let records = [Kind::Load, Kind::Fetch, Kind::Load, Kind::Load].map(reference);
    let options =
        Options { kinds: KindSet(Kind::Load.bit()), max_refs: Some(2), ..Options::default() };
    assert_eq!(round_trip("csv", &records, &options), [reference(Kind::Load); 2]);
}

#[test]
fn invalid_requests_are_refused_and_leave_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let from = trace(dir.path(), &[reference(Kind::Load)]);
    let to = dir.path().join("out");
    let run = |to: &Path, name: &str, options: &Options, force| {
        export(&from, to, name, force, options, &mut |_| Ok(())).map_err(|e| e.to_string())
    };
    let plain = Options::default();
    let pages = |bytes| Options { page_bytes: Some(bytes), ..Options::default() };
    for (name, options, what) in [
        ("xml", plain.clone(), "choose one of oracle-general, dinero, csv"),
        ("csv", pages(4096), "--page-bytes: csv holds addresses"),
        ("oracle-general", pages(0), "--page-bytes: 0 is not"),
        ("oracle-general", pages(4097), "--page-bytes: 4097 is not"),
        (
            "csv",
            Options { kinds: KindSet(Kind::Store.bit()), ..plain.clone() },
            "no references of the kinds store",
        ),
    ] {
        let error = run(&to, name, &options, false).unwrap_err();
        assert!(error.contains(what), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "{what} left something");
    }
    let stdout = run(Path::new("-"), "oracle-general", &plain, false).unwrap_err();
    assert!(stdout.contains("name a file with -o"), "{stdout}");
    assert_eq!(run(&to, "csv", &plain, false), Ok(1));
    assert!(run(&to, "csv", &plain, false).unwrap_err().contains("exists already"));
    assert_eq!(run(&to, "dinero", &plain, true), Ok(1));
    assert_eq!(std::fs::read_to_string(&to).unwrap(), "r 1234 8\n");
    assert!(run(dir.path(), "csv", &plain, true).unwrap_err().contains("contains the input"));
    let folder = tempfile::tempdir().unwrap();
    assert!(run(folder.path(), "csv", &plain, true).unwrap_err().contains("is a folder"));
}
