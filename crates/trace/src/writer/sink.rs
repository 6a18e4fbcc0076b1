//! The files of a trace that is being written.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::sync::Arc;

use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;

use crate::checksum::ChecksumWriter;
use crate::column::{EncodedGroup, ROW_GROUP, schema, system_error};
use crate::error::{Error, Result, remedy};
use crate::folder::{self, TemporaryFile};
use crate::footprint::Footprint;
use crate::info::{Info, PartInfo, ThreadInfo};
use crate::output::Output;
use crate::record::Kind;
use crate::region::{self, RegionEvent};

pub(super) type Encoded = std::result::Result<EncodedGroup, ParquetError>;

/// A trace's folder, with the part (Parquet file of records) that is being written.
pub(super) struct Sink {
    /// The claim on the folder's final name.
    pub(super) output: Output,
    /// The folder's current path: temporary or final.
    pub(super) dir: PathBuf,
    /// As [`super::WriterOptions::in_place`].
    pub(super) in_place: bool,
    pub(super) part_records: usize,
    pub(super) info: Info,
    pub(super) footprint: Footprint,
    pub(super) regions: Vec<RegionEvent>,
    pub(super) part: Option<OpenPart>,
    /// The trace that this one replaced, kept until a part of this one is complete.
    pub(super) replaced: Option<PathBuf>,
    /// The next [`Self::store`] is the last one.
    pub(super) final_store: bool,
    pub(super) finished: bool,
    /// The trace is to be removed, even if it is written in place.
    pub(super) discarded: bool,
}

/// A part that is being written. If dropped before it is renamed, it is removed.
pub(super) struct OpenPart {
    writer: SerializedFileWriter<BufWriter<ChecksumWriter<File>>>,
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

    pub(super) fn write_error(&self, error: ParquetError) -> Error {
        let text = error.to_string();
        let fix =
            system_error(&error).map_or("check the disk, or choose another place with -o", remedy);
        match folder::hidden_sibling(&self.part_path(), "partial") {
            Ok(at) => Error::input(at.display().to_string(), format!("cannot write: {text}"), fix),
            Err(error) => error,
        }
    }

    pub(super) fn append(&mut self, encoded: Encoded) -> Result<()> {
        let group = encoded.map_err(|e| self.write_error(e))?;
        if self.part.is_none() {
            let temporary = TemporaryFile::new(self.part_path())?;
            let file = File::create(&temporary.path)
                .map_err(|e| Error::io(&temporary.path, "cannot create", &e))?;
            let properties = WriterProperties::builder()
                .set_created_by(format!("nearfar {}", env!("CARGO_PKG_VERSION")))
                .build();
            // The Parquet crate writes a few kilobytes at a time.
            let file = BufWriter::with_capacity(1 << 18, ChecksumWriter::new(file));
            let writer = SerializedFileWriter::new(file, schema().0, Arc::new(properties))
                .map_err(|e| self.write_error(e))?;
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
            let is_full = groups * ROW_GROUP >= self.part_records;
            // Not earlier: `write_error` borrows `self`, which `part` has borrowed until here.
            appended.map_err(|e| self.write_error(e))?;
            if is_full {
                self.close_part()?;
            }
        }
        Ok(())
    }

    pub(super) fn thread(&mut self, index: u32) -> &mut ThreadInfo {
        let threads = &mut self.info.threads;
        let position = threads.binary_search_by_key(&index, |thread| thread.index);
        let position = position.unwrap_or_else(|position| {
            threads.insert(position, ThreadInfo { index, ..ThreadInfo::default() });
            position
        });
        &mut threads[position]
    }

    /// Finish the part. It is complete under its final name before `trace.json` lists it.
    /// Everything that takes time or space is done before the renames, so that a kill or a full
    /// disk rarely separates them.
    pub(super) fn close_part(&mut self) -> Result<()> {
        let Some(OpenPart { writer, records, file: temporary }) = self.part.take() else {
            return Ok(());
        };
        let name = self.part_name();
        let buffered = writer.into_inner().map_err(|e| self.write_error(e))?;
        let file = buffered
            .into_inner()
            .map_err(|e| Error::io(&temporary.path, "cannot write", &e.into_error()))?;
        let (checksum, bytes) = file.sum();
        self.info.records += records as u64;
        let checksum = Some(checksum);
        let records = records as u64;
        self.info.parts.push(PartInfo { file: name, records, bytes, checksum });
        let (regions, trace_json) = self.prepare()?;
        regions.commit()?;
        temporary.commit()?;
        trace_json.commit()?;
        self.remove_replaced()
    }

    /// Rename the incomplete trace to its final path.
    pub(super) fn rename_early(&mut self) -> Result<()> {
        self.replaced = self.output.rename_early()?;
        self.dir = self.output.path().to_owned();
        Ok(())
    }

    pub(super) fn remove_replaced(&mut self) -> Result<()> {
        self.replaced.take().map_or(Ok(()), |old| folder::remove(&old))
    }

    /// Write the table of events and `trace.json`.
    pub(super) fn store(&mut self) -> Result<()> {
        let (regions, trace_json) = self.prepare()?;
        if self.final_store {
            // A trace marked complete must survive a power failure.
            let parts = self.info.parts.iter().map(|part| self.dir.join(&part.file));
            let files = parts.chain([regions.path.clone(), trace_json.path.clone()]);
            files.into_iter().try_for_each(|file| folder::flush(&file))?;
        }
        regions.commit()?;
        trace_json.commit()?;
        if self.final_store { folder::flush(&self.dir) } else { Ok(()) }
    }

    /// Write the table of events and `trace.json` to temporary files, to be renamed in this order.
    fn prepare(&mut self) -> Result<(TemporaryFile, TemporaryFile)> {
        self.info.pages_by_kinds = self.footprint.by_kinds();
        let (regions, written) = region::prepare(&self.dir, &self.regions)?;
        // Two files cannot be renamed atomically. The table gets a checksum only when it is final,
        // so that a killed writer never leaves a wrong one.
        self.info.regions = self.final_store.then_some(written);
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
