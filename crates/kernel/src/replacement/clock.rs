//! CLOCK, the second-chance algorithm with one hand (Corbato 1968; papers 000 and 001).
//!
//! Frames form a ring. On a fault the hand passes over pages whose accessed bit is set, clearing
//! it, and evicts the first page found clear; the new page takes that frame and the hand steps on.
//! Not a stack algorithm: more frames can fault more. Do not use it to ask what an ideal recency
//! order would do; that is `lru`.

use super::{AccessBits, Replacement};

/// CLOCK over a ring of frames.
#[derive(Clone, Debug)]
pub struct Clock {
    frames: u64,
    resident: u64,
    /// Page in each frame; empty until the first eviction, as up to then frame i holds page i.
    ring: Vec<u32>,
    hand: usize,
}

impl Replacement for Clock {
    fn new(frames: u64, _page_bytes: u64) -> Self {
        Self { frames: frames.max(1), resident: 0, ring: Vec::new(), hand: 0 }
    }

    fn fault(&mut self, page: u32, bits: &mut impl AccessBits) -> Option<u32> {
        if self.resident < self.frames {
            // Ids are given in order of first reference, and nothing has been evicted yet.
            debug_assert_eq!(u64::from(page), self.resident);
            self.resident += 1;
            return None;
        }
        if self.ring.is_empty() {
            self.ring = (0..self.resident as u32).collect();
        }
        loop {
            let place = self.hand;
            self.hand = if place + 1 == self.ring.len() { 0 } else { place + 1 };
            let candidate = self.ring[place];
            if bits.test(candidate) {
                bits.clear(candidate);
            } else {
                self.ring[place] = page;
                return Some(candidate);
            }
        }
    }
}
