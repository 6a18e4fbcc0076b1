//! Exporters: write traces in the formats of other tools.
//!
//! A format is one file with an [`Exporter`] and one line in [`EXPORTERS`], from which the table in
//! `docs/formats.md` is generated; the table says what each format loses. The output is written to
//! a temporary file and renamed, so that a failed export leaves no file.

use std::fs::File;
use std::io::{self, BufWriter};
use std::os::fd::AsFd;
use std::path::Path;

use nearfar_schema::{Bytes, Choice, Count, Entry, List, Registry, none, required};

use crate::error::{Error, Result};
use crate::output::{Form, Output, OutputRequest};
use crate::reader::{Columns, Reader};
use crate::record::{Batch, KindSet, Kinds, Record};

pub mod csv;
pub mod dinero;
pub mod oracle_general;

/// All formats that can be exported.
pub static EXPORTERS: &[&dyn Exporter] =
    &[&oracle_general::OracleGeneral, &dinero::Dinero, &csv::Csv];

/// The registry of export formats, for options.
pub struct Exporters;

impl Registry for Exporters {
    const NAME: &'static str = "export_format";
    const KIND: &'static str = "export format";
    const METAVAR: &'static str = "NAME";
    fn entries() -> Vec<Entry> {
        let entry = |exporter: &&dyn Exporter| Entry {
            name: exporter.name(),
            what: format!("{}; loses {}", exporter.summary(), exporter.loses()),
        };
        EXPORTERS.iter().map(entry).collect()
    }
}

nearfar_schema::options! {
    /// The options of `nearfar export`, as given.
    pub struct Request {
        /// Format of the file.
        format: Choice<Exporters> = required(),
        /// Kinds of references to export.
        kinds: Option<List<Choice<Kinds>>> = none("all"),
        /// Stop after this many references.
        max_refs: Option<Count<1>> = none("all"),
        /// Bytes of a page, a power of two (oracle-general).
        page_bytes: Option<Bytes> = none("4096"),
    }
}

impl From<&Request> for Options {
    fn from(request: &Request) -> Self {
        Self {
            kinds: request.kinds.as_ref().map_or(KindSet::ALL, |kinds| KindSet::of(&kinds.0)),
            max_refs: request.max_refs.map(|count| count.0),
            page_bytes: request.page_bytes.map(|bytes| bytes.0),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Options {
    pub kinds: KindSet,
    /// Stop after this many references of `kinds`.
    pub max_refs: Option<u64>,
    /// Bytes in a page, a power of two, for formats that contain page numbers. Default 4096.
    pub page_bytes: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self { kinds: KindSet::ALL, max_refs: None, page_bytes: None }
    }
}

/// A writer with a buffer for exporters of text.
fn buffered(file: File) -> BufWriter<File> {
    BufWriter::with_capacity(1 << 18, file)
}

/// A format of another tool.
pub trait Exporter: Sync {
    /// Name on the command line; the importer of the same format has the same name.
    fn name(&self) -> &'static str;
    /// What it is, for help and docs.
    fn summary(&self) -> &'static str;
    /// The parts of a record that it cannot represent, for help and docs.
    fn loses(&self) -> &'static str;
    /// Whether the format contains page numbers; if not, [`Options::page_bytes`] is refused.
    fn has_page_numbers(&self) -> bool {
        false
    }
    /// Whether it writes at any offset, and so cannot write to standard output.
    fn needs_file(&self) -> bool {
        false
    }
    /// Begin an export. `page_bytes`: a power of two, for formats that contain page numbers.
    fn encoder(&self, file: File, page_bytes: u64) -> io::Result<Box<dyn Encoder>>;
}

/// A running export.
pub trait Encoder {
    fn put(&mut self, record: Record) -> io::Result<()>;
    /// Write what is buffered.
    fn finish(self: Box<Self>) -> io::Result<()>;
}

pub fn by_name(name: &str) -> Result<&'static dyn Exporter> {
    EXPORTERS.iter().copied().find(|exporter| exporter.name() == name).ok_or_else(|| {
        let names: Vec<_> = EXPORTERS.iter().map(|exporter| exporter.name()).collect();
        Error::input(
            "--format",
            format!("no export format is called `{name}`"),
            format!("choose one of {}", names.join(", ")),
        )
    })
}

/// Export the trace folder `from` to the file `to` (`-`: standard output) in the format `name`.
/// Returns the number of references exported.
///
/// `on_progress` is called about every million references with the number so far; an error stops
/// the export.
///
/// # Errors
/// Bad options, no references of the selected kinds, or a read or write error.
pub fn export(
    from: &Path,
    to: &Path,
    name: &str,
    overwrite: bool,
    options: &Options,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<u64> {
    let exporter = by_name(name)?;
    match options.page_bytes {
        Some(_) if !exporter.has_page_numbers() => {
            return Err(Error::input(
                "--page-bytes",
                format!("{name} holds addresses, not page numbers"),
                "leave the option out",
            ));
        }
        Some(bytes) if !bytes.is_power_of_two() || bytes > 1 << 31 => {
            return Err(Error::input(
                "--page-bytes",
                format!("{bytes} is not a power of two up to 2^31"),
                "give for instance 4096",
            ));
        }
        _ => {}
    }
    let reader = Reader::open(from)?;
    let stdout = to == Path::new("-");
    if stdout && exporter.needs_file() {
        return Err(Error::input(
            "standard output",
            format!("{name} needs a file that allows writes at any offset"),
            "name a file with -o",
        ));
    }
    let (file, output) = if stdout {
        // Rust's `Stdout` ignores writes to a closed descriptor.
        let stream = io::stdout().as_fd().try_clone_to_owned();
        let stream =
            stream.map_err(|e| Error::io(Path::new("standard output"), "cannot open", &e))?;
        (File::from(stream), None)
    } else {
        let inputs = [from.to_owned()];
        let output = Output::claim(&OutputRequest {
            path: to,
            form: Form::File,
            force: overwrite,
            inputs: &inputs,
        })?;
        let file = File::create(output.temporary())
            .map_err(|e| Error::io(output.temporary(), "cannot create", &e))?;
        (file, Some(output))
    };
    let place = if stdout { Path::new("standard output") } else { to };
    let failed = |e: io::Error| Error::io(place, "cannot write", &e);
    let page_bytes = options.page_bytes.unwrap_or(4096);
    let mut encoder = exporter.encoder(file, page_bytes).map_err(failed)?;
    let limit = options.max_refs.unwrap_or(u64::MAX);
    let mut count = 0u64;
    let mut batches = reader.batches(Columns::ALL);
    let mut batch = Batch::default();
    'all: while batches.next_into(&mut batch)? {
        for record in batch.iter().filter(|record| options.kinds.contains(record.kind)) {
            if count == limit {
                break 'all;
            }
            match encoder.put(record) {
                // The reader of standard output has closed it (`| head`).
                Err(e) if stdout && e.kind() == io::ErrorKind::BrokenPipe => return Ok(count),
                result => result.map_err(failed)?,
            }
            count += 1;
            if count.is_multiple_of(1 << 20) {
                on_progress(count)?;
            }
        }
    }
    if count == 0 {
        return Err(Error::input(
            from.display().to_string(),
            format!("no references of the kinds {}", options.kinds.label()),
            "choose other --kinds",
        ));
    }
    match encoder.finish() {
        Err(e) if stdout && e.kind() == io::ErrorKind::BrokenPipe => return Ok(count),
        result => result.map_err(failed)?,
    }
    if let Some(mut output) = output {
        output.commit()?;
    }
    Ok(count)
}

#[cfg(test)]
mod tests;
