//! Decodes row groups: a fast path for the layout of `encode.rs`, and the Parquet crate's column
//! readers for any other valid layout of the same columns.

use std::path::Path;

use bytes::Bytes;
use parquet::basic::{Encoding, Type};
use parquet::column::page::{Page, PageReader};
use parquet::column::reader::{ColumnReader, get_column_reader};
use parquet::data_type::{ByteArrayType, Int32Type, Int64Type};
use parquet::errors::{ParquetError, Result as ParquetResult};

use super::foreign::{Foreign, guard, read_varint};
use super::{ADDR, INSTR, KIND, NAMES, SIZE, THREAD};
use crate::error::{Error, Result};
use crate::reader::Columns;
use crate::record::{Batch, Kind};
use crate::region::read_all;

/// Maximum number of records in a row group; bounds what a hostile file can make us allocate.
const MAX_ROWS: usize = 1 << 26;

pub struct Part {
    file: Foreign,
    place: String,
    /// Index in the file of each column of [`NAMES`].
    columns: [usize; 5],
}

/// Open a part and check that it has the five columns.
pub fn open_part(path: &Path) -> Result<Part> {
    let place = path.display().to_string();
    let file = Foreign::open(path, FIX)?;
    let descriptor = file.metadata.file_metadata().schema_descr_ptr();
    let mut columns = [0; 5];
    let physical = [Type::INT64, Type::BYTE_ARRAY, Type::INT32, Type::INT32, Type::INT32];
    for (wanted, name) in NAMES.iter().enumerate() {
        let found =
            (0..descriptor.num_columns()).find(|&i| descriptor.column(i).path().string() == *name);
        let Some(index) = found else {
            return Err(Error::input(
                place,
                format!("no column `{name}`: this is not a part of a trace"),
                "capture or import the trace again",
            ));
        };
        let column = descriptor.column(index);
        // Other tools make all columns optional. Nulls are rejected when values are read.
        let flat = column.max_def_level() <= 1 && column.max_rep_level() == 0;
        if column.physical_type() != physical[wanted] || !flat {
            return Err(Error::input(
                place,
                format!("column `{name}` is not a plain {:?}", physical[wanted]),
                "capture or import the trace again",
            ));
        }
        columns[wanted] = index;
    }
    Ok(Part { file, place, columns })
}

/// The remedy for a damaged part.
const FIX: &str = "capture or import the trace again, or remove the part from trace.json";

impl Part {
    /// Number of row groups.
    pub fn groups(&self) -> usize {
        self.file.metadata.num_row_groups()
    }

    /// Records that the row groups claim.
    pub fn records(&self) -> u64 {
        self.file.rows()
    }

    /// Decompress the selected columns of row group `index`. Values are expanded on demand.
    pub fn group(&self, index: usize, columns: Columns) -> Result<GroupReader> {
        let metadata = self.file.metadata.row_group(index);
        let rows = usize::try_from(metadata.num_rows()).ok().filter(|&rows| rows <= MAX_ROWS);
        let Some(rows) = rows else {
            return Err(Error::input(
                &self.place,
                format!("row group {index} claims {} records", metadata.num_rows()),
                format!("write groups of at most {MAX_ROWS} records"),
            ));
        };
        let place = format!("{} row group {index}", self.place);
        let selected = [true, columns.kind, columns.size, columns.thread, columns.instr];
        let mut loaded = [const { None }; 5];
        for (column, loaded) in loaded.iter_mut().enumerate().filter(|(i, _)| selected[*i]) {
            let load = || self.column(index, column, rows);
            *loaded = Some(guard(&place_of(&place, column), FIX, load)?);
        }
        Ok(GroupReader { place, rows, next: 0, columns: loaded })
    }

    fn column(&self, group: usize, column: usize, rows: usize) -> ParquetResult<Column> {
        let index = self.columns[column];
        let pages = || self.file.pages(group, index, rows);
        let descriptor = self.file.metadata.row_group(group).column(index).column_descr_ptr();
        if descriptor.max_def_level() == 0
            && let Some(fast) = fast_column(&mut pages()?, column, rows)?
        {
            return Ok(fast);
        }
        let reader = get_column_reader(descriptor, Box::new(pages()?));
        Ok(Column::Streamed(Box::new(Streamed { reader, column, values: Vec::new() })))
    }
}

