//! Writing a trace folder, part by part.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;

use crate::column::{EncodedGroup, Encoder, Group, ROW_GROUP, schema};
use crate::error::{Error, Result};
use crate::folder::{self, Aside};
use crate::footprint::Footprint;
use crate::info::{Info, PartInfo, Source, ThreadInfo};
use crate::record::{Batch, Kind, Narrow, Record};
use crate::region::{self, RegionEvent};

/// How a trace is written.
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// Replace an existing trace.
    pub overwrite: bool,
    /// Write at the final path from the start, marked incomplete until [`Writer::finish`], so
    /// that a killed capture keeps its finished parts. Otherwise write aside and rename.
    pub in_place: bool,
    /// Most records in a part (rounded up to whole row groups, of which each may be short).
    pub part_records: usize,
    /// Threads that encode row groups; 0 encodes in the caller's thread.
    pub threads: usize,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self { overwrite: false, in_place: false, part_records: 4 << 20, threads: 0 }
    }
}

/// Records appended one by one that are gathered at a time.
const SINGLE: usize = 1 << 12;

type Encoded = std::result::Result<EncodedGroup, ParquetError>;

/// Encodes in the caller's thread or in a few others; answers come in the order of the questions.
struct Pool {
    inline: Option<Encoder>,
    work: Option<SyncSender<(u64, Group)>>,
    done: Receiver<(u64, Encoded, Group)>,
    workers: Vec<JoinHandle<()>>,
    asked: u64,
    answered: u64,
    early: BTreeMap<u64, Encoded>,
    spare: Vec<Group>,
}

impl Pool {
    fn new(threads: usize) -> std::result::Result<Self, ParquetError> {
        let (work, queue) = sync_channel::<(u64, Group)>(threads.max(1));
        let (answers, done) = sync_channel(threads.max(1) * 2 + 2);
        let queue = Arc::new(Mutex::new(queue));
        let mut workers = Vec::new();
        for _ in 0..threads {
            let mut encoder = Encoder::new()?;
            let (queue, answers) = (queue.clone(), answers.clone());
            workers.push(std::thread::spawn(move || {
                loop {
                    let next = queue.lock().ok().and_then(|queue| queue.recv().ok());
                    let Some((number, mut group)) = next else { break };
                    let encoded = encoder.encode(&mut group);
                    if answers.send((number, encoded, group)).is_err() {
                        break;
                    }
                }
            }));
        }
        let inline = if threads == 0 { Some(Encoder::new()?) } else { None };
        Ok(Self {
            inline,
            work: Some(work),
            done,
            workers,
            asked: 0,
            answered: 0,
            early: BTreeMap::new(),
            spare: Vec::new(),
        })
    }

    /// Encode `group`; what is finished by now goes to `take`, in order.
    fn encode(
        &mut self,
        mut group: Group,
        take: &mut dyn FnMut(Encoded) -> Result<()>,
    ) -> Result<()> {
        self.asked += 1;
        if let Some(encoder) = &mut self.inline {
            self.answered += 1;
            let encoded = encoder.encode(&mut group);
            group.clear();
            self.spare.push(group);
            return take(encoded);
        }
        if let Some(work) = &self.work {
            // A worker only ends when this sender goes: the send cannot fail before that.
            let _ = work.send((self.asked - 1, group));
        }
        let most = self.workers.len() as u64 + 1;
        while self.asked - self.answered > most {
            self.wait(take)?;
        }
        Ok(())
    }

    fn wait(&mut self, take: &mut dyn FnMut(Encoded) -> Result<()>) -> Result<()> {
        while !self.early.contains_key(&self.answered) {
            let Ok((number, encoded, mut group)) = self.done.recv() else {
                return Err(Error::input("writer", "an encoding thread ended", "report this"));
            };
            group.clear();
            self.spare.push(group);
            self.early.insert(number, encoded);
        }
        while let Some(encoded) = self.early.remove(&self.answered) {
            self.answered += 1;
            take(encoded)?;
        }
        Ok(())
    }

