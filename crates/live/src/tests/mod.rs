//! The runtime on the model of the kernel: one thing at a time, and interleaved.

mod interleaved;
mod sequential;

use crate::far::{Far, Fault, Slow};
use crate::{PAGE, Sizes, Slot};

/// A far tier that is obviously right.
#[derive(Debug, Default)]
struct Plain {
    pages: Vec<Option<Vec<u8>>>,
    limit: usize,
}

impl Plain {
    /// One from which pages come at once, or one from which they take their time.
    fn of(limit: usize, slow: bool) -> Box<dyn Far> {
        let plain = Box::new(Self { pages: Vec::new(), limit });
        if slow { Box::new(Slow::new(plain, 700)) } else { plain }
    }
}

impl Far for Plain {
    fn store(&mut self, page: &[u8]) -> Result<Slot, Fault> {
        let free = self.pages.iter().position(Option::is_none);
        let slot = free.unwrap_or(self.pages.len());
        if slot >= self.limit {
            return Err(Fault::Full);
        }
        if slot == self.pages.len() {
            self.pages.push(None);
        }
        self.pages[slot] = Some(page.to_vec());
        Ok(Slot::new(slot as u32))
    }

    fn load(&mut self, slot: Slot, page: &mut [u8]) -> Result<(), Fault> {
        let held = self.pages.get(slot.index()).and_then(Option::as_ref);
        page.copy_from_slice(held.unwrap_or_else(|| panic!("{slot:?} is free")));
        Ok(())
    }

    fn free(&mut self, slot: Slot) {
        let held = self.pages[slot.index()].take();
        assert!(held.is_some(), "{slot:?} is freed twice");
    }

    fn bytes(&self) -> u64 {
        (self.pages.iter().flatten().count() * PAGE) as u64
    }
}

/// Sizes at which everything happens with a few pages; `mapped`: the far tier is a memory node.
fn sizes(fast: u64, far: u64, window: u64, mapped: bool) -> Sizes {
    Sizes { fast, far, window, spare: 2, pages: 4 * 512, mapped }
}
