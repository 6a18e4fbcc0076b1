//! One page size: converts windows of blocks to windows of pages for its TLB and its memories. A block has
//! the smallest page size of the pass or, with lifetimes, that of the study, but at most 4 KiB. A window is
//! a run of references to at most 64 distinct blocks, which have local numbers in order of first reference
//! (`window.rs`).

use std::ops::Range;

use nearfar_hardware::table::{grow, prefetch};
use nearfar_hardware::tlb::{Buffer, TlbSpec};
use nearfar_trace::hash::PageMap;

use super::engine::{Engine, NO_PAGE, NO_REPRESENTATIVE, Outcome, View};
use super::sample::Sample;
use super::window::{Chunk, LOCAL, MAX_BLOCKS};
use crate::lifetimes::{self, Action, Change, PageTable};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TlbOutcome {
    /// Page walks: misses of all levels.
    pub misses: u64,
    /// First-level misses that hit the second level.
    pub second_hits: u64,
}

/// Parameters of [`PageSize`].
pub struct Job {
    /// log2 of the page size.
    pub shift: u32,
    /// log2 of the block size.
    pub block_shift: u32,
    /// The TLB, if simulated.
    pub tlb: Option<TlbSpec>,
    /// The pages to simulate; `None` for all.
    pub sample: Option<Sample>,
    /// Pages have lifetimes: events of the trace free them.
    pub lives: bool,
    /// With lifetimes: simulate file pages too.
    pub files: bool,
    pub engines: Vec<Box<dyn Engine>>,
    /// [`Options::prefetch_pages`](super::options::Options::prefetch_pages).
    pub prefetch_pages: usize,
}

/// The TLB and the memories of one page size.
pub struct PageSize {
    /// log2 of the page size.
    pub shift: u32,
    pages: Pages,
    /// By page or frame: its local number in the last window that contained it.
    local_of: Vec<u8>,
    first: Option<Buffer>,
    second: Option<Buffer>,
    tlb: TlbOutcome,
    sample: Option<Sample>,
    engines: Vec<Box<dyn Engine>>,
    prefetch_pages: usize,
}

/// Maps blocks to pages.
enum Pages {
    /// Without lifetimes.
    Permanent(Permanent),
    /// With lifetimes, from the events of the trace.
    Lives(PageTable),
}

/// Pages that are never freed. Ids are in the order of first references.
struct Permanent {
    /// log2 of the blocks per page.
    order: u32,
    /// Pages are blocks and have the same ids.
    identity: bool,
    /// Store page numbers, for set-associative TLBs.
    numbered: bool,
    /// Page of each block, unless `identity`.
    page_of: Vec<u32>,
    ids: PageMap<u32>,
    /// Number of each page, if `numbered`.
    numbers: Vec<u64>,
    pages: u32,
}

impl Permanent {
    /// Assign a page to the next block.
    fn push(&mut self, page: u32) {
        let blocks = self.page_of.len() + 1;
        grow(&mut self.page_of, blocks, page);
    }

    /// Add the next block. Returns its page and the page's number if the page is new.
    fn new_block(&mut self, block: u64, sample: Option<Sample>) -> Option<(u32, u64)> {
        let number = block >> self.order;
        if sample.is_some_and(|sample| !sample.contains(number)) {
            self.push(NO_PAGE);
            return None;
        }
        let page = self.pages;
        if !self.identity {
            let id = *self.ids.entry(number).or_insert(page);
            self.push(id);
            if id != page {
                return None;
            }
        }
        self.pages += 1;
        if self.numbered {
            self.numbers.push(number);
        }
        Some((page, number))
    }
}

/// The pages of a window, with its blocks grouped by page. Fields are as in [`View`].
struct Grouped {
    pages: [u32; MAX_BLOCKS],
    distinct: [u8; MAX_BLOCKS],
    /// Entries of `distinct`.
    count: usize,
    group: [u64; MAX_BLOCKS],
    representative: [u8; MAX_BLOCKS],
}

impl Grouped {
    fn new() -> Self {
        Self {
            pages: [0; MAX_BLOCKS],
            distinct: [0; MAX_BLOCKS],
            count: 0,
            group: [0; MAX_BLOCKS],
            representative: [0; MAX_BLOCKS],
        }
    }

