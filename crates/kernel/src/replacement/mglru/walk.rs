//! Aging: walks of the page tables, and the look at a page's neighbours.

use super::{
    ANON, AccessBits, DENSITY, FILE, GENERATION, GENERATIONS, Generations, ISOLATED, REFERENCED,
    slot,
};
use crate::replacement::page_tables::{AROUND, PageTables};

impl Generations {
    /// `walk_pte_range` for one referenced page.
    #[inline]
    fn walk(&mut self, page: u32, tables: &PageTables, bits: &mut impl AccessBits) {
        let index = tables.table(page);
        let table = &mut self.tables[index as usize];
        if self.walks == 0 || table.next_walk == self.walks {
            if table.young == 0 {
                self.young_tables.push(index);
            }
            table.young += 1;
            bits.clear(page);
            self.rejuvenate(page);
        }
    }

    /// `try_to_inc_max_seq`: walk the page tables and start a generation.
    pub(super) fn age(&mut self, swappiness: u64, tables: &PageTables, bits: &mut impl AccessBits) {
        // With swappiness 0, only file pages are walked.
        let first = usize::from(swappiness == 0);
        // Walk the lists instead of the page tables: the order of the walk has no effect.
        for generation in 0..GENERATIONS as usize {
            for kind in first..2 {
                for place in 0..self.lists[generation][kind].places() {
                    let list = &self.lists[generation][kind];
                    if let Some(page) = self.pages.prefetch_after(list, place, bits) {
                        tables.prefetch(page);
                    }
                    if let Some(page) = list.at(place).filter(|&page| bits.test(page)) {
                        self.walk(page, tables, bits);
                    }
                }
            }
        }
        self.walks += 1;
        for index in self.young_tables.drain(..) {
            let table = &mut self.tables[index as usize];
            if std::mem::take(&mut table.young) * DENSITY >= tables.loaded(index) {
                table.next_walk = self.walks;
            }
        }
        if self.generations(ANON) == GENERATIONS {
            // With swappiness 0 only: the new generation takes the slot of the oldest, and its pages.
            self.set_min_seq(ANON, self.min_seq[ANON] + 1);
        }
        self.max_seq += 1;
    }

    /// `lru_gen_look_around`.
    pub(super) fn look_around(
        &mut self,
        page: u32,
        tables: &PageTables,
        bits: &mut impl AccessBits,
    ) {
        bits.clear(page);
        let of_file = self.pages[page] & FILE != 0;
        let (mut around, mut referenced) = ([0; AROUND], [0; AROUND]);
        let total = tables.around(page, &mut around);
        // Branch-free, so that the loads of all bits overlap.
        let mut count = 0;
        for &near in &around[..total] {
            referenced[count] = near;
            count += usize::from(bits.test(near));
        }
        let referenced = &referenced[..count];
        referenced.iter().for_each(|&near| self.pages.prefetch(near));
        // `page` itself.
        let mut young = 1;
        for &near in referenced {
            let flags = self.pages[near];
            // Around a file page, the kernel skips anonymous pages (`can_swap` of `get_pfn_folio`).
            if of_file && flags & FILE == 0 {
                continue;
            }
            bits.clear(near);
            young += 1;
            if flags & ISOLATED != 0 {
                self.pages[near] |= REFERENCED;
            } else if (flags & GENERATION) as usize != slot(self.max_seq) {
                self.remove(near);
                self.push(near, slot(self.max_seq));
            }
        }
        if young * DENSITY as usize >= total {
            self.tables[tables.table(page) as usize].next_walk = self.walks;
        }
    }
}
