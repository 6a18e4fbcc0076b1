//! Identifiers: pages of the program's address space, frames of the parking area, slots, children.

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// A page of the program's address space: its address divided by 4,096. A policy knows it by a
/// [`Page`](nearfar_kernel::tiering::Page) number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Va(u64);

impl Va {
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The page of this address.
    pub const fn of(address: u64) -> Self {
        Self(address / PAGE as u64)
    }

    pub const fn number(self) -> u64 {
        self.0
    }

    pub const fn address(self) -> u64 {
        self.0 * PAGE as u64
    }

    /// The page `pages` later.
    #[must_use]
    pub const fn plus(self, pages: u64) -> Self {
        Self(self.0 + pages)
    }
}

/// Pages from `from` to `to`, exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub from: Va,
    pub to: Va,
}

impl Range {
    pub const fn new(from: Va, to: Va) -> Self {
        Self { from, to }
    }

    /// The range of the same length that starts at `to`.
    pub const fn moved_to(self, to: Va) -> Self {
        Self { from: to, to: to.plus(self.pages()) }
    }

    pub fn contains(self, at: Va) -> bool {
        self.from <= at && at < self.to
    }

    /// Number of pages; 0 if `to` is before `from`.
    pub const fn pages(self) -> u64 {
        self.to.0.saturating_sub(self.from.0)
    }

    pub fn each(self) -> impl Iterator<Item = Va> {
        (self.from.0..self.to.0).map(Va)
    }
}

/// A place for one page frame in the parking area, which the program cannot reach
/// ([`Kernel`](crate::Kernel)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame(u32);

impl Frame {
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    pub const fn number(self) -> u32 {
        self.0
    }
}

/// A place in the far tier, which holds one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot(u32);

impl Slot {
    /// `number` is below `u32::MAX`: `world/page_table.rs` stores it plus one.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    pub const fn number(self) -> u32 {
        self.0
    }

    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A child of the program, made by fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child(u32);

impl Child {
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    pub const fn number(self) -> u32 {
        self.0
    }
}
