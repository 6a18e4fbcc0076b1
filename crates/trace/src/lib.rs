//! Traces of a program's memory references: the on-disk format, importers, exporters, generators.
//!
//! A trace is a folder `app.trace/` of `trace.json`, `part-NNNNN.parquet` and `regions.parquet`
//! (see `docs/trace.md`). This crate knows nothing of hardware, kernels or studies.

pub mod checksum;
pub mod clock;
pub mod column;
pub mod error;
pub mod exercise;
pub mod export;
pub mod file;
pub mod folder;
pub mod footprint;
pub mod generate;
pub mod hash;
pub mod import;
pub mod info;
pub mod output;
pub mod ranges;
pub mod reader;
pub mod record;
pub mod region;
pub mod sample;
pub mod verify;
pub mod writer;

pub use checksum::Checksum;
pub use clock::Clock;
pub use error::{Error, ErrorKind, Result};
pub use info::{Info, PartInfo, RegionsInfo, Source, ThreadInfo};
pub use reader::{Columns, Reader};
pub use record::{Batch, Kind, KindSet, NarrowBatch, Record, last_byte};
pub use region::{RegionEvent, RegionKind};
pub use sample::PageSample;
pub use writer::{Writer, WriterOptions};
