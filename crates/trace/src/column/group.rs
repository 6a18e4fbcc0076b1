//! Gathers the records of one row group compactly, in slices that fit the processor's cache.

use std::ops::Range;

use rustc_hash::FxHashMap;

use super::ROW_GROUP;
use super::intern::Addresses;
use super::page::Indices;
use crate::footprint::PAGE_SHIFT;
use crate::record::{Batch, Kind, NarrowBatch, last_byte};

/// Records per slice: its columns stay in the cache over several passes.
const SLICE: usize = 1 << 12;

/// Records whose page crossings are tested together, one bit each.
const BLOCK: usize = 64;

/// Size of the pages that `trace.json` counts.
const PAGE: u64 = 1 << PAGE_SHIFT;

/// A group with this many records reserves room for a full group.
const LARGE: usize = 1 << 16;

/// A row group being gathered.
#[derive(Default)]
pub struct Group {
    pub(super) addresses: Addresses,
    pub(super) kind: Indices,
    pub(super) size: Numbers,
    pub(super) instr: Numbers,
    pub(super) threads: Threads,
    /// For records that cross a page boundary: every page but the first, and the bit of the kind.
    pub(super) further_pages: Vec<(u64, u8)>,
}

impl Group {
    pub fn len(&self) -> usize {
        self.kind.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the group has [`ROW_GROUP`] records or a full dictionary, and accepts no more records.
    pub fn is_full(&self) -> bool {
        self.len() == ROW_GROUP || self.addresses.is_full()
    }

    /// Remove all records, but keep the memory.
    pub fn clear(&mut self) {
        self.addresses.clear();
        self.kind.clear();
        self.size.clear();
        self.instr.clear();
        self.threads.clear();
        self.further_pages.clear();
    }

    /// Append records of `batch` from index `from` on, until the group is full. Returns the number
    /// appended.
    pub fn extend(&mut self, batch: &Batch, from: usize) -> usize {
        self.fill(from, batch.len(), |group, slice| {
            let (kind, size) = (&batch.kind[slice.clone()], &batch.size[slice.clone()]);
            let appended = group.extend_addresses(&batch.addr[slice.clone()], kind);
            let slice = slice.start..slice.start + appended;
            let (addr, instr) = (&batch.addr[slice.clone()], &batch.instr[slice.clone()]);
            add_further_pages(&mut group.further_pages, addr, size, kind);
            group.size.extend(&size[..appended]);
            group.instr.extend(instr);
            group.threads.extend(&batch.thread[slice], instr);
        })
    }

    /// [`Self::extend`] for a narrow batch.
    pub fn extend_narrow(&mut self, narrow: NarrowBatch<'_>, from: usize) -> usize {
        self.fill(from, narrow.len(), |group, slice| {
            let NarrowBatch { addr, kind, size, instr, thread } = narrow.part(slice);
            let appended = group.extend_addresses(addr, kind);
            let instr = &instr[..appended];
            add_further_pages(&mut group.further_pages, &addr[..appended], size, kind);
            group.size.extend_bytes(&size[..appended]);
            group.instr.extend_bytes(instr);
            group.threads.push_run(thread, appended, sum_of(instr));
        })
    }

    /// Pass the records `from..to` to `append`, slice by slice, until the group is full. Returns
    /// the number appended.
    fn fill(&mut self, from: usize, to: usize, append: impl Fn(&mut Self, Range<usize>)) -> usize {
        let before = self.len();
        let mut start = from;
        while start < to && !self.is_full() {
            // Reserve at most twice: gradual growth would allocate memory of many sizes, all of
            // which the kernel has to zero.
            let room = if self.len() < LARGE { LARGE } else { ROW_GROUP };
            if !self.kind.has_room(room) {
                self.reserve(room);
            }
            append(self, start..to.min(start + SLICE.min(ROW_GROUP - self.len())));
            start = from + self.len() - before;
        }
        start - from
    }

    /// Append addresses and kinds until the group is full. Returns the number appended: the caller
    /// must append as many elements to the other columns.
    fn extend_addresses(&mut self, addr: &[u64], kind: &[u8]) -> usize {
        let appended = self.addresses.extend(addr, kind);
        self.kind.extend_from_slice(&kind[..appended]);
        appended
    }

    pub(super) fn by_kind(&self) -> [u64; Kind::ALL.len()] {
        let mut counts = [0; Kind::ALL.len()];
        for kinds in self.kind.as_slice().chunks(SLICE) {
            let mut uncounted = kinds.len() as u64;
            for (kind, count) in Kind::ALL.into_iter().zip(&mut counts) {
                // Kernel kinds are last and rare: by then, usually all are counted.
                if uncounted > 0 {
                    let found = count_of(kinds, kind as u8);
                    *count += found;
                    uncounted -= found;
                }
            }
        }
        counts
    }

    fn reserve(&mut self, records: usize) {
        self.addresses.reserve(records);
        self.kind.reserve(records);
        self.size.reserve(records);
        self.instr.reserve(records);
    }
}

/// The records that cross a boundary of 4 KiB pages, one bit each.
fn crossings<S: Copy + Into<u16>>(addr: &[u64; BLOCK], size: &[S; BLOCK]) -> u64 {
    let mut crossings = 0;
    for (index, (addr, &size)) in addr.iter().zip(size).enumerate() {
        let size: u16 = size.into();
        crossings |= u64::from(addr % PAGE + u64::from(size) > PAGE) << index;
    }
    crossings
}

/// For records that cross a page boundary, append every page but the first, with the bit of the
/// kind. A page may appear several times. `size` and `kind` may be longer than `addr`.
fn add_further_pages<S: Copy + Into<u16>>(
    pages: &mut Vec<(u64, u8)>,
    addr: &[u64],
    size: &[S],
    kind: &[u8],
) {
    let mut add = |index: usize| {
        let last = last_byte(addr[index], Into::<u16>::into(size[index])) >> PAGE_SHIFT;
        for page in (addr[index] >> PAGE_SHIFT) + 1..=last {
            // A loop across a boundary repeats the same page.
            if pages.last() != Some(&(page, 1 << kind[index])) {
                pages.push((page, 1 << kind[index]));
            }
        }
    };
    let (blocks, _) = addr.as_chunks();
    let (sizes, _) = size.as_chunks();
    for (start, (addr, size)) in (0..).step_by(BLOCK).zip(blocks.iter().zip(sizes)) {
        let mut crossings = crossings(addr, size);
        while crossings != 0 {
            add(start + crossings.trailing_zeros() as usize);
            crossings &= crossings - 1;
        }
    }
    (blocks.len() * BLOCK..addr.len()).for_each(add);
}

/// Number of elements equal to `kind`. Sums in 8 bits, for vectorisation.
fn count_of(kinds: &[u8], kind: u8) -> u64 {
    let part = |kinds: &[u8]| kinds.iter().map(|&other| u8::from(other == kind)).sum::<u8>();
    kinds.chunks(192).map(|kinds| u64::from(part(kinds))).sum()
}

/// The sum of `bytes`. Sums in 16 bits, for vectorisation.
fn sum_of(bytes: &[u8]) -> u64 {
    let part = |bytes: &[u8]| bytes.iter().map(|&byte| u16::from(byte)).sum::<u16>();
    bytes.chunks(256).map(|bytes| u64::from(part(bytes))).sum()
}

fn largest_of(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |max, &byte| max.max(byte))
}

