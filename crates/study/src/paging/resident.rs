//! One memory at one page size, reference by reference: what [`super::explain`] asks.

use nearfar_hardware::tlb::FullLru;
use nearfar_kernel::replacement::{AccessBits, Replacement, Visitor};

/// A memory that sees every reference.
pub trait Memory {
    /// One reference; true when it faults.
    fn reference(&mut self, page: u32) -> bool;
}

/// Makes a memory of a policy.
pub struct Make {
    /// Frames, at least 1.
    pub frames: u64,
    /// Page size, bytes.
    pub page_bytes: u64,
    /// No more pages than this are referenced.
    pub most: u64,
    /// Pages are loaded with their accessed bit set.
    pub loads_set: bool,
}

impl Visitor for Make {
    type Output = Box<dyn Memory>;

    fn faults<P: Replacement>(self) -> Self::Output {
        let policy = P::new(self.frames, self.page_bytes);
        Box::new(Resident { policy, bits: Bits(Vec::new()), loads_set: self.loads_set })
    }

    fn lru(self) -> Self::Output {
        // Frames beyond the last page stay empty.
        let frames = self.frames.min(self.most).min(u64::from(u32::MAX - 1));
        Box::new(FullLru::new(frames as u32))
    }
}

impl Memory for FullLru {
    fn reference(&mut self, page: u32) -> bool {
        !self.access(page)
    }
}

/// Pages resident under a policy that sees faults only.
struct Resident<P> {
    policy: P,
    bits: Bits,
    /// A page is loaded with its accessed bit set.
    loads_set: bool,
}

impl<P: Replacement> Memory for Resident<P> {
    fn reference(&mut self, page: u32) -> bool {
        let place = page as usize;
        if self.bits.0.len() <= place {
            self.bits.0.resize(place + 1, 0);
        }
        if self.bits.0[place] & PRESENT != 0 {
            self.bits.0[place] |= REFERENCED;
            return false;
        }
        for victim in self.policy.fault(page, &mut self.bits) {
            self.bits.0[victim as usize] = 0;
        }
        self.bits.0[place] = if self.loads_set { PRESENT | REFERENCED } else { PRESENT };
        true
    }
}

const PRESENT: u8 = 1;
const REFERENCED: u8 = 2;

struct Bits(Vec<u8>);

impl AccessBits for Bits {
    fn test(&self, page: u32) -> bool {
        self.0[page as usize] & REFERENCED != 0
    }

    fn clear(&mut self, page: u32) {
        self.0[page as usize] &= !REFERENCED;
    }
}
