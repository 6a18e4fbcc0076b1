//! Interleaves copies of a traced program that alone is too small for the queues and batches of policies.
//!
//! Copies share no pages, like virtual machines. They take turns of [`SLICE`] accesses. Each starts at
//! another position of the trace, so that they are in different phases. At the end of the trace, a copy
//! frees its pages, if the trace says when pages are freed, and continues from the start up to its initial
//! position.

use nearfar_kernel::tiering::Page;

use super::engine::{Block, End};

/// Accesses per turn. So few that with 108 MiB in all copies (policies at scale 1/256), a round of all copies
/// is shorter than any period of the policies, and a copy's pages are still in the TLB at its next turn.
const SLICE: u64 = 64;

/// The copies of a program.
#[derive(Debug)]
pub(super) struct Copies {
    /// The accesses of one copy, for the whole trace.
    whole: Block,
    pub(super) count: u32,
    /// Page numbers per copy.
    pages: u32,
    /// Whether the trace says when pages are freed.
    lives: bool,
    slice: u64,
}

/// The copy whose turn it is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turn {
    copy: u32,
    /// Accesses of each copy in earlier rounds.
    before: u64,
    /// Accesses of this copy in its turn so far.
    done: u64,
}

impl Copies {
    /// Maximum number of accesses per copy; they are in memory, 4 bytes each.
    pub(super) const MAX_ACCESSES: u64 = 1 << 30;

    /// `count` copies of a program with the accesses `whole`, to page numbers below `pages`.
    pub(super) fn new(whole: Block, count: u32, pages: u32, lives: bool) -> Self {
        Self { whole, count, pages, lives, slice: SLICE }
    }

    /// The same copies, in turns of `slice` accesses.
    #[cfg(test)]
    pub(super) fn with_slice(self, slice: u64) -> Self {
        Self { slice, ..self }
    }

    fn length(&self) -> u64 {
        self.whole.accesses.len() as u64
    }

    /// The initial position of a copy in the trace.
    fn begin(&self, copy: u32) -> u64 {
        (u128::from(self.length()) * u128::from(copy) / u128::from(self.count)) as u64
    }

    /// Append accesses to `out` until it has `count`.
    pub(super) fn fill(&self, turn: &mut Turn, out: &mut Block, count: usize) {
        while out.accesses.len() < count && turn.before < self.length() {
            let slice = self.slice.min(self.length() - turn.before);
            let room = (count - out.accesses.len()) as u64;
            let done =
                self.part(turn.copy, turn.before + turn.done, room.min(slice - turn.done), out);
            turn.done += done;
            if turn.done == slice {
                (turn.copy, turn.done) = (turn.copy + 1, 0);
            }
            if turn.copy == self.count {
                (turn.copy, turn.before) = (0, turn.before + slice);
            }
        }
    }

    /// Append up to `max` accesses of `copy` after its first `done`, but not beyond the end of the trace.
    /// Returns their number.
    fn part(&self, copy: u32, done: u64, max: u64, out: &mut Block) -> u64 {
        let (first, length) = (copy * self.pages, self.length());
        let from = (self.begin(copy) + done) % length;
        let to = (from + max).min(length);
        let base = out.accesses.len();
        if from == 0 && done > 0 && self.lives {
            out.ends.push((base, End::Pages(Page::new(first), self.pages)));
        }
        let (from, to) = (from as usize, to as usize);
        let ends = &self.whole.ends;
        let skipped = ends.partition_point(|(at, _)| *at < from);
        let ends = ends.iter().skip(skipped).take_while(|(at, _)| *at < to);
        out.ends.extend(ends.map(|(at, end)| (base + at - from, end.shifted(first))));
        let accesses = self.whole.accesses.get(from..to).unwrap_or_default();
        out.accesses.extend(accesses.iter().map(|access| access.shifted(first)));
        (to - from) as u64
    }
}
