//! From words to records.

use std::sync::atomic::Ordering::Relaxed;

use nearfar_simd::Avx512;
use nearfar_trace::{Batch, Kind, Narrow, Record, Result};

use crate::layout::{
    ADDR_BITS, BLOCK, BLOCKS, BYTES_SHIFT, Block, COUNT_SHIFT, INDEX_MASK, INDEX_SHIFT, OTHER,
    SIZE_SHIFT, STORE,
};

/// Where a thread is, in instructions it has executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Index of the thread in the trace.
    pub thread: u32,
    /// Instructions before the block that runs now.
    block: u64,
    /// Instructions including all of that block.
    next: u64,
    /// Instructions accounted for by records.
    noted: u64,
}

impl Position {
    /// The start of thread `thread`.
    pub fn new(thread: u32) -> Self {
        Self { thread, ..Self::default() }
    }

    /// The gap of a record made after the current block, which is thereby accounted for.
    pub fn gap(&mut self) -> u32 {
        let gap = self.rest().min(u64::from(u32::MAX));
        self.noted += gap;
        gap as u32
    }

    /// Instructions executed since the last record.
    pub fn rest(&self) -> u64 {
        self.next.saturating_sub(self.noted)
    }

    /// Append a record of the kernel working for this thread.
    pub fn push_kernel(&mut self, kind: Kind, addr: u64, size: u16, out: &mut Batch) {
        let instr = self.gap();
        out.push(Record { addr, kind, size, thread: self.thread, instr });
    }
}

/// Takes what [`Expander::expand`] makes, in order.
pub trait Sink {
    /// Records whose sizes and gaps fit a byte.
    fn narrow(&mut self, records: Narrow<'_>) -> Result<()>;
    /// Any other records; empties the batch.
    fn wide(&mut self, records: &mut Batch) -> Result<()>;
}

/// Words expanded at a time: what they become stays in the processor's cache.
const MAX_WORDS: usize = 1 << 11;
/// Words whose blocks are looked up together: a bit each.
const LANES: usize = 64;
/// What the bits of a word above its address say of the instruction.
const TOP: u64 = !((1 << ADDR_BITS) - 1);

/// The part of `word` above its address.
const fn top_of(word: u64) -> u16 {
    (word >> ADDR_BITS) as u16
}

/// Instructions of the current block that a reference counts as executed.
fn within_block(top: u16) -> u16 {
    (top >> (INDEX_SHIFT - ADDR_BITS) & INDEX_MASK as u16) + 1
}

fn kind_of(top: u16) -> Kind {
    if top & top_of(STORE) != 0 { Kind::Store } else { Kind::Load }
}

fn size_of(top: u16) -> u16 {
    1 << (top >> (SIZE_SHIFT - ADDR_BITS) & 7)
}

/// Bytes and instructions of a block; 0 when the table has them.
fn bytes_of(top: u16) -> u16 {
    top >> (BYTES_SHIFT - ADDR_BITS) & 0xff
}

fn count_of(top: u16) -> u16 {
    top >> (COUNT_SHIFT - ADDR_BITS) & 0x7f
}

/// Expands words into records.
///
/// An instruction counts as executed from its own first reference on; a fetch comes before the
/// first instruction of its block.
pub struct Expander {
    fetch: bool,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    avx512: Option<Avx512>,
    columns: Box<Columns>,
    wide: Batch,
}

/// The records of some words, one for each word: column by column, so that a vector register
/// holds what many words become and no branch depends on which of them are blocks.
struct Columns {
    addr: [u64; MAX_WORDS],
    kind: [u8; MAX_WORDS],
    size: [u16; MAX_WORDS],
    /// Instructions since the record before.
    gap: [u16; MAX_WORDS],
    /// The same with the fetches left out, which can add up.
    carried: [u32; MAX_WORDS],
    /// `size`, and `gap` or `carried`, where a byte holds them.
    narrow: [[u8; MAX_WORDS]; 2],
}

/// Where the records of [`LANES`] words go.
struct Records64<'a> {
    addr: &'a mut [u64; LANES],
    kind: &'a mut [u8; LANES],
    size: &'a mut [u16; LANES],
    gap: &'a mut [u16; LANES],
    /// The lower bytes of sizes and gaps.
    narrow: [&'a mut [u8; LANES]; 2],
}

/// Where a thread is within the words at hand.
struct BlockState {
    /// Instructions including the current block.
    next: u64,
    /// Instructions of the current block: accounted for by records, and all of them.
    noted: u16,
    all: u16,
    /// Not 0: there was a block without a size, or a number that is too large.
    odd: u32,
    /// Every bit of every size and gap: the topmost when a gap was below 0.
    bits: u16,
}

/// Blocks of the table that have more instructions than this are expanded one by one, so that the
/// topmost bit of a gap is its sign.
const MANY: u32 = 1 << 14;

impl Columns {
    /// The records of `words` for a thread that is at `position`, which is moved on, up to the first
    /// word that is neither a reference nor a block. Returns how many words those were, and whether a
    /// byte holds every size and gap; `None`, with nothing moved, when their records are not one for
    /// each or not in the order of their instructions.
    #[inline(always)]
    fn fill(
        &mut self,
        words: &[u64],
        blocks: &[Block; BLOCKS],
        position: &mut Position,
    ) -> Option<(usize, bool)> {
        let Position { block, next, .. } = *position;
        let (noted, all) = (position.noted.checked_sub(block)?, next - block);
        if noted.max(all) >= u64::from(MANY) {
            return None;
        }
        let mut state = BlockState { next, noted: noted as u16, all: all as u16, odd: 0, bits: 0 };
        let mut filled = 0;
        for words in words.chunks(LANES) {
            let to = self.piece(filled);
            let count = if let Ok(words) = words.try_into() {
                to.fill(words, LANES, blocks, &mut state)
            } else {
                let mut piece = [0; LANES];
                piece[..words.len()].copy_from_slice(words);
                to.fill(&piece, words.len(), blocks, &mut state)
            };
            filled += count;
            if count < LANES {
                break;
            }
        }
        if state.odd | u32::from(state.bits >> 15) != 0 {
            return None;
        }
        position.next = state.next;
        position.block = state.next - u64::from(state.all);
        position.noted = position.block + u64::from(state.noted);
        Some((filled, state.bits <= u16::from(u8::MAX)))
    }

