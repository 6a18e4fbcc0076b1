//! The page table: location, node, flags, frame and slot of each page.

use std::ops::BitOr;

use nearfar_kernel::tiering::{NodeId, Page};

use super::FAR_NODE;
use crate::{Frame, Slot};

/// Where a page's content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// In the program's memory.
    Resident = 1,
    /// In a frame of the parking area, which the program cannot reach.
    Parked = 2,
    /// Only in its slot of the far tier.
    Stored = 3,
}

/// Properties of a mapped page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageFlags(u16);

impl PageFlags {
    /// The next reference to the parked page is a hint fault.
    pub(crate) const ARMED: Self = Self(1 << 3);
    /// Referenced since the flag was cleared.
    pub(crate) const ACCESSED: Self = Self(1 << 4);
    /// The next write calls the policy's `write_fault`.
    pub(crate) const PROTECTED: Self = Self(1 << 5);
    /// Stored, and the next reference is let through without a hint fault.
    pub(crate) const PASS_NEXT: Self = Self(1 << 6);
    /// In the window (far pages in the program's memory), and could not be evicted.
    pub(crate) const STUCK: Self = Self(1 << 7);
    /// Being copied, from `begin_copy` to `commit_copy`.
    pub(crate) const COPYING: Self = Self(1 << 8);
    /// Written since `begin_copy`.
    pub(crate) const WRITTEN: Self = Self(1 << 9);
}

impl BitOr for PageFlags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A page's location, node and flags. All bits of an unmapped page are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageState(u16);

impl PageState {
    const LOCATION: u16 = 0b11;
    const FAR: u16 = 1 << 2;

    /// `None` if the page is not mapped.
    pub(crate) fn location(self) -> Option<Location> {
        match self.0 & Self::LOCATION {
            1 => Some(Location::Resident),
            2 => Some(Location::Parked),
            3 => Some(Location::Stored),
            _ => None,
        }
    }

    pub(crate) fn is_mapped(self) -> bool {
        self.location().is_some()
    }

    pub(crate) fn is_resident(self) -> bool {
        self.location() == Some(Location::Resident)
    }

    pub(crate) fn is_parked(self) -> bool {
        self.location() == Some(Location::Parked)
    }

    pub(crate) fn is_stored(self) -> bool {
        self.location() == Some(Location::Stored)
    }

    /// Mapped, and on the far tier's node.
    pub(crate) fn is_far(self) -> bool {
        self.0 & Self::FAR != 0
    }

    pub(crate) fn node(self) -> NodeId {
        if self.is_far() { FAR_NODE } else { NodeId::FAST }
    }

    /// Whether it has all of these flags.
    pub(crate) fn has(self, flags: PageFlags) -> bool {
        self.0 & flags.0 == flags.0
    }
}

/// A page's entry, while the page moves to another address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(super) state: PageState,
    pub(super) frame: Frame,
    pub(super) slot: Option<Slot>,
}

/// All pages, by number. The vectors start as zeros, so they take memory only where numbers are used.
pub(crate) struct PageTable {
    states: Vec<u16>,
    /// The frame of a parked page.
    frames: Vec<u32>,
    /// The slot plus one; 0 for none. If the far tier is a memory node, the frame of the page's shadow (its
    /// copy there) serves as the slot.
    slots: Vec<u32>,
}

impl PageTable {
    pub(super) fn new(pages: usize) -> Self {
        Self { states: vec![0; pages], frames: vec![0; pages], slots: vec![0; pages] }
    }

    pub(crate) fn state(&self, page: Page) -> PageState {
        PageState(self.states.get(page.index()).copied().unwrap_or(0))
    }

    /// The first mapped page from `from` on, below `end`.
    pub(super) fn next_mapped(&self, from: Page, end: u32) -> Option<Page> {
        let rest = self.states.get(from.index()..end as usize)?;
        let next = rest.iter().position(|state| PageState(*state).is_mapped())?;
        Some(from.skip(next as u32))
    }

    pub(crate) fn set(&mut self, page: Page, flags: PageFlags, on: bool) {
        let state = &mut self.states[page.index()];
        if on { *state |= flags.0 } else { *state &= !flags.0 }
    }

    pub(super) fn set_node(&mut self, page: Page, node: NodeId) {
        self.set(page, PageFlags(PageState::FAR), node != NodeId::FAST);
    }

    fn set_location(&mut self, page: Page, location: Location) {
        let state = &mut self.states[page.index()];
        *state = *state & !PageState::LOCATION | location as u16;
    }

    // --- transitions

    /// Map a new resident page on the fast node.
    pub(super) fn map(&mut self, page: Page) {
        self.states[page.index()] = Location::Resident as u16;
    }

    /// Unmap a page, which must have no slot.
    pub(super) fn unmap(&mut self, page: Page) {
        debug_assert_eq!(self.slot(page), None);
        self.states[page.index()] = 0;
    }

    /// Move a resident page to this frame of the parking area.
    pub(super) fn park(&mut self, page: Page, frame: Frame) {
        debug_assert!(self.state(page).is_resident());
        self.set_location(page, Location::Parked);
        self.set_frame(page, frame);
    }

    /// Move a parked or stored page to the program's memory.
    pub(super) fn make_resident(&mut self, page: Page) {
        debug_assert!(self.state(page).is_parked() || self.state(page).is_stored());
        self.set_location(page, Location::Resident);
    }

    /// Move a parked page to its slot, which has its content.
    pub(super) fn make_stored(&mut self, page: Page) {
        debug_assert!(self.state(page).is_parked() && self.slot(page).is_some());
        self.set_location(page, Location::Stored);
    }

    /// Unmap a page, to [`insert`](Self::insert) its entry elsewhere.
    pub(super) fn remove(&mut self, page: Page) -> Entry {
        let entry =
            Entry { state: self.state(page), frame: self.frame(page), slot: self.take_slot(page) };
        self.unmap(page);
        entry
    }

    pub(super) fn insert(&mut self, page: Page, entry: Entry) {
        self.states[page.index()] = entry.state.0;
        self.set_frame(page, entry.frame);
        self.slots[page.index()] = entry.slot.map_or(0, |slot| slot.number() + 1);
    }

    // --- frames and slots

    pub(crate) fn frame(&self, page: Page) -> Frame {
        Frame::new(self.frames[page.index()])
    }

    pub(super) fn set_frame(&mut self, page: Page, frame: Frame) {
        self.frames[page.index()] = frame.number();
    }

    /// The slot of a far page or of a fast page's shadow; `None` if it has none.
    pub(crate) fn slot(&self, page: Page) -> Option<Slot> {
        self.slots.get(page.index())?.checked_sub(1).map(Slot::new)
    }

    pub(super) fn set_slot(&mut self, page: Page, slot: Slot) {
        self.slots[page.index()] = slot.number() + 1;
    }

    /// Remove the page's slot; the caller frees it.
    pub(super) fn take_slot(&mut self, page: Page) -> Option<Slot> {
        let slot = self.slot(page)?;
        self.slots[page.index()] = 0;
        Some(slot)
    }
}
