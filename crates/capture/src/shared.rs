//! The view that the receiver (this process) has of the memory that it shares with the QEMU plugin.
//! `layout.rs` explains its parts: streams, rings, chunks, slots, the bell.

use std::cell::Cell;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use nearfar_trace::Result;

use crate::layout::{
    BLOCKS, Block, CHUNK_WORDS, Header, MAGIC, Memory, RING_WORDS, STREAMS, Slot, TOTAL, state,
};
use crate::liveness::Liveness;

/// A mapped memory file. The traced program can write to all of it at any time, so any value read is
/// untrusted. It cannot change the file's length.
#[derive(Debug)]
pub struct Shared {
    /// Shows writers that this process is alive. `None` only during construction and drop.
    liveness: Option<Liveness>,
    memory: Memory,
    file: File,
}

/// A new file of `bytes` zeros in memory, with `flags` of `memfd_create` and close-on-exec.
pub(crate) fn memory_file(name: &CStr, flags: libc::c_uint, bytes: u64) -> io::Result<File> {
    // SAFETY: the name is a C string; the descriptor is checked.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and not shared.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(bytes)?;
    Ok(file)
}

impl Shared {
    /// Create and map the file, with `flags` for the plugin.
    pub fn create(flags: u32) -> io::Result<Self> {
        let file = memory_file(c"nearfar-capture", libc::MFD_ALLOW_SEALING, TOTAL as u64)?;
        let fd = file.as_raw_fd();
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: an open file of ours.
        if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let how = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at any address; the file has this length.
        let start = unsafe { libc::mmap(null_mut(), TOTAL, protection, how, fd, 0) };
        let start = match NonNull::new(start.cast::<u8>()) {
            Some(mapped) if start != libc::MAP_FAILED => mapped,
            _ => return Err(io::Error::last_os_error()),
        };
        // SAFETY: mapped above; unmapped by `drop`, when no borrow of this value exists.
        let memory = unsafe { Memory::new(start) };
        let mut shared = Self { liveness: None, memory, file };
        // SAFETY: `drop` ends the liveness before it unmaps the memory.
        shared.liveness = Some(unsafe { Liveness::own(&shared.header().receiver) }?);
        shared.init(flags);
        Ok(shared)
    }

    /// Initialise the header of zeroed memory.
    fn init(&self, flags: u32) {
        let header = self.header();
        header.flags.store(flags, Relaxed);
        // Entry 0 of the table of translation blocks means no block.
        header.blocks.store(1, Relaxed);
        header.magic.store(MAGIC, SeqCst);
    }

    /// Zero and initialise the memory again, with `flags` for the plugin. For tests (`exercise`).
    pub(crate) fn clear(&self, flags: u32) {
        let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: an open file of ours; its mapped pages become zero.
        let status = unsafe { libc::fallocate(self.file.as_raw_fd(), how, 0, TOTAL as i64) };
        assert_eq!(status, 0, "{}", io::Error::last_os_error());
        self.header().receiver.store(self.liveness.as_ref().map_or(0, |owner| owner.word), SeqCst);
        self.init(flags);
    }

    /// The word at byte `at`, a multiple of 8. For tests (`exercise`).
    pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < TOTAL && at.is_multiple_of(8), "word at {at}");
        // SAFETY: within the mapping and aligned; this side accesses the memory only as atomics.
        unsafe { self.memory.start().add(at).cast().as_ref() }
    }

    /// While this side records: whether the words that only it may write are unchanged.
    pub fn is_sound(&self) -> bool {
        let header = self.header();
        header.magic.load(Relaxed) == MAGIC
            && (self.liveness.as_ref()).is_some_and(|l| header.receiver.load(Relaxed) == l.word)
            && header.stop.load(Relaxed) == 0
    }

    /// Path by which a process of the same user can open the file while this process exists.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    pub fn header(&self) -> &Header {
        self.memory.header()
    }

    pub fn slots(&self) -> &[Slot; STREAMS] {
        self.memory.slots()
    }

    pub fn blocks(&self) -> &[Block; BLOCKS] {
        self.memory.blocks()
    }

    /// A reader that begins at the first word of stream `index` ([`state::OPEN`] or [`state::CLOSED`]).
    ///
    /// # Safety
    /// The stream must have no other reader.
    pub unsafe fn stream_reader(&self, index: usize) -> StreamReader<'_> {
        let (slot, ring) = (&self.slots()[index], self.memory.ring(index));
        StreamReader { slot, ring, taken: 0, forged: Cell::new(false) }
    }

    /// Ring the bell from another thread of this process.
    pub fn ring_bell(&self) {
        self.header().bell.fetch_add(1, SeqCst);
        wake(&self.header().bell);
    }

    /// Wait until the bell differs from `seen`, for at most `timeout`.
    pub fn wait_bell(&self, seen: u32, timeout: Duration) {
        let header = self.header();
        header.sleeping.store(1, SeqCst);
        if header.bell.load(SeqCst) == seen {
            let timeout = libc::timespec {
                tv_sec: timeout.as_secs().cast_signed(),
                tv_nsec: i64::from(timeout.subsec_nanos()),
            };
            let word = header.bell.as_ptr();
            // SAFETY: the word is mapped. A spurious wake-up only repeats the caller's loop.
            unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, seen, &timeout) };
        }
        header.sleeping.store(0, SeqCst);
    }
}

