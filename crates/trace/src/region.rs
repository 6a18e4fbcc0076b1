//! `regions.parquet`: events of address spaces (`mmap`, `fork`, ...).

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parquet::column::reader::{ColumnReader, get_column_reader};
use parquet::column::writer::get_column_writer;
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use crate::checksum::ChecksumWriter;
use crate::column::{CheckedPages, Foreign, guard, system_error};
use crate::error::{Error, Result, remedy};
use crate::folder::TemporaryFile;
use crate::info::RegionsInfo;

/// What an event did to an address range, a thread or a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RegionKind {
    /// A range was mapped (`mmap`, program load), replacing earlier mappings. `name` is the file,
    /// `[heap]`, `[stack]`, ...
    #[default]
    Map,
    /// A range was unmapped.
    Unmap,
    /// The heap's end moved. The range is the whole heap; addresses above it are unmapped.
    Brk,
    /// The pages of a range moved to `to` (`mremap`), replacing earlier mappings there. The old
    /// range is unmapped.
    Move,
    /// The pages of a range were discarded (`MADV_DONTNEED`); the range stays mapped.
    DontNeed,
    /// The pages of a range may be discarded until they are written again (`MADV_FREE`).
    Free,
    /// The pages of a range and the contents of its file there were discarded (`MADV_REMOVE`).
    Remove,
    /// A range was locked in memory (`mlock`). Records of kernel accesses show which pages this loads.
    Lock,
    /// A range was unlocked (`munlock`).
    Unlock,
    /// A range may have huge pages (`MADV_HUGEPAGE`).
    Huge,
    /// A range may not have huge pages (`MADV_NOHUGEPAGE`).
    NoHuge,
    /// The pages of a range were made huge (`MADV_COLLAPSE`).
    Collapse,
    /// From now on, huge pages of the process follow the kernel's setting (`to` is 0), are disabled
    /// (1), or are limited to advised ranges (2), also after `execve` (`PR_SET_THP_DISABLE`).
    ThpDisable,
    /// The capture gave a file's page cache this range of kernel addresses, which it made up.
    File,
    /// Since the previous `Idle` event, no recorded thread ran for `to` nanoseconds in total, because all
    /// were in system calls. During the remaining time, `offset` / 1000 threads ran on average.
    Idle,
    /// A thread began.
    ThreadStart,
    /// A thread ended.
    ThreadExit,
    /// A child process began, with a copy of its parent's address space. `thread` is a thread of the
    /// parent, `to` the process number of the child.
    Fork,
    /// A child process began that shares its parent's address space until it ends or runs a program
    /// (`vfork`).
    Vfork,
    /// The process replaced itself with another program (`name`), which unmaps everything.
    Exec,
    /// The process ended, which unmaps everything.
    Exit,
}

impl RegionKind {
    const NAMES: [(RegionKind, &'static str); 21] = [
        (RegionKind::Map, "map"),
        (RegionKind::Unmap, "unmap"),
        (RegionKind::Brk, "brk"),
        (RegionKind::Move, "move"),
        (RegionKind::DontNeed, "dontneed"),
        (RegionKind::Free, "free"),
        (RegionKind::Remove, "remove"),
        (RegionKind::Lock, "lock"),
        (RegionKind::Unlock, "unlock"),
        (RegionKind::Huge, "huge"),
        (RegionKind::NoHuge, "no-huge"),
        (RegionKind::Collapse, "collapse"),
        (RegionKind::ThpDisable, "thp-disable"),
        (RegionKind::File, "file"),
        (RegionKind::Idle, "idle"),
        (RegionKind::ThreadStart, "thread-start"),
        (RegionKind::ThreadExit, "thread-exit"),
        (RegionKind::Fork, "fork"),
        (RegionKind::Vfork, "vfork"),
        (RegionKind::Exec, "exec"),
        (RegionKind::Exit, "exit"),
    ];

    /// The on-disk name.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(kind, _)| *kind == self).map_or("map", |(_, name)| name)
    }

    /// The kind with this on-disk name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, n)| *n == name).map(|(kind, _)| *kind)
    }
}

/// One event of the address space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionEvent {
    /// Number of records before the event.
    pub at: u64,
    /// Index of the thread that caused the event.
    pub thread: u32,
    pub event: RegionKind,
    /// First byte of the range.
    pub addr: u64,
    /// Bytes in the range.
    pub length: u64,
    /// Offset in the mapped file; of an [`RegionKind::Idle`] event, threads x 1000.
    pub offset: u64,
    /// `rwx` letters or `-`, then `p` (private) or `s` (shared). Traces of schema 1 have three
    /// letters.
    pub prot: String,
    /// File or other name; empty for anonymous memory.
    pub name: String,
    /// Device of the file. 0, like `inode`, if there is no file, and in traces of schema 1.
    pub device: u64,
    /// Inode of the file.
    pub inode: u64,
    /// Destination of a move, number of the child process, idle nanoseconds, or setting of huge
    /// pages; otherwise 0.
    pub to: u64,
}

