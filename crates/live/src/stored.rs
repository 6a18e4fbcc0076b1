//! A far tier that stores pages: into slots and from there, and the window.

use nearfar_kernel::tiering::{NodeId, Page, Refused};

use crate::far::{Arrival, Fault, Fetch};
use crate::world::{REST, World, is};
use crate::{Fail, Kernel, Slot};

impl<K: Kernel> World<K> {
    /// Ask the far tier for a page that is in its slot, and will be loaded: how long it will take if it
    /// is not there at once.
    pub(crate) fn fetch(&mut self, slot: Slot) -> Result<Option<u64>, Refused> {
        match self.far.fetch(slot, self.event.ps() / 1000) {
            Ok(Fetch::Here) => Ok(None),
            Ok(Fetch::Coming { predicted_ns }) => Ok(Some(predicted_ns)),
            Err(fault) => {
                self.break_down(fault.to_string());
                Err(Refused::Pinned)
            }
        }
    }

    /// Hear what has come from the far tier, and wake who copies it.
    pub(crate) fn hear_arrivals(&mut self, arrivals: &mut Vec<Arrival>) {
        arrivals.clear();
        self.far.arrived(self.kernel.now_ns(), arrivals);
        for Arrival { slot, predicted_ns, took_ns } in arrivals {
            self.counters.fetches += 1;
            self.counters.fetches_predicted_ns += *predicted_ns;
            self.counters.fetches_ns += *took_ns;
            let mut coming = std::mem::take(&mut self.coming);
            for (_, _, thread) in coming.extract_if(.., |(other, _, _)| other == slot) {
                self.wake_worker(thread);
            }
            self.coming = coming;
        }
    }

    /// Bring a page from its slot, which it keeps.
    pub(crate) fn bring(&mut self, page: Page, protect: bool) -> Result<(), Refused> {
        let Some(slot) = self.slot(page) else { return Err(Refused::State) };
        let at = self.numbers.place(page);
        let spare = if protect { None } else { self.spare.pop() };
        let into = match spare {
            Some(frame) => self.kernel.frame_mut(frame),
            None => &mut self.buffer[..],
        };
        let loaded = self.far.load(slot, into);
        self.counters.far_loads += 1;
        let mut placed = match (&loaded, spare) {
            // A frame that nobody wants is worth less than a copy less.
            (Ok(()), Some(frame)) => self.kernel.restore(frame, at),
            (Ok(()), None) => self.kernel.place(at, &self.buffer, protect),
            (Err(_), _) => Err(Fail::Again),
        };
        if let Some(frame) = spare {
            if placed == Err(Fail::Pinned) {
                placed = self.kernel.place_copy(at, frame, protect, NodeId::FAST);
                self.release_frame(frame);
            } else if placed.is_ok() {
                self.empty.push(frame);
            } else {
                self.release_frame(frame);
            }
        }
        if let Err(fault) = loaded {
            self.break_down(fault.to_string());
        }
        placed.map_err(|fail| self.refused(fail, "loading", at))?;
        self.moved += 1;
        self.set(page, is::PRESENT, true);
        Ok(())
    }

    /// Store a parked page that has no slot, and let its frame go. If there is no room it stays
    /// parked.
    pub(crate) fn store(&mut self, page: Page) -> Result<(), Refused> {
        let frame = self.park(page)?;
        if self.slot(page).is_none() {
            match self.far.store(self.kernel.frame(frame)) {
                Ok(slot) => self.set_slot(page, slot),
                Err(Fault::Full) => return Err(Refused::NoFrame),
                Err(fault) => {
                    self.break_down(fault.to_string());
                    return Err(Refused::Pinned);
                }
            }
            self.counters.far_stores += 1;
        }
        self.set(page, is::PARKED, false);
        self.release_frame(frame);
        Ok(())
    }

    // --- the window

    /// A slow page is in the program's memory from now on.
    pub(crate) fn enter_window(&mut self, page: Page) {
        self.windowed += 1;
        self.window.push_back(page);
    }

    /// A slow page in the program's memory is in its slot, or not slow, from now on.
    pub(crate) fn leave_window(&mut self, page: Page) {
        self.windowed -= 1;
        if self.has(page, is::STUCK) {
            self.stuck_pages -= 1;
            self.set(page, is::STUCK, false);
        }
    }

    /// A slow page of a far tier that stores pages, which is not in its slot.
    pub(crate) fn in_window(&self, page: Page) -> bool {
        !self.mapped && self.has(page, is::MAPPED | is::SLOW) && !self.in_slot(page)
    }

    /// Put a page of the window into its slot.
    pub(crate) fn evict(&mut self, page: Page) -> Result<(), Refused> {
        self.store(page)?;
        self.leave_window(page);
        Ok(())
    }

    /// Let the oldest pages of the window go while there are too many.
    pub(crate) fn trim_window(&mut self) {
        if !self.stuck.is_empty() && self.event >= self.stuck_until {
            for _ in 0..self.stuck.len().min(32) {
                let Some(page) = self.stuck.pop_front() else { break };
                if self.has(page, is::STUCK) && self.evict(page).is_err() {
                    self.stuck.push_back(page);
                }
            }
            self.stuck_until = self.event.plus(REST.0);
        }
        while self.windowed - self.stuck_pages > self.window_size {
            let Some(page) = self.window.pop_front() else { break };
            let may_leave = self.in_window(page) && !self.has(page, is::STUCK);
            if may_leave && self.evict(page).is_err() {
                if self.again {
                    self.window.push_front(page);
                    break;
                }
                self.set(page, is::STUCK, true);
                self.stuck_pages += 1;
                self.stuck.push_back(page);
            }
        }
        if self.window.len() as u64 > 4 * (self.window_size + 16) {
            let mut window = std::mem::take(&mut self.window);
            window.retain(|page| self.in_window(*page));
            self.window = window;
        }
    }
}
