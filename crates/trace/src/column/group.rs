//! The records of one group, gathered slice by slice while a slice is in the processor's cache,
//! in few bytes a record.

use std::ops::Range;

use rustc_hash::FxHashMap;

use super::ROW_GROUP;
use crate::footprint::PAGE_SHIFT;
use crate::record::{Batch, Narrow, last_byte};

/// Records whose columns stay in the cache over several passes.
const SLICE: usize = 1 << 12;

/// Records from which on a group is taken to become a whole one, and has room for that.
const LARGE: usize = 1 << 16;

/// A row group being gathered. [`Group::clear`] keeps the memory.
#[derive(Default)]
pub struct Group {
    pub(super) addr: Vec<u64>,
    pub(super) kind: Vec<u8>,
    pub(super) size: Numbers,
    pub(super) instr: Numbers,
    pub(super) threads: Threads,
    /// Pages past the first of records that lie over a border, with the kinds that touched them.
    pub(super) spanned: Vec<(u64, u8)>,
}

impl Group {
    /// Records so far.
    pub fn len(&self) -> usize {
        self.kind.len()
    }

    /// Whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.kind.is_empty()
    }

    /// Forget every record, keep the memory.
    pub fn clear(&mut self) {
        self.addr.clear();
        self.kind.clear();
        self.size.clear();
        self.instr.clear();
        self.threads.clear();
        self.spanned.clear();
    }

    /// Append records `from..to` of `batch` (columns of equal length, valid kinds).
    pub fn extend(&mut self, batch: &Batch, from: usize, to: usize) {
        for start in (from..to).step_by(SLICE) {
            let range = start..to.min(start + SLICE);
            let (kind, size) = (&batch.kind[range.clone()], &batch.size[range.clone()]);
            let instr = &batch.instr[range.clone()];
            self.extend_places(&batch.addr[range.clone()], kind, size);
            self.size.extend(size);
            self.instr.extend(instr);
            self.threads.extend(&batch.thread[range], instr);
        }
    }

    /// Append records `from..to` of `narrow`.
    pub fn extend_narrow(&mut self, narrow: Narrow<'_>, from: usize, to: usize) {
        for start in (from..to).step_by(SLICE) {
            let range = start..to.min(start + SLICE);
            let (kind, size) = (&narrow.kind[range.clone()], &narrow.size[range.clone()]);
            let instr = &narrow.instr[range.clone()];
            self.extend_places(&narrow.addr[range.clone()], kind, size);
            self.size.extend_bytes(size);
            self.instr.extend_bytes(instr);
            self.threads.push_run(narrow.thread, range.len(), sum_of(instr));
        }
    }

    fn extend_places<S: Copy + Into<u16>>(&mut self, addr: &[u64], kind: &[u8], size: &[S]) {
        if self.len() >= LARGE && self.kind.capacity() < ROW_GROUP {
            self.addr.reserve_exact(ROW_GROUP - self.len());
            self.kind.reserve_exact(ROW_GROUP - self.len());
            self.size.reserve(ROW_GROUP);
            self.instr.reserve(ROW_GROUP);
        }
        self.addr.extend_from_slice(addr);
        self.kind.extend_from_slice(kind);
        for ((addr, size), kind) in addr.chunks(16).zip(size.chunks(16)).zip(kind.chunks(16)) {
            self.note_spanned(addr, size, kind);
        }
    }

    fn note_spanned<S: Copy + Into<u16>>(&mut self, addr: &[u64], size: &[S], kind: &[u8]) {
        const PAGE: u16 = 1 << PAGE_SHIFT;
        // Bytes over the border, over many records at once: there are rarely any.
        let over = |(&addr, &size): (&u64, &S)| {
            Into::<u16>::into(size).saturating_sub(PAGE - (addr as u16 & (PAGE - 1)))
        };
        if addr.iter().zip(size).map(over).fold(0, |all, each| all | each) == 0 {
            return;
        }
        for ((addr, size), &kind) in addr.iter().zip(size).zip(kind) {
            if over((addr, size)) > 0 {
                let last = last_byte(*addr, Into::<u16>::into(*size)) >> PAGE_SHIFT;
                let pages = (addr >> PAGE_SHIFT) + 1..=last;
                self.spanned.extend(pages.map(|page| (page, 1 << kind)));
            }
        }
    }
}

/// The sum of `bytes`: in parts that 16 bits hold, of which a vector register holds many.
fn sum_of(bytes: &[u8]) -> u64 {
    let part = |bytes: &[u8]| bytes.iter().map(|&byte| u16::from(byte)).sum::<u16>();
    bytes.chunks(256).map(|bytes| u64::from(part(bytes))).sum()
}

/// A column of numbers, most of which fit a byte.
#[derive(Default)]
pub(super) struct Numbers {
    /// The numbers; 0 for those that do not fit.
    bytes: Vec<u8>,
    /// Those, with the records they belong to.
    wide: Vec<(u32, u32)>,
}

/// How a column of numbers is stored.
pub(super) enum Form {
    /// A byte each, an index into these.
    Dictionary(Vec<u32>),
    /// Not as bytes: there are too many different ones.
    Plain(Vec<u32>),
}

impl Numbers {
    fn clear(&mut self) {
        self.bytes.clear();
        self.wide.clear();
    }

    fn reserve(&mut self, records: usize) {
        self.bytes.reserve_exact(records.saturating_sub(self.bytes.len()));
    }

