//! The records of one row group, gathered slice by slice while a slice is in the processor's cache,
//! in few bytes a record.

use rustc_hash::FxHashMap;

use super::ROW_GROUP;
use crate::footprint::PAGE_SHIFT;
use crate::record::{Batch, Narrow};

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
            let instructions = instr.iter().map(|&n| u64::from(n)).sum();
            self.threads.push_run(narrow.thread, range.len(), instructions);
        }
    }

    fn extend_places<S: Copy + Into<u32>>(&mut self, addr: &[u64], kind: &[u8], size: &[S]) {
        if self.len() >= LARGE && self.kind.capacity() < ROW_GROUP {
            self.addr.reserve_exact(ROW_GROUP - self.len());
            for bytes in [&mut self.kind, &mut self.size.bytes, &mut self.instr.bytes] {
                bytes.reserve_exact(ROW_GROUP.saturating_sub(bytes.len()));
            }
        }
        self.addr.extend_from_slice(addr);
        self.kind.extend_from_slice(kind);
        for ((addr, size), kind) in addr.chunks(64).zip(size.chunks(64)).zip(kind.chunks(64)) {
            self.note_spanned(addr, size, kind);
        }
    }

    fn note_spanned<S: Copy + Into<u32>>(&mut self, addr: &[u64], size: &[S], kind: &[u8]) {
        const PAGE: u32 = 1 << PAGE_SHIFT;
        // The sign of (bytes to the border - size), over many records at once: it is rarely set.
        let over = |(&addr, &size): (&u64, &S)| {
            (PAGE - (addr as u32 & (PAGE - 1))).wrapping_sub(size.into())
        };
        if addr.iter().zip(size).map(over).fold(0, |all, each| all | each) >> 31 == 0 {
            return;
        }
        for ((addr, size), &kind) in addr.iter().zip(size).zip(kind) {
            if over((addr, size)) >> 31 == 1 {
                let last =
                    addr.saturating_add(u64::from(Into::<u32>::into(*size)) - 1) >> PAGE_SHIFT;
                let pages = (addr >> PAGE_SHIFT) + 1..=last;
                self.spanned.extend(pages.map(|page| (page, 1 << kind)));
            }
        }
    }
}

/// A column of numbers, as bytes while that will do.
#[derive(Default)]
pub(super) struct Numbers {
    form: Form,
    bytes: Vec<u8>,
    /// In the form of a dictionary, each number's index plus one; 0 for one not seen.
    known: Vec<u16>,
}

/// How the numbers are held.
pub(super) enum Form {
    /// The byte is the number; the largest one so far.
    Same(u8),
    /// The byte is an index into these.
    Dictionary(Vec<u32>),
    /// Not as bytes: there are too many different ones, or one of more than 16 bits.
    Plain(Vec<u32>),
}

impl Default for Form {
    fn default() -> Self {
        Self::Same(0)
    }
}

impl Numbers {
    fn clear(&mut self) {
        self.form = Form::default();
        self.bytes.clear();
    }

    fn extend<T: Copy + Ord + Into<u32>>(&mut self, values: &[T]) {
        let most = values.iter().copied().max().map_or(0, Into::into);
        if let (Form::Same(largest), Ok(most)) = (&mut self.form, u8::try_from(most)) {
            *largest = (*largest).max(most);
            self.bytes.extend(values.iter().map(|&value| value.into() as u8));
            return;
        }
        if let Form::Same(largest) = self.form {
            self.known.clear();
            self.known.resize(1 << 16, 0);
            let mut used = [false; 256];
            self.bytes.iter().for_each(|&byte| used[usize::from(byte)] = true);
            let entries: Vec<u32> =
                (0..=u32::from(largest)).filter(|&n| used[n as usize]).collect();
            for (index, &number) in (1..).zip(&entries) {
                self.known[number as usize] = index;
            }
            let index = |byte: &mut u8| *byte = (self.known[usize::from(*byte)] - 1) as u8;
            self.bytes.iter_mut().for_each(index);
            self.form = Form::Dictionary(entries);
        }
        let mut taken = 0;
        if let Form::Dictionary(entries) = &mut self.form {
            for &value in values {
                let value = value.into();
                let Some(index) = self.known.get_mut(value as usize) else { break };
                if *index == 0 {
                    if entries.len() == 256 {
                        break;
                    }
                    entries.push(value);
                    *index = entries.len() as u16;
                }
                self.bytes.push((*index - 1) as u8);
                taken += 1;
            }
            if taken == values.len() {
                return;
            }
            let number = |&byte: &u8| entries[usize::from(byte)];
            self.form = Form::Plain(self.bytes.iter().map(number).collect());
        }
        if let Form::Plain(plain) = &mut self.form {
            plain.extend(values[taken..].iter().map(|&value| value.into()));
        }
    }

    /// [`Self::extend`] for numbers that come as bytes.
    fn extend_bytes(&mut self, values: &[u8]) {
        match &mut self.form {
            Form::Same(largest) => {
                *largest = (*largest).max(values.iter().copied().max().unwrap_or(0));
                self.bytes.extend_from_slice(values);
            }
            Form::Dictionary(_) => {
                let (start, mut unknown) = (self.bytes.len(), false);
                self.bytes.extend(values.iter().map(|&value| {
                    let index = self.known[usize::from(value)];
                    unknown |= index == 0;
                    index.wrapping_sub(1) as u8
                }));
                if unknown {
                    self.bytes.truncate(start);
                    self.extend(&widened(values));
                }
            }
            Form::Plain(_) => self.extend(&widened(values)),
        }
    }

    /// The form and its bytes, a dictionary sorted: whatever the slices were, the same.
    pub(super) fn sorted(&mut self) -> (&Form, &[u8]) {
        if let Form::Dictionary(entries) = &mut self.form
            && !entries.is_sorted()
        {
            let mut order: Vec<(u32, usize)> = entries.iter().copied().zip(0..).collect();
            order.sort_unstable();
            let mut places = [0u8; 256];
            (0..=u8::MAX).zip(&order).for_each(|(place, &(_, index))| places[index] = place);
            self.bytes.iter_mut().for_each(|byte| *byte = places[usize::from(*byte)]);
            *entries = order.into_iter().map(|(number, _)| number).collect();
        }
        (&self.form, &self.bytes)
    }
}

fn widened(values: &[u8]) -> Vec<u16> {
    values.iter().map(|&value| u16::from(value)).collect()
}

/// The thread column as runs, with what each thread did.
#[derive(Default)]
pub(super) struct Threads {
    /// Thread and records of each run.
    pub(super) runs: Vec<(u32, usize)>,
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

    /// Records and instructions by thread, sorted.
    pub(super) fn totals(&self) -> Vec<(u32, u64, u64)> {
        let totals = self.totals.iter();
        let mut totals: Vec<_> = totals.map(|(&t, &(records, n))| (t, records, n)).collect();
        totals.sort_unstable();
        totals
    }
}
