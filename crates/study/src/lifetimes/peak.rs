//! The resident set of a program over time.

use std::ops::Range;

use nearfar_trace::reader::Batches;
use nearfar_trace::{Batch, Columns, KindSet, Reader, RegionEvent, RegionKind, Result, last_byte};

use super::{Blocks, Change, Events, Next, PAGE_SHIFT, PageTable, Recent, Spaces};

/// Counts the 4 KiB frames of a program. File pages, if included, count from their first reference to
/// the end of the trace, because they stay in the page cache.
pub struct Peak {
    table: PageTable,
    peak_frames: u64,
}

impl Peak {
    /// The blocks of [`Change`]s have 2^`block_shift` bytes. Without `files`, file pages do not count.
    pub fn new(block_shift: u32, files: bool) -> Self {
        Self {
            table: PageTable::new(PAGE_SHIFT, block_shift, None).with_files(files),
            peak_frames: 0,
        }
    }

    pub fn apply(&mut self, change: &Change) {
        self.table.apply(change);
        // This call only empties the table's list of actions.
        self.table.actions();
        self.peak_frames = self.peak_frames.max(self.table.used());
    }

    pub fn now_bytes(&self) -> u64 {
        self.table.used() << PAGE_SHIFT
    }

    /// Frames allocated so far, freed ones included, and how many of them hold file pages.
    pub fn pages(&self) -> (u64, u64) {
        (self.table.filled + self.table.read, self.table.read)
    }

    /// Peak resident bytes so far, at least a page.
    pub fn bytes(&self) -> u64 {
        self.peak_frames.max(1) << PAGE_SHIFT
    }
}

/// The 4 KiB frames of a program, updated record by record.
pub struct ResidentSet {
    blocks: Blocks,
    peak: Peak,
}

impl ResidentSet {
    /// Without `files`, file pages do not count.
    pub fn new(spaces: Spaces, files: bool) -> Self {
        Self {
            blocks: Blocks::new(PAGE_SHIFT, PAGE_SHIFT, spaces),
            peak: Peak::new(PAGE_SHIFT, files),
        }
    }

    /// Apply an event. Returns whether it changed any page or the address space of a process.
    pub fn event(&mut self, event: &RegionEvent) -> bool {
        use RegionKind as K;
        self.blocks.apply(event);
        self.apply_changes() | matches!(event.event, K::Fork | K::Vfork | K::Exec | K::Exit)
    }

    pub fn spaces(&mut self) -> &mut Spaces {
        self.blocks.spaces()
    }

    /// Apply a reference to the page of this number, which combines the address space and the address as
    /// [`super::place`] does. Until the next event, further reads of the page have no effect. Returns
    /// whether further writes have no effect either.
    pub fn reference(&mut self, number: u64, write: bool) -> bool {
        let block = self.blocks.reference(number, write);
        self.apply_changes();
        !self.blocks.watched(block)
    }

    pub fn peak(&self) -> &Peak {
        &self.peak
    }

    /// Apply records of `kinds`, whose addresses are [`super::place`]s. `recent` has pages to which
    /// references have no effect until the next event that changes a page.
    pub fn records(
        &mut self,
        recent: &mut Recent,
        kinds: KindSet,
        batch: &Batch,
        range: Range<usize>,
    ) {
        let records = batch.addr[range.clone()].iter().zip(&batch.kind[range.clone()]);
        for ((&addr, &kind), &size) in records.zip(&batch.size[range]) {
            if !kinds.has(kind) {
                continue;
            }
            let write = KindSet::WRITES.has(kind);
            for number in addr >> PAGE_SHIFT..=last_byte(addr, size) >> PAGE_SHIFT {
                if !recent.contains(number) && self.reference(number, write) {
                    recent.insert(number);
                }
            }
        }
    }

    /// Apply pending changes of blocks. Returns whether there were any.
    fn apply_changes(&mut self) -> bool {
        let mut any = false;
        for change in self.blocks.changes() {
            self.peak.apply(&change);
            any = true;
        }
        any
    }
}

/// The peak resident set of a trace in bytes, for the pages that records of `kinds` touch. A memory
/// of this size evicts nothing.
pub fn peak_resident(
    reader: &Reader,
    kinds: KindSet,
    mut set: ResidentSet,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<u64> {
    let (mut events, mut recent) = (Events::new(reader)?, Recent::default());
    let mut groups = reader.groups(Columns { thread: set.spaces().several(), ..Columns::PAGING });
    let mut batch = Batch::default();
    let mut at = 0;
    let mut group = groups.next()?;
    while let Some(mut current) = group {
        // Decompress the next row group while processing this one.
        let (next, records): (_, Result<u64>) = rayon::join(
            || groups.next(),
            || {
                let mut records = 0u64;
                while current.next_into(Batches::MAX, &mut batch)? {
                    for next in events.among(batch.len()) {
                        match next {
                            Next::Event(event) => {
                                if set.event(&event) {
                                    recent.clear();
                                }
                            }
                            Next::Records(range) => {
                                set.spaces().place_records(&mut batch, range.clone());
                                set.records(&mut recent, kinds, &batch, range);
                            }
                        }
                    }
                    records += batch.len() as u64;
                }
                Ok(records)
            },
        );
        group = next?;
        at += records?;
        on_progress(at)?;
    }
    Ok(set.peak.bytes())
}
