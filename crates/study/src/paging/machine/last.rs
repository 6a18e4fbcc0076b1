//! The most recently used pages of a thread.

/// A 4 KiB page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Page {
    pub number: u64,
    /// Id of its block: see [`super::touches::Touch::block`].
    pub block: u32,
    /// Cache line of its page-table entry: see [`super::touches::Touch::line`].
    pub line: u32,
    /// Whether writes leave the state of the page unchanged.
    pub settled: bool,
}

/// Sentinel: no page.
pub const NO_PAGE: Page = Page { number: u64::MAX, block: 0, line: 0, settled: true };

/// Size of the direct-mapped table of positions.
const HINTS: usize = 256;

/// The most recently used 4 KiB pages of a thread, which leave in LRU order: at most as many as the first
/// TLB level has entries for small pages or for large pages, whichever are fewer, so that this level contains
/// them at any page size.
#[derive(Clone)]
pub struct Last {
    /// Pages with the time of their last use; 0 for none.
    pages: Vec<(Page, u64)>,
    /// Index in `pages` by hash of the page number; may be stale.
    hints: [u16; HINTS],
    /// Number of pages by hash.
    counts: [u16; HINTS],
}

/// Result of [`Last::put`].
#[derive(Debug, PartialEq)]
pub enum Put {
    /// The page was among the last.
    Known,
    /// The page is new and replaces this one, if any.
    New(Option<Page>),
}

impl Last {
    /// Empty, for `entries` pages.
    pub fn new(entries: usize) -> Self {
        Self { pages: vec![(NO_PAGE, 0); entries], hints: [0; HINTS], counts: [0; HINTS] }
    }

    /// The hinted page, which may have another number, and the time of its last use.
    #[inline]
    pub fn hinted(&mut self, number: u64) -> (&Page, &mut u64) {
        let (page, used) = &mut self.pages[usize::from(self.hints[number as usize % HINTS])];
        (page, used)
    }

    /// Look up a page; `now` becomes the time of its last use.
    #[inline]
    pub fn find(&mut self, number: u64, now: u64) -> Option<Page> {
        let hash = number as usize % HINTS;
        let hint = &mut self.hints[hash];
        let mut index = usize::from(*hint);
        if self.pages[index].0.number != number {
            if self.counts[hash] == 0 {
                return None;
            }
            index = self.pages.iter().position(|(page, _)| page.number == number)?;
            *hint = index as u16;
        }
        let (page, used) = &mut self.pages[index];
        *used = now;
        Some(*page)
    }

    pub fn put(&mut self, page: Page, now: u64) -> Put {
        if self.find(page.number, now).is_some() {
            let index = usize::from(self.hints[page.number as usize % HINTS]);
            self.pages[index].0 = page;
            return Put::Known;
        }
        let oldest = self.pages.iter().enumerate().min_by_key(|(_, (_, used))| *used);
        let index = oldest.map_or(0, |(index, _)| index);
        let (old, used) = std::mem::replace(&mut self.pages[index], (page, now));
        let hash = page.number as usize % HINTS;
        self.hints[hash] = index as u16;
        self.counts[hash] += 1;
        if used > 0 {
            self.counts[old.number as usize % HINTS] -= 1;
        }
        Put::New((used > 0).then_some(old))
    }

    /// Remove all pages, least recently used first.
    pub fn take(&mut self) -> impl Iterator<Item = Page> + use<> {
        let mut pages: Vec<(Page, u64)> =
            self.pages.iter().copied().filter(|(_, used)| *used > 0).collect();
        pages.sort_by_key(|(_, used)| *used);
        self.pages.fill((NO_PAGE, 0));
        self.counts.fill(0);
        pages.into_iter().map(|(page, _)| page)
    }
}
