//! Anonymous mappings of the runtime itself, such as the parking area: frames out of the program's reach.

use std::io;

use crate::{Frame, PAGE, Range, Va};

#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) start: *mut u8,
    pub(super) pages: u64,
}

// SAFETY: only this value uses the address range.
unsafe impl Send for Mapping {}

impl Mapping {
    pub(super) fn new(pages: u64) -> io::Result<Self> {
        let length = pages as usize * PAGE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        for advice in [libc::MADV_NOHUGEPAGE, libc::MADV_DONTFORK] {
            // SAFETY: the new mapping. Kernels without huge pages refuse the first advice.
            unsafe { libc::madvise(start, length, advice) };
        }
        Ok(Self { start: start.cast(), pages })
    }

    pub(super) fn address(&self) -> u64 {
        self.start.addr() as u64
    }

    pub(super) fn at(&self, frame: Frame) -> *mut u8 {
        assert!(u64::from(frame.number()) < self.pages, "a place of the parking area");
        // SAFETY: inside the mapping.
        unsafe { self.start.add(frame.number() as usize * PAGE) }
    }

    pub(super) fn range(&self) -> Range {
        let from = Va::of(self.address());
        Range::new(from, from.plus(self.pages))
    }

    pub(super) fn last(&self) -> Va {
        Va::of(self.address()).plus(self.pages - 1)
    }

    /// Allow or forbid all accesses.
    pub(super) fn set_reachable(&self, on: bool) {
        let protection = if on { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
        let length = self.pages as usize * PAGE;
        // SAFETY: the mapping, which nothing uses while it is unreachable.
        unsafe { libc::mprotect(self.start.cast(), length, protection) };
    }

    /// Undo an `mlockall` of the program: `UFFDIO_MOVE` fails between locked and unlocked memory.
    pub(super) fn unlock(&self) {
        // SAFETY: the mapping.
        unsafe { libc::munlock(self.start.cast(), self.pages as usize * PAGE) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; no part of it is borrowed.
        unsafe { libc::munmap(self.start.cast(), self.pages as usize * PAGE) };
    }
}
