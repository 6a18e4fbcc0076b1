//! A captured trace as a stream of page accesses.
//!
//! Pages are numbered in the order of their addresses. With lifetimes ([`super::lives`]), pages also end, for
//! example when the program unmaps them. Every reference is an access to each page that it touches. Use a
//! trace filtered by caches ([`crate::filter`]); otherwise, for example, stack accesses count as memory
//! traffic.

use std::path::Path;

use nearfar_kernel::tiering::{FRAME, HUGE, Page};
use nearfar_trace::hash::PageMap;
use nearfar_trace::reader::Batches;
use nearfar_trace::{Batch, Columns, Error, Kind, Reader, Result, last_byte};

use super::copies::{Copies, Turn};
use super::engine::{Access, Block};
use super::lives::{Lives, StepKind, lives};
use crate::lifetimes::{PAGE_SHIFT, known, place};
use crate::slot;

/// The pages of a trace.
#[derive(Debug)]
pub struct TracePages {
    reader: Reader,
    /// Page numbers by address / 4 KiB; empty with lifetimes.
    numbers: PageMap<u32>,
    pages: u32,
    accesses: u64,
    lives: Option<Lives>,
    copies: Option<Copies>,
}

/// How pages of a trace are numbered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Numbering {
    /// Number pages in groups of 2 MiB, which are also the unit of lifetimes.
    pub huge: bool,
    /// Use lifetimes, if the trace has events.
    pub lives: bool,
    /// The trace was filtered by CPU caches and lacks writes that hit them. Pages without a write are
    /// therefore not taken for the zero page.
    pub filtered: bool,
}

/// The position of a replay.
pub struct Replay {
    batches: Batches,
    batch: Batch,
    at: usize,
    life: Life,
    turn: Turn,
}

/// The position of a replay in the lifetimes of the trace's pages.
#[derive(Default)]
struct Life {
    /// Indices of the next access, and of the next change in [`Lives::steps`].
    access: u64,
    step: usize,
    /// Current pages by address space and address / 4 KiB ([`place`]).
    pages: PageMap<Page>,
    /// Address spaces by thread.
    spaces: Vec<u32>,
}

impl TracePages {
    /// Read the trace once. `on_progress` is called with the references so far.
    ///
    /// # Errors
    /// The trace cannot be read, has no references, or more than 2^31 pages.
    pub fn open(
        path: &Path,
        numbering: Numbering,
        on_progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Self> {
        let huge = numbering.huge;
        let reader = Reader::open(path)?;
        let (numbers, mut found) = (PageMap::default(), None);
        if numbering.lives && known(&reader)? {
            found = Some(lives(&reader, numbering, on_progress)?);
        }
        let mut trace = Self { reader, numbers, pages: 0, accesses: 0, lives: found, copies: None };
        if let Some(lives) = &trace.lives {
            if lives.accesses == 0 {
                return Err(no_pages(path, 0));
            }
            (trace.pages, trace.accesses) = (lives.pages as u32, lives.accesses);
            return Ok(trace);
        }
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
                // Groups are numbered consecutively; a page keeps its place in its group.
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
            return Err(no_pages(path, next));
        }
        trace.pages = next as u32;
        Ok(trace)
    }

    /// `count` interleaved copies of this program ([`Copies`]).
    ///
    /// # Errors
    /// The trace cannot be read again, or is too long or has too many pages for so many copies.
    pub fn copied(mut self, count: u32) -> Result<Self> {
        if count > 1 {
            let refuse = |what| {
                Error::input("--copies", what, "give fewer, or --copies 1 with a longer capture")
            };
            if u64::from(self.pages) * u64::from(count) > u64::from(Access::MAX_PAGES) {
                let what = format!("{count} times {} pages are more than 2^31", self.pages);
                return Err(refuse(what));
            }
            if self.accesses > Copies::MAX_ACCESSES {
                let what =
                    format!("copies are for short traces; this has {} accesses", self.accesses);
                return Err(refuse(what));
            }
            let (mut replay, mut whole) = (self.replay()?, Block::default());
            self.fill(&mut replay, &mut whole, usize::MAX)?;
            self.copies = Some(Copies::new(whole, count, self.pages, self.has_lives()));
        }
        Ok(self)
    }

