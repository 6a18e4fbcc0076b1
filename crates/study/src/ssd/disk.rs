//! The disk that pages come from which the device does not hold. It reads ahead.

use std::collections::VecDeque;
use std::ops::Range;

use nearfar_hardware::Storage;
use nearfar_trace::Kind;

use super::options::READ_AHEAD_BYTES;

/// Reads that are remembered: their pages need no other.
const RECENT: usize = 64;

/// A disk that serves one read at a time, first come first served. Times are nanoseconds.
pub struct Disk {
    /// Time of a read with its read-ahead; `None`: there is no disk.
    read_ns: Option<u64>,
    /// Pages of a read.
    read_pages: u64,
    free_at: u64,
    /// Pages read lately, and when they are in memory; oldest first.
    recent: VecDeque<(Range<u64>, u64)>,
    reads: u64,
}

impl Disk {
    /// An idle disk, or none, for pages of `page_bytes`.
    pub fn new(storage: Option<&Storage>, page_bytes: u64) -> Self {
        Self {
            read_ns: storage.map(|storage| storage.io_ns(READ_AHEAD_BYTES).round() as u64),
            read_pages: (READ_AHEAD_BYTES / page_bytes).max(1),
            free_at: 0,
            recent: VecDeque::with_capacity(RECENT),
            reads: 0,
        }
    }

    /// Whether a page whose first reference is of this kind comes from the disk: what is executed,
    /// and what the kernel reads for the program, was there before the program began.
    pub fn holds(&self, kind: Kind) -> bool {
        self.read_ns.is_some() && matches!(kind, Kind::Fetch | Kind::KernelLoad)
    }

    /// When `page`, wanted at `now`, is in memory: `now` where it comes without I/O.
    pub fn read(&mut self, page: u64, kind: Kind, now: u64) -> u64 {
        let Some(read_ns) = self.read_ns.filter(|_| self.holds(kind)) else { return now };
        if let Some((_, there)) = self.recent.iter().find(|(pages, _)| pages.contains(&page)) {
            return now.max(*there);
        }
        self.free_at = now.max(self.free_at) + read_ns;
        self.reads += 1;
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((page..page.saturating_add(self.read_pages), self.free_at));
        self.free_at
    }

    /// Reads so far.
    pub fn reads(&self) -> u64 {
        self.reads
    }
}
