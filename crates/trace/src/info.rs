//! `trace.json`: the description of a trace, readable without its parts.

mod check;

pub(crate) use check::unique;

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::checksum::Checksum;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::file;
use crate::folder::TemporaryFile;
use crate::record::{Kind, KindSet};
use crate::sample::PageSample;

/// Version of the on-disk layout that is written. Version 2 added checksums and events that
/// determine page lifetimes.
pub const SCHEMA: u32 = 2;
/// The oldest version that can be read.
const OLDEST: u32 = 1;
/// Maximum bytes of `trace.json`, enough for millions of threads and parts.
const MAX_BYTES: u64 = 1 << 30;

/// Schema of a new trace: [`SCHEMA`], or [`OLDEST`] if its events do not determine page lifetimes, as
/// those of a filtered old trace.
pub(crate) fn schema(lifetimes: bool) -> u32 {
    if lifetimes { SCHEMA } else { OLDEST }
}

/// Where a trace came from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// `capture`, `import` or `generate`.
    pub kind: String,
    /// Tool, format or generator, with its relevant options.
    pub detail: String,
    /// The recorded command, or the imported file.
    pub command: Vec<String>,
    /// Architecture of the program (`x86_64`, `aarch64`, or empty if unknown).
    pub arch: String,
    /// Bytes of RAM of the virtual machine that was recorded; 0 for a program.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub vm_memory_bytes: u64,
    /// Records are a sample (perf), so that reuse distances are not those of the program.
    #[serde(default)]
    pub sampled: bool,
    /// The sample of pages that was recorded; absent if everything was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<PageSample>,
    /// Bad records skipped by `--skip-bad`.
    #[serde(default)]
    pub skipped_records: u64,
    /// Parts of the program's run that were not recorded, in words; `None` if that is not known,
    /// as in older traces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unrecorded: Option<Vec<String>>,
    /// A process switched huge pages off for itself (`PR_SET_THP_DISABLE`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub thp_disabled: bool,
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// One thread of the program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThreadInfo {
    /// Index used in the `thread` column.
    pub index: u32,
    /// Its process (0: unknown).
    pub process: u32,
    /// For a task of a virtual machine: its name, and its pid or `PROCESS/PID`. Otherwise empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    pub records: u64,
    pub instructions: u64,
}

/// One `part-NNNNN.parquet`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartInfo {
    /// File name within the trace folder.
    pub file: String,
    pub records: u64,
    /// Size of the file when it was written.
    pub bytes: u64,
    /// Checksum of the file; absent in old traces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<Checksum>,
}

/// `regions.parquet`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionsInfo {
    pub events: u64,
    /// Size of the file when it was written.
    pub bytes: u64,
    pub checksum: Checksum,
}

/// Contents of `trace.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Info {
    /// Layout version, up to [`SCHEMA`].
    pub schema: u32,
    /// Version of nearfar that wrote it.
    pub tool: String,
    pub source: Source,
    /// False while the trace is being written, and if the writer was killed. Listed parts are
    /// complete.
    pub complete: bool,
    /// Why it is not complete, if known.
    #[serde(default)]
    pub incomplete_reason: Option<String>,
    /// Records of all parts.
    pub records: u64,
    /// Instructions executed, all threads.
    pub instructions: u64,
    #[serde(deserialize_with = "check::unique")]
    pub records_by_kind: BTreeMap<Kind, u64>,
    /// Distinct 4 KiB pages, by the exact set of kinds that touched them (names joined by `+`). The
    /// footprint of any selection of kinds is a sum of these.
    #[serde(deserialize_with = "check::unique")]
    pub pages_by_kinds: BTreeMap<String, u64>,
    /// Threads, by index.
    pub threads: Vec<ThreadInfo>,
    /// Finished parts, in order.
    pub parts: Vec<PartInfo>,
    /// The table of events; absent until it is final, and in old traces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regions: Option<RegionsInfo>,
    /// Build ids of mapped program files, by path.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub build_ids: BTreeMap<String, String>,
    /// When the records were made; absent if no program was run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<Clock>,
}

