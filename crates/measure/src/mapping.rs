//! Anonymous memory mappings, and the cost of touching them.

use std::io;
use std::ptr::{self, NonNull};
use std::time::Instant;

use nearfar_trace::{Error, Result};

use crate::chase::Random;
use crate::thread::{Stopwatch, faults};
use crate::work::Work;

/// Alignment of mappings: the largest page that the kernel uses by default.
const ALIGNMENT: usize = 2 << 20;
/// Number of offsets that are timed together, twice: with faults, then without.
const PIECE: usize = 64;
/// Bits of a node mask: the maximum number of nodes of a kernel.
const NODES: usize = 1024;

/// The kernel's base page size: 4096 on x86-64, 4096, 16384 or 65536 on aarch64.
fn page_bytes() -> usize {
    // SAFETY: only returns a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Which pages to request from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Base pages.
    Small,
    /// The largest that the kernel's settings allow.
    Huge,
    /// The kernel's default.
    Unasked,
}

/// Cost of touching memory.
#[derive(Clone, Copy, Debug)]
pub struct Touched {
    /// Total time, nanoseconds.
    pub ns: f64,
    pub faults: u64,
}

/// Memory that is untouched at first, and unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to this value, and is not bound to a thread.
unsafe impl Send for Mapping {}
// SAFETY: writes require `&mut`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Map `bytes`, on the memory node `node` if given.
    ///
    /// # Errors
    /// The kernel denies it.
    pub fn new(bytes: usize, pages: Pages, node: Option<usize>) -> Result<Self> {
        let refused = |doing: &str| {
            let why = io::Error::last_os_error();
            Error::input("memory", format!("{bytes} bytes: {doing}: {why}"), "free memory")
        };
        // Map `reserve` bytes and keep an aligned part.
        let Some(reserve) = bytes.checked_add(ALIGNMENT) else {
            return Err(Error::input("memory", format!("{bytes} bytes"), "ask for less"));
        };
        // SAFETY: a new mapping at any address.
        let mapped = unsafe {
            let (read_write, private) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(ptr::null_mut(), reserve, read_write, private | libc::MAP_NORESERVE, -1, 0)
        };
        let Some(mapped) = NonNull::new(mapped).filter(|_| mapped != libc::MAP_FAILED) else {
            return Err(refused("mmap"));
        };
        let mapped = mapped.cast::<u8>();
        let before = mapped.as_ptr().align_offset(ALIGNMENT);
        let end = before + bytes.next_multiple_of(page_bytes());
        // SAFETY: both ends are in the mapping, which no other code uses yet; `end` is below
        // `reserve` because `before` is less than the alignment.
        let start = unsafe {
            libc::munmap(mapped.as_ptr().cast(), before);
            libc::munmap(mapped.as_ptr().add(end).cast(), reserve.saturating_sub(end));
            mapped.add(before)
        };
        let memory = Self { start, bytes };
        let advice = match pages {
            Pages::Small => Some(libc::MADV_NOHUGEPAGE),
            Pages::Huge => Some(libc::MADV_HUGEPAGE),
            Pages::Unasked => None,
        };
        // A kernel without huge pages rejects `advice` and uses small ones. `DONTFORK`, because a child that
        // shares the memory would keep it allocated after this process unmaps it.
        for advice in advice.into_iter().chain([libc::MADV_DONTFORK]) {
            // SAFETY: the memory is ours, and the advice does not change its contents.
            unsafe { libc::madvise(memory.start.as_ptr().cast(), bytes, advice) };
        }
        if let Some(node) = node {
            let mut mask = [0_u64; NODES / 64];
            let Some(word) = mask.get_mut(node / 64) else {
                return Err(Error::input("memory", format!("there is no node {node}"), ""));
            };
            *word |= 1 << (node % 64);
            // SAFETY: the mask has the stated length (the kernel subtracts one bit).
            let done = unsafe {
                libc::syscall(
                    libc::SYS_mbind,
                    memory.start.as_ptr(),
                    bytes,
                    libc::MPOL_BIND,
                    mask.as_ptr(),
                    NODES + 1,
                    0,
                )
            };
            if done != 0 {
                return Err(refused(&format!("mbind to node {node}")));
            }
        }
        Ok(memory)
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Write one byte of every `step`. Returns processor time and minor faults. With `work`, a part of
    /// the work follows each write, and the time of the same writes and work on resident pages is
    /// subtracted.
    pub fn write(&mut self, step: usize, work: Option<&mut Work>) -> Touched {
        self.touch(step, work, |address| {
            // SAFETY: `touch` passes addresses in the memory, which `&mut self` lends.
            unsafe { address.write_volatile(1) }
        })
    }

    /// [`Self::write`], but with reads.
    pub fn read(&self, step: usize, work: Option<&mut Work>) -> Touched {
        self.touch(step, work, |address| {
            // SAFETY: `touch` passes addresses in the memory, which the kernel has filled with
            // zeros.
            let _ = unsafe { address.read_volatile() };
        })
    }

    fn touch(&self, step: usize, work: Option<&mut Work>, access: impl Fn(*mut u8)) -> Touched {
        // SAFETY: less than the size.
        let each = |offset: usize| access(unsafe { self.start.as_ptr().add(offset) });
        let offsets = || (0..self.bytes).step_by(step.max(1));
        let before = faults().0;
        let ns = match work {
            None => {
                let began = Stopwatch::start();
                offsets().for_each(each);
                began.each(1)
            }
            Some(work) => {
                let mut time = |piece: &[usize]| {
                    work.begin();
                    let began = Stopwatch::start();
                    for offset in piece {
                        each(*offset);
                        work.part();
                    }
                    began.each(1)
                };
                let offsets: Vec<usize> = offsets().collect();
                // Alternate runs with and without faults, because the time of the work drifts.
                let pieces = offsets.chunks(PIECE);
                pieces.map(|piece| time(piece) - time(piece)).sum::<f64>().max(0.0)
            }
        };
        Touched { ns, faults: faults().0.saturating_sub(before) }
    }

    /// Fill the memory with words, every other one random, so that it compresses to about half.
    pub fn fill(&mut self) {
        let mut random = Random(self.bytes as u64);
        self.words_mut().iter_mut().step_by(2).for_each(|word| *word = random.below(u64::MAX));
    }

    /// Swap the memory out. Returns nanoseconds by the wall clock.
    ///
    /// # Errors
    /// The kernel cannot.
    pub fn page_out(&mut self) -> Result<f64> {
        let began = Instant::now();
        // SAFETY: the contents of the memory do not change.
        let done =
            unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes, libc::MADV_PAGEOUT) };
        if done != 0 {
            let why = io::Error::last_os_error();
            return Err(Error::missing("swap", format!("madvise(MADV_PAGEOUT): {why}"), ""));
        }
        Ok(began.elapsed().as_nanos() as f64)
    }

    /// Read one byte of every `step`, in random order. Returns nanoseconds by the wall clock, and major
    /// faults.
    pub fn read_at_random(&self, step: usize) -> Touched {
        let mut order: Vec<usize> = (0..self.bytes).step_by(step.max(1)).collect();
        Random(1).shuffle(&mut order);
        let (before, began) = (faults().1, Instant::now());
        for offset in order {
            // SAFETY: below the size, of memory that the kernel or this process has filled.
            let _ = unsafe { self.start.as_ptr().add(offset).read_volatile() };
        }
        let ns = began.elapsed().as_nanos() as f64;
        Touched { ns, faults: faults().1.saturating_sub(before) }
    }

    pub(crate) fn words(&self) -> &[u64] {
        // SAFETY: aligned and initialised; `&self` lends it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.bytes / 8) }
    }

    pub(crate) fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: as above, and `&mut self` lends it.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.bytes / 8) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and not borrowed.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first run of code faults, and an emulator allocates memory to translate it: run it once before
    /// faults are counted.
    fn warm_up(mut work: Option<&mut Work>) {
        let mut memory = Mapping::new(1 << 20, Pages::Small, None).unwrap();
        memory.read(4096, work.as_deref_mut());
        memory.write(4096, work);
    }

    #[test]
    fn memory_is_aligned_zero_and_faults_once_a_page() {
        warm_up(None);
        let mut memory = Mapping::new(8 << 20, Pages::Small, None).unwrap();
        assert!(memory.start.as_ptr().addr().is_multiple_of(ALIGNMENT));
        let page = page_bytes();
        let pages = (8 << 20) / page;
        assert_eq!(memory.write(page, None).faults, pages as u64);
        assert_eq!(memory.write(page, None).faults, 0);
        let ones = memory.words().iter().filter(|word| **word == 1).count();
        assert_eq!((ones, memory.words().len()), (pages, 1 << 20));
        assert!(memory.words().iter().all(|word| *word <= 1));
    }

    #[test]
    fn each_page_faults_once_during_work() {
        let mut work = Work::new().unwrap();
        warm_up(Some(&mut work));
        let mut memory = Mapping::new(1 << 20, Pages::Small, None).unwrap();
        let page = page_bytes();
        let touched = memory.write(page, Some(&mut work));
        // The time is not checked: it is a difference, which may be 0 on a busy machine.
        assert_eq!(touched.faults, ((1 << 20) / page) as u64);
        assert_eq!(memory.write(page, Some(&mut work)).faults, 0);
    }

    #[test]
    fn reading_gives_pages_of_zeros_that_writing_replaces() {
        warm_up(None);
        let mut memory = Mapping::new(1 << 20, Pages::Small, None).unwrap();
        let page = page_bytes();
        let pages = ((1 << 20) / page) as u64;
        assert_eq!(memory.read(page, None).faults, pages);
        assert_eq!(memory.write(page, None).faults, pages);
    }

    /// Without swap, pages stay in memory and do not fault.
    #[test]
    fn paged_out_memory_keeps_its_contents() {
        let mut memory = Mapping::new(1 << 20, Pages::Small, None).unwrap();
        memory.fill();
        let before = memory.words().to_vec();
        assert!(memory.page_out().unwrap() > 0.0);
        assert!(memory.read_at_random(4096).faults <= 256);
        assert!(memory.words() == before && before.iter().any(|word| *word > 0));
        assert_eq!(memory.read_at_random(4096).faults, 0);
    }

    #[test]
    fn what_the_kernel_refuses_is_an_error() {
        assert!(Mapping::new(usize::MAX - 4096, Pages::Small, None).is_err());
        assert!(Mapping::new(1 << 62, Pages::Small, None).is_err());
        for node in [1 << 20, NODES - 1] {
            assert!(Mapping::new(4096, Pages::Small, Some(node)).is_err());
        }
    }
}
