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
//!
//! If the first reference reads, it maps the zero page, which takes no memory. Below 2 MiB that is
//! the zero page of 4 KiB: the first write copies 4 KiB, and what lies around stays small
//! (`do_wp_page`). At 2 MiB it is the huge zero page, and the first write to any part of it
//! allocates a large page (`do_huge_zero_wp_pmd`, Linux 6.13; before, it was split).

use nearfar_hardware::table::prefetch;
use nearfar_trace::hash::PageMap;

use super::surroundings::Changed;
use super::{LARGE, SMALL};
use crate::lifetimes::{Backing, Change};

/// The kind of page that contains a touched 4 KiB block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Class {
    #[default]
    None,
    /// A 4 KiB page of private memory.
    Small,
    /// A 4 KiB page of other memory, or the zero page.
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
    /// The large page is the zero page.
    zero: bool,
}

/// Faults that need no device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// They mapped an existing page: the first read of shared memory, or of private memory.
    pub maps: u64,
    /// They allocated a small page of private memory.
    pub small: u64,
    /// They allocated a large page.
    pub large: u64,
}

impl Faults {
    /// The faults since `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            maps: self.maps - before.maps,
            small: self.small - before.small,
            large: self.large - before.large,
        }
    }
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
    /// All faults.
    pub faults: Faults,
    /// Faults that raised the peak of private memory.
    pub fills: Faults,
    /// Large pages that replaced the zero page.
    pub read_first: u64,
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
        let before = self.faults;
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
                    let Block { number: parent, class, .. } = self.blocks[block as usize];
                    // The next write replaces the zero page anyway.
                    let zero = self.is_zero(parent, class);
                    self.blocks[block as usize].shared = !zero;
                    *self.block(copy) = Block { number, class, shared: !zero };
                    self.enter(number, class == Class::Large, zero);
                }
            }
            Change::Moved { blocks, by } => self.shift_by(blocks, *by),
        }
        if self.resident > self.peak {
            self.peak = self.resident;
            let Faults { maps, small, large } = self.faults.since(before);
            self.fills.maps += maps;
            self.fills.small += small;
            self.fills.large += large;
        }
    }

    fn block(&mut self, block: u32) -> &mut Block {
        let index = block as usize;
        if self.blocks.len() <= index {
            self.blocks.resize(index + 1, Block::default());
        }
        &mut self.blocks[index]
    }

    fn enter(&mut self, number: u64, large: bool, zero: bool) {
        let range = self.ranges.entry(number >> self.shift).or_default();
        range.live += 1;
        range.large |= large;
        range.zero |= zero;
    }

    /// Whether a block of this class is part of the large zero page.
    fn is_zero(&self, number: u64, class: Class) -> bool {
        class == Class::Large
            && self.ranges.get(&(number >> self.shift)).is_some_and(|range| range.zero)
    }

    /// The first write to the large zero page allocates a page.
    fn replace_zero(&mut self, number: u64) {
        let Some(range) = self.ranges.get_mut(&(number >> self.shift)) else { return };
        range.zero = false;
        self.faults.large += 1;
        self.read_first += 1;
        self.resident += 1 << self.shift;
        self.gone.push((number, true));
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
                self.faults.small += 1;
                self.resident += 1;
            } else if !matches!(backing, Backing::Object { of_file: true, .. }) {
                self.faults.maps += 1;
            }
            *self.block(block) = new(if private { Class::Small } else { Class::Other });
            return self.enter(number, false, false);
        }
        let first = number >> self.shift << self.shift;
        let fits = around.0 <= first && first + (1 << self.shift) - 1 <= around.1;
        let zero = backing == Backing::Zeros && !written;
        let class = match self.ranges.get(&(number >> self.shift)) {
            Some(Range { large: true, .. }) if self.holes.remove(&number).is_none() => {
                if written && self.is_zero(number, Class::Large) {
                    self.replace_zero(number);
                }
                Class::Large
            }
            None if fits && zero && self.shift == LARGE - SMALL => {
                self.faults.maps += 1;
                *self.block(block) = new(Class::Large);
                return self.enter(number, true, true);
            }
            None if fits && !zero && self.shift > 0 => {
                self.faults.large += 1;
                self.resident += 1 << self.shift;
                Class::Large
            }
            _ if zero => {
                self.faults.maps += 1;
                Class::Other
            }
            _ => {
                self.faults.small += 1;
                self.resident += 1;
                Class::Small
            }
        };
        *self.block(block) = new(class);
        self.enter(number, class == Class::Large, false);
    }

    /// The first write since a block was read, shared or freed.
    fn written(&mut self, block: u32) {
        let Block { number, class, shared } = self.blocks[block as usize];
        match class {
            // A page that was read first is the zero page or the file's.
            Class::Other => {
                self.faults.small += 1;
                self.resident += 1;
                self.split(block);
            }
            Class::Large if self.is_zero(number, class) => self.replace_zero(number),
            Class::Small | Class::Large if shared => {
                self.faults.small += 1;
                self.resident += 1;
                self.split(block);
            }
            _ => {}
        }
        self.blocks[block as usize].shared = false;
    }

    /// Turn a block into a small page.
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
        let Range { live, large, zero } = *range;
        if live > 0 {
            if large {
                self.holes.insert(number, ());
            }
            return;
        }
        self.ranges.remove(&key);
        if large {
            if !zero {
                self.resident = self.resident.saturating_sub(1 << self.shift);
            }
            if !self.holes.is_empty() {
                (key << self.shift..(key + 1) << self.shift).for_each(|number| {
                    self.holes.remove(&number);
                });
            }
        }
    }

    fn shift_by(&mut self, blocks: &[(u32, u64)], by: u64) {
        let whole = (by >> SMALL).is_multiple_of(1 << self.shift);
        let mut zero = Vec::with_capacity(blocks.len());
        for &(block, _) in blocks {
            self.shoot_down(block);
            let Block { number, class, .. } = self.blocks[block as usize];
            zero.push(self.is_zero(number, class));
            self.leave(number);
        }
        for (&(block, number), zero) in blocks.iter().zip(zero) {
            let known = &mut self.blocks[block as usize];
            known.number = number;
            let was_large = known.class == Class::Large;
            if was_large && !whole {
                known.class = if zero { Class::Other } else { Class::Small };
                self.resident += u64::from(!zero);
            }
            if was_large && whole && !zero && !self.ranges.contains_key(&(number >> self.shift)) {
                self.resident += 1 << self.shift;
            }
            self.enter(number, was_large && whole, zero && whole);
        }
    }
}
