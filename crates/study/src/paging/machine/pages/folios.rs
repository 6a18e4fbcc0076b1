//! Folios: the memory of pages, with the number of page-table entries that map it.

use nearfar_kernel::thp::HUGE;

use super::{NONE, OTHER};

/// 2^`order` small pages that are allocated and freed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Folio {
    pub order: u8,
    /// Page-table entries of all processes that map a part of it; one for each 4 KiB.
    pub mapped: u32,
    /// The huge zero page, which takes no memory.
    pub zero: bool,
    /// Where in a range of 2 MiB it was allocated.
    pub at: u16,
}

/// All folios, by id.
#[derive(Debug, Default)]
pub struct Folios {
    folios: Vec<Folio>,
    unused: Vec<u32>,
    held: u64,
}

impl Folios {
    /// Memory of all folios, in small pages.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// The folio with this id, if it is one.
    pub fn get(&self, folio: u32) -> Option<&Folio> {
        self.folios.get(folio as usize)
    }

    /// Whether it is the huge zero page.
    pub fn is_zero(&self, folio: u32) -> bool {
        self.get(folio).is_some_and(|folio| folio.zero)
    }

    /// Allocate a folio, which nothing maps yet.
    pub fn new_folio(&mut self, order: u32, first: u64) -> u32 {
        self.held += 1 << order;
        let at = (first % (1 << HUGE)) as u16;
        self.add(Folio { order: order as u8, mapped: 0, zero: false, at })
    }

    /// A mapping of the huge zero page.
    pub fn new_zero(&mut self) -> u32 {
        self.add(Folio { order: HUGE as u8, mapped: 0, zero: true, at: 0 })
    }

    fn add(&mut self, folio: Folio) -> u32 {
        match self.unused.pop() {
            Some(id) => {
                self.folios[id as usize] = folio;
                id
            }
            None => {
                self.folios.push(folio);
                self.folios.len() as u32 - 1
            }
        }
    }

    /// Map some pages of a folio. Returns how many small pages of memory they are.
    pub fn map(&mut self, folio: u32, pages: u32) -> u64 {
        let Some(folio) = self.folios.get_mut(folio as usize) else { return 0 };
        folio.mapped += pages;
        if folio.zero { 0 } else { u64::from(pages) }
    }

    /// Unmap one page. The memory of a folio is freed with its last page; `free` counts free blocks of
    /// 2 MiB. Returns how many small pages of memory were unmapped.
    pub fn unmap(&mut self, id: u32, free: &mut u64) -> u64 {
        if id == NONE || id == OTHER {
            return 0;
        }
        let folio = &mut self.folios[id as usize];
        let Folio { order, zero, .. } = *folio;
        folio.mapped -= 1;
        if folio.mapped == 0 {
            if !zero {
                self.held -= 1 << order;
                if u32::from(order) == HUGE {
                    *free = free.saturating_add(1);
                }
            }
            self.unused.push(id);
        }
        u64::from(!zero)
    }
}
