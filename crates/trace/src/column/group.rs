//! The records of one group, gathered slice by slice while a slice is in the processor's cache,
//! in few bytes per record.

use std::ops::Range;

use rustc_hash::FxHashMap;

use super::ROW_GROUP;
use super::intern::Addresses;
use super::page::Indices;
use crate::footprint::PAGE_SHIFT;
use crate::record::{Batch, Kind, Narrow, last_byte};

/// Records whose columns stay in the cache over several passes.
const SLICE: usize = 1 << 12;

/// Records whose borders are looked at together: a bit each.
const LANES: usize = 64;

/// Bytes of the pages whose number `trace.json` says.
const PAGE: u64 = 1 << PAGE_SHIFT;

/// Records from which on a group is taken to become a whole one, and has room for that.
const LARGE: usize = 1 << 16;

/// A row group being gathered. [`Group::clear`] keeps the memory.
#[derive(Default)]
pub struct Group {
    pub(super) addresses: Addresses,
    pub(super) kind: Indices,
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
        self.len() == 0
    }

    /// Whether it takes no further records: it has [`ROW_GROUP`], or its dictionary is full.
    pub fn is_full(&self) -> bool {
        self.len() == ROW_GROUP || self.addresses.ended()
    }

    /// Forget every record, keep the memory.
    pub fn clear(&mut self) {
        self.addresses.clear();
        self.kind.clear();
        self.size.clear();
        self.instr.clear();
        self.threads.clear();
        self.spanned.clear();
    }

    /// Append records of `batch` (columns of equal length, valid kinds) from `from` on, until the
    /// group is full. Returns how many.
    pub fn extend(&mut self, batch: &Batch, from: usize) -> usize {
        self.fill(from, batch.len(), |group, slice| {
            let (kind, size) = (&batch.kind[slice.clone()], &batch.size[slice.clone()]);
            let taken = group.extend_places(&batch.addr[slice.clone()], kind);
            let slice = slice.start..slice.start + taken;
            let (addr, instr) = (&batch.addr[slice.clone()], &batch.instr[slice.clone()]);
            note_spanned(&mut group.spanned, addr, size, kind);
            group.size.extend(&size[..taken]);
            group.instr.extend(instr);
            group.threads.extend(&batch.thread[slice], instr);
        })
    }

    /// Append records of `narrow` from `from` on, until the group is full. Returns how many.
    pub fn extend_narrow(&mut self, narrow: Narrow<'_>, from: usize) -> usize {
        self.fill(from, narrow.len(), |group, slice| {
            let Narrow { addr, kind, size, instr, thread } = narrow.part(slice);
            let taken = group.extend_places(addr, kind);
            let instr = &instr[..taken];
            note_spanned(&mut group.spanned, &addr[..taken], size, kind);
            group.size.extend_bytes(&size[..taken]);
            group.instr.extend_bytes(instr);
            group.threads.push_run(thread, taken, sum_of(instr));
        })
    }

    /// Let `append` have records `from..to`, slice by slice, until the group is full.
    fn fill(&mut self, from: usize, to: usize, append: impl Fn(&mut Self, Range<usize>)) -> usize {
        let before = self.len();
        let mut start = from;
        while start < to && !self.is_full() {
            // Twice at most: what is grown little by little leaves memory of every size behind, all
            // of which the kernel has zeroed.
            let room = if self.len() < LARGE { LARGE } else { ROW_GROUP };
            if !self.kind.has_room(room) {
                self.reserve(room);
            }
            append(self, start..to.min(start + SLICE.min(ROW_GROUP - self.len())));
            start = from + self.len() - before;
        }
        start - from
    }

    /// Append where records were and what they did there, until the group is full. Returns how many
    /// were taken: of the other columns, as many are to be.
    fn extend_places(&mut self, addr: &[u64], kind: &[u8]) -> usize {
        let taken = self.addresses.extend(addr, kind);
        self.kind.extend_from_slice(&kind[..taken]);
        taken
    }

    /// Records by kind.
    pub(super) fn by_kind(&self) -> [u64; Kind::ALL.len()] {
        let mut counts = [0; Kind::ALL.len()];
        for kinds in self.kind.as_slice().chunks(SLICE) {
            let mut left = kinds.len() as u64;
            for (of, count) in Kind::ALL.into_iter().zip(&mut counts) {
                // The kernel's come last, and seldom.
                if left > 0 {
                    let found = count_of(kinds, of as u8);
                    *count += found;
                    left -= found;
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

/// Which records lie over a border of 4 KiB pages (a bit each).
fn over_a_border<S: Copy + Into<u16>>(addr: &[u64; LANES], size: &[S; LANES]) -> u64 {
    let mut over = 0;
    for (lane, (addr, &size)) in addr.iter().zip(size).enumerate() {
        let size: u16 = size.into();
        over |= u64::from(addr % PAGE + u64::from(size) > PAGE) << lane;
    }
    over
}

/// Add the pages past the first of records that lie over a border, each with its kind; a page may
/// come several times. Of `size` and `kind` as many are looked at as there are addresses.
fn note_spanned<S: Copy + Into<u16>>(
    spanned: &mut Vec<(u64, u8)>,
    addr: &[u64],
    size: &[S],
    kind: &[u8],
) {
    let mut note = |at: usize| {
        let last = last_byte(addr[at], Into::<u16>::into(size[at])) >> PAGE_SHIFT;
        for page in (addr[at] >> PAGE_SHIFT) + 1..=last {
            // A loop over a border brings the same again and again.
            if spanned.last() != Some(&(page, 1 << kind[at])) {
                spanned.push((page, 1 << kind[at]));
            }
        }
    };
    let (pieces, _) = addr.as_chunks();
    let (sizes, _) = size.as_chunks();
    for (start, (addr, size)) in (0..).step_by(LANES).zip(pieces.iter().zip(sizes)) {
        let mut over = over_a_border(addr, size);
        while over != 0 {
            note(start + over.trailing_zeros() as usize);
            over &= over - 1;
        }
    }
    (pieces.len() * LANES..addr.len()).for_each(note);
}

/// How often `wanted` is there: counted in bytes, of which a vector register holds many.
fn count_of(kinds: &[u8], wanted: u8) -> u64 {
    let part = |kinds: &[u8]| kinds.iter().map(|&kind| u8::from(kind == wanted)).sum::<u8>();
    kinds.chunks(192).map(|kinds| u64::from(part(kinds))).sum()
}

/// The sum of `bytes`: in parts that 16 bits hold, of which a vector register holds many.
fn sum_of(bytes: &[u8]) -> u64 {
    let part = |bytes: &[u8]| bytes.iter().map(|&byte| u16::from(byte)).sum::<u16>();
    bytes.chunks(256).map(|bytes| u64::from(part(bytes))).sum()
}

fn largest_of(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |most, &byte| most.max(byte))
}

/// A column of numbers, most of which fit a byte.
#[derive(Default)]
pub(super) struct Numbers {
    /// The numbers; 0 for those that do not fit.
    bytes: Indices,
    /// Those, with the records they belong to.
    wide: Vec<(u32, u32)>,
    /// The largest of the bytes.
    largest: u8,
}

/// How a column of numbers is stored.
pub(super) enum Form {
    /// All are this one.
    Constant(u32),
    /// A byte each, an index into these.
    Dictionary(Vec<u32>),
    /// Not as bytes: there are too many different ones.
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
        const SOME: usize = 256;
        for values in values.chunks(SOME) {
            let start = self.bytes.len() as u32;
            let mut bytes = [0; SOME];
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

    /// [`Self::extend`] for numbers that come as bytes.
    fn extend_bytes(&mut self, values: &[u8]) {
        self.largest = self.largest.max(largest_of(values));
        self.bytes.extend_from_slice(values);
    }

    /// How they are to be stored, whatever the slices were they came in; then the bytes are indices.
    pub(super) fn form(&mut self) -> Form {
        let mut wide: Vec<u32> = self.wide.iter().map(|&(_, number)| number).collect();
        wide.sort_unstable();
        wide.dedup();
        let largest = self.largest;
        // A wide number takes the place of a byte that does not occur.
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
            let place = wide.partition_point(|&entry| entry < number);
            self.bytes.as_mut_slice()[record as usize] = free[place];
        }
        // Places ascend: the last of those taken is the largest.
        free.truncate(wide.len());
        let last = free.last().map_or(largest, |&place| largest.max(place));
        let mut entries: Vec<u32> = (0..=u32::from(last)).collect();
        free.iter().zip(&wide).for_each(|(&place, &number)| entries[usize::from(place)] = number);
        match self.bytes.constant() {
            Some(index) => Form::Constant(entries[usize::from(index)]),
            None => Form::Dictionary(entries),
        }
    }

    /// Bytes that are no record's number.
    fn unused(&self) -> Vec<u8> {
        let mut used = [0usize; 256];
        self.bytes.as_slice().iter().for_each(|&byte| used[usize::from(byte)] += 1);
        used[0] -= self.wide.len();
        (0..=u8::MAX).filter(|&byte| used[usize::from(byte)] == 0).collect()
    }

    /// The bytes of all records.
    pub(super) fn bytes(&mut self) -> &mut Indices {
        &mut self.bytes
    }
}

/// The thread column as runs, with what each thread did.
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
        /// On any processor.
        #[test]
        fn pages_past_the_first_are_noted(
            records in prop::collection::vec((0u64..1 << 14, 0u8..=255, 0u8..5, any::<bool>()), 0..400),
        ) {
            let (mut addr, mut size, mut kind) = (Vec::new(), Vec::new(), Vec::new());
            let mut expected = Vec::new();
            for (at, bytes, of, top) in records {
                let at = if top { u64::MAX - at } else { at };
                addr.push(at);
                size.push(bytes);
                kind.push(of);
                let last = at.saturating_add(u64::from(bytes.max(1)) - 1);
                expected.extend(((at >> 12) + 1..=last >> 12).map(|page| (page, 1 << of)));
            }
            expected.dedup();
            let (mut of_bytes, mut of_numbers) = (Vec::new(), Vec::new());
            note_spanned(&mut of_bytes, &addr, &size, &kind);
            let size: Vec<u16> = size.into_iter().map(u16::from).collect();
            note_spanned(&mut of_numbers, &addr, &size, &kind);
            prop_assert_eq!(&of_bytes, &expected);
            prop_assert_eq!(&of_numbers, &expected);
        }

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
