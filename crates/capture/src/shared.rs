//! The receiver's view of the shared memory.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::slice;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::time::Duration;

use crate::layout::{
    BLOCKS, Block, CHUNK_WORDS, Header, MAGIC, Memory, RING_WORDS, STREAMS, Slot, TOTAL, state,
};

/// An anonymous file in memory, mapped. Pages that nobody touches take no memory.
#[derive(Debug)]
pub struct Shared {
    memory: Memory,
    file: OwnedFd,
}

impl Shared {
    /// Make and map it, with `flags` for the plugin.
    pub fn create(flags: u32) -> io::Result<Self> {
        // SAFETY: the name is a C string; the descriptor is checked.
        let fd = unsafe { libc::memfd_create(c"nearfar-capture".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, and nobody else's.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: an open file of ours.
        if unsafe { libc::ftruncate(fd, TOTAL as i64) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let how = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, wherever the system has room; the file is as long.
        let start = unsafe { libc::mmap(null_mut(), TOTAL, protection, how, fd, 0) };
        let start = match NonNull::new(start.cast::<u8>()) {
            Some(mapped) if start != libc::MAP_FAILED => mapped,
            _ => return Err(io::Error::last_os_error()),
        };
        // SAFETY: mapped above, and undone when this value, from which all is borrowed, is dropped.
        let memory = unsafe { Memory::new(start) };
        let header = memory.header();
        header.flags.store(flags, Relaxed);
        header.blocks.store(1, Relaxed);
        header.magic.store(MAGIC, SeqCst);
        Ok(Self { memory, file })
    }

    /// Where another process of the same user can open it; gone as soon as this process is.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// The header.
    pub fn header(&self) -> &Header {
        self.memory.header()
    }

    /// The slots of all streams.
    pub fn slots(&self) -> &[Slot; STREAMS] {
        self.memory.slots()
    }

    /// The block table.
    pub fn blocks(&self) -> &[Block; BLOCKS] {
        self.memory.blocks()
    }

    /// The reading end of stream `index`, which is open or closed, from its beginning.
    ///
    /// # Safety
    /// No other reading end of the stream may exist.
    pub unsafe fn reading_end(&self, index: usize) -> ReadingEnd<'_> {
        ReadingEnd { slot: &self.slots()[index], ring: self.memory.ring(index), taken: 0 }
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
        unsafe { libc::munmap(self.memory.start().as_ptr().cast(), TOTAL) };
    }
}

/// The reading end of a stream: takes what its writer has published, and gives the room back.
#[derive(Debug)]
pub struct ReadingEnd<'a> {
    slot: &'a Slot,
    ring: NonNull<u64>,
    /// Words taken, ever.
    taken: u64,
}

impl<'a> ReadingEnd<'a> {
    /// The stream's slot.
    pub fn slot(&self) -> &'a Slot {
        self.slot
    }

    /// Words that were taken, ever.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// The words from position `from`, none before those that were taken, up to position `until`, as
    /// far as they are published, or to the end of a chunk.
    pub fn look(&self, from: u64, until: u64) -> &[u64] {
        let until = until.min(self.slot.position());
        let place = (from % RING_WORDS as u64) as usize;
        let count = until.saturating_sub(from).min((CHUNK_WORDS - place % CHUNK_WORDS) as u64);
        if from < self.taken {
            return &[];
        }
        // SAFETY: within the ring. The writer published the words with its cursor, and leaves them
        // alone until `taken`, which only this end changes, has passed them.
        unsafe { slice::from_raw_parts(self.ring.add(place).as_ptr(), count as usize) }
    }

    /// Hand the words up to position `until`, as far as they are published, to `take`, in order, at
    /// most to the end of a chunk at a time: so the writer soon has room again.
    ///
    /// # Errors
    /// The first of `take`; its words count as not taken.
    pub fn drain<E>(
        &mut self,
        until: u64,
        mut take: impl FnMut(&[u64]) -> Result<(), E>,
    ) -> Result<(), E> {
        let slot = self.slot;
        let until = until.min(slot.position());
        while self.taken < until {
            let words = self.look(self.taken, until);
            let count = words.len() as u64;
            take(words)?;
            self.taken += count;
            slot.taken.store(self.taken, SeqCst);
            // A writer that waits is woken once half of its ring is free: for every chunk, it would
            // be asleep again as soon.
            if slot.waiting.load(SeqCst) != 0
                && slot.entered.load(Acquire).saturating_sub(self.taken) <= RING_WORDS as u64 / 2
            {
                slot.room.fetch_add(1, SeqCst);
                wake(&slot.room);
            }
        }
        Ok(())
    }

    /// The writer is gone and everything is taken: the slot may be used again.
    pub fn free(self) {
        self.slot.state.store(state::FREE, Release);
    }
}
