//! Writing a trace folder, part by part.

mod pool;
mod sink;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::clock::Clock;
use crate::column::Group;
use crate::error::Result;
use crate::footprint::Footprint;
use crate::info::{self, Info, Source};
use crate::output::{Form, Output, TRACE, Wanted};
use crate::record::{Batch, Narrow, Record};
use crate::region::RegionEvent;

use pool::Pool;
use sink::Sink;

/// How a trace is written.
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// Replace an existing trace.
    pub overwrite: bool,
    /// What is read meanwhile, which is replaced in no case.
    pub inputs: Vec<PathBuf>,
    /// Write at the final path from the start, marked incomplete until [`Writer::finish`], so
    /// that a killed capture keeps its finished parts. Otherwise write a temporary file and rename it.
    pub in_place: bool,
    /// Most records in a part (rounded up to whole row groups, of which each may be short).
    pub part_records: usize,
    /// Events say when pages begin and end, as those of a capture do; else they only name addresses,
    /// as in traces of schema 1, and the trace says so.
    pub lives: bool,
    /// Threads that encode and write row groups. The caller's does so too while they are behind, or
    /// with 0 alone.
    pub threads: usize,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self {
            overwrite: false,
            inputs: Vec::new(),
            in_place: false,
            part_records: 4 << 20,
            lives: true,
            threads: 0,
        }
    }
}

/// Records appended one by one that are gathered at a time.
const SINGLE: usize = 1 << 12;

/// Writes one trace. Dropping it without [`finish`](Writer::finish) leaves nothing behind, or, in
/// place, a trace marked incomplete; one that it replaces stays until a part of this one is whole.
pub struct Writer {
    pool: Pool,
    group: Group,
    /// Records that came one by one, to be gathered together.
    single: Batch,
    appended: u64,
}

impl Writer {
    /// Begin a trace at `path` (a folder that must not exist unless `overwrite`).
    pub fn create(path: &Path, source: Source, options: WriterOptions) -> Result<Self> {
        let output = Output::claim(&Wanted {
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
            info: Info { schema: info::schema(options.lives), ..Info::new(source) },
            footprint: Footprint::default(),
            regions: Vec::new(),
            part: None,
            replaced: None,
            last: false,
            finished: false,
            discarded: false,
        };
        if options.in_place {
            sink.store()?;
            sink.take_place()?;
        }
        let pool = Pool::new(options.threads, sink)?;
        Ok(Self { pool, group: Group::default(), single: Batch::default(), appended: 0 })
    }

    /// Append one record.
    pub fn push(&mut self, record: Record) -> Result<()> {
        self.single.push(record);
        self.appended += 1;
        if self.single.len() == SINGLE { self.gather_single() } else { Ok(()) }
    }

    /// Append many records (columns of equal length, valid kinds).
    pub fn push_batch(&mut self, batch: &Batch) -> Result<()> {
        self.gather_single()?;
        self.appended += batch.len() as u64;
        self.gather(batch.len(), |group, from| group.extend(batch, from))
    }

    /// Append many records of one thread, none of them wide.
    pub fn push_narrow(&mut self, narrow: Narrow<'_>) -> Result<()> {
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

    /// Fill row groups with `records` records, of which `extend` appends those from one on until
    /// the group is full.
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

    /// Note an event of the address space. Its `at` is raised to the records appended so far; a
    /// caller that holds records back gives the number they will come to.
    pub fn region(&mut self, mut event: RegionEvent) -> Result<()> {
        event.at = event.at.max(self.appended);
        self.pool.sink().regions.push(event);
        Ok(())
    }

    /// Records appended so far.
    pub fn records(&self) -> u64 {
        self.appended
    }

    /// Set the process that a thread index belongs to.
    pub fn thread_process(&mut self, thread: u32, process: u32) {
        self.pool.sink().thread(thread).process = process;
    }

    /// Add instructions that a thread executed after its last record.
    pub fn add_instructions(&mut self, thread: u32, instructions: u64) {
        let mut sink = self.pool.sink();
        sink.thread(thread).instructions += instructions;
        sink.info.instructions += instructions;
    }

    /// Change what `trace.json` says of the source (skipped records, sampling).
    pub fn change_source(&mut self, change: impl FnOnce(&mut Source)) {
        change(&mut self.pool.sink().info.source);
    }

    /// Say which program files were mapped: their build ids by path.
    pub fn build_ids(&mut self, ids: BTreeMap<String, String>) {
        self.pool.sink().info.build_ids = ids;
    }

    /// Say when records were made.
    pub fn clock(&mut self, clock: Clock) {
        self.pool.sink().info.clock = Some(clock);
    }

    /// End the trace. With `incomplete`, it is kept readable but marked incomplete for this reason.
    pub fn finish(mut self, incomplete: Option<&str>) -> Result<Info> {
        self.gather_single()?;
        self.flush()?;
        self.pool.drain()?;
        let mut sink = self.pool.sink();
        sink.close_part()?;
        sink.info.complete = incomplete.is_none();
        sink.info.incomplete_reason = incomplete.map(str::to_owned);
        sink.last = true;
        sink.store()?;
        if sink.in_place {
            sink.forget_replaced()?;
        } else {
            sink.output.commit()?;
        }
        sink.finished = true;
        Ok(sink.info.clone())
    }

    /// Leave nothing of this trace behind; one that it was to replace is there again.
    pub fn discard(mut self) {
        self.pool.sink().discarded = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::column::ROW_GROUP;
    use crate::record::Kind;

    #[test]
    fn a_part_has_its_name_only_when_it_can_be_listed() {
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
            // Other threads may take their time.
            while Info::load(&path).unwrap().parts.is_empty() {
                std::thread::yield_now();
            }
            // Nobody can write a file where there is a folder.
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
            let left: Vec<_> = path.read_dir().unwrap().map(|of| of.unwrap().file_name()).collect();
            let second = |name: &&std::ffi::OsString| name.to_string_lossy().contains("part-00001");
            assert_eq!(left.iter().find(second), None, "{left:?}");
        }
    }
}
