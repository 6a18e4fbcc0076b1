//! Converts a trace to touches: the references that every page size must process. The others hit the
//! first cache and TLB level at any page size.

use std::ops::Range;

use nearfar_hardware::processor::{Ages, Found, Hierarchy, Processor, small_lines};
use nearfar_kernel::readahead::Fetch;
use nearfar_trace::column::GroupReader;
use nearfar_trace::hash::PageMap;
use nearfar_trace::reader::{Batches, Groups};
use nearfar_trace::{Batch, Columns, Kind, KindSet, Reader, RegionKind, Result, last_byte};

use super::super::options::Options;
use super::last::{Last, NO_PAGE, Page, Put};
use super::observe::{self, Observe};
use super::surroundings::{Changed, Surroundings};
use super::{LARGE, SMALL};
use crate::lifetimes::{self, Backing, Blocks, Change, Events, Next};
use crate::slot;

/// Minimum number of records per chunk.
const CHUNK: u64 = 1 << 18;
/// Touches between two samples of the [`Ages`] at which caches evict lines.
pub const AGED: usize = 1 << 10;
/// Slots of [`Touches::settled`].
const SLOTS: usize = 1 << 12;

/// The TLB operation of a touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlbOp {
    /// Nothing: the first level contains the page, at any page size.
    None,
    /// A page is used, and becomes one of the thread's last (most recently used) pages ([`Last`]).
    Enter,
    /// A page leaves the thread's last pages; pages leave in the order of their last use.
    Leave,
    /// [`Enter`](Self::Enter), then at once [`Leave`](Self::Leave).
    Once,
}

/// A reference that page sizes process, or a page that leaves ([`TlbOp::Leave`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Touch {
    /// Number of the 4 KiB page, with its address space ([`crate::lifetimes::place`]).
    pub number: u64,
    /// Instructions of the thread so far.
    pub instructions: u64,
    /// References so far.
    pub now: u64,
    /// Id of the page's block: [`Blocks`] tracks the lifetimes of touched 4 KiB pages.
    pub block: u32,
    /// Id of the cache line of the page's page-table entry, in the order of first use.
    pub line: u32,
    pub thread: u32,
    /// Where the referenced line was found.
    pub found: Found,
    pub fetch: bool,
    pub write: bool,
    pub tlb: TlbOp,
}

#[derive(Default)]
pub struct Chunk {
    pub touches: Vec<Touch>,
    /// Changes of blocks, each with the index of the next touch.
    pub changes: Vec<(usize, Changed)>,
    /// Reads of files, each with the index of the next touch, which causes it.
    pub fetches: Vec<(usize, Fetch)>,
    /// Times in which no thread runs, each with the indices of the next touch and of the next change.
    pub idle: Vec<(usize, usize, Idle)>,
    /// The [`Ages`] at which caches evict lines, sampled every [`AGED`] touches.
    pub ages: Vec<Ages>,
}

#[derive(Clone, Copy)]
pub struct Idle {
    pub ns: u64,
    /// Average number of threads that run in parallel until the next idle time; `None` if unknown.
    pub parallel: Option<f64>,
}

#[derive(Clone)]
struct Thread {
    instructions: u64,
    /// Last pages of data and of instructions.
    last: [Last; 2],
}

pub struct Touches {
    groups: Option<Groups>,
    group: Option<GroupReader>,
    events: Events,
    /// The next values of [`Idle::parallel`].
    parallel: std::vec::IntoIter<f64>,
    batch: Batch,
    blocks: Blocks,
    kinds: KindSet,
    hierarchy: Hierarchy,
    threads: Vec<Thread>,
    /// A thread before its first record.
    new: Thread,
    /// Direct-mapped cache of settled pages ([`Page::settled`]).
    settled: Vec<Page>,
    /// Ids of cache lines of the page table.
    lines: PageMap<u32>,
    /// Blocks whose next write may remove a translation.
    watched: Vec<bool>,
    /// Private memory around new blocks, and the file reads that new blocks cause.
    surroundings: Surroundings,
    records: u64,
}

