//! One page size: from a window of blocks to a window of pages, its TLB and its memories.

use std::ops::Range;

use nearfar_hardware::table::{grow, prefetch};
use nearfar_hardware::tlb::{Buffer, TlbSpec};
use nearfar_trace::hash::PageMap;

use super::engine::{Engine, NO_PAGE, NO_STAND_IN, Outcome, View};
use super::sample::Sample;
use super::window::{Chunk, LOCAL, MAX_BLOCKS};
use crate::lifetimes::{self, Action, Change, PageTable};

/// Misses of a TLB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TlbOutcome {
    /// References that no level held: page walks.
    pub misses: u64,
    /// First-level misses that the second level held.
    pub second_hits: u64,
}

/// What is simulated at one page size.
pub struct Job {
    /// log2 of the page size.
    pub shift: u32,
    /// log2 of the block size.
    pub block_shift: u32,
    /// The TLB, for a job that has one.
    pub tlb: Option<TlbSpec>,
    /// The pages simulated; all when `None`.
    pub sample: Option<Sample>,
    /// Pages end.
    pub lives: bool,
    /// Pages of files take frames, where pages end.
    pub files: bool,
    /// Memories.
    pub engines: Vec<Box<dyn Engine>>,
    /// [`Thresholds::prefetch_pages`](super::engine::Thresholds::prefetch_pages).
    pub prefetch_pages: usize,
}

/// A page size with everything simulated at it.
pub struct PageSize {
    /// log2 of the page size.
    pub shift: u32,
    pages: Pages,
    /// Local number of a page or frame in the last window that had it.
    local_of: Vec<u8>,
    first: Option<Buffer>,
    second: Option<Buffer>,
    tlb: TlbOutcome,
    sample: Option<Sample>,
    engines: Vec<Box<dyn Engine>>,
    prefetch_pages: usize,
}

/// Which page a block is in.
enum Pages {
    /// Pages that never end.
    Endless(Endless),
    /// Pages as the events of the trace have them.
    Lives(PageTable),
}

/// Pages that never end: their ids are in the order of their first references.
struct Endless {
    /// log2 of the blocks in a page.
    blocks: u32,
    /// Pages are blocks, and have their ids.
    own: bool,
    /// Page numbers are kept, for set-associative TLBs.
    numbered: bool,
    /// Page of each block, unless `own`.
    page_of: Vec<u32>,
    ids: PageMap<u32>,
    /// Number of each page, if `numbered`.
    numbers: Vec<u64>,
    pages: u32,
}

impl Endless {
    /// The page of the next block.
    fn put(&mut self, page: u32) {
        let blocks = self.page_of.len() + 1;
        grow(&mut self.page_of, blocks, page);
    }

