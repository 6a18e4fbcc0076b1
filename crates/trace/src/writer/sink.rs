//! What has been written of a trace: everything but the encoding.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::sync::Arc;

use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;

use crate::checksum::Summed;
use crate::column::{EncodedGroup, ROW_GROUP, schema, system_error};
use crate::error::{Error, Result, remedy};
use crate::folder::{self, TemporaryFile};
use crate::footprint::Footprint;
use crate::info::{Info, PartInfo, ThreadInfo};
use crate::output::Output;
use crate::record::Kind;
use crate::region::{self, RegionEvent};

pub(super) type Encoded = std::result::Result<EncodedGroup, ParquetError>;

/// A trace's folder, with the part that is open.
pub(super) struct Sink {
    /// Where it goes.
    pub(super) output: Output,
    /// Where it is now.
    pub(super) dir: PathBuf,
    pub(super) in_place: bool,
    pub(super) part_records: usize,
    pub(super) info: Info,
    pub(super) footprint: Footprint,
    pub(super) regions: Vec<RegionEvent>,
    pub(super) part: Option<OpenPart>,
    /// The trace that was at `path`, kept until there is something of this one to keep.
    pub(super) replaced: Option<PathBuf>,
    /// Everything is written; only `trace.json` and the events are still to be stored.
    pub(super) last: bool,
    pub(super) finished: bool,
    /// Nothing of it is to stay, in place or not.
    pub(super) discarded: bool,
}

/// A part that is being written; dropped before it has its name, it is removed.
pub(super) struct OpenPart {
    writer: SerializedFileWriter<BufWriter<Summed<File>>>,
    records: usize,
    file: TemporaryFile,
}

impl Sink {
    fn part_name(&self) -> String {
        format!("part-{:05}.parquet", self.info.parts.len())
    }

    fn part_path(&self) -> PathBuf {
        self.dir.join(self.part_name())
    }

    pub(super) fn failed(&self, error: ParquetError) -> Error {
        let text = error.to_string();
        let fix =
            system_error(&error).map_or("check the disk, or choose another place with -o", remedy);
        match folder::beside(&self.part_path(), "partial") {
            Ok(at) => Error::input(at.display().to_string(), format!("cannot write: {text}"), fix),
            Err(error) => error,
        }
    }

    pub(super) fn append(&mut self, encoded: Encoded) -> Result<()> {
        let group = encoded.map_err(|e| self.failed(e))?;
        if self.part.is_none() {
            let temporary = TemporaryFile::new(self.part_path())?;
            let file = File::create(&temporary.path)
                .map_err(|e| Error::io(&temporary.path, "cannot create", &e))?;
            let properties = WriterProperties::builder()
                .set_created_by(format!("nearfar {}", env!("CARGO_PKG_VERSION")))
                .build();
            // The Parquet crate writes a few kilobytes at a time, too few for a system call each.
            let file = BufWriter::with_capacity(1 << 18, Summed::new(file));
            let writer = SerializedFileWriter::new(file, schema().0, Arc::new(properties))
                .map_err(|e| self.failed(e))?;
            self.part = Some(OpenPart { writer, records: 0, file: temporary });
        }
        let records = group.records;
        for (page, kinds) in &group.pages {
            self.footprint.touch(*page, *kinds);
        }
        for (kind, count) in Kind::ALL.into_iter().zip(group.by_kind) {
            if count > 0 {
                *self.info.records_by_kind.entry(kind).or_default() += count;
            }
        }
        for (thread, records, instructions) in &group.threads {
            let info = self.thread(*thread);
            info.records += records;
            info.instructions += instructions;
            self.info.instructions += instructions;
        }
        if let Some(part) = &mut self.part {
            let appended = group.append_to(&mut part.writer);
            part.records += records;
            let groups = part.writer.flushed_row_groups().len();
            let whole = groups * ROW_GROUP >= self.part_records;
            appended.map_err(|e| self.failed(e))?;
            if whole {
                self.close_part()?;
            }
        }
        Ok(())
    }

    pub(super) fn thread(&mut self, index: u32) -> &mut ThreadInfo {
        let threads = &mut self.info.threads;
        let place = match threads.binary_search_by_key(&index, |thread| thread.index) {
            Ok(place) => place,
            Err(place) => {
                threads.insert(place, ThreadInfo { index, ..ThreadInfo::default() });
                place
            }
        };
        &mut threads[place]
    }

    /// Finish the part: it is whole on disk under its own name before `trace.json` lists it. All
    /// that takes time or space comes before the two names, so that a kill or a full disk leaves
    /// either both or neither.
    pub(super) fn close_part(&mut self) -> Result<()> {
        let Some(OpenPart { writer, records, file: temporary }) = self.part.take() else {
            return Ok(());
        };
        let name = self.part_name();
        let buffered = writer.into_inner().map_err(|e| self.failed(e))?;
        let file = buffered
            .into_inner()
            .map_err(|e| Error::io(&temporary.path, "cannot write", &e.into_error()))?;
        let (checksum, bytes) = file.sum();
        self.info.records += records as u64;
        let checksum = Some(checksum);
        let records = records as u64;
        self.info.parts.push(PartInfo { file: name, records, bytes, checksum });
        let (regions, listed) = self.prepare()?;
        regions.commit()?;
        temporary.commit()?;
        listed.commit()?;
        self.forget_replaced()
    }

    /// From here on the trace is at its own path, not yet complete.
    pub(super) fn take_place(&mut self) -> Result<()> {
        self.replaced = self.output.take_place()?;
        self.dir = self.output.path().to_owned();
        Ok(())
    }

    pub(super) fn forget_replaced(&mut self) -> Result<()> {
        self.replaced.take().map_or(Ok(()), |old| folder::remove(&old))
    }

    pub(super) fn store(&mut self) -> Result<()> {
        let (regions, listed) = self.prepare()?;
        if self.last {
            // What is called complete is so after a power cut, too.
            let parts = self.info.parts.iter().map(|part| self.dir.join(&part.file));
            let files = parts.chain([regions.path.clone(), listed.path.clone()]);
            files.into_iter().try_for_each(|file| folder::flush(&file))?;
        }
        regions.commit()?;
        listed.commit()?;
        if self.last { folder::flush(&self.dir) } else { Ok(()) }
    }

    /// Write the table of events and `trace.json`, to be given their names in this order.
    fn prepare(&mut self) -> Result<(TemporaryFile, TemporaryFile)> {
        self.info.pages_by_kinds = self.footprint.by_kinds();
        let (regions, written) = region::prepare(&self.dir, &self.regions)?;
        // Two files cannot get their names at once: until its last version is there, the table has
        // no checksum, and whatever kills the writer, none that is wrong.
        self.info.regions = self.last.then_some(written);
        Ok((regions, self.info.prepare(&self.dir)?))
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        self.part = None;
        if let Some(old) = self.replaced.take() {
            let _ = folder::replace(&old, self.output.path());
        } else if self.in_place && self.discarded {
            let _ = folder::remove(&self.dir);
        }
    }
}
