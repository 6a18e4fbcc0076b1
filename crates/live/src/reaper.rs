//! The reaper: a process between the launcher and the program, which waits for all processes of a run.
//!
//! Managers ([`crate::Manager`]) outlive the processes that they serve, and keepers (`preload/src/keeper.rs`)
//! outlive managers, so both become orphans, which the nearest subreaper adopts. The launcher is not the
//! subreaper, because it may be a Python process with other children; process 1 of a container often does not
//! wait for orphans.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use crate::linux::block_all_signals;
use crate::shared::{self, Head};

/// Called between fork and exec: the caller becomes the reaper, and its child returns to become the program.
/// Both are killed when their parent ends. The reaper writes to the eventfd `bell` when the program ends.
pub(crate) fn split(head: &Head, bell: RawFd) -> io::Result<()> {
    // SAFETY: system calls that take numbers; a fork without libc's handlers, as the caller may be the copy
    // of a process with threads, and only makes system calls.
    unsafe {
        die_with(head.launcher.load(Ordering::Relaxed));
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
        let reaper = libc::getpid() as u32;
        head.reaper.store(reaper, Ordering::Relaxed);
        match libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                die_with(reaper);
                Ok(())
            }
            root => reap(root as libc::pid_t, head, bell),
        }
    }
}

/// Have the kernel kill this process when its parent ends. Exit if the parent has ended already.
fn die_with(parent: u32) {
    // SAFETY: system calls that take numbers.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() as u32 != parent {
            libc::_exit(128 + libc::SIGKILL);
        }
    }
}

/// Wait for all children and adopted orphans, then exit.
fn reap(root: libc::pid_t, head: &Head, bell: RawFd) -> ! {
    // SAFETY: system calls that take numbers, a name that ends in zero, and a variable of this function.
    unsafe {
        block_all_signals();
        // With SIGCHLD ignored, `waitpid` would find no child.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"nearfar-reap".as_ptr());
        // Close all but `bell`: a reader of the program's output waits until no process has it open.
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
