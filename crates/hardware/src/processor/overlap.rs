//! How long a thread waits for its misses.

/// Misses within one window of instructions are under way together: the thread waits for the longest
/// of them, and for that part of the others that depends on the one before, as a trace does not say
/// which do. This is the model of intervals between long misses (Karkhanis and Smith, ISCA 2004) with
/// the share of dependent misses as a number of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overlap {
    /// Instructions before the first miss under way.
    from: u64,
    longest: u64,
    sum: u64,
    /// Picoseconds waited for the longest of each window.
    alone: u64,
    /// Picoseconds of all the others.
    beside: u64,
}

impl Overlap {
    /// A miss of `ps` after so many instructions of the thread.
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
        self.beside += self.sum - self.longest;
        (self.longest, self.sum) = (0, 0);
    }

    /// Nanoseconds waited, where this part of misses waits for the one before.
    pub fn ns(mut self, dependent: f64) -> f64 {
        self.close();
        (self.alone as f64 + dependent * self.beside as f64) / 1e3
    }
}
