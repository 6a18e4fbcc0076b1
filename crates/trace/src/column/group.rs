//! The records of one row group, gathered slice by slice in the form the encoder needs: one pass
//! while a slice is still in the processor's cache, a few bytes a record kept.

use rustc_hash::FxHashMap;

use crate::footprint::PAGE_SHIFT;
use crate::hash::{PageMap, mix};
use crate::record::{Batch, Narrow};

/// Most entries of a dictionary: indices have 16 bits.
pub(super) const DICTIONARY: usize = 1 << 16;
/// Addresses are interned by blocks of this many bytes (log2): few enough in most programs that
/// the look-up stays in the first-level cache, and at worst 32 MiB of marks.
const BLOCK_SHIFT: u32 = 8;
const BLOCK: usize = 1 << BLOCK_SHIFT;
/// Records whose columns stay in the cache over several passes.
const SLICE: usize = 1 << 12;

/// A row group being gathered. [`Group::clear`] keeps the memory.
#[derive(Default)]
pub struct Group {
    pub(super) addr: Addresses,
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
        self.addr.extend(addr, kind);
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

/// A slot of the block table.
#[derive(Clone, Copy)]
struct Slot {
    block: u64,
    /// Ordinal of the block, shifted to make room for an offset.
    code: u32,
}

/// No address has this block.
const EMPTY: Slot = Slot { block: u64::MAX, code: 0 };

/// The address column: each address as (ordinal of its block, offset in it) while a dictionary of
/// 65,536 suffices, as it is after that.
pub(super) struct Addresses {
    slots: Vec<Slot>,
    /// Block numbers by ordinal.
    blocks: Vec<u64>,
    /// For every byte of every block, the kinds that touched that address (a bit each).
    marks: Vec<[u16; BLOCK]>,
    distinct: usize,
    codes: Vec<u32>,
    /// All addresses, once there are too many different ones.
    plain: Option<Vec<u64>>,
}

/// What becomes of an address column.
pub(super) enum Ranked {
    /// Sorted distinct addresses; [`Addresses::write_indices`] has each record's place among them.
    Dictionary(Vec<u64>),
    /// Too many different ones.
    Plain(Vec<u64>),
}

impl Default for Addresses {
    fn default() -> Self {
        Self {
            slots: vec![EMPTY; 1 << 10],
            blocks: Vec::new(),
            marks: Vec::new(),
            distinct: 0,
            codes: Vec::new(),
            plain: None,
        }
    }
}

impl Addresses {
    fn clear(&mut self) {
        self.slots.fill(EMPTY);
        self.blocks.clear();
        self.marks.clear();
        self.codes.clear();
        (self.distinct, self.plain) = (0, None);
    }

    fn extend(&mut self, addr: &[u64], kind: &[u8]) {
        if let Some(plain) = &mut self.plain {
            plain.extend_from_slice(addr);
            return;
        }
        let mut done = self.codes.len();
        self.codes.resize(done + addr.len(), 0);
        let (mut addr, mut kind) = (addr, kind);
        loop {
            let known = self.intern(addr, kind, done);
            (addr, kind) = (&addr[known..], &kind[known..]);
            done += known;
            match addr.first() {
                Some(&unknown) => self.insert(unknown >> BLOCK_SHIFT),
                None => break,
            }
        }
        if self.distinct > DICTIONARY {
            self.plain = Some(self.addresses());
        }
    }

