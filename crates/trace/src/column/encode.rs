//! Encodes a row group as five Parquet column chunks.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::io::Write;
use std::iter::repeat_n;

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::column::page::{CompressedPage, Page, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::statistics::Statistics;
use parquet::file::writer::SerializedFileWriter;
use rustc_hash::FxHashMap;

use super::checked::CheckedPages;
use super::group::{Form, Group};
use super::intern::{DICTIONARY, Positions};
use super::page::{Indices, constant, packed};
use super::{ADDR, INSTR, KIND, NAMES, SIZE, THREAD, schema};
use crate::footprint::PAGE_SHIFT;
use crate::record::Kind;

/// zstd level of every page. Level 2 makes the traces of data-intensive programs a fifth smaller
/// (0.75 instead of 0.93 bytes per reference on the gzip capture), but takes 1 ns more per
/// reference, and a capture must keep up with the program.
const LEVEL: i32 = 1;

type Column = (Bytes, ColumnCloseResult);

/// An encoded group, with the totals for `trace.json`.
pub struct EncodedGroup {
    columns: [Column; NAMES.len()],
    pub records: usize,
    /// Distinct 4 KiB pages, sorted, with the kinds that touched them (one bit each).
    pub pages: Vec<(u64, u8)>,
    pub by_kind: [u64; Kind::ALL.len()],
    /// Thread, records and instructions, sorted by thread.
    pub threads: Vec<(u32, u64, u64)>,
}

impl EncodedGroup {
    #[cfg(test)]
    pub(super) fn bytes(&self) -> impl Iterator<Item = &Bytes> {
        self.columns.iter().map(|(bytes, _)| bytes)
    }

    pub fn append_to<W: Write + Send>(self, file: &mut SerializedFileWriter<W>) -> Result<()> {
        let mut group = file.next_row_group()?;
        for (bytes, close) in self.columns {
            group.append_column(&bytes, close)?;
        }
        group.close()?;
        Ok(())
    }
}

pub struct Encoder {
    positions: Positions,
    zstd: zstd::bulk::Compressor<'static>,
    addr_buffer: Vec<u8>,
    /// Buffers for compressed pages; separate, because dictionaries and data differ much in size.
    dictionaries: BufferPool,
    data: BufferPool,
    /// Buffers for the chunks of each column.
    chunks: [BufferPool; NAMES.len()],
}

/// Buffers that are reused once all their references are dropped: fresh memory, which the kernel has
/// to zero, would take a tenth of the encoding time.
#[derive(Default)]
struct BufferPool(Vec<Bytes>);

impl BufferPool {
    /// Empty memory with room for `bytes`.
    fn take(&mut self, bytes: usize) -> Vec<u8> {
        let unused = self.0.iter().position(Bytes::is_unique);
        let mut memory: Vec<u8> = unused.map_or_else(Vec::new, |at| self.0.swap_remove(at).into());
        memory.clear();
        if memory.capacity() < bytes {
            // Not `reserve`, which copies the old contents.
            memory = Vec::with_capacity(bytes + bytes / 8);
        }
        memory
    }

    fn share(&mut self, memory: Vec<u8>) -> Bytes {
        let bytes = Bytes::from(memory);
        self.0.push(bytes.clone());
        bytes
    }
}

/// The data page of a column of numbers; empty for [`Form::Plain`], which `number_column` encodes.
fn number_data<'a>(form: &Form, indices: &'a mut Indices) -> Cow<'a, [u8]> {
    match form {
        Form::Constant(_) => constant(indices.len()).into(),
        Form::Dictionary(_) => indices.page().into(),
        Form::Plain(_) => Vec::new().into(),
    }
}

impl Encoder {
    pub fn new() -> Result<Self> {
        let zstd = zstd::bulk::Compressor::new(LEVEL);
        let zstd = zstd.map_err(|e| ParquetError::General(e.to_string()))?;
        Ok(Self {
            positions: Positions::default(),
            zstd,
            addr_buffer: Vec::new(),
            dictionaries: BufferPool::default(),
            data: BufferPool::default(),
            chunks: Default::default(),
        })
    }

