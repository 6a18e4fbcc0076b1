//! The parking area, where neither the program nor a device can reach a page frame (`world.rs`). Each of its
//! places holds one frame or none ([`Frame`]). To park a page is to move its frame there.

use nearfar_kernel::tiering::{NodeId, Page, Refused};

use super::World;
use crate::{Fail, Frame, Kernel, Va};

/// The places of the parking area that hold no page, with or without a frame.
pub(crate) struct Parking {
    /// Places without a frame that had one before.
    pub(super) empty: Vec<Frame>,
    /// Places that were never used.
    pub(super) unused: std::ops::Range<u32>,
    /// Frames that no page uses.
    pub(super) spare: Vec<Frame>,
    /// Maximum length of `spare`.
    pub(super) spare_limit: usize,
}

impl Parking {
    pub(super) fn new(places: u32, spare_limit: usize) -> Self {
        Self { empty: Vec::new(), unused: 0..places, spare: Vec::new(), spare_limit }
    }
}

impl<K: Kernel> World<K> {
    /// Take a place without a frame. `None` if there is none.
    pub(super) fn empty_place(&mut self) -> Option<Frame> {
        let Parking { empty, unused, spare, .. } = &mut self.parking;
        empty.pop().or_else(|| unused.next().map(Frame::new)).or_else(|| {
            let frame = spare.pop()?;
            self.kernel.discard(frame, 1);
            Some(frame)
        })
    }

    /// Release a frame that no page uses any more: it becomes spare, or is freed.
    pub(super) fn release_frame(&mut self, frame: Frame) {
        let Parking { empty, spare, spare_limit, .. } = &mut self.parking;
        spare.push(frame);
        if spare.len() <= *spare_limit {
            return;
        }
        // Discard the older half at once: discarding a run of neighbours takes little longer than one frame.
        let count = spare.len() - *spare_limit / 2;
        let old = &mut spare[..count];
        old.sort_unstable_by_key(|frame| frame.number());
        for run in old.chunk_by(|a, b| a.number() + 1 == b.number()) {
            self.kernel.discard(run[0], run.len() as u32);
        }
        // The lowest place is used first, so pages that are parked in turn form a run again.
        empty.extend(spare.drain(..count).rev());
    }

    /// Park a page unless it is parked already. Returns its frame.
    pub(crate) fn park(&mut self, page: Page) -> Result<Frame, Refused> {
        if self.pages.state(page).is_parked() {
            return Ok(self.pages.frame(page));
        }
        let frame = self.empty_place().ok_or(Refused::NoFrame)?;
        let at = self.numbers.address_of(page);
        if let Err(fail) = self.kernel.park(at, frame) {
            self.parking.empty.push(frame);
            return Err(self.refused(fail, "parking", at));
        }
        self.event.moved += 1;
        self.pages.park(page, frame);
        Ok(frame)
    }

    /// Move a parked frame to a missing page, or place a copy of it, on `node`.
    pub(super) fn place_frame(
        &mut self,
        frame: Frame,
        at: Va,
        protect: bool,
        node: NodeId,
    ) -> Result<(), Fail> {
        // A moved frame is writable, so a write-protected page needs a copy.
        let moved = if protect { Err(Fail::Pinned) } else { self.kernel.restore(frame, at) };
        match moved {
            Ok(()) => self.parking.empty.push(frame),
            // The mapping is locked, or its protection is not the parking area's: only a copy is possible.
            Err(Fail::Pinned) => {
                self.kernel.place_copy(at, frame, protect, node)?;
                self.release_frame(frame);
            }
            Err(fail) => return Err(fail),
        }
        Ok(())
    }

    /// Return a parked page to the program's memory, write-protected or not.
    pub(super) fn restore(&mut self, page: Page, protect: bool) -> Result<(), Refused> {
        let (at, frame) = (self.numbers.address_of(page), self.pages.frame(page));
        let node = if self.far_is_mapped { self.pages.state(page).node() } else { NodeId::FAST };
        let placed = self.place_frame(frame, at, protect, node);
        placed.map_err(|fail| self.refused(fail, "restoring a page", at))?;
        self.event.moved += 1;
        self.pages.make_resident(page);
        Ok(())
    }
}
