//! Touched blocks of memory (the unit of tracking, at most 4 KiB), by address space.

use std::collections::BTreeMap;

use nearfar_kernel::thp::Advice;
use nearfar_trace::RegionEvent;
use nearfar_trace::hash::PageMap;

use super::spaces::{Effect, Spaces};
use super::{Backing, PAGE_SHIFT, SPACE_SHIFT, place};

/// log2 of the blocks per group; ranges are searched by group.
const GROUP: u32 = 9;

/// A change of blocks. Block ids are reused after [`Change::Ended`]. Ranges are inclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The first reference to a block, and whether it writes.
    Born {
        block: u32,
        /// [`place`] >> block shift.
        number: u64,
        backing: Backing,
        written: bool,
    },
    /// The next reference is the first write since the block was born, shared or freed.
    Written(u32),
    /// All touched blocks of `range` (block numbers) ended, in ascending order of addresses. If `removed`,
    /// their part of the file or shared memory is gone too. The range stays mapped if `kept`.
    Ended { blocks: Vec<u32>, removed: bool, range: (u64, u64), kept: bool },
    /// Blocks are discarded until they are written (`MADV_FREE`).
    Discarded(Vec<u32>),
    /// A fork: block of the parent, block of the child, and number of the child's block.
    Forked(Vec<(u32, u32, u64)>),
    /// All touched blocks of `range` (old block numbers) moved `by` bytes (modulo 2^64). `blocks` has
    /// their new numbers.
    Moved { blocks: Vec<(u32, u64)>, by: u64, range: (u64, u64) },
    /// This range of block numbers is now private memory with this advice; `None`: not private memory
    /// ([`Blocks::watch_areas`]).
    Area { first: u64, last: u64, advice: Option<Advice> },
    /// `MADV_COLLAPSE` of this range of block numbers ([`Blocks::watch_areas`]).
    Collapse { first: u64, last: u64 },
}

/// The next write must be reported.
const WATCHED: u8 = 1;
/// Later references may change the frame of the pages that hold the block.
const UNSETTLED: u8 = 2;
/// The block is discarded until it is written.
const LAZY: u8 = 4;
/// The block is part of a file or shared memory: a fork does not copy it.
const OF_OBJECT: u8 = 8;

#[derive(Clone, Copy)]
struct Block {
    number: u64,
    state: u8,
}

#[derive(Default)]
pub struct Blocks {
    shift: u32,
    /// log2 of the blocks in the largest page.
    largest: u32,
    ids: PageMap<u32>,
    blocks: Vec<Block>,
    unused: Vec<u32>,
    /// Number of touched blocks by group: number >> [`GROUP`].
    groups: BTreeMap<u64, u32>,
    /// Number of unsettled blocks by largest page.
    unsettled: PageMap<u32>,
    /// A block was moved, and may be in a page at another address.
    moved: bool,
    /// Such a block may be unsettled.
    strayed: bool,
    /// Set by [`Blocks::watch_areas`].
    areas: bool,
    spaces: Spaces,
    effects: Vec<Effect>,
    changes: Vec<Change>,
}

impl Blocks {
    /// Blocks have 2^`shift` bytes, at most 4 KiB; pages have at most 2^`largest` bytes.
    pub fn new(shift: u32, largest: u32, spaces: Spaces) -> Self {
        assert!(shift <= PAGE_SHIFT && shift <= largest, "blocks of 2^{shift} bytes");
        Self { shift, largest: largest - shift, spaces, ..Self::default() }
    }

    /// Also report [`Change::Area`], [`Change::Collapse`], and the end and move of ranges without
    /// touched blocks.
    pub fn watch_areas(&mut self) {
        self.areas = true;
    }

    pub fn spaces(&mut self) -> &mut Spaces {
        &mut self.spaces
    }

