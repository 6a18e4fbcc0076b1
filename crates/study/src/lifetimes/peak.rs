//! How much memory a program has at once.

use std::ops::Range;

use nearfar_trace::{Batch, Columns, KindSet, Reader, RegionEvent, Result, last_byte};

use super::{Blocks, PAGE, PageTable, Spaces};

/// Blocks that were seen lately and have nothing more to say, by some bits of their numbers.
const SLOTS: usize = 1 << 12;
const EMPTY: u64 = u64::MAX;

/// The peak resident set of a trace: the most bytes of 4 KiB frames at once, of the pages that records
/// of `kinds` touch. Pages of files count from their first reference to the end, as they stay in the
/// page cache; without `files` they do not count. A memory of this size evicts nothing.
pub fn peak_resident(
    reader: &Reader,
    kinds: KindSet,
    files: bool,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<u64> {
    let mut memory = Memory {
        blocks: Blocks::new(PAGE, PAGE, Spaces::new(&reader.info().threads)),
        table: PageTable::new(PAGE, PAGE, None).with_files(files),
        recent: vec![EMPTY; SLOTS],
        peak: 0,
    };
    let mut events = reader.regions()?;
    events.sort_by_key(|event| event.at);
    let mut events = events.into_iter().peekable();
    let mut batches = reader.batches(Columns { thread: true, ..Columns::PAGING });
    let (mut batch, mut next) = (Batch::default(), Batch::default());
    let mut at = 0;
    let mut more = batches.next_into(&mut batch)?;
    while more {
        // One is decoded while the one before is looked at.
        let (decoded, ()) = rayon::join(
            || batches.next_into(&mut next),
            || at = memory.batch(&mut batch, at, &mut events, kinds),
        );
        more = decoded?;
        std::mem::swap(&mut batch, &mut next);
        on_progress(at)?;
    }
    Ok(memory.peak.max(1) << PAGE)
}

type Events = std::iter::Peekable<std::vec::IntoIter<RegionEvent>>;

struct Memory {
    blocks: Blocks,
    table: PageTable,
    recent: Vec<u64>,
    peak: u64,
}

impl Memory {
    /// Apply a batch that begins after `at` records; answers the records after it.
    fn batch(&mut self, batch: &mut Batch, at: u64, events: &mut Events, kinds: KindSet) -> u64 {
        let mut start = 0;
        while start < batch.len() {
            while let Some(event) = events.next_if(|event| event.at <= at + start as u64) {
                self.event(&event);
            }
            let until = events.peek().map_or(usize::MAX, |event| (event.at - at) as usize);
            let range = start..until.min(batch.len());
            self.blocks.spaces().tell_apart(batch, range.clone());
            self.records(batch, range.clone(), kinds);
            start = range.end;
        }
        at + batch.len() as u64
    }

    fn event(&mut self, event: &RegionEvent) {
        self.blocks.apply(event);
        if self.changed() {
            self.recent.fill(EMPTY);
        }
    }

    fn records(&mut self, batch: &Batch, range: Range<usize>, kinds: KindSet) {
        let records = batch.addr[range.clone()].iter().zip(&batch.kind[range.clone()]);
        for ((&addr, &kind), &size) in records.zip(&batch.size[range]) {
            if kinds.0 >> kind & 1 == 0 {
                continue;
            }
            for number in addr >> PAGE..=last_byte(addr, size) >> PAGE {
                if self.recent[number as usize % SLOTS] != number {
                    self.reference(number, KindSet::WRITES.0 >> kind & 1 == 1);
                }
            }
        }
    }

    fn reference(&mut self, number: u64, write: bool) {
        let blocks = &mut self.blocks;
        let block = blocks.find(number).unwrap_or_else(|| blocks.birth(number, write));
        if write && blocks.watched(block) {
            blocks.write(block);
        }
        if !blocks.watched(block) {
            self.recent[number as usize % SLOTS] = number;
        }
        self.changed();
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
