//! What a manager, `nearfar run` and who watches it share: a file in memory, with a head and a block for
//! each process image.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::Counters;
use crate::linux::monotonic;
use crate::setup::Setup;

/// Processes that one run may have, execs counted each.
pub const BLOCKS: usize = 4096;
const NUMBERS: usize = size_of::<Counters>() / 8;
/// The file's name, as `/proc/PID/fd` shows it.
pub const NAME: &str = "/memfd:nearfar-run (deleted)";
/// Its length stays as it is.
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
const SIZE: usize = size_of::<Head>() + BLOCKS * size_of::<Block>();

/// What the file begins with. Another version has another: what is counted, and where it lies, is part
/// of it.
const MARK: u64 = {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    hash = mixed(hash, concat!("nearfar-run 2 ", env!("CARGO_PKG_VERSION")).as_bytes());
    hash = mixed(hash, &(SIZE as u64).to_le_bytes());
    let mut at = 0;
    while at < Counters::NAMES.len() {
        hash = mixed(hash, Counters::NAMES[at].0.as_bytes());
        at += 1;
    }
    hash
};

/// FNV-1a.
const fn mixed(mut hash: u64, bytes: &[u8]) -> u64 {
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash
}

/// A text of at most `4 * WORDS` bytes.
#[derive(Debug)]
#[repr(C)]
struct Text<const WORDS: usize> {
    length: AtomicU32,
    words: [AtomicU32; WORDS],
}

impl<const WORDS: usize> Text<WORDS> {
    fn set(&self, text: &str) {
        let bytes = &text.as_bytes()[..text.len().min(4 * WORDS)];
        for (word, chunk) in self.words.iter().zip(bytes.chunks(4)) {
            let mut four = [0; 4];
            four[..chunk.len()].copy_from_slice(chunk);
            word.store(u32::from_le_bytes(four), Ordering::Relaxed);
        }
        self.length.store(bytes.len() as u32, Ordering::Relaxed);
    }

    fn get(&self) -> String {
        let bytes = self.words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
        let length = (self.length.load(Ordering::Relaxed) as usize).min(4 * WORDS);
        String::from_utf8_lossy(&bytes.take(length).collect::<Vec<_>>()).into_owned()
    }
}

/// The run as a whole. The launcher writes it.
#[derive(Debug)]
#[repr(C, align(8192))]
pub struct Head {
    mark: AtomicU64,
    /// The launcher.
    pub launcher: AtomicU32,
    is_over: AtomicU32,
    exit_code: AtomicU32,
    /// When it began, in nanoseconds of CLOCK_MONOTONIC.
    pub began: AtomicU64,
    /// Most that was used at a moment that was looked at: as [`Block::used`].
    pub peak: [AtomicU64; 4],
    setup: Text<1600>,
    why: Text<64>,
}

impl Head {
    /// How it is run. Of knobs that are too long the last are not there.
    pub fn setup(&self) -> Setup {
        let text = self.setup.get();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        Setup::from_text(whole).unwrap_or_default()
    }

    /// It is over: the exit code, and why the program was ended if it was.
    pub fn end(&self, exit_code: i32, why: Option<&str>) {
        self.exit_code.store(exit_code as u32, Ordering::Relaxed);
        self.why.set(why.unwrap_or_default());
        self.is_over.store(1, Ordering::Release);
    }

    /// What [`end`](Self::end) was told, once it was.
    pub fn ended(&self) -> Option<(i32, Option<String>)> {
        let is_over = self.is_over.load(Ordering::Acquire) != 0;
        let why = Some(self.why.get()).filter(|why| !why.is_empty());
        is_over.then(|| (self.exit_code.load(Ordering::Relaxed) as i32, why))
    }
}

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
    /// It waits until the supervisor has its end of the socket to the policy.
    Asking = 6,
    /// The policy is there, and begins.
    Answered = 7,
}

impl State {
    fn of(number: u32) -> Self {
        use State::{Answered, Asking, Ended, Failed, Free, Held, Ready, Running};
        [Free, Ready, Held, Running, Failed, Asking, Answered]
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
    /// The launcher's end of the socket to its policy.
    pub socket: AtomicU32,
    /// Whether it waits for that policy.
    waits: AtomicU32,
    /// When its manager last went round, in nanoseconds of CLOCK_MONOTONIC.
    pub heartbeat: AtomicU64,
    /// Fast pages, far pages and shadows, pages of the window, bytes of the far tier.
    pub used: [AtomicU64; 4],
    /// The most of these at a moment that the launcher looked at, which writes them.
    pub peak: [AtomicU64; 4],
    /// Processor time of the manager's thread, nanoseconds; some 40 ms old.
    pub manager_ns: AtomicU64,
    counters: [AtomicU64; NUMBERS],
    why: Text<64>,
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
        self.why.set(why);
        self.set_state(State::Failed);
    }

    /// The reason that was given.
    pub fn why(&self) -> String {
        self.why.get()
    }

    /// It was there until now, and waits for its policy in the launcher from now on, or does not any more.
    pub fn set_waits(&self, waits: bool) {
        self.heartbeat.store(monotonic(), Ordering::Relaxed);
        self.waits.store(waits.into(), Ordering::Relaxed);
    }