    /// Take the changes since the last call, in order.
    pub fn changes(&mut self) -> std::vec::Drain<'_, Change> {
        self.changes.drain(..)
    }

    /// The touched block of this number.
    #[inline]
    pub fn find(&self, number: u64) -> Option<u32> {
        self.ids.get(&number).copied()
    }

    /// The number of a block: its [`place`] >> block shift.
    pub fn number(&self, block: u32) -> u64 {
        self.blocks[block as usize].number
    }

    /// Whether the next write to this block must be reported ([`Blocks::write`]).
    #[inline]
    pub fn watched(&self, block: u32) -> bool {
        self.blocks[block as usize].state & WATCHED != 0
    }

    /// Whether the first reference to this block may change the frame of a touched page.
    #[inline]
    pub fn unsettled(&self, number: u64) -> bool {
        self.strayed || self.unsettled.contains_key(&(number >> self.largest))
    }

    /// Apply a reference to the block of this number. Returns the block.
    pub fn reference(&mut self, number: u64, write: bool) -> u32 {
        let Some(block) = self.find(number) else { return self.birth(number, write) };
        if write && self.watched(block) {
            self.write(block);
        }
        block
    }

    /// Apply the first reference to the block of this number. Returns the block.
    pub fn birth(&mut self, number: u64, written: bool) -> u32 {
        let space = match number >> (63 - self.shift) {
            0 => (number >> (SPACE_SHIFT - self.shift)) as u32,
            _ => 0,
        };
        let backing = self.spaces.backing(space, super::address(number << self.shift));
        // Traces do not record mprotect. A write to a private mapping of a file that was mapped
        // read-only counts as a read: it makes no private copy.
        let written =
            written && !matches!(backing, Backing::Object { private: true, writable: false, .. });
        let block = self.new_block(number);
        let state = match backing {
            Backing::Unknown | Backing::Zeros | Backing::Object { private: true, .. }
                if written =>
            {
                0
            }
            Backing::Unknown | Backing::Zeros => WATCHED | UNSETTLED,
            Backing::Object { private: true, writable: true, .. } => {
                WATCHED | UNSETTLED | OF_OBJECT
            }
            Backing::Object { private: true, .. } => UNSETTLED | OF_OBJECT,
            // Keep the page unsettled even after its other blocks end.
            Backing::Object { .. } if self.unsettled(number) => UNSETTLED | OF_OBJECT,
            Backing::Object { .. } => OF_OBJECT,
        };
        self.set(block, state);
        self.changes.push(Change::Born { block, number, backing, written });
        block
    }

    /// Apply a write to a watched block.
    pub fn write(&mut self, block: u32) {
        self.set(block, 0);
        self.changes.push(Change::Written(block));
    }

    fn new_block(&mut self, number: u64) -> u32 {
        let new = Block { number, state: 0 };
        let block = match self.unused.pop() {
            Some(block) => {
                self.blocks[block as usize] = new;
                block
            }
            None => {
                self.blocks.push(new);
                self.blocks.len() as u32 - 1
            }
        };
        self.enter(block);
        block
    }

    /// Add a block to the indices.
    fn enter(&mut self, block: u32) {
        let Block { number, state } = self.blocks[block as usize];
        self.ids.insert(number, block);
        *self.groups.entry(number >> GROUP).or_insert(0) += 1;
        if state & UNSETTLED != 0 {
            *self.unsettled.entry(number >> self.largest).or_insert(0) += 1;
        }
    }

    /// Remove a block from the indices.
    fn leave(&mut self, block: u32) {
        let Block { number, state } = self.blocks[block as usize];
        self.ids.remove(&number);
        let group = number >> GROUP;
        let remaining = self.groups.get_mut(&group).map_or(0, |count| {
            *count -= 1;
            *count
        });
        if remaining == 0 {
            self.groups.remove(&group);
        }
        if state & UNSETTLED != 0 {
            self.settle(number);
        }
    }

    fn settle(&mut self, number: u64) {
        let page = number >> self.largest;
        if let Some(count) = self.unsettled.get_mut(&page) {
            *count -= 1;
            if *count == 0 {
                self.unsettled.remove(&page);
            }
        }
    }

    fn set(&mut self, block: u32, state: u8) {
        let Block { number, state: before } = self.blocks[block as usize];
        self.blocks[block as usize].state = state;
        match (before & UNSETTLED, state & UNSETTLED) {
            (0, UNSETTLED) => *self.unsettled.entry(number >> self.largest).or_insert(0) += 1,
            (UNSETTLED, 0) => self.settle(number),
            _ => {}
        }
    }

    /// First and last block number of 4 KiB pages of an address space.
    fn range(&self, space: u32, first: u64, last: u64) -> (u64, u64) {
        let number = |page: u64| place(space, page << PAGE_SHIFT) >> self.shift;
        (number(first), number(last) + (1 << (PAGE_SHIFT - self.shift)) - 1)
    }

    /// Touched blocks of 4 KiB pages `first` to `last` of an address space, by address.
    fn within(&self, space: u32, first: u64, last: u64) -> Vec<u32> {
        let (first, last) = self.range(space, first, last);
        let mut blocks = Vec::new();
        for (&group, _) in self.groups.range(first >> GROUP..=last >> GROUP) {
            let from = first.max(group << GROUP);
            let to = last.min((group << GROUP) + (1 << GROUP) - 1);
            blocks.extend((from..=to).filter_map(|number| self.find(number)));
        }
        blocks
    }

    pub fn apply(&mut self, event: &RegionEvent) {
        let mut effects = std::mem::take(&mut self.effects);
        self.spaces.apply(event, &mut effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::Area { .. } | Effect::Collapse { .. } if !self.areas => {}
                _ => self.change(effect),
            }
        }
        self.effects = effects;
    }

    fn change(&mut self, effect: Effect) {
        let change = match effect {
            Effect::End { space, first, last, kept } => {
                let removed = false;
                self.end(space, (first, last), kept, removed)
            }
            Effect::Remove { space, first, last } => {
                let (kept, removed) = (true, true);
                self.end(space, (first, last), kept, removed)
            }
            Effect::Free { space, first, last } => {
                let mut blocks = self.within(space, first, last);
                blocks.retain(|&block| self.blocks[block as usize].state & (OF_OBJECT | LAZY) == 0);
                self.strayed |= self.moved;
                for &block in &blocks {
                    self.set(block, WATCHED | UNSETTLED | LAZY);
                }
                Change::Discarded(blocks)
            }
            Effect::Move { space, first, last, by } => self.shift_by(space, first, last, by),
            Effect::Fork { parent, child } => self.fork(parent, child),
            Effect::Area { space, first, last, advice } => {
                let (first, last) = self.range(space, first, last);
                Change::Area { first, last, advice }
            }
            Effect::Collapse { space, first, last } => {
                let (first, last) = self.range(space, first, last);
                Change::Collapse { first, last }
            }
        };
        let is_empty = match &change {
            // A range without touched blocks can be part of a huge page.
            Change::Ended { blocks, .. } => blocks.is_empty() && !self.areas,
            Change::Discarded(blocks) => blocks.is_empty(),
            Change::Forked(blocks) => blocks.is_empty(),
            Change::Moved { blocks, .. } => blocks.is_empty() && !self.areas,
            Change::Born { .. } | Change::Written(_) => false,
            Change::Area { .. } | Change::Collapse { .. } => false,
        };
        if !is_empty {
            self.changes.push(change);
        }
    }

    fn end(&mut self, space: u32, (first, last): (u64, u64), kept: bool, removed: bool) -> Change {
        let blocks = self.within(space, first, last);
        for &block in &blocks {
            self.leave(block);
        }
        // `unused` is a stack: reuse ids in the order of release.
        self.unused.extend(blocks.iter().rev());
        Change::Ended { blocks, removed, range: self.range(space, first, last), kept }
    }

    fn shift_by(&mut self, space: u32, first: u64, last: u64, by: u64) -> Change {
        let moved = self.within(space, first, last);
        self.moved |= !moved.is_empty();
        for &block in &moved {
            self.leave(block);
        }
        let by = by.wrapping_mul(1 << PAGE_SHIFT);
        let blocks = moved.into_iter().map(|block| {
            let Block { number, state } = self.blocks[block as usize];
            let addr = super::address(number << self.shift).wrapping_add(by);
            let number = place(space, addr) >> self.shift;
            self.strayed |= state & UNSETTLED != 0;
            self.blocks[block as usize] = Block { number, state };
            self.enter(block);
            (block, number)
        });
        let blocks = blocks.collect();
        Change::Moved { blocks, by, range: self.range(space, first, last) }
    }

    fn fork(&mut self, parent: u32, child: u32) -> Change {
        let mut blocks = self.within(parent, 0, (1 << (SPACE_SHIFT - PAGE_SHIFT)) - 1);
        blocks.retain(|&block| self.blocks[block as usize].state & OF_OBJECT == 0);
        self.strayed |= self.moved;
        let blocks = blocks.into_iter().map(|block| {
            let state = WATCHED | UNSETTLED | self.blocks[block as usize].state & LAZY;
            self.set(block, state);
            let addr = super::address(self.number(block) << self.shift);
            let number = place(child, addr) >> self.shift;
            let copy = self.new_block(number);
            self.set(copy, state);
            (block, copy, number)
        });
        Change::Forked(blocks.collect())
    }
}