/// A column of numbers, most of which fit a byte.
#[derive(Default)]
pub(super) struct Numbers {
    /// The numbers, or 0 for those that do not fit a byte.
    bytes: Indices,
    /// Record index and value of each number that does not fit a byte.
    wide: Vec<(u32, u32)>,
    /// Maximum of `bytes`.
    largest: u8,
}

/// How a column of numbers is stored.
pub(super) enum Form {
    /// All have this value.
    Constant(u32),
    /// As 8-bit indices into these entries.
    Dictionary(Vec<u32>),
    /// As they are, because more than 256 are distinct.
    Plain(Vec<u32>),
}

impl Numbers {
    fn clear(&mut self) {
        self.bytes.clear();
        self.wide.clear();
        self.largest = 0;
    }

    fn reserve(&mut self, records: usize) {
        self.bytes.reserve(records);
    }

    fn extend<T: Copy + Into<u32>>(&mut self, values: &[T]) {
        const CHUNK: usize = 256;
        for values in values.chunks(CHUNK) {
            let start = self.bytes.len() as u32;
            let mut bytes = [0; CHUNK];
            for ((record, byte), &value) in (start..).zip(&mut bytes).zip(values) {
                let value: u32 = value.into();
                *byte = value as u8;
                if value > u32::from(u8::MAX) {
                    *byte = 0;
                    self.wide.push((record, value));
                }
            }
            self.extend_bytes(&bytes[..values.len()]);
        }
    }

    /// [`Self::extend`] for bytes.
    fn extend_bytes(&mut self, values: &[u8]) {
        self.largest = self.largest.max(largest_of(values));
        self.bytes.extend_from_slice(values);
    }

