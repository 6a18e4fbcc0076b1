//! A pool of compressed pages in memory, as in zram and zswap.
//!
//! A page takes one run of chunks of 64 bytes. There is a free list for each length of runs, and no
//! compaction: a pool never shrinks, but free runs are reused for pages of the same length.

use super::slots::Slots;
use super::{Far, Fault, is_zero};
use crate::{PAGE, Slot};

const CHUNK: usize = 64;

/// A compression algorithm. It must not allocate.
pub(super) trait Codec: Send {
    /// Size of the output buffer of `compress`.
    const ROOM: usize = PAGE;
    /// Compress to `into`, [`ROOM`](Codec::ROOM) bytes. Returns the length, or `None` if the buffer is too
    /// small.
    fn compress(&mut self, page: &[u8], into: &mut [u8]) -> Option<usize>;
    /// Decompress; `None` if these bytes are not a page.
    fn decompress(&mut self, bytes: &[u8], page: &mut [u8]) -> Option<()>;
}

pub(super) struct Pool<C> {
    codec: C,
    slots: Slots,
    /// The first chunk and the length in bytes of each slot's page: 0 for zeros, [`PAGE`] if it is not
    /// compressed.
    at: Vec<(u32, u16)>,
    chunks: Vec<u8>,
    /// Free runs by length in chunks.
    runs: Vec<Vec<u32>>,
    buffer: Vec<u8>,
    bytes: u64,
}

impl<C: Codec> Pool<C> {
    pub(super) fn new(codec: C, pages: u32) -> Self {
        Self {
            codec,
            slots: Slots::new(pages),
            at: Vec::new(),
            chunks: Vec::new(),
            runs: vec![Vec::new(); PAGE / CHUNK + 1],
            buffer: vec![0; C::ROOM],
            bytes: 0,
        }
    }
}

impl<C: Codec> Far for Pool<C> {
    fn store(&mut self, page: &[u8]) -> Result<Slot, Fault> {
        let slot = self.slots.take()?;
        let length = if is_zero(page) {
            0
        } else {
            // Compression must save at least a chunk.
            match self.codec.compress(page, &mut self.buffer) {
                Some(length) if length <= PAGE - CHUNK => length,
                _ => {
                    self.buffer[..PAGE].copy_from_slice(page);
                    PAGE
                }
            }
        };
        let count = length.div_ceil(CHUNK);
        let at = match self.runs[count].pop() {
            Some(at) => at,
            None => {
                let at = self.chunks.len() / CHUNK;
                self.chunks.resize((at + count) * CHUNK, 0);
                at as u32
            }
        };
        let start = at as usize * CHUNK;
        self.chunks[start..start + length].copy_from_slice(&self.buffer[..length]);
        if self.at.len() <= slot.index() {
            self.at.resize(slot.index() + 1, (0, 0));
        }
        self.at[slot.index()] = (at, length as u16);
        self.bytes += (count * CHUNK) as u64;
        Ok(slot)
    }

    fn load(&mut self, slot: Slot, page: &mut [u8]) -> Result<(), Fault> {
        let (at, length) = self.at[slot.index()];
        let (start, length) = (at as usize * CHUNK, length as usize);
        let bytes = &self.chunks[start..start + length];
        match length {
            0 => page.fill(0),
            PAGE => page.copy_from_slice(bytes),
            _ => {
                let broken = || Fault::Broken("a compressed page is damaged".into());
                self.codec.decompress(bytes, page).ok_or_else(broken)?;
            }
        }
        Ok(())
    }

    fn free(&mut self, slot: Slot) {
        let (at, length) = self.at[slot.index()];
        let count = (length as usize).div_ceil(CHUNK);
        self.runs[count].push(at);
        self.bytes -= (count * CHUNK) as u64;
        self.slots.free(slot);
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}
