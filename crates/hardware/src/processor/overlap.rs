//! Overlap of misses: how long a thread waits for them.

/// Misses within a window of instructions overlap, as in the interval model (Karkhanis and Smith, ISCA
/// 2004): the thread waits for the longest one, and for the share of the others that depends on the
/// previous miss. This share is a parameter, because a trace contains no dependences.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overlap {
    /// Instructions before the first miss of the window.
    from: u64,
    /// Longest miss and sum of the misses in the window, picoseconds.
    longest: u64,
    sum: u64,
    /// Sum of the longest misses of all windows, picoseconds.
    alone: u64,
    /// Sum of all other misses, picoseconds.
    others: u64,
}

impl Overlap {
    /// Add a miss of `ps` after `instructions` instructions of the thread.
    #[inline]
    pub fn miss(&mut self, instructions: u64, ps: u64, window: u64) {
        if instructions - self.from >= window {
            self.close();
            self.from = instructions;
        }
        self.longest = self.longest.max(ps);
        self.sum += ps;
    }

    fn close(&mut self) {
        self.alone += self.longest;
        self.others += self.sum - self.longest;
        (self.longest, self.sum) = (0, 0);
    }

    /// Total wait in nanoseconds, with the share `dependent` (0 to 1) of dependent misses.
    pub fn ns(mut self, dependent: f64) -> f64 {
        self.close();
        (self.alone as f64 + dependent * self.others as f64) / 1e3
    }
}
