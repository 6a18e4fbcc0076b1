//! Importers: read traces of other tools strictly, record by record, in constant memory.
//!
//! A format is one file with an [`Importer`] and one line in [`IMPORTERS`]. It defines how its
//! stream is split into frames (lines, or records of a fixed size) and turns a frame into
//! references. This module does the rest: decompression, bounded lines, error positions,
//! `--skip-bad`, `--max-refs`, truncated files and format detection. The table of formats in
//! `docs/formats.md` is generated from [`IMPORTERS`].

use std::borrow::Cow;
use std::path::Path;

use nearfar_schema::{Bytes, Choice, Count, Entry, Registry, none};

use crate::error::{Error, Result};
use crate::info::{Info, Source};
use crate::record::{Batch, Record};
use crate::writer::{Writer, WriterOptions};

pub mod champsim;
pub mod csv;
pub mod dinero;
pub mod drmemtrace;
mod input;
pub mod lackey;
mod merged;
pub mod oracle_general;
pub mod perf_script;
pub mod pinatrace;
mod text;
mod threads;
mod zip;

pub use input::{Head, Input, MAX_LINE};

use input::Frame;

/// All formats that can be imported.
pub static IMPORTERS: &[&dyn Importer] = &[
    &lackey::Lackey,
    &dinero::Dinero,
    &champsim::CHAMPSIM,
    &champsim::CLOUDSUITE,
    &oracle_general::OracleGeneral,
    &pinatrace::Pinatrace,
    &drmemtrace::Drmemtrace,
    &perf_script::PerfScript,
    &csv::Csv,
];

/// The registry of import formats, for options.
pub struct Importers;

impl Registry for Importers {
    const NAME: &'static str = "import_format";
    const KIND: &'static str = "trace format";
    const METAVAR: &'static str = "NAME";
    fn entries() -> Vec<Entry> {
        let entry = |importer: &&dyn Importer| Entry {
            name: importer.name(),
            what: format!("{}; holds {}", importer.summary(), importer.holds()),
        };
        // Not a trace: `python/nearfar/damo.py` reads it.
        let what = "a record file of DAMON's tool damo; holds access frequencies of regions, no references";
        let damo = Entry { name: "damo", what: what.into() };
        IMPORTERS.iter().map(entry).chain([damo]).collect()
    }
}

nearfar_schema::options! {
    /// The options of `nearfar import`, as given.
    pub struct Request {
        /// Format of the file.
        format: Option<Choice<Importers>> = none("detected from the content"),
        /// Maximum number of bad records to skip; trace.json has the number skipped.
        skip_bad: Count = 0,
        /// Stop after this many references.
        max_refs: Option<Count<1>> = none("all"),
        /// Bytes per object; an object's address is its id times this (oracle-general).
        object_bytes: Option<Bytes> = none("4096"),
    }
}

impl From<&Request> for Options {
    fn from(request: &Request) -> Self {
        Self {
            skip_bad: request.skip_bad.0,
            max_refs: request.max_refs.map(|count| count.0),
            object_bytes: request.object_bytes.map(|bytes| bytes.0),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Bad records to skip before the import fails.
    pub skip_bad: u64,
    /// Stop after this many references.
    pub max_refs: Option<u64>,
    /// Bytes per object id, for formats that contain ids instead of addresses. Default 4096.
    pub object_bytes: Option<u64>,
}

/// Why a frame is not a record, for the error message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bad(pub Cow<'static, str>);

impl From<&'static str> for Bad {
    fn from(text: &'static str) -> Self {
        Bad(Cow::Borrowed(text))
    }
}

impl From<String> for Bad {
    fn from(text: String) -> Self {
        Bad(Cow::Owned(text))
    }
}

/// How a stream is split into frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Lines of text of at most [`MAX_LINE`] bytes. Blank lines are skipped.
    Lines {
        /// Whether a last line without a newline is a truncated record: half an address still looks
        /// like an address.
        final_newline: bool,
    },
    /// Binary records of this many bytes.
    Fixed(usize),
}

