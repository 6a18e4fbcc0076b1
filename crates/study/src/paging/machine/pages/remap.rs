//! Pages that end, move, are copied by a fork, or are merged. A block is a touched 4 KiB page.

use nearfar_kernel::thp::khugepaged;
use nearfar_kernel::thp::{Advice, HUGE};

use super::super::SMALL;
use super::folios::Folio;
use super::{Block, NONE, Pages, RANGE, SWAPPED, Table, UNCOUNTED, shoot_down};
use crate::lifetimes::SPACE_SHIFT;

impl Pages {
    /// The keys (page number >> [`HUGE`]) of the tables in a range of pages.
    fn keys(&self, (first, last): (u64, u64)) -> Vec<u64> {
        self.tables.range(first >> HUGE..=last >> HUGE).map(|(key, _)| *key).collect()
    }

    /// The indices of a table that lie in a range, and whether the range covers the table.
    fn part(key: u64, (first, last): (u64, u64)) -> (std::ops::Range<usize>, bool) {
        let start = key << HUGE;
        let from = first.max(start) - start;
        let to = last.min(start + RANGE as u64 - 1) - start + 1;
        (from as usize..to as usize, to - from == RANGE as u64)
    }

    /// Drop the pages of a range. `kept`: its virtual mapping stays (`MADV_DONTNEED`).
    pub(super) fn end(&mut self, range: (u64, u64), kept: bool) {
        for key in self.keys(range) {
            let (part, whole) = Self::part(key, range);
            if !whole {
                self.split(key);
            }
            let Some(table) = self.tables.get_mut(&key) else { continue };
            let is_huge = table.huge;
            for at in part {
                let folio = std::mem::replace(&mut table.folio[at], NONE);
                let block = std::mem::replace(&mut table.block[at], NONE);
                self.mapped -= self.folios.unmap(folio, &mut self.free);
                if is_huge && at == 0 {
                    self.huge -= u64::from(!self.folios.is_zero(folio));
                }
                if block != NONE {
                    let ended = std::mem::take(&mut self.blocks[block as usize]);
                    shoot_down(ended, &mut self.removed);
                }
            }
            // Free a page table with its whole range, or if an unmap empties it (`free_pgtables`).
            if whole || !kept && table.folio.iter().all(|folio| *folio == NONE) {
                self.tables.remove(&key);
            }
        }
    }

    /// `MADV_FREE`: the memory stays until the kernel needs it. A partly freed huge page is split
    /// (`madvise_free_huge_pmd`).
    pub(super) fn lazily_freed(&mut self, blocks: &[u32]) {
        for &block in blocks {
            self.shoot_down(block);
            self.blocks[block as usize].lazy = true;
        }
        let key = |block: &u32| self.blocks[*block as usize].number >> HUGE;
        let groups: Vec<(u64, usize)> = blocks
            .chunk_by(|one, next| key(one) == key(next))
            .map(|some| (key(&some[0]), some.len()))
            .collect();
        for (key, freed) in groups {
            let table = self.table(key << HUGE);
            let touched = table.block.iter().filter(|block| **block != NONE).count();
            if freed < touched {
                self.split(key);
            }
        }
    }

    pub(super) fn fork(&mut self, blocks: &[(u32, u32, u64)]) {
        for &(block, copy, number) in blocks {
            self.shoot_down(block);
            let parent = self.blocks[block as usize];
            let (from, to) = (parent.number >> HUGE, number >> HUGE);
            if !self.tables.contains_key(&to) {
                self.fork_table(from, to);
            }
            let at = number as usize % RANGE;
            self.table(number).block[at] = copy;
            let folio = self.table(number).folio[at];
            // A zero page is not marked: the next write replaces it anyway.
            let shared = folio != UNCOUNTED && !self.folios.is_zero(folio);
            if folio == NONE {
                self.map(to, at, 1, UNCOUNTED);
            }
            self.blocks[block as usize].shared = shared;
            *self.block(copy) = Block { number, shared, ..parent };
        }
    }

    /// Copy a page table for a child, without file pages.
    fn fork_table(&mut self, from: u64, to: u64) {
        let space = |key: u64| key >> (SPACE_SHIFT - SMALL - HUGE);
        self.spaces = self.spaces.max(space(from.max(to)) + 1);
        let mut child = Table::new();
        if let Some(parent) = self.tables.get_mut(&from) {
            parent.forked = true;
            (child.huge, child.forked) = (parent.huge, true);
            for (at, &folio) in parent.folio.iter().enumerate() {
                if folio != NONE && folio != UNCOUNTED {
                    child.folio[at] = folio;
                    self.mapped += self.folios.map(folio, 1);
                }
            }
            let is_huge = child.huge && !self.folios.is_zero(child.folio[0]);
            self.huge += u64::from(is_huge);
        }
        self.tables.insert(to, child);
    }