/// Name of a column in messages.
fn place_of(group: &str, column: usize) -> String {
    format!("{group} column `{}`", NAMES[column])
}

/// A column of one row group, decompressed.
enum Column {
    Constant(u64),
    /// 8-bit indices that equal their values.
    Bytes(Bytes),
    Index8 {
        table: Box<[u64; 256]>,
        bytes: Bytes,
    },
    Index16 {
        table: Vec<u64>,
        bytes: Bytes,
    },
    /// Byte-stream split.
    Split(Bytes),
    Streamed(Box<Streamed>),
}

/// Load a column with the layout of `encode.rs`; `None` for any other layout.
fn fast_column(
    pages: &mut dyn PageReader,
    column: usize,
    rows: usize,
) -> ParquetResult<Option<Column>> {
    let mut dictionary = None;
    let first = match pages.get_next_page()? {
        Some(Page::DictionaryPage { buf, num_values, .. }) => {
            match plain_values(&buf, column, num_values as usize) {
                Some(values) => {
                    in_range(&values, column)?;
                    dictionary = Some(values);
                }
                None => return Ok(None),
            }
            pages.get_next_page()?
        }
        other => other,
    };
    let Some(Page::DataPage { buf, num_values, encoding, .. }) = first else { return Ok(None) };
    if num_values as usize != rows || rows == 0 {
        return Ok(None);
    }
    if encoding == Encoding::BYTE_STREAM_SPLIT && column == ADDR && buf.len() == rows * 8 {
        return Ok(Some(Column::Split(buf)));
    }
    #[allow(deprecated)]
    let indexed = matches!(encoding, Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY);
    let (true, Some(table)) = (indexed, dictionary) else { return Ok(None) };
    // The format of [`super::page`], with one run.
    let Some((&bits, rest)) = buf.split_first() else { return Ok(None) };
    let Some((header, length)) = read_varint(rest) else { return Ok(None) };
    let start = 1 + length;
    let outside = |index: usize| {
        ParquetError::General(format!("index {index} outside a dictionary of {}", table.len()))
    };
    if header & 1 == 0 {
        let (run, true) = (header >> 1, bits <= 8) else { return Ok(None) };
        let index = if bits == 0 { Some(0) } else { buf.get(start).copied() };
        let (true, Some(index)) = (run as usize >= rows, index) else { return Ok(None) };
        let value = table.get(usize::from(index)).ok_or_else(|| outside(usize::from(index)))?;
        return Ok(Some(Column::Constant(*value)));
    }
    let run_length = (header >> 1).saturating_mul(8);
    if run_length < rows as u64 {
        return Ok(None);
    }
    match bits {
        8 if buf.len() >= start + rows => {
            let bytes = buf.slice(start..start + rows);
            let max = usize::from(bytes.iter().copied().max().unwrap_or(0));
            if max >= table.len() {
                return Err(outside(max));
            }
            if table.iter().enumerate().all(|(index, &value)| value == index as u64) {
                return Ok(Some(Column::Bytes(bytes)));
            }
            let mut padded = Box::new([0u64; 256]);
            let used = table.len().min(256);
            padded[..used].copy_from_slice(&table[..used]);
            Ok(Some(Column::Index8 { table: padded, bytes }))
        }
        16 if buf.len() >= start + rows * 2 => {
            let bytes = buf.slice(start..start + rows * 2);
            let max = bytes.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b)).max();
            let max = usize::from(max.unwrap_or(0));
            if max >= table.len() {
                return Err(outside(max));
            }
            Ok(Some(Column::Index16 { table, bytes }))
        }
        _ => Ok(None),
    }
}

