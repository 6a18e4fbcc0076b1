//! Expands the words of a stream into records. `layout/words.rs` defines the words.

use std::sync::atomic::Ordering::Relaxed;

use nearfar_trace::{Batch, Kind, KindSet, NarrowBatch, Record, Result};

use crate::layout::{
    ADDR_BITS, BLOCK, BLOCKS, BYTES_SHIFT, Block, COUNT_SHIFT, INDEX_MASK, INDEX_SHIFT, KERNEL,
    MIN_CONTROL, SIZE_SHIFT, STORE, block_addr,
};

/// Position of a thread, in executed instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Index of the thread in the trace.
    pub thread: u32,
    /// Instructions before the current block.
    block_start: u64,
    /// Instructions up to the end of the current block.
    block_end: u64,
    /// Instructions up to the last record.
    recorded: u64,
}

impl Position {
    pub fn new(thread: u32) -> Self {
        Self { thread, ..Self::default() }
    }

    /// Instructions executed since the last record.
    pub fn since_last_record(&self) -> u64 {
        self.block_end.saturating_sub(self.recorded)
    }

    /// Jump to the block that begins after `start` instructions of the thread and ends after `end`.
    /// Returns false, without a jump, if `end` is below `start` or the end of the current block.
    pub fn jump(&mut self, start: u64, end: u64) -> bool {
        let forward = start <= end && self.block_end <= end;
        if forward {
            (self.block_start, self.block_end) = (start, end);
        }
        forward
    }

    /// Continue as another thread. Returns the previous thread's instructions since its last record.
    pub fn switch(&mut self, thread: u32) -> u64 {
        let since_last_record = self.since_last_record();
        self.recorded += since_last_record;
        self.thread = thread;
        since_last_record
    }

    /// Append a record of a kernel access on behalf of this thread, after the current block.
    pub fn push_kernel(&mut self, kind: Kind, addr: u64, size: u16, out: &mut Batch) {
        let instr = self.since_last_record().min(u64::from(u32::MAX));
        self.recorded += instr;
        out.push(Record { addr, kind, size, thread: self.thread, instr: instr as u32 });
    }
}

