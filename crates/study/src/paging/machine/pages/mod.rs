//! The pages of private memory, and their sizes under the kernel's settings for huge pages.
//!
//! A fault takes the largest page that the settings allow ([`nearfar_kernel::thp`]), that lies in one
//! area of private memory with one advice, and that is entirely unmapped. All other memory has 4 KiB
//! pages: files, shared memory, mappings that are too small at the fault, and copies after a fork. The
//! memory of a page is a *folio*, which stays until no part of it is mapped.
//!
//! A huge page (2 MiB) is *split* if a part of it is unmapped, moved, freed or copied
//! (`__split_huge_pmd`): it is then mapped as small pages, which khugepaged may merge again. Large pages
//! below 2 MiB are mapped as small pages from the start; the TLB may join these.
//!
//! A first reference that reads maps a zero page, which takes no memory. If 2 MiB are allowed, this is
//! the huge zero page, and the first write to any part of it allocates a huge page
//! (`do_huge_zero_wp_pmd`, Linux 6.13; earlier kernels split it). Otherwise, it is the zero page of
//! 4 KiB: the first write allocates 4 KiB (`do_wp_page`), even where other large pages are allowed.
//!
//! With a limit, memory is reclaimed ([`nearfar_kernel::thp::reclaim`], [`pressure`]); swap is read
//! by 4 KiB pages.

mod counts;
mod folios;
mod pressure;
mod remap;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use nearfar_hardware::table::prefetch;
use nearfar_kernel::thp::khugepaged::Khugepaged;
use nearfar_kernel::thp::{Advice, HUGE, ORDERS, Policy};
use nearfar_trace::ranges::Ranges;

use super::SMALL;
use super::surroundings::Changed;
use crate::lifetimes::{Backing, Change};
use crate::slot;
pub use counts::{Events, Faults};
use folios::{Folio, Folios};
pub use settings::Settings;

/// Number of 4 KiB pages in a huge page.
const RANGE: usize = 1 << HUGE;
/// No block; no folio.
const NONE: u32 = u32::MAX;
/// The folio of file pages, shared memory and the zero page of 4 KiB, which are not counted.
const UNCOUNTED: u32 = u32::MAX - 1;
/// The folio of pages in swap.
const SWAPPED: u32 = u32::MAX - 2;
/// The folio of touched pages that the program freed and reclaim dropped.
const DROPPED: u32 = u32::MAX - 3;

/// A *block*: a small page (4 KiB) that was touched. It stays the same block if it moves.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    /// Number of the small page, which includes its address space.
    number: u64,
    /// Order of the block's TLB entry.
    order: u8,
    /// Shared by a fork: the next write may copy it.
    shared: bool,
    /// The block was written, so it may not be zero.
    written: bool,
    /// The program freed the block (`MADV_FREE`).
    lazy: bool,
    /// Reclaim evicted the block: the next reference faults.
    away: bool,
    /// Number of threads that have the block among their most recently used pages.
    pins: u16,
    /// Number of reclaims before the last reference to the block.
    used: u32,
    /// Number of the area: a named part of the address space, such as the heap.
    area: u32,
}

/// A range of 2 MiB that has a page table, or is a huge page.
struct Table {
    /// Folio of each small page, or a constant such as [`NONE`].
    folio: [u32; RANGE],
    /// Touched block of each small page, or [`NONE`].
    block: [u32; RANGE],
    /// The range is mapped as a huge page.
    huge: bool,
    /// A fork copied the table.
    forked: bool,
}

impl Table {
    fn new() -> Box<Self> {
        Box::new(Self { folio: [NONE; RANGE], block: [NONE; RANGE], huge: false, forked: false })
    }
}

/// Page number and order of a removed translation.
pub type Removed = (u64, u8);

