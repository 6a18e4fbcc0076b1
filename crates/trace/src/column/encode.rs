//! Encoding a row group into five Parquet column chunks.

use std::collections::hash_map::Entry;
use std::io::Write;

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::column::page::{CompressedPage, Page, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::statistics::Statistics;
use parquet::file::writer::{SerializedFileWriter, SerializedPageWriter, TrackedWrite};
use rustc_hash::FxHashMap;

use super::{ADDR, INSTR, KIND, NAMES, ROW_GROUP, SIZE, THREAD, schema};
use crate::footprint::PAGE_SHIFT;
use crate::hash::PageMap;
use crate::record::{Batch, Kind};

/// zstd levels by measurement: level 2 pays on addresses (0.80 -> 0.65 bytes a reference on the
/// gzip capture), nowhere else.
const LEVEL_ADDR: i32 = 2;
const LEVEL_OTHER: i32 = 1;
/// Most entries of a dictionary: indices have 16 bits.
const DICTIONARY: usize = 1 << 16;
const SLOTS: usize = DICTIONARY * 2;

/// A slot of the address table: all that a look-up needs in one cache line.
#[derive(Clone, Copy)]
struct Slot {
    addr: u64,
    id: u16,
    /// Kinds that touched the address; 0 marks an empty slot.
    kinds: u8,
}

const EMPTY: Slot = Slot { addr: 0, id: 0, kinds: 0 };

/// One encoded row group, with what the writer needs to know about its records.
pub struct EncodedGroup {
    columns: Vec<(Bytes, ColumnCloseResult)>,
    /// Records in the group.
    pub records: usize,
    /// Distinct 4 KiB pages with the kinds that touched them (a bit each); a page may come twice.
    pub pages: Vec<(u64, u8)>,
    /// Records by kind.
    pub by_kind: [u64; 5],
    /// Records and instructions by thread index.
    pub threads: Vec<(u32, u64, u64)>,
}

impl EncodedGroup {
    /// Append the group to a part.
    pub fn append_to<W: Write + Send>(self, file: &mut SerializedFileWriter<W>) -> Result<()> {
        let mut group = file.next_row_group()?;
        for (bytes, close) in self.columns {
            group.append_column(&bytes, close)?;
        }
        group.close()?;
        Ok(())
    }
}

/// Encodes row groups; keeps its tables from one to the next.
pub struct Encoder {
    slots: Vec<Slot>,
    /// Slot of each distinct address, in order of appearance.
    order: Vec<u32>,
    ids: Vec<u16>,
    zstd: zstd::bulk::Compressor<'static>,
}

struct Addresses {
    /// Sorted distinct addresses; `None` when there are too many.
    dictionary: Option<Vec<u64>>,
    /// The data page, not compressed.
    page: Vec<u8>,
}

impl Encoder {
    /// Tables take about 2 MiB.
    pub fn new() -> Result<Self> {
        Ok(Self {
            slots: vec![EMPTY; SLOTS],
            order: Vec::with_capacity(DICTIONARY),
            ids: Vec::with_capacity(ROW_GROUP),
            zstd: zstd::bulk::Compressor::new(LEVEL_OTHER)
                .map_err(|e| ParquetError::General(e.to_string()))?,
        })
    }

    /// Encode `batch` (at most [`ROW_GROUP`] records) as one row group.
    pub fn encode(&mut self, batch: &Batch) -> Result<EncodedGroup> {
        let mut pages = Vec::new();
        let addresses = match self.intern(batch) {
            true => {
                let slots = self.order.iter().map(|&slot| self.slots[slot as usize]);
                pages.extend(slots.map(|slot| (slot.addr >> PAGE_SHIFT, slot.kinds)));
                self.rank()
            }
            false => {
                let mut seen: PageMap<u8> = PageMap::default();
                for (a, &kind) in batch.addr.iter().zip(&batch.kind) {
                    *seen.entry(a >> PAGE_SHIFT).or_default() |= 1 << kind;
                }
                pages.extend(seen);
                Addresses { dictionary: None, page: byte_stream_split(&batch.addr) }
            }
        };
        spanned_pages(batch, &mut pages);
        pages.sort_unstable();
        pages.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 |= next.1;
            }
            same
        });

        let mut columns = vec![self.addr_column(batch, addresses)?];
        let names: Vec<u8> = Kind::ALL
            .iter()
            .flat_map(|kind| {
                let name = kind.name().as_bytes();
                (name.len() as u32).to_le_bytes().into_iter().chain(name.iter().copied())
            })
            .collect();
        let page = packed(&batch.kind, 8);
        columns.push(self.dictionary_column(
            KIND,
            batch.len(),
            &names,
            5,
            page,
            LEVEL_OTHER,
            None,
        )?);
        columns.push(self.number_column(SIZE, &batch.size)?);
        columns.push(self.number_column(THREAD, &batch.thread)?);
        columns.push(self.number_column(INSTR, &batch.instr)?);

        // A vectorised count a kind beats one histogram, whose sums wait for each other.
        let by_kind =
            Kind::ALL.map(|kind| batch.kind.iter().filter(|&&k| k == kind as u8).count() as u64);
        Ok(EncodedGroup {
            columns,
            records: batch.len(),
            pages,
            by_kind,
            threads: thread_totals(batch),
        })
    }

    /// Give each address its number in order of appearance; false when there are too many.
    fn intern(&mut self, batch: &Batch) -> bool {
        self.slots.fill(EMPTY);
        self.order.clear();
        self.ids.clear();
        self.ids.resize(batch.len(), 0);
        let slots = self.slots.as_mut_slice();
        let records = batch.addr.iter().zip(&batch.kind);
        for ((&addr, &kind), out) in records.zip(self.ids.iter_mut()) {
            // Fibonacci hashing: the high bits of the product.
            let mut place = (addr.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 47) as usize;
            let bit = 1u8 << (kind & 7);
            loop {
                let slot = &mut slots[place & (SLOTS - 1)];
                if slot.addr == addr && slot.kinds != 0 {
                    // Rarely new: most slots are then only read.
                    if slot.kinds & bit == 0 {
                        slot.kinds |= bit;
                    }
                    *out = slot.id;
                    break;
                }
                if slot.kinds == 0 {
                    if self.order.len() == DICTIONARY {
                        return false;
                    }
                    *slot = Slot { addr, id: self.order.len() as u16, kinds: bit };
                    *out = slot.id;
                    self.order.push(place as u32);
                    break;
                }
                place = (place + 1) & (SLOTS - 1);
            }
        }
        true
    }

    /// Sort the interned addresses and renumber: neighbours in memory get neighbouring indices,
    /// which zstd compresses better than order of appearance (0.85 -> 0.80 bytes a reference).
    fn rank(&self) -> Addresses {
        let keys = || self.order.iter().map(|&slot| self.slots[slot as usize].addr);
        let mut rank = vec![0u16; self.order.len()];
        let dictionary: Vec<u64> = if keys().all(|key| key >> 48 == 0) {
            let mut order: Vec<u64> =
                keys().enumerate().map(|(id, key)| key << 16 | id as u64).collect();
            order.sort_unstable();
            for (place, packed) in order.iter().enumerate() {
                rank[(packed & 0xFFFF) as usize] = place as u16;
            }
            order.into_iter().map(|packed| packed >> 16).collect()
        } else {
            let mut order: Vec<(u64, u16)> =
                keys().enumerate().map(|(id, key)| (key, id as u16)).collect();
            order.sort_unstable();
            for (place, (_, id)) in order.iter().enumerate() {
                rank[usize::from(*id)] = place as u16;
            }
            order.into_iter().map(|(key, _)| key).collect()
        };
        let mut page = run_header(self.ids.len(), 16);
        let start = page.len();
        page.resize(start + self.ids.len() * 2, 0);
        for (out, &id) in page[start..].as_chunks_mut::<2>().0.iter_mut().zip(&self.ids) {
            *out = rank[usize::from(id)].to_le_bytes();
        }
        pad(&mut page, self.ids.len(), 16);
        Addresses { dictionary: Some(dictionary), page }
    }

    fn addr_column(
        &mut self,
        batch: &Batch,
        addresses: Addresses,
    ) -> Result<(Bytes, ColumnCloseResult)> {
        let low = batch.addr.iter().min().map(|&a| a as i64);
        let high = batch.addr.iter().max().map(|&a| a as i64);
        let range = Statistics::int64(low, high, None, Some(0), false);
        match addresses.dictionary {
            Some(entries) => {
                let plain: Vec<u8> = entries.iter().flat_map(|a| a.to_le_bytes()).collect();
                let count = entries.len();
                self.dictionary_column(
                    ADDR,
                    batch.len(),
                    &plain,
                    count,
                    addresses.page,
                    LEVEL_ADDR,
                    Some(range),
                )
            }
            None => self.value_column(
                ADDR,
                batch.len(),
                &addresses.page,
                Encoding::BYTE_STREAM_SPLIT,
                Some(range),
            ),
        }
    }

    /// `size`, `thread` or `instr`.
    fn number_column<T>(
        &mut self,
        column: usize,
        values: &[T],
    ) -> Result<(Bytes, ColumnCloseResult)>
    where
        T: Copy + PartialEq + Into<u32>,
    {
        let rows = values.len();
        let (entries, page) = match values.split_first() {
            Some((&first, rest)) if rest.iter().any(|&v| v != first) => match indices(values) {
                Some(found) => found,
                None => {
                    let plain: Vec<u8> =
                        values.iter().flat_map(|&v| Into::<u32>::into(v).to_le_bytes()).collect();
                    return self.value_column(column, rows, &plain, Encoding::PLAIN, None);
                }
            },
            Some((&first, _)) => (vec![first.into()], constant(rows)),
            None => (Vec::new(), constant(0)),
        };
        let plain: Vec<u8> = entries.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.dictionary_column(column, rows, &plain, entries.len(), page, LEVEL_OTHER, None)
    }

    #[allow(clippy::too_many_arguments)]
    fn dictionary_column(
        &mut self,
        column: usize,
        rows: usize,
        dictionary: &[u8],
        entries: usize,
        page: Vec<u8>,
        level: i32,
        range: Option<Statistics>,
    ) -> Result<(Bytes, ColumnCloseResult)> {
        let dictionary_page = CompressedPage::new(
            Page::DictionaryPage {
                buf: self.compress(dictionary, LEVEL_OTHER)?,
                num_values: entries as u32,
                encoding: Encoding::PLAIN,
                is_sorted: column == ADDR,
            },
            dictionary.len(),
        );
        let data_page =
            data_page(self.compress(&page, level)?, page.len(), rows, Encoding::RLE_DICTIONARY);
        chunk(column, rows, Some(dictionary_page), data_page, Encoding::RLE_DICTIONARY, range)
    }

    fn value_column(
        &mut self,
        column: usize,
        rows: usize,
        page: &[u8],
        encoding: Encoding,
        range: Option<Statistics>,
    ) -> Result<(Bytes, ColumnCloseResult)> {
        let data = data_page(self.compress(page, LEVEL_OTHER)?, page.len(), rows, encoding);
        chunk(column, rows, None, data, encoding, range)
    }

    fn compress(&mut self, bytes: &[u8], level: i32) -> Result<Bytes> {
        let failed = |e: std::io::Error| ParquetError::General(format!("zstd: {e}"));
        self.zstd.set_compression_level(level).map_err(failed)?;
        self.zstd.compress(bytes).map(Bytes::from).map_err(failed)
    }
}

