//! From words to records.

use std::sync::atomic::Ordering::Relaxed;

use nearfar_trace::{Batch, Kind, Record};

use crate::layout::{
    ADDR_BITS, BLOCK, BLOCKS, Block, INDEX_MASK, INDEX_SHIFT, OTHER, SIZE_SHIFT, STORE,
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

/// Append the records of `words` to `out`, up to the first control word that is not a block.
/// Returns how many words that took. Without `FETCH`, blocks only count instructions.
///
/// An instruction counts as executed from its own first reference on; a fetch comes before the
/// first instruction of its block.
pub fn expand<const FETCH: bool>(
    words: &[u64],
    blocks: &[Block; BLOCKS],
    position: &mut Position,
    out: &mut Batch,
) -> usize {
    let end = words.iter().position(|&word| word >= OTHER).unwrap_or(words.len());
    let start = out.len();
    out.thread.resize(start + end, position.thread);
    out.addr.resize(start + end, 0);
    out.kind.resize(start + end, 0);
    out.size.resize(start + end, 0);
    out.instr.resize(start + end, 0);
    let (addrs, kinds) = (&mut out.addr[start..], &mut out.kind[start..]);
    let (sizes, instrs) = (&mut out.size[start..], &mut out.instr[start..]);
    let Position { mut block, mut next, mut noted, .. } = *position;
    let mut made = 0;
    // No branches: blocks and references follow each other in no order that could be guessed.
    for &word in &words[..end] {
        let is_block = word >= BLOCK;
        let index = if is_block { word as usize & (BLOCKS - 1) } else { 0 };
        let shape = blocks[index].shape.load(Relaxed);
        let (bytes, count) = (shape as u32 as u16, shape >> 32);
        block = if is_block { next } else { block };
        next += count;
        let within = ((word >> INDEX_SHIFT) & INDEX_MASK) + 1;
        let at = block + if is_block { 0 } else { within };
        let size = if is_block { bytes } else { 1 << ((word >> SIZE_SHIFT) & 7) };
        let store = if word & STORE != 0 { Kind::Store as u8 } else { Kind::Load as u8 };
        let home = blocks[index].addr.load(Relaxed);
        // `made` never reaches the end: it counts some of the words before this one.
        addrs[made] = if is_block { home } else { word & ((1 << ADDR_BITS) - 1) };
        kinds[made] = if is_block { Kind::Fetch as u8 } else { store };
        sizes[made] = size;
        let gap = at.saturating_sub(noted).min(u64::from(u32::MAX));
        instrs[made] = gap as u32;
        // A block that found no place in the table has no size, and makes no record.
        let kept = if FETCH { size != 0 } else { !is_block };
        made += usize::from(kept);
        noted += if kept { gap } else { 0 };
    }
    (position.block, position.next, position.noted) = (block, next, noted);
    let all = start + made;
    out.addr.truncate(all);
    out.kind.truncate(all);
    out.size.truncate(all);
    out.thread.truncate(all);
    out.instr.truncate(all);
    end
}