    /// Choose the form, independently of how the numbers were sliced. For a dictionary, turns
    /// [`Self::bytes`] into indices.
    pub(super) fn form(&mut self) -> Form {
        let mut wide: Vec<u32> = self.wide.iter().map(|&(_, number)| number).collect();
        wide.sort_unstable();
        wide.dedup();
        let largest = self.largest;
        // The index of a wide number is a byte that does not occur.
        let mut free: Vec<u8> = (largest..=u8::MAX).skip(1).take(wide.len()).collect();
        if free.len() < wide.len() {
            free = self.unused();
        }
        if free.len() < wide.len() {
            let mut plain: Vec<u32> =
                self.bytes.as_slice().iter().map(|&byte| u32::from(byte)).collect();
            self.wide.iter().for_each(|&(record, number)| plain[record as usize] = number);
            return Form::Plain(plain);
        }
        for &(record, number) in &self.wide {
            let index = wide.partition_point(|&entry| entry < number);
            self.bytes.as_mut_slice()[record as usize] = free[index];
        }
        // The free bytes ascend, so that the last one used is the largest.
        free.truncate(wide.len());
        let last = free.last().map_or(largest, |&byte| largest.max(byte));
        let mut entries: Vec<u32> = (0..=u32::from(last)).collect();
        free.iter().zip(&wide).for_each(|(&byte, &number)| entries[usize::from(byte)] = number);
        match self.bytes.constant() {
            Some(index) => Form::Constant(entries[usize::from(index)]),
            None => Form::Dictionary(entries),
        }
    }

    /// Bytes that do not occur.
    fn unused(&self) -> Vec<u8> {
        let mut used = [0usize; 256];
        self.bytes.as_slice().iter().for_each(|&byte| used[usize::from(byte)] += 1);
        used[0] -= self.wide.len();
        (0..=u8::MAX).filter(|&byte| used[usize::from(byte)] == 0).collect()
    }

    pub(super) fn bytes(&mut self) -> &mut Indices {
        &mut self.bytes
    }
}

/// The thread column as runs, and the totals of each thread.
#[derive(Default)]
pub(super) struct Threads {
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
            let instr = rest.split_off(..run.len()).unwrap_or_default();
            self.push_run(run[0], run.len(), instr.iter().map(|&n| u64::from(n)).sum());
        }
    }

    fn push_run(&mut self, thread: u32, records: usize, instructions: u64) {
        match self.runs.last_mut() {
            Some(last) if last.0 == thread => last.1 += records,
            _ => self.runs.push((thread, records)),
        }
        // Runs are long, so that one map access per run is cheap.
        let total = self.totals.entry(thread).or_default();
        *total = (total.0 + records as u64, total.1 + instructions);
    }

    /// Thread and records of each run.
    pub(super) fn runs(&self) -> &[(u32, usize)] {
        &self.runs
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
        #[test]
        fn further_pages_agree_with_a_simple_loop(
            records in prop::collection::vec((0u64..1 << 14, 0u8..=255, 0u8..5, any::<bool>()), 0..400),
        ) {
            let (mut addr, mut size, mut kind) = (Vec::new(), Vec::new(), Vec::new());
            let mut expected = Vec::new();
            for (at, bytes, record_kind, top) in records {
                let at = if top { u64::MAX - at } else { at };
                addr.push(at);
                size.push(bytes);
                kind.push(record_kind);
                let last = at.saturating_add(u64::from(bytes.max(1)) - 1);
                expected.extend(((at >> 12) + 1..=last >> 12).map(|page| (page, 1 << record_kind)));
            }
            expected.dedup();
            let (mut pages, mut wide_pages) = (Vec::new(), Vec::new());
            add_further_pages(&mut pages, &addr, &size, &kind);
            let size: Vec<u16> = size.into_iter().map(u16::from).collect();
            add_further_pages(&mut wide_pages, &addr, &size, &kind);
            prop_assert_eq!(&pages, &expected);
            prop_assert_eq!(&wide_pages, &expected);
        }

        #[test]
        fn numbers_are_stored_without_loss(
            narrow in 0u32..300,
            wide in 0u32..300,
            picks in prop::collection::vec(any::<(bool, u16)>(), 0..3000),
            step in 1usize..500,
        ) {
            let number = |&(is_wide, pick): &(bool, u16)| match (is_wide, u32::from(pick)) {
                (true, pick) if wide > 0 => 256 + pick % wide * 70_000,
                (_, pick) => pick % (narrow % 256 + 1),
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
                Form::Constant(number) => {
                    prop_assert!(!values.is_empty());
                    vec![number; values.len()]
                }
                Form::Dictionary(entries) => {
                    prop_assert!(entries.len() <= 256);
                    let bytes = numbers.bytes().as_slice().iter();
                    bytes.map(|&byte| entries[usize::from(byte)]).collect()
                }
            };
            prop_assert_eq!(found, values);
        }
    }
}