/// Sorted dictionary and data page of a number column; `None` when it has too many values.
fn indices<T: Copy + Into<u32>>(values: &[T]) -> Option<(Vec<u32>, Vec<u8>)> {
    /// Every size and almost every gap is below.
    const SMALL: usize = 1 << 16;
    let most: u32 = values.iter().map(|&v| v.into()).max().unwrap_or(0);
    if (most as usize) < SMALL {
        let mut seen = vec![false; SMALL];
        for &value in values {
            seen[value.into() as usize] = true;
        }
        let entries: Vec<u32> = (0..SMALL as u32).filter(|&v| seen[v as usize]).collect();
        if entries.len() <= 256 {
            let mut index = vec![0u8; SMALL];
            for (place, &value) in entries.iter().enumerate() {
                index[value as usize] = place as u8;
            }
            let bytes: Vec<u8> = values.iter().map(|&v| index[v.into() as usize]).collect();
            return Some((entries, packed(&bytes, 8)));
        }
    }
    let mut known: FxHashMap<u32, u16> = FxHashMap::default();
    let mut entries: Vec<u32> = Vec::new();
    for &value in values {
        let value = value.into();
        if let Entry::Vacant(place) = known.entry(value) {
            if entries.len() == DICTIONARY {
                return None;
            }
            place.insert(0);
            entries.push(value);
        }
    }
    entries.sort_unstable();
    for (place, value) in entries.iter().enumerate() {
        known.insert(*value, place as u16);
    }
    let found = values.iter().map(|&v| known[&v.into()]);
    let page = if entries.len() <= 256 {
        packed(&found.map(|index| index as u8).collect::<Vec<u8>>(), 8)
    } else {
        packed(&found.flat_map(u16::to_le_bytes).collect::<Vec<u8>>(), 16)
    };
    Some((entries, page))
}

