//! The sign that the receiver lives, which every process that has the shared memory can see.
//!
//! The kernel keeps it ([`Header::receiver`](crate::layout::Header::receiver)): a thread owns the word
//! as a robust futex, and whatever ends the thread, SIGKILL included, the kernel marks the word.
//! A program that changes its user, its root or its namespaces sees that all the same.

use std::io;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};

use crate::layout::WAITERS;

/// Owns the word; when it is dropped, the kernel marks that.
#[derive(Debug)]
pub(crate) struct Alive {
    /// What the word is as long as all is well.
    pub word: u32,
    end: Option<Sender<()>>,
    /// Gives back what the kernel reads after the thread's stack is gone.
    thread: Option<JoinHandle<Option<Box<Robust>>>>,
}

/// `struct robust_list_head` of the kernel, with the one lock that is in the list: addresses.
#[derive(Debug, Default)]
#[repr(C)]
struct Robust {
    first: usize,
    /// From an entry of the list to its futex.
    offset: usize,
    pending: usize,
    /// The entry, which leads back to the head.
    entry: usize,
}

impl Alive {
    /// Own `word`.
    ///
    /// # Safety
    /// It stays where it is until this value is dropped.
    pub unsafe fn own(word: &AtomicU32) -> io::Result<Self> {
        let (end, ends) = channel::<()>();
        let (ready, begun) = channel();
        let word = word.as_ptr().expose_provenance();
        let hold = move || {
            let mut robust = Box::default();
            let owner = hold(word, &mut robust);
            let holds = owner.is_ok();
            let _ = ready.send(owner);
            let _ = ends.recv();
            holds.then_some(robust)
        };
        let thread = Builder::new().name("nearfar-alive".into()).spawn(hold)?;
        let word = begun.recv().map_err(io::Error::other)??;
        Ok(Self { word, end: Some(end), thread: Some(thread) })
    }
}

/// Let the calling thread own the futex at `word`, by `robust`, which is there until the thread has
/// ended. Answers what the word is now.
fn hold(word: usize, robust: &mut Robust) -> io::Result<u32> {
    robust.first = (&raw const robust.entry).expose_provenance();
    robust.entry = (&raw const robust.first).expose_provenance();
    robust.offset = word.wrapping_sub(robust.first);
    let (head, size) = (&raw const *robust, 3 * size_of::<usize>());
    // SAFETY: the kernel reads the head and its list; the C library's own list, which this one takes
    // the place of, is empty, as this thread takes no robust locks.
    if unsafe { libc::syscall(libc::SYS_set_robust_list, head, size) } != 0 {
        let error = io::Error::last_os_error();
        // QEMU in user mode has none: tests of all but the owner's end go on without.
        if !(cfg!(test) && error.raw_os_error() == Some(libc::ENOSYS)) {
            return Err(error);
        }
    }
    // SAFETY: asks only.
    let owner = unsafe { libc::gettid() }.cast_unsigned() | WAITERS;
    // SAFETY: a word that stays, says the caller of `own`; accessed as an atomic everywhere.
    let futex = unsafe { AtomicU32::from_ptr(std::ptr::with_exposed_provenance_mut(word)) };
    futex.store(owner, SeqCst);
    Ok(owner)
}

impl Drop for Alive {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Whether the kernel marks the end of the owner; a test that needs it says that it is not run.
#[cfg(test)]
pub(crate) fn is_marked() -> bool {
    // SAFETY: a list of no size, which is refused.
    let answer = unsafe { libc::syscall(libc::SYS_set_robust_list, std::ptr::null::<u8>(), 0) };
    assert_eq!(answer, -1);
    let error = io::Error::last_os_error();
    let is_marked = error.raw_os_error() != Some(libc::ENOSYS);
    if !is_marked {
        not_run(&format!("set_robust_list: {error}"));
    }
    is_marked
}

/// Say that the calling test is not run, and why.
#[cfg(test)]
pub(crate) fn not_run(why: &str) {
    use std::io::Write;

    // Not `eprintln`, which the test harness keeps to itself when a test passes.
    let (test, mut stderr) = (std::thread::current(), io::stderr());
    let _ = writeln!(stderr, "{}: not run: {why}", test.name().unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::OWNER_DIED;

    #[test]
    fn the_kernel_marks_the_end_of_the_owner() {
        if !is_marked() {
            return;
        }
        let word = Box::new(AtomicU32::new(0));
        // SAFETY: dropped before the word is.
        let alive = unsafe { Alive::own(&word) }.unwrap();
        assert_eq!(word.load(SeqCst), alive.word);
        assert_eq!(alive.word & OWNER_DIED, 0);
        drop(alive);
        assert_eq!(word.load(SeqCst), WAITERS | OWNER_DIED);
    }
}
