//! `zstd`: a pool of pages compressed by zstd at its fastest level.

use nearfar_trace::{Error, Result};
use zstd::zstd_safe::{CCtx, CParameter, DCtx};

use super::TierEntry;
use super::pool::{Codec, Pool};
use crate::PAGE;

pub static TIER: TierEntry = TierEntry {
    what: "a pool in memory, compressed by zstd",
    argument: "",
    is_mapped: false,
    own_time: None,
    check: super::no_argument,
    make: |_, pages| Ok(Box::new(Pool::new(Zstd::new()?, pages))),
};

struct Zstd {
    compress: CCtx<'static>,
    decompress: DCtx<'static>,
}

impl Zstd {
    /// zstd uses the program's `malloc`. So all its memory is allocated here, before any memory of the
    /// program is managed.
    fn new() -> Result<Self> {
        let no_memory = || Error::missing("--far zstd", "zstd has no memory", "free some memory");
        let mut codec = Self {
            compress: CCtx::try_create().ok_or_else(no_memory)?,
            decompress: DCtx::try_create().ok_or_else(no_memory)?,
        };
        for parameter in [
            CParameter::CompressionLevel(1),
            CParameter::ContentSizeFlag(false),
            CParameter::ChecksumFlag(false),
        ] {
            codec.compress.set_parameter(parameter).map_err(|_| no_memory())?;
        }
        // Compressible bytes, so that every table is allocated.
        let page: Vec<u8> = (0..PAGE).map(|i| (i * i % 61) as u8).collect();
        let mut bytes = vec![0; PAGE];
        let mut back = vec![0; PAGE];
        let length = codec.compress(&page, &mut bytes).ok_or_else(no_memory)?;
        codec.decompress(&bytes[..length], &mut back).ok_or_else(no_memory)?;
        Ok(codec)
    }
}

impl Codec for Zstd {
    fn compress(&mut self, page: &[u8], into: &mut [u8]) -> Option<usize> {
        self.compress.compress2(into, page).ok()
    }

    fn decompress(&mut self, bytes: &[u8], page: &mut [u8]) -> Option<()> {
        (self.decompress.decompress(page, bytes).ok()? == page.len()).then_some(())
    }
}
