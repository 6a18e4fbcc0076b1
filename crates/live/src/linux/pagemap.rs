//! `/proc/self/pagemap`: which pages of a range are present.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::{Range, Va};

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: u64 = 3 << 30 | (size_of::<Scan>() as u64) << 16 | (b'f' as u64) << 8 | 16;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
/// Maximum number of [`Run`]s that one request (ioctl) returns.
const RUNS: usize = 512;

/// `struct pm_scan_arg` of `include/uapi/linux/fs.h` (Linux 6.7 and later).
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    /// Where the scan ended. Written by the kernel.
    walk_end: u64,
    runs: u64,
    runs_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`: pages of the same categories; `end` is exclusive.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    start: u64,
    end: u64,
    categories: u64,
}

#[derive(Debug)]
pub(super) struct Pagemap {
    file: File,
    runs: Vec<Run>,
    /// Number of requests so far.
    #[cfg(test)]
    pub(super) requests: u64,
}

impl Pagemap {
    pub(super) fn new(file: File) -> Self {
        let runs = vec![Run::default(); RUNS];
        Self {
            file,
            runs,
            #[cfg(test)]
            requests: 0,
        }
    }

    /// The pages of `range` that are present or swapped, as far as they can be read. The kernel skips empty
    /// page tables.
    pub(super) fn present(&mut self, range: Range) -> Vec<Va> {
        let mut present = Vec::new();
        self.each_run(range, |run| present.extend(run.each()));
        present
    }

    /// The number of pages of `range` that are present or swapped.
    pub(super) fn count(&mut self, range: Range) -> u64 {
        let mut count = 0;
        self.each_run(range, |run| count += run.pages());
        count
    }

    fn each_run(&mut self, range: Range, mut act: impl FnMut(Range)) {
        let mut from = range.from;
        while from < range.to {
            let Ok((count, end)) = self.scan(Range::new(from, range.to)) else { break };
            for run in &self.runs[..count] {
                act(Range::new(Va::of(run.start), Va::of(run.end)));
            }
            if end <= from {
                break;
            }
            from = end;
        }
    }

    /// One request. Returns the number of runs, and where the scan ended.
    fn scan(&mut self, range: Range) -> io::Result<(usize, Va)> {
        #[cfg(test)]
        {
            self.requests += 1;
        }
        let any = IS_PRESENT | IS_SWAPPED;
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start: range.from.address(),
            end: range.to.address(),
            runs: self.runs.as_mut_ptr().addr() as u64,
            runs_len: self.runs.len() as u64,
            category_anyof_mask: any,
            return_mask: any,
            ..Scan::default()
        };
        // SAFETY: the kernel reads and writes the argument, which has the given size, and writes at most
        // `runs_len` runs, for which any bytes are valid, to `self.runs`.
        let count = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut scan) };
        if count < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((count as usize, Va::of(scan.walk_end)))
    }
}