    fn piece(&mut self, start: usize) -> Records64<'_> {
        Records64 {
            addr: piece(&mut self.addr, start),
            kind: piece(&mut self.kind, start),
            size: piece(&mut self.size, start),
            gap: piece(&mut self.gap, start),
            narrow: self.narrow.each_mut().map(|column| piece(column, start)),
        }
    }

    /// Leave out the fetches among the first `count` records: their instructions are those of the
    /// next record. Returns how many are left, and the instructions after the last one.
    #[inline(always)]
    fn drop_fetches(&mut self, count: usize, before: u32) -> (usize, u32) {
        let (mut kept, mut carried) = (0, before);
        for at in 0..count {
            let is_kept = self.kind[at] != Kind::Fetch as u8;
            carried += u32::from(self.gap[at]);
            self.addr[kept] = self.addr[at];
            self.kind[kept] = self.kind[at];
            self.size[kept] = self.size[at];
            self.carried[kept] = carried;
            kept += usize::from(is_kept);
            carried = if is_kept { 0 } else { carried };
        }
        (kept, carried)
    }
}

impl Records64<'_> {
    /// The records of the first `count` of `words`, up to the first word that is neither a reference
    /// nor a block. Returns how many.
    #[inline(always)]
    fn fill(
        self,
        words: &[u64; LANES],
        count: usize,
        blocks: &[Block; BLOCKS],
        state: &mut BlockState,
    ) -> usize {
        let Self { addr, kind, size, gap, narrow } = self;
        // A loop for each column: loops that compilers make wide.
        let (mut top, mut at) = ([0; LANES], [0; LANES]);
        for lane in 0..LANES {
            addr[lane] = words[lane] & !TOP;
            top[lane] = top_of(words[lane]);
        }
        let (mut starts, mut others) = (0u64, 0u64);
        for (lane, top) in top.iter().enumerate() {
            starts |= u64::from(*top >= top_of(BLOCK)) << lane;
            others |= u64::from(*top >= top_of(OTHER)) << lane;
        }
        let count = count.min(others.trailing_zeros() as usize);
        for lane in 0..LANES {
            let of_block = top[lane] >= top_of(BLOCK);
            kind[lane] = if of_block { Kind::Fetch } else { kind_of(top[lane]) } as u8;
            size[lane] = if of_block { bytes_of(top[lane]) } else { size_of(top[lane]) };
            at[lane] = if of_block { 0 } else { within_block(top[lane]) };
        }
        gap[0] = at[0].wrapping_sub(state.noted);
        for lane in 1..LANES {
            gap[lane] = at[lane].wrapping_sub(at[lane - 1]);
        }
        if count > 0 {
            state.noted = at[count - 1];
        }
        // Before a block comes what is left of the one before it.
        starts &= !u64::MAX.unbounded_shl(count as u32);
        while starts != 0 {
            let lane = starts.trailing_zeros() as usize;
            starts &= starts - 1;
            gap[lane] = gap[lane].wrapping_add(state.all);
            state.all = count_of(top[lane]);
            if state.all == 0 {
                let entry = &blocks[words[lane] as usize & (BLOCKS - 1)];
                let code = entry.shape.load(Relaxed);
                let (bytes, instructions) = (code as u32, (code >> 32) as u32);
                addr[lane] = entry.addr.load(Relaxed);
                (size[lane], state.all) = (bytes as u16, instructions as u16);
                // A block that found no place in the table has no size, and makes no record.
                state.odd |= bytes.wrapping_sub(1) >> 16 | instructions / MANY;
            }
            state.next += u64::from(state.all);
        }
        let [sizes, gaps] = narrow;
        for lane in 0..LANES {
            (sizes[lane], gaps[lane]) = (size[lane] as u8, gap[lane] as u8);
        }
        for lane in 0..count {
            state.bits |= size[lane] | gap[lane];
        }
        count
    }
}