    /// Encode `group`. It must be cleared before it is filled again.
    pub fn encode(&mut self, group: &mut Group) -> Result<EncodedGroup> {
        let records = group.len();
        // Count before the columns become pages, which are padded.
        let by_kind = group.by_kind();
        let mut pages = std::mem::take(&mut group.further_pages);
        let addr = self.addr_column(group, &mut pages)?;
        let (size, instr) = (group.size.form(), group.instr.form());
        let size_data = number_data(&size, group.size.bytes());
        let instr_data = number_data(&instr, group.instr.bytes());
        let columns = [
            addr,
            self.kind_column(records, &by_kind, group.kind.page())?,
            self.number_column(SIZE, records, &size, &size_data)?,
            self.thread_column(group.threads.runs())?,
            self.number_column(INSTR, records, &instr, &instr_data)?,
        ];
        pages.sort_unstable();
        pages.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 |= next.1;
            }
            same
        });
        let threads = group.threads.totals();
        Ok(EncodedGroup { columns, records, pages, by_kind, threads })
    }

    fn addr_column(&mut self, group: &Group, pages: &mut Vec<(u64, u8)>) -> Result<Column> {
        let rows = group.len();
        let range = |low: Option<&u64>, high: Option<&u64>| {
            let signed = |addr: &u64| addr.cast_signed();
            // Unknown number of distinct values, no nulls, not the deprecated fields `min` and `max`.
            Some(Statistics::int64(low.map(signed), high.map(signed), None, Some(0), false))
        };
        if let Some(addr) = group.addresses.plain() {
            add_pages(addr, group.kind.as_slice(), pages);
            let range = range(addr.iter().min(), addr.iter().max());
            let mut page = self.take_addr_buffer();
            byte_stream_split(addr, &mut page);
            let column = self.chunk(ADDR, rows, None, &page, Encoding::BYTE_STREAM_SPLIT, range);
            self.addr_buffer = page;
            return column;
        }
        let entries = group.addresses.dictionary(&mut self.positions, pages);
        let page = packed(self.take_addr_buffer(), rows, 16, |page| {
            group.addresses.write_indices(&self.positions, page);
        });
        let range = range(entries.first(), entries.last());
        let plain: Vec<u8> = entries.iter().flat_map(|a| a.to_le_bytes()).collect();
        let dictionary = Some((&plain[..], entries.len()));
        let column = self.chunk(ADDR, rows, dictionary, &page, Encoding::RLE_DICTIONARY, range);
        self.addr_buffer = page;
        column
    }

    fn kind_column(
        &mut self,
        rows: usize,
        by_kind: &[u64; Kind::ALL.len()],
        data: &[u8],
    ) -> Result<Column> {
        // Only traces of virtual machines have the last kind; other dictionaries omit it.
        let last = Kind::KernelFetch as usize;
        let kinds = if by_kind[last] > 0 { &Kind::ALL[..] } else { &Kind::ALL[..last] };
        let names: Vec<u8> = kinds
            .iter()
            .flat_map(|kind| {
                let name = kind.name().as_bytes();
                (name.len() as u32).to_le_bytes().into_iter().chain(name.iter().copied())
            })
            .collect();
        let dictionary = Some((&names[..], kinds.len()));
        self.chunk(KIND, rows, dictionary, data, Encoding::RLE_DICTIONARY, None)
    }

    /// Encode `size` or `instr`. [`Form::Plain`], too, gets a dictionary if 65,536 entries suffice.
    fn number_column(
        &mut self,
        column: usize,
        rows: usize,
        form: &Form,
        data: &[u8],
    ) -> Result<Column> {
        match form {
            Form::Constant(number) => self.dictionary_column(column, rows, &[*number], data),
            Form::Dictionary(entries) => self.dictionary_column(column, rows, entries, data),
            Form::Plain(values) => match indices(values) {
                Some((entries, page)) => self.dictionary_column(column, rows, &entries, &page),
                None => {
                    let plain: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                    self.chunk(column, rows, None, &plain, Encoding::PLAIN, None)
                }
            },
        }
    }

    /// Encode `thread` from runs (thread and length).
    fn thread_column(&mut self, runs: &[(u32, usize)]) -> Result<Column> {
        let rows = runs.iter().map(|&(_, length)| length).sum();
        let mut entries: Vec<u32> = runs.iter().map(|&(thread, _)| thread).collect();
        entries.sort_unstable();
        entries.dedup();
        if let [thread] = entries[..] {
            return self.dictionary_column(THREAD, rows, &[thread], &constant(rows));
        }
        let runs = runs.iter();
        if entries.len() > DICTIONARY {
            let plain = runs.flat_map(|&(thread, length)| repeat_n(thread.to_le_bytes(), length));
            let plain: Vec<u8> = plain.flatten().collect();
            return self.chunk(THREAD, rows, None, &plain, Encoding::PLAIN, None);
        }
        let index = |thread: u32| entries.partition_point(|&entry| entry < thread) as u16;
        let indices = runs.flat_map(|&(thread, length)| repeat_n(index(thread), length));
        let page = index_page(rows, entries.len(), indices);
        self.dictionary_column(THREAD, rows, &entries, &page)
    }

    fn dictionary_column(
        &mut self,
        column: usize,
        rows: usize,
        entries: &[u32],
        data: &[u8],
    ) -> Result<Column> {
        let plain: Vec<u8> = entries.iter().flat_map(|v| v.to_le_bytes()).collect();
        let dictionary = Some((&plain[..], entries.len()));
        self.chunk(column, rows, dictionary, data, Encoding::RLE_DICTIONARY, None)
    }

    /// A column chunk of one data page. `dictionary` is its PLAIN values and their number.
    fn chunk(
        &mut self,
        column: usize,
        rows: usize,
        dictionary: Option<(&[u8], usize)>,
        data: &[u8],
        encoding: Encoding,
        range: Option<Statistics>,
    ) -> Result<Column> {
        let dictionary = dictionary.map(|(values, entries)| {
            let page = Page::DictionaryPage {
                buf: compress(&mut self.zstd, &mut self.dictionaries, values)?,
                num_values: entries as u32,
                encoding: Encoding::PLAIN,
                is_sorted: column == ADDR,
            };
            Ok::<_, ParquetError>(CompressedPage::new(page, values.len()))
        });
        let dictionary = dictionary.transpose()?;
        let page = Page::DataPage {
            buf: compress(&mut self.zstd, &mut self.data, data)?,
            num_values: rows as u32,
            encoding,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        };
        let data = CompressedPage::new(page, data.len());
        let memory = &mut self.chunks[column];
        let with_header = |page: &CompressedPage| page.compressed_size() + 64;
        let room = with_header(&data) + dictionary.as_ref().map_or(0, with_header);
        let mut bytes = memory.take(room);
        let mut pages = CheckedPages(&mut bytes);
        let mut uncompressed = 0i64;
        let mut write = |page: CompressedPage| -> Result<u64> {
            let spec = pages.write_page(page)?;
            uncompressed += spec.uncompressed_size as i64;
            Ok(spec.offset)
        };
        let mut encodings = vec![encoding, Encoding::RLE];
        let dictionary_offset = match dictionary {
            Some(page) => {
                encodings.push(Encoding::PLAIN);
                Some(write(page)? as i64)
            }
            None => None,
        };
        let data_offset = write(data)? as i64;
        let descriptor = schema().1.column(column);
        debug_assert_eq!(descriptor.name(), NAMES[column]);
        let mut metadata = ColumnChunkMetaData::builder(descriptor)
            .set_encodings(encodings)
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(LEVEL)?))
            .set_num_values(rows as i64)
            .set_total_compressed_size(bytes.len() as i64)
            .set_total_uncompressed_size(uncompressed)
            .set_data_page_offset(data_offset)
            .set_dictionary_page_offset(dictionary_offset);
        if let Some(range) = range {
            metadata = metadata.set_statistics(range);
        }
        let close = ColumnCloseResult {
            bytes_written: bytes.len() as u64,
            rows_written: rows as u64,
            metadata: metadata.build()?,
            bloom_filter: None,
            column_index: None,
            offset_index: None,
        };
        Ok((memory.share(bytes), close))
    }

    /// An empty buffer for the `addr` data page. The caller returns it to `self.addr_buffer`.
    fn take_addr_buffer(&mut self) -> Vec<u8> {
        let mut buffer = std::mem::take(&mut self.addr_buffer);
        buffer.clear();
        buffer
    }
}

