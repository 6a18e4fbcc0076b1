//! `lz4`: a pool of pages compressed by LZ4, which is faster than zstd but compresses less.

use lz4_flex::block::{
    CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size,
};

use super::TierEntry;
use super::pool::{Codec, Pool};
use crate::PAGE;

pub static TIER: TierEntry = TierEntry {
    what: "a pool in memory, compressed by LZ4",
    argument: "",
    is_mapped: false,
    own_time: None,
    check: super::no_argument,
    make: |_, pages| Ok(Box::new(Pool::new(Lz4(CompressTable::default()), pages))),
};

struct Lz4(CompressTable);

impl Codec for Lz4 {
    // `lz4_flex` refuses smaller buffers.
    const ROOM: usize = get_maximum_output_size(PAGE);

    fn compress(&mut self, page: &[u8], into: &mut [u8]) -> Option<usize> {
        compress_into_with_table(page, into, &mut self.0).ok()
    }

    fn decompress(&mut self, bytes: &[u8], page: &mut [u8]) -> Option<()> {
        (decompress_into(bytes, page).ok()? == page.len()).then_some(())
    }
}