/// Turns frames into references, with the state that a format needs between frames.
pub trait Parser {
    /// Append the references of one frame to `out`, perhaps none. If it fails, the frame is not
    /// used. The caller rejects sizes of 0 and ranges beyond 2^64.
    fn parse(&mut self, frame: &[u8], out: &mut Vec<Record>) -> Result<(), Bad>;

    /// Process number of each thread index seen so far (0: unknown).
    fn processes(&self) -> Vec<u32> {
        Vec::new()
    }
}

/// A trace format of another tool.
pub trait Importer: Sync {
    /// Name on the command line and in `trace.json`.
    fn name(&self) -> &'static str;
    /// What it is, for help and docs.
    fn summary(&self) -> &'static str;
    /// The contents of its records, for help and docs: kinds, sizes, threads, instructions.
    fn holds(&self) -> &'static str;
    /// How the stream is split.
    fn framing(&self) -> Framing;
    /// Whether records are a sample of the program's references.
    fn sampled(&self) -> bool {
        false
    }
    /// Whether the format contains object ids, which `object_bytes` turns into addresses.
    fn has_object_ids(&self) -> bool {
        false
    }
    /// Whether a folder of the format's files can be read as one stream.
    fn takes_folders(&self) -> bool {
        false
    }
    fn parser(&self, options: &Options) -> Box<dyn Parser>;
    /// Whether a stream that begins like this may have this format. By default, at least half of
    /// its lines must be records; binary formats implement it themselves.
    fn recognizes(&self, head: &Head<'_>) -> bool {
        let Framing::Lines { .. } = self.framing() else { return false };
        let mut parser = self.parser(&Options::default());
        let (mut good, mut bad, mut out) = (0u32, 0u32, Vec::new());
        for line in head.lines().take(256) {
            match parser.parse(line, &mut out) {
                Ok(()) if !out.is_empty() => good += 1,
                Ok(()) => {}
                Err(_) => bad += 1,
            }
            out.clear();
        }
        good > 0 && good >= bad
    }
}

pub fn by_name(name: &str) -> Result<&'static dyn Importer> {
    IMPORTERS.iter().copied().find(|importer| importer.name() == name).ok_or_else(|| {
        Error::input(
            "--format",
            format!("no trace format is called `{name}`"),
            format!("choose one of {}", names(IMPORTERS)),
        )
    })
}

fn names(importers: &[&dyn Importer]) -> String {
    importers.iter().map(|importer| importer.name()).collect::<Vec<_>>().join(", ")
}

/// The beginning of `input`, which must not be empty or of a known unsupported kind of file.
fn checked_head<'a>(input: &'a mut Input<'_>) -> Result<Head<'a>> {
    let place = input.place().to_owned();
    let head = input.head()?;
    if head.bytes.is_empty() {
        return Err(Error::input(place, "empty: no records", "check how the file was made"));
    }
    match input::unsupported(head.bytes) {
        Some(what) => Err(Error::input(place, what, "unpack or convert it first")),
        None => Ok(head),
    }
}

/// Detect the format of `input` from its beginning.
///
/// # Errors
/// No format matches, or several do.
pub fn detect(input: &mut Input<'_>) -> Result<&'static dyn Importer> {
    let place = input.place().to_owned();
    let head = checked_head(input)?;
    let matches: Vec<_> =
        IMPORTERS.iter().copied().filter(|importer| importer.recognizes(&head)).collect();
    match matches[..] {
        [importer] => Ok(importer),
        [] => Err(Error::input(
            place,
            "its format cannot be detected from its first records",
            format!("name it with --format: {}", names(IMPORTERS)),
        )),
        _ => Err(Error::input(
            place,
            format!("its first records could be any of {}", names(&matches)),
            "name the right one with --format",
        )),
    }
}

/// The outcome of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub records: u64,
    pub skipped: u64,
    /// Process number of each thread index (0: unknown). May be shorter than the list of threads.
    pub processes: Vec<u32>,
}

