//! Runs the readers of a trace folder on untrusted files: for the fuzz targets (`fuzz/`) and the
//! replay of their corpus. [`crate::import`] has the functions for import formats.
//!
//! The functions panic if a reader violates its contract. An error is a valid result.

use std::path::Path;

use crate::column::open_part;
use crate::error::Result;
use crate::info::{Info, PartInfo, Source, ThreadInfo};
use crate::reader::{Batches, Columns, Reader};
use crate::record::{Batch, Kind, KindSet};
use crate::region;

/// Maximum records to read from a part: a small file can claim very many.
const MAX_RECORDS: usize = 1 << 20;

/// Read `bytes` as the only part of the trace folder `dir`. All columns must have the same length,
/// and all kinds must be valid.
pub fn part(dir: &Path, bytes: &[u8]) {
    check(read_part(dir, bytes));
}

fn read_part(dir: &Path, bytes: &[u8]) -> Result<()> {
    let file = "part-00000.parquet".to_owned();
    put(dir, &file, bytes);
    let records = open_part(&dir.join(&file))?.records();
    let mut info = Info::new(Source::default());
    info.records = records;
    info.records_by_kind.insert(Kind::Load, records);
    info.pages_by_kinds.insert(Kind::Load.name().to_owned(), records.min(1));
    info.threads.push(ThreadInfo { records, ..ThreadInfo::default() });
    info.parts.push(PartInfo { file, records, bytes: bytes.len() as u64, checksum: None });
    info.store(dir)?;
    let reader = Reader::open(dir)?;
    for columns in [Columns::ALL, Columns::PAGING] {
        let mut batches = reader.batches(columns);
        let mut batch = Batch::default();
        let mut read = 0;
        while read < MAX_RECORDS && batches.next_into(&mut batch)? {
            let length = batch.len();
            assert!((1..=Batches::MAX).contains(&length));
            assert!(batch.kind.len() == length && batch.size.len() == length);
            assert!(batch.kind.iter().all(|&kind| Kind::from_u8(kind).is_some()));
            for column in [&batch.thread, &batch.instr] {
                assert_eq!(column.len(), if columns.thread { length } else { 0 });
            }
            read += length;
        }
        assert!(read as u64 <= records);
    }
    Ok(())
}

/// Read `bytes` as the `regions.parquet` of the folder `dir`.
pub fn regions(dir: &Path, bytes: &[u8]) {
    put(dir, "regions.parquet", bytes);
    // `None`: there is no number of events in a `trace.json` to compare with.
    check(region::load(dir, None).map(drop));
}

/// Read `bytes` as the `trace.json` of the folder `dir`. Returns whether it is valid.
pub fn trace_json(dir: &Path, bytes: &[u8]) -> bool {
    put(dir, "trace.json", bytes);
    let read = Info::load(dir).map(|info| {
        let _ = info.footprint_pages(KindSet::ALL);
        let _ = info.records_of(KindSet::ALL);
    });
    let valid = read.is_ok();
    check(read.and_then(|()| Reader::open(dir)).map(drop));
    valid
}

fn put(dir: &Path, name: &str, bytes: &[u8]) {
    if let Err(error) = std::fs::write(dir.join(name), bytes) {
        panic!("{}: {error}", dir.join(name).display());
    }
}

/// Check that an error is one line.
fn check(read: Result<()>) {
    if let Err(error) = read {
        let text = error.to_string();
        assert!(!text.is_empty() && text.lines().count() == 1, "{text:?}");
    }
}
