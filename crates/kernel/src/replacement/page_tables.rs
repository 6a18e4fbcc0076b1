//! Page tables of loaded pages (resident at least once), shared by the simulated memories of a page size.
//!
//! A trace has no page tables. Here a page is in the table that covers the address of its first
//! reference; a table has 512 pages of any size.

use nearfar_hardware::table::{grow, prefetch};
use nearfar_trace::hash::PageMap;

use super::Shared;

/// log2 of the pages of a table.
const TABLE: u32 = 9;
/// log2 of the pages of a part of a table; parts are allocated on demand.
const PART: u32 = 6;

/// Pages that [`PageTables::around`] examines.
pub const AROUND: usize = 1 << PART;

/// Flag in [`PageTables::places`]: the page was loaded.
const LOADED: u64 = 1 << 63;

#[derive(Clone, Debug, Default)]
struct Table {
    loaded: u32,
    /// Index of each part plus one; 0 if no page of the part was loaded.
    parts: [u32; 1 << (TABLE - PART)],
}

#[derive(Clone, Debug)]
struct Part {
    /// Bit mask of the places with a loaded page.
    loaded: u64,
    pages: [u32; 1 << PART],
}

#[derive(Clone, Debug, Default)]
pub struct PageTables {
    /// By page: index of the table << [`TABLE`] | place in it, and [`LOADED`].
    places: Vec<u64>,
    table_at: PageMap<u32>,
    tables: Vec<Table>,
    parts: Vec<Part>,
}

impl PageTables {
    #[inline]
    pub fn table(&self, page: u32) -> u32 {
        (self.place_of(page) >> TABLE) as u32
    }

    #[inline]
    fn place_of(&self, page: u32) -> u64 {
        self.places[page as usize] & !LOADED
    }

    #[inline]
    pub fn count(&self) -> usize {
        self.tables.len()
    }

    /// Number of loaded pages of a table.
    #[inline]
    pub fn loaded(&self, table: u32) -> u32 {
        self.tables[table as usize].loaded
    }

    #[inline]
    pub fn prefetch(&self, page: u32) {
        prefetch(&self.places, page as usize);
    }

    /// Write the loaded pages among the [`AROUND`] places around `page`, within its table, to
    /// `neighbours`, in order, including `page`. Returns their number.
    #[inline]
    pub fn around(&self, page: u32, neighbours: &mut [u32; AROUND]) -> usize {
        let within = (self.place_of(page) % (1 << TABLE)) as usize;
        let from = within.saturating_sub(AROUND / 2).min((1 << TABLE) - AROUND);
        let mut count = 0;
        for part in from >> PART..=(from + AROUND - 1) >> PART {
            let begin = part << PART;
            let index = self.tables[self.table(page) as usize].parts[part];
            let Some(index) = index.checked_sub(1) else { continue };
            let Part { loaded, pages } = &self.parts[index as usize];
            // Only places from `from` to `from` + 63.
            let mut places = loaded & u64::MAX << from.saturating_sub(begin);
            places &= u64::MAX >> begin.saturating_sub(from);
            while places != 0 {
                neighbours[count] = pages[places.trailing_zeros() as usize];
                places &= places - 1;
                count += 1;
            }
        }
        count
    }

    /// A page's table and part, and its place in the part.
    fn place(&mut self, page: u32) -> (&mut Table, &mut Part, usize) {
        let place = self.place_of(page);
        let table = &mut self.tables[(place >> TABLE) as usize];
        let part = &mut table.parts[(place % (1 << TABLE) >> PART) as usize];
        if *part == 0 {
            self.parts.push(Part { loaded: 0, pages: [0; 1 << PART] });
            *part = self.parts.len() as u32;
        }
        let part = &mut self.parts[*part as usize - 1];
        (table, part, (place % (1 << PART)) as usize)
    }
}

impl Shared for PageTables {
    fn begin(&mut self, page: u32, number: u64) {
        grow(&mut self.places, page as usize + 1, 0);
        let next = self.tables.len() as u32;
        let table = *self.table_at.entry(number >> TABLE).or_insert(next);
        if table == next {
            self.tables.push(Table::default());
        }
        self.places[page as usize] = u64::from(table) << TABLE | number % (1 << TABLE);
    }

    fn load(&mut self, page: u32) {
        if self.places[page as usize] & LOADED != 0 {
            return;
        }
        self.places[page as usize] |= LOADED;
        let (table, part, place) = self.place(page);
        table.loaded += 1;
        part.loaded |= 1 << place;
        part.pages[place] = page;
    }

    fn end(&mut self, page: u32) {
        if self.places.get(page as usize).is_none_or(|place| place & LOADED == 0) {
            return;
        }
        let (table, part, place) = self.place(page);
        table.loaded -= 1;
        // Otherwise another page was loaded at the same address since.
        if part.pages[place] == page {
            part.loaded &= !(1 << place);
        }
        self.places[page as usize] = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Pages begin in three tables, are loaded, and end (action 0).
        #[test]
        fn tables_equal_a_map(steps in prop::collection::vec((0u32..300, 0u64..1536, 0u8..4), 1..1500)) {
            let mut tables = PageTables::default();
            // Number and loaded flag of each page; the page last loaded at each number.
            let mut pages: BTreeMap<u32, (u64, bool)> = BTreeMap::new();
            let mut at: BTreeMap<u64, u32> = BTreeMap::new();
            for (page, number, action) in steps {
                match pages.get(&page).copied() {
                    None => {
                        tables.begin(page, number);
                        pages.insert(page, (number, false));
                    }
                    Some((number, _)) if action == 0 => {
                        tables.end(page);
                        pages.remove(&page);
                        if at.get(&number) == Some(&page) {
                            at.remove(&number);
                        }
                    }
                    Some((number, loaded)) => {
                        tables.load(page);
                        pages.insert(page, (number, true));
                        if !loaded {
                            at.insert(number, page);
                        }
                    }
                }
                if let Some((number, _)) = pages.get(&page) {
                    let in_table = |other: &u64| other >> TABLE == number >> TABLE;
                    let loaded = pages.values().filter(|(other, loaded)| *loaded && in_table(other));
                    prop_assert_eq!(tables.loaded(tables.table(page)), loaded.count() as u32);
                    let first = number >> TABLE << TABLE;
                    let from = number.saturating_sub(32).clamp(first, first + 512 - 64);
                    let expected: Vec<u32> = at.range(from..from + 64).map(|(_, page)| *page).collect();
                    let mut neighbours = [0; AROUND];
                    let count = tables.around(page, &mut neighbours);
                    prop_assert_eq!(&neighbours[..count], &expected);
                }
            }
        }
    }
}
