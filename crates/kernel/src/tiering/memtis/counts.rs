//! Counts of sampled accesses by page, and their histogram in frames.

use super::super::HUGE;

pub(super) const BINS: usize = 16;
/// Weight of a sample of a base page; 1 for a huge page, which has the samples of 512 base pages.
pub(super) const WEIGHT: u32 = HUGE;

/// Frames by bin.
pub(super) type Histogram = [u64; BINS];

/// Page flag: its count is in the histogram, because it was sampled or halved.
pub(super) const COUNTED: u8 = 1;

/// The bin of a count (`get_idx`).
pub(super) fn bin(count: u32) -> usize {
    ((count.saturating_add(1)).ilog2() as usize).min(BINS - 1)
}

/// Counts of mapped pages (base or huge), or of base pages.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub of: Vec<u32>,
    /// [`COUNTED`], and flags of the caller.
    pub flags: Vec<u8>,
    pub bins: Histogram,
}

impl Counts {
    pub fn new(pages: u32) -> Self {
        let pages = pages as usize;
        Self { of: vec![0; pages], flags: vec![0; pages], bins: [0; BINS] }
    }

    /// Set a count of `frames` frames, and add it to the histogram.
    pub fn set(&mut self, at: usize, frames: u32, count: u32) {
        self.uncount(at, frames);
        self.of[at] = count;
        self.flags[at] |= COUNTED;
        self.bins[bin(count)] += u64::from(frames);
    }

    /// Take a count out of the histogram.
    pub fn uncount(&mut self, at: usize, frames: u32) {
        if self.flags[at] & COUNTED != 0 {
            self.flags[at] &= !COUNTED;
            self.bins[bin(self.of[at])] -= u64::from(frames);
        }
    }
}
