//! Descriptors of other processes.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A copy of another process's descriptor. Needs `CAP_SYS_PTRACE`.
///
/// # Errors
/// Those of the system: `ESRCH` or `EBADF` if the process has ended, `EBADF` if it has no such descriptor,
/// `EPERM` without the capability.
pub fn copy_of(pid: u32, descriptor: u32) -> io::Result<OwnedFd> {
    let process = process_of(pid)?;
    // SAFETY: a system call that takes numbers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), descriptor, 0) })
}

/// A pidfd: readable when the process has ended.
///
/// # Errors
/// Those of the system: `ESRCH` if there is no such process.
pub fn process_of(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: a system call that takes numbers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })
}

/// The result of a system call that returns a new descriptor.
pub(crate) fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that is nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}
