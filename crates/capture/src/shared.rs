//! The receiver's view of the shared memory.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use crate::layout::{
    BLOCKS, BLOCKS_AT, Block, Header, MAGIC, RING, RINGS_AT, SLOTS_AT, STREAMS, Slot, TOTAL,
};

/// An anonymous file in memory, mapped. Pages that nobody touches take no memory.
#[derive(Debug)]
pub struct Shared {
    start: *mut u8,
    file: OwnedFd,
}

// The memory is only reached through atomics and through `words`, whose callers hold the stream.
unsafe impl Send for Shared {}
unsafe impl Sync for Shared {}

impl Shared {
    /// Make and map it, with `flags` for the plugin.
    pub fn create(flags: u32) -> io::Result<Self> {
        // SAFETY: plain system calls; the mapping is owned by the value and undone on drop.
        unsafe {
            let fd = libc::memfd_create(c"nearfar-capture".as_ptr(), libc::MFD_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            let file = OwnedFd::from_raw_fd(fd);
            if libc::ftruncate(fd, TOTAL as i64) != 0 {
                return Err(io::Error::last_os_error());
            }
            let start = libc::mmap(
                null_mut(),
                TOTAL,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                fd,
                0,
            );
            if start == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let shared = Self { start: start.cast(), file };
            let header = shared.header();
            header.flags.store(flags, Relaxed);
            header.blocks.store(1, Relaxed);
            header.magic.store(MAGIC, SeqCst);
            Ok(shared)
        }
    }

    /// Where another process of the same user can open it; gone as soon as this process is.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// The header.
    pub fn header(&self) -> &Header {
        // SAFETY: mapped, aligned to a page, and nothing but atomics.
        unsafe { &*self.start.cast::<Header>() }
    }

    /// The slots of all streams.
    pub fn slots(&self) -> &[Slot] {
        // SAFETY: as above; `SLOTS_AT` is a multiple of the slot's alignment.
        unsafe { std::slice::from_raw_parts(self.start.add(SLOTS_AT).cast(), STREAMS) }
    }

    /// The block table.
    pub fn blocks(&self) -> &[Block; BLOCKS] {
        // SAFETY: as above.
        unsafe { &*self.start.add(BLOCKS_AT).cast() }
    }

    /// Words `from..to` of the ring of stream `index`.
    ///
    /// # Safety
    /// The writer must have published them, and must not be told that there is room for others
    /// while the slice is in use.
    pub unsafe fn words(&self, index: usize, from: usize, to: usize) -> &[u64] {
        assert!(index < STREAMS && from <= to && to <= RING / 8);
        unsafe {
            let ring = self.start.add(RINGS_AT + index * RING).cast::<u64>();
            std::slice::from_raw_parts(ring.add(from), to - from)
        }
    }

    /// Ring the bell from this side (another thread has news for the receiver).
    pub fn ring_bell(&self) {
        self.header().bell.fetch_add(1, SeqCst);
        wake(&self.header().bell);
    }

    /// Wait until the bell is no longer at `seen`, or `time` is over.
    pub fn wait_bell(&self, seen: u32, time: Duration) {
        let header = self.header();
        header.sleeping.store(1, SeqCst);
        if header.bell.load(SeqCst) == seen {
            let time = libc::timespec {
                tv_sec: time.as_secs().cast_signed(),
                tv_nsec: i64::from(time.subsec_nanos()),
            };
            let word = header.bell.as_ptr();
            // SAFETY: the word is mapped; a wrong answer only means another turn.
            unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, seen, &time) };
        }
        header.sleeping.store(0, SeqCst);
    }
}

/// Wake whoever waits on `word`.
pub fn wake(word: &AtomicU32) {
    // SAFETY: the word is mapped.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped by `create`, and no reference outlives the value.
        unsafe { libc::munmap(self.start.cast(), TOTAL) };
    }
}
