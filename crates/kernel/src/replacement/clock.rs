//! CLOCK, the second-chance algorithm with one hand (Corbato 1968), as in papers 000 (page-size
//! advice) and 001 (TLB and fault models) of docs/reproduce.md.
//!
//! Frames form a ring. On a fault without a free frame, the hand clears set accessed bits and evicts
//! the first page whose bit is clear; the new page takes its frame, and the hand moves on. A freed
//! frame keeps its place in the ring and is reused before unused frames, the most recently freed
//! first. Not a stack algorithm: more frames can fault more often.

use nearfar_hardware::table::on_huge_pages;

use super::{AccessBits, Replacement, Setup};

pub const WHAT: &str = "second chance with one hand, as in papers 000 and 001";

/// Maximum number of frames whose ring is allocated at the start.
const MAX_RESERVED: u64 = 1 << 24;

#[derive(Clone, Debug)]
pub struct Clock {
    frames: u64,
    /// Page of each frame that was ever used; stale for free frames.
    ring: Vec<u32>,
    hand: usize,
    /// Freed frames, the most recent one last.
    free: Vec<u32>,
    /// Frame of each resident page; built when the first page is freed.
    frame_of: Vec<u32>,
}

impl Replacement for Clock {
    type Shared = ();
    type Evicted<'a> = Option<u32>;

    fn new(setup: Setup) -> Self {
        let frames = setup.frames.max(1);
        // Reserved once instead of grown; untouched memory is not resident.
        let ring = on_huge_pages(Vec::with_capacity(frames.min(MAX_RESERVED) as usize));
        Self { frames, ring, hand: 0, free: Vec::new(), frame_of: Vec::new() }
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
            let frame = self.hand;
            self.hand = if frame + 1 == self.ring.len() { 0 } else { frame + 1 };
            let candidate = self.ring[frame];
            if bits.test(candidate) {
                bits.clear(candidate);
            } else {
                self.put(frame, page);
                return Some(candidate);
            }
        }
    }

    fn release(&mut self, page: u32, resident: bool) {
        if !resident {
            return;
        }
        if self.frame_of.is_empty() {
            let last = self.ring.iter().copied().max().unwrap_or(0);
            self.frame_of.resize(last as usize + 1, 0);
            for (frame, &page) in self.ring.iter().enumerate() {
                self.frame_of[page as usize] = frame as u32;
            }
        }
        self.free.push(self.frame_of[page as usize]);
    }
}

impl Clock {
    #[inline]
    fn put(&mut self, frame: usize, page: u32) {
        self.ring[frame] = page;
        if !self.frame_of.is_empty() {
            if self.frame_of.len() <= page as usize {
                self.frame_of.resize(page as usize + 1, 0);
            }
            self.frame_of[page as usize] = frame as u32;
        }
    }
}
