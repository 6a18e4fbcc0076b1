//! Folios: the memory of pages, with the number of page-table entries that map it.

use nearfar_kernel::thp::HUGE;
use nearfar_kernel::thp::reclaim::Lists;

use crate::slot;

/// 2^`order` small pages that are allocated and freed together.
#[derive(Clone, Copy, Debug)]
pub struct Folio {
    pub order: u8,
    /// The folio is in [`Lists::to_split`].
    queued: bool,
    /// The huge zero page, which takes no memory.
    pub zero: bool,
    /// Offset in the 2 MiB range at allocation, in small pages.
    pub at: u16,
    /// Page-table entries of all processes that map a part of it; one for each 4 KiB.
    pub mapped: u32,
    /// Number of the last reclaim that found the folio referenced, and cleared its accessed bits.
    pub cleared: u32,
    /// Number of the area (a named part of the address space) that the folio was allocated for.
    pub area: u32,
    /// Number of the 2 MiB range in which the process that allocated the folio maps it.
    pub key: u64,
}

impl Folio {
    /// Whether a part of the folio is surely not mapped. If several processes map it, `mapped` can hide
    /// such a part.
    pub fn is_partial(&self) -> bool {
        self.mapped < 1 << self.order
    }
}

/// All folios, by id.
#[derive(Debug, Default)]
pub struct Folios {
    folios: Vec<Folio>,
    unused: Vec<u32>,
    held: u64,
    /// By area: small pages of mapped private memory, and how many of them are parts of larger pages.
    pub by_area: Vec<[u64; 2]>,
    /// Lists for reclaim, if memory is limited.
    pub limited: Option<Lists>,
}

impl Folios {
    pub fn new(limited: bool) -> Self {
        Self { limited: limited.then(Lists::default), ..Self::default() }
    }

    /// Memory of all folios, in small pages.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// The folio with this id; `None` for a constant such as [`super::NONE`].
    pub fn get(&self, folio: u32) -> Option<&Folio> {
        self.folios.get(folio as usize)
    }

    pub fn get_mut(&mut self, folio: u32) -> Option<&mut Folio> {
        self.folios.get_mut(folio as usize)
    }

    pub fn is_zero(&self, folio: u32) -> bool {
        self.get(folio).is_some_and(|folio| folio.zero)
    }

    /// Allocate an unmapped folio at page number `first`.
    pub fn new_folio(&mut self, order: u32, first: u64, area: u32) -> u32 {
        self.held += 1 << order;
        slot(&mut self.by_area, area); // grows `by_area`
        let id = self.add((order, false), first, area);
        if let Some(limited) = &mut self.limited {
            limited.folios.add(id);
            // Reclaim splits any huge page that is underused.
            if order == HUGE {
                self.queue(id);
            }
        }
        id
    }

    /// A folio for a mapping of the huge zero page.
    pub fn new_zero(&mut self, first: u64) -> u32 {
        self.add((HUGE, true), first, 0)
    }

    fn add(&mut self, (order, zero): (u32, bool), first: u64, area: u32) -> u32 {
        let (at, key) = ((first % (1 << HUGE)) as u16, first >> HUGE);
        let order = order as u8;
        let folio = Folio { order, queued: false, zero, at, mapped: 0, cleared: 0, area, key };
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

    /// Queue a folio that may have to be split (`deferred_split_folio`).
    fn queue(&mut self, id: u32) {
        let folio = &mut self.folios[id as usize];
        if let Some(limited) = &mut self.limited
            && !std::mem::replace(&mut folio.queued, true)
        {
            limited.to_split.add(id);
        }
    }

    /// Take a folio from [`Lists::to_split`].
    pub fn next_to_split(&mut self) -> Option<u32> {
        let id = self.limited.as_mut()?.to_split.pop()?;
        self.folios[id as usize].queued = false;
        Some(id)
    }

    /// Map small pages of a folio. Returns how many of them take memory.
    pub fn map(&mut self, folio: u32, pages: u32) -> u64 {
        let Some(folio) = self.folios.get_mut(folio as usize) else { return 0 };
        folio.mapped += pages;
        if folio.zero {
            return 0;
        }
        let pages = u64::from(pages);
        let [mapped, large] = &mut self.by_area[folio.area as usize];
        *mapped += pages;
        *large += if folio.order > 0 { pages } else { 0 };
        pages
    }

    /// Unmap a small page. A folio is freed with its last page; `free` counts free blocks of 2 MiB
    /// (`u64::MAX`: unlimited). Returns 1 if the page took memory, else 0.
    pub fn unmap(&mut self, id: u32, free: &mut u64) -> u64 {
        let Some(folio) = self.folios.get_mut(id as usize) else { return 0 };
        folio.mapped -= 1;
        let Folio { order, zero, mapped, area, .. } = *folio;
        if !zero {
            let [mapped, large] = &mut self.by_area[area as usize];
            *mapped -= 1;
            *large -= u64::from(order > 0);
        }
        if mapped > 0 {
            if order > 0 && !zero && folio.is_partial() {
                self.queue(id);
            }
            return u64::from(!zero);
        }
        if !zero {
            self.held -= 1 << order;
            if u32::from(order) == HUGE {
                *free = free.saturating_add(1);
            }
            if let Some(limited) = &mut self.limited {
                limited.folios.remove(id);
                if folio.queued {
                    limited.to_split.remove(id);
                }
            }
        }
        self.unused.push(id);
        u64::from(!zero)
    }
}
