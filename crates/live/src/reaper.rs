//! The reaper: a process between the launcher and the program, which waits for all that ends in a run.
//!
//! Managers outlive the processes that they serve, and keepers the managers, so they are orphans in the end.
//! Orphans go to the nearest subreaper, which is this process: the launcher may be somebody's Python with
//! children of its own, and process 1 of a container often waits for nobody.

use std::io;
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use crate::shared::{self, Head};

/// To be called between fork and exec: the caller becomes the reaper, and a child of it returns, to become
/// the program. Both end with their parent. The bell is called when the program has ended.
///
/// # Errors
/// Those of the system.
pub(crate) fn split(head: &Head, bell: RawFd) -> io::Result<()> {
    // SAFETY: system calls that take numbers; a fork without libc's handlers, as the caller may be the copy
    // of a process with threads, and only makes system calls.
    unsafe {
        die_with(head.launcher.load(Ordering::Relaxed));
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
        let own = libc::getpid() as u32;
        head.reaper.store(own, Ordering::Relaxed);
        match libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                die_with(own);
                Ok(())
            }
            root => reap(root as libc::pid_t, head, bell),
        }
    }
}

/// Be killed when the parent ends. If it has ended already, nobody is there to hear of an error.
fn die_with(parent: u32) {
    // SAFETY: system calls that take numbers.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() as u32 != parent {
            libc::_exit(128 + libc::SIGKILL);
        }
    }
}

/// Wait for everybody, until nobody is left.
fn reap(root: libc::pid_t, head: &Head, bell: RawFd) -> ! {
    // SAFETY: system calls that take numbers, a set of signals, a name that ends in zero, and a variable of
    // this function.
    unsafe {
        let (all, none) = (u64::MAX, null_mut::<u64>());
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const all, none, 8);
        // Where it is ignored, nobody can be waited for.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"nearfar-reap".as_ptr());
        // Who reads what the program writes waits for its end, not for this one's.
        if bell > 0 {
            libc::syscall(libc::SYS_close_range, 0, bell - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, bell + 1, RawFd::MAX, 0);
        loop {
            let mut status = 0;
            let ended = libc::waitpid(-1, &raw mut status, 0);
            if ended == root {
                head.end_root(status);
                libc::write(bell, shared::CALL.as_ptr().cast(), shared::CALL.len());
            } else if ended < 0 && *libc::__errno_location() == libc::ECHILD {
                libc::_exit(0);
            }
        }
    }
}
