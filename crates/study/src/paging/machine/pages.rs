//! Which pages are large, at one page size.
//!
//! With a page size enabled for anonymous memory (`hugepages-*/enabled` is `always`), the kernel
//! allocates a page of that size on the first reference, if the whole page is in one private
//! anonymous mapping and no part of it is mapped yet (`do_anonymous_page`,
//! `do_huge_pmd_anonymous_page`). All other memory has 4 KiB pages: files, shared memory, mappings
//! that are too small at that time, and pages that were partly unmapped, moved to an unaligned
//! address, or written after a fork. khugepaged and fragmentation are not modelled. A large page
//! that is partly unmapped stays large here, in the TLB and in the resident set; the kernel maps
//! the rest with small pages and frees the unmapped part under memory pressure.

use nearfar_hardware::table::prefetch;
use nearfar_trace::hash::PageMap;

use super::SMALL;
use super::touches::Changed;
use crate::lifetimes::{Backing, Change};

/// The kind of page that contains a touched 4 KiB block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Class {
    #[default]
    None,
    /// A 4 KiB page of private memory.
    Small,
    /// A 4 KiB page of other memory.
    Other,
    /// A large page.
    Large,
}

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    number: u64,
    class: Class,
    /// Shared by a fork: the next write copies it.
    shared: bool,
}

/// An aligned range of the size of a large page.
#[derive(Clone, Copy, Debug, Default)]
struct Range {
    /// Number of touched blocks.
    live: u32,
    /// The range is one large page.
    large: bool,
}

/// A block whose translation was removed, and whether it had a large page.
pub type Gone = (u64, bool);

/// The pages of one size.
#[derive(Debug, Default)]
pub struct Pages {
    /// log2 of the number of small pages per page.
    shift: u32,
    blocks: Vec<Block>,
    ranges: PageMap<Range>,
    /// Unmapped blocks of large pages with other mapped blocks.
    holes: PageMap<()>,
    /// Current private memory, in small pages.
    resident: u64,
    /// Peak private memory, in small pages.
    pub peak: u64,
    /// Faults that allocated a small page of private memory.
    pub small: u64,
    /// Faults that allocated a large page.
    pub large: u64,
    /// Faults that mapped an existing page: the first read of shared memory.
    pub maps: u64,
    gone: Vec<Gone>,
}

impl Pages {
    /// Before the first reference. Pages have 2^`shift` bytes.
    pub fn new(shift: u32) -> Self {
        Self { shift: shift - SMALL, ..Self::default() }
    }

    /// Whether a touched block is part of a large page.
    #[inline]
    pub fn is_large(&self, block: u32) -> bool {
        self.blocks[block as usize].class == Class::Large
    }

    /// Prefetch the state of a block.
    #[inline]
    pub fn prefetch(&self, block: u32) {
        prefetch(&self.blocks, block as usize);
    }

    /// Current private memory, in small pages.
    pub fn resident(&self) -> u64 {
        self.resident
    }

