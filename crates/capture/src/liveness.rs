//! Lets every process that maps the shared memory see whether the receiver is alive.
//!
//! A thread owns the word [`Header::receiver`](crate::layout::Header::receiver) as a robust futex.
//! However the thread ends, SIGKILL included, the kernel marks the word. A program that changes its
//! user, root or namespaces still sees the mark.

use std::io;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};

use crate::layout::WAITERS;

/// Owns the word. When this value is dropped, the kernel marks the word.
#[derive(Debug)]
pub(crate) struct Liveness {
    /// Value of the word while the owner is alive.
    pub word: u32,
    end: Option<Sender<()>>,
    /// Returns the list: the kernel reads it at thread exit, after the closure's variables are dropped.
    thread: Option<JoinHandle<Option<Box<RobustList>>>>,
}

/// The kernel's `struct robust_list_head`, with the only lock in the list. All fields but `offset`
/// are addresses.
#[derive(Debug, Default)]
#[repr(C)]
struct RobustList {
    first: usize,
    /// From an entry to its futex, in bytes.
    offset: usize,
    pending: usize,
    /// The only entry, which points back to the head.
    entry: usize,
}

impl Liveness {
    /// Own `word`.
    ///
    /// # Safety
    /// The word must not move until this value is dropped.
    pub unsafe fn own(word: &AtomicU32) -> io::Result<Self> {
        let (end, ended) = channel::<()>();
        let (ready, started) = channel();
        let word = word.as_ptr().expose_provenance();
        let run = move || {
            let mut list = Box::default();
            let owner = own_futex(word, &mut list);
            let is_owned = owner.is_ok();
            let _ = ready.send(owner);
            let _ = ended.recv();
            is_owned.then_some(list)
        };
        let thread = Builder::new().name("nearfar-alive".into()).spawn(run)?;
        let word = started.recv().map_err(io::Error::other)??;
        Ok(Self { word, end: Some(end), thread: Some(thread) })
    }
}

/// Make the calling thread own the futex at `word` through `list`, which must outlive the thread.
/// Returns the new value of the word.
fn own_futex(word: usize, list: &mut RobustList) -> io::Result<u32> {
    list.first = (&raw const list.entry).expose_provenance();
    list.entry = (&raw const list.first).expose_provenance();
    list.offset = word.wrapping_sub(list.first);
    let (head, size) = (&raw const *list, 3 * size_of::<usize>());
    // SAFETY: the kernel reads the head and its list. It replaces the C library's list, which is
    // empty, because this thread takes no robust locks.
    if unsafe { libc::syscall(libc::SYS_set_robust_list, head, size) } != 0 {
        let error = io::Error::last_os_error();
        // QEMU in user mode has no robust futexes. Tests ignore that; those in which the owner must
        // be seen to end are skipped (`is_supported`).
        if !(cfg!(test) && error.raw_os_error() == Some(libc::ENOSYS)) {
            return Err(error);
        }
    }
    // SAFETY: only returns a number.
    let owner = unsafe { libc::gettid() }.cast_unsigned() | WAITERS;
    // SAFETY: the word does not move (contract of `own`), and is accessed as an atomic everywhere.
    let futex = unsafe { AtomicU32::from_ptr(std::ptr::with_exposed_provenance_mut(word)) };
    futex.store(owner, SeqCst);
    Ok(owner)
}

impl Drop for Liveness {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Whether the kernel supports robust futexes. If not, prints that the calling test is not run.
#[cfg(test)]
pub(crate) fn is_supported() -> bool {
    // SAFETY: a list of size 0, which the kernel rejects.
    let answer = unsafe { libc::syscall(libc::SYS_set_robust_list, std::ptr::null::<u8>(), 0) };
    assert_eq!(answer, -1);
    let error = io::Error::last_os_error();
    let is_supported = error.raw_os_error() != Some(libc::ENOSYS);
    if !is_supported {
        not_run(&format!("set_robust_list: {error}"));
    }
    is_supported
}

/// Print that the calling test is not run, and why.
#[cfg(test)]
pub(crate) fn not_run(why: &str) {
    use std::io::Write;

    // The test harness hides the output of `eprintln` if the test passes.
    let (test, mut stderr) = (std::thread::current(), io::stderr());
    let _ = writeln!(stderr, "{}: not run: {why}", test.name().unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::OWNER_DIED;

    #[test]
    fn the_kernel_marks_the_end_of_the_owner() {
        if !is_supported() {
            return;
        }
        let word = Box::new(AtomicU32::new(0));
        // SAFETY: dropped before the word is.
        let alive = unsafe { Liveness::own(&word) }.unwrap();
        assert_eq!(word.load(SeqCst), alive.word);
        assert_eq!(alive.word & OWNER_DIED, 0);
        drop(alive);
        assert_eq!(word.load(SeqCst), WAITERS | OWNER_DIED);
    }
}