    /// Whether it waits for its policy.
    pub fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed) != 0
    }

    /// Publish what happened so far.
    pub fn publish(&self, counters: &Counters) {
        for (word, number) in self.counters.iter().zip(counters.numbers()) {
            word.store(number, Ordering::Relaxed);
        }
    }

    /// Fast pages, far pages and shadows, pages of the window, bytes of the far tier now.
    pub fn used(&self) -> [u64; 4] {
        std::array::from_fn(|i| self.used[i].load(Ordering::Relaxed))
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
    start: NonNull<Head>,
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
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a name that ends in zero.
        let fd = unsafe { libc::memfd_create(c"nearfar-run".as_ptr(), flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that is nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: a descriptor that is open, and numbers.
        let made = unsafe {
            libc::ftruncate(fd.as_raw_fd(), SIZE as libc::off_t) >= 0
                && libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS) >= 0
        };
        if !made {
            return Err(io::Error::last_os_error());
        }
        let shared = Self::mapped(&fd, libc::MAP_SHARED)?;
        shared.head().mark.store(MARK, Ordering::Release);
        Ok((shared, fd))
    }

    /// The file behind a descriptor, which need not stay open.
    ///
    /// # Errors
    /// Those of the system; `EBADF` for a file that is none of these, `EPROTO` for one of another version
    /// of nearfar.
    pub fn map(fd: &impl AsRawFd) -> io::Result<Self> {
        Self::checked(fd, libc::MAP_SHARED)
    }

    /// The same, for who only reads it: nothing can be written to it by mistake, and the descriptor
    /// need not be open for writing.
    ///
    /// # Errors
    /// Those of [`map`](Self::map).
    pub fn map_to_read(fd: &impl AsRawFd) -> io::Result<Self> {
        // Pages that are not written to are those of the file, whatever others write there.
        Self::checked(fd, libc::MAP_PRIVATE)
    }

    fn checked(fd: &impl AsRawFd, kind: i32) -> io::Result<Self> {
        let refused = |number| Err(io::Error::from_raw_os_error(number));
        // SAFETY: a struct of numbers, which the call writes.
        let (size, seals) = unsafe {
            let mut file: libc::stat = std::mem::zeroed();
            let failed = libc::fstat(fd.as_raw_fd(), &raw mut file) < 0;
            let size = if failed { 0 } else { file.st_size };
            (size, libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS))
        };
        // A file that another could shorten is nothing to be read through a mapping.
        if size != SIZE as libc::off_t || seals < 0 || seals & SEALS != SEALS {
            return refused(libc::EBADF);
        }
        let shared = Self::mapped(fd, kind)?;
        let is_ours = shared.head().mark.load(Ordering::Acquire) == MARK;
        if is_ours { Ok(shared) } else { refused(libc::EPROTO) }
    }

    fn mapped(fd: &impl AsRawFd, kind: i32) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), SIZE, protection, kind, fd.as_raw_fd(), 0) };
        NonNull::new(start.cast::<Head>())
            .filter(|_| start != libc::MAP_FAILED)
            .map(|start| Self { start })
            .ok_or_else(io::Error::last_os_error)
    }

    /// The run as a whole.
    pub fn head(&self) -> &Head {
        // SAFETY: the mapping begins with it; all of it is atomic, and any bytes are one.
        unsafe { self.start.as_ref() }
    }

    /// Say who runs what. Before anything is started.
    pub fn begin(&self, setup: &Setup, began: u64) {
        let head = self.head();
        head.launcher.store(setup.launcher, Ordering::Relaxed);
        head.began.store(began, Ordering::Relaxed);
        head.setup.set(&(setup.to_text() + "\n"));
    }

    /// All blocks.
    pub fn blocks(&self) -> &[Block] {
        // SAFETY: they come after the head, as many as were mapped; all of a block is atomic, and any
        // bytes are a block.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(1).cast(), BLOCKS) }
    }

    /// The blocks that are somebody's, in order.
    pub fn claimed(&self) -> impl Iterator<Item = (usize, u32, &Block)> {
        let with_pid = |block: &Block| block.pid.load(Ordering::Acquire);
        let blocks = self.blocks().iter().enumerate();
        blocks
            .map(move |(index, block)| (index, with_pid(block), block))
            .take_while(|(_, pid, _)| *pid != 0)
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
        unsafe { libc::munmap(self.start.as_ptr().cast(), SIZE) };
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
        assert_eq!(seen.why().len(), 256);
    }

    #[test]
    fn who_reads_sees_what_is_written_later_and_writes_nothing() {
        let (ours, fd) = Shared::create().unwrap();
        let reader = Shared::map_to_read(&fd).unwrap();
        let setup = Setup {
            fast: 5 << 20,
            far: "file:/a b".into(),
            knobs: [("notice".into(), "x".repeat(7000))].into(),
            ..Setup::default()
        };
        ours.begin(&setup, 9);
        ours.claim(7).unwrap();
        assert_eq!(
            reader.claimed().map(|(index, pid, _)| (index, pid)).collect::<Vec<_>>(),
            [(0, 7)]
        );
        // The knob was too long.
        assert_eq!(reader.head().setup(), Setup { knobs: [].into(), ..setup });
        assert_eq!(reader.head().ended(), None);
        ours.head().end(137, Some("it hangs"));
        assert_eq!(reader.head().ended(), Some((137, Some("it hangs".to_owned()))));
        reader.head().launcher.store(3, Ordering::Relaxed);
        assert_eq!(ours.head().launcher.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_file_of_another_version_is_refused() {
        let (ours, fd) = Shared::create().unwrap();
        ours.head().mark.store(MARK + 1, Ordering::Relaxed);
        for map in [Shared::map, Shared::map_to_read] {
            assert_eq!(map(&fd).unwrap_err().raw_os_error(), Some(libc::EPROTO));
        }
        let other = tempfile::tempfile().unwrap();
        other.set_len(SIZE as u64).unwrap();
        assert_eq!(Shared::map_to_read(&other).unwrap_err().raw_os_error(), Some(libc::EBADF));
    }
}