    fn count(&self) -> u32 {
        self.copies.as_ref().map_or(1, |copies| copies.count)
    }

    /// Upper bound of page numbers.
    pub fn pages(&self) -> u32 {
        self.pages * self.count()
    }

    pub fn has_lives(&self) -> bool {
        self.lives.is_some()
    }

    /// Peak number of pages, at least 1. For copies, the sum of their peaks.
    pub fn resident(&self) -> u32 {
        self.lives.as_ref().map_or(self.pages, |lives| (lives.peak as u32).max(1)) * self.count()
    }

    /// Distinct 4 KiB pages; with [`Numbering::huge`] and without lifetimes, all pages of each touched
    /// group.
    pub fn footprint(&self) -> u64 {
        let per_copy = self.lives.as_ref().map_or(self.pages.into(), |lives| lives.footprint);
        per_copy * u64::from(self.count())
    }

    pub fn accesses(&self) -> u64 {
        self.accesses * u64::from(self.count())
    }

    /// Threads of one copy: a copy's TLB shootdowns do not interrupt the others.
    pub fn threads(&self) -> u32 {
        (self.reader.info().threads.len() as u32).max(1)
    }

    /// A replay at the beginning.
    pub(super) fn replay(&self) -> Result<Replay> {
        let columns = Columns { thread: self.lives.is_some(), ..Columns::PAGING };
        let (batches, batch) = (self.reader.batches(columns), Batch::default());
        Ok(Replay { batches, batch, at: 0, life: Life::default(), turn: Turn::default() })
    }

    /// Append further accesses, up to about `count` in all.
    pub(super) fn fill(&self, replay: &mut Replay, out: &mut Block, count: usize) -> Result<()> {
        if let Some(copies) = &self.copies {
            copies.fill(&mut replay.turn, out, count);
            return Ok(());
        }
        while out.accesses.len() < count {
            if replay.at >= replay.batch.len() {
                replay.at = 0;
                if !replay.batches.next_into(&mut replay.batch)? {
                    return Ok(());
                }
            }
            let (touched, write) = pages(&replay.batch, replay.at);
            if let Some(lives) = &self.lives {
                let (addr, thread) = (replay.batch.addr[replay.at], replay.batch.thread[replay.at]);
                let life = &mut replay.life;
                life.advance(lives, out);
                let addr = place(life.spaces.get(thread as usize).map_or(0, |space| *space), addr);
                let last = last_byte(addr, replay.batch.size[replay.at]);
                for number in addr >> PAGE_SHIFT..=last >> PAGE_SHIFT {
                    life.advance(lives, out);
                    life.access += 1;
                    let page = life.pages.get(&number);
                    out.accesses.extend(page.map(|page| Access::new(page.number(), write)));
                }
            } else {
                let numbers = touched.filter_map(|page| self.numbers.get(&page));
                out.accesses.extend(numbers.map(|number| Access::new(*number, write)));
            }
            replay.at += 1;
        }
        Ok(())
    }
}

impl Life {
    /// Apply the steps before the next access.
    fn advance(&mut self, lives: &Lives, out: &mut Block) {
        while let Some(step) = lives.steps.get(self.step).filter(|step| step.at <= self.access) {
            self.step += 1;
            match step.kind {
                StepKind::Page { number, page } => {
                    self.pages.insert(number, page);
                }
                StepKind::End(end) => out.ends.push((out.accesses.len(), end)),
                StepKind::Space { thread, space } => *slot(&mut self.spaces, thread) = space,
            }
        }
    }
}

fn no_pages(path: &Path, pages: u64) -> Error {
    let fix = "give a trace of 1 to 2^31 pages";
    Error::input(path.display().to_string(), format!("holds {pages} pages"), fix)
}

/// The pages of a reference, and whether it writes.
fn pages(batch: &Batch, index: usize) -> (std::ops::RangeInclusive<u64>, bool) {
    let addr = batch.addr[index];
    let last = last_byte(addr, batch.size[index]);
    let write = Kind::from_u8(batch.kind[index]).is_some_and(Kind::writes);
    (addr / FRAME..=last / FRAME, write)
}
