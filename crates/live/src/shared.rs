//! What managers, `nearfar run` and its viewers share: a file in memory, with a head and a block for each
//! process image that is managed now.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::Counters;
use crate::linux::monotonic;
use crate::setup::Setup;

/// Process images that one run can manage at the same time.
pub const BLOCKS: usize = 4096;
const NUMBERS: usize = size_of::<Counters>() / 8;
/// The file's name, as `/proc/PID/fd` shows it.
pub const NAME: &str = "/memfd:nearfar-run (deleted)";
/// Its length stays as it is.
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
const SIZE: usize = size_of::<Head>() + BLOCKS * size_of::<Block>();

/// A number that no process has.
pub(crate) const NOBODY: u32 = i32::MAX as u32;

/// What is written to the launcher's eventfd to call it.
pub const CALL: [u8; 8] = 1u64.to_ne_bytes();

/// What the file begins with. Another version has another: what is counted, and where it lies, is part
/// of it.
const MARK: u64 = {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    hash = mixed(hash, concat!("nearfar-run 3 ", env!("CARGO_PKG_VERSION")).as_bytes());
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
    /// The process between the launcher and the program.
    pub reaper: AtomicU32,
    /// How the program's first process has ended: a flag beside what `wait` says.
    root_status: AtomicU64,
    is_over: AtomicU32,
    exit_code: AtomicU32,
    /// When it began, in nanoseconds of CLOCK_MONOTONIC.
    pub began: AtomicU64,
    /// Most that was used at a moment that was looked at: as [`Block::used`].
    pub peak: [AtomicU64; 4],
    /// Blocks in use have lower indices.
    top: AtomicU32,
    /// Process images that have ended, and what they counted: their blocks are used again.
    past_images: AtomicU64,
    past: [AtomicU64; NUMBERS],
    past_manager_ns: AtomicU64,
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

    /// The program's first process has ended, as `wait` says.
    pub(crate) fn end_root(&self, status: i32) {
        self.root_status.store(1 << 32 | u64::from(status as u32), Ordering::Release);
    }

    /// How the program's first process has ended, if it has.
    pub fn root_ended(&self) -> Option<ExitStatus> {
        let status = self.root_status.load(Ordering::Acquire);
        (status >> 32 != 0).then(|| ExitStatus::from_raw(status as u32 as i32))
    }

    /// It is over: the exit code, and why the program was ended if it was.
    pub fn end(&self, exit_code: i32, why: Option<&str>) {
        self.exit_code.store(exit_code as u32, Ordering::Relaxed);
        self.why.set(why.unwrap_or_default());
        self.is_over.store(1, Ordering::Release);
    }

    /// Process images that have ended, their counters, and their managers' processor time in nanoseconds.
    pub fn past(&self) -> (u64, Counters, u64) {
        (
            self.past_images.load(Ordering::Relaxed),
            read(&self.past),
            self.past_manager_ns.load(Ordering::Relaxed),
        )
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
    /// Its manager cannot go on, or is gone: the run has to be killed. The block says why.
    Failed = 4,
    /// The program has ended, and its manager has nothing left to do.
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

fn read(words: &[AtomicU64; NUMBERS]) -> Counters {
    let mut counters = Counters::default();
    for (number, word) in counters.numbers_mut().zip(words) {
        *number = word.load(Ordering::Relaxed);
    }
    counters
}

/// One process image, from its start to its exec or end.
#[derive(Debug)]
#[repr(C, align(1024))]
pub struct Block {
    state: AtomicU32,
    /// Its process.
    pub pid: AtomicU32,
    /// The process that manages its memory.
    pub manager: AtomicU32,
    /// The process that keeps the manager's descriptors open.
    pub keeper: AtomicU32,
    /// Its userfaultfd, as the program has it at the start.
    pub descriptor: AtomicU32,
    /// Bytes of the manager's own memory, and pages that could not be moved when they were to leave.
    pub own_bytes: AtomicU64,
    /// See above.
    pub held_pages: AtomicU64,
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
    /// Processor time of the manager, nanoseconds.
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

    /// The process `manager` manages the memory of `program`, whose block this is; whether it still is.
    pub fn take(&self, program: u32, manager: u32) -> bool {
        let order = (Ordering::AcqRel, Ordering::Acquire);
        self.pid.load(Ordering::Acquire) == program
            && self.manager.compare_exchange(0, manager, order.0, order.1).is_ok()
    }

    /// Nobody manages this block's program, and nobody will; false if somebody does.
    pub fn give_up(&self) -> bool {
        let order = (Ordering::AcqRel, Ordering::Acquire);
        self.manager.compare_exchange(0, NOBODY, order.0, order.1).is_ok()
    }

    /// It is `to` from now on if it is `from` now; whether it was.
    pub fn change_state(&self, from: State, to: State) -> bool {
        let (from, to) = (from as u32, to as u32);
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Why it cannot go on. The first reason stays.
    pub fn fail(&self, why: &str) {
        if self.state() != State::Failed {
            self.why.set(why);
            self.set_state(State::Failed);
        }
    }

    /// The reason that was given.
    pub fn why(&self) -> String {
        self.why.get()
    }

    /// The manager works.
    pub fn beat(&self) {
        self.heartbeat.store(monotonic(), Ordering::Relaxed);
    }

    /// It was there until now, and waits for its policy in the launcher from now on, or does not any more.
    pub fn set_waits(&self, waits: bool) {
        self.beat();
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
        read(&self.counters)
    }
}

/// A copy of another process's descriptor: whoever has `CAP_SYS_PTRACE` may have it, whatever its user.
///
/// # Errors
/// Those of the system: `ESRCH` and `EBADF` if it has ended, `EPERM`.
pub fn copy_of(pid: u32, descriptor: u32) -> io::Result<OwnedFd> {
    let process = process_of(pid)?;
    // SAFETY: a system call that takes numbers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), descriptor, 0) })
}

/// A descriptor of a process, readable when that has ended.
///
/// # Errors
/// Those of the system: `ESRCH` if there is no such process.
pub fn process_of(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: a system call that takes numbers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })
}

/// A descriptor that the kernel has just made for the caller, or its error.
fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that is nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// The file, mapped.
#[derive(Debug)]
pub struct Shared {
    start: NonNull<Head>,
    inode: u64,
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
        let size = stat(fd).map_or(0, |file| file.st_size);
        // SAFETY: a descriptor that is open.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        // A file that another could shorten is nothing to be read through a mapping.
        if size != SIZE as libc::off_t || seals < 0 || seals & SEALS != SEALS {
            return refused(libc::EBADF);
        }
        let shared = Self::mapped(fd, kind)?;
        let is_ours = shared.head().mark.load(Ordering::Acquire) == MARK;
        if is_ours { Ok(shared) } else { refused(libc::EPROTO) }
    }

    fn mapped(fd: &impl AsRawFd, kind: i32) -> io::Result<Self> {
        let (protection, inode) = (libc::PROT_READ | libc::PROT_WRITE, stat(fd)?.st_ino);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), SIZE, protection, kind, fd.as_raw_fd(), 0) };
        NonNull::new(start.cast::<Head>())
            .filter(|_| start != libc::MAP_FAILED)
            .map(|start| Self { start, inode })
            .ok_or_else(io::Error::last_os_error)
    }

    /// The file's number, by which `/proc/PID/maps` shows who has it mapped.
    pub fn inode(&self) -> u64 {
        self.inode
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

    /// The blocks that are in use, in order.
    pub fn claimed(&self) -> impl Iterator<Item = (usize, u32, &Block)> {
        let top = self.head().top.load(Ordering::Acquire) as usize;
        let blocks = self.blocks()[..top.min(BLOCKS)].iter().enumerate();
        blocks
            .map(|(index, block)| (index, block.pid.load(Ordering::Acquire), block))
            .filter(|(_, pid, _)| *pid != 0)
    }

    /// A free block for this process, by its index.
    pub fn claim(&self, pid: u32) -> Option<usize> {
        let index = self.blocks().iter().position(|block| {
            block.pid.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire).is_ok()
        })?;
        self.head().top.fetch_max(index as u32 + 1, Ordering::AcqRel);
        Some(index)
    }

    /// Free the block of a process image that has ended, and keep what it counted. Only the launcher does.
    pub fn retire(&self, index: usize) {
        let (head, block) = (self.head(), &self.blocks()[index]);
        head.past_images.fetch_add(1, Ordering::Relaxed);
        let counters = head.past.iter().zip(&block.counters);
        for (sum, number) in counters.chain([(&head.past_manager_ns, &block.manager_ns)]) {
            sum.fetch_add(number.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
        for word in block.used.iter().chain(&block.peak) {
            word.store(0, Ordering::Relaxed);
        }
        for pid in [&block.manager, &block.keeper] {
            pid.store(0, Ordering::Relaxed);
        }
        block.waits.store(0, Ordering::Relaxed);
        block.set_state(State::Free);
        block.pid.store(0, Ordering::Release);
    }
}

fn stat(fd: &impl AsRawFd) -> io::Result<libc::stat> {
    // SAFETY: a struct of numbers, which the call writes.
    unsafe {
        let mut file: libc::stat = std::mem::zeroed();
        match libc::fstat(fd.as_raw_fd(), &raw mut file) {
            0 => Ok(file),
            _ => Err(io::Error::last_os_error()),
        }
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
        block.fail("another reason");
        assert_eq!(seen.why(), "no room anywhere");
        let other = &theirs.blocks()[1];
        other.fail(&"x".repeat(1000));
        assert_eq!(other.why().len(), 256);
    }

    #[test]
    fn a_block_is_used_again_and_what_it_counted_is_kept() {
        let (ours, fd) = Shared::create().unwrap();
        let theirs = Shared::map(&fd).unwrap();
        for pid in 1..=2 * BLOCKS as u32 {
            let index = theirs.claim(pid).unwrap();
            let block = &theirs.blocks()[index];
            block.publish(&Counters { faults: 2, ..Counters::default() });
            block.manager_ns.store(3, Ordering::Relaxed);
            block.set_state(State::Ended);
            // The first process lives on.
            if pid > 1 {
                assert_eq!(index, 1);
                ours.retire(index);
            }
        }
        assert_eq!(ours.claimed().map(|(_, pid, _)| pid).collect::<Vec<_>>(), [1]);
        let (images, counters, times) = ours.head().past();
        let ended = 2 * BLOCKS as u64 - 1;
        assert_eq!((images, counters.faults, times), (ended, 2 * ended, 3 * ended));
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