#[cfg(test)]
mod tests {
    use nearfar_trace::{RegionKind, ThreadInfo};

    use super::*;

    /// A moved block can stay in the page at its old address. If the block is discarded, the first reference
    /// to another block of that page undoes the discard of the page.
    #[test]
    fn pages_of_moved_blocks_are_unsettled_once_the_blocks_are_discarded() {
        let event = |event, addr, length, to| {
            let prot = "rw-p".to_owned();
            RegionEvent { event, addr, length, to, prot, ..RegionEvent::default() }
        };
        let thread = ThreadInfo { process: 1, ..ThreadInfo::default() };
        let mut blocks = Blocks::new(PAGE_SHIFT, PAGE_SHIFT + 2, Spaces::new(&[thread]));
        blocks.apply(&event(RegionKind::Map, 0x10000, 0x3000, 0));
        let space = blocks.spaces().of_thread(0);
        let number = |addr| place(space, addr) >> PAGE_SHIFT;
        for addr in [0x10000, 0x11000] {
            blocks.birth(number(addr), true);
        }
        blocks.apply(&event(RegionKind::Move, 0x11000, 0x1000, 0x20000));
        assert!(!blocks.unsettled(number(0x12000)));
        blocks.apply(&event(RegionKind::Free, 0x20000, 0x1000, 0));
        assert!(blocks.unsettled(number(0x12000)));
    }
}
