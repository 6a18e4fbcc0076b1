//! Private memory under a limit: splitting, swapping out and swapping in.

use nearfar_kernel::thp::reclaim::{self, Lists};
use nearfar_kernel::thp::{Advice, HUGE};

use super::super::touches::{TlbOp, Touch};
use super::folios::Folio;
use super::{Block, DROPPED, NONE, Pages, RANGE, SWAPPED, UNCOUNTED};
use crate::lifetimes::SPACE_SHIFT;

/// log2 of the number of ranges of 2 MiB in an address space.
const SPACE: u32 = SPACE_SHIFT - 21;

impl Pages {
    /// Apply a touch: a reference that may miss the first cache or TLB level at some page size, or a page
    /// that leaves a thread's last pages. Returns whether the block (4 KiB page) faulted: it was in swap,
    /// or dropped.
    ///
    /// A page counts as referenced while it is one of a thread's last pages ([`super::super::last`]),
    /// because most references to these are not touches.
    pub fn reference(&mut self, touch: &Touch) -> bool {
        let block = &mut self.blocks[touch.block as usize];
        block.used = self.now;
        match touch.tlb {
            TlbOp::Enter => block.pins += 1,
            TlbOp::Leave => {
                // Not below 0: a page enters before it leaves.
                block.pins = block.pins.saturating_sub(1);
                return false;
            }
            TlbOp::None | TlbOp::Once => {}
        }
        let (away, area) = (block.away, block.area);
        if away {
            self.area = area;
            self.swap_in(touch.number);
            self.update_peaks();
        }
        away
    }

    /// Whether this number of small pages fits in memory; always true without a limit.
    pub(super) fn fits(&self, pages: u64) -> bool {
        self.limit.is_none_or(|limit| self.folios.held() + pages <= limit)
    }

    /// Whether a fault compacts and reclaims memory for a large page (`vma_thp_gfp_mask`).
    pub(super) fn compacts(&self, advice: Advice) -> bool {
        self.policy.compacts && advice == Advice::Huge
    }

    /// Whether a large page fits in memory. At the limit, only a fault that also compacts reclaims
    /// memory for the page (`try_charge_memcg`).
    pub(super) fn has_room(&mut self, order: u32, reclaims: bool) -> bool {
        if reclaims { self.make_room(1 << order) } else { self.fits(1 << order) }
    }

    /// Reclaim memory for this number of small pages. Returns whether they fit.
    pub(super) fn make_room(&mut self, pages: u64) -> bool {
        if self.fits(pages) {
            return true;
        }
        if let Some(limit) = self.limit.filter(|limit| *limit >= pages) {
            self.now += 1;
            self.wanted = reclaim::goal(pages, limit);
            reclaim::reclaim(self);
        }
        self.fits(pages)
    }

    /// Split a folio into small folios, and map the zero page for never written pages
    /// (`try_to_map_unused_to_zeropage`). Returns the small folios.
    fn split_folio(
        &mut self,
        Folio { order, cleared, area, key, .. }: Folio,
        entries: &[(u64, usize)],
    ) -> Vec<u32> {
        self.split(key);
        self.events.shrunk += 1;
        let free = self.free;
        let mut small = Vec::new();
        for &(_, at) in entries {
            let number = (key << HUGE) + at as u64;
            let block = self.table(number).block[at];
            let mut written = false;
            if block != NONE {
                self.shoot_down(block);
                let block = &mut self.blocks[block as usize];
                (block.order, written) = (0, block.written);
            }
            let new = if written { self.folios.new_folio(0, number, area) } else { UNCOUNTED };
            if let Some(folio) = self.folios.get_mut(new) {
                folio.cleared = cleared;
                small.push(new);
            }
            self.map(key, at, 1, new);
        }
        // The 2 MiB of the folio are not free contiguous memory: a part is still in use.
        if u32::from(order) == HUGE && !small.is_empty() {
            self.free = free;
        }
        small
    }

    /// The page-table entries of a folio, if it is large and mapped by one process only.
    fn unshared(&self, id: u32, folio: &Folio) -> Option<Vec<(u64, usize)>> {
        let entries = self.mappings(id, folio)?;
        let unshared = entries.iter().all(|(key, _)| *key == folio.key);
        (folio.order > 0 && unshared).then_some(entries)
    }

