//! CLOCK, the second-chance algorithm with one hand (Corbato 1968), as in
//! page-size advice (000) and TLB and fault models (001).
//!
//! Frames form a ring. On a fault the hand passes over pages whose accessed bit is set, clearing
//! it, and evicts the first page found clear; the new page takes that frame and the hand steps on.
//! Frames are taken in order until none is left. The frame of a page that is freed is free again,
//! stays where it is in the ring, and is taken before any that was never used, the one freed last
//! first; the hand moves only when no frame is free. Not a stack algorithm: more frames can fault
//! more. Do not use it to ask what an ideal recency order would do; that is `lru`.

use super::{AccessBits, Replacement, Setup};

/// What the policy is.
pub const WHAT: &str = "second chance, one hand: page-size advice (000), TLB and fault models (001)";

/// Frames ahead of the hand whose pages' bits are asked for: pages of neighbours lie far apart.
const AHEAD: usize = 8;

/// CLOCK over a ring of frames.
#[derive(Clone, Debug)]
pub struct Clock {
    frames: u64,
    /// Page in each frame that was ever used; that of a free frame means nothing.
    ring: Vec<u32>,
    hand: usize,
    /// Free frames that were used before, the one freed last at the end.
    free: Vec<u32>,
    /// Frame of each resident page; empty until a page is freed.
    place: Vec<u32>,
}

impl Replacement for Clock {
    type Evicted<'a> = Option<u32>;

    fn new(setup: Setup) -> Self {
        let frames = setup.frames.max(1);
        Self { frames, ring: Vec::new(), hand: 0, free: Vec::new(), place: Vec::new() }
    }

    fn fault(&mut self, page: u32, bits: &mut impl AccessBits) -> Option<u32> {
        if (self.ring.len() as u64) < self.frames || !self.free.is_empty() {
            match self.free.pop() {
                Some(frame) => self.put(frame as usize, page),
                None => {
                    self.ring.push(page);
                    self.put(self.ring.len() - 1, page);
                }
            }
            return None;
        }
        loop {
            let place = self.hand;
            self.hand = if place + 1 == self.ring.len() { 0 } else { place + 1 };
            let candidate = self.ring[place];
            if let Some(&ahead) = self.ring.get(place + AHEAD) {
                bits.expect(ahead);
            }
            if bits.test(candidate) {
                bits.clear(candidate);
            } else {
                self.put(place, page);
                return Some(candidate);
            }
        }
    }

    fn release(&mut self, page: u32, resident: bool) {
        if !resident {
            return;
        }
        if self.place.is_empty() {
            let most = self.ring.iter().copied().max().unwrap_or(0);
            self.place.resize(most as usize + 1, 0);
            for (frame, &page) in self.ring.iter().enumerate() {
                self.place[page as usize] = frame as u32;
            }
        }
        self.free.push(self.place[page as usize]);
    }
}

impl Clock {
    fn put(&mut self, frame: usize, page: u32) {
        self.ring[frame] = page;
        if !self.place.is_empty() {
            if self.place.len() <= page as usize {
                self.place.resize(page as usize + 1, 0);
            }
            self.place[page as usize] = frame as u32;
        }
    }

    /// The page in each frame and the hand, when every frame is taken; else `None`.
    pub fn ring(&self) -> Option<(Vec<u32>, usize)> {
        let full = self.ring.len() as u64 == self.frames && self.free.is_empty();
        full.then(|| (self.ring.clone(), self.hand))
    }

    /// Go on with these pages in the frames, all of them taken, and this hand.
    pub fn resume(&mut self, ring: Vec<u32>, hand: usize) {
        (self.ring, self.hand) = (ring, hand);
        self.free.clear();
        self.place.clear();
    }
}

/// CLOCK over at most 64 frames, all taken: accessed bits are one word, and the hand's walk over
/// set bits is a count of trailing zeros. The same decisions as [`Clock`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BitClock {
    frames: u32,
    hand: u32,
    /// Accessed bit of each frame.
    pub referenced: u64,
}

impl BitClock {
    /// Most frames.
    pub const MAX_FRAMES: u64 = 64;

    /// Take over from a [`Clock`] of `frames` (1..=64) frames with this hand and these bits.
    pub fn new(frames: u32, hand: u32, referenced: u64) -> Self {
        Self { frames, hand, referenced }
    }

    /// The frame that a fault looks at first.
    pub fn hand(&self) -> u32 {
        self.hand
    }

    /// Fault: returns the frame whose page is evicted and which the new page takes. The caller
    /// sets the frame's bit.
    #[inline]
    pub fn fault(&mut self) -> u32 {
        let every = u64::MAX >> (64 - self.frames);
        let from_hand = (u64::MAX << self.hand) & every;
        let ahead = !self.referenced & from_hand;
        let frame = if ahead != 0 {
            let frame = ahead.trailing_zeros();
            // Passed over: from the hand up to the frame.
            self.referenced &= !(from_hand & !(u64::MAX << frame));
            frame
        } else {
            self.referenced &= !from_hand;
            // Frame `hand` itself is clear by now, so the walk ends there at the latest.
            let frame = (!self.referenced & every).trailing_zeros();
            self.referenced &= u64::MAX << frame;
            frame
        };
        self.hand = if frame + 1 == self.frames { 0 } else { frame + 1 };
        frame
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Plain(Vec<bool>);

    impl AccessBits for Plain {
        fn test(&self, page: u32) -> bool {
            self.0[page as usize]
        }
        fn clear(&mut self, page: u32) {
            self.0[page as usize] = false;
        }
    }

    proptest! {
        /// Both clocks evict the same page from the same frame, fault by fault.
        #[test]
        fn words_equal_rings(frames in 1u32..=64, refs in prop::collection::vec(0u32..90, 1..600)) {
            let setup = Setup { frames: frames.into(), page_bytes: 4096, swappiness: 0, statistics_every: 1 };
            let mut ring = Clock::new(setup);
            let mut bits = Plain(vec![false; 90]);
            let mut ids = Vec::new();
            let mut resident = std::collections::HashSet::new();
            let mut words: Option<(BitClock, Vec<u32>)> = None;
            for page in refs {
                let id = ids.iter().position(|&p| p == page).unwrap_or_else(|| {
                    ids.push(page);
                    ids.len() - 1
                }) as u32;
                if resident.insert(id) {
                    let victim = ring.fault(id, &mut bits);
                    if let (Some(victim), Some((clock, held))) = (victim, &mut words) {
                        let frame = clock.fault() as usize;
                        prop_assert_eq!(held[frame], victim);
                        held[frame] = id;
                    }
                    if let Some(victim) = victim {
                        resident.remove(&victim);
                    }
                }
                bits.0[id as usize] = true;
                if let Some((clock, held)) = &mut words {
                    let frame = held.iter().position(|&p| p == id).unwrap();
                    clock.referenced |= 1 << frame;
                } else if let Some((held, hand)) = ring.ring() {
                    let set = held.iter().enumerate().map(|(f, &p)| u64::from(bits.0[p as usize]) << f).sum();
                    words = Some((BitClock::new(frames, hand as u32, set), held));
                }
            }
        }
    }
}