    fn extend<T: Copy + Into<u32>>(&mut self, values: &[T]) {
        let start = self.bytes.len();
        let bytes = values.iter().map(|&value| Into::<u32>::into(value));
        if bytes.clone().fold(0, |all, value| all | value) <= u32::from(u8::MAX) {
            self.bytes.extend(bytes.map(|value| value as u8));
            return;
        }
        for (record, value) in (start as u32..).zip(bytes) {
            let byte = u8::try_from(value);
            if byte.is_err() {
                self.wide.push((record, value));
            }
            self.bytes.push(byte.unwrap_or(0));
        }
    }

    /// [`Self::extend`] for numbers that come as bytes.
    fn extend_bytes(&mut self, values: &[u8]) {
        self.bytes.extend_from_slice(values);
    }

    /// How they are to be stored, whatever the slices were they came in; then the bytes are indices.
    pub(super) fn form(&mut self) -> Form {
        let mut wide: Vec<u32> = self.wide.iter().map(|&(_, number)| number).collect();
        wide.sort_unstable();
        wide.dedup();
        let largest = self.bytes.iter().fold(0, |most, &byte| most.max(byte));
        // A wide number takes the place of a byte that does not occur.
        let mut free: Vec<u8> = (largest..=u8::MAX).skip(1).take(wide.len()).collect();
        if free.len() < wide.len() {
            free = self.unused();
        }
        if free.len() < wide.len() {
            let mut plain: Vec<u32> = self.bytes.iter().map(|&byte| u32::from(byte)).collect();
            self.wide.iter().for_each(|&(record, number)| plain[record as usize] = number);
            return Form::Plain(plain);
        }
        for &(record, number) in &self.wide {
            let place = wide.partition_point(|&entry| entry < number);
            self.bytes[record as usize] = free[place];
        }
        // Places ascend: the last of those taken is the largest.
        free.truncate(wide.len());
        let last = free.last().map_or(largest, |&place| largest.max(place));
        let mut entries: Vec<u32> = (0..=u32::from(last)).collect();
        free.iter().zip(&wide).for_each(|(&place, &number)| entries[usize::from(place)] = number);
        Form::Dictionary(entries)
    }

    /// Bytes that are no record's number.
    fn unused(&self) -> Vec<u8> {
        let mut used = [0usize; 256];
        self.bytes.iter().for_each(|&byte| used[usize::from(byte)] += 1);
        used[0] -= self.wide.len();
        (0..=u8::MAX).filter(|&byte| used[usize::from(byte)] == 0).collect()
    }

    /// The bytes of all records.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The thread column as runs, with what each thread did.
#[derive(Default)]
pub(super) struct Threads {
    /// Thread and records of each run.
    runs: Vec<(u32, usize)>,
    /// Records and instructions by thread.
    totals: FxHashMap<u32, (u64, u64)>,
}

impl Threads {
    fn clear(&mut self) {
        self.runs.clear();
        self.totals.clear();
    }

    fn extend(&mut self, threads: &[u32], instr: &[u32]) {
        let mut rest = instr;
        for run in threads.chunk_by(|a, b| a == b) {
            let (own, after) = rest.split_at(run.len());
            rest = after;
            self.push_run(run[0], run.len(), own.iter().map(|&n| u64::from(n)).sum());
        }
    }

    fn push_run(&mut self, thread: u32, records: usize, instructions: u64) {
        match self.runs.last_mut() {
            Some(last) if last.0 == thread => last.1 += records,
            _ => self.runs.push((thread, records)),
        }
        // Threads come in long runs: one map access a run.
        let total = self.totals.entry(thread).or_default();
        *total = (total.0 + records as u64, total.1 + instructions);
    }

    /// The runs of records `range`.
    pub(super) fn runs_of(&self, range: Range<usize>) -> Vec<(u32, usize)> {
        let (mut runs, mut start) = (Vec::new(), 0);
        for &(thread, length) in &self.runs {
            let (from, to) = (range.start.max(start), range.end.min(start + length));
            start += length;
            if from < to {
                runs.push((thread, to - from));
            }
        }
        runs
    }

    /// Records and instructions by thread, sorted.
    pub(super) fn totals(&self) -> Vec<(u32, u64, u64)> {
        let totals = self.totals.iter();
        let mut totals: Vec<_> = totals.map(|(&t, &(records, n))| (t, records, n)).collect();
        totals.sort_unstable();
        totals
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever the numbers, and however few bytes they leave unused.
        #[test]
        fn numbers_are_what_they_were(
            few in 0u32..300,
            wide in 0u32..300,
            picks in prop::collection::vec(any::<(bool, u16)>(), 0..3000),
            step in 1usize..500,
        ) {
            let number = |&(is_wide, pick): &(bool, u16)| match (is_wide, u32::from(pick)) {
                (true, pick) if wide > 0 => 256 + pick % wide * 70_000,
                (_, pick) => pick % (few % 256 + 1),
            };
            let values: Vec<u32> = picks.iter().map(number).collect();
            let mut numbers = Numbers::default();
            values.chunks(step).for_each(|values| numbers.extend(values));
            let distinct: std::collections::HashSet<_> = values.iter().collect();
            let found: Vec<u32> = match numbers.form() {
                Form::Plain(found) => {
                    prop_assert!(distinct.len() > 256);
                    found
                }
                Form::Dictionary(entries) => {
                    prop_assert!(entries.len() <= 256);
                    numbers.bytes().iter().map(|&byte| entries[usize::from(byte)]).collect()
                }
            };
            prop_assert_eq!(found, values);
        }
    }
}