    /// Assign `page` to the window's next block, number `local`.
    #[inline(always)]
    fn push(&mut self, local: usize, page: u32, local_of: &mut [u8]) {
        self.pages[local] = page;
        if page == NO_PAGE {
            self.representative[local] = NO_REPRESENTATIVE;
            return;
        }
        let previous = usize::from(local_of[page as usize]);
        let representative = if previous < local && self.pages[previous] == page {
            self.group[previous] |= 1 << local;
            previous
        } else {
            local_of[page as usize] = local as u8;
            self.group[local] = 1 << local;
            self.distinct[self.count] = local as u8;
            self.count += 1;
            local
        };
        self.representative[local] = representative as u8;
    }

    fn view<'a>(
        &'a self,
        chunk: &'a Chunk,
        window: &Range<usize>,
        local_of: &'a [u8],
        written: u64,
    ) -> View<'a> {
        View {
            chunk,
            first: window.start,
            pages: &self.pages[..window.len()],
            distinct: &self.distinct[..self.count],
            group: &self.group,
            representative: &self.representative,
            local_of,
            written,
        }
    }
}

impl PageSize {
    pub fn new(job: Job) -> Self {
        let Job { shift, block_shift, tlb, sample, lives, files, engines, prefetch_pages } = job;
        let sets = |buffer: &Buffer| matches!(buffer, Buffer::Sets(_));
        let first = tlb.map(|tlb| Buffer::new(tlb.first));
        let second = tlb.and_then(|tlb| tlb.second).map(Buffer::new);
        let pages = if lives {
            let filter = sample.map(|sample| {
                Box::new(move |number| sample.contains(number)) as Box<lifetimes::FrameFilter>
            });
            Pages::Lives(PageTable::new(shift, block_shift, filter).with_files(files))
        } else {
            Pages::Permanent(Permanent {
                order: shift - block_shift,
                identity: shift == block_shift && sample.is_none(),
                numbered: first.iter().chain(&second).any(sets),
                page_of: Vec::new(),
                ids: PageMap::default(),
                numbers: Vec::new(),
                pages: 0,
            })
        };
        Self {
            shift,
            pages,
            local_of: Vec::new(),
            first,
            second,
            tlb: TlbOutcome::default(),
            sample,
            engines,
            prefetch_pages,
        }
    }

    pub fn chunk(&mut self, chunk: &Chunk) {
        let mut grouped = Grouped::new();
        let mut frames_grouped = Grouped::new();
        if let Pages::Permanent(pages) = &mut self.pages {
            for &block in &chunk.new_blocks {
                if let Some((page, number)) = pages.new_block(block, self.sample) {
                    self.engines.iter_mut().for_each(|engine| engine.begin(page, number));
                }
            }
            grow(&mut self.local_of, pages.pages as usize, 0);
        }
        let prefetch = matches!(&self.pages, Pages::Permanent(pages) if pages.pages as usize >= self.prefetch_pages);
        let mut changes = chunk.changes.iter().peekable();
        for (number, window) in chunk.windows().enumerate() {
            if prefetch {
                self.prefetch(chunk, window.end);
            }
            while let Some((_, change)) = changes.next_if(|(before, _)| *before as usize <= number)
            {
                self.change(change);
            }
            let mut written = 0u64;
            grouped.count = 0;
            for (local, j) in window.clone().enumerate() {
                let block = chunk.block[j];
                let page = match &self.pages {
                    Pages::Permanent(Permanent { identity: true, .. }) => block,
                    Pages::Permanent(pages) => pages.page_of[block as usize],
                    Pages::Lives(pages) => pages.page(block),
                };
                grouped.push(local, page, &mut self.local_of);
                written |= chunk.again_written[j] | u64::from(chunk.first_written[j]) << local;
            }
            if window.is_empty() {
                continue;
            }
            let view = grouped.view(chunk, &window, &self.local_of, written);
            if let Some(first) = &mut self.first {
                let number = |page: u32| match &self.pages {
                    Pages::Permanent(pages) => {
                        pages.numbers.get(page as usize).copied().unwrap_or(0)
                    }
                    Pages::Lives(pages) => pages.number(page),
                };
                translate(first, &mut self.second, &mut self.tlb, number, &view);
            }
            if self.engines.is_empty() {
                continue;
            }
            // The page table, if some page of the window has another frame than itself.
            let frames = match &self.pages {
                Pages::Lives(pages) if !pages.plain() => {
                    let is_own_frame = |local: &u8| {
                        let page = view.page(*local);
                        pages.frame(page) == page
                    };
                    (!view.distinct.iter().all(is_own_frame)).then_some(pages)
                }
                _ => None,
            };
            if let Some(pages) = frames {
                frames_grouped.count = 0;
                for local in 0..window.len() {
                    let frame = pages.frame(grouped.pages[local]);
                    frames_grouped.push(local, frame, &mut self.local_of);
                }
                let view = frames_grouped.view(chunk, &window, &self.local_of, written);
                self.engines.iter_mut().for_each(|engine| engine.window(&view));
            } else {
                self.engines.iter_mut().for_each(|engine| engine.window(&view));
            }
        }
        for (_, change) in changes {
            self.change(change);
        }
    }