/// Wake all waiters on `word`.
pub fn wake(word: &AtomicU32) {
    // SAFETY: the word is mapped.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.liveness = None;
        // SAFETY: mapped by `create`, and no reference outlives the value.
        unsafe { libc::munmap(self.memory.start().as_ptr().cast(), TOTAL) };
    }
}

/// Reads the words that a stream's writer has published, and makes room in its ring.
#[derive(Debug)]
pub struct StreamReader<'a> {
    slot: &'a Slot,
    ring: NonNull<u64>,
    /// Words read so far.
    taken: u64,
    /// The writer has claimed a position that its ring does not allow.
    forged: Cell<bool>,
}

impl<'a> StreamReader<'a> {
    pub fn slot(&self) -> &'a Slot {
        self.slot
    }

    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Words that the writer has published so far: at most a ring more than were read.
    pub fn published(&self) -> u64 {
        let position = self.slot.position();
        let sound =
            position.checked_sub(self.taken).is_some_and(|ahead| ahead <= RING_WORDS as u64);
        self.forged.set(self.forged.get() || !sound);
        if sound { position } else { self.taken }
    }

    pub fn is_forged(&self) -> bool {
        self.forged.get()
    }

    /// Copy the published words between positions `from` and `until` to `words`, up to the end of a
    /// chunk. Each word is loaded once, because the program may change it at any time.
    pub fn peek(&self, from: u64, until: u64, words: &mut Vec<u64>) {
        words.clear();
        if from < self.taken {
            return;
        }
        let until = until.min(self.published());
        let first = (from % RING_WORDS as u64) as usize;
        let count = until.saturating_sub(from).min((CHUNK_WORDS - first % CHUNK_WORDS) as u64);
        words.extend((first..first + count as usize).map(|at| {
            // SAFETY: within the ring, and aligned. The writer published the words with its cursor
            // and does not change them until `taken`, which only the reader changes, has passed
            // them. If a writer violates that, the loads are still atomic.
            unsafe { self.ring.add(at).cast::<AtomicU64>().as_ref() }.load(Relaxed)
        }));
    }

    /// Pass the published words up to position `until` to `take`, in order, at most a chunk at a
    /// time, so that the writer soon has room again. `words` is scratch memory.
    ///
    /// # Errors
    /// The first error of `take`; its words count as unread.
    pub fn drain(
        &mut self,
        until: u64,
        words: &mut Vec<u64>,
        mut take: impl FnMut(&[u64]) -> Result<()>,
    ) -> Result<()> {
        let until = until.min(self.published());
        while self.taken < until {
            self.peek(self.taken, until, words);
            if words.is_empty() {
                break;
            }
            take(words)?;
            self.skip_to(self.taken + words.len() as u64);
        }
        Ok(())
    }

    /// Skip the words up to position `until`.
    pub fn skip_to(&mut self, until: u64) {
        let slot = self.slot;
        self.taken = until;
        slot.taken.store(until, SeqCst);
        // Wake the writer only when half of its ring is free: otherwise, it would sleep again after a
        // chunk.
        if slot.waiting.load(SeqCst) != 0
            && slot.entered.load(Acquire).saturating_sub(until) <= RING_WORDS as u64 / 2
        {
            slot.room.fetch_add(1, SeqCst);
            wake(&slot.room);
        }
    }

    /// Free the slot: the writer is gone and all words are read.
    pub fn free_slot(self) {
        self.slot.state.store(state::FREE, Release);
    }
}
