//! The disk from which the kernel reads pages of files at their first use, with read-ahead.

use std::collections::VecDeque;

use nearfar_hardware::Storage;
use nearfar_trace::Kind;

use super::options::READ_AHEAD_BYTES;

/// Number of recent reads whose pages are in memory.
const RECENT: usize = 64;

/// Whether a page whose first reference is of this kind belongs to a file: code, and what the kernel
/// reads for the program, existed before the program started.
pub fn is_of_file(kind: Kind) -> bool {
    kind.fetches() || kind == Kind::KernelLoad
}

struct Read {
    first: u64,
    /// When its pages are in memory.
    ready_at: u64,
}

/// A disk that serves one read at a time, first come first served. Times are nanoseconds.
///
/// An access to the second page of a read counts as sequential and submits the next read. A read that
/// follows the previous one on disk takes only its transfer time.
pub struct Disk {
    /// Time of a random and of a sequential read; `None` without a disk.
    read_ns: Option<[u64; 2]>,
    /// Pages per read.
    read_pages: u64,
    free_at: u64,
    /// The page after the last read.
    head: Option<u64>,
    /// Latest reads; oldest first.
    recent: VecDeque<Read>,
    reads: u64,
}

impl Disk {
    pub fn new(storage: Option<&Storage>, page_bytes: u64) -> Self {
        Self {
            read_ns: storage.map(Storage::files).map(|storage| {
                let [one, two] = [1, 2].map(|reads| storage.io_ns(reads * READ_AHEAD_BYTES));
                // A read twice as large adds only transfer time.
                [one, two - one].map(|ns| ns.round() as u64)
            }),
            read_pages: (READ_AHEAD_BYTES / page_bytes).max(1),
            free_at: 0,
            head: None,
            recent: VecDeque::with_capacity(RECENT),
            reads: 0,
        }
    }

    /// Whether the disk holds a page whose first reference is of this kind.
    pub fn holds(&self, kind: Kind) -> bool {
        self.read_ns.is_some() && is_of_file(kind)
    }

    /// When `page`, requested at `now`, is in memory: `now` if it needs no I/O.
    pub fn read(&mut self, page: u64, kind: Kind, now: u64) -> u64 {
        let Some(times) = self.read_ns.filter(|_| self.holds(kind)) else { return now };
        let pages = self.read_pages;
        // The difference wraps to a large number if `page` is before `first`.
        let recent = self.recent.iter().rfind(|read| page.wrapping_sub(read.first) < pages);
        let Some(read) = recent else {
            // Code is mapped: the kernel reads as much before the page as after it.
            let before = if kind.fetches() { pages / 2 } else { 0 };
            return self.submit(page.saturating_sub(before), now, times);
        };
        let (ready_at, next) = (read.ready_at, read.first.saturating_add(pages));
        let onwards = !kind.fetches() && page == read.first + 1;
        if onwards && !self.recent.iter().any(|read| read.first == next) {
            self.submit(next, now, times);
        }
        now.max(ready_at)
    }

    /// Read the pages from `first`. Returns when they are in memory.
    fn submit(&mut self, first: u64, now: u64, [read_ns, next_ns]: [u64; 2]) -> u64 {
        let ns = if self.head == Some(first) { next_ns } else { read_ns };
        self.free_at = now.max(self.free_at) + ns;
        self.head = first.checked_add(self.read_pages);
        self.reads += 1;
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(Read { first, ready_at: self.free_at });
        self.free_at
    }

    pub fn reads(&self) -> u64 {
        self.reads
    }
}