/// Skips and counts bad records, up to the number allowed.
struct BadRecords<'a> {
    place: &'a str,
    importer: &'a dyn Importer,
    compressed: bool,
    allowed: u64,
    skipped: u64,
}

impl BadRecords<'_> {
    /// Count the bad frame `number`, which begins at byte `offset`.
    fn bad(&mut self, number: u64, offset: u64, what: &str) -> Result<()> {
        if self.skipped < self.allowed {
            self.skipped += 1;
            return Ok(());
        }
        let unit = match self.importer.framing() {
            Framing::Lines { .. } => "line",
            Framing::Fixed(_) => "record",
        };
        let stream = if self.compressed { " of the decompressed stream" } else { "" };
        let fix = match self.allowed {
            0 => "fix the file, or skip up to N bad records with --skip-bad N".to_owned(),
            n => format!("--skip-bad {n} is used up: fix the file or allow more"),
        };
        Err(Error::input(
            format!("{}: {unit} {number}, byte {offset}{stream}", self.place),
            format!("bad {} record: {what}", self.importer.name()),
            fix,
        ))
    }
}

/// Read `input` as `importer`'s format and pass every reference to `sink`, in order, up to
/// `options.max_refs`. Memory use does not depend on the length of the stream.
///
/// # Errors
/// `sink` fails, there are more bad records than `options.skip_bad`, the compressed stream is
/// damaged, or there are no references.
pub fn read(
    importer: &dyn Importer,
    input: &mut Input<'_>,
    options: &Options,
    sink: &mut dyn FnMut(Record) -> Result<()>,
) -> Result<Summary> {
    if options.object_bytes.is_some() && !importer.has_object_ids() {
        return Err(Error::input(
            "--object-bytes",
            format!("{} holds addresses, not object ids", importer.name()),
            "leave the option out",
        ));
    }
    let mut parser = importer.parser(options);
    let framing = importer.framing();
    let lines = matches!(framing, Framing::Lines { .. });
    let place = input.place().to_owned();
    checked_head(input)?;
    let mut bad_records = BadRecords {
        place: &place,
        importer,
        compressed: input.is_compressed(),
        allowed: options.skip_bad,
        skipped: 0,
    };
    let limit = options.max_refs.unwrap_or(u64::MAX);
    let mut records = 0u64;
    let mut number = 0u64;
    let mut out: Vec<Record> = Vec::with_capacity(8);
    while records < limit {
        let (offset, frame) = input.frame(framing)?;
        number += 1;
        match frame {
            Frame::End => break,
            Frame::Whole(bytes) if lines && input::blank(bytes) => {}
            Frame::Whole(bytes) => {
                out.clear();
                let parsed = parser.parse(bytes, &mut out).and_then(|()| check(&out));
                if let Err(bad) = parsed {
                    let what = match framing {
                        Framing::Lines { .. } => format!("{} in `{}`", bad.0, text::excerpt(bytes)),
                        Framing::Fixed(_) => bad.0.into_owned(),
                    };
                    bad_records.bad(number, offset, &what)?;
                    continue;
                }
                for &record in &out {
                    if records == limit {
                        break;
                    }
                    sink(record)?;
                    records += 1;
                }
            }
            Frame::CutShort(have) => {
                let what = match framing {
                    Framing::Fixed(size) => format!("cut short: {have} of its {size} bytes"),
                    Framing::Lines { .. } => "cut short: the last line has no newline".to_owned(),
                };
                bad_records.bad(number, offset, &what)?;
                break;
            }
            Frame::TooLong => {
                let what = format!("the line is longer than {MAX_LINE} bytes");
                bad_records.bad(number, offset, &what)?;
                input.skip_line()?;
            }
        }
    }
    let skipped = bad_records.skipped;
    if records == 0 {
        return Err(Error::input(
            place,
            format!("no records ({} bad ones skipped)", skipped),
            format!("check that it is a {} trace", importer.name()),
        ));
    }
    Ok(Summary { records, skipped, processes: parser.processes() })
}

