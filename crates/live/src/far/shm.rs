//! `shm`: uncompressed shared memory; a transfer is a copy. With `--far-latency` it emulates slower memory.

use std::fs::File;
use std::path::Path;

use nearfar_trace::{Error, Result};

use super::slots::Slots;
use super::{Far, Fault, TierEntry};
use crate::linux::owned;
use crate::{PAGE, Slot};

pub static TIER: TierEntry = TierEntry {
    what: "shared memory, not compressed",
    argument: "",
    is_mapped: false,
    own_time: None,
    check: super::no_argument,
    make: |_, pages| Ok(Box::new(Shm::new(pages)?)),
};

struct Shm {
    start: *mut u8,
    length: usize,
    slots: Slots,
    stored_pages: u64,
}

// SAFETY: only this value uses the mapping.
unsafe impl Send for Shm {}

impl Shm {
    fn new(pages: u32) -> Result<Self> {
        let io = |what| Error::io(Path::new("--far shm"), what, &std::io::Error::last_os_error());
        let length = pages as usize * PAGE;
        // SAFETY: a name that ends in zero.
        let fd = unsafe { libc::memfd_create(c"nearfar-far".as_ptr(), libc::MFD_CLOEXEC) };
        let file = owned(fd.into()).map(File::from).map_err(|_| io("making"))?;
        file.set_len(length as u64).map_err(|_| io("growing"))?;
        // SAFETY: a new mapping at an address of the kernel's choice; it outlives the descriptor.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                // A length of 0 is invalid.
                length.max(PAGE),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                fd,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io("mapping"));
        }
        // A forked child that touches all of its memory would allocate pages here.
        // SAFETY: the new mapping.
        unsafe { libc::madvise(start, length.max(PAGE), libc::MADV_DONTFORK) };
        Ok(Self { start: start.cast(), length, slots: Slots::new(pages), stored_pages: 0 })
    }

    fn page(&mut self, slot: Slot) -> &mut [u8] {
        let at = slot.index() * PAGE;
        assert!(at + PAGE <= self.length, "a slot of this tier");
        // SAFETY: inside the mapping, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), PAGE) }
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; no page of it is borrowed.
        unsafe { libc::munmap(self.start.cast(), self.length.max(PAGE)) };
    }
}

impl Far for Shm {
    fn store(&mut self, page: &[u8]) -> std::result::Result<Slot, Fault> {
        let slot = self.slots.take()?;
        self.page(slot).copy_from_slice(page);
        self.stored_pages += 1;
        Ok(slot)
    }

    fn load(&mut self, slot: Slot, page: &mut [u8]) -> std::result::Result<(), Fault> {
        page.copy_from_slice(self.page(slot));
        Ok(())
    }

    fn free(&mut self, slot: Slot) {
        self.stored_pages -= 1;
        self.slots.free(slot);
    }

    fn bytes(&self) -> u64 {
        self.stored_pages * PAGE as u64
    }
}