    /// Move the pages of a range `by` pages (modulo 2^64, in one address space).
    pub(super) fn move_by(&mut self, range: (u64, u64), by: u64) {
        for key in self.keys(range) {
            let (part, whole) = Self::part(key, range);
            let start = key << HUGE;
            let Some(table) = self.tables.get(&key) else { continue };
            for &block in table.block[part.clone()].iter().filter(|block| **block != NONE) {
                let Block { number, order, .. } = self.blocks[block as usize];
                self.removed.push((number, order));
            }
            if whole && by.is_multiple_of(RANGE as u64) {
                let Some(table) = self.tables.remove(&key) else { continue };
                let to = moved(start, by);
                for (at, (&block, &folio)) in table.block.iter().zip(&table.folio).enumerate() {
                    if block != NONE {
                        self.blocks[block as usize].number = to + at as u64;
                    }
                    self.update_key(folio, (key, to >> HUGE));
                }
                self.tables.insert(to >> HUGE, table);
                continue;
            }
            self.split(key);
            for at in part {
                let Some(table) = self.tables.get_mut(&key) else { break };
                let folio = std::mem::replace(&mut table.folio[at], NONE);
                let block = std::mem::replace(&mut table.block[at], NONE);
                let to = moved(start + at as u64, by);
                if folio != NONE {
                    let table = self.table(to);
                    table.folio[to as usize % RANGE] = folio;
                    self.update_key(folio, (key, to >> HUGE));
                }
                if block != NONE {
                    self.enter(block, to);
                }
            }
            let empty = |table: &Table| table.folio.iter().all(|folio| *folio == NONE);
            if self.tables.get(&key).is_some_and(|table| empty(table)) {
                self.tables.remove(&key);
            }
        }
    }

    /// Update a folio's key after one of its pages moved to another range of 2 MiB.
    fn update_key(&mut self, folio: u32, (from, to): (u64, u64)) {
        if let Some(folio) = self.folios.get_mut(folio).filter(|folio| folio.key == from) {
            folio.key = to;
        }
    }

    /// `MADV_COLLAPSE`: merge regardless of khugepaged's limits, except where huge pages are forbidden.
    pub(super) fn collapse(&mut self, first: u64, last: u64) {
        for key in self.keys((first, last)) {
            let fits = |(from, to, advice)| {
                from <= key << HUGE
                    && (key << HUGE) + (RANGE as u64) - 1 <= to
                    && advice != Advice::NoHuge
            };
            let inside = Self::part(key, (first, last)).1;
            if inside && self.areas.at_or_after(key << HUGE).is_some_and(fits) {
                self.merge(key, &khugepaged::Rules::FORCED);
            }
        }
    }

    /// Merge the pages of a range, if the rules allow it (`collapse_huge_page`).
    fn merge(&mut self, key: u64, rules: &khugepaged::Rules) {
        // Making room may evict pages of the range, so the rules are checked again below.
        if !rules.merges(self.range_at(key)) || !self.make_room(RANGE as u64) {
            return;
        }
        let range = self.range_at(key);
        let Some(table) = self.tables.get(&key).filter(|_| rules.merges(range)) else { return };
        let blocks = table.block;
        let area = table.folio.iter().find_map(|folio| Some(self.folios.get(*folio)?.area));
        for block in blocks.into_iter().filter(|block| *block != NONE) {
            self.shoot_down(block);
        }
        self.events.merges += 1;
        self.events.merge_swap_ins += range.swapped;
        let folio = self.folios.new_folio(HUGE, key << HUGE, area.unwrap_or_default());
        self.map_huge(key, folio);
    }

    /// The mappings of a range of 2 MiB.
    fn range_at(&self, key: u64) -> khugepaged::Range {
        let Some(table) = self.tables.get(&key) else { return khugepaged::Range::default() };
        let mut range = khugepaged::Range { huge: table.huge, ..Default::default() };
        for &folio in &table.folio {
            range.swapped += u64::from(folio == SWAPPED);
            if let Some(Folio { order, mapped, zero: false, .. }) = self.folios.get(folio) {
                range.mapped += 1;
                range.shared += u64::from(table.forked && *mapped > 1 << order);
            }
        }
        range
    }
}

/// The new number of a page that moves by `by` pages (modulo 2^64) in its address space.
pub(super) fn moved(number: u64, by: u64) -> u64 {
    use crate::lifetimes::address;
    let addr = address(number << SMALL);
    let space = number >> (SPACE_SHIFT - SMALL);
    let to = (addr >> SMALL).wrapping_add(by) & ((1 << (SPACE_SHIFT - SMALL)) - 1);
    space << (SPACE_SHIFT - SMALL) | to
}

impl khugepaged::Memory for Pages {
    fn area(&self, from: u64) -> Option<(u64, u64, Advice)> {
        self.areas.at_or_after(from)
    }

    fn has_huge(&self, advice: Advice) -> bool {
        self.policy.allows(HUGE, advice)
    }

    fn scan(&mut self, first: u64, rules: &khugepaged::Rules) {
        self.merge(first >> HUGE, rules);
    }
}
