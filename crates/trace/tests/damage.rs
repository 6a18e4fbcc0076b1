//! Flips single bits of a trace: the reader must refuse it with an error of one line, or read the same
//! data; in the latter case, `verify` must name the damaged file.

use std::path::Path;

use nearfar_trace::verify::verify;
use nearfar_trace::{
    Batch, Columns, Error, Kind, Reader, Record, RegionEvent, RegionKind, Result, Source, Writer,
    WriterOptions,
};

/// All records and events of a trace.
fn read(path: &Path) -> Result<(Vec<Record>, Vec<RegionEvent>)> {
    let reader = Reader::open(path)?;
    let mut records = Vec::new();
    let mut batches = reader.batches(Columns::ALL);
    let mut batch = Batch::default();
    while batches.next_into(&mut batch)? {
        records.extend(batch.iter());
    }
    Ok((records, reader.regions()?))
}

/// Write a trace. If `scattered`, addresses and instruction counts are random; otherwise they repeat.
fn write(path: &Path, records: u64, scattered: bool) {
    let mut writer = Writer::create(path, Source::default(), WriterOptions::default()).unwrap();
    let mut state = 7u64;
    for index in 0..records {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let random = state >> 24;
        let addr = if scattered { random } else { 0x1000 + random % 97 * 48 };
        let kind = Kind::from_u8((random % 3) as u8).unwrap();
        let instr = if scattered { random as u32 } else { (index % 300) as u32 };
        let (size, thread) = (1 + (index % 9) as u16, (index / 50 % 2) as u32);
        writer.push(Record { addr, kind, size, thread, instr }).unwrap();
        if index % 64 == 0 {
            let (addr, length, prot) = (index * 4096, 8192, "rw-p".to_owned());
            let (event, name) = match index % 128 {
                0 => (RegionKind::Map, format!("/usr/lib/{index}.so")),
                _ => (RegionKind::Unmap, String::new()),
            };
            let region = RegionEvent { event, addr, length, prot, name, ..Default::default() };
            writer.region(region).unwrap();
        }
    }
    writer.finish(None).unwrap();
}

/// Flip every `step`th bit of `file`, one at a time. Returns how many flips were tried, how many
/// refused, and how many read as other data.
fn flip(path: &Path, file: &str, step: usize) -> (usize, usize, usize) {
    let whole = read(path).unwrap();
    let place = path.join(file);
    let bytes = std::fs::read(&place).unwrap();
    let (mut tried, mut refused, mut other) = (0, 0, 0);
    for bit in (0..bytes.len() * 8).step_by(step) {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&place, &flipped).unwrap();
        tried += 1;
        let check = |error: Error| {
            let text = error.to_string();
            assert!(text.contains(file) && text.lines().count() == 1, "{text:?}");
        };
        match read(path) {
            Err(error) => {
                check(error);
                refused += 1;
            }
            Ok(found) if found == whole => {
                let reader = Reader::open(path).unwrap();
                check(verify(&reader, &mut |_| Ok(())).expect_err("no checksum is that of this"));
            }
            Ok(_) => {
                println!("{file}: bit {} of byte {} of {}", bit % 8, bit / 8, bytes.len());
                other += 1;
            }
        }
    }
    std::fs::write(&place, &bytes).unwrap();
    println!("{file}: {tried} flips, {refused} refused, {other} read as something else");
    (tried, refused, other)
}

#[test]
fn a_flipped_bit_never_reads_as_other_data() {
    let folder = tempfile::tempdir().unwrap();
    for (records, scattered) in [(400, false), (400, true)] {
        let path = folder.path().join(format!("{scattered}.trace"));
        write(&path, records, scattered);
        for file in ["part-00000.parquet", "regions.parquet"] {
            let (tried, refused, other) = flip(&path, file, 29);
            assert!(tried > 300 && refused * 2 > tried, "{refused} of {tried} refused");
            assert_eq!(other, 0, "{file}: {other} of {tried}");
        }
    }
}
