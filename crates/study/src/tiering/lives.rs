//! Lifetimes of a trace's pages ([`crate::lifetimes`]), computed once as a list of steps that every
//! run of the study applies.
//!
//! The pages of the study are the *frames* of a [`PageTable`], numbered in the order of the addresses at
//! which they were first mapped. Frames of one address that are in use at the same time (for example after a
//! fork) have adjacent numbers.

use std::ops::Range;

use nearfar_kernel::tiering::{HUGE, Page};
use nearfar_trace::hash::PageMap;
use nearfar_trace::{Batch, Columns, Error, KindSet, Reader, Result, last_byte};

use super::engine::{Access, End};
use super::trace::Numbering;
use crate::lifetimes::{
    Action, Blocks, Events, NO_FRAME, Next, PAGE_SHIFT, PageTable, Recent, SPACE_SHIFT, Spaces,
};
use crate::slot;

/// A change before an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepKind {
    /// The thread now runs in this address space.
    Space { thread: u32, space: u32 },
    /// References to this 4 KiB block (space and address) now access this page.
    Page { number: u64, page: Page },
    /// A page or its TLB entries are removed.
    End(End),
}

/// A change before the access of index `at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub at: u64,
    pub kind: StepKind,
}

/// The lifetimes of a trace's pages.
#[derive(Debug, Default)]
pub(super) struct Lives {
    /// Changes, in order.
    pub steps: Vec<Step>,
    /// Upper bound of page numbers.
    pub pages: u64,
    /// Peak number of base pages in use.
    pub peak: u64,
    /// Distinct 4 KiB blocks referenced, including those of the zero page.
    pub footprint: u64,
    /// References, one for each 4 KiB block that they touch.
    pub accesses: u64,
}

/// Sentinel: no place (see [`Places`]). A block without a place is in the zero page.
const NO_PLACE: u32 = u32::MAX;

/// Places: provisional page numbers of frames, reused after release.
#[derive(Default)]
struct Places {
    /// First place in the list of each virtual page number.
    first: PageMap<u32>,
    all: Vec<Place>,
}

struct Place {
    /// Virtual page number.
    number: u64,
    /// Next place in the list of `number`; [`NO_PLACE`] at its end.
    next: u32,
    used: bool,
}

impl Places {
    /// Take a free place of this page number.
    fn take(&mut self, number: u64) -> u32 {
        let new = self.all.len() as u32;
        let mut at = *self.first.entry(number).or_insert(new);
        while let Some(place) = self.all.get_mut(at as usize) {
            if !std::mem::replace(&mut place.used, true) {
                return at;
            }
            if place.next == NO_PLACE {
                place.next = new;
            }
            at = place.next;
        }
        self.all.push(Place { number, next: NO_PLACE, used: true });
        new
    }

    fn release(&mut self, place: u32) {
        self.all[place as usize].used = false;
    }

    /// Rank of each place by address.
    fn ranks(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.all.len() as u32).collect();
        // Stable: places of one address stay in the order of their creation.
        order.sort_by_key(|place| self.all[*place as usize].number);
        let mut ranks = vec![0; order.len()];
        for (rank, place) in (0..).zip(order) {
            ranks[place as usize] = rank;
        }
        ranks
    }
}

#[derive(Default)]
struct Builder {
    blocks: Blocks,
    table: PageTable,
    /// log2 of the blocks in a page.
    shift: u32,
    recent: Recent,
    places: Places,
    /// Place of each frame, by id.
    place_of: Vec<u32>,
    /// Place of each translation that TLBs may hold, by page id.
    translated: Vec<u32>,
    /// Place of each block number, as of the last step.
    known: PageMap<u32>,
    /// Address space of each thread, as of the last step.
    spaces: Vec<u32>,
    /// The result; its pages are places until [`Builder::finish`].
    lives: Lives,
}

