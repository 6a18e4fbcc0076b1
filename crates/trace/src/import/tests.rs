//! Tests of the reader that all formats share; each format tests itself in its own file.

use std::io::Write;

use super::*;
use crate::record::Kind;

/// References of `bytes`, or the error as the user sees it.
pub(super) fn run(name: &str, bytes: &[u8], options: &Options) -> Result<Vec<Record>, String> {
    full(name, bytes, options).map(|(records, _)| records).map_err(|e| e.to_string())
}

/// References and summary of `bytes`.
pub(super) fn full(name: &str, bytes: &[u8], options: &Options) -> Result<(Vec<Record>, Summary)> {
    let mut input = Input::new("t", Box::new(bytes))?;
    let mut records = Vec::new();
    let summary = read(by_name(name)?, &mut input, options, &mut |record| {
        records.push(record);
        Ok(())
    })?;
    assert_eq!(summary.records, records.len() as u64);
    Ok((records, summary))
}

/// [`run`] without skipping bad records.
pub(super) fn strict(name: &str, bytes: &[u8]) -> Result<Vec<Record>, String> {
    run(name, bytes, &Options::default())
}

/// The error of `bytes`, which must have one.
pub(super) fn error(name: &str, bytes: &[u8]) -> String {
    strict(name, bytes).expect_err("bad input was taken")
}

/// Check the error of each input.
pub(super) fn check_errors(name: &str, cases: &[(&str, &str)]) {
    for (text, what) in cases {
        let error = error(name, text.as_bytes());
        assert!(error.contains(what), "{text}: {error}");
    }
}

/// A reference of thread 0 as `(kind, addr, size, instr)`.
pub(super) fn reference(kind: Kind, addr: u64, size: u16, instr: u32) -> Record {
    Record { addr, kind, size, thread: 0, instr }
}

fn detected(bytes: &[u8]) -> Result<&'static str, String> {
    let mut input = Input::new("t", Box::new(bytes)).map_err(|e| e.to_string())?;
    detect(&mut input).map(|importer| importer.name()).map_err(|e| e.to_string())
}

const THREE_RECORDS: &[u8] = b"r 1000 4\nw 2000 8\ni 3000 2\n";

pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn snappy(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = snap::write::FrameEncoder::new(Vec::new());
    encoder.write_all(bytes).unwrap();
    encoder.into_inner().unwrap()
}