    /// A block that was not referenced before; answers its page and that one's number if it is new.
    fn new_block(&mut self, block: u64, sample: Option<Sample>) -> Option<(u32, u64)> {
        let number = block >> self.blocks;
        if sample.is_some_and(|sample| !sample.takes(number)) {
            self.put(NO_PAGE);
            return None;
        }
        let page = self.pages;
        if !self.own {
            let id = *self.ids.entry(number).or_insert(page);
            self.put(id);
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

/// The pages of a window, and which of its blocks are in the same one.
struct Grouped {
    pages: [u32; MAX_BLOCKS],
    distinct: [u8; MAX_BLOCKS],
    kinds: usize,
    group: [u64; MAX_BLOCKS],
    stand_in: [u8; MAX_BLOCKS],
}

impl Grouped {
    fn new() -> Self {
        Self {
            pages: [0; MAX_BLOCKS],
            distinct: [0; MAX_BLOCKS],
            kinds: 0,
            group: [0; MAX_BLOCKS],
            stand_in: [0; MAX_BLOCKS],
        }
    }

    /// Put the window's next block, of number `local`, into `page`.
    #[inline(always)]
    fn put(&mut self, local: usize, page: u32, local_of: &mut [u8]) {
        self.pages[local] = page;
        if page == NO_PAGE {
            self.stand_in[local] = NO_STAND_IN;
            return;
        }
        let known = usize::from(local_of[page as usize]);
        let stand = if known < local && self.pages[known] == page {
            self.group[known] |= 1 << local;
            known
        } else {
            local_of[page as usize] = local as u8;
            self.group[local] = 1 << local;
            self.distinct[self.kinds] = local as u8;
            self.kinds += 1;
            local
        };
        self.stand_in[local] = stand as u8;
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
            distinct: &self.distinct[..self.kinds],
            group: &self.group,
            stand_in: &self.stand_in,
            local_of,
            written,
        }
    }
}

impl PageSize {
    /// Nothing referenced yet.
    pub fn new(job: Job) -> Self {
        let Job { shift, block_shift, tlb, sample, lives, files, engines, prefetch_pages } = job;
        let sets = |buffer: &Buffer| matches!(buffer, Buffer::Sets(_));
        let first = tlb.map(|tlb| Buffer::new(tlb.first));
        let second = tlb.and_then(|tlb| tlb.second).map(Buffer::new);
        let pages = if lives {
            let taken = sample.map(|sample| {
                Box::new(move |number| sample.takes(number)) as Box<lifetimes::Taken>
            });
            Pages::Lives(PageTable::new(shift, block_shift, taken).with_files(files))
        } else {
            Pages::Endless(Endless {
                blocks: shift - block_shift,
                own: shift == block_shift && sample.is_none(),
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

    /// Apply a chunk.
    pub fn chunk(&mut self, chunk: &Chunk) {
        let mut grouped = Grouped::new();
        let mut of_frames = Grouped::new();
        if let Pages::Endless(pages) = &mut self.pages {
            for &block in &chunk.new_blocks {
                if let Some((page, number)) = pages.new_block(block, self.sample) {
                    self.engines.iter_mut().for_each(|engine| engine.begin(page, number));
                }
            }
            grow(&mut self.local_of, pages.pages as usize, 0);
        }
        let far = matches!(&self.pages, Pages::Endless(pages) if pages.pages as usize >= self.prefetch_pages);
        let mut changes = chunk.changes.iter().peekable();
        for (number, window) in chunk.windows().enumerate() {
            if far {
                self.expect(chunk, window.end);
            }
            while let Some((_, change)) = changes.next_if(|(before, _)| *before as usize <= number)
            {
                self.change(change);
            }
            let mut written = 0u64;
            grouped.kinds = 0;
            for (local, j) in window.clone().enumerate() {
                let block = chunk.block[j];
                let page = match &self.pages {
                    Pages::Endless(Endless { own: true, .. }) => block,
                    Pages::Endless(pages) => pages.page_of[block as usize],
                    Pages::Lives(pages) => pages.page(block),
                };
                grouped.put(local, page, &mut self.local_of);
                written |= chunk.again_written[j] | u64::from(chunk.first_written[j]) << local;
            }
            if window.is_empty() {
                continue;
            }
            let view = grouped.view(chunk, &window, &self.local_of, written);
            if let Some(first) = &mut self.first {
                let number = |page: u32| match &self.pages {
                    Pages::Endless(pages) => pages.numbers.get(page as usize).copied().unwrap_or(0),
                    Pages::Lives(pages) => pages.number(page),
                };
                translate(first, &mut self.second, &mut self.tlb, number, &view);
            }
            if self.engines.is_empty() {
                continue;
            }
            let frames = match &self.pages {
                Pages::Lives(pages) if !pages.plain() => {
                    let own = |local: &u8| {
                        let page = view.page(*local);
                        pages.frame(page) == page
                    };
                    (!view.distinct.iter().all(own)).then_some(pages)
                }
                _ => None,
            };
            if let Some(pages) = frames {
                of_frames.kinds = 0;
                for local in 0..window.len() {
                    let frame = pages.frame(grouped.pages[local]);
                    of_frames.put(local, frame, &mut self.local_of);
                }
                let view = of_frames.view(chunk, &window, &self.local_of, written);
                self.engines.iter_mut().for_each(|engine| engine.window(&view));
            } else {
                self.engines.iter_mut().for_each(|engine| engine.window(&view));
            }
        }
        for (_, change) in changes {
            self.change(change);
        }
    }

    /// Ask for what is known of the pages, which never end, of the blocks that come after `from`.
    #[inline(never)]
    fn expect(&self, chunk: &Chunk, from: usize) {
        let Pages::Endless(pages) = &self.pages else { return };
        let blocks = |from: usize| chunk.block.iter().skip(from).take(MAX_BLOCKS);
        if !pages.own {
            blocks(from + MAX_BLOCKS).for_each(|&next| prefetch(&pages.page_of, next as usize));
        }
        for &block in blocks(from) {
            let page = if pages.own { block } else { pages.page_of[block as usize] };
            prefetch(&self.local_of, page as usize);
            if let Some(Buffer::Full(lru)) = &self.first {
                lru.expect(page);
            }
            self.engines.iter().for_each(|engine| engine.expect(page));
        }
    }

    /// Apply what became of blocks.
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
                Action::Keep(frame) => {
                    self.engines.iter_mut().for_each(|engine| engine.keep(frame));
                }
            }
        }
        self.local_of.resize(pages.ids(), 0);
    }

    /// Distinct pages referenced: of those that had one, frames.
    pub fn pages(&self) -> u64 {
        match &self.pages {
            Pages::Endless(pages) => u64::from(pages.pages),
            Pages::Lives(pages) => pages.filled + pages.read,
        }
    }

    /// How many of them were pages of files.
    pub fn pages_of_files(&self) -> u64 {
        match &self.pages {
            Pages::Endless(_) => 0,
            Pages::Lives(pages) => pages.read,
        }
    }

    /// What the TLB came to.
    pub fn tlb(&self) -> TlbOutcome {
        self.tlb
    }

    /// What the memories came to, in the order of the engines and of their sizes.
    pub fn outcomes(&self) -> Vec<Outcome> {
        self.engines.iter().flat_map(|engine| engine.outcomes()).collect()
    }
}

fn translate(
    first: &mut Buffer,
    second: &mut Option<Buffer>,
    outcome: &mut TlbOutcome,
    number: impl Fn(u32) -> u64,
    view: &View<'_>,
) {
    let mut miss = |page: u32| {
        let held = second.as_mut().is_some_and(|s| s.access(page, number(page)));
        if held { outcome.second_hits += 1 } else { outcome.misses += 1 }
    };
    match first {
        Buffer::Full(lru) => {
            for &local in view.distinct {
                let page = view.page(local);
                if !lru.touch(page) {
                    miss(page);
                }
            }
            // A page's last reference is that of the last of its blocks.
            let (mut released, count) = (0u64, view.pages.len());
            let last = &view.chunk.last[view.first..view.first + count];
            let mut order = [0u32; MAX_BLOCKS + 1];
            let mut before = MAX_BLOCKS;
            for &local in last.iter().rev() {
                let stand = view.stand_in[usize::from(local)];
                order[before] = view.page(local);
                before -= usize::from(released >> stand & 1 == 0);
                released |= 1 << stand;
            }
            for &page in &order[before + 1..] {
                lru.release(page);
            }
        }
        Buffer::Sets(sets) => {
            let mut previous = u32::MAX;
            for &byte in view.refs() {
                let page = view.page(byte & LOCAL);
                // A repeat is a hit and leaves the order as it is.
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
