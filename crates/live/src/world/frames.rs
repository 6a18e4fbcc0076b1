//! Frames: places of the lot, and pages to and from there.

use nearfar_kernel::tiering::{NodeId, Page, Refused};

use super::{World, is};
use crate::{Fail, Frame, Kernel};

impl<K: Kernel> World<K> {
    /// A place of the lot without a frame.
    pub(crate) fn empty_place(&mut self) -> Option<Frame> {
        let empty = self.empty.pop();
        empty.or_else(|| self.unused.next().map(Frame::new)).or_else(|| {
            let spare = self.spare.pop()?;
            self.kernel.discard(spare, 1);
            Some(spare)
        })
    }

    /// The frame in the lot is nobody's any more.
    pub(crate) fn release_frame(&mut self, frame: Frame) {
        self.spare.push(frame);
        if self.spare.len() <= self.spare_size {
            return;
        }
        // The older half at once: a run of neighbours costs little more than one of them.
        let gone = self.spare.len() - self.spare_size / 2;
        let old = &mut self.spare[..gone];
        old.sort_unstable_by_key(|frame| frame.number());
        for run in old.chunk_by(|a, b| a.number() + 1 == b.number()) {
            self.kernel.discard(run[0], run.len() as u32);
        }
        // The lowest is taken first: what is parked in turn is a run again.
        self.empty.extend(self.spare.drain(..gone).rev());
    }

    /// Park a page that is in the program.
    pub(crate) fn park(&mut self, page: Page) -> Result<Frame, Refused> {
        if self.has(page, is::PARKED) {
            return Ok(self.frame(page));
        }
        let frame = self.empty_place().ok_or(Refused::NoFrame)?;
        let at = self.numbers.place(page);
        if let Err(fail) = self.kernel.park(at, frame) {
            self.empty.push(frame);
            return Err(self.refused(fail, "parking", at));
        }
        self.moved += 1;
        self.set(page, is::PRESENT, false);
        self.set(page, is::PARKED, true);
        self.set_frame(page, frame);
        Ok(frame)
    }

    /// Bring a parked page back, write-protected or not.
    pub(crate) fn restore(&mut self, page: Page, protect: bool) -> Result<(), Refused> {
        let (at, frame) = (self.numbers.place(page), self.frame(page));
        let mut copy = protect;
        if !copy {
            match self.kernel.restore(frame, at) {
                Ok(()) => self.empty.push(frame),
                // A mapping whose protection has changed takes no frame, but takes a copy.
                Err(Fail::Pinned) => copy = true,
                Err(fail) => return Err(self.refused(fail, "bringing back", at)),
            }
        }
        if copy {
            let node = if self.mapped { self.node(page) } else { NodeId::FAST };
            if let Err(fail) = self.kernel.place_copy(at, frame, protect, node) {
                return Err(self.refused(fail, "bringing back a copy", at));
            }
            self.release_frame(frame);
        }
        self.moved += 1;
        self.set(page, is::PARKED, false);
        self.set(page, is::PRESENT, true);
        Ok(())
    }
}
