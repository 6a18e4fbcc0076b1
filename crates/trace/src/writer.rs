//! Writes a trace folder, part by part.

mod pool;
mod sink;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::clock::Clock;
use crate::column::Group;
use crate::error::Result;
use crate::footprint::Footprint;
use crate::info::{self, Info, Source};
use crate::output::{Form, Output, OutputRequest, TRACE};
use crate::record::{Batch, NarrowBatch, Record};
use crate::region::{RegionEvent, RegionKind};

use pool::Pool;
use sink::Sink;

#[derive(Clone, Debug)]
pub struct WriterOptions {
    pub overwrite: bool,
    /// Files and folders that are never replaced, because they are being read.
    pub inputs: Vec<PathBuf>,
    /// Write at the final path from the start, marked incomplete until [`Writer::finish`], so that
    /// a killed capture keeps its finished parts. Otherwise write a temporary folder and rename it.
    pub in_place: bool,
    /// Maximum records in a part, rounded up to whole row groups (which may be short).
    pub part_records: usize,
    /// Whether events determine page lifetimes, as in a capture; if not, the trace gets schema 1.
    pub lifetimes: bool,
    /// Threads that encode and write row groups. The caller's thread helps when they fall behind,
    /// and does everything if there are none.
    pub threads: usize,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self {
            overwrite: false,
            inputs: Vec::new(),
            in_place: false,
            part_records: 4 << 20,
            lifetimes: true,
            threads: 0,
        }
    }
}

/// Maximum records in [`Writer::single`].
const SINGLE: usize = 1 << 12;

/// Writes one trace. Dropping it without [`finish`](Writer::finish) leaves nothing behind or, if in
/// place, a trace marked incomplete. A trace that it replaces is kept until a part of this one is
/// complete.
pub struct Writer {
    pool: Pool,
    group: Group,
    /// Buffered records of [`Self::push`].
    single: Batch,
    appended: u64,
}

impl Writer {
    /// Begin a trace at `path`, which must not exist unless `overwrite` is set.
    pub fn create(path: &Path, source: Source, options: WriterOptions) -> Result<Self> {
        let output = Output::claim(&OutputRequest {
            path,
            form: Form::Folder(TRACE.to_owned()),
            force: options.overwrite,
            inputs: &options.inputs,
        })?;
        let mut sink = Sink {
            dir: output.temporary().to_owned(),
            output,
            in_place: options.in_place,
            part_records: options.part_records.max(1),
            info: Info { schema: info::schema(options.lifetimes), ..Info::new(source) },
            footprint: Footprint::default(),
            regions: Vec::new(),
            part: None,
            replaced: None,
            final_store: false,
            finished: false,
            discarded: false,
        };
        if options.in_place {
            sink.store()?;
            sink.rename_early()?;
        }
        let pool = Pool::new(options.threads, sink)?;
        Ok(Self { pool, group: Group::default(), single: Batch::default(), appended: 0 })
    }

    pub fn push(&mut self, record: Record) -> Result<()> {
        self.single.push(record);
        self.appended += 1;
        if self.single.len() == SINGLE { self.gather_single() } else { Ok(()) }
    }

    pub fn push_batch(&mut self, batch: &Batch) -> Result<()> {
        self.gather_single()?;
        self.appended += batch.len() as u64;
        self.gather(batch.len(), |group, from| group.extend(batch, from))
    }

    pub fn push_narrow(&mut self, narrow: NarrowBatch<'_>) -> Result<()> {
        self.gather_single()?;
        self.appended += narrow.len() as u64;
        self.gather(narrow.len(), |group, from| group.extend_narrow(narrow, from))
    }

    fn gather_single(&mut self) -> Result<()> {
        let mut single = std::mem::take(&mut self.single);
        let gathered = self.gather(single.len(), |group, from| group.extend(&single, from));
        single.clear();
        self.single = single;
        gathered
    }