/// Receives records from [`Expander::expand`], in order.
pub trait Sink {
    /// Records whose sizes and gaps (instructions since the previous record) fit a byte.
    fn narrow(&mut self, records: NarrowBatch<'_>) -> Result<()>;
    /// Any other records; empties the batch.
    fn wide(&mut self, records: &mut Batch) -> Result<()>;
}

/// Maximum words expanded at a time, so that their records fit the processor's cache.
const MAX_WORDS: usize = 1 << 11;
/// Words in a group: one bit each in a `u64`.
const GROUP: usize = 64;
/// If fewer words precede a control word, expanding them one by one takes less time than a group.
const FEW: usize = 24;
/// Mask of the bits above the address.
const TOP: u64 = !((1 << ADDR_BITS) - 1);

/// The part of `word` above its address.
const fn top_of(word: u64) -> u16 {
    (word >> ADDR_BITS) as u16
}

/// Index of a reference's instruction in its block, from 1.
fn within_block(top: u16) -> u16 {
    (top >> (INDEX_SHIFT - ADDR_BITS) & INDEX_MASK as u16) + 1
}

/// The [`Kind`] of a reference, as a number.
fn kind_of(top: u16) -> u8 {
    let kind = if top & top_of(STORE) != 0 { Kind::Store } else { Kind::Load };
    kind as u8 + if top & top_of(KERNEL) != 0 { BY_KERNEL } else { 0 }
}

/// Add this to the number of a program's kind to get the same kind by the kernel.
const BY_KERNEL: u8 = Kind::KernelLoad as u8 - Kind::Load as u8;

/// Address and [`Kind`] (as a number) of a block's fetch, from [`Block::addr`].
fn fetch_of(addr: u64) -> (u64, u8) {
    let (addr, kernel) = block_addr(addr);
    (addr, Kind::Fetch as u8 + if kernel { BY_KERNEL } else { 0 })
}

fn size_of(top: u16) -> u16 {
    1 << (top >> (SIZE_SHIFT - ADDR_BITS) & 7)
}

/// Bytes of a block; 0 if it is count-only (makes no fetch record) or in the block table.
fn bytes_of(top: u16) -> u16 {
    top >> (BYTES_SHIFT - ADDR_BITS) & 0xff
}

/// Instructions of a block; 0 if it is in the block table.
fn count_of(top: u16) -> u16 {
    top >> (COUNT_SHIFT - ADDR_BITS) & 0x7f
}

/// Turns words into records. The position of a reference includes its own instruction; that of a
/// fetch is before its block's first instruction.
pub struct Expander {
    /// Record fetches.
    fetch: bool,
    columns: Box<Columns>,
    /// Records held back until [`Expander::flush`].
    wide: Batch,
}

/// One record per word. The layout by column lets compilers vectorise the loops, and no branch
/// depends on which words are blocks.
struct Columns {
    addr: [u64; MAX_WORDS],
    kind: [u8; MAX_WORDS],
    size: [u16; MAX_WORDS],
    /// Instructions since the previous record.
    gap: [u16; MAX_WORDS],
    /// Instructions since the previous record that [`Columns::drop_fetches`] keeps.
    gap_without_fetch: [u32; MAX_WORDS],
    /// `size`, and `gap` or `gap_without_fetch`, truncated to bytes.
    narrow: [[u8; MAX_WORDS]; 2],
}

/// The rows of [`Columns`] for [`GROUP`] words.
struct GroupColumns<'a> {
    addr: &'a mut [u64; GROUP],
    kind: &'a mut [u8; GROUP],
    size: &'a mut [u16; GROUP],
    gap: &'a mut [u16; GROUP],
    narrow: [&'a mut [u8; GROUP]; 2],
}

/// State of the current block while a thread's words are expanded.
struct BlockState {
    /// Instructions up to the end of the current block.
    end: u64,
    /// Instructions of the current block up to the last record.
    recorded: u16,
    /// Instructions of the current block.
    count: u16,
    /// Not 0: some block of the table has no bytes, or too many bytes or instructions.
    invalid: u32,
    /// Some block is count-only.
    count_only: bool,
    /// Bitwise OR of all sizes and gaps. Bit 15 is set if a gap is negative.
    bits: u16,
}

/// Blocks of this many instructions or more are expanded word by word, so that bit 15 of a gap is
/// its sign.
const MAX_BLOCK_COUNT: u32 = 1 << 14;

impl Columns {
    /// Fill in the records of `words` up to the first control word, and advance `position`. Returns
    /// the number of records, whether all sizes and gaps fit a byte, and whether some block is
    /// count-only. Returns `None`, with `position` unchanged, if some block is invalid
    /// ([`BlockState::invalid`]) or records are not in the order of their instructions.
    #[inline(always)]
    fn fill(
        &mut self,
        words: &[u64],
        blocks: &[Block; BLOCKS],
        position: &mut Position,
    ) -> Option<(usize, bool, bool)> {
        let Position { block_start, block_end, .. } = *position;
        let recorded = position.recorded.checked_sub(block_start)?;
        let count = block_end - block_start;
        if recorded.max(count) >= u64::from(MAX_BLOCK_COUNT) {
            return None;
        }
        let mut state = BlockState {
            end: block_end,
            recorded: recorded as u16,
            count: count as u16,
            invalid: 0,
            count_only: false,
            bits: 0,
        };
        let mut filled = 0;
        for words in words.chunks(GROUP) {
            let to = self.group(filled);
            let count = if let Ok(words) = words.try_into() {
                to.fill(words, GROUP, blocks, &mut state)
            } else {
                let mut padded = [0; GROUP];
                padded[..words.len()].copy_from_slice(words);
                to.fill(&padded, words.len(), blocks, &mut state)
            };
            filled += count;
            if count < GROUP {
                break;
            }
        }
        if state.invalid | u32::from(state.bits >> 15) != 0 {
            return None;
        }
        position.block_end = state.end;
        position.block_start = state.end - u64::from(state.count);
        position.recorded = position.block_start + u64::from(state.recorded);
        Some((filled, state.bits <= u16::from(u8::MAX), state.count_only))
    }

    fn group(&mut self, start: usize) -> GroupColumns<'_> {
        GroupColumns {
            addr: group(&mut self.addr, start),
            kind: group(&mut self.kind, start),
            size: group(&mut self.size, start),
            gap: group(&mut self.gap, start),
            narrow: self.narrow.each_mut().map(|column| group(column, start)),
        }
    }

    /// Drop the fetches among the first `count` records; if `fetch`, only those of count-only blocks. Add
    /// the gap of a dropped record to the next kept one; `carried` is the gap before the first
    /// record. Returns the number of kept records, and the instructions after the last one.
    #[inline(always)]
    fn drop_fetches(&mut self, count: usize, fetch: bool, mut carried: u32) -> (usize, u32) {
        let mut kept = 0;
        for i in 0..count {
            let is_dropped = KindSet::FETCHES.has(self.kind[i]) && !(fetch && self.size[i] > 0);
            carried += u32::from(self.gap[i]);
            self.addr[kept] = self.addr[i];
            self.kind[kept] = self.kind[i];
            self.size[kept] = self.size[i];
            self.gap_without_fetch[kept] = carried;
            kept += usize::from(!is_dropped);
            carried = if is_dropped { carried } else { 0 };
        }
        (kept, carried)
    }
}