const SCHEMA: &str = "message regions {
    required int64 at (INTEGER(64,false));
    required int32 thread (INTEGER(32,false));
    required binary event (STRING);
    required int64 addr (INTEGER(64,false));
    required int64 length (INTEGER(64,false));
    required int64 offset (INTEGER(64,false));
    required binary prot (STRING);
    required binary name (STRING);
    required int64 device (INTEGER(64,false));
    required int64 inode (INTEGER(64,false));
    required int64 to (INTEGER(64,false));
}";
/// Number of columns in schema 1. Schema 2 added `device`, `inode` and `to`.
const FIRST_COLUMNS: usize = 8;
const COLUMNS: usize = 11;

/// Name of the table in a trace folder.
pub const FILE: &str = "regions.parquet";

/// Write all events to a temporary file that becomes the `regions.parquet` of `dir`.
pub(crate) fn prepare(dir: &Path, events: &[RegionEvent]) -> Result<(TemporaryFile, RegionsInfo)> {
    let temporary = TemporaryFile::new(dir.join(FILE))?;
    let file = File::create(&temporary.path)
        .map_err(|e| Error::io(&temporary.path, "cannot create", &e))?;
    let mut file = ChecksumWriter::new(file);
    write(&mut file, events).map_err(|e| {
        let fix = system_error(&e).map_or("check free space", remedy);
        Error::input(temporary.path.display().to_string(), format!("cannot write: {e}"), fix)
    })?;
    let (checksum, bytes) = file.sum();
    Ok((temporary, RegionsInfo { events: events.len() as u64, bytes, checksum }))
}

fn write(file: &mut (impl Write + Send), events: &[RegionEvent]) -> ParquetResult<()> {
    let schema = Arc::new(parse_message_type(SCHEMA)?);
    // No statistics: events are never searched by value.
    let properties = WriterProperties::builder()
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true);
    let properties = Arc::new(properties.build());
    let mut writer = SerializedFileWriter::new(file, schema, properties.clone())?;
    let columns = writer.schema_descr().columns().to_vec();
    let longs: [fn(&RegionEvent) -> u64; 7] =
        [|e| e.at, |e| e.addr, |e| e.length, |e| e.offset, |e| e.device, |e| e.inode, |e| e.to];
    let texts: [fn(&RegionEvent) -> &str; 3] = [|e| e.event.name(), |e| &e.prot, |e| &e.name];
    let (mut longs, mut texts) = (longs.iter(), texts.iter());
    let mut group = writer.next_row_group()?;
    for column in columns {
        use parquet::column::writer::ColumnWriter as W;
        let mut bytes = Vec::new();
        let pages = Box::new(CheckedPages(&mut bytes));
        let close = match get_column_writer(column, properties.clone(), pages) {
            W::Int64ColumnWriter(mut w) => {
                let Some(get) = longs.next() else { break };
                let values: Vec<i64> = events.iter().map(|e| get(e) as i64).collect();
                w.write_batch(&values, None, None)?;
                w.close()?
            }
            W::Int32ColumnWriter(mut w) => {
                let values: Vec<i32> = events.iter().map(|e| e.thread as i32).collect();
                w.write_batch(&values, None, None)?;
                w.close()?
            }
            W::ByteArrayColumnWriter(mut w) => {
                let Some(get) = texts.next() else { break };
                let values: Vec<ByteArray> =
                    events.iter().map(|e| ByteArray::from(get(e).as_bytes().to_vec())).collect();
                w.write_batch(&values, None, None)?;
                w.close()?
            }
            _ => break,
        };
        group.append_column(&Bytes::from(bytes), close)?;
    }
    group.close()?;
    writer.close()?;
    Ok(())
}

/// All events of the trace folder `dir`; none if it has no `regions.parquet`. Checks their number
/// against `listed`, the number in `trace.json`, if given.
pub fn load(dir: &Path, listed: Option<u64>) -> Result<Vec<RegionEvent>> {
    let path = dir.join(FILE);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let file = Foreign::open(&path, FIX)?;
    let place = path.display().to_string();
    if let Some(listed) = listed.filter(|&listed| listed != file.rows()) {
        let what = format!("has {} events, but {listed} in trace.json", file.rows());
        return Err(Error::input(place, what, "capture or import the trace again"));
    }
    guard(&place, FIX, || read(&file))
}