fn compress(
    zstd: &mut zstd::bulk::Compressor<'_>,
    pool: &mut BufferPool,
    bytes: &[u8],
) -> Result<Bytes> {
    let mut memory = pool.take(zstd::zstd_safe::compress_bound(bytes.len()));
    let length = zstd.compress_to_buffer(bytes, &mut memory);
    length.map_err(|e| ParquetError::General(format!("zstd: {e}")))?;
    Ok(pool.share(memory))
}

/// Sorted dictionary and data page of numbers; `None` if more than [`DICTIONARY`] are distinct.
fn indices(values: &[u32]) -> Option<(Vec<u32>, Vec<u8>)> {
    let mut known: FxHashMap<u32, u16> = FxHashMap::default();
    let mut entries: Vec<u32> = Vec::new();
    for &value in values {
        if let Entry::Vacant(entry) = known.entry(value) {
            if entries.len() == DICTIONARY {
                return None;
            }
            // Its index is known once the entries are sorted.
            entry.insert(0);
            entries.push(value);
        }
    }
    entries.sort_unstable();
    for (index, value) in entries.iter().enumerate() {
        known.insert(*value, index as u16);
    }
    let page = index_page(values.len(), entries.len(), values.iter().map(|v| known[v]));
    Some((entries, page))
}