/// Check that values fit their column: Parquet has no 16-bit type for `size`.
fn in_range(values: &[u64], column: usize) -> ParquetResult<()> {
    match values.iter().find(|&&value| column == SIZE && value > u64::from(u16::MAX)) {
        Some(value) => Err(ParquetError::General(format!("a size of {value} bytes, above 65535"))),
        None => Ok(()),
    }
}

/// A PLAIN dictionary page as numbers (kinds as [`Kind`] numbers).
fn plain_values(bytes: &[u8], column: usize, count: usize) -> Option<Vec<u64>> {
    match column {
        ADDR => {
            let (words, []) = bytes.as_chunks::<8>() else { return None };
            (words.len() == count).then(|| words.iter().map(|w| u64::from_le_bytes(*w)).collect())
        }
        KIND => {
            let mut rest = bytes;
            let mut values = Vec::new();
            for _ in 0..count {
                let (length, after) = rest.split_first_chunk::<4>()?;
                let length = u32::from_le_bytes(*length) as usize;
                let name = std::str::from_utf8(after.get(..length)?).ok()?;
                values.push(Kind::from_name(name)? as u64);
                rest = &after[length..];
            }
            Some(values)
        }
        _ => {
            let (words, []) = bytes.as_chunks::<4>() else { return None };
            (words.len() == count)
                .then(|| words.iter().map(|w| u64::from(u32::from_le_bytes(*w))).collect())
        }
    }
}

/// A column of any valid layout, read by the Parquet crate. Holds only the values of one request, so
/// that a false row count cannot make us allocate memory.
struct Streamed {
    reader: ColumnReader,
    column: usize,
    values: Vec<u64>,
}

impl Streamed {
    /// Replace the values by the next `count`.
    fn read(&mut self, count: usize) -> ParquetResult<()> {
        self.values.clear();
        match &mut self.reader {
            ColumnReader::Int64ColumnReader(r) => {
                let mut values = Vec::new();
                read_all::<Int64Type>(r, count, &mut values)?;
                self.values.extend(values.into_iter().map(|v| v as u64));
            }
            ColumnReader::Int32ColumnReader(r) => {
                let mut values = Vec::new();
                read_all::<Int32Type>(r, count, &mut values)?;
                self.values.extend(values.into_iter().map(|v| u64::from(v as u32)));
            }
            ColumnReader::ByteArrayColumnReader(r) => {
                let mut values = Vec::new();
                read_all::<ByteArrayType>(r, count, &mut values)?;
                for value in values {
                    let kind = std::str::from_utf8(value.data()).ok().and_then(Kind::from_name);
                    let kind = kind.ok_or_else(|| {
                        let name: String =
                            String::from_utf8_lossy(value.data()).chars().take(40).collect();
                        ParquetError::General(format!("unknown kind {name:?}"))
                    })?;
                    self.values.push(kind as u64);
                }
            }
            _ => return Err(ParquetError::General("a column of an unexpected type".to_owned())),
        }
        match self.values.len() {
            read if read < count => {
                let missing = count - read;
                Err(ParquetError::General(format!("{missing} values are missing at its end")))
            }
            _ => in_range(&self.values, self.column),
        }
    }
}

impl Column {
    /// Append the values of rows `from..to`.
    fn expand<T: Copy>(&self, from: usize, to: usize, out: &mut Vec<T>, cast: impl Fn(u64) -> T) {
        match self {
            Column::Constant(value) => out.resize(out.len() + to - from, cast(*value)),
            Column::Bytes(bytes) => {
                out.extend(bytes[from..to].iter().map(|&value| cast(u64::from(value))));
            }
            Column::Index8 { table, bytes } => {
                out.extend(bytes[from..to].iter().map(|&index| cast(table[usize::from(index)])));
            }
            Column::Index16 { table, bytes } => {
                let pairs = bytes[from * 2..to * 2].as_chunks::<2>().0;
                // A local slice, so that pointer and length are not loaded again for each value.
                let table = table.as_slice();
                // `fast_column` has checked the indices.
                out.extend(pairs.iter().map(|b| cast(table[usize::from(u16::from_le_bytes(*b))])));
            }
            Column::Split(bytes) => {
                let rows = bytes.len() / 8;
                let streams =
                    std::array::from_fn(|byte| &bytes[byte * rows + from..byte * rows + to]);
                join_streams(streams, |values| out.extend(values.iter().map(|&v| cast(v))));
            }
            Column::Streamed(streamed) => out.extend(streamed.values.iter().map(|&v| cast(v))),
        }
    }
}