    /// Note the codes of addresses from record `at` on, up to the first of an unknown block.
    /// Returns how many. No branch that depends on whether an address is new.
    fn intern(&mut self, addr: &[u64], kind: &[u8], at: usize) -> usize {
        let (slots, marks) = (self.slots.as_slice(), self.marks.as_flattened_mut());
        let mask = slots.len() - 1;
        let mut fresh = 0;
        let mut known = 0;
        'records: for ((&addr, &kind), code) in addr.iter().zip(kind).zip(&mut self.codes[at..]) {
            let block = addr >> BLOCK_SHIFT;
            let mut place = spread(block) & mask;
            let mut slot = slots[place];
            while slot.block != block {
                if slot.block == EMPTY.block {
                    break 'records;
                }
                place = (place + 1) & mask;
                slot = slots[place];
            }
            *code = slot.code | (addr as u32 & (BLOCK as u32 - 1));
            let mark = &mut marks[*code as usize];
            fresh += usize::from(*mark == 0);
            *mark |= 1 << (kind & 7);
            known += 1;
        }
        self.distinct += fresh;
        known
    }

    fn insert(&mut self, block: u64) {
        // An eighth full at most: hardly ever a second look.
        if (self.blocks.len() + 1) * 8 > self.slots.len() {
            self.slots = vec![EMPTY; self.slots.len() * 2];
            for (ordinal, &block) in self.blocks.iter().enumerate() {
                put(&mut self.slots, block, ordinal);
            }
        }
        put(&mut self.slots, block, self.blocks.len());
        self.blocks.push(block);
        self.marks.push([0; BLOCK]);
    }

    /// The addresses again, from their codes.
    fn addresses(&self) -> Vec<u64> {
        let addr = |&code: &u32| {
            self.blocks[(code >> BLOCK_SHIFT) as usize] << BLOCK_SHIFT
                | u64::from(code & (BLOCK as u32 - 1))
        };
        self.codes.iter().map(addr).collect()
    }

    /// Sort the distinct addresses and number them: neighbours in memory get neighbouring
    /// indices, which zstd compresses better than order of appearance (0.85 -> 0.80 bytes a
    /// reference on the gzip capture). Pages and the kinds that touched them are added to
    /// `pages`. Call once.
    pub(super) fn rank(&mut self, kind: &[u8], pages: &mut Vec<(u64, u8)>) -> Ranked {
        if let Some(plain) = self.plain.take() {
            let mut seen: PageMap<u8> = PageMap::default();
            for (addr, &kind) in plain.iter().zip(kind) {
                *seen.entry(addr >> PAGE_SHIFT).or_default() |= 1 << kind;
            }
            pages.extend(seen);
            return Ranked::Plain(plain);
        }
        let mut order: Vec<usize> = (0..self.blocks.len()).collect();
        order.sort_unstable_by_key(|&ordinal| self.blocks[ordinal]);
        let mut dictionary = Vec::with_capacity(self.distinct.min(DICTIONARY));
        for ordinal in order {
            let home = self.blocks[ordinal] << BLOCK_SHIFT;
            let mut kinds = 0;
            for (offset, mark) in self.marks[ordinal].iter_mut().enumerate() {
                if *mark != 0 {
                    kinds |= *mark as u8;
                    *mark = dictionary.len() as u16;
                    dictionary.push(home | offset as u64);
                }
            }
            pages.push((home >> PAGE_SHIFT, kinds));
        }
        Ranked::Dictionary(dictionary)
    }

    /// Append the index of each record in the dictionary that [`Self::rank`] made.
    pub(super) fn write_indices(&self, out: &mut Vec<u8>) {
        let marks = self.marks.as_flattened();
        let start = out.len();
        out.resize(start + self.codes.len() * 2, 0);
        for (out, &code) in out[start..].as_chunks_mut::<2>().0.iter_mut().zip(&self.codes) {
            *out = marks[code as usize].to_le_bytes();
        }
    }
}

fn put(slots: &mut [Slot], block: u64, ordinal: usize) {
    let mask = slots.len() - 1;
    let mut place = spread(block) & mask;
    while slots[place].block != EMPTY.block {
        place = (place + 1) & mask;
    }
    slots[place] = Slot { block, code: (ordinal << BLOCK_SHIFT) as u32 };
}

#[inline(always)]
fn spread(block: u64) -> usize {
    (mix(block) >> 32) as usize
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
            (0..).zip(&order).for_each(|(place, &(_, index))| places[index] = place);
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
