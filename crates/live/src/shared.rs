//! What a manager and `nearfar run` share: a file in memory, a page for each process image.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::Counters;

/// Processes that one run may have, execs counted each.
pub const BLOCKS: usize = 4096;
/// Bytes of a message.
const TEXT: usize = 256;
const NUMBERS: usize = size_of::<Counters>() / 8;

/// How far a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// The block is nobody's.
    Free = 0,
    /// It waits until the supervisor holds a copy of its userfaultfd.
    Ready = 1,
    /// The supervisor holds it.
    Held = 2,
    /// Its manager runs.
    Running = 3,
    /// Its manager cannot go on, and says why; it waits to be killed, with its children.
    Failed = 4,
    /// It is over.
    Ended = 5,
}

impl State {
    fn of(number: u32) -> Self {
        use State::{Ended, Failed, Free, Held, Ready, Running};
        [Free, Ready, Held, Running, Failed]
            .into_iter()
            .find(|s| *s as u32 == number)
            .unwrap_or(Ended)
    }
}

/// One process image, from its start to its exec or end.
#[derive(Debug)]
#[repr(C, align(1024))]
pub struct Block {
    state: AtomicU32,
    /// Its process, its manager's thread, and its userfaultfd.
    pub pid: AtomicU32,
    /// See above.
    pub manager: AtomicU32,
    /// See above.
    pub descriptor: AtomicU32,
    /// When its manager last went round, in nanoseconds of CLOCK_MONOTONIC.
    pub heartbeat: AtomicU64,
    /// Fast pages, far pages and shadows, pages of the window, bytes of the far tier.
    pub used: [AtomicU64; 4],
    counters: [AtomicU64; NUMBERS],
    length: AtomicU32,
    text: [AtomicU32; TEXT / 4],
}

impl Block {
    /// How far it is.
    pub fn state(&self) -> State {
        State::of(self.state.load(Ordering::Acquire))
    }

    /// It is that far from now on.
    pub fn set_state(&self, state: State) {
        self.state.store(state as u32, Ordering::Release);
    }

    /// Why it cannot go on.
    pub fn fail(&self, why: &str) {
        let bytes = &why.as_bytes()[..why.len().min(TEXT)];
        for (word, chunk) in self.text.iter().zip(bytes.chunks(4)) {
            let mut four = [0; 4];
            four[..chunk.len()].copy_from_slice(chunk);
            word.store(u32::from_le_bytes(four), Ordering::Relaxed);
        }
        self.length.store(bytes.len() as u32, Ordering::Relaxed);
        self.set_state(State::Failed);
    }

    /// The reason that was given.
    pub fn why(&self) -> String {
        let bytes = self.text.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
        let length = (self.length.load(Ordering::Relaxed) as usize).min(TEXT);
        String::from_utf8_lossy(&bytes.take(length).collect::<Vec<_>>()).into_owned()
    }

    /// Publish what happened so far.
    pub fn publish(&self, counters: &Counters) {
        for (word, number) in self.counters.iter().zip(counters.numbers()) {
            word.store(number, Ordering::Relaxed);
        }
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        for (number, word) in counters.numbers_mut().zip(&self.counters) {
            *number = word.load(Ordering::Relaxed);
        }
        counters
    }
}

/// A copy of another process's descriptor: whoever has `CAP_SYS_PTRACE` may have it, whatever its user.
///
/// # Errors
/// Those of the system: `ESRCH` and `EBADF` if it has ended, `EPERM`.
pub fn copy_of(pid: u32, descriptor: u32) -> io::Result<OwnedFd> {
    let owned = |fd: libc::c_long| {
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that the kernel has just made for the caller.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
    };
    // SAFETY: a system call that takes numbers.
    let process = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: as above.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), descriptor, 0) })
}

/// The file, mapped.
#[derive(Debug)]
pub struct Shared {
    start: NonNull<Block>,
}

// SAFETY: all of it is atomic.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// A new file, and its descriptor.
    ///
    /// # Errors
    /// Those of the system.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        // SAFETY: a name that ends in zero.
        let fd = unsafe { libc::memfd_create(c"nearfar-run".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that is nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let length = (BLOCKS * size_of::<Block>()) as libc::off_t;
        // SAFETY: a descriptor that is open.
        if unsafe { libc::ftruncate(fd.as_raw_fd(), length) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((Self::map(&fd)?, fd))
    }

    /// The file behind a descriptor, which need not stay open.
    ///
    /// # Errors
    /// Those of the system; `EBADF` for a file that is none of these.
    pub fn map(fd: &impl AsRawFd) -> io::Result<Self> {
        // SAFETY: a struct of numbers, which the call writes.
        let size = unsafe {
            let mut file: libc::stat = std::mem::zeroed();
            if libc::fstat(fd.as_raw_fd(), &raw mut file) < 0 { 0 } else { file.st_size }
        };
        if size != (BLOCKS * size_of::<Block>()) as libc::off_t {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        let (length, protection) =
            (BLOCKS * size_of::<Block>(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        NonNull::new(start.cast::<Block>())
            .filter(|_| start != libc::MAP_FAILED)
            .map(|start| Self { start })
            .ok_or_else(io::Error::last_os_error)
    }

    /// All blocks.
    pub fn blocks(&self) -> &[Block] {
        // SAFETY: as many as were mapped; all of a block is atomic, and any bytes are a block.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), BLOCKS) }
    }

    /// A block of one's own, by its index.
    pub fn claim(&self, pid: u32) -> Option<usize> {
        self.blocks().iter().position(|block| {
            block.pid.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire).is_ok()
        })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and no block is lent.
        unsafe { libc::munmap(self.start.as_ptr().cast(), BLOCKS * size_of::<Block>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_side_writes_the_other_reads() {
        let (ours, fd) = Shared::create().unwrap();
        let theirs = Shared::map(&fd).unwrap();
        let block = &theirs.blocks()[theirs.claim(7).unwrap()];
        assert_eq!(theirs.blocks()[theirs.claim(8).unwrap()].pid.load(Ordering::Relaxed), 8);
        let counters = Counters { first_touches: 3, far_stores: 9, ..Counters::default() };
        block.publish(&counters);
        block.fail("no room anywhere");
        let seen = &ours.blocks()[0];
        assert_eq!((seen.state(), seen.counters()), (State::Failed, counters));
        assert_eq!(seen.why(), "no room anywhere");
        block.fail(&"x".repeat(1000));
        assert_eq!(seen.why().len(), TEXT);
    }
}