    /// All page-table entries (table, index) that map a folio; `None` if some are not found, as after a
    /// move.
    fn mappings(&self, id: u32, folio: &Folio) -> Option<Vec<(u64, usize)>> {
        let mut entries = Vec::new();
        // After a fork, other processes map the folio at the same address.
        let same = folio.key % (1 << SPACE);
        let others = (0..self.spaces).map(|space| space << SPACE | same);
        let others = others.filter(|key| *key != folio.key);
        for key in std::iter::once(folio.key).chain(others) {
            if entries.len() == folio.mapped as usize {
                break;
            }
            let Some(table) = self.tables.get(&key) else { continue };
            let at = usize::from(folio.at);
            let small = folio.order == 0 && table.folio[at] == id;
            let slots = if small { at..at + 1 } else { 0..RANGE };
            entries.extend(slots.filter(|at| table.folio[*at] == id).map(|at| (key, at)));
        }
        (entries.len() == folio.mapped as usize).then_some(entries)
    }

    /// The touched blocks of entries.
    fn touched<'a>(&'a self, entries: &'a [(u64, usize)]) -> impl Iterator<Item = &'a Block> {
        let block = move |(key, at): &(u64, usize)| {
            let block = self.tables.get(key)?.block[*at];
            self.blocks.get(block as usize)
        };
        entries.iter().filter_map(block)
    }

    /// Allocate and map a page of 4 KiB, above the limit if nothing can be reclaimed.
    pub(super) fn place_small(&mut self, number: u64) {
        self.make_room(1);
        let (folio, at) = (self.folios.new_folio(0, number, self.area), number as usize % RANGE);
        self.map(number >> HUGE, at, 1, folio);
        let block = self.table(number).block[at];
        if block != NONE {
            let block = &mut self.blocks[block as usize];
            (block.away, block.shared) = (false, false);
        }
    }

    /// Read a page from swap, or map the zero page for a dropped page.
    pub(super) fn swap_in(&mut self, number: u64) {
        let at = number as usize % RANGE;
        let table = self.table(number);
        let (folio, block) = (table.folio[at], table.block[at]);
        if block != NONE {
            self.blocks[block as usize].away = false;
        }
        if folio == SWAPPED {
            self.faults.swap_ins += 1;
            self.place_small(number);
        } else if folio == DROPPED {
            self.faults.maps += 1;
            self.map(number >> HUGE, at, 1, UNCOUNTED);
        }
    }
}

impl reclaim::Memory for Pages {
    fn lists(&mut self) -> &mut Lists {
        self.folios.limited.get_or_insert_default()
    }

    fn pages(&self, id: u32) -> u64 {
        self.folios.get(id).map_or(0, |folio| 1 << folio.order)
    }

    fn held(&self) -> u64 {
        self.folios.held()
    }

    fn is_over(&self) -> bool {
        !self.fits(self.wanted)
    }

    fn take_reference(&mut self, id: u32) -> bool {
        let Some(&folio) = self.folios.get(id) else { return false };
        let now = self.now;
        // A pinned block counts once per reclaim.
        let used =
            |block: &Block| block.used >= folio.cleared || block.pins > 0 && folio.cleared < now;
        let entries = self.mappings(id, &folio);
        // A folio whose entries are not found cannot be evicted.
        let referenced = entries.is_none_or(|entries| self.touched(&entries).any(used));
        if let (true, Some(folio)) = (referenced, self.folios.get_mut(id)) {
            folio.cleared = now;
        }
        referenced
    }

    fn evict(&mut self, id: u32) {
        let Some(&folio) = self.folios.get(id) else { return };
        if let Some(entries) = self.unshared(id, &folio).filter(|_| folio.is_partial()) {
            for small in self.split_folio(folio, &entries) {
                self.evict(small);
            }
            return;
        }
        let Some(entries) = self.mappings(id, &folio) else { return };
        // Pages that the program freed are dropped, not swapped out.
        let freed = self.touched(&entries).all(|block| block.lazy)
            && self.touched(&entries).next().is_some();
        if !freed {
            self.events.swap_outs += 1 << folio.order;
        }
        for (key, at) in entries {
            self.split(key);
            let block = self.table(key << HUGE).block[at];
            if block != NONE {
                self.shoot_down(block);
                let block = &mut self.blocks[block as usize];
                (block.order, block.away, block.written) = (0, true, block.written && !freed);
            }
            let dropped = if block == NONE { NONE } else { DROPPED };
            self.map(key, at, 1, if freed { dropped } else { SWAPPED });
        }
    }

    fn split_next(&mut self) {
        let Some(id) = self.folios.next_to_split() else { return };
        let Some(&folio) = self.folios.get(id) else { return };
        let Some(entries) = self.unshared(id, &folio) else { return };
        let written = self.touched(&entries).filter(|block| block.written).count();
        let zeros = (entries.len() - written) as u64;
        let underused = reclaim::underused(zeros, self.max_none);
        if folio.is_partial() || u32::from(folio.order) == HUGE && underused {
            self.split_folio(folio, &entries);
        }
    }
}
