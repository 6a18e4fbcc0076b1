//! Reference implementation of `--view machine`, for tests: simulates one page size, skips no reference, and
//! keeps the cache lines of page tables in the simulated caches. Shows the error of the fast implementation.

use nearfar_hardware::processor::{Found, Hierarchy, Line};
use nearfar_trace::{Batch, Columns, KindSet, Reader, Result, last_byte};
use rustc_hash::FxHashMap;

use super::super::options::Options;
use super::surroundings::Surroundings;
use super::touches::{TlbOp, Touch, modifies};
use super::waits::{Lines, PageSize};
use super::{Host, LARGE, SMALL, Time};
use crate::lifetimes::{self, Blocks, Events};

/// Looks up lines of page tables in the simulated caches.
struct Coupled<'a>(&'a mut Hierarchy);

impl Lines for Coupled<'_> {
    fn found(&mut self, line: Line, _: &Touch) -> Found {
        self.0.walk(line)
    }
}

struct OneByOne<'a> {
    kinds: KindSet,
    events: Events,
    blocks: Blocks,
    surroundings: Surroundings,
    hierarchy: Hierarchy,
    size: PageSize<'a>,
    /// Instructions so far, by thread.
    instructions: FxHashMap<u32, u64>,
    /// The thread of the previous record, unless an event followed.
    running: Option<u32>,
    /// The address space of `running`.
    space: u32,
}

impl<'a> OneByOne<'a> {
    fn new(
        reader: &Reader,
        options: &Options,
        (processor, storages): Host<'a>,
        lives: bool,
        page_bytes: u64,
    ) -> Result<Self> {
        Ok(Self {
            kinds: options.kinds,
            events: if lives { Events::new(reader)? } else { Events::none() },
            blocks: Blocks::new(SMALL, LARGE, options.spaces(reader)),
            surroundings: Surroundings::default(),
            hierarchy: Hierarchy::new(&processor.caches),
            size: PageSize::new(page_bytes.trailing_zeros(), processor, storages),
            instructions: FxHashMap::default(),
            running: None,
            space: 0,
        })
    }

    /// Apply the events before record number `at`.
    fn events(&mut self, at: u64) {
        while let Some(event) = self.events.before(at) {
            self.blocks.apply(&event);
            self.changes(None);
            self.running = None;
        }
    }

    /// Apply the pending changes of blocks (touched 4 KiB pages). Charge their faults to `thread`, if any.
    fn changes(&mut self, thread: Option<u32>) {
        let changes = self.surroundings.of(&mut self.blocks);
        changes.for_each(|change| self.size.change(&change, thread));
    }

    fn record(&mut self, batch: &Batch, at: usize) {
        let (addr, thread) = (batch.addr[at], batch.thread[at]);
        let instructions = self.instructions.entry(thread).or_default();
        *instructions += u64::from(batch.instr[at]);
        let instructions = *instructions;
        let kind = batch.kind[at];
        if !self.kinds.has(kind) {
            return;
        }
        if self.running != Some(thread) {
            self.space = self.blocks.spaces().of_thread(thread);
            self.running = Some(thread);
        }
        // The address, combined with the number of its address space.
        let placed = lifetimes::place(self.space, addr);
        let [write, fetch] = [KindSet::WRITES, KindSet::FETCHES].map(|set| set.has(kind));
        let shift = self.hierarchy.line_shift();
        for line in placed >> shift..=last_byte(placed, batch.size[at]) >> shift {
            let found = self.hierarchy.access(line, fetch);
            let number = line >> (SMALL - shift);
            let is_new = self.blocks.find(number).is_none();
            let block = self.blocks.reference(number, write || is_new && modifies(batch, at));
            self.changes(Some(thread));
            for fetch in self.surroundings.fetches() {
                self.size.fetch(fetch, thread, instructions);
            }
            let touch = Touch {
                number,
                instructions,
                now: self.hierarchy.now(),
                block,
                // Not used by `Coupled`.
                line: 0,
                thread,
                found,
                fetch,
                write,
                tlb: TlbOp::Once,
            };
            self.size.touch(&touch, &mut Coupled(&mut self.hierarchy));
        }
    }

    fn time(self) -> Time {
        self.size.time((self.instructions.values().sum(), self.surroundings.maps()))
    }
}

pub fn time(
    reader: &Reader,
    options: &Options,
    host: Host<'_>,
    lives: bool,
    page_bytes: u64,
) -> Result<Time> {
    let mut simulation = OneByOne::new(reader, options, host, lives, page_bytes)?;
    let (mut batches, mut batch) = (reader.batches(Columns::ALL), Batch::default());
    let mut records = 0;
    while batches.next_into(&mut batch)? {
        for at in 0..batch.len() {
            simulation.events(records);
            simulation.record(&batch, at);
            records += 1;
        }
    }
    Ok(simulation.time())
}