    /// Take the translations removed since the last call.
    pub fn gone(&mut self) -> std::vec::Drain<'_, Gone> {
        self.gone.drain(..)
    }

    /// Apply a change of blocks.
    pub fn apply(&mut self, (change, around): &Changed) {
        match change {
            Change::Born { block, number, backing, written } => {
                self.born(*block, *number, *backing, *written, *around);
            }
            Change::Written(block) => self.written(*block),
            Change::Ended { blocks, .. } => blocks.iter().for_each(|block| self.end(*block)),
            Change::Freed(blocks) => {
                for &block in blocks {
                    self.shoot_down(block);
                }
            }
            Change::Forked(blocks) => {
                for &(block, copy, number) in blocks {
                    self.shoot_down(block);
                    let class = self.blocks[block as usize].class;
                    self.blocks[block as usize].shared = true;
                    *self.block(copy) = Block { number, class, shared: true };
                    self.enter(number, class == Class::Large);
                }
            }
            Change::Moved { blocks, by } => self.shift_by(blocks, *by),
        }
        self.peak = self.peak.max(self.resident);
    }

    fn block(&mut self, block: u32) -> &mut Block {
        let index = block as usize;
        if self.blocks.len() <= index {
            self.blocks.resize(index + 1, Block::default());
        }
        &mut self.blocks[index]
    }

    fn enter(&mut self, number: u64, large: bool) {
        let range = self.ranges.entry(number >> self.shift).or_default();
        range.live += 1;
        range.large |= large;
    }

    fn born(
        &mut self,
        block: u32,
        number: u64,
        backing: Backing,
        written: bool,
        around: (u64, u64),
    ) {
        let new = |class| Block { number, class, shared: false };
        let private = match backing {
            Backing::Unknown | Backing::Zeros => true,
            Backing::Object { private, .. } => private && written,
        };
        if !private || around == (0, 0) {
            if private {
                self.small += 1;
                self.resident += 1;
            } else if !matches!(backing, Backing::Object { of_file: true, .. }) {
                self.maps += 1;
            }
            *self.block(block) = new(if private { Class::Small } else { Class::Other });
            return self.enter(number, false);
        }
        let first = number >> self.shift << self.shift;
        let fits = around.0 <= first && first + (1 << self.shift) - 1 <= around.1;
        let class = match self.ranges.get(&(number >> self.shift)) {
            Some(Range { large: true, .. }) if self.holes.remove(&number).is_none() => Class::Large,
            None if fits && self.shift > 0 => {
                self.large += 1;
                self.resident += 1 << self.shift;
                Class::Large
            }
            _ => {
                self.small += 1;
                self.resident += 1;
                Class::Small
            }
        };
        *self.block(block) = new(class);
        self.enter(number, class == Class::Large);
    }

    /// The first write since a block was read, shared or freed.
    fn written(&mut self, block: u32) {
        let Block { class, shared, .. } = self.blocks[block as usize];
        match class {
            // A page that was read first is the zero page or the file's.
            Class::Small if !shared => self.small += 1,
            Class::Other => {
                self.small += 1;
                self.resident += 1;
                self.shoot_down(block);
                self.blocks[block as usize].class = Class::Small;
            }
            Class::Small | Class::Large if shared => {
                self.small += 1;
                self.resident += 1;
                self.split(block);
            }
            _ => {}
        }
        self.blocks[block as usize].shared = false;
    }

    /// Turn a block of a large page into a small page.
    fn split(&mut self, block: u32) {
        self.shoot_down(block);
        self.blocks[block as usize].class = Class::Small;
    }

    fn shoot_down(&mut self, block: u32) {
        let Block { number, class, .. } = self.blocks[block as usize];
        let gone = (number, class == Class::Large);
        if self.gone.last() != Some(&gone) {
            self.gone.push(gone);
        }
    }

    fn end(&mut self, block: u32) {
        self.shoot_down(block);
        let Block { number, class, .. } = std::mem::take(&mut self.blocks[block as usize]);
        if class == Class::Small {
            self.resident = self.resident.saturating_sub(1);
        }
        self.leave(number);
    }

    /// A touched block is no longer in its range.
    fn leave(&mut self, number: u64) {
        let key = number >> self.shift;
        let Some(range) = self.ranges.get_mut(&key) else { return };
        range.live -= 1;
        let Range { live, large } = *range;
        if live > 0 {
            if large {
                self.holes.insert(number, ());
            }
            return;
        }
        self.ranges.remove(&key);
        if large {
            self.resident = self.resident.saturating_sub(1 << self.shift);
            if !self.holes.is_empty() {
                (key << self.shift..(key + 1) << self.shift).for_each(|number| {
                    self.holes.remove(&number);
                });
            }
        }
    }

    fn shift_by(&mut self, blocks: &[(u32, u64)], by: u64) {
        let whole = (by >> SMALL).is_multiple_of(1 << self.shift);
        let mut large: Vec<u64> = Vec::new();
        for &(block, _) in blocks {
            self.shoot_down(block);
            let Block { number, class, .. } = self.blocks[block as usize];
            if class == Class::Large {
                large.push(number >> self.shift);
            }
            self.leave(number);
        }
        large.dedup();
        for &(block, number) in blocks {
            let known = &mut self.blocks[block as usize];
            known.number = number;
            let was_large = known.class == Class::Large;
            if was_large && !whole {
                known.class = Class::Small;
                self.resident += 1;
            }
            if was_large && whole && !self.ranges.contains_key(&(number >> self.shift)) {
                self.resident += 1 << self.shift;
            }
            self.enter(number, was_large && whole);
        }
    }
}