/// The remedy for a damaged table.
const FIX: &str = "capture the trace again, or remove this file, and `regions` from trace.json";

/// Limits on events and bytes of names, which bound what a hostile file can make us allocate.
const MAX_EVENTS: u64 = 1 << 22;
const MAX_TEXT: usize = 1 << 28;

fn read(file: &Foreign) -> ParquetResult<Vec<RegionEvent>> {
    let damaged = |why: &str| ParquetError::General(why.to_owned());
    if file.rows() > MAX_EVENTS {
        return Err(damaged("it claims more than 4 million events"));
    }
    let mut events = Vec::new();
    for (index, group) in file.metadata.row_groups().iter().enumerate() {
        let rows = usize::try_from(group.num_rows()).unwrap_or_default();
        let columns = group.num_columns();
        if ![FIRST_COLUMNS, COLUMNS].contains(&columns) {
            return Err(damaged(
                "it does not have the 11 columns of a region table (8 in old traces)",
            ));
        }
        let column = |i: usize| -> ParquetResult<ColumnReader> {
            let pages = Box::new(file.pages(index, i, rows)?);
            Ok(get_column_reader(group.column(i).column_descr_ptr(), pages))
        };
        let long = |i| -> ParquetResult<Vec<i64>> {
            let mut values = Vec::new();
            if let ColumnReader::Int64ColumnReader(mut r) = column(i)? {
                read_all::<Int64Type>(&mut r, rows, &mut values)?;
            }
            Ok(values)
        };
        let text = |i| -> ParquetResult<Vec<String>> {
            let mut values: Vec<ByteArray> = Vec::new();
            if let ColumnReader::ByteArrayColumnReader(mut r) = column(i)? {
                read_all::<ByteArrayType>(&mut r, rows, &mut values)?;
            }
            // Many values can refer to the same bytes of the file.
            if values.iter().map(|v| v.data().len()).sum::<usize>() > MAX_TEXT {
                return Err(damaged("it holds more than 256 MiB of names"));
            }
            Ok(values.iter().map(|v| String::from_utf8_lossy(v.data()).into_owned()).collect())
        };
        let mut threads = Vec::new();
        if let ColumnReader::Int32ColumnReader(mut r) = column(1)? {
            read_all::<Int32Type>(&mut r, rows, &mut threads)?;
        }
        let (at, addr, length, offset) = (long(0)?, long(3)?, long(4)?, long(5)?);
        let optional = |i| if columns > FIRST_COLUMNS { long(i) } else { Ok(vec![0; rows]) };
        let (device, inode, to) = (optional(8)?, optional(9)?, optional(10)?);
        let (event, prot, name) = (text(2)?, text(6)?, text(7)?);
        let longs = [&at, &addr, &length, &offset, &device, &inode, &to].map(Vec::len);
        let others = [threads.len(), event.len(), prot.len(), name.len()];
        // A column of another type than in `SCHEMA` was not read.
        if longs.iter().chain(&others).any(|&length| length != rows) {
            return Err(damaged("its columns differ in length"));
        }
        for i in 0..rows {
            let Some(kind) = RegionKind::from_name(&event[i]) else {
                let name: String = event[i].chars().take(40).collect();
                return Err(damaged(&format!("unknown event {name:?} in row {i}")));
            };
            events.push(RegionEvent {
                at: at[i] as u64,
                thread: threads[i] as u32,
                event: kind,
                addr: addr[i] as u64,
                length: length[i] as u64,
                offset: offset[i] as u64,
                prot: prot[i].clone(),
                name: name[i].clone(),
                device: device[i] as u64,
                inode: inode[i] as u64,
                to: to[i] as u64,
            });
        }
    }
    Ok(events)
}

/// Read `rows` values of a column without nulls.
pub(crate) fn read_all<T: parquet::data_type::DataType>(
    reader: &mut parquet::column::reader::ColumnReaderImpl<T>,
    rows: usize,
    values: &mut Vec<T::T>,
) -> parquet::errors::Result<()> {
    let mut levels = Vec::new();
    while values.len() < rows {
        levels.clear();
        let wanted = rows - values.len();
        let (records, read, _) = reader.read_records(wanted, Some(&mut levels), None, values)?;
        if read < records {
            return Err(ParquetError::General("a value is null".to_owned()));
        }
        if records == 0 {
            break;
        }
    }
    Ok(())
}
