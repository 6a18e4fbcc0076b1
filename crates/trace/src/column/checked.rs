//! Writes pages with a CRC in the header: the Parquet crate checks CRCs, but does not write them.

use parquet::basic::Encoding;
use parquet::column::page::{CompressedPage, Page, PageWriteSpec, PageWriter};
use parquet::errors::{ParquetError, Result};

use super::page::varint;

/// Writes consecutive pages to memory, each with the CRC-32 of its compressed bytes
/// (parquet.thrift, `PageHeader.crc`).
pub(crate) struct CheckedPages<'a>(pub(crate) &'a mut Vec<u8>);

impl PageWriter for CheckedPages<'_> {
    fn write_page(&mut self, page: CompressedPage) -> Result<PageWriteSpec> {
        let from = self.0.len();
        header(&page, self.0)?;
        let header = self.0.len() - from;
        self.0.extend_from_slice(page.data());
        let mut spec = PageWriteSpec::new();
        spec.page_type = page.page_type();
        spec.uncompressed_size = header + page.uncompressed_size();
        spec.compressed_size = header + page.compressed_size();
        spec.num_values = page.num_values();
        spec.offset = from as u64;
        spec.bytes_written = (self.0.len() - from) as u64;
        Ok(spec)
    }

    fn close(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Append the page's header, in Thrift's compact protocol. Statistics are in the column chunk only.
fn header(page: &CompressedPage, to: &mut Vec<u8>) -> Result<()> {
    let size = |bytes: usize| {
        i32::try_from(bytes).map_err(|_| ParquetError::General(format!("a page of {bytes} bytes")))
    };
    let number = |encoding: Encoding| encoding as i32;
    let values = size(page.num_values() as usize)?;
    let mut fields = Fields { to, last_field: 0 };
    fields.integer(1, page.page_type() as i32);
    fields.integer(2, size(page.uncompressed_size())?);
    fields.integer(3, size(page.compressed_size())?);
    fields.integer(4, crc32fast::hash(page.data()).cast_signed());
    match page.compressed_page() {
        Page::DataPage { encoding, def_level_encoding, rep_level_encoding, .. } => {
            fields.begin(5, STRUCT);
            let mut data = Fields { to: &mut *fields.to, last_field: 0 };
            data.integer(1, values);
            data.integer(2, number(*encoding));
            data.integer(3, number(*def_level_encoding));
            data.integer(4, number(*rep_level_encoding));
            data.end();
        }
        Page::DictionaryPage { encoding, is_sorted, .. } => {
            fields.begin(7, STRUCT);
            let mut dictionary = Fields { to: &mut *fields.to, last_field: 0 };
            dictionary.integer(1, values);
            dictionary.integer(2, number(*encoding));
            dictionary.begin(3, if *is_sorted { TRUE } else { FALSE });
            dictionary.end();
        }
        Page::DataPageV2 { .. } => {
            return Err(ParquetError::NYI("a checked page of version 2".to_owned()));
        }
    }
    fields.end();
    Ok(())
}

// Field types of the compact protocol.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const INTEGER: u8 = 5;
const STRUCT: u8 = 12;

/// Writes the fields of one struct, by ascending number.
struct Fields<'a> {
    to: &'a mut Vec<u8>,
    last_field: u8,
}

impl Fields<'_> {
    fn begin(&mut self, field: u8, kind: u8) {
        self.to.push((field - self.last_field) << 4 | kind);
        self.last_field = field;
    }

    fn integer(&mut self, field: u8, value: i32) {
        self.begin(field, INTEGER);
        let zigzag = ((value << 1) ^ (value >> 31)).cast_unsigned();
        varint(self.to, zigzag as usize);
    }

    fn end(&mut self) {
        self.to.push(0);
    }
}

#[cfg(test)]
mod tests {
    use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
    use proptest::prelude::*;

    use super::*;

    /// The page as written by the Parquet crate, which has no checksum.
    fn without_checksum(page: CompressedPage) -> Vec<u8> {
        let mut sink = TrackedWrite::new(Vec::new());
        SerializedPageWriter::new(&mut sink).write_page(page).unwrap();
        sink.into_inner().unwrap()
    }

    proptest! {
        #[test]
        fn a_page_equals_that_of_the_parquet_crate_plus_a_checksum(
            data in prop::collection::vec(any::<u8>(), 0..400),
            plain in 0usize..1 << 30,
            num_values in 0u32..1 << 30,
            dictionary in any::<bool>(),
            is_sorted in any::<bool>(),
        ) {
            let make = || {
                let buf = data.clone().into();
                let page = if dictionary {
                    Page::DictionaryPage { buf, num_values, encoding: Encoding::PLAIN, is_sorted }
                } else {
                    Page::DataPage {
                        buf,
                        num_values,
                        encoding: Encoding::RLE_DICTIONARY,
                        def_level_encoding: Encoding::RLE,
                        rep_level_encoding: Encoding::RLE,
                        statistics: None,
                    }
                };
                CompressedPage::new(page, plain)
            };
            let mut ours = vec![1, 2, 3];
            let spec = CheckedPages(&mut ours).write_page(make()).unwrap();
            prop_assert_eq!((spec.offset, spec.bytes_written), (3, ours.len() as u64 - 3));
            prop_assert_eq!(spec.compressed_size, ours.len() - 3);
            prop_assert_eq!(spec.uncompressed_size, ours.len() - 3 - data.len() + plain);
            let theirs = without_checksum(make());
            // Three fields precede the checksum, each a byte for its header, then a varint.
            let mut at = 0;
            for _ in 0..3 {
                at += 2 + theirs[at + 1..].iter().take_while(|&&byte| byte > 0x7F).count();
            }
            prop_assert_eq!(&ours[3..3 + at], &theirs[..at]);
            let crc = i64::from(crc32fast::hash(&data).cast_signed());
            let mut rest = ((crc << 1) ^ (crc >> 63)) as u64;
            // Field header: 1 more than the previous field's number, type integer (5).
            let mut field = vec![0x15];
            while rest > 0x7F {
                field.push((rest % 128) as u8 + 128);
                rest /= 128;
            }
            field.push(rest as u8);
            let (checksum, after) = ours[3 + at..].split_at(field.len());
            prop_assert_eq!(checksum, &field);
            // Field numbers are relative to the previous field: 3 without a checksum, 4 with it.
            prop_assert_eq!(after[0] + 0x10, theirs[at]);
            prop_assert_eq!(&after[1..], &theirs[at + 1..]);
        }
    }
}
