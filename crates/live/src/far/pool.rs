//! A pool of compressed pages in memory, as zram and zswap keep them.
//!
//! A page is kept in as many pieces of 64 bytes as it needs, in one run. Runs of each length have a
//! list of free ones; there is no compaction, so a pool never gets smaller, but gives way to other
//! pages of the same length.

use super::slots::Slots;
use super::{Far, Fault, is_zero};
use crate::{PAGE, Slot};

/// Bytes of a piece.
const PIECE: usize = 64;

/// How a page is compressed. Neither may take memory.
pub(super) trait Codec: Send {
    /// Bytes that compressing a page may need to work in.
    const ROOM: usize = PAGE;
    /// Compress to `into`, [`ROOM`](Codec::ROOM) bytes; how many, or none if it cannot be done in them.
    fn compress(&mut self, page: &[u8], into: &mut [u8]) -> Option<usize>;
    /// The reverse; `None` if these bytes are not a page.
    fn decompress(&mut self, bytes: &[u8], page: &mut [u8]) -> Option<()>;
}

/// The pool.
pub(super) struct Pool<C> {
    codec: C,
    slots: Slots,
    /// Where the page of each slot begins, in pieces, and its bytes: 0 for a page of zeros, a whole
    /// page if it could not be compressed.
    at: Vec<(u32, u16)>,
    pieces: Vec<u8>,
    /// Free runs by length in pieces.
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
            pieces: Vec::new(),
            runs: vec![Vec::new(); PAGE / PIECE + 1],
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
            // What saves less than a piece is kept as it is.
            match self.codec.compress(page, &mut self.buffer) {
                Some(length) if length <= PAGE - PIECE => length,
                _ => {
                    self.buffer[..PAGE].copy_from_slice(page);
                    PAGE
                }
            }
        };
        let count = length.div_ceil(PIECE);
        let at = match self.runs[count].pop() {
            Some(at) => at,
            None => {
                let at = self.pieces.len() / PIECE;
                self.pieces.resize((at + count) * PIECE, 0);
                at as u32
            }
        };
        let start = at as usize * PIECE;
        self.pieces[start..start + length].copy_from_slice(&self.buffer[..length]);
        if self.at.len() <= slot.index() {
            self.at.resize(slot.index() + 1, (0, 0));
        }
        self.at[slot.index()] = (at, length as u16);
        self.bytes += (count * PIECE) as u64;
        Ok(slot)
    }

    fn load(&mut self, slot: Slot, page: &mut [u8]) -> Result<(), Fault> {
        let (at, length) = self.at[slot.index()];
        let (start, length) = (at as usize * PIECE, length as usize);
        let bytes = &self.pieces[start..start + length];
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
        let count = (length as usize).div_ceil(PIECE);
        self.runs[count].push(at);
        self.bytes -= (count * PIECE) as u64;
        self.slots.free(slot);
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}
