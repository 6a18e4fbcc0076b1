//! Blocks of a program's accesses, and of the ends of pages and translations between these accesses.

use nearfar_kernel::tiering::Page;

/// An access to a base page: its number, and whether it stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(u32);

impl Access {
    /// Maximum number of pages: 31 bits minus one reserved number.
    pub const MAX_PAGES: u32 = (1 << 31) - 1;
    /// The kernel's zero page, shared by all memory that was never written. It is in the fastest
    /// node, and policies do not see it.
    pub const ZEROS: Page = Page::new(Self::MAX_PAGES);

    /// An access to `page`, below [`MAX_PAGES`](Access::MAX_PAGES) or [`ZEROS`](Access::ZEROS).
    #[inline]
    pub const fn new(page: u32, write: bool) -> Self {
        Self(page << 1 | write as u32)
    }

    #[inline]
    pub const fn page(self) -> Page {
        Page::new(self.0 >> 1)
    }

    /// Whether it stores.
    #[inline]
    pub const fn write(self) -> bool {
        self.0 & 1 == 1
    }

    /// This access with `first` added to its page number, except for the zero page.
    #[inline]
    pub fn shifted(self, first: u32) -> Self {
        match self.page() {
            Self::ZEROS => self,
            page => Self::new(page.number() + first, self.write()),
        }
    }
}

/// The end of pages, which are freed, or of a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Free a page; its number may be reused.
    Page(Page),
    /// Remove the TLB entries of a page whose mapping changed (`munmap`, `fork`, ...); the page stays.
    Translation(Page),
    /// Free all mapped pages of a range: first page and count.
    Pages(Page, u32),
}

impl End {
    /// This end with `first` added to its page number.
    pub fn shifted(self, first: u32) -> Self {
        match self {
            End::Page(page) => End::Page(page.skip(first)),
            End::Translation(page) => End::Translation(page.skip(first)),
            End::Pages(page, count) => End::Pages(page.skip(first), count),
        }
    }
}

/// Accesses, and the [`End`]s between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    pub accesses: Vec<Access>,
    /// Ends, each with the index of the access that follows it, in order.
    pub ends: Vec<(usize, End)>,
}

impl Block {
    pub fn clear(&mut self) {
        self.accesses.clear();
        self.ends.clear();
    }

    /// Move the page numbers so that the program's first page is `first`.
    pub fn shift(&mut self, first: u32) {
        if first > 0 {
            self.accesses.iter_mut().for_each(|access| *access = access.shifted(first));
            self.ends.iter_mut().for_each(|(_, end)| *end = end.shifted(first));
        }
    }
}