impl Touches {
    pub fn new(
        reader: &Reader,
        options: &Options,
        processor: &Processor,
        hierarchy: Hierarchy,
        has_lifetimes: bool,
    ) -> Result<Self> {
        let events = if has_lifetimes { Events::all(reader)? } else { Events::none() };
        let parallel: Vec<f64> = events.parallel().collect();
        let mut groups = reader.groups(Columns::ALL);
        let group = groups.next()?;
        let threads = reader.info().threads.iter().map(|thread| thread.index as usize + 1).max();
        // Entries for small pages, and for large ones if separate.
        let last =
            |(small, large): (usize, Option<usize>)| Last::new(small.min(large.unwrap_or(small)));
        let last = [last(processor.tlbs.data), last(processor.tlbs.instruction)];
        let new = Thread { instructions: 0, last };
        Ok(Self {
            groups: Some(groups),
            group,
            events,
            parallel: parallel.into_iter(),
            batch: Batch::default(),
            blocks: Blocks::new(SMALL, LARGE, options.spaces(reader)),
            kinds: options.kinds,
            hierarchy,
            threads: vec![new.clone(); threads.unwrap_or(1)],
            new,
            settled: vec![NO_PAGE; SLOTS],
            lines: PageMap::default(),
            watched: Vec::new(),
            surroundings: Surroundings::default(),
            records: 0,
        })
    }

    pub fn watch_areas(&mut self) {
        self.blocks.watch_areas();
    }

    pub fn records(&self) -> u64 {
        self.records
    }

    /// Instructions of all threads so far, and faults that mapped pages of the page cache.
    pub fn totals(&self) -> (u64, u64) {
        let instructions = self.threads.iter().map(|thread| thread.instructions).sum();
        (instructions, self.surroundings.maps())
    }

    /// Fill the next chunk, and pass every reference to `observer`. Returns false at the end of the trace.
    pub fn fill(
        &mut self,
        chunk: &mut Chunk,
        observer: &mut (impl Observe + Send),
    ) -> Result<bool> {
        chunk.touches.clear();
        chunk.changes.clear();
        chunk.fetches.clear();
        chunk.idle.clear();
        chunk.ages.clear();
        let before = self.records;
        if before == 0
            && let Some(parallel) = self.parallel.next()
        {
            chunk.idle.push((0, 0, Idle { ns: 0, parallel: Some(parallel) }));
        }
        while self.records - before < CHUNK {
            let (Some(mut current), Some(mut groups)) = (self.group.take(), self.groups.take())
            else {
                break;
            };
            let mut batch = std::mem::take(&mut self.batch);
            // Decompress the next row group in parallel.
            let (done, next) = rayon::join(
                || {
                    while current.next_into(Batches::MAX, &mut batch)? {
                        self.batch(&mut batch, chunk, observer);
                        self.records += batch.len() as u64;
                    }
                    Ok(())
                },
                || groups.next(),
            );
            done?;
            (self.batch, self.group, self.groups) = (batch, next?, Some(groups));
        }
        Ok(self.records > before)
    }

    fn batch<O: Observe>(&mut self, batch: &mut Batch, chunk: &mut Chunk, observer: &mut O) {
        observer.batch(batch);
        let mut events = std::mem::replace(&mut self.events, Events::none());
        for next in events.among(batch.len()) {
            match next {
                Next::Event(event) if event.event == RegionKind::Idle => {
                    self.leave(chunk);
                    // `to` of an idle event is its duration.
                    let idle = Idle { ns: event.to, parallel: self.parallel.next() };
                    chunk.idle.push((chunk.touches.len(), chunk.changes.len(), idle));
                }
                Next::Event(event) => {
                    self.leave(chunk);
                    self.blocks.apply(&event);
                    self.append_changes(chunk);
                    self.settled.fill(NO_PAGE);
                    observer.event();
                }
                Next::Records(range) => {
                    self.blocks.spaces().place_records(batch, range.clone());
                    let mut at = range.start;
                    while at < range.end {
                        if O::SKIPS {
                            at += self.repeats(batch, at..range.end, observer);
                        }
                        if at < range.end {
                            self.record(batch, at, chunk, observer);
                            at += 1;
                        }
                    }
                }
            }
        }
        self.events = events;
    }

