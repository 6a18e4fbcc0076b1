//! One page size: from a window of blocks to a window of pages, its TLB and its memories.

use nearfar_hardware::tlb::{Buffer, TlbSpec};
use nearfar_trace::hash::PageMap;

use super::engine::{Engine, NO_PAGE, NO_STAND_IN, Outcome, View};
use super::sample::Sample;
use super::window::{Chunk, MAX_BLOCKS, WRITE};

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
    /// Memories.
    pub engines: Vec<Box<dyn Engine>>,
}

/// A page size with everything simulated at it.
pub struct PageSize {
    /// log2 of the page size.
    pub shift: u32,
    block_shift: u32,
    /// Pages are blocks, and have their ids.
    own: bool,
    /// Page numbers are kept, for set-associative TLBs.
    numbered: bool,
    /// Page of each block, unless `own`.
    page_of: Vec<u32>,
    ids: PageMap<u32>,
    /// Number of each page, if `numbered`.
    numbers: Vec<u64>,
    local_of: Vec<u8>,
    first: Option<Buffer>,
    second: Option<Buffer>,
    tlb: TlbOutcome,
    sample: Option<Sample>,
    engines: Vec<Box<dyn Engine>>,
}

impl PageSize {
    /// Nothing referenced yet.
    pub fn new(job: Job) -> Self {
        let sets = |buffer: &Buffer| matches!(buffer, Buffer::Sets(_));
        let first = job.tlb.map(|tlb| Buffer::new(tlb.first));
        let second = job.tlb.and_then(|tlb| tlb.second).map(Buffer::new);
        Self {
            own: job.shift == job.block_shift && job.sample.is_none(),
            numbered: first.iter().chain(&second).any(sets),
            shift: job.shift,
            block_shift: job.block_shift,
            page_of: Vec::new(),
            ids: PageMap::default(),
            numbers: Vec::new(),
            local_of: Vec::new(),
            first,
            second,
            tlb: TlbOutcome::default(),
            sample: job.sample,
            engines: job.engines,
        }
    }

    /// Apply a chunk.
    pub fn chunk(&mut self, chunk: &Chunk) {
        for &block in &chunk.new_blocks {
            self.new_block(block);
        }
        for engine in &mut self.engines {
            chunk.batches.iter().for_each(|batch| engine.records(batch));
        }
        let mut pages = [0u32; MAX_BLOCKS];
        let mut distinct = [0u8; MAX_BLOCKS];
        let mut group = [0u64; MAX_BLOCKS];
        let mut stand_in = [0u8; MAX_BLOCKS];
        for window in chunk.windows() {
            let first = window.start;
            let count = window.len();
            if count == 0 {
                continue;
            }
            let (mut kinds, mut written) = (0usize, 0u64);
            for (local, j) in window.enumerate() {
                let block = chunk.block[j];
                let page = if self.own { block } else { self.page_of[block as usize] };
                pages[local] = page;
                if page == NO_PAGE {
                    stand_in[local] = NO_STAND_IN;
                    continue;
                }
                let known = usize::from(self.local_of[page as usize]);
                let stand = if known < local && pages[known] == page {
                    group[known] |= 1 << local;
                    known
                } else {
                    self.local_of[page as usize] = local as u8;
                    group[local] = 1 << local;
                    distinct[kinds] = local as u8;
                    kinds += 1;
                    local
                };
                stand_in[local] = stand as u8;
                written |= chunk.again_written[j] | u64::from(chunk.first_written[j]) << local;
            }
            let view = View {
                chunk,
                first,
                pages: &pages[..count],
                distinct: &distinct[..kinds],
                group: &group,
                stand_in: &stand_in,
                local_of: &self.local_of,
                written,
            };
            if let Some(first) = &mut self.first {
                translate(first, &mut self.second, &mut self.tlb, &self.numbers, &view);
            }
            for engine in &mut self.engines {
                engine.window(&view);
            }
        }
    }

    fn new_block(&mut self, block: u64) {
        let number = block >> (self.shift - self.block_shift);
        if self.sample.is_some_and(|sample| !sample.takes(number)) {
            self.page_of.push(NO_PAGE);
            return;
        }
        let next = self.local_of.len() as u32;
        if !self.own {
            let id = *self.ids.entry(number).or_insert(next);
            self.page_of.push(id);
            if id != next {
                return;
            }
        }
        self.local_of.push(0);
        if self.numbered {
            self.numbers.push(number);
        }
    }

    /// Distinct pages referenced.
    pub fn pages(&self) -> u64 {
        self.local_of.len() as u64
    }

    /// Part of all pages that is simulated.
    pub fn rate(&self) -> f64 {
        self.sample.map_or(1.0, |sample| sample.rate)
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
    numbers: &[u64],
    view: &View<'_>,
) {
    let number = |page: u32| numbers.get(page as usize).copied().unwrap_or(0);
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
            let mut order = [0u32; MAX_BLOCKS];
            let mut filled = MAX_BLOCKS;
            for &local in last.iter().rev() {
                let stand = view.stand_in[usize::from(local)];
                if released >> stand & 1 == 0 {
                    released |= 1 << stand;
                    filled -= 1;
                    order[filled] = view.page(local);
                }
            }
            for &page in &order[filled..] {
                lru.release(page);
            }
        }
        Buffer::Sets(sets) => {
            let mut previous = u32::MAX;
            for &byte in view.refs() {
                let page = view.page(byte & !WRITE);
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
