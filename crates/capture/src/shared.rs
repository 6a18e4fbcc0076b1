//! The receiver's view of the shared memory.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use crate::alive::Alive;
use crate::layout::{
    BLOCKS, Block, CHUNK_WORDS, Header, MAGIC, Memory, RING_WORDS, STREAMS, Slot, TOTAL, state,
};

/// An anonymous file in memory, mapped. Pages that nobody touches take no memory.
///
/// The program can write to all of it, and do so at any time: whatever is read here can be anything.
/// It cannot change the file's length.
#[derive(Debug)]
pub struct Shared {
    /// Until this value is dropped.
    alive: Option<Alive>,
    memory: Memory,
    file: OwnedFd,
}

impl Shared {
    /// Make and map it, with `flags` for the plugin.
    pub fn create(flags: u32) -> io::Result<Self> {
        let kind = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a C string; the descriptor is checked.
        let fd = unsafe { libc::memfd_create(c"nearfar-capture".as_ptr(), kind) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, and nobody else's.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: an open file of ours.
        if unsafe { libc::ftruncate(fd, TOTAL as i64) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: as above.
        if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) } != 0 {
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
        let mut shared = Self { alive: None, memory, file };
        // SAFETY: ends before the memory is unmapped.
        shared.alive = Some(unsafe { Alive::own(&shared.header().receiver) }?);
        shared.begin(flags);
        Ok(shared)
    }

    /// Say what the plugin finds in memory that is empty otherwise.
    fn begin(&self, flags: u32) {
        let header = self.header();
        header.flags.store(flags, Relaxed);
        header.blocks.store(1, Relaxed);
        header.magic.store(MAGIC, SeqCst);
    }

    /// Begin anew, with `flags` for the plugin: for those who exercise it.
    pub(crate) fn clear(&self, flags: u32) {
        let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: an open file of ours, all of it; what is mapped becomes zeros.
        let answer = unsafe { libc::fallocate(self.file.as_raw_fd(), how, 0, TOTAL as i64) };
        assert_eq!(answer, 0, "{}", io::Error::last_os_error());
        self.header().receiver.store(self.alive.as_ref().map_or(0, |alive| alive.word), SeqCst);
        self.begin(flags);
    }

    /// The word at byte `at`, a multiple of 8: for those who exercise it.
    pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < TOTAL && at.is_multiple_of(8), "word at {at}");
        // SAFETY: within the mapping and aligned; this side reads all of it as atomics.
        unsafe { self.memory.start().add(at).cast().as_ref() }
    }

    /// Whether the words that only this side writes are what it wrote.
    pub fn is_sound(&self) -> bool {
        let header = self.header();
        header.magic.load(Relaxed) == MAGIC
            && (self.alive.as_ref()).is_some_and(|a| header.receiver.load(Relaxed) == a.word)
            && header.stop.load(Relaxed) == 0
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
        let (slot, ring) = (&self.slots()[index], self.memory.ring(index));
        ReadingEnd { slot, ring, taken: 0, forged: Cell::new(false) }
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
        self.alive = None;
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
    /// The writer claims to have published what its ring cannot hold.
    forged: Cell<bool>,
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

    /// Words that its writer has published, ever: at most a ring more than were taken.
    pub fn published(&self) -> u64 {
        let position = self.slot.position();
        let sound =
            position.checked_sub(self.taken).is_some_and(|ahead| ahead <= RING_WORDS as u64);
        self.forged.set(self.forged.get() || !sound);
        if sound { position } else { self.taken }
    }

    /// Whether the writer ever claimed to have published something else.
    pub fn is_forged(&self) -> bool {
        self.forged.get()
    }

    /// Copy to `words` those from position `from`, none before those that were taken, up to position
    /// `until`, as far as they are published, or to the end of a chunk. Each is read once, and no
    /// more than the copy is looked at: the program may change them at any time.
    pub fn look(&self, from: u64, until: u64, words: &mut Vec<u64>) {
        words.clear();
        if from < self.taken {
            return;
        }
        let until = until.min(self.published());
        let place = (from % RING_WORDS as u64) as usize;
        let count = until.saturating_sub(from).min((CHUNK_WORDS - place % CHUNK_WORDS) as u64);
        words.extend((place..place + count as usize).map(|at| {
            // SAFETY: within the ring, and aligned. The writer published the words with its cursor,
            // and leaves them alone until `taken`, which only this end changes, has passed them; one
            // that does not keep to that changes them while they are read as atomics.
            unsafe { self.ring.add(at).cast::<AtomicU64>().as_ref() }.load(Relaxed)
        }));
    }

    /// Hand the words up to position `until`, as far as they are published, to `take`, in order, at
    /// most to the end of a chunk at a time (in `words`): so the writer soon has room again.
    ///
    /// # Errors
    /// The first of `take`; its words count as not taken.
    pub fn drain<E>(
        &mut self,
        until: u64,
        words: &mut Vec<u64>,
        mut take: impl FnMut(&[u64]) -> Result<(), E>,
    ) -> Result<(), E> {
        let until = until.min(self.published());
        while self.taken < until {
            self.look(self.taken, until, words);
            if words.is_empty() {
                break;
            }
            take(words)?;
            self.pass(self.taken + words.len() as u64);
        }
        Ok(())
    }

    /// Take the words up to position `until` without reading them.
    pub fn pass(&mut self, until: u64) {
        let slot = self.slot;
        self.taken = until;
        slot.taken.store(until, SeqCst);
        // A writer that waits is woken once half of its ring is free: for every chunk, it would
        // be asleep again as soon.
        if slot.waiting.load(SeqCst) != 0
            && slot.entered.load(Acquire).saturating_sub(until) <= RING_WORDS as u64 / 2
        {
            slot.room.fetch_add(1, SeqCst);
            wake(&slot.room);
        }
    }

    /// The writer is gone and everything is taken: the slot may be used again.
    pub fn free(self) {
        self.slot.state.store(state::FREE, Release);
    }
}
