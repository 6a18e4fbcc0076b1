//! Maps references to pages and frames.

use crate::lifetimes::{self, Blocks, Events, PageTable, Spaces};
use crate::paging::explain::memory::{Target, TlbAndMemory};

/// Pages of one size.
pub struct Pages {
    /// log2 of the block size: a block is a page, or 4 KiB of it.
    pub block_shift: u32,
    blocks: Blocks,
    table: PageTable,
    events: Events,
    /// The thread of the previous record; `None` after an event.
    running: Option<u32>,
    /// Address space of the running thread.
    space: u32,
}

impl Pages {
    /// Pages of 2^`shift` bytes. Without `files`, file pages take no frames.
    pub fn new(events: Events, spaces: Spaces, shift: u32, files: bool) -> Self {
        let block_shift = shift.min(lifetimes::PAGE_SHIFT);
        Self {
            block_shift,
            blocks: Blocks::new(block_shift, shift, spaces),
            // Without a filter: all frames are simulated.
            table: PageTable::new(shift, block_shift, None).with_files(files),
            events,
            running: None,
            space: 0,
        }
    }

    /// Apply the events before record number `at`.
    pub fn events(&mut self, at: u64, simulation: &mut TlbAndMemory) {
        while let Some(event) = self.events.before(at) {
            self.blocks.apply(&event);
            self.take_changes(simulation);
            self.running = None;
        }
    }

    /// `addr` with the thread's address space ([`lifetimes::place`]). Must be called in order, at least for
    /// the first record after an event or a change of thread.
    pub fn place(&mut self, thread: u32, addr: u64) -> u64 {
        if self.running != Some(thread) {
            self.space = self.blocks.spaces().of_thread(thread);
            self.running = Some(thread);
        }
        lifetimes::place(self.space, addr)
    }

    /// Apply a reference to a block, and its changes to `simulation`. Returns the target.
    pub fn reference(&mut self, block: u64, write: bool, simulation: &mut TlbAndMemory) -> Target {
        let id = self.blocks.reference(block, write);
        self.take_changes(simulation);
        let page = self.table.page(id);
        let (number, frame) = (self.table.number(page), self.table.frame(page));
        Target { page, number, frame }
    }

    fn take_changes(&mut self, simulation: &mut TlbAndMemory) {
        for change in self.blocks.changes() {
            self.table.apply(&change);
            self.table.actions().for_each(|action| simulation.apply(action));
        }
    }
}