/// A zip archive of `files`, with their checksums and sizes before or after their contents.
pub(super) fn zip(files: &[&[u8]], after: bool) -> Vec<u8> {
    let (mut archive, mut list) = (Vec::new(), Vec::new());
    for (index, file) in files.iter().enumerate() {
        // Every other file is stored uncompressed.
        let stored = index % 2 == 1 && !after;
        let deflate = || {
            let mut encoder =
                flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(file).unwrap();
            encoder.finish().unwrap()
        };
        let packed = if stored { file.to_vec() } else { deflate() };
        let (method, flags) = (if stored { 0u16 } else { 8 }, if after { 8u16 } else { 0 });
        let sizes = [crc32fast::hash(file), packed.len() as u32, file.len() as u32];
        let sizes = sizes.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        let mut head = vec![20, 0];
        head.extend([flags.to_le_bytes(), method.to_le_bytes(), [0; 2], [0; 2]].concat());
        head.extend(if after { &[0; 12] } else { &sizes[..] });
        head.extend([1, 0, 0, 0]);
        archive.extend_from_slice(b"PK\x03\x04");
        archive.extend_from_slice(&head);
        archive.push(b'a' + index as u8);
        archive.extend(packed);
        if after {
            // A data descriptor with a signature and sizes of 4 bytes, or without one and 8 bytes.
            if index % 2 == 0 {
                archive.extend_from_slice(b"PK\x07\x08");
                archive.extend_from_slice(&sizes);
            } else {
                archive.extend_from_slice(&sizes[..8]);
                archive.extend([&[0; 4], &sizes[8..], &[0; 4]].concat());
            }
        }
        list.extend_from_slice(b"PK\x01\x02");
    }
    archive.extend(list);
    archive.extend_from_slice(b"PK\x05\x06");
    archive.extend([0; 18]);
    archive
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn compressed_streams_are_read_and_their_concatenations_too() {
    let plain = strict("dinero", THREE_RECORDS).unwrap();
    for pack in [gzip, xz, snappy, |b: &[u8]| zstd::encode_all(b, 1).unwrap()] {
        assert_eq!(strict("dinero", &pack(THREE_RECORDS)).unwrap(), plain);
        assert_eq!(detected(&pack(THREE_RECORDS)).unwrap(), "dinero");
        let twice = [pack(THREE_RECORDS), pack(THREE_RECORDS)].concat();
        assert_eq!(strict("dinero", &twice).unwrap(), [plain.clone(), plain.clone()].concat());
    }
}

#[test]
fn the_files_of_a_zip_archive_are_joined() {
    let lines: Vec<_> = THREE_RECORDS.split_inclusive(|&byte| byte == b'\n').collect();
    for after in [false, true] {
        let packed = zip(&lines, after);
        assert_eq!(strict("dinero", &packed), strict("dinero", THREE_RECORDS));
        assert_eq!(detected(&packed).unwrap(), "dinero");
        let mut wrong = packed.clone();
        let checksum = crc32fast::hash(lines[0]).to_le_bytes();
        let at = memchr::memmem::find(&wrong, &checksum).unwrap();
        wrong[at] ^= 1;
        assert!(error("dinero", &wrong).contains("the checksum of a file in it is wrong"));
    }
    // The lower half of the second file's size, 0x4b50, looks like the beginning of a signature.
    let looks_signed = [&b"r 1000 4\n".repeat(2142)[..], b"\n\n"].concat();
    let packed = zip(&[lines[0], &looks_signed, lines[2]], true);
    assert_eq!(strict("dinero", &packed).unwrap().len(), 2144);
    let mut locked = zip(&lines, false);
    locked[6] = 1;
    assert!(error("dinero", &locked).contains("it is encrypted"));
}

#[test]
fn a_truncated_compressed_stream_is_an_error_whatever_is_skipped() {
    let long: Vec<u8> =
        (0..20_000u32).flat_map(|i| format!("r {:x} 4\n", i * 7919).into_bytes()).collect();
    for (name, packed) in [
        ("gzip", gzip(&long)),
        ("xz", xz(&long)),
        ("zstd", zstd::encode_all(&long[..], 1).unwrap()),
        ("snappy", snappy(&long)),
        ("zip", zip(&[&long], false)),
    ] {
        let options = Options { skip_bad: 1000, ..Options::default() };
        for keep in [packed.len() - 1, packed.len() / 2, 12] {
            let error = run("dinero", &packed[..keep], &options).unwrap_err();
            assert!(error.contains(&format!("damaged or cut-off {name} stream")), "{error}");
        }
        // With a limit, its beginning can still be read.
        let options = Options { max_refs: Some(100), ..Options::default() };
        assert_eq!(run("dinero", &packed[..packed.len() - 1], &options).unwrap().len(), 100);
    }
}

#[test]
fn the_place_of_a_bad_record_is_reported() {
    let text = b"r 1000 4\n\nr 2000 4\nr what 4\n";
    assert_eq!(
        error("dinero", text),
        "t: line 4, byte 19: bad dinero record: not a hexadecimal number in `r what 4`; fix the \
         file, or skip up to N bad records with --skip-bad N"
    );
    let packed = error("dinero", &gzip(text));
    assert!(packed.starts_with("t: line 4, byte 19 of the decompressed stream: "), "{packed}");
}

#[test]
fn skip_bad_skips_and_counts_bad_records() {
    let text = b"r 1000 4\nbad\nr 2000 0\nr 3000 4\nr 4000";
    let options = |skip_bad| Options { skip_bad, ..Options::default() };
    let (records, summary) = full("dinero", text, &options(3)).unwrap();
    assert_eq!((records.len(), summary.skipped), (2, 3));
    let error = run("dinero", text, &options(2)).unwrap_err();
    assert!(
        error.contains("line 5, byte 31") && error.contains("--skip-bad 2 is used up"),
        "{error}"
    );
    assert!(error.contains("no newline"), "{error}");
}

#[test]
fn max_refs_stops_even_within_a_line() {
    let options = Options { max_refs: Some(2), ..Options::default() };
    let records = run("lackey", b" L 10,4\n M 20,4\nnot read\n", &options).unwrap();
    assert_eq!(records, [reference(Kind::Load, 0x10, 4, 0), reference(Kind::Load, 0x20, 4, 0)]);
}

#[test]
fn references_beyond_the_end_of_the_address_space_are_refused() {
    let top = u64::MAX;
    let text = format!("r {top:x} 1\n");
    assert_eq!(strict("dinero", text.as_bytes()).unwrap(), [reference(Kind::Load, top, 1, 0)]);
    let past = error("dinero", format!("r {top:x} 2\n").as_bytes());
    assert!(past.contains("2 bytes at 0xffffffffffffffff run past the end"), "{past}");
    assert!(error("dinero", b"r 10000000000000000 1\n").contains("beyond 2^64"));
    assert!(error("dinero", b"r 10 10000\n").contains("a size of 65536 (at most 65535)"));
    assert!(error("dinero", b"r 10 0\n").contains("a size of 0 bytes is not a reference"));
}

#[test]
fn no_records_is_an_error() {
    for name in IMPORTERS.iter().map(|importer| importer.name()) {
        assert!(error(name, b"").contains("empty: no records"), "{name}");
    }
    assert!(detected(b"").unwrap_err().contains("empty: no records"));
    assert!(error("lackey", b"==1== noise\n\n").contains("no records (0 bad ones skipped)"));
    assert!(error("csv", b"addr,size\n").contains("no records"));
    assert!(error("dinero", &gzip(b"")).contains("empty: no records"));
}

/// A stream of one endless line, made as it is read.
struct Endless {
    left: u64,
    read: u64,
}

impl std::io::Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = (buffer.len() as u64).min(self.left) as usize;
        buffer[..count].fill(b'1');
        self.left -= count as u64;
        self.read += count as u64;
        Ok(count)
    }
}