impl GroupColumns<'_> {
    /// Fill in the records of the first `count` of `words`, up to the first control word. Returns
    /// the number of records.
    #[inline(always)]
    fn fill(
        self,
        words: &[u64; GROUP],
        count: usize,
        blocks: &[Block; BLOCKS],
        state: &mut BlockState,
    ) -> usize {
        let Self { addr, kind, size, gap, narrow } = self;
        // One loop per column: compilers vectorise these.
        let (mut top, mut within) = ([0; GROUP], [0; GROUP]);
        for i in 0..GROUP {
            addr[i] = words[i] & !TOP;
            top[i] = top_of(words[i]);
        }
        let (mut starts, mut controls) = (0u64, 0u64);
        for (i, top) in top.iter().enumerate() {
            starts |= u64::from(*top >= top_of(BLOCK)) << i;
            controls |= u64::from(*top >= top_of(MIN_CONTROL)) << i;
        }
        let count = count.min(controls.trailing_zeros() as usize);
        for i in 0..GROUP {
            let is_block = top[i] >= top_of(BLOCK);
            kind[i] = if is_block { Kind::Fetch as u8 } else { kind_of(top[i]) };
            size[i] = if is_block { bytes_of(top[i]) } else { size_of(top[i]) };
            within[i] = if is_block { 0 } else { within_block(top[i]) };
        }
        gap[0] = within[0].wrapping_sub(state.recorded);
        for i in 1..GROUP {
            gap[i] = within[i].wrapping_sub(within[i - 1]);
        }
        if count > 0 {
            state.recorded = within[count - 1];
        }
        // A block's gap includes the rest of the previous block.
        starts &= !u64::MAX.unbounded_shl(count as u32);
        while starts != 0 {
            let i = starts.trailing_zeros() as usize;
            starts &= starts - 1;
            gap[i] = gap[i].wrapping_add(state.count);
            state.count = count_of(top[i]);
            if state.count == 0 {
                let entry = &blocks[words[i] as usize & (BLOCKS - 1)];
                let shape = entry.shape.load(Relaxed);
                let (bytes, instructions) = (shape as u32, (shape >> 32) as u32);
                (addr[i], kind[i]) = fetch_of(entry.addr.load(Relaxed));
                (size[i], state.count) = (bytes as u16, instructions as u16);
                // Entry 0, of a block for which the table had no room, has no bytes.
                state.invalid |= bytes.wrapping_sub(1) >> 16 | instructions / MAX_BLOCK_COUNT;
            }
            state.count_only |= size[i] == 0;
            state.end += u64::from(state.count);
        }
        let [sizes, gaps] = narrow;
        for i in 0..GROUP {
            (sizes[i], gaps[i]) = (size[i] as u8, gap[i] as u8);
        }
        for i in 0..count {
            state.bits |= size[i] | gap[i];
        }
        count
    }
}

/// Write `numbers` truncated to bytes. Returns whether all of them fit.
#[inline(always)]
fn narrow_to_bytes<T: Copy + Into<u32>>(numbers: &[T], bytes: &mut [u8]) -> bool {
    let mut bits = 0;
    for (number, byte) in numbers.iter().zip(bytes) {
        let number: u32 = (*number).into();
        *byte = number as u8;
        bits |= number;
    }
    bits <= u32::from(u8::MAX)
}

fn group<T>(column: &mut [T; MAX_WORDS], start: usize) -> &mut [T; GROUP] {
    let (groups, _) = column.as_chunks_mut();
    &mut groups[start / GROUP]
}

/// Result of [`Expander::fill_columns`].
struct Expanded {
    /// Words expanded, up to a control word.
    words: usize,
    /// Records made of these words.
    records: usize,
    /// The gaps are in [`Columns::gap_without_fetch`].
    dropped: bool,
    /// All sizes and gaps fit a byte.
    narrow: bool,
}

impl Expander {
    /// With `fetch`, a block makes a record unless it is count-only; without, all are count-only.
    pub fn new(fetch: bool) -> Self {
        let columns = Columns {
            addr: [0; MAX_WORDS],
            kind: [0; MAX_WORDS],
            size: [0; MAX_WORDS],
            gap: [0; MAX_WORDS],
            gap_without_fetch: [0; MAX_WORDS],
            narrow: [[0; MAX_WORDS]; 2],
        };
        Self { fetch, columns: Box::new(columns), wide: Batch::default() }
    }