/// `numbers` as bytes; false when one does not fit.
#[inline(always)]
fn narrowed<T: Copy + Into<u32>>(numbers: &[T], bytes: &mut [u8]) -> bool {
    let mut all = 0;
    for (number, byte) in numbers.iter().zip(bytes) {
        let number: u32 = (*number).into();
        *byte = number as u8;
        all |= number;
    }
    all <= u32::from(u8::MAX)
}

fn piece<T>(column: &mut [T; MAX_WORDS], start: usize) -> &mut [T; LANES] {
    let (pieces, _) = column.as_chunks_mut();
    &mut pieces[start / LANES]
}

/// What became of some words.
struct Expanded {
    /// How many of them, up to a control word that is not a block.
    words: usize,
    /// Records made of these.
    records: usize,
    /// A byte holds every size and gap.
    narrow: bool,
}

impl Expander {
    /// With `fetch`, a block is a record; without, blocks only count instructions.
    pub fn new(fetch: bool) -> Self {
        let columns = Columns {
            addr: [0; MAX_WORDS],
            kind: [0; MAX_WORDS],
            size: [0; MAX_WORDS],
            gap: [0; MAX_WORDS],
            carried: [0; MAX_WORDS],
            narrow: [[0; MAX_WORDS]; 2],
        };
        let avx512 = Avx512::new();
        Self { fetch, avx512, columns: Box::new(columns), wide: Batch::default() }
    }

    /// Hand the records of `words` to `sink`, up to the first control word that is not a block or
    /// as far as is handled at once. Returns how many words that took; none only when there are
    /// none or the first is such a control word.
    pub fn expand(
        &mut self,
        words: &[u64],
        blocks: &[Block; BLOCKS],
        position: &mut Position,
        sink: &mut impl Sink,
    ) -> Result<usize> {
        let words = &words[..words.len().min(MAX_WORDS)];
        let Some(Expanded { words: taken, records, narrow }) =
            self.columns(words, blocks, position)
        else {
            return self.plain(words, blocks, position, sink);
        };
        let thread = position.thread;
        let Columns { addr, kind, size, gap, carried, narrow: [sizes, gaps] } = &*self.columns;
        let (addr, kind) = (&addr[..records], &kind[..records]);
        if records == 0 {
            // Nothing, or blocks alone whose fetches are left out.
        } else if narrow {
            let (size, instr) = (&sizes[..records], &gaps[..records]);
            sink.narrow(Narrow { addr, kind, size, instr, thread })?;
        } else {
            let wide = &mut self.wide;
            wide.addr.extend_from_slice(addr);
            wide.kind.extend_from_slice(kind);
            wide.size.extend_from_slice(&size[..records]);
            if self.fetch {
                wide.instr.extend(gap[..records].iter().map(|&gap| u32::from(gap)));
            } else {
                wide.instr.extend_from_slice(&carried[..records]);
            }
            wide.thread.resize(records, thread);
            sink.wide(wide)?;
        }
        Ok(taken)
    }