impl Info {
    /// An empty, not yet complete trace.
    pub fn new(source: Source) -> Self {
        Self {
            schema: SCHEMA,
            tool: env!("CARGO_PKG_VERSION").to_owned(),
            source,
            complete: false,
            incomplete_reason: None,
            records: 0,
            instructions: 0,
            records_by_kind: BTreeMap::new(),
            pages_by_kinds: BTreeMap::new(),
            threads: Vec::new(),
            parts: Vec::new(),
            regions: None,
            build_ids: BTreeMap::new(),
            clock: None,
        }
    }

    /// Whether the events of this trace, if any, determine page lifetimes (schema 2): they include
    /// discards, moves, forks and ends of processes, and name files by inode.
    pub fn has_lifetimes(&self) -> bool {
        self.schema >= 2
    }

    /// Distinct 4 KiB pages touched by any of `kinds`.
    pub fn footprint_pages(&self, kinds: KindSet) -> u64 {
        self.pages_by_kinds
            .iter()
            .filter(|(label, _)| {
                label.split('+').filter_map(Kind::from_name).any(|kind| kinds.contains(kind))
            })
            .map(|(_, pages)| *pages)
            .fold(0, u64::saturating_add)
    }

    /// Number of references of any of `kinds`. If the trace holds a sample of pages, `sample` counts
    /// the program's references; the kernel's are all recorded.
    pub fn references_of(&self, kinds: KindSet) -> u64 {
        let Some(sample) = &self.source.sample else { return self.records_of(kinds) };
        let counted = KindSet(sample.references.keys().fold(0, |set, kind| set | kind.bit()));
        let others = self.records_of(KindSet(kinds.0 & !counted.0));
        sample.references_of(kinds).saturating_add(others)
    }

    /// Records of any of `kinds`.
    pub fn records_of(&self, kinds: KindSet) -> u64 {
        self.records_by_kind
            .iter()
            .filter(|(kind, _)| kinds.contains(**kind))
            .fold(0, |sum, (_, n)| sum.saturating_add(*n))
    }

    /// Read `trace.json` of the trace folder `dir`.
    ///
    /// # Errors
    /// It is missing, damaged, has an unknown schema, or contradicts itself.
    pub fn load(dir: &Path) -> Result<Self> {
        let path = dir.join("trace.json");
        if !dir.is_dir() {
            let is_heat = dir.extension().is_some_and(|extension| extension == "heat");
            let (what, fix) = match dir.exists() {
                true if is_heat => (
                    "holds DAMON's samples, not the references that this command needs",
                    "`nearfar info` shows it; `nearfar capture` records references",
                ),
                true => ("is a file, not a trace folder", "convert it with `nearfar import`"),
                false => ("no such trace", "check the path, or create one with `nearfar capture`"),
            };
            return Err(Error::input(dir.display().to_string(), what, fix));
        }
        if !path.exists() {
            return Err(Error::input(
                dir.display().to_string(),
                "not a trace: it has no trace.json",
                "give a folder created by `nearfar capture`, `import` or `generate`",
            ));
        }
        let text = file::read(&path, "trace.json", MAX_BYTES)?;
        let place = path.display().to_string();
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        let damaged = |e: serde_json::Error| {
            Error::input(&place, format!("damaged: {e}"), "capture or import the trace again")
        };
        let version: Version = serde_json::from_slice(&text).map_err(damaged)?;
        if !(OLDEST..=SCHEMA).contains(&version.schema) {
            return Err(Error::input(
                &place,
                format!(
                    "trace schema {} is not {OLDEST} to {SCHEMA}, which this nearfar reads",
                    version.schema
                ),
                "use the nearfar that wrote it, or capture again",
            ));
        }
        let info: Self = serde_json::from_slice(&text).map_err(damaged)?;
        info.check(&place)?;
        Ok(info)
    }

    /// Write `trace.json` into `dir`, atomically.
    pub fn store(&self, dir: &Path) -> Result<()> {
        self.prepare(dir)?.commit()
    }

    /// Write a temporary file that becomes the `trace.json` of `dir`.
    pub(crate) fn prepare(&self, dir: &Path) -> Result<TemporaryFile> {
        let temporary = TemporaryFile::new(dir.join("trace.json"))?;
        let mut text = serde_json::to_string_pretty(self)
            .map_err(|e| Error::input("trace.json", e.to_string(), ""))?;
        text.push('\n');
        std::fs::write(&temporary.path, text)
            .map_err(|e| Error::io(&temporary.path, "cannot write", &e))?;
        Ok(temporary)
    }
}
