//! Reading a trace folder as a stream of batches.

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::info::Info;
use crate::record::Batch;

/// Which columns to decode; the others stay empty in the [`Batch`]. `addr` is always decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    /// Decode `kind`.
    pub kind: bool,
    /// Decode `size`.
    pub size: bool,
    /// Decode `thread`.
    pub thread: bool,
    /// Decode `instr`.
    pub instr: bool,
}

impl Columns {
    /// Every column.
    pub const ALL: Columns = Columns { kind: true, size: true, thread: true, instr: true };
    /// What page studies need.
    pub const PAGING: Columns = Columns { kind: true, size: true, thread: false, instr: false };
}

/// An open trace folder.
#[derive(Clone, Debug)]
pub struct Reader {
    dir: PathBuf,
    info: Info,
}

impl Reader {
    /// Open the trace folder `dir` and read its `trace.json`.
    pub fn open(dir: &Path) -> Result<Self> {
        Ok(Self { dir: dir.to_owned(), info: Info::load(dir)? })
    }
    /// What `trace.json` says.
    pub fn info(&self) -> &Info {
        &self.info
    }
    /// The trace folder.
    pub fn path(&self) -> &Path {
        &self.dir
    }
    /// Stream the whole trace: call [`Batches::next_into`] until it answers false.
    pub fn batches(&self, columns: Columns) -> Batches {
        let _ = columns;
        todo!()
    }
}

/// A stream of batches of at most [`Batches::MAX`] records.
pub struct Batches {}

impl Batches {
    /// Most records in one batch.
    pub const MAX: usize = 1 << 16;
    /// Replace the contents of `batch` by the next records; false at the end of the trace.
    pub fn next_into(&mut self, batch: &mut Batch) -> Result<bool> {
        let _ = batch;
        todo!()
    }
}
