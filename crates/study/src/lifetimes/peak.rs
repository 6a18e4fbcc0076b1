//! How much memory a program has at once.

use std::ops::Range;

use nearfar_trace::{Batch, Columns, KindSet, Reader, RegionEvent, RegionKind, Result, last_byte};

use super::{Blocks, PAGE, PageTable, Spaces};

/// Blocks that were seen lately and have nothing more to say, by some bits of their numbers.
const SLOTS: usize = 1 << 12;
const EMPTY: u64 = u64::MAX;

/// The 4 KiB frames that a program has at each moment, record by record. Pages of files count from
/// their first reference to the end, as they stay in the page cache; or not at all.
pub struct ResidentSet {
    blocks: Blocks,
    table: PageTable,
    /// Those that are still to come.
    events: std::iter::Peekable<std::vec::IntoIter<RegionEvent>>,
    peak: u64,
}

impl ResidentSet {
    /// Nothing was referenced yet. Without `files`, pages of files do not count.
    ///
    /// # Errors
    /// The events cannot be read.
    pub fn new(reader: &Reader, files: bool) -> Result<Self> {
        let mut events = reader.regions()?;
        events.sort_by_key(|event| event.at);
        Ok(Self {
            blocks: Blocks::new(PAGE, PAGE, Spaces::new(&reader.info().threads)),
            table: PageTable::new(PAGE, PAGE, None).with_files(files),
            events: events.into_iter().peekable(),
            peak: 0,
        })
    }

    /// Number of the record before which the next event happened.
    pub fn next_event(&mut self) -> u64 {
        self.events.peek().map_or(u64::MAX, |event| event.at)
    }

    /// Apply the events that come before record number `at`; answers whether they changed any page, or
    /// which space a process has.
    pub fn events(&mut self, at: u64) -> bool {
        use RegionKind as K;
        let mut any = false;
        while let Some(event) = self.events.next_if(|event| event.at <= at) {
            self.blocks.apply(&event);
            any |= self.changed() | matches!(event.event, K::Fork | K::Vfork | K::Exec | K::Exit);
        }
        any
    }

    /// The address spaces.
    pub fn spaces(&mut self) -> &mut Spaces {
        self.blocks.spaces()
    }

    /// A reference to a page, by the number of its place ([`super::place`]). Until an event changes
    /// anything, further reads of it say nothing more; answers whether no write does either.
    pub fn reference(&mut self, number: u64, write: bool) -> bool {
        let blocks = &mut self.blocks;
        let block = blocks.find(number).unwrap_or_else(|| blocks.birth(number, write));
        if write && blocks.watched(block) {
            blocks.write(block);
        }
        let settled = !blocks.watched(block);
        self.changed();
        settled
    }

    /// Bytes now.
    pub fn bytes(&self) -> u64 {
        self.table.used() << PAGE
    }

    /// The most bytes so far, at least a page.
    pub fn peak_bytes(&self) -> u64 {
        self.peak.max(1) << PAGE
    }

    /// Apply what became of blocks; answers whether anything did.
    fn changed(&mut self) -> bool {
        let mut any = false;
        for change in self.blocks.changes() {
            self.table.apply(&change);
            any = true;
        }
        self.table.actions();
        self.peak = self.peak.max(self.table.used());
        any
    }
}

/// The peak resident set of a trace: the most bytes of 4 KiB frames at once ([`ResidentSet`]), of the
/// pages that records of `kinds` touch. A memory of this size evicts nothing.
pub fn peak_resident(
    reader: &Reader,
    kinds: KindSet,
    files: bool,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<u64> {
    let mut memory = Memory { set: ResidentSet::new(reader, files)?, recent: vec![EMPTY; SLOTS] };
    let mut batches = reader.batches(Columns { thread: true, ..Columns::PAGING });
    let (mut batch, mut next) = (Batch::default(), Batch::default());
    let mut at = 0;
    let mut more = batches.next_into(&mut batch)?;
    while more {
        // One is decoded while the one before is looked at.
        let (decoded, ()) = rayon::join(
            || batches.next_into(&mut next),
            || at = memory.batch(&mut batch, at, kinds),
        );
        more = decoded?;
        std::mem::swap(&mut batch, &mut next);
        on_progress(at)?;
    }
    Ok(memory.set.peak_bytes())
}

struct Memory {
    set: ResidentSet,
    recent: Vec<u64>,
}

impl Memory {
    /// Apply a batch that begins after `at` records; answers the records after it.
    fn batch(&mut self, batch: &mut Batch, at: u64, kinds: KindSet) -> u64 {
        let mut start = 0;
        while start < batch.len() {
            if self.set.events(at + start as u64) {
                self.recent.fill(EMPTY);
            }
            let until = self.set.next_event() - at;
            let range = start..usize::try_from(until).unwrap_or(usize::MAX).min(batch.len());
            self.set.spaces().tell_apart(batch, range.clone());
            self.records(batch, range.clone(), kinds);
            start = range.end;
        }
        at + batch.len() as u64
    }

    fn records(&mut self, batch: &Batch, range: Range<usize>, kinds: KindSet) {
        let records = batch.addr[range.clone()].iter().zip(&batch.kind[range.clone()]);
        for ((&addr, &kind), &size) in records.zip(&batch.size[range]) {
            if kinds.0 >> kind & 1 == 0 {
                continue;
            }
            for number in addr >> PAGE..=last_byte(addr, size) >> PAGE {
                let slot = number as usize % SLOTS;
                if self.recent[slot] != number
                    && self.set.reference(number, KindSet::WRITES.0 >> kind & 1 == 1)
                {
                    self.recent[slot] = number;
                }
            }
        }
    }
}