/// The pages of all processes.
pub struct Pages {
    policy: Policy,
    khugepaged: Option<Khugepaged>,
    /// Free contiguous memory, in units of 2 MiB; `u64::MAX`: unlimited.
    free: u64,
    blocks: Vec<Block>,
    tables: BTreeMap<u64, Box<Table>>,
    folios: Folios,
    /// Ranges of private memory with their advice; not the areas of [`Block::area`].
    areas: Ranges<Advice>,
    /// Mapped private memory of all processes, in small pages. Memory shared by a fork counts in each.
    mapped: u64,
    /// Number of huge mappings, without the huge zero page.
    huge: u64,
    /// The area of newly allocated pages; the caller sets it for new blocks.
    pub area: u32,
    /// As in [`Settings`].
    limit: Option<u64>,
    max_none: u64,
    /// Goal of the current reclaim: free small pages.
    wanted: u64,
    /// Number of reclaims so far.
    now: u32,
    /// Number of address spaces, up to the highest that took part in a fork.
    spaces: u64,
    /// Peak of [`Pages::resident`], in small pages.
    pub peak: u64,
    /// Peak of the mapped memory, in small pages.
    pub peak_mapped: u64,
    pub faults: Faults,
    /// Faults that raised [`Pages::peak`], without reads from swap.
    pub fills: Faults,
    pub events: Events,
    /// Number of huge pages that replaced the huge zero page.
    pub read_first: u64,
    removed: Vec<Removed>,
}

impl Pages {
    pub fn new(settings: &Settings) -> Self {
        let Settings { policy, khugepaged, free, limit, max_none } = settings;
        Self {
            policy: policy.clone(),
            khugepaged: khugepaged.map(Khugepaged::new),
            free: *free,
            blocks: Vec::new(),
            tables: BTreeMap::new(),
            folios: Folios::new(limit.is_some()),
            areas: Ranges::default(),
            mapped: 0,
            huge: 0,
            area: 0,
            limit: *limit,
            max_none: *max_none,
            wanted: 0,
            now: 0,
            spaces: 1,
            peak: 0,
            peak_mapped: 0,
            faults: Faults::default(),
            fills: Faults::default(),
            events: Events::default(),
            read_first: 0,
            removed: Vec::new(),
        }
    }

    /// The order of a touched block's TLB entry.
    #[inline]
    pub fn order(&self, block: u32) -> usize {
        usize::from(self.blocks[block as usize].order)
    }

    #[inline]
    pub fn area_of(&self, block: u32) -> u32 {
        self.blocks[block as usize].area
    }

    /// By area: mapped private memory, and its part in larger pages; both in small pages.
    pub fn mapped_by_area(&self) -> &[[u64; 2]] {
        &self.folios.by_area
    }

    #[inline]
    pub fn prefetch(&self, block: u32) {
        prefetch(&self.blocks, block as usize);
    }

    /// Memory of all folios, in small pages.
    pub fn resident(&self) -> u64 {
        self.folios.held()
    }

    /// Mapped private memory of all processes, and its part in huge pages; both in small pages.
    pub fn mapped(&self) -> [u64; 2] {
        [self.mapped, self.huge << HUGE]
    }