#[test]
fn a_line_of_a_gigabyte_is_not_read_into_memory() {
    let mut endless = Endless { left: 1 << 30, read: 0 };
    let mut input = Input::new("t", Box::new(&mut endless)).unwrap();
    let error = read(by_name("lackey").unwrap(), &mut input, &Options::default(), &mut |_| Ok(()))
        .unwrap_err()
        .to_string();
    drop(input);
    assert!(
        error.contains("line 1, byte 0") && error.contains("longer than 65536 bytes"),
        "{error}"
    );
    assert!(endless.read < 1 << 20, "{} bytes were read", endless.read);
}

#[test]
fn skip_bad_skips_a_long_line_as_a_whole() {
    let mut text = vec![b'x'; 3 << 20];
    text.extend_from_slice(b"\nr 1000 4\n");
    let options = Options { skip_bad: 1, ..Options::default() };
    let (records, summary) = full("dinero", &text, &options).unwrap();
    assert_eq!((records.len(), summary.skipped), (1, 1));
    let longest = format!("addr\n{}1\n", " ".repeat(MAX_LINE - 1));
    assert_eq!(strict("csv", longest.as_bytes()).unwrap().len(), 1);
}

#[test]
fn only_the_right_importer_recognises_a_format() {
    let champsim = |size: usize| -> Vec<u8> {
        (0..8u64)
            .flat_map(|i| {
                let mut record = vec![0u8; size];
                record[..8].copy_from_slice(&(0x40_1000 + 4 * i).to_le_bytes());
                record[size - 24..size - 16].copy_from_slice(&(0x7fff_0000 + i).to_le_bytes());
                record
            })
            .collect()
    };
    let oracle: Vec<u8> = (0..8u64)
        .flat_map(|i| {
            let next = if i < 4 { i as i64 + 4 } else { -1 };
            let mut record = (i as u32).to_le_bytes().to_vec();
            record.extend((i % 4).to_le_bytes());
            record.extend(4096u32.to_le_bytes());
            record.extend(next.to_le_bytes());
            record
        })
        .collect();
    // A header of version 7, then a thread.
    let mut drmemtrace = vec![0; 24];
    (drmemtrace[0], drmemtrace[4], drmemtrace[12]) = (25, 7, 22);
    let samples: [(&str, Vec<u8>); 10] = [
        ("drmemtrace", drmemtrace),
        ("lackey", b"==1== x\nI  1000,4\n L 20,4\n".to_vec()),
        ("dinero", THREE_RECORDS.to_vec()),
        ("dinero", b"0 1000\n2 3f\n".to_vec()),
        ("champsim", champsim(64)),
        ("champsim-cloudsuite", champsim(96)),
        ("oracle-general", oracle),
        ("pinatrace", b"#\n0x401000: R 0x7fff0\n#eof\n".to_vec()),
        ("perf-script", b" 1/1  2.5: page-faults:u: 7fff0 4000\n".to_vec()),
        ("csv", b"addr,kind\n0x10,load\n".to_vec()),
    ];
    for (name, bytes) in &samples {
        assert_eq!(detected(bytes).as_deref(), Ok(*name));
    }
    let unknown = detected(b"hello\nworld\n").unwrap_err();
    assert!(unknown.contains("cannot be detected") && unknown.contains("--format: lackey, dinero"));
    assert!(detected(b"PK\x03\x04....").unwrap_err().contains("damaged or cut-off zip stream"));
    assert!(error("lackey", b"\x7fELF....").contains("a program, not a trace"));
}

#[test]
fn options_that_do_not_apply_are_refused() {
    let options = Options { object_bytes: Some(64), ..Options::default() };
    assert!(
        run("dinero", THREE_RECORDS, &options)
            .unwrap_err()
            .starts_with("--object-bytes: dinero holds")
    );
    assert!(by_name("din").err().unwrap().to_string().contains("choose one of lackey, dinero"));
}

#[test]
fn a_file_becomes_a_trace_and_an_error_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("three.din.gz"), dir.path().join("three.trace"));
    std::fs::write(&from, gzip(b"r 1000 4\nbad\nw 2000 8\n")).unwrap();
    let mut on_progress = |_| Ok(());
    let run = |options: &Options, on_progress: &mut dyn FnMut(u64) -> Result<()>| {
        import(&from, &to, None, false, options, on_progress)
    };
    assert!(run(&Options::default(), &mut on_progress).is_err());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "something was left behind");
    let options = Options { skip_bad: 5, ..Options::default() };
    let info = run(&options, &mut on_progress).unwrap();
    assert_eq!((info.records, info.source.skipped_records), (2, 1));
    assert_eq!((info.source.kind.as_str(), info.source.detail.as_str()), ("import", "dinero"));
    assert!(run(&options, &mut on_progress).unwrap_err().to_string().contains("exists already"));
    let onto_itself =
        import(&from, &from, None, true, &options, &mut on_progress).unwrap_err().to_string();
    assert!(onto_itself.contains("is an input itself"), "{onto_itself}");
}