    /// Process the leading repeats of `range` and return their number. A repeat is in one recently
    /// used page and does not change its state; `observer` counts it. Most records are repeats, so
    /// conditions are combined without branches.
    fn repeats(
        &mut self,
        batch: &Batch,
        range: Range<usize>,
        observer: &mut impl Observe,
    ) -> usize {
        let thread = batch.thread[range.start];
        let stable_until = observer.stable_until(thread as usize);
        let records = stable_until.saturating_sub(self.records + range.start as u64);
        let records = range.len().min(usize::try_from(records).unwrap_or(usize::MAX));
        let range = range.start..range.start + records;
        let Some(state) = self.threads.get_mut(thread as usize) else { return 0 };
        let (shift, kinds) = (self.hierarchy.line_shift(), self.kinds.0);
        let places = batch.addr[range.clone()].iter().zip(&batch.size[range.clone()]);
        let what = batch.kind[range.clone()].iter().zip(&batch.instr[range.clone()]);
        let (mut repeats, mut instructions, mut fetched) = (0, 0, None);
        for (((&addr, &size), (&kind, &instr)), &by) in places.zip(what).zip(&batch.thread[range]) {
            let fetch = KindSet::FETCHES.has(kind);
            let reads = !KindSet::WRITES.has(kind);
            let (number, end) = (addr >> SMALL, last_byte(addr, size));
            let (page, used) = state.last[usize::from(fetch)].hinted(number);
            let same = (page.number == number) & (end >> SMALL == number) & (by == thread);
            let counts = (kinds >> kind & 1 == 1) & (page.settled | reads);
            if !(same & counts) || !observer.repeats(page.block) {
                break;
            }
            fetched = if fetch { Some(addr) } else { fetched };
            self.hierarchy.access(addr >> shift, fetch);
            for line in (addr >> shift) + 1..(end >> shift) + 1 {
                self.hierarchy.access(line, fetch);
            }
            *used = self.hierarchy.now();
            instructions += u64::from(instr);
            repeats += 1;
        }
        state.instructions += instructions;
        if let Some(addr) = fetched {
            observer.fetched(thread as usize, addr);
        }
        repeats
    }

    #[inline]
    fn record(&mut self, batch: &Batch, at: usize, chunk: &mut Chunk, observer: &mut impl Observe) {
        let (addr, kind, thread) = (batch.addr[at], batch.kind[at], batch.thread[at] as usize);
        let fetch = KindSet::FETCHES.has(kind);
        observer.record(self.records + at as u64, thread, addr, kind);
        if self.threads.len() <= thread {
            self.threads.resize(thread + 1, self.new.clone());
        }
        self.threads[thread].instructions += u64::from(batch.instr[at]);
        if !self.kinds.has(kind) {
            return;
        }
        let write = KindSet::WRITES.has(kind);
        let shift = self.hierarchy.line_shift();
        let (first, last_line) = (addr >> shift, last_byte(addr, batch.size[at]) >> shift);
        let mut line = first;
        loop {
            let found = self.hierarchy.access(line, fetch);
            let now = self.hierarchy.now();
            let number = line >> (SMALL - shift);
            let last = &mut self.threads[thread].last[usize::from(fetch)];
            let (page, changes) = match last.find(number, now) {
                Some(page) if page.settled || !write => {
                    if found != Found::First {
                        self.touch(thread, page, (found, fetch, write, TlbOp::None), chunk);
                    }
                    (page, false)
                }
                _ => {
                    let what = (found, fetch, write, modifies(batch, at));
                    (self.unsettled(thread, number, what, chunk), true)
                }
            };
            let (first, addr) = (line == first, line << shift);
            let block = page.block;
            observer.access(observe::Access { number, block, write, changes, first, addr });
            if changes {
                observer.touched(chunk, number, self.surroundings.maps());
            }
            if line == last_line {
                return;
            }
            line += 1;
        }
    }