    /// Pass the records of `words` up to the first control word, at most [`MAX_WORDS`], to `sink`.
    /// Some records are held back until [`Expander::flush`]. Returns the number of words expanded:
    /// 0 only if `words` is empty or begins with a control word.
    pub fn expand(
        &mut self,
        words: &[u64],
        blocks: &[Block; BLOCKS],
        position: &mut Position,
        sink: &mut impl Sink,
    ) -> Result<usize> {
        let words = &words[..words.len().min(MAX_WORDS)];
        if words.len() < FEW || words[..FEW].iter().any(|word| *word >= MIN_CONTROL) {
            if self.wide.len() >= MAX_WORDS {
                self.flush(sink)?;
            }
            return Ok(self.expand_each(words, blocks, position));
        }
        self.flush(sink)?;
        let Some(Expanded { words: expanded, records, dropped, narrow }) =
            self.fill_columns(words, blocks, position)
        else {
            return Ok(self.expand_each(words, blocks, position));
        };
        let thread = position.thread;
        let Columns { addr, kind, size, gap, gap_without_fetch, narrow: [sizes, gaps] } =
            &*self.columns;
        let (addr, kind) = (&addr[..records], &kind[..records]);
        if records == 0 {
            // No words, or only dropped fetches.
        } else if narrow {
            let (size, instr) = (&sizes[..records], &gaps[..records]);
            sink.narrow(NarrowBatch { addr, kind, size, instr, thread })?;
        } else {
            let wide = &mut self.wide;
            wide.addr.extend_from_slice(addr);
            wide.kind.extend_from_slice(kind);
            wide.size.extend_from_slice(&size[..records]);
            if dropped {
                wide.instr.extend_from_slice(&gap_without_fetch[..records]);
            } else {
                wide.instr.extend(gap[..records].iter().map(|&gap| u32::from(gap)));
            }
            wide.thread.resize(records, thread);
            sink.wide(wide)?;
        }
        Ok(expanded)
    }

    /// Fill in the columns of `words`. Returns `None`, with `position` unchanged, if the words must
    /// be expanded one by one.
    fn fill_columns(
        &mut self,
        words: &[u64],
        blocks: &[Block; BLOCKS],
        position: &mut Position,
    ) -> Option<Expanded> {
        // Instructions from the last record to the current block.
        let carried = position.block_start.saturating_sub(position.recorded);
        if carried >> 31 != 0 {
            return None;
        }
        let mut advanced = Position { recorded: position.recorded + carried, ..*position };
        let columns = &mut *self.columns;
        let (words, mut narrow, count_only) = columns.fill(words, blocks, &mut advanced)?;
        let (mut records, dropped) = (words, !self.fetch || count_only || carried > 0);
        if dropped {
            let (kept, carried) = columns.drop_fetches(words, self.fetch, carried as u32);
            advanced.recorded -= u64::from(carried);
            records = kept;
            let [sizes, gaps] = &mut columns.narrow;
            narrow = narrow_to_bytes(&columns.size[..kept], sizes)
                & narrow_to_bytes(&columns.gap_without_fetch[..kept], gaps);
        }
        *position = advanced;
        Some(Expanded { words, records, dropped, narrow })
    }

    /// Pass on the records that were held back.
    pub fn flush(&mut self, sink: &mut impl Sink) -> Result<()> {
        if self.wide.is_empty() { Ok(()) } else { sink.wide(&mut self.wide) }
    }

    /// Expand words one by one, to the same records as by columns, because they are few or do not fit
    /// the columns. All records are held back.
    fn expand_each(
        &mut self,
        words: &[u64],
        blocks: &[Block; BLOCKS],
        position: &mut Position,
    ) -> usize {
        let mut expanded = 0;
        for &word in words.iter().take_while(|word| **word < MIN_CONTROL) {
            expanded += 1;
            let top = top_of(word);
            let (addr, kind, size, at) = if word >= BLOCK {
                let ((addr, kind), bytes, count) = match count_of(top) {
                    0 => {
                        let block = &blocks[word as usize & (BLOCKS - 1)];
                        let shape = block.shape.load(Relaxed);
                        (fetch_of(block.addr.load(Relaxed)), shape as u16, shape >> 32)
                    }
                    count => (fetch_of(word & !TOP), bytes_of(top), u64::from(count)),
                };
                position.block_start = position.block_end;
                position.block_end += count;
                (addr, kind, bytes, position.block_start)
            } else {
                let at = position.block_start + u64::from(within_block(top));
                (word & !TOP, kind_of(top), size_of(top), at)
            };
            if KindSet::FETCHES.has(kind) && (!self.fetch || size == 0) {
                continue;
            }
            // The part of a gap that does not fit the column is carried over to the next record.
            let gap = at.saturating_sub(position.recorded).min(u64::from(u32::MAX));
            position.recorded += gap;
            let (thread, instr) = (position.thread, gap as u32);
            let kind = Kind::from_u8(kind).unwrap_or(Kind::Load);
            self.wide.push(Record { addr, kind, size, thread, instr });
        }
        expanded
    }
}

#[cfg(test)]
mod tests;