/// Pages past the first of records that lie over a 4 KiB border.
fn spanned_pages(batch: &Batch, pages: &mut Vec<(u64, u8)>) {
    let mask = (1u64 << PAGE_SHIFT) - 1;
    for ((&addr, &size), &kind) in batch.addr.iter().zip(&batch.size).zip(&batch.kind) {
        if (addr & mask) + u64::from(size) > mask + 1 {
            let last = addr.saturating_add(u64::from(size) - 1) >> PAGE_SHIFT;
            pages.extend(((addr >> PAGE_SHIFT) + 1..=last).map(|page| (page, 1 << kind)));
        }
    }
}

fn thread_totals(batch: &Batch) -> Vec<(u32, u64, u64)> {
    let mut totals: FxHashMap<u32, (u64, u64)> = FxHashMap::default();
    let mut start = 0;
    // Threads come in long runs: one map access a run.
    for run in batch.thread.chunk_by(|a, b| a == b) {
        let end = start + run.len();
        let total = totals.entry(run[0]).or_default();
        total.0 += run.len() as u64;
        total.1 += batch.instr[start..end].iter().map(|&n| u64::from(n)).sum::<u64>();
        start = end;
    }
    let mut totals: Vec<_> = totals.into_iter().map(|(t, (n, i))| (t, n, i)).collect();
    totals.sort_unstable();
    totals
}