    /// Process a reference to a page that is not among the thread's last pages, or a write that may
    /// change the page's state. Returns the page.
    fn unsettled(
        &mut self,
        thread: usize,
        number: u64,
        (found, fetch, write, modifies): (Found, bool, bool, bool),
        chunk: &mut Chunk,
    ) -> Page {
        let page = self.page(number, write, modifies, chunk);
        let (now, side) = (self.hierarchy.now(), usize::from(fetch));
        let tlb = match self.threads[thread].last[side].put(page, now) {
            Put::Known => TlbOp::None,
            Put::New(None) => TlbOp::Enter,
            Put::New(Some(old)) => {
                self.touch(thread, old, (Found::First, fetch, false, TlbOp::Leave), chunk);
                TlbOp::Enter
            }
        };
        self.touch(thread, page, (found, fetch, write, tlb), chunk);
        page
    }

    /// Reference a page and return it, from the cache of settled pages if possible.
    fn page(&mut self, number: u64, write: bool, modifies: bool, chunk: &mut Chunk) -> Page {
        let slot = number as usize % SLOTS;
        if self.settled[slot].number == number {
            return self.settled[slot];
        }
        let removes = |block: Option<u32>| match block {
            Some(block) => self.watched.get(block as usize) == Some(&true),
            // The new block may be in a huge zero page, which its first write replaces.
            None => self.blocks.unsettled(number),
        };
        let known = self.blocks.find(number);
        let write = write || known.is_none() && modifies;
        if write && removes(known) {
            self.leave(chunk);
        }
        let block = self.blocks.reference(number, write);
        let settled = !self.blocks.watched(block);
        self.append_changes(chunk);
        let next = self.lines.len() as u32;
        let [guest_line, _] = small_lines(number << SMALL);
        let line = *self.lines.entry(guest_line).or_insert(next);
        let page = Page { number, block, line, settled };
        if settled {
            self.settled[slot] = page;
        }
        page
    }

    /// Let all last pages of all threads leave, because a translation may be removed.
    fn leave(&mut self, chunk: &mut Chunk) {
        for thread in 0..self.threads.len() {
            for fetch in [false, true] {
                for page in self.threads[thread].last[usize::from(fetch)].take() {
                    self.touch(thread, page, (Found::First, fetch, false, TlbOp::Leave), chunk);
                }
            }
        }
    }

    #[inline]
    fn touch(
        &mut self,
        thread: usize,
        page: Page,
        (found, fetch, write, tlb): (Found, bool, bool, TlbOp),
        chunk: &mut Chunk,
    ) {
        if chunk.touches.len().is_multiple_of(AGED) {
            chunk.ages.push(self.hierarchy.ages());
        }
        chunk.touches.push(Touch {
            number: page.number,
            instructions: self.threads[thread].instructions,
            now: self.hierarchy.now(),
            block: page.block,
            line: page.line,
            thread: thread as u32,
            found,
            fetch,
            write,
            tlb,
        });
    }

    fn append_changes(&mut self, chunk: &mut Chunk) {
        let at = chunk.touches.len();
        for changed in self.surroundings.of(&mut self.blocks) {
            let mut set = |block: u32, watched: bool| *slot(&mut self.watched, block) = watched;
            match &changed.0 {
                Change::Born { block, backing, written, .. } => {
                    let replaced = match backing {
                        Backing::Object { .. } => true,
                        Backing::Zeros => !written,
                        Backing::Unknown => false,
                    };
                    set(*block, replaced);
                }
                Change::Written(block) => set(*block, false),
                Change::Forked(blocks) => blocks.iter().for_each(|&(block, copy, _)| {
                    set(block, true);
                    set(copy, true);
                }),
                Change::Ended { .. }
                | Change::Discarded(_)
                | Change::Moved { .. }
                | Change::Area { .. }
                | Change::Collapse { .. } => {}
            }
            chunk.changes.push((at, changed));
        }
        chunk.fetches.extend(self.surroundings.fetches().map(|fetch| (at, fetch)));
    }
}

/// Whether a record is a load of an instruction that then stores to the same address: the load
/// faults as a write.
pub fn modifies(batch: &Batch, at: usize) -> bool {
    let next = at + 1;
    // Ignore address spaces: records after an event may not have theirs in `addr` yet.
    let place = |at: usize| (lifetimes::address(batch.addr[at]), batch.thread[at]);
    next < batch.len()
        && (batch.kind[at], batch.kind[next]) == (Kind::Load as u8, Kind::Store as u8)
        && place(at) == place(next)
        // The same instruction: none was executed since.
        && batch.instr[next] == 0
}
