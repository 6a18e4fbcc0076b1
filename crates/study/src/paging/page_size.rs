//! One page size: from a window of blocks to a window of pages, its TLB and its memories.

use nearfar_hardware::tlb::{Buffer, TlbSpec};
use nearfar_kernel::replacement::stack::StackDistance;
use nearfar_trace::hash::PageMap;

use super::direct::Direct;
use super::memory::{Engine, Outcome};
use super::sample::Sample;
use super::window::{Chunk, MOST, WRITE};

/// A window at one page size.
pub struct View<'a> {
    /// The chunk it is in.
    pub chunk: &'a Chunk,
    /// First `j` of the window in the chunk.
    pub first: usize,
    /// Page of each local number.
    pub pages: &'a [u32],
    /// Local numbers standing for the distinct pages, in order of first reference.
    pub distinct: &'a [u8],
    /// All local numbers of the page that a member of `distinct` stands for.
    pub group: &'a [u64; MOST],
    /// The member of `distinct` that stands for each local number's page.
    pub stand_in: &'a [u8; MOST],
    /// Local number of a page, if `pages` agrees.
    pub local_of: &'a [u8],
    /// Local numbers written anywhere in the window.
    pub written: u64,
}

impl View<'_> {
    /// Page of a local number.
    #[inline]
    pub fn page(&self, local: u8) -> u32 {
        self.pages[usize::from(local)]
    }

    /// All local numbers of the page of `local`.
    #[inline]
    pub fn group_of_local(&self, local: u8) -> u64 {
        self.group[usize::from(self.stand_in[usize::from(local)])]
    }

    /// The window's references, a byte each.
    pub fn refs(&self) -> &[u8] {
        let end = self.first + self.pages.len();
        let from = self.chunk.segment[self.first] as usize;
        &self.chunk.refs[from..self.chunk.segment[end] as usize]
    }
}

/// Misses of a TLB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TlbOutcome {
    /// References that no level held: page walks.
    pub misses: u64,
    /// First-level misses that the second level held.
    pub second_hits: u64,
}

/// Mark of a page that is not simulated (see `sample.rs`), in place of its id or local number.
const NO_PAGE: u32 = u32::MAX;
/// The same for a stand-in.
pub const NO_STAND_IN: u8 = u8::MAX;

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
    /// Memories, by window.
    pub engines: Vec<Box<dyn Engine>>,
    /// Memories that must see every record; empty unless asked for.
    pub direct: Vec<Direct>,
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
    direct: Vec<Direct>,
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
            direct: job.direct,
        }
    }

    /// Apply a chunk.
    pub fn chunk(&mut self, chunk: &Chunk) {
        for &block in &chunk.new_blocks {
            self.new_block(block);
        }
        for direct in &mut self.direct {
            chunk.batches.iter().for_each(|batch| direct.add(batch));
        }
        let mut pages = [0u32; MOST];
        let mut distinct = [0u8; MOST];
        let mut group = [0u64; MOST];
        let mut stand_in = [0u8; MOST];
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
        let windowed = self.engines.iter().flat_map(|engine| engine.outcomes());
        windowed.chain(self.direct.iter().flat_map(|d| d.outcomes().iter().copied())).collect()
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
            let mut order = [0u32; MOST];
            let mut filled = MOST;
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

/// Exact LRU at every size, from the stack.
pub struct Stack {
    stack: StackDistance,
    frames: Vec<u64>,
}

impl Stack {
    /// Memories of `frames` frames each.
    pub fn new(frames: &[u64]) -> Self {
        Self { stack: StackDistance::new(), frames: frames.to_vec() }
    }
}

impl Engine for Stack {
    fn window(&mut self, view: &View<'_>) {
        for &local in view.distinct {
            self.stack.expect(view.page(local));
        }
        for &byte in view.refs() {
            let page = view.page(byte & !WRITE);
            if page != NO_PAGE {
                self.stack.access(page, byte & WRITE != 0);
            }
        }
    }

    fn outcomes(&self) -> Vec<Outcome> {
        let written = self.stack.dirty_evictions(&self.frames);
        self.frames
            .iter()
            .zip(written)
            .map(|(&frames, dirty_evictions)| Outcome {
                faults: self.stack.faults(frames),
                dirty_evictions,
            })
            .collect()
    }
}
