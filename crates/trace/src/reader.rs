//! Reads a trace folder as a stream of batches.

use std::path::{Path, PathBuf};

use crate::column::{GroupReader, Part, open_part};
use crate::error::{Error, Result};
use crate::info::Info;
use crate::record::Batch;
use crate::region::{self, RegionEvent};

/// Which columns to decode. The others stay empty in the [`Batch`]. `addr` is always decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    pub kind: bool,
    pub size: bool,
    pub thread: bool,
    pub instr: bool,
}

impl Columns {
    pub const ALL: Columns = Columns { kind: true, size: true, thread: true, instr: true };
    /// The columns that page studies need.
    pub const PAGING: Columns = Columns { kind: true, size: true, thread: false, instr: false };
}

#[derive(Clone, Debug)]
pub struct Reader {
    dir: PathBuf,
    info: Info,
}

impl Reader {
    /// Open the trace folder `dir`, which must hold every reference.
    ///
    /// # Errors
    /// As [`Reader::open_sample`], or the trace holds a sample of pages.
    pub fn open(dir: &Path) -> Result<Self> {
        let reader = Self::open_sample(dir)?;
        match &reader.info.source.sample {
            None => Ok(reader),
            Some(sample) => Err(Error::input(
                dir.display().to_string(),
                format!(
                    "holds {} of the pages, but this command needs every reference",
                    sample.share()
                ),
                "capture without --sample; `nearfar paging` and `nearfar size` read samples",
            )),
        }
    }

    /// Open a trace folder that may hold a sample of pages ([`crate::sample`]). Checks `trace.json`
    /// and the footers of the parts (Parquet files), but reads no records.
    ///
    /// # Errors
    /// It is not a trace, is damaged or contradicts itself, or a file is missing.
    pub fn open_sample(dir: &Path) -> Result<Self> {
        let info = Info::load(dir)?;
        let regions = info.regions.iter().map(|_| region::FILE);
        for file in info.parts.iter().map(|part| part.file.as_str()).chain(regions) {
            let path = dir.join(file);
            if !path.is_file() {
                return Err(Error::input(
                    path.display().to_string(),
                    "listed in trace.json but missing",
                    "capture or import the trace again",
                ));
            }
        }
        for part in &info.parts {
            open_checked(&dir.join(&part.file), part.records)?;
        }
        Ok(Self { dir: dir.to_owned(), info })
    }

    pub fn info(&self) -> &Info {
        &self.info
    }

    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Events of address spaces (`mmap`, `fork`, ...), from the table `regions.parquet`.
    ///
    /// # Errors
    /// The table cannot be read, is damaged, or lacks the events that `trace.json` counts.
    pub fn regions(&self) -> Result<Vec<RegionEvent>> {
        region::load(&self.dir, self.info.regions.as_ref().map(|listed| listed.events))
    }

    /// Stream the whole trace: call [`Batches::next_into`] until it returns false. At most one row
    /// group is in memory at a time.
    pub fn batches(&self, columns: Columns) -> Batches {
        Batches { groups: self.groups(columns), group: None }
    }

    /// The row groups of the whole trace: call [`Groups::next`] until it returns `None`.
    pub fn groups(&self, columns: Columns) -> Groups {
        let parts: Vec<_> =
            self.info.parts.iter().map(|p| (self.dir.join(&p.file), p.records)).collect();
        Groups { parts: parts.into_iter(), columns, part: None, next: 0 }
    }
}

/// Open a part and check that it has `records` records, as in `trace.json`.
fn open_checked(path: &Path, records: u64) -> Result<Part> {
    let part = open_part(path)?;
    if part.records() != records {
        return Err(Error::input(
            path.display().to_string(),
            format!("has {} records, but {records} in trace.json", part.records()),
            "capture or import the trace again",
        ));
    }
    Ok(part)
}

/// The row groups of a trace, in order.
pub struct Groups {
    parts: std::vec::IntoIter<(PathBuf, u64)>,
    columns: Columns,
    part: Option<Part>,
    next: usize,
}

impl Groups {
    /// The next row group, decompressed. Its records are expanded on demand.
    ///
    /// # Errors
    /// A part cannot be read, is damaged, or does not have the number of records in `trace.json`.
    #[expect(clippy::should_implement_trait, reason = "the end is Ok(None), not None")]
    pub fn next(&mut self) -> Result<Option<GroupReader>> {
        loop {
            match &self.part {
                Some(part) if self.next < part.groups() => {
                    self.next += 1;
                    return part.group(self.next - 1, self.columns).map(Some);
                }
                _ => {
                    let Some((path, records)) = self.parts.next() else { return Ok(None) };
                    self.part = Some(open_checked(&path, records)?);
                    self.next = 0;
                }
            }
        }
    }
}

/// A stream of batches of at most [`Batches::MAX`] records.
pub struct Batches {
    groups: Groups,
    group: Option<GroupReader>,
}

impl Batches {
    /// Maximum records in a batch: its columns fit a core's private cache.
    pub const MAX: usize = 1 << 14;

    /// Replace the contents of `batch` by the next records. Returns false at the end of the trace.
    pub fn next_into(&mut self, batch: &mut Batch) -> Result<bool> {
        batch.clear();
        loop {
            if let Some(group) = &mut self.group {
                if group.next_into(Self::MAX, batch)? {
                    return Ok(true);
                }
                self.group = None;
            }
            self.group = self.groups.next()?;
            if self.group.is_none() {
                return Ok(false);
            }
        }
    }
}
