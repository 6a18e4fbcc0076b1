//! CLOCK, the second-chance algorithm with one hand (Corbato 1968), as in
//! page-size advice (000) and TLB and fault models (001).
//!
//! Frames form a ring. On a fault the hand passes over pages whose accessed bit is set, clearing
//! it, and evicts the first page found clear; the new page takes that frame and the hand steps on.
//! Frames are taken in order until none is left. The frame of a page that is freed is free again,
//! stays where it is in the ring, and is taken before any that was never used, the one freed last
//! first; the hand moves only when no frame is free. Not a stack algorithm: more frames can fault
//! more. Do not use it to ask what an ideal recency order would do; that is `lru`.

use nearfar_hardware::table::on_huge_pages;

use super::{AccessBits, MANY, Replacement, Setup};

/// What the policy is.
pub const WHAT: &str = "second chance, one hand: page-size advice (000), TLB and fault models (001)";

/// Frames ahead of the hand whose pages' bits are asked for: pages of neighbours lie far apart.
const AHEAD: usize = 8;

/// Most frames that there is room for from the beginning.
const RESERVED: u64 = 1 << 24;

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
    type Shared = ();
    type Evicted<'a> = Option<u32>;

    fn new(setup: Setup) -> Self {
        let frames = setup.frames.max(1);
        // Not grown and copied again and again; what is not used takes no memory.
        let ring = on_huge_pages(Vec::with_capacity(frames.min(RESERVED) as usize));
        Self { frames, ring, hand: 0, free: Vec::new(), place: Vec::new() }
    }

    fn fault(&mut self, page: u32, (): &(), bits: &mut impl AccessBits) -> Option<u32> {
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

    const BATCHES: bool = true;

    /// The hand's walk for all of them at once, which has no branch that depends on a bit: one is mispredicted
    /// at its end, not at each fault.
    fn fault_many(
        &mut self,
        pages: &[u32],
        bits: &mut impl AccessBits,
        evicted: &mut Vec<u32>,
    ) -> bool {
        let room = self.frames - self.ring.len() as u64;
        if !self.free.is_empty() || (1..pages.len() as u64).contains(&room) {
            return false;
        }
        if room > 0 {
            for &page in pages {
                self.ring.push(page);
                self.put(self.ring.len() - 1, page);
            }
            return true;
        }
        let mut victims = [0; MANY];
        let (mut found, mut place, mut left) = (0, self.hand, self.ring.len());
        while found < pages.len() {
            // Once round it would come to bits that it has cleared, and to these pages.
            if left == 0 {
                return false;
            }
            left -= 1;
            victims[found] = place as u32;
            found += usize::from(!bits.test(self.ring[place]));
            place = if place + 1 == self.ring.len() { 0 } else { place + 1 };
        }
        if bits.doubtful() {
            return false;
        }
        let passed = self.ring.len() - left;
        let (end, start) = self.ring.split_at(self.hand);
        start.iter().take(passed).for_each(|&page| bits.clear(page));
        end.iter().take(passed.saturating_sub(start.len())).for_each(|&page| bits.clear(page));
        for (&page, &frame) in pages.iter().zip(&victims) {
            evicted.push(self.ring[frame as usize]);
            self.put(frame as usize, page);
        }
        // Next time it will come about as far.
        self.ring[place..].iter().take(passed + AHEAD).for_each(|&page| bits.expect(page));
        self.hand = place;
        true
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
    #[inline]
    fn put(&mut self, frame: usize, page: u32) {
        self.ring[frame] = page;
        if !self.place.is_empty() {
            if self.place.len() <= page as usize {
                self.place.resize(page as usize + 1, 0);
            }
            self.place[page as usize] = frame as u32;
        }
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
        /// Many faults at once are those faults one by one, or are refused and change nothing.
        #[test]
        fn many_faults_are_each_fault(
            frames in 1u64..40,
            steps in prop::collection::vec((1usize..12, any::<u64>()), 1..60),
        ) {
            let setup = Setup { frames, page_bytes: 4096, swappiness: 0, statistics_every: 1 };
            let (mut many, mut each) = (Clock::new(setup), Clock::new(setup));
            let mut bits = Plain(vec![false; 1000]);
            let mut taken = 0;
            for (count, mut random) in steps {
                let pages: Vec<u32> = (taken..).take(count).collect();
                taken += count as u32;
                let (mut evicted, before) = (Vec::new(), bits.0.clone());
                let done = many.fault_many(&pages, &mut bits, &mut evicted);
                let after = std::mem::replace(&mut bits.0, before.clone());
                let victims: Vec<u32> = pages.iter().filter_map(|&page| each.fault(page, &(), &mut bits)).collect();
                if done {
                    prop_assert_eq!(&after, &bits.0);
                    prop_assert_eq!(&evicted, &victims);
                } else {
                    prop_assert_eq!(&after, &before);
                    many = each.clone();
                }
                prop_assert_eq!((&many.ring, many.hand), (&each.ring, each.hand));
                for &page in &each.ring {
                    random = random.rotate_left(7).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                    bits.0[page as usize] |= random >> 63 == 1;
                }
            }
        }
    }
}
