//! Writing a trace folder, part by part.

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::info::{Info, Source};
use crate::record::{Batch, Record};
use crate::region::RegionEvent;

/// How a trace is written.
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// Replace an existing trace.
    pub overwrite: bool,
    /// Write at the final path from the start, marked incomplete until [`Writer::finish`], so
    /// that a killed capture keeps its finished parts. Otherwise write aside and rename.
    pub in_place: bool,
    /// Records in a part (rounded up to whole row groups).
    pub part_records: usize,
    /// Threads that encode row groups; 0 encodes in the caller's thread.
    pub threads: usize,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self { overwrite: false, in_place: false, part_records: 4 << 20, threads: 0 }
    }
}

/// Writes one trace. Dropping it without [`finish`](Writer::finish) leaves nothing behind, or,
/// in place, a trace marked incomplete.
pub struct Writer {
    _path: PathBuf,
}

impl Writer {
    /// Begin a trace at `path` (a folder that must not exist unless `overwrite`).
    pub fn create(path: &Path, source: Source, options: WriterOptions) -> Result<Self> {
        let _ = (source, options);
        Ok(Self { _path: path.to_owned() })
    }
    /// Append one record.
    pub fn push(&mut self, record: Record) -> Result<()> {
        let _ = record;
        todo!()
    }
    /// Append many records (columns of equal length, valid kinds).
    pub fn push_batch(&mut self, batch: &Batch) -> Result<()> {
        let _ = batch;
        todo!()
    }
    /// Note an event of the address space; `at` is filled in with the records written so far.
    pub fn region(&mut self, event: RegionEvent) -> Result<()> {
        let _ = event;
        todo!()
    }
    /// Records appended so far.
    pub fn records(&self) -> u64 {
        todo!()
    }
    /// Set the process that a thread index belongs to.
    pub fn thread_process(&mut self, thread: u32, process: u32) {
        let _ = (thread, process);
        todo!()
    }
    /// Add instructions that a thread executed after its last record.
    pub fn add_instructions(&mut self, thread: u32, instructions: u64) {
        let _ = (thread, instructions);
        todo!()
    }
    /// Change what `trace.json` says of the source (skipped records, sampling).
    pub fn source_mut(&mut self) -> &mut Source {
        todo!()
    }
    /// End the trace. With `incomplete`, it is kept readable but marked incomplete for this reason.
    pub fn finish(self, incomplete: Option<&str>) -> Result<Info> {
        let _ = incomplete;
        todo!()
    }
}
