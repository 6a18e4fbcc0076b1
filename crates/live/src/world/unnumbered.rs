//! Memory that moves to another address (`mremap`).
//!
//! If numbers run out, a moved page gets no page number at its new address: from then on it is not managed,
//! and belongs in the program's memory. The kernel has moved it if it was resident. A parked or stored page
//! is **unnumbered** until it is placed in the program's memory: on a touch, or as soon as userfaultfd accepts
//! requests (not while mappings change).

use nearfar_kernel::tiering::{NodeId, Page, Refused};

use super::page_table::{Entry, Location};
use super::{FAR_NODE, PageFlags, World};
use crate::{Frame, Kernel, Range, Slot, Va};

/// What holds the content of a page that is not in the program's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// A frame of the parking area, where the program cannot reach it.
    Parked(Frame),
    /// A slot of the far tier.
    Stored(Slot),
}

/// Maximum number of unnumbered pages that are placed in one turn.
const BATCH: usize = 256;

impl<K: Kernel> World<K> {
    /// Remove a page that moves from the page table, and free its shadow (the far copy of a fast page).
    pub(crate) fn take(&mut self, from: Page) -> Entry {
        self.end_copy(from);
        if !self.pages.state(from).is_far() && self.free_slot(from) {
            self.budget.uncharge(FAR_NODE);
        }
        if self.pages.state(from).has(PageFlags::STUCK) {
            self.window.stuck_count -= 1;
        }
        self.pages.set(from, PageFlags::ARMED | PageFlags::PASS_NEXT | PageFlags::STUCK, false);
        self.pages.remove(from)
    }

    /// Map a moved page under its new number.
    pub(crate) fn put(&mut self, to: Page, entry: Entry) {
        self.pages.insert(to, entry);
        if self.in_window(to) {
            self.window.pages.push_back(to);
        }
    }

    /// Record a moved page that gets no number at its new address.
    pub(crate) fn put_unnumbered(&mut self, at: Va, entry: Entry) {
        let Entry { state, frame, slot } = entry;
        self.budget.uncharge(state.node());
        if !self.far_is_mapped && state.is_far() && !state.is_stored() {
            self.window.count -= 1;
        }
        match (state.location(), slot) {
            (Some(Location::Parked), _) => {
                self.unnumbered.insert(at, Backing::Parked(frame));
            }
            (Some(Location::Stored), Some(slot)) => {
                self.unnumbered.insert(at, Backing::Stored(slot));
                return;
            }
            _ => {}
        }
        if let Some(slot) = slot {
            self.far.free(slot);
        }
    }

    fn take_unnumbered(&mut self, range: Range) -> Vec<(Va, Backing)> {
        let pages = self.unnumbered.range(range.from..range.to);
        let taken: Vec<_> = pages.map(|(at, backing)| (*at, *backing)).collect();
        for (at, _) in &taken {
            self.unnumbered.remove(at);
        }
        taken
    }

    /// Record that the program has moved `range` to `to`.
    pub(crate) fn move_unnumbered(&mut self, range: Range, to: Va) {
        let moved = self.take_unnumbered(range);
        let to = |at: Va| to.plus(at.number() - range.from.number());
        self.unnumbered.extend(moved.into_iter().map(|(at, backing)| (to(at), backing)));
    }

    /// Free the unnumbered pages in `range`, which the program has released.
    pub(crate) fn forget_unnumbered(&mut self, range: Range) {
        for (_, backing) in self.take_unnumbered(range) {
            match backing {
                Backing::Parked(frame) => self.release_frame(frame),
                Backing::Stored(slot) => self.far.free(slot),
            }
        }
    }

    /// Place an unnumbered page in the program's memory.
    pub(crate) fn place_unnumbered(&mut self, at: Va) -> Result<(), Refused> {
        let Some(backing) = self.unnumbered.get(&at).copied() else { return Err(Refused::State) };
        let placed = match backing {
            Backing::Parked(frame) => self.place_frame(frame, at, false, NodeId::FAST),
            Backing::Stored(_) => {
                self.read(backing)?;
                // Writable: the page is no longer managed.
                self.kernel.place(at, &self.buffer, false)
            }
        };
        placed.map_err(|fail| self.refused(fail, "placing a moved page", at))?;
        self.unnumbered.remove(&at);
        if let Backing::Stored(slot) = backing {
            self.far.free(slot);
            self.counters.far_loads += 1;
        }
        Ok(())
    }

    /// Place up to [`BATCH`] unnumbered pages in the program's memory. Returns whether any was placed.
    pub(crate) fn place_all_unnumbered(&mut self) -> bool {
        let waiting: Vec<_> = self.unnumbered.keys().copied().take(BATCH).collect();
        let placed = waiting
            .into_iter()
            .filter(|at| !self.event.again && self.place_unnumbered(*at).is_ok());
        placed.count() > 0
    }

    /// Read the content at `backing` into the buffer.
    pub(super) fn read(&mut self, backing: Backing) -> Result<(), Refused> {
        match backing {
            Backing::Parked(frame) => self.buffer.copy_from_slice(self.kernel.frame(frame)),
            Backing::Stored(slot) => {
                let loaded = self.far.load(slot, &mut self.buffer);
                loaded.map_err(|fault| self.far_failed(&fault))?;
            }
        }
        Ok(())
    }
}