    fn drain(&mut self, take: &mut dyn FnMut(Encoded) -> Result<()>) -> Result<()> {
        while self.answered < self.asked {
            self.wait(take)?;
        }
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.work = None;
        // Answers nobody wants must not keep a worker waiting.
        while self.done.try_recv().is_ok() {}
        let (_, closed) = sync_channel(0);
        self.done = closed;
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

/// What has been written: everything but the encoding.
struct Sink {
    path: PathBuf,
    dir: PathBuf,
    in_place: bool,
    part_records: usize,
    info: Info,
    footprint: Footprint,
    regions: Vec<RegionEvent>,
    part: Option<OpenPart>,
    /// The trace that was at `path`, kept until there is something of this one to keep.
    replaced: Option<PathBuf>,
    finished: bool,
}

/// A part that is being written; dropped before it has its name, it is removed.
struct OpenPart {
    writer: SerializedFileWriter<BufWriter<File>>,
    records: usize,
    file: Aside,
}

impl Sink {
    fn part_name(&self) -> String {
        format!("part-{:05}.parquet", self.info.parts.len())
    }

    fn part_path(&self) -> PathBuf {
        self.dir.join(self.part_name())
    }

    fn failed(&self, error: ParquetError) -> Error {
        // The Parquet crate hides the system's error in a box; its text says which it was.
        let text = error.to_string();
        let fix = if text.contains("No space left") || text.contains("File too large") {
            "free some space or choose another disk with -o; finished parts are kept"
        } else {
            "check the disk, or choose another place with -o"
        };
        match folder::beside(&self.part_path(), "partial") {
            Ok(at) => Error::input(at.display().to_string(), format!("cannot write: {text}"), fix),
            Err(error) => error,
        }
    }

    fn append(&mut self, encoded: Encoded) -> Result<()> {
        let group = encoded.map_err(|e| self.failed(e))?;
        if self.part.is_none() {
            let aside = Aside::new(self.part_path())?;
            let file = File::create(&aside.path)
                .map_err(|e| Error::io(&aside.path, "cannot create", &e))?;
            let properties = WriterProperties::builder()
                .set_created_by(format!("nearfar {}", env!("CARGO_PKG_VERSION")))
                .build();
            // The Parquet crate writes a few kilobytes at a time, too few for a system call each.
            let file = BufWriter::with_capacity(1 << 18, file);
            let writer = SerializedFileWriter::new(file, schema().0, Arc::new(properties))
                .map_err(|e| self.failed(e))?;
            self.part = Some(OpenPart { writer, records: 0, file: aside });
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

    fn thread(&mut self, index: u32) -> &mut ThreadInfo {
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
    fn close_part(&mut self) -> Result<()> {
        let Some(OpenPart { writer, records, file: aside }) = self.part.take() else {
            return Ok(());
        };
        let name = self.part_name();
        let buffered = writer.into_inner().map_err(|e| self.failed(e))?;
        let file = buffered
            .into_inner()
            .map_err(|e| Error::io(&aside.path, "cannot write", &e.into_error()))?;
        let bytes = file.metadata().map_err(|e| Error::io(&aside.path, "cannot write", &e))?.len();
        self.info.records += records as u64;
        self.info.parts.push(PartInfo { file: name, records: records as u64, bytes });
        let listed = self.prepare()?;
        aside.commit()?;
        listed.commit()?;
        self.forget_replaced()
    }

    /// From here on the trace is at its own path, not yet complete.
    fn take_place(&mut self) -> Result<()> {
        let aside = std::mem::replace(&mut self.dir, self.path.clone());
        folder::exchange(&aside, &self.path)?;
        if aside.exists() {
            let old = folder::beside(&self.path, "replaced")?;
            folder::remove(&old)?;
            std::fs::rename(&aside, &old).map_err(|e| Error::io(&old, "cannot replace", &e))?;
            self.replaced = Some(old);
        }
        Ok(())
    }

    fn forget_replaced(&mut self) -> Result<()> {
        self.replaced.take().map_or(Ok(()), |old| folder::remove(&old))
    }

    fn store(&mut self) -> Result<()> {
        self.prepare()?.commit()
    }

    fn prepare(&mut self) -> Result<Aside> {
        self.info.pages_by_kinds = self.footprint.by_kinds();
        region::store(&self.dir, &self.regions)?;
        self.info.prepare(&self.dir)
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        self.part = None;
        if self.dir != self.path {
            let _ = std::fs::remove_dir_all(&self.dir);
        } else if let Some(old) = self.replaced.take() {
            let _ = folder::replace(&old, &self.path);
        }
    }
}

/// Writes one trace. Dropping it without [`finish`](Writer::finish) leaves nothing behind, or, in
/// place, a trace marked incomplete; one that it replaces stays until a part of this one is whole.
pub struct Writer {
    sink: Sink,
    pool: Pool,
    group: Group,
    /// Records that came one by one, to be gathered together.
    single: Batch,
    appended: u64,
}

impl Writer {
    /// Begin a trace at `path` (a folder that must not exist unless `overwrite`).
    pub fn create(path: &Path, source: Source, options: WriterOptions) -> Result<Self> {
        if path.exists() {
            if !options.overwrite {
                return Err(Error::input(
                    path.display().to_string(),
                    "exists already",
                    "choose another name with -o or replace it with --force",
                ));
            }
            // Only what is, or was going to be, a trace is ever deleted.
            let ours = path.join("trace.json").is_file()
                || path.is_dir() && path.read_dir().is_ok_and(|mut d| d.next().is_none());
            if !ours {
                return Err(Error::input(
                    path.display().to_string(),
                    "exists and is not a trace, so --force does not replace it",
                    "choose another name with -o",
                ));
            }
        }
        let dir = folder::beside(path, "partial")?;
        folder::remove(&dir)?;
        std::fs::create_dir_all(&dir).map_err(|e| Error::io(&dir, "cannot create", &e))?;
        let mut sink = Sink {
            path: path.to_owned(),
            dir,
            in_place: options.in_place,
            part_records: options.part_records.max(1),
            info: Info::new(source),
            footprint: Footprint::default(),
            regions: Vec::new(),
            part: None,
            replaced: None,
            finished: false,
        };
        if options.in_place {
            sink.store()?;
            sink.take_place()?;
        }
        let pool = Pool::new(options.threads).map_err(|e| sink.failed(e))?;
        Ok(Self { sink, pool, group: Group::default(), single: Batch::default(), appended: 0 })
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
        let sink = &mut self.sink;
        self.pool.encode(group, &mut |encoded| sink.append(encoded))?;
        // One that has been used has its memory: the kernel zeroes fresh memory, at some cost.
        self.group = self.pool.spare.pop().unwrap_or_default();
        Ok(())
    }

    /// Note an event of the address space. Its `at` is raised to the records appended so far; a
    /// caller that holds records back gives the number they will come to.
    pub fn region(&mut self, mut event: RegionEvent) -> Result<()> {
        event.at = event.at.max(self.appended);
        self.sink.regions.push(event);
        Ok(())
    }

    /// Records appended so far.
    pub fn records(&self) -> u64 {
        self.appended
    }

    /// Set the process that a thread index belongs to.
    pub fn thread_process(&mut self, thread: u32, process: u32) {
        self.sink.thread(thread).process = process;
    }

    /// Add instructions that a thread executed after its last record.
    pub fn add_instructions(&mut self, thread: u32, instructions: u64) {
        self.sink.thread(thread).instructions += instructions;
        self.sink.info.instructions += instructions;
    }

    /// Change what `trace.json` says of the source (skipped records, sampling).
    pub fn source_mut(&mut self) -> &mut Source {
        &mut self.sink.info.source
    }

    /// End the trace. With `incomplete`, it is kept readable but marked incomplete for this reason.
    pub fn finish(mut self, incomplete: Option<&str>) -> Result<Info> {
        self.gather_single()?;
        self.flush()?;
        let sink = &mut self.sink;
        self.pool.drain(&mut |encoded| sink.append(encoded))?;
        sink.close_part()?;
        sink.info.complete = incomplete.is_none();
        sink.info.incomplete_reason = incomplete.map(str::to_owned);
        sink.store()?;
        if sink.in_place {
            sink.forget_replaced()?;
        } else {
            folder::replace(&sink.dir, &sink.path)?;
        }
        sink.finished = true;
        Ok(sink.info.clone())
    }

    /// Leave nothing of this trace behind; one that it was to replace is there again.
    pub fn discard(self) {
        let (dir, replaced) = (self.sink.dir.clone(), self.sink.replaced.is_some());
        drop(self);
        if !replaced {
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Kind;

    #[test]
    fn a_part_has_its_name_only_when_it_can_be_listed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.trace");
        let options = WriterOptions { in_place: true, part_records: ROW_GROUP, ..<_>::default() };
        let mut writer = Writer::create(&path, Source::default(), options).unwrap();
        let record = |at: usize| Record {
            addr: at as u64 * 64,
            kind: Kind::Load,
            size: 8,
            thread: 0,
            instr: 1,
        };
        (0..ROW_GROUP).for_each(|at| writer.push(record(at)).unwrap());
        // Nobody can write a file where there is a folder.
        std::fs::create_dir(path.join(".trace.json.partial")).unwrap();
        let error = (0..ROW_GROUP).try_for_each(|at| writer.push(record(at))).unwrap_err();
        assert!(error.to_string().contains("cannot write"), "{error}");
        drop(writer);
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
