//! oracleGeneral (libCacheSim): one request for each page that a reference touches.
//!
//! Packed little-endian records of 24 bytes: time u32, id u64 (page number), size u32 (page bytes),
//! next i64 (number of the next request for the page, -1 if none). Time is the number of the
//! request divided by 10^6: a million requests per second, as there is no clock.
//!
//! When the next request for a page occurs, `next` of the previous one is set: in memory for the last
//! [`WINDOW`] requests, otherwise in the file, in sorted batches. Needs memory for the window and one
//! entry per page.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use rustc_hash::FxHashMap;

use super::{Encoder, Exporter};
use crate::record::{Record, last_byte};

/// Bytes of a request, and the offset of `next` in it.
const SIZE: u64 = 24;
const NEXT_AT: u64 = 16;
/// Requests whose `next` can still be set in memory: at least this many, at most twice as many.
pub const WINDOW: usize = 1 << 20;

pub struct OracleGeneral;

impl Exporter for OracleGeneral {
    fn name(&self) -> &'static str {
        "oracle-general"
    }
    fn summary(&self) -> &'static str {
        "libCacheSim's oracleGeneral, one request per page touched"
    }
    fn loses(&self) -> &'static str {
        "kinds, offsets, sizes, threads and instructions"
    }
    fn has_page_numbers(&self) -> bool {
        true
    }
    fn needs_file(&self) -> bool {
        true
    }
    fn encoder(&self, file: File, page_bytes: u64) -> io::Result<Box<dyn Encoder>> {
        Ok(Box::new(Requests::new(file, page_bytes, WINDOW)))
    }
}

pub(super) struct Requests {
    file: File,
    shift: u32,
    window: usize,
    /// The latest requests: page and next.
    recent: VecDeque<(u64, i64)>,
    count: u64,
    /// Requests that are already in the file.
    written: u64,
    /// The last request for each page.
    last: FxHashMap<u64, u64>,
    /// Number and `next` of requests in the file whose `next` is still to be written.
    late: Vec<(u64, i64)>,
}

impl Requests {
    pub fn new(file: File, page_bytes: u64, window: usize) -> Self {
        Self {
            file,
            shift: page_bytes.trailing_zeros(),
            window,
            recent: VecDeque::new(),
            count: 0,
            written: 0,
            last: FxHashMap::default(),
            late: Vec::new(),
        }
    }

    fn request(&mut self, page: u64) -> io::Result<()> {
        let number = self.count;
        if let Some(before) = self.last.insert(page, number) {
            match before.checked_sub(self.written) {
                Some(index) => {
                    if let Some((_, next)) = self.recent.get_mut(index as usize) {
                        *next = number as i64;
                    }
                }
                None => self.late.push((before, number as i64)),
            }
        }
        self.recent.push_back((page, -1));
        self.count += 1;
        if self.recent.len() >= 2 * self.window {
            self.write(self.window)?;
        }
        if self.late.len() >= self.window {
            self.write_late()?;
        }
        Ok(())
    }

    /// Write the oldest `count` requests of the window.
    fn write(&mut self, count: usize) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(count * SIZE as usize);
        for (number, (page, next)) in (self.written..).zip(self.recent.drain(..count)) {
            bytes.extend(u32::try_from(number / 1_000_000).unwrap_or(u32::MAX).to_le_bytes());
            bytes.extend(page.to_le_bytes());
            bytes.extend((1u32 << self.shift).to_le_bytes());
            bytes.extend(next.to_le_bytes());
        }
        self.file.write_all(&bytes)?;
        self.written += count as u64;
        Ok(())
    }

    /// Write the `next` fields of requests that are already in the file.
    fn write_late(&mut self) -> io::Result<()> {
        self.late.sort_unstable();
        for (number, next) in self.late.drain(..) {
            self.file.write_all_at(&next.to_le_bytes(), number * SIZE + NEXT_AT)?;
        }
        Ok(())
    }
}

impl Encoder for Requests {
    fn put(&mut self, record: Record) -> io::Result<()> {
        let first = record.addr >> self.shift;
        for page in first..=last_byte(record.addr, record.size) >> self.shift {
            self.request(page)?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> io::Result<()> {
        self.write(self.recent.len())?;
        self.write_late()?;
        self.file.flush()
    }
}
