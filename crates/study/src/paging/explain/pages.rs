//! Maps references to pages and frames, with and without lifetimes.

use nearfar_trace::hash::PageMap;
use nearfar_trace::{Reader, Result};

use crate::lifetimes::{self, Action, Blocks, Events, PageTable, Spaces};
use crate::paging::explain::memory::{Target, TlbAndMemory};

/// Pages of one size.
pub enum Pages {
    /// Without lifetimes.
    Permanent {
        /// log2 of the page size.
        shift: u32,
        /// Page ids, in the order of first references.
        ids: PageMap<u32>,
    },
    /// With lifetimes, from the events of the trace.
    Lives(Box<Lives>),
}

pub struct Lives {
    block_shift: u32,
    blocks: Blocks,
    table: PageTable,
    events: Events,
    /// The thread of the previous record; `None` after an event.
    running: Option<u32>,
    /// Address space of the running thread.
    space: u32,
}

impl Pages {
    /// Pages of 2^`shift` bytes with lifetimes. Without `files`, file pages take no frames.
    pub fn lives(reader: &Reader, spaces: Spaces, shift: u32, files: bool) -> Result<Self> {
        let block_shift = shift.min(lifetimes::PAGE_SHIFT);
        Ok(Pages::Lives(Box::new(Lives {
            block_shift,
            blocks: Blocks::new(block_shift, shift, spaces),
            // Without a filter: all frames are simulated.
            table: PageTable::new(shift, block_shift, None).with_files(files),
            events: Events::new(reader)?,
            running: None,
            space: 0,
        })))
    }

    pub fn block_shift(&self) -> u32 {
        match self {
            Pages::Permanent { shift, .. } => *shift,
            Pages::Lives(lives) => lives.block_shift,
        }
    }

    /// Apply the events before record number `at`.
    pub fn events(&mut self, at: u64, simulation: &mut TlbAndMemory) {
        let Pages::Lives(lives) = self else { return };
        while let Some(event) = lives.events.before(at) {
            lives.blocks.apply(&event);
            lives.take_changes(simulation);
            lives.running = None;
        }
    }

    /// `addr` with the thread's address space ([`lifetimes::place`]); without lifetimes, `addr`. Must
    /// be called in order, at least for the first record after an event or a change of thread.
    pub fn place(&mut self, thread: u32, addr: u64) -> u64 {
        let Pages::Lives(lives) = self else { return addr };
        if lives.running != Some(thread) {
            lives.space = lives.blocks.spaces().of_thread(thread);
            lives.running = Some(thread);
        }
        lifetimes::place(lives.space, addr)
    }

    /// Apply a reference to a block, and its changes to `simulation`. Returns the target.
    pub fn reference(&mut self, block: u64, write: bool, simulation: &mut TlbAndMemory) -> Target {
        match self {
            Pages::Permanent { ids, .. } => {
                let next = ids.len() as u32;
                let page = *ids.entry(block).or_insert(next);
                if page == next {
                    let (of_file, executable) = (false, false);
                    let frame = page;
                    simulation.apply(Action::Begin { frame, number: block, of_file, executable });
                }
                Target { page, number: block, frame: page }
            }
            Pages::Lives(lives) => {
                let id = lives.blocks.reference(block, write);
                lives.take_changes(simulation);
                let page = lives.table.page(id);
                let (number, frame) = (lives.table.number(page), lives.table.frame(page));
                Target { page, number, frame }
            }
        }
    }
}

impl Lives {
    fn take_changes(&mut self, simulation: &mut TlbAndMemory) {
        for change in self.blocks.changes() {
            self.table.apply(&change);
            self.table.actions().for_each(|action| simulation.apply(action));
        }
    }
}
