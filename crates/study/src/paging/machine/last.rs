//! The last pages of a thread.

/// A 4 KiB page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Page {
    pub number: u64,
    pub block: u32,
    /// The line of the page table that has its entry: see [`super::touches::Touch::line`].
    pub line: u32,
    /// Writes to it change nothing.
    pub settled: bool,
}

/// None.
pub const NO_PAGE: Page = Page { number: u64::MAX, block: 0, line: 0, settled: true };

/// Where a page is expected, by some bits of its number.
const HINTS: usize = 256;

/// The 4 KiB pages that a thread used last, as many as the smallest first level of a TLB has entries. They
/// are the last pages of any size, too, so each first level has them. What its order is among others
/// follows from the order in which pages leave here, which is that of their last uses.
#[derive(Clone)]
pub struct Last {
    /// When each was used.
    pages: Vec<(Page, u64)>,
    hints: [u16; HINTS],
}

/// What became of a page that was put among the last.
#[derive(Debug, PartialEq)]
pub enum Put {
    /// It was one of them.
    Known,
    /// It is new, and this one had to leave.
    New(Option<Page>),
}

impl Last {
    /// Room for so many, none of which is there.
    pub fn new(entries: usize) -> Self {
        Self { pages: vec![(NO_PAGE, 0); entries], hints: [0; HINTS] }
    }

    /// Use a page, if it is one of them.
    #[inline]
    pub fn find(&mut self, number: u64, now: u64) -> Option<Page> {
        let hint = &mut self.hints[number as usize % HINTS];
        let mut place = usize::from(*hint);
        if self.pages[place].0.number != number {
            place = self.pages.iter().position(|(page, _)| page.number == number)?;
            *hint = place as u16;
        }
        let (page, used) = &mut self.pages[place];
        *used = now;
        Some(*page)
    }

    /// Use a page, which may be another than it was.
    pub fn put(&mut self, page: Page, now: u64) -> Put {
        if self.find(page.number, now).is_some() {
            let place = usize::from(self.hints[page.number as usize % HINTS]);
            self.pages[place].0 = page;
            return Put::Known;
        }
        let oldest = self.pages.iter().enumerate().min_by_key(|(_, (_, used))| *used);
        let place = oldest.map_or(0, |(place, _)| place);
        let (old, used) = std::mem::replace(&mut self.pages[place], (page, now));
        self.hints[page.number as usize % HINTS] = place as u16;
        Put::New((used > 0).then_some(old))
    }

    /// Take all of them out, the one used longest ago first.
    pub fn take(&mut self) -> impl Iterator<Item = Page> + use<> {
        let mut pages: Vec<(Page, u64)> =
            self.pages.iter().copied().filter(|(_, used)| *used > 0).collect();
        pages.sort_by_key(|(_, used)| *used);
        self.pages.fill((NO_PAGE, 0));
        pages.into_iter().map(|(page, _)| page)
    }
}