/// Join the eight bytes of each value (BYTE_STREAM_SPLIT), and pass the values to `take` in blocks.
/// The streams must have the same length.
fn join_streams(streams: [&[u8]; 8], mut take: impl FnMut(&[u64])) {
    const BLOCK: usize = 64;
    let blocks = streams.map(|stream| stream.as_chunks::<BLOCK>());
    for block in 0..blocks[0].0.len() {
        // Join pairs, then pairs of pairs: compilers vectorise each step.
        let bytes = blocks.map(|(whole, _)| &whole[block]);
        let mut pairs = [[0u16; BLOCK]; 4];
        for (pair, halves) in pairs.iter_mut().zip(bytes.as_chunks::<2>().0) {
            for ((pair, low), high) in pair.iter_mut().zip(halves[0]).zip(halves[1]) {
                *pair = u16::from(*low) | u16::from(*high) << 8;
            }
        }
        let mut fours = [[0u32; BLOCK]; 2];
        for (four, halves) in fours.iter_mut().zip(pairs.as_chunks::<2>().0) {
            for ((four, low), high) in four.iter_mut().zip(halves[0]).zip(halves[1]) {
                *four = u32::from(low) | u32::from(high) << 16;
            }
        }
        let mut values = [0u64; BLOCK];
        for ((value, low), high) in values.iter_mut().zip(fours[0]).zip(fours[1]) {
            *value = u64::from(low) | u64::from(high) << 32;
        }
        take(&values);
    }
    let rest = blocks.map(|(_, rest)| rest);
    for index in 0..rest[0].len() {
        take(&[u64::from_le_bytes(rest.map(|stream| stream[index]))]);
    }
}

/// Returns the records of one row group in slices.
pub struct GroupReader {
    place: String,
    rows: usize,
    next: usize,
    /// The selected columns, in the order of [`NAMES`].
    columns: [Option<Column>; 5],
}

impl GroupReader {
    /// Replace `batch` by the next records, at most `limit`. Returns false at the end of the group.
    pub fn next_into(&mut self, limit: usize, batch: &mut Batch) -> Result<bool> {
        batch.clear();
        let (from, to) = (self.next, self.rows.min(self.next + limit));
        if from == to {
            return Ok(false);
        }
        self.next = to;
        for (column, loaded) in self.columns.iter_mut().enumerate() {
            if let Some(Column::Streamed(streamed)) = loaded {
                guard(&place_of(&self.place, column), FIX, || streamed.read(to - from))?;
            }
        }
        if let Some(column) = &self.columns[ADDR] {
            column.expand(from, to, &mut batch.addr, |v| v);
        }
        if let Some(column) = &self.columns[KIND] {
            column.expand(from, to, &mut batch.kind, |v| v as u8);
        }
        if let Some(column) = &self.columns[SIZE] {
            column.expand(from, to, &mut batch.size, |v| v as u16);
        }
        if let Some(column) = &self.columns[THREAD] {
            column.expand(from, to, &mut batch.thread, |v| v as u32);
        }
        if let Some(column) = &self.columns[INSTR] {
            column.expand(from, to, &mut batch.instr, |v| v as u32);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn joining_reverses_splitting(values in prop::collection::vec(any::<u64>(), 0..300)) {
            let stream = |byte: usize| values.iter().map(|v| v.to_le_bytes()[byte]).collect();
            let streams: [Vec<u8>; 8] = std::array::from_fn(stream);
            let mut joined = Vec::new();
            join_streams(streams.each_ref().map(Vec::as_slice), |some| joined.extend_from_slice(some));
            prop_assert_eq!(joined, values);
        }
    }
}
