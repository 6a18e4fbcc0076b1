//! A captured trace as a stream of page accesses.
//!
//! Pages are numbered in the order of their addresses. Every reference of the trace counts as an
//! access to each page it touches: give the view of a trace that its caches leave
//! ([`crate::filter`]), or the stack will count as traffic to memory.

use std::path::Path;

use nearfar_kernel::tiering::{FRAME, HUGE};
use nearfar_trace::hash::PageMap;
use nearfar_trace::reader::Batches;
use nearfar_trace::{Batch, Columns, Error, Kind, Reader, Result, last_byte};

use super::engine::Access;

/// The pages of a trace.
#[derive(Debug)]
pub struct TracePages {
    reader: Reader,
    numbers: PageMap<u32>,
    pages: u32,
    accesses: u64,
}

/// Where a replay is.
pub struct Replay {
    batches: Batches,
    batch: Batch,
    at: usize,
}

impl TracePages {
    /// Read the trace once. With `huge` the numbers keep 2 MiB groups together. `on_progress` is given the
    /// references so far and may stop.
    ///
    /// # Errors
    /// The trace cannot be read, has no references, or more than 2^31 pages.
    pub fn open(
        path: &Path,
        huge: bool,
        on_progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Self> {
        let reader = Reader::open(path)?;
        let mut trace = Self { reader, numbers: PageMap::default(), pages: 0, accesses: 0 };
        let mut replay = trace.replay()?;
        let mut seen = 0;
        while replay.batches.next_into(&mut replay.batch)? {
            for index in 0..replay.batch.len() {
                for page in pages(&replay.batch, index).0 {
                    trace.numbers.entry(page).or_default();
                    trace.accesses += 1;
                }
            }
            seen += replay.batch.len() as u64;
            on_progress(seen)?;
        }
        let mut order: Vec<u64> = trace.numbers.keys().copied().collect();
        order.sort_unstable();
        let mut next = 0u64;
        let mut group = None;
        for page in order {
            let number = if huge {
                // The group of the page, and its place in it.
                if group != Some(page / u64::from(HUGE)) {
                    group = Some(page / u64::from(HUGE));
                    next += u64::from(HUGE);
                }
                next - u64::from(HUGE) + page % u64::from(HUGE)
            } else {
                next += 1;
                next - 1
            };
            trace.numbers.insert(page, number as u32);
        }
        if next == 0 || next > u64::from(Access::MAX_PAGES) {
            return Err(Error::input(
                path.display().to_string(),
                format!("holds {next} pages"),
                "give a trace of 1 to 2^31 pages",
            ));
        }
        trace.pages = next as u32;
        Ok(trace)
    }

    /// Pages in all.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Accesses to pages.
    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    /// Threads of the program.
    pub fn threads(&self) -> u32 {
        (self.reader.info().threads.len() as u32).max(1)
    }

    /// From the beginning.
    pub(super) fn replay(&self) -> Result<Replay> {
        Ok(Replay { batches: self.reader.batches(Columns::PAGING), batch: Batch::default(), at: 0 })
    }

    /// Further accesses, up to about `count`.
    pub(super) fn fill(
        &self,
        replay: &mut Replay,
        out: &mut Vec<Access>,
        count: usize,
    ) -> Result<()> {
        while out.len() < count {
            if replay.at >= replay.batch.len() {
                replay.at = 0;
                if !replay.batches.next_into(&mut replay.batch)? {
                    return Ok(());
                }
            }
            let (touched, write) = pages(&replay.batch, replay.at);
            replay.at += 1;
            let numbers = touched.filter_map(|page| self.numbers.get(&page));
            out.extend(numbers.map(|number| Access::new(*number, write)));
        }
        Ok(())
    }
}

/// The pages of a reference, and whether it writes.
fn pages(batch: &Batch, index: usize) -> (std::ops::RangeInclusive<u64>, bool) {
    let addr = batch.addr[index];
    let last = last_byte(addr, batch.size[index]);
    let write = Kind::from_u8(batch.kind[index]).is_some_and(Kind::writes);
    (addr / FRAME..=last / FRAME, write)
}
