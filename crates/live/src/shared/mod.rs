//! Memory that `nearfar run`, its viewers and the managers of the programs' memory ([`crate::Manager`])
//! share: a memfd with a head, and a block for each managed process image (a process from its start or an
//! exec to the next exec or its end).

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{self, MemfdFlags, SealFlags};

pub(crate) use self::block::NOBODY;
pub use self::block::{Block, State};
pub use self::head::Head;
use crate::Counters;
use crate::setup::Setup;

mod block;
mod head;
mod text;

/// Maximum number of process images that one run manages at the same time.
pub const BLOCKS: usize = 4096;
const COUNTERS: usize = size_of::<Counters>() / 8;
/// The file's name in `/proc/PID/fd`.
pub const NAME: &str = "/memfd:nearfar-run (deleted)";
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
const SIZE: usize = size_of::<Head>() + BLOCKS * size_of::<Block>();

/// Written to the launcher's eventfd to wake it.
pub const CALL: [u8; 8] = 1u64.to_ne_bytes();

/// The file's magic number. It depends on the version, the layout and the counters.
const MAGIC: u64 = {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    hash = mixed(hash, concat!("nearfar-run 4 ", env!("CARGO_PKG_VERSION")).as_bytes());
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

/// The mapped file.
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
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = fs::memfd_create(c"nearfar-run", flags)?;
        fs::ftruncate(&fd, SIZE as u64)?;
        fs::fcntl_add_seals(&fd, SEALS)?;
        let shared = Self::map_unchecked(&fd, libc::MAP_SHARED)?;
        shared.head().magic.store(MAGIC, Ordering::Release);
        Ok((shared, fd))
    }

    /// Map the file of a descriptor, which need not stay open.
    ///
    /// # Errors
    /// Those of the system; `EBADF` for another file, `EPROTO` for that of another version of nearfar.
    pub fn map(fd: &impl AsFd) -> io::Result<Self> {
        Self::map_checked(fd, libc::MAP_SHARED)
    }

    /// Map the file of a descriptor to read it. The descriptor need not be open for writing.
    ///
    /// # Errors
    /// Those of [`map`](Self::map).
    pub fn map_to_read(fd: &impl AsFd) -> io::Result<Self> {
        // A private mapping shows the writes of other processes until this process writes the page.
        Self::map_checked(fd, libc::MAP_PRIVATE)
    }

    fn map_checked(fd: &impl AsFd, kind: i32) -> io::Result<Self> {
        let refused = |number| Err(io::Error::from_raw_os_error(number));
        let size = fs::fstat(fd).map_or(0, |file| file.st_size);
        let seals = fs::fcntl_get_seals(fd).unwrap_or(SealFlags::empty());
        // If another process could truncate the file, reading the mapping might raise SIGBUS.
        if size != SIZE as i64 || !seals.contains(SEALS) {
            return refused(libc::EBADF);
        }
        let shared = Self::map_unchecked(fd, kind)?;
        let is_ours = shared.head().magic.load(Ordering::Acquire) == MAGIC;
        if is_ours { Ok(shared) } else { refused(libc::EPROTO) }
    }

    fn map_unchecked(fd: &impl AsFd, kind: i32) -> io::Result<Self> {
        let (protection, inode) = (libc::PROT_READ | libc::PROT_WRITE, fs::fstat(fd)?.st_ino);
        let fd = fd.as_fd().as_raw_fd();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), SIZE, protection, kind, fd, 0) };
        NonNull::new(start.cast::<Head>())
            .filter(|_| start != libc::MAP_FAILED)
            .map(|start| Self { start, inode })
            .ok_or_else(io::Error::last_os_error)
    }

    /// The file's inode number, as in `/proc/PID/maps`.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    pub fn head(&self) -> &Head {
        // SAFETY: the mapping begins with the head; all of it is atomic, and any bytes are valid.
        unsafe { self.start.as_ref() }
    }

    /// Record the run's setup before anything is started, without the knobs, which may be too long.
    pub fn begin(&self, setup: &Setup, began: u64) {
        let head = self.head();
        head.launcher.store(setup.launcher, Ordering::Relaxed);
        head.began.store(began, Ordering::Relaxed);
        head.setup.set(&Setup { knobs: BTreeMap::new(), ..setup.clone() }.to_text());
    }

    pub fn blocks(&self) -> &[Block] {
        // SAFETY: the blocks follow the head in the mapping; all of it is atomic, and any bytes are valid.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(1).cast(), BLOCKS) }
    }

    /// The blocks in use, by index. An item is the index, the PID of the process, and the block.
    pub fn claimed(&self) -> impl Iterator<Item = (usize, u32, &Block)> {
        let top = self.head().top.load(Ordering::Acquire) as usize;
        let blocks = self.blocks()[..top.min(BLOCKS)].iter().enumerate();
        blocks
            .map(|(index, block)| (index, block.pid.load(Ordering::Acquire), block))
            .filter(|(_, pid, _)| *pid != 0)
    }

    /// Claim a free block for the process `pid`. Returns its index; `None` if all are in use.
    pub fn claim(&self, pid: u32) -> Option<usize> {
        let index = self.blocks().iter().position(|block| {
            block.pid.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire).is_ok()
        })?;
        self.head().top.fetch_max(index as u32 + 1, Ordering::AcqRel);
        Some(index)
    }

    /// Free the block of a process image that has ended, and add its counters to the head. Only the
    /// launcher may call this.
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

fn read_counters(words: &[AtomicU64; COUNTERS]) -> Counters {
    let mut counters = Counters::default();
    for (number, word) in counters.numbers_mut().zip(words) {
        *number = word.load(Ordering::Relaxed);
    }
    counters
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped by `map_unchecked`, and no block is borrowed.
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
    fn a_retired_block_is_reused_and_its_counts_are_kept() {
        let (ours, fd) = Shared::create().unwrap();
        let theirs = Shared::map(&fd).unwrap();
        for pid in 1..=2 * BLOCKS as u32 {
            let index = theirs.claim(pid).unwrap();
            let block = &theirs.blocks()[index];
            block.publish(&Counters { faults: 2, ..Counters::default() });
            block.manager_ns.store(3, Ordering::Relaxed);
            block.set_state(State::Ended);
            // The first process keeps running.
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
    fn a_reader_sees_later_writes_and_cannot_write() {
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
        ours.head().magic.store(MAGIC + 1, Ordering::Relaxed);
        for map in [Shared::map, Shared::map_to_read] {
            assert_eq!(map(&fd).unwrap_err().raw_os_error(), Some(libc::EPROTO));
        }
        let other = tempfile::tempfile().unwrap();
        other.set_len(SIZE as u64).unwrap();
        assert_eq!(Shared::map_to_read(&other).unwrap_err().raw_os_error(), Some(libc::EBADF));
    }
}
