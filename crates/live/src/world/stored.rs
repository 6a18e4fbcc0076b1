//! A far tier that stores pages in slots, one page in each: moves of pages into slots and out of them.

use nearfar_kernel::tiering::{NodeId, Page, Refused};

use super::World;
use crate::far::{Arrival, Fault, Fetch};
use crate::{Fail, Kernel, Slot};

impl<K: Kernel> World<K> {
    /// Start to read a stored page. Returns the predicted time in nanoseconds, or `None` if the page can be
    /// loaded at once.
    pub(crate) fn fetch(&mut self, slot: Slot) -> Result<Option<u64>, Refused> {
        match self.far.fetch(slot, self.event.now.ps() / 1000) {
            Ok(Fetch::Ready) => Ok(None),
            Ok(Fetch::Pending { predicted_ns }) => Ok(Some(predicted_ns)),
            Err(fault) => Err(self.far_failed(&fault)),
        }
    }

    /// Record that the far tier has failed, so that the program ends. Returns a refusal of the action.
    pub(super) fn far_failed(&mut self, fault: &Fault) -> Refused {
        self.break_down(fault.to_string());
        Refused::Pinned
    }

    /// Collect the pages that have arrived from the far tier, and wake the threads that copy them.
    pub(crate) fn collect_arrivals(&mut self) -> Vec<Arrival> {
        let mut arrivals = Vec::new();
        if let Err(fault) = self.far.arrived(self.kernel.now_ns(), &mut arrivals) {
            self.far_failed(&fault);
        }
        for Arrival { slot, predicted_ns, took_ns } in &arrivals {
            self.counters.fetches += 1;
            self.counters.fetches_predicted_ns += *predicted_ns;
            self.counters.fetches_ns += *took_ns;
            let mut fetching = std::mem::take(&mut self.fetching);
            for (_, _, thread) in fetching.extract_if(.., |(other, _, _)| other == slot) {
                self.wake_worker(thread);
            }
            self.fetching = fetching;
        }
        arrivals
    }

    /// Load a stored page into the program's memory, write-protected if `protect`. The page keeps its slot.
    pub(super) fn load(&mut self, page: Page, protect: bool) -> Result<(), Refused> {
        let Some(slot) = self.pages.slot(page) else { return Err(Refused::State) };
        let at = self.numbers.address_of(page);
        let spare = if protect { None } else { self.parking.spare.pop() };
        let into = match spare {
            Some(frame) => self.kernel.frame_mut(frame),
            None => &mut self.buffer[..],
        };
        let loaded = self.far.load(slot, into);
        self.counters.far_loads += 1;
        let placed = match (&loaded, spare) {
            // The content was loaded into the spare frame: move the frame instead of copying the content.
            (Ok(()), Some(frame)) => self.place_frame(frame, at, false, NodeId::FAST),
            (Ok(()), None) => self.kernel.place(at, &self.buffer, protect),
            // Nothing is placed, and the run ends.
            (Err(_), _) => Err(Fail::Again),
        };
        if let Some(frame) = spare.filter(|_| placed.is_err()) {
            self.release_frame(frame);
        }
        if let Err(fault) = loaded {
            self.far_failed(&fault);
        }
        placed.map_err(|fail| self.refused(fail, "loading", at))?;
        self.event.moved += 1;
        self.pages.make_resident(page);
        Ok(())
    }

    /// Park a page (move its frame out of the program's reach), store it unless its slot has its content, and
    /// free the frame. If the far tier has no room, the page stays parked.
    pub(super) fn store(&mut self, page: Page) -> Result<(), Refused> {
        let frame = self.park(page)?;
        if self.pages.slot(page).is_none() {
            match self.far.store(self.kernel.frame(frame)) {
                Ok(slot) => self.pages.set_slot(page, slot),
                Err(Fault::Full) => return Err(Refused::NoFrame),
                Err(fault) => return Err(self.far_failed(&fault)),
            }
            self.counters.far_stores += 1;
        }
        self.pages.make_stored(page);
        self.release_frame(frame);
        Ok(())
    }
}