    /// Take the translations removed since the last call.
    pub fn removed(&mut self) -> std::vec::Drain<'_, Removed> {
        self.removed.drain(..)
    }

    pub fn tick(&mut self, now_ns: f64) {
        if let Some(mut daemon) = self.khugepaged.take() {
            daemon.run(now_ns, self);
            self.khugepaged = Some(daemon);
            self.update_peaks();
        }
    }

    fn update_peaks(&mut self) {
        self.peak = self.peak.max(self.resident());
        self.peak_mapped = self.peak_mapped.max(self.mapped);
    }

    pub fn apply(&mut self, (change, around): &Changed) {
        let before = self.faults;
        match change {
            Change::Born { block, number, backing, written } => {
                self.born(*block, *number, (*backing, *written), *around);
            }
            Change::Written(block) => self.written(*block),
            Change::Ended { range, kept, .. } => self.end(*range, *kept),
            Change::Discarded(blocks) => self.lazily_freed(blocks),
            Change::Forked(blocks) => self.fork(blocks),
            Change::Moved { range, by, .. } => self.move_by(*range, *by >> SMALL),
            Change::Area { first, last, advice } => match advice {
                Some(advice) => self.areas.map_joined(*first, *last, *advice),
                None => self.areas.unmap(*first, *last),
            },
            Change::Collapse { first, last } => self.collapse(*first, *last),
        }
        self.peak_mapped = self.peak_mapped.max(self.mapped);
        if self.resident() > self.peak {
            self.peak = self.resident();
            self.fills.add_fills(self.faults.since(before));
        }
    }

    fn block(&mut self, block: u32) -> &mut Block {
        slot(&mut self.blocks, block)
    }

    fn table(&mut self, number: u64) -> &mut Table {
        self.tables.entry(number >> HUGE).or_insert_with(Table::new)
    }

    /// Map `pages` small pages of table `key`, from index `first`, to a folio, in place of old mappings.
    fn map(&mut self, key: u64, first: usize, pages: usize, folio: u32) {
        let table = self.tables.entry(key).or_insert_with(Table::new);
        for slot in &mut table.folio[first..first + pages] {
            let old = std::mem::replace(slot, folio);
            self.mapped -= self.folios.unmap(old, &mut self.free);
        }
        self.mapped += self.folios.map(folio, pages as u32);
    }

    /// Enter a block into its table.
    fn enter(&mut self, block: u32, number: u64) {
        self.table(number).block[number as usize % RANGE] = block;
        let order = self.order_at(number);
        let block = self.block(block);
        (block.number, block.order) = (number, order);
    }

    /// The order of a page's TLB entry.
    fn order_at(&self, number: u64) -> u8 {
        let Some(table) = self.tables.get(&(number >> HUGE)) else { return 0 };
        if table.huge {
            return HUGE as u8;
        }
        let at = number as usize % RANGE;
        match self.folios.get(table.folio[at]) {
            // The folio is mapped at its offset of allocation, so it is aligned and contiguous.
            Some(Folio { order, at: first, .. })
                if u32::from(*order) < HUGE && usize::from(*first) == at >> order << order =>
            {
                *order
            }
            _ => 0,
        }
    }

    fn born(
        &mut self,
        block: u32,
        number: u64,
        (backing, written): (Backing, bool),
        around: (u64, u64),
    ) {
        let at = number as usize % RANGE;
        let (used, area) = (self.now, self.area);
        *self.block(block) = Block { written, used, area, ..Block::default() };
        let private = match backing {
            Backing::Unknown | Backing::Zeros => true,
            Backing::Object { private, .. } => private && written,
        };
        // `around`: first and last page of the private memory around the page; (0, 0) in mappings of
        // files and shared memory, where a private copy has 4 KiB.
        if !private || around == (0, 0) {
            if private {
                self.small(number);
            } else {
                if !matches!(backing, Backing::Object { of_file: true, .. }) {
                    self.faults.maps += 1;
                }
                self.map(number >> HUGE, at, 1, UNCOUNTED);
            }
            return self.enter(block, number);
        }
        let reads_zeros = backing == Backing::Zeros && !written;
        let table = self.tables.get(&(number >> HUGE));
        match table.map_or(NONE, |table| table.folio[at]) {
            NONE => self.fault(number, reads_zeros, around),
            SWAPPED => self.swap_in(number),
            // The zero page stays.
            UNCOUNTED if !written => {}
            UNCOUNTED => self.small(number),
            folio => {
                let forked = table.is_some_and(|table| table.forked);
                if self.folios.is_zero(folio) && written {
                    self.replace_zero(number);
                } else if forked && written {
                    self.enter(block, number);
                    return self.copy(block);
                }
            }
        }
        self.enter(block, number);
    }

    /// The first reference to an unmapped page of private memory.
    fn fault(&mut self, number: u64, reads_zeros: bool, around: (u64, u64)) {
        let advice = self.areas.find(number).unwrap_or_default();
        let key = number >> HUGE;
        let fits: [bool; ORDERS] = std::array::from_fn(|order| {
            let first = number >> order << order;
            self.policy.allows(order as u32, advice)
                && around.0 <= first
                && first + (1 << order) - 1 <= around.1
        });
        if fits[HUGE as usize] && !self.tables.contains_key(&key) {
            if reads_zeros {
                self.faults.maps += 1;
                let zero = self.folios.new_zero(key << HUGE);
                return self.map_huge(key, zero);
            }
            let compacts = self.compacts(advice);
            if (self.free > 0 || compacts) && self.has_room(HUGE, compacts) {
                match self.free {
                    0 => self.events.compactions += 1,
                    u64::MAX => {}
                    _ => self.free -= 1,
                }
                self.faults.pages[HUGE as usize] += 1;
                let folio = self.folios.new_folio(HUGE, key << HUGE, self.area);
                return self.map_huge(key, folio);
            }
            self.events.fallbacks += 1;
        }
        if reads_zeros {
            self.faults.maps += 1;
            return self.map(key, number as usize % RANGE, 1, UNCOUNTED);
        }
        for order in (1..HUGE).rev().filter(|order| fits[*order as usize]) {
            let first = number >> order << order;
            let at = first as usize % RANGE;
            let table = self.tables.get(&key);
            let is_empty = table
                .is_none_or(|table| table.folio[at..at + (1 << order)].iter().all(|f| *f == NONE));
            if is_empty && self.has_room(order, self.compacts(advice)) {
                self.faults.pages[order as usize] += 1;
                let folio = self.folios.new_folio(order, first, self.area);
                return self.map(key, at, 1 << order, folio);
            }
        }
        self.small(number);
    }

    /// Fault in a page of 4 KiB.
    fn small(&mut self, number: u64) {
        self.faults.pages[0] += 1;
        self.place_small(number);
    }

    fn map_huge(&mut self, key: u64, folio: u32) {
        self.map(key, 0, RANGE, folio);
        self.huge += u64::from(!self.folios.is_zero(folio));
        let blocks = {
            let table = self.table(key << HUGE);
            (table.huge, table.forked) = (true, false);
            table.block
        };
        for &block in blocks.iter().filter(|block| **block != NONE) {
            let block = self.block(block);
            (block.order, block.shared, block.away) = (HUGE as u8, false, false);
        }
    }

    /// The first write to the huge zero page allocates a huge page. In older kernels, and if memory is at
    /// its limit, it splits the zero page.
    fn replace_zero(&mut self, number: u64) {
        let key = number >> HUGE;
        if self.policy.splits_zero {
            self.split(key);
            return self.small(number);
        }
        let advice = self.areas.find(number).unwrap_or_default();
        if !self.has_room(HUGE, self.compacts(advice)) {
            self.events.fallbacks += 1;
            self.split(key);
            return self.small(number);
        }
        self.faults.pages[HUGE as usize] += 1;
        self.read_first += 1;
        self.removed.push((number, HUGE as u8));
        let folio = self.folios.new_folio(HUGE, key << HUGE, self.area);
        self.map_huge(key, folio);
    }

    /// The first write since a block was read, shared or freed.
    fn written(&mut self, block: u32) {
        let Block { number, shared, area, .. } = self.blocks[block as usize];
        self.area = area;
        let folio = self.table(number).folio[number as usize % RANGE];
        if folio == SWAPPED {
            self.swap_in(number);
        } else if folio == UNCOUNTED || folio == DROPPED {
            // A zero page or file page that was only read so far, or a dropped page.
            self.shoot_down(block);
            self.small(number);
            self.blocks[block as usize].order = 0;
        } else if self.folios.is_zero(folio) {
            self.replace_zero(number);
        } else if shared {
            self.copy(block);
        }
        let block = &mut self.blocks[block as usize];
        (block.shared, block.written, block.lazy) = (false, true, false);
    }

    /// A write after a fork copies a small page, unless no other process maps the folio
    /// (`do_huge_pmd_wp_page`, `do_wp_page`).
    fn copy(&mut self, block: u32) {
        let number = self.blocks[block as usize].number;
        let (key, at) = (number >> HUGE, number as usize % RANGE);
        let table = self.table(number);
        let folio = table.folio[at];
        let entries = table.folio.iter().filter(|other| **other == folio).count();
        if self.folios.get(folio).is_some_and(|folio| folio.mapped as usize == entries) {
            self.faults.maps += 1;
            if let Some(table) = self.tables.get_mut(&key).filter(|table| table.huge) {
                table.forked = false;
                for &block in table.block.iter().filter(|block| **block != NONE) {
                    self.blocks[block as usize].shared = false;
                }
            }
            return;
        }
        self.split(key);
        self.shoot_down(block);
        self.small(number);
        self.blocks[block as usize].order = 0;
    }

    /// Map a huge page as small pages.
    fn split(&mut self, key: u64) {
        let Some(table) = self.tables.get_mut(&key).filter(|table| table.huge) else { return };
        table.huge = false;
        self.removed.push((key << HUGE, HUGE as u8));
        for &block in table.block.iter().filter(|block| **block != NONE) {
            self.blocks[block as usize].order = 0;
        }
        let zero = self.folios.is_zero(table.folio[0]);
        if zero {
            // Touched small pages map the zero page of 4 KiB.
            let touched = table.block.map(|block| block != NONE);
            for (at, touched) in touched.into_iter().enumerate() {
                self.map(key, at, 1, if touched { UNCOUNTED } else { NONE });
            }
        } else {
            self.huge -= 1;
        }
        self.events.splits += 1;
    }

    fn shoot_down(&mut self, block: u32) {
        shoot_down(self.blocks[block as usize], &mut self.removed);
    }
}

fn shoot_down(Block { number, order, .. }: Block, removed: &mut Vec<Removed>) {
    if removed.last() != Some(&(number, order)) {
        removed.push((number, order));
    }
}
