//! The same, slowly: one page size, every reference looked up one after the other, and the lines of walks
//! go through the caches with all others. What the fast way gives up is the difference. `nearfar explain`
//! asks it what each reference met.

use nearfar_hardware::processor::{Found, Hierarchy, Line, Processor};
use nearfar_trace::{Batch, Columns, Kind, KindSet, Reader, Result, last_byte};
use rustc_hash::FxHashMap;

use super::super::options::Options;
use super::touches::{Ask, Surroundings, Touch};
use super::waits::{Lines, PageSize, SoFar};
use super::{LARGE, SMALL, Time};
use crate::lifetimes::{self, Blocks, Change, Events};

struct Coupled<'a>(&'a mut Hierarchy);

impl Lines for Coupled<'_> {
    fn found(&mut self, line: Line, _: &Touch) -> Found {
        self.0.walk(line)
    }
}

/// Sees what references meet as they are made.
pub trait Watch {
    /// The reference to this address begins.
    fn begins(&mut self, _addr: u64) {}
    /// Blocks changed, and with them the bytes of private memory that are there.
    fn changed(&mut self, _change: &Change, _bytes: i64) {}
    /// The reference met so much.
    fn met(&mut self, _met: SoFar) {}
}

impl Watch for () {}

/// One page size of a trace.
pub struct OneByOne<'a> {
    kinds: KindSet,
    events: Events,
    blocks: Blocks,
    surroundings: Surroundings,
    hierarchy: Hierarchy,
    size: PageSize<'a>,
    instructions: FxHashMap<u32, u64>,
    /// The thread of the record before, unless an event came since, and its space.
    running: Option<u32>,
    space: u32,
}

impl<'a> OneByOne<'a> {
    /// Nothing was referenced yet.
    ///
    /// # Errors
    /// The events cannot be read.
    pub fn new(
        reader: &Reader,
        options: &Options,
        processor: &'a Processor,
        lives: bool,
        page_bytes: u64,
    ) -> Result<Self> {
        Ok(Self {
            kinds: options.kinds,
            events: if lives { Events::new(reader)? } else { Events::none() },
            blocks: Blocks::new(SMALL, LARGE, options.spaces(reader)),
            surroundings: Surroundings::default(),
            hierarchy: Hierarchy::new(&processor.caches),
            size: PageSize::new(page_bytes.trailing_zeros(), processor),
            instructions: FxHashMap::default(),
            running: None,
            space: 0,
        })
    }

    /// Apply the events that come before record number `at`.
    pub fn events(&mut self, at: u64, watch: &mut impl Watch) {
        while let Some(event) = self.events.before(at) {
            self.blocks.apply(&event);
            self.changes(watch);
            self.running = None;
        }
    }

    fn changes(&mut self, watch: &mut impl Watch) {
        for change in self.surroundings.of(&mut self.blocks) {
            let before = self.size.resident_bytes();
            self.size.change(&change);
            watch.changed(&change.0, self.size.resident_bytes() as i64 - before as i64);
        }
    }

    fn so_far(&self) -> SoFar {
        self.size.so_far(self.surroundings.maps())
    }

    /// The record at this place of a batch.
    pub fn record(&mut self, batch: &Batch, at: usize, watch: &mut impl Watch) {
        let (addr, thread) = (batch.addr[at], batch.thread[at]);
        let instructions = self.instructions.entry(thread).or_default();
        *instructions += u64::from(batch.instr[at]);
        let instructions = *instructions;
        let kind = batch.kind[at];
        if self.kinds.0 >> kind & 1 == 0 {
            return;
        }
        if self.running != Some(thread) {
            self.space = self.blocks.spaces().of_thread(thread);
            self.running = Some(thread);
        }
        let placed = lifetimes::place(self.space, addr);
        let (write, fetch) = (KindSet::WRITES.0 >> kind & 1 == 1, kind == Kind::Fetch as u8);
        let shift = self.hierarchy.line_shift();
        for line in placed >> shift..=last_byte(placed, batch.size[at]) >> shift {
            let before = self.so_far();
            watch.begins(addr.wrapping_add(placed.max(line << shift) - placed));
            let found = self.hierarchy.access(line, fetch);
            let number = line >> (SMALL - shift);
            let block = self.blocks.reference(number, write);
            self.changes(watch);
            let touch = Touch {
                number,
                instructions,
                now: self.hierarchy.now(),
                block,
                line: 0,
                thread,
                found,
                fetch,
                write,
                ask: Ask::Once,
            };
            self.size.touch(&touch, &mut Coupled(&mut self.hierarchy));
            watch.met(self.so_far().since(&before));
        }
    }

    /// What it comes to.
    pub fn time(self) -> Time {
        self.size.time((self.instructions.values().sum(), self.surroundings.maps()))
    }
}

/// The time of one page size.
///
/// # Errors
/// The trace cannot be read.
pub fn time(
    reader: &Reader,
    options: &Options,
    processor: &Processor,
    lives: bool,
    page_bytes: u64,
) -> Result<Time> {
    let mut one = OneByOne::new(reader, options, processor, lives, page_bytes)?;
    let (mut batches, mut batch) = (reader.batches(Columns::ALL), Batch::default());
    let mut records = 0;
    while batches.next_into(&mut batch)? {
        for at in 0..batch.len() {
            one.events(records, &mut ());
            one.record(&batch, at, &mut ());
            records += 1;
        }
    }
    Ok(one.time())
}
