//! The page and the frame that a reference reaches, where pages end and where they do not.

use nearfar_trace::hash::PageMap;
use nearfar_trace::{Reader, Result};

use crate::lifetimes::{self, Action, Blocks, Events, PageTable, Spaces};
use crate::paging::explain::memory::{Target, TlbAndMemory};

/// Pages of one size.
pub enum Pages {
    /// They never end.
    Endless {
        /// log2 of the page size.
        shift: u32,
        /// In the order of first references.
        ids: PageMap<u32>,
    },
    /// They end as the trace's events say.
    Lives(Box<Lives>),
}

/// Pages that end.
pub struct Lives {
    block_shift: u32,
    blocks: Blocks,
    table: PageTable,
    events: Events,
    /// The thread of the record before, unless an event came since, and its space.
    running: Option<u32>,
    space: u32,
}

impl Pages {
    /// Pages of 2^`shift` bytes that never end.
    pub fn endless(shift: u32) -> Self {
        Pages::Endless { shift, ids: PageMap::default() }
    }

    /// Pages of 2^`shift` bytes that end. Without `files`, pages of files take no frames.
    ///
    /// # Errors
    /// The events cannot be read.
    pub fn lives(reader: &Reader, spaces: Spaces, shift: u32, files: bool) -> Result<Self> {
        let block_shift = shift.min(lifetimes::PAGE);
        Ok(Pages::Lives(Box::new(Lives {
            block_shift,
            blocks: Blocks::new(block_shift, shift, spaces),
            table: PageTable::new(shift, block_shift, None).with_files(files),
            events: Events::new(reader)?,
            running: None,
            space: 0,
        })))
    }

    /// log2 of the bytes that are referenced together.
    pub fn block_shift(&self) -> u32 {
        match self {
            Pages::Endless { shift, .. } => *shift,
            Pages::Lives(lives) => lives.block_shift,
        }
    }

    /// Apply the events that come before record number `at`.
    pub fn events(&mut self, at: u64, resident: &mut TlbAndMemory) {
        let Pages::Lives(lives) = self else { return };
        while let Some(event) = lives.events.before(at) {
            lives.blocks.apply(&event);
            lives.take_changes(resident);
            lives.running = None;
        }
    }

    /// The number that an address of this thread is known by. Request for every record, in order.
    pub fn place(&mut self, thread: u32, addr: u64) -> u64 {
        let Pages::Lives(lives) = self else { return addr };
        if lives.running != Some(thread) {
            lives.space = lives.blocks.spaces().of_thread(thread);
            lives.running = Some(thread);
        }
        lifetimes::place(lives.space, addr)
    }

    /// What a reference to a block reaches; what it changes is told to `resident` first.
    pub fn reach(&mut self, block: u64, write: bool, resident: &mut TlbAndMemory) -> Target {
        match self {
            Pages::Endless { ids, .. } => {
                let fresh = ids.len() as u32;
                let page = *ids.entry(block).or_insert(fresh);
                if page == fresh {
                    let (of_file, executable) = (false, false);
                    let frame = page;
                    resident.apply(Action::Begin { frame, number: block, of_file, executable });
                }
                Target { page, number: block, frame: page }
            }
            Pages::Lives(lives) => {
                let id = lives.blocks.reference(block, write);
                lives.take_changes(resident);
                let page = lives.table.page(id);
                let (number, frame) = (lives.table.number(page), lives.table.frame(page));
                Target { page, number, frame }
            }
        }
    }
}

impl Lives {
    fn take_changes(&mut self, resident: &mut TlbAndMemory) {
        for change in self.blocks.changes() {
            self.table.apply(&change);
            self.table.actions().for_each(|action| resident.apply(action));
        }
    }
}
