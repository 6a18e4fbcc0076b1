//! A captured trace as a stream of page accesses.
//!
//! Pages are numbered in the order of their addresses. References to a line that a small
//! direct-mapped cache holds never reach memory and are left out; without it every reference to
//! the stack would count as an access to memory.

use std::path::Path;

use nearfar_hardware::node::LINE;
use nearfar_kernel::tiering::{FRAME, HUGE};
use nearfar_trace::hash::PageMap;
use nearfar_trace::reader::Batches;
use nearfar_trace::{Batch, Columns, Error, Kind, Reader, Result};

use super::engine::Access;

/// The pages of a trace.
#[derive(Debug)]
pub struct TracePages {
    reader: Reader,
    numbers: PageMap<u32>,
    pages: u32,
    accesses: u64,
    lines: usize,
}

/// Where a replay is.
pub struct Replay {
    batches: Batches,
    batch: Batch,
    at: usize,
    cache: Cache,
}

/// A direct-mapped cache of lines that only filters.
struct Cache(Vec<u64>);

impl Cache {
    fn new(lines: usize) -> Self {
        Self(vec![u64::MAX; lines])
    }

    /// Whether the line is there; it is afterwards. A line is written back whole, so the first
    /// store to a line counts like a load: `key` tells the two apart.
    fn hit(&mut self, line: u64, write: bool) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let slot = (line % self.0.len() as u64) as usize;
        let held = self.0[slot];
        let hit = held == line << 1 | 1 || held == line << 1 && !write;
        if !hit {
            self.0[slot] = line << 1 | u64::from(write);
        }
        hit
    }
}

impl TracePages {
    /// Read the trace once. `cache_bytes` is the size of the filter, 0 for none; with `huge` the
    /// numbers keep 2 MiB groups together. `pulse` is told the references so far and may stop.
    ///
    /// # Errors
    /// The trace cannot be read, has no references, or more than 2^31 pages.
    pub fn open(
        path: &Path,
        cache_bytes: u64,
        huge: bool,
        pulse: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Self> {
        let reader = Reader::open(path)?;
        let mut trace = Self {
            reader,
            numbers: PageMap::default(),
            pages: 0,
            accesses: 0,
            lines: (cache_bytes / LINE) as usize,
        };
        let mut replay = trace.replay()?;
        let mut seen = 0;
        while replay.batches.next_into(&mut replay.batch)? {
            for index in 0..replay.batch.len() {
                let reference = Reference::of(&replay.batch, index);
                trace.accesses += each(reference, &mut replay.cache, |page, _| {
                    trace.numbers.entry(page).or_default();
                });
            }
            seen += replay.batch.len() as u64;
            pulse(seen)?;
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

    /// Accesses that pass the filter.
    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    /// Threads of the program.
    pub fn threads(&self) -> u32 {
        (self.reader.info().threads.len() as u32).max(1)
    }

    /// From the beginning.
    pub(super) fn replay(&self) -> Result<Replay> {
        Ok(Replay {
            batches: self.reader.batches(Columns { thread: false, instr: false, ..Columns::ALL }),
            batch: Batch::default(),
            at: 0,
            cache: Cache::new(self.lines),
        })
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
            let reference = Reference::of(&replay.batch, replay.at);
            replay.at += 1;
            each(reference, &mut replay.cache, |page, write| {
                if let Some(number) = self.numbers.get(&page) {
                    out.push(Access::new(*number, write));
                }
            });
        }
        Ok(())
    }
}

struct Reference {
    addr: u64,
    size: u64,
    write: bool,
}

impl Reference {
    fn of(batch: &Batch, index: usize) -> Self {
        Self {
            addr: batch.addr[index],
            size: u64::from(batch.size[index]).max(1),
            write: Kind::from_u8(batch.kind[index]).is_some_and(Kind::writes),
        }
    }
}

/// Tell the page of every line of a reference that the cache does not hold; how many those are.
fn each(reference: Reference, cache: &mut Cache, mut page: impl FnMut(u64, bool)) -> u64 {
    let Reference { addr, size, write } = reference;
    let mut count = 0;
    for line in addr / LINE..=addr.saturating_add(size - 1) / LINE {
        if !cache.hit(line, write) {
            page(line / (FRAME / LINE), write);
            count += 1;
        }
    }
    count
}