    /// Fill row groups with `records` records. `extend` appends the records from a given index on until
    /// the group is full, and returns the number appended.
    fn gather(
        &mut self,
        records: usize,
        extend: impl Fn(&mut Group, usize) -> usize,
    ) -> Result<()> {
        let mut from = 0;
        while from < records {
            from += extend(&mut self.group, from);
            if self.group.is_full() {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if self.group.is_empty() {
            return Ok(());
        }
        let group = std::mem::take(&mut self.group);
        self.pool.encode(group)?;
        self.group = self.pool.group();
        Ok(())
    }

    /// Add an event of an address space. Its `at` is raised to the number of records appended so
    /// far; a caller that buffers records sets it higher.
    pub fn region(&mut self, mut event: RegionEvent) -> Result<()> {
        event.at = event.at.max(self.appended);
        let sink = &mut self.pool.output().sink;
        sink.info.source.thp_disabled |= event.event == RegionKind::ThpDisable && event.to != 0;
        sink.regions.push(event);
        Ok(())
    }

    /// Records appended so far.
    pub fn records(&self) -> u64 {
        self.appended
    }

    /// Set the process that a thread index belongs to.
    pub fn thread_process(&mut self, thread: u32, process: u32) {
        self.pool.output().sink.thread(thread).process = process;
    }

    pub fn thread_name(&mut self, thread: u32, name: String) {
        self.pool.output().sink.thread(thread).name = name;
    }

    /// Add instructions that a thread executed after its last record.
    pub fn add_instructions(&mut self, thread: u32, instructions: u64) {
        let sink = &mut self.pool.output().sink;
        sink.thread(thread).instructions += instructions;
        sink.info.instructions += instructions;
    }

    /// Change the source in `trace.json` (skipped records, sampling).
    pub fn change_source(&mut self, change: impl FnOnce(&mut Source)) {
        change(&mut self.pool.output().sink.info.source);
    }

    /// Set the build ids of the mapped program files, by path.
    pub fn build_ids(&mut self, ids: BTreeMap<String, String>) {
        self.pool.output().sink.info.build_ids = ids;
    }

    /// Set the times of the records.
    pub fn clock(&mut self, clock: Clock) {
        self.pool.output().sink.info.clock = Some(clock);
    }

    /// End the trace. With `incomplete`, it is readable, but marked incomplete for this reason.
    pub fn finish(mut self, incomplete: Option<&str>) -> Result<Info> {
        self.gather_single()?;
        self.flush()?;
        self.pool.drain()?;
        let sink = &mut self.pool.output().sink;
        sink.close_part()?;
        sink.info.complete = incomplete.is_none();
        sink.info.incomplete_reason = incomplete.map(str::to_owned);
        sink.final_store = true;
        sink.store()?;
        if sink.in_place {
            sink.remove_replaced()?;
        } else {
            sink.output.commit()?;
        }
        sink.finished = true;
        Ok(sink.info.clone())
    }

    /// Remove this trace, and restore the one that it replaced, if any.
    pub fn discard(mut self) {
        self.pool.output().sink.discarded = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::column::ROW_GROUP;
    use crate::record::Kind;

    #[test]
    fn a_part_is_not_renamed_if_trace_json_cannot_be_written() {
        for threads in [0, 1, 2] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("a.trace");
            let options = WriterOptions {
                in_place: true,
                part_records: ROW_GROUP,
                threads,
                ..<_>::default()
            };
            let mut writer = Writer::create(&path, Source::default(), options).unwrap();
            let record = |at: usize| Record {
                addr: at as u64 * 64,
                kind: Kind::Load,
                size: 8,
                thread: 0,
                instr: 1,
            };
            (0..ROW_GROUP).for_each(|at| writer.push(record(at)).unwrap());
            // Wait for the encoding threads.
            while Info::load(&path).unwrap().parts.is_empty() {
                std::thread::yield_now();
            }
            // A folder prevents the creation of a file.
            std::fs::create_dir(path.join(".trace.json.partial")).unwrap();
            let mut pushed = (0..ROW_GROUP * 8).map(|at| writer.push(record(at)));
            let error = pushed.find_map(Result::err);
            drop(pushed);
            let error = error.unwrap_or_else(|| writer.finish(None).unwrap_err());
            assert!(error.to_string().contains("cannot write"), "{error}");
            let info = Info::load(&path).unwrap();
            let parts: Vec<_> = info.parts.iter().map(|part| part.file.as_str()).collect();
            assert_eq!(
                (parts.as_slice(), info.records),
                (&["part-00000.parquet"][..], ROW_GROUP as u64)
            );
            let left: Vec<_> = path.read_dir().unwrap().map(|f| f.unwrap().file_name()).collect();
            let second = |name: &&std::ffi::OsString| name.to_string_lossy().contains("part-00001");
            assert_eq!(left.iter().find(second), None, "{left:?}");
        }
    }
}