fn byte_stream_split(values: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(values.len() * 8);
    for byte in 0..8 {
        bytes.extend(values.iter().map(|value| (value >> (8 * byte)) as u8));
    }
    bytes
}

fn varint(bytes: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Bit width, then the header of one bit-packed run of `count` values (groups of eight).
fn run_header(count: usize, bits: u8) -> Vec<u8> {
    let mut bytes = vec![bits];
    varint(&mut bytes, count.div_ceil(8) << 1 | 1);
    bytes
}

fn pad(bytes: &mut Vec<u8>, count: usize, bits: usize) {
    let missing = (count.div_ceil(8) * 8 - count) * bits / 8;
    bytes.resize(bytes.len() + missing, 0);
}

fn packed(indices: &[u8], bits: u8) -> Vec<u8> {
    let count = indices.len() / usize::from(bits / 8);
    let mut bytes = run_header(count, bits);
    bytes.extend_from_slice(indices);
    pad(&mut bytes, count, usize::from(bits));
    bytes
}

/// One run-length run of index 0.
fn constant(count: usize) -> Vec<u8> {
    let mut bytes = vec![8];
    varint(&mut bytes, count << 1);
    bytes.push(0);
    bytes
}

fn data_page(buf: Bytes, plain: usize, rows: usize, encoding: Encoding) -> CompressedPage {
    CompressedPage::new(
        Page::DataPage {
            buf,
            num_values: rows as u32,
            encoding,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        },
        plain,
    )
}

fn chunk(
    column: usize,
    rows: usize,
    dictionary: Option<CompressedPage>,
    data: CompressedPage,
    encoding: Encoding,
    range: Option<Statistics>,
) -> Result<(Bytes, ColumnCloseResult)> {
    let mut sink = TrackedWrite::new(Vec::new());
    let mut pages = SerializedPageWriter::new(&mut sink);
    let mut plain = 0i64;
    let mut write = |page: CompressedPage| -> Result<u64> {
        let spec = pages.write_page(page)?;
        plain += spec.uncompressed_size as i64;
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
    let bytes = sink.into_inner()?;
    let descriptor = schema().1.column(column);
    debug_assert_eq!(descriptor.name(), NAMES[column]);
    let mut metadata = ColumnChunkMetaData::builder(descriptor)
        .set_encodings(encodings)
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(LEVEL_OTHER)?))
        .set_num_values(rows as i64)
        .set_total_compressed_size(bytes.len() as i64)
        .set_total_uncompressed_size(plain)
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
    Ok((Bytes::from(bytes), close))
}