/// Compute the lifetimes of a trace's pages.
///
/// # Errors
/// The trace cannot be read; the error of `on_progress`.
pub(super) fn lives(
    reader: &Reader,
    numbering: Numbering,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Lives> {
    let Numbering { huge, filtered, .. } = numbering;
    let shift = if huge { HUGE.ilog2() } else { 0 };
    let spaces = Spaces::new(&reader.info().threads).filtered(filtered);
    let mut builder = Builder {
        blocks: Blocks::new(PAGE_SHIFT, PAGE_SHIFT + shift, spaces),
        // `None`: simulate all frames.
        table: PageTable::new(PAGE_SHIFT + shift, PAGE_SHIFT, None),
        shift,
        ..Builder::default()
    };
    let mut events = Events::new(reader)?;
    let mut batches = reader.batches(Columns { thread: true, ..Columns::PAGING });
    let mut batch = Batch::default();
    let mut at = 0u64;
    while batches.next_into(&mut batch)? {
        for next in events.among(batch.len()) {
            match next {
                Next::Event(event) => {
                    builder.blocks.apply(&event);
                    if builder.apply_changes() {
                        builder.recent.clear();
                    }
                }
                Next::Records(range) => {
                    builder.blocks.spaces().place_records(&mut batch, range.clone());
                    builder.records(&batch, range);
                }
            }
        }
        at += batch.len() as u64;
        on_progress(at)?;
    }
    builder.finish(reader)
}

impl Builder {
    /// Record a change of the thread's address space, which `addr` contains unless it is a kernel address.
    fn switch(&mut self, thread: u32, addr: u64) {
        if addr >> 63 == 1 {
            return;
        }
        let space = (addr >> SPACE_SHIFT) as u32;
        if std::mem::replace(slot(&mut self.spaces, thread), space) != space {
            self.step(StepKind::Space { thread, space });
        }
    }

    fn records(&mut self, batch: &Batch, range: Range<usize>) {
        let several = self.blocks.spaces().several();
        for index in range {
            let addr = batch.addr[index];
            if several {
                self.switch(batch.thread[index], addr);
            }
            for number in addr >> PAGE_SHIFT..=last_byte(addr, batch.size[index]) >> PAGE_SHIFT {
                if !self.recent.contains(number) {
                    let write = KindSet::WRITES.has(batch.kind[index]);
                    self.reference(number, write);
                }
                self.lives.accesses += 1;
            }
        }
    }

    fn reference(&mut self, number: u64, write: bool) {
        let block = self.blocks.reference(number, write);
        if self.apply_changes() && self.shift > 0 {
            // Other blocks of this page may have moved to another place.
            self.recent.clear();
        }
        if !self.blocks.watched(block) {
            self.recent.insert(number);
        }
        let page = self.table.page(block);
        let place = match self.table.frame(page) {
            NO_FRAME => NO_PLACE,
            frame => self.place_of[frame as usize],
        };
        self.translated[page as usize] = place;
        if self.known.insert(number, place) != Some(place) {
            self.step(StepKind::Page { number, page: Page::new(place) });
        }
    }

    /// Apply changes of blocks before the next access. Returns whether a page lost its translation.
    fn apply_changes(&mut self) -> bool {
        let (mut lost, at) = (false, self.lives.accesses);
        let Self { blocks, table, places, place_of, translated, lives, .. } = self;
        for change in blocks.changes() {
            table.apply(&change);
            place_of.resize(table.ids(), NO_PLACE);
            translated.resize(table.ids(), NO_PLACE);
            for action in table.actions() {
                match action {
                    Action::Shootdown { page, .. } => {
                        lost = true;
                        let held = std::mem::replace(&mut translated[page as usize], NO_PLACE);
                        if held != NO_PLACE {
                            let kind = StepKind::End(End::Translation(Page::new(held)));
                            lives.steps.push(Step { at, kind });
                        }
                    }
                    Action::Begin { frame, number, .. } => {
                        place_of[frame as usize] = places.take(number);
                    }
                    Action::Free(frame) => {
                        let place = place_of[frame as usize];
                        places.release(place);
                        let page = Page::new(place);
                        let ended = Step { at, kind: StepKind::End(End::Translation(page)) };
                        // The end of the page includes the end of its translation.
                        lives.steps.pop_if(|last| *last == ended);
                        lives.steps.push(Step { at, kind: StepKind::End(End::Page(page)) });
                    }
                    // `MADV_FREE`: under pressure the kernel would free the page instead of demoting it;
                    // no policy here does.
                    Action::Discard(_) | Action::UndoDiscard(_) => {}
                }
            }
            lives.peak = lives.peak.max(table.used() << self.shift);
        }
        lost
    }

    fn step(&mut self, kind: StepKind) {
        self.lives.steps.push(Step { at: self.lives.accesses, kind });
    }

    /// Number the places in the order of addresses.
    fn finish(self, reader: &Reader) -> Result<Lives> {
        let Self { places, shift, mut lives, known, .. } = self;
        lives.footprint = known.len() as u64;
        lives.pages = (places.all.len() as u64) << shift;
        if lives.pages > u64::from(Access::MAX_PAGES) {
            return Err(Error::input(
                reader.path().display().to_string(),
                format!("needs {} page numbers, more than 2^31 - 1", lives.pages),
                "give --lifetimes off, or a shorter trace",
            ));
        }
        let ranks = places.ranks();
        let rank = |page: &mut Page| {
            if let Some(rank) = ranks.get(page.index()) {
                *page = Page::new(rank << shift);
            }
        };
        for step in &mut lives.steps {
            match &mut step.kind {
                StepKind::Space { .. } => {}
                StepKind::End(End::Page(page) | End::Translation(page) | End::Pages(page, _)) => {
                    rank(page)
                }
                StepKind::Page { page, .. } if page.number() == NO_PLACE => *page = Access::ZEROS,
                StepKind::Page { number, page } => {
                    rank(page);
                    *page = page.skip(*number as u32 & ((1 << shift) - 1));
                }
            }
        }
        lives.steps.shrink_to_fit();
        Ok(lives)
    }
}
