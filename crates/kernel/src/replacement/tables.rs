//! Page tables with the pages that were loaded: what they know is the same for all memories of a page size.
//!
//! A trace has none. A page lies where it was in its address space when it began, in a table of 512 pages
//! whatever their size.

use nearfar_hardware::table::{grow, prefetch};
use nearfar_trace::hash::PageMap;

use super::Shared;

/// log2 of the pages of a table.
const TABLE: u32 = 9;
/// The same of a part of one that is kept as a whole.
const PART: u32 = 6;

/// Pages that [`PageTables::around`] looks at.
pub const AROUND: usize = 1 << PART;

/// In the place of a page: it was loaded.
const LOADED: u64 = 1 << 63;

/// A table with a page that began.
#[derive(Clone, Debug, Default)]
struct Table {
    /// Pages in it that were ever loaded.
    loaded: u32,
    /// Its parts, each an index + 1; 0 where no page of the part was loaded.
    parts: [u32; 1 << (TABLE - PART)],
}

/// The places of a part of a table.
#[derive(Clone, Debug)]
struct Part {
    /// Those whose page was loaded, a bit each.
    loaded: u64,
    /// The page in each.
    pages: [u32; 1 << PART],
}

/// The tables.
#[derive(Clone, Debug, Default)]
pub struct PageTables {
    /// Where each page is: the index of its table, times 2^[`TABLE`], and its place there; [`LOADED`].
    places: Vec<u64>,
    table_at: PageMap<u32>,
    tables: Vec<Table>,
    parts: Vec<Part>,
}

impl PageTables {
    /// A page's table: tables count from 0.
    #[inline]
    pub fn table(&self, page: u32) -> u32 {
        (self.place_of(page) >> TABLE) as u32
    }

    #[inline]
    fn place_of(&self, page: u32) -> u64 {
        self.places[page as usize] & !LOADED
    }

    /// How many tables there are.
    #[inline]
    pub fn count(&self) -> usize {
        self.tables.len()
    }

    /// Pages in a table that were ever loaded.
    #[inline]
    pub fn loaded(&self, table: u32) -> u32 {
        self.tables[table as usize].loaded
    }

    /// Ask for the place of a page.
    #[inline]
    pub fn expect(&self, page: u32) {
        prefetch(&self.places, page as usize);
    }

    /// The pages that were loaded among the [`AROUND`] of its table that are around this one, and itself, if
    /// it was: `found` gets them in order, with their number as the answer. Of a table, the first or the last
    /// ones are around those at its ends.
    #[inline]
    pub fn around(&self, page: u32, found: &mut [u32; AROUND]) -> usize {
        let within = (self.place_of(page) % (1 << TABLE)) as usize;
        let from = within.saturating_sub(AROUND / 2).min((1 << TABLE) - AROUND);
        let mut count = 0;
        for part in from >> PART..=(from + AROUND - 1) >> PART {
            let begin = part << PART;
            let index = self.tables[self.table(page) as usize].parts[part];
            let Some(index) = index.checked_sub(1) else { continue };
            let Part { loaded, pages } = &self.parts[index as usize];
            let mut left = loaded & u64::MAX << from.saturating_sub(begin);
            left &= u64::MAX >> begin.saturating_sub(from);
            while left != 0 {
                found[count] = pages[left.trailing_zeros() as usize];
                left &= left - 1;
                count += 1;
            }
        }
        count
    }

    /// A page's table, the part of it that the page is in, and its place there.
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
        /// Pages begin at numbers of three tables, are loaded and end; each number holds the page that was
        /// loaded there last.
        #[test]
        fn tables_are_maps(steps in prop::collection::vec((0u32..300, 0u64..1536, 0u8..4), 1..1500)) {
            let mut tables = PageTables::default();
            // The number of each page that began, and whether it was loaded; the page at each number.
            let mut pages: BTreeMap<u32, (u64, bool)> = BTreeMap::new();
            let mut at: BTreeMap<u64, u32> = BTreeMap::new();
            for (page, number, what) in steps {
                match pages.get(&page).copied() {
                    None => {
                        tables.begin(page, number);
                        pages.insert(page, (number, false));
                    }
                    Some((number, _)) if what == 0 => {
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
                    let mut found = [0; AROUND];
                    let count = tables.around(page, &mut found);
                    prop_assert_eq!(&found[..count], &expected);
                }
            }
        }
    }
}