    /// Prefetch the state of the pages of the blocks after `from`.
    #[inline(never)]
    fn prefetch(&self, chunk: &Chunk, from: usize) {
        let Pages::Permanent(pages) = &self.pages else { return };
        let blocks = |from: usize| chunk.block.iter().skip(from).take(MAX_BLOCKS);
        if !pages.identity {
            blocks(from + MAX_BLOCKS).for_each(|&next| prefetch(&pages.page_of, next as usize));
        }
        for &block in blocks(from) {
            let page = if pages.identity { block } else { pages.page_of[block as usize] };
            prefetch(&self.local_of, page as usize);
            if let Some(Buffer::Full(lru)) = &self.first {
                lru.prefetch(page);
            }
            self.engines.iter().for_each(|engine| engine.prefetch(page));
        }
    }

    fn change(&mut self, change: &Change) {
        let Pages::Lives(pages) = &mut self.pages else { return };
        pages.apply(change);
        for action in pages.actions() {
            match action {
                Action::Shootdown { page, number } => {
                    for buffer in self.first.iter_mut().chain(&mut self.second) {
                        buffer.remove(page, number);
                    }
                }
                Action::Begin { frame, number, of_file, executable } => {
                    for engine in &mut self.engines {
                        engine.begin(frame, number);
                        if of_file {
                            engine.begin_file(frame, executable);
                        }
                    }
                }
                Action::Free(frame) => {
                    self.engines.iter_mut().for_each(|engine| engine.free(frame));
                }
                Action::Discard(frame) => {
                    self.engines.iter_mut().for_each(|engine| engine.discard(frame));
                }
                Action::UndoDiscard(frame) => {
                    self.engines.iter_mut().for_each(|engine| engine.undo_discard(frame));
                }
            }
        }
        self.local_of.resize(pages.ids(), 0);
    }

    /// Distinct pages referenced; with lifetimes, frames.
    pub fn pages(&self) -> u64 {
        match &self.pages {
            Pages::Permanent(pages) => u64::from(pages.pages),
            Pages::Lives(pages) => pages.filled + pages.read,
        }
    }

    /// The file pages of [`Self::pages`].
    pub fn file_pages(&self) -> u64 {
        match &self.pages {
            Pages::Permanent(_) => 0,
            Pages::Lives(pages) => pages.read,
        }
    }

    pub fn tlb(&self) -> TlbOutcome {
        self.tlb
    }

    /// Counts of the memories, in the order of the engines and of the sizes of each.
    pub fn outcomes(&self) -> Vec<Outcome> {
        self.engines.iter().flat_map(|engine| engine.outcomes()).collect()
    }
}

/// Access the pages of a window in the TLB, and count its misses.
fn translate(
    first: &mut Buffer,
    second: &mut Option<Buffer>,
    outcome: &mut TlbOutcome,
    number: impl Fn(u32) -> u64,
    view: &View<'_>,
) {
    let mut miss = |page: u32| {
        let hit = second.as_mut().is_some_and(|s| s.access(page, number(page)));
        if hit { outcome.second_hits += 1 } else { outcome.misses += 1 }
    };
    match first {
        Buffer::Full(lru) => {
            for &local in view.distinct {
                let page = view.page(local);
                if !lru.touch(page) {
                    miss(page);
                }
            }
            // Release pages in the order of their last references: the last ones to any of their blocks.
            // Without branches: if the page was released already, the next iteration overwrites this entry.
            let (mut released, count) = (0u64, view.pages.len());
            let last = &view.chunk.last[view.first..view.first + count];
            let mut order = [0u32; MAX_BLOCKS + 1];
            let mut before = MAX_BLOCKS;
            for &local in last.iter().rev() {
                let representative = view.representative[usize::from(local)];
                order[before] = view.page(local);
                before -= usize::from(released >> representative & 1 == 0);
                released |= 1 << representative;
            }
            for &page in &order[before + 1..] {
                lru.release(page);
            }
        }
        Buffer::Sets(sets) => {
            let mut previous = u32::MAX;
            for &byte in view.refs() {
                let page = view.page(byte & LOCAL);
                // A repeated page is a hit and does not change the LRU order.
                if page != previous {
                    previous = page;
                    if !sets.access(number(page)) {
                        miss(page);
                    }
                }
            }
        }
    }
}