/// Reject impossible references of any format.
fn check(records: &[Record]) -> Result<(), Bad> {
    for record in records {
        if record.size == 0 {
            return Err("a size of 0 bytes is not a reference".into());
        }
        if record.addr.checked_add(u64::from(record.size) - 1).is_none() {
            return Err(Bad(Cow::Owned(format!(
                "{} bytes at {:#x} run past the end of the address space",
                record.size, record.addr
            ))));
        }
    }
    Ok(())
}

/// Import the file or folder `from` (`-`: standard input) into a new trace folder `to`.
///
/// Without `format`, the format is detected. `on_progress` is called about every million references
/// with the number so far; an error stops the import. If the import fails, nothing is left at `to`.
pub fn import(
    from: &Path,
    to: &Path,
    format: Option<&str>,
    overwrite: bool,
    options: &Options,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Info> {
    let importer = format.map(by_name).transpose()?;
    if let Some(importer) = importer.filter(|i| from.is_dir() && !i.takes_folders()) {
        let what = format!("is a folder, and {} is a single file", importer.name());
        let fix = "give the file that the other tool wrote (a nearfar trace needs no import)";
        return Err(Error::input(from.display().to_string(), what, fix));
    }
    let mut input = Input::open(from)?;
    let importer = match importer {
        Some(importer) => importer,
        None => detect(&mut input)?,
    };
    let source = Source {
        kind: "import".to_owned(),
        detail: importer.name().to_owned(),
        command: vec![from.display().to_string()],
        sampled: importer.sampled(),
        ..Source::default()
    };
    let inputs = vec![from.to_owned()];
    let writer_options = WriterOptions { overwrite, inputs, ..WriterOptions::default() };
    let mut writer = Writer::create(to, source, writer_options)?;
    let mut batch = Batch::default();
    let mut done = 0u64;
    let summary = read(importer, &mut input, options, &mut |record| {
        batch.push(record);
        if batch.len() == BATCH {
            writer.push_batch(&batch)?;
            batch.clear();
            done += BATCH as u64;
            if done.is_multiple_of(1 << 20) {
                on_progress(done)?;
            }
        }
        Ok(())
    })?;
    writer.push_batch(&batch)?;
    for (thread, &process) in summary.processes.iter().enumerate() {
        if process != 0 {
            writer.thread_process(thread as u32, process);
        }
    }
    writer.change_source(|source| source.skipped_records = summary.skipped);
    writer.finish(None)
}

/// References passed to the writer at a time.
const BATCH: usize = 1 << 16;

/// Parse `bytes` as `importer`'s format, with and without `skip_bad`, and check that the results
/// are valid references. For the fuzz target and the replay of its corpus.
pub fn exercise(importer: &dyn Importer, bytes: &[u8]) {
    for skip_bad in [0, 3] {
        let options = Options { skip_bad, max_refs: Some(1 << 16), object_bytes: None };
        let Ok(mut input) = Input::new("fuzz", Box::new(bytes)) else { return };
        let mut records = 0u64;
        let summary = read(importer, &mut input, &options, &mut |record| {
            assert!(
                record.size > 0 && record.addr.checked_add(u64::from(record.size) - 1).is_some()
            );
            records += 1;
            Ok(())
        });
        if let Ok(summary) = summary {
            assert_eq!(summary.records, records);
            assert!(records > 0 && summary.skipped <= skip_bad);
        }
    }
}

/// Decompress `bytes`, detect their format and parse them. For the fuzz target and the replay of
/// its corpus.
pub fn exercise_detection(bytes: &[u8]) {
    let Ok(mut input) = Input::new("fuzz", Box::new(bytes)) else { return };
    let Ok(importer) = detect(&mut input) else { return };
    let options = Options { max_refs: Some(1 << 16), ..Options::default() };
    let _ = read(importer, &mut input, &options, &mut |_| Ok(()));
}

#[cfg(test)]
mod tests;