    /// The columns of `words`; `None`, with the position not moved, when that has to be done one by
    /// one.
    fn columns(
        &mut self,
        words: &[u64],
        blocks: &[Block; BLOCKS],
        position: &mut Position,
    ) -> Option<Expanded> {
        #[cfg(target_arch = "x86_64")]
        if let Some(token) = self.avx512 {
            // SAFETY: the token says that the processor has the features.
            return unsafe { self.columns_avx512(token, words, blocks, position) };
        }
        self.columns_scalar(words, blocks, position)
    }

    /// [`Self::columns_scalar`], compiled for wider registers.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512bw,avx512dq,avx512vl,bmi1,bmi2,popcnt")]
    fn columns_avx512(
        &mut self,
        _: Avx512,
        words: &[u64],
        blocks: &[Block; BLOCKS],
        position: &mut Position,
    ) -> Option<Expanded> {
        self.columns_scalar(words, blocks, position)
    }

    #[inline(always)]
    fn columns_scalar(
        &mut self,
        words: &[u64],
        blocks: &[Block; BLOCKS],
        position: &mut Position,
    ) -> Option<Expanded> {
        // Blocks whose fetch is left out are not accounted for yet.
        let behind = position.block.saturating_sub(position.noted);
        if behind >> 31 != 0 || self.fetch && behind > 0 {
            return None;
        }
        let mut moved = Position { noted: position.noted + behind, ..*position };
        let columns = &mut *self.columns;
        let (words, mut narrow) = columns.fill(words, blocks, &mut moved)?;
        let mut records = words;
        if !self.fetch {
            let (kept, behind) = columns.drop_fetches(words, behind as u32);
            moved.noted -= u64::from(behind);
            records = kept;
            let [sizes, gaps] = &mut columns.narrow;
            narrow =
                narrowed(&columns.size[..kept], sizes) & narrowed(&columns.carried[..kept], gaps);
        }
        *position = moved;
        Some(Expanded { words, records, narrow })
    }

    /// One word after the other: the meaning of [`Self::expand`], for what has no columns.
    fn plain(
        &mut self,
        words: &[u64],
        blocks: &[Block; BLOCKS],
        position: &mut Position,
        sink: &mut impl Sink,
    ) -> Result<usize> {
        let mut taken = 0;
        for &word in words.iter().take_while(|word| **word < OTHER) {
            taken += 1;
            let top = top_of(word);
            let (addr, kind, size, at) = if word >= BLOCK {
                let (addr, bytes, count) = match count_of(top) {
                    0 => {
                        let block = &blocks[word as usize & (BLOCKS - 1)];
                        let code = block.shape.load(Relaxed);
                        (block.addr.load(Relaxed), code as u16, code >> 32)
                    }
                    count => (word & !TOP, bytes_of(top), u64::from(count)),
                };
                position.block = position.next;
                position.next += count;
                (addr, Kind::Fetch, bytes, position.block)
            } else {
                let at = position.block + u64::from(within_block(top));
                (word & !TOP, kind_of(top), size_of(top), at)
            };
            if kind == Kind::Fetch && (!self.fetch || size == 0) {
                continue;
            }
            // What does not fit the column is carried over to the next record.
            let gap = at.saturating_sub(position.noted).min(u64::from(u32::MAX));
            position.noted += gap;
            let (thread, instr) = (position.thread, gap as u32);
            self.wide.push(Record { addr, kind, size, thread, instr });
        }
        if !self.wide.is_empty() {
            sink.wide(&mut self.wide)?;
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests;