/// A page of indices into a dictionary of length `entries`, with 8 or 16 bits each.
fn index_page(count: usize, entries: usize, indices: impl Iterator<Item = u16>) -> Vec<u8> {
    if entries <= 256 {
        packed(Vec::new(), count, 8, |page| page.extend(indices.map(|index| index as u8)))
    } else {
        packed(Vec::new(), count, 16, |page| page.extend(indices.flat_map(u16::to_le_bytes)))
    }
}

/// Append the 4 KiB pages of `addr` to `pages`, each with the kinds that touched it (one bit each).
/// A page may appear several times.
fn add_pages(addr: &[u64], kind: &[u8], pages: &mut Vec<(u64, u8)>) {
    const NONE: (u64, u8) = (u64::MAX, 0);
    const SLOTS: usize = 1 << 10;
    let mut latest = [NONE; SLOTS];
    for (addr, &kind) in addr.iter().zip(kind) {
        let page = addr >> PAGE_SHIFT;
        let slot = &mut latest[page as usize % SLOTS];
        if slot.0 != page {
            pages.push(std::mem::replace(slot, (page, 0)));
        }
        slot.1 |= 1 << kind;
    }
    pages.extend(latest);
    pages.retain(|page| *page != NONE);
}

/// Replace `bytes` by the first byte of each of `values`, then the second bytes, and so on.
fn byte_stream_split(values: &[u64], bytes: &mut Vec<u8>) {
    const BLOCK: usize = 64;
    let rows = values.len();
    bytes.clear();
    bytes.resize(rows * 8, 0);
    let (blocks, rest) = values.as_chunks::<BLOCK>();
    for (start, values) in (0..).step_by(BLOCK).zip(blocks) {
        // Split into halves, then halves of halves: compilers vectorise each step.
        let mut fours = [[0u32; BLOCK]; 2];
        for (index, value) in values.iter().enumerate() {
            (fours[0][index], fours[1][index]) = (*value as u32, (value >> 32) as u32);
        }
        let mut pairs = [[0u16; BLOCK]; 4];
        for (four, halves) in fours.iter().zip(pairs.as_chunks_mut::<2>().0) {
            for (index, value) in four.iter().enumerate() {
                (halves[0][index], halves[1][index]) = (*value as u16, (value >> 16) as u16);
            }
        }
        for (pair, streams) in pairs.iter().zip(bytes.chunks_exact_mut(2 * rows)) {
            let (low, high) = streams.split_at_mut(rows);
            let range = start..start + BLOCK;
            for ((value, low), high) in
                pair.iter().zip(&mut low[range.clone()]).zip(&mut high[range])
            {
                (*low, *high) = (*value as u8, (value >> 8) as u8);
            }
        }
    }
    for (index, value) in (rows - rest.len()..).zip(rest) {
        for (byte, stream) in value.to_le_bytes().into_iter().zip(bytes.chunks_exact_mut(rows)) {
            stream[index] = byte;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_stream_has_one_byte_of_every_value(values in prop::collection::vec(any::<u64>(), 0..300)) {
            let mut bytes = vec![1, 2, 3];
            byte_stream_split(&values, &mut bytes);
            let stream = |byte: usize| values.iter().map(move |value| value.to_le_bytes()[byte]);
            prop_assert_eq!(bytes, (0..8).flat_map(stream).collect::<Vec<u8>>());
        }

        #[test]
        fn pages_and_kinds_agree_with_a_map(
            records in prop::collection::vec((0u64..1 << 26, 0u8..5, any::<bool>()), 0..2000),
        ) {
            let top = |top: bool| if top { u64::MAX - (1 << 26) } else { 0 };
            let (addr, kind): (Vec<u64>, Vec<u8>) =
                records.iter().map(|&(addr, kind, high)| (addr + top(high), kind)).unzip();
            let mut expected = std::collections::BTreeMap::<u64, u8>::new();
            for (addr, kind) in addr.iter().zip(&kind) {
                *expected.entry(addr >> PAGE_SHIFT).or_default() |= 1 << kind;
            }
            let mut pages = Vec::new();
            add_pages(&addr, &kind, &mut pages);
            let mut found = std::collections::BTreeMap::<u64, u8>::new();
            for (page, kinds) in pages {
                *found.entry(page).or_default() |= kinds;
            }
            prop_assert_eq!(found, expected);
        }
    }
}
