//! Requests of userfaultfd, from `include/uapi/linux/userfaultfd.h` of Linux 6.8. The headers of many
//! machines are older.

use std::io::{self, Error};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::owned;
use crate::Fail;

/// A request's number: `_IOWR(0xAA, nr, size)`, or `_IOR` without `write`.
const fn request(write: bool, nr: u64, size: usize) -> u64 {
    (2 | (write as u64)) << 30 | (size as u64) << 16 | 0xAA << 8 | nr
}

const API: u64 = 0xAA;
const REGISTER_MISSING: u64 = 1;
const REGISTER_WP: u64 = 2;
const COPY_WP: u64 = 2;
const WP_ON: u64 = 1;

pub(super) mod feature {
    pub(crate) const PAGEFAULT_FLAG_WP: u64 = 1;
    pub(crate) const EVENT_FORK: u64 = 1 << 1;
    pub(crate) const EVENT_REMAP: u64 = 1 << 2;
    pub(crate) const EVENT_REMOVE: u64 = 1 << 3;
    pub(crate) const EVENT_UNMAP: u64 = 1 << 6;
    pub(crate) const THREAD_ID: u64 = 1 << 8;
    pub(crate) const MOVE: u64 = 1 << 16;
}

/// A message, 32 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Message {
    pub(super) event: u8,
    reserved: [u8; 7],
    /// Their meaning depends on the event.
    pub(super) arguments: [u64; 3],
}

impl Message {
    pub(super) const FAULT: u8 = 0x12;
    pub(super) const FORK: u8 = 0x13;
    pub(super) const REMAP: u8 = 0x14;
    pub(super) const REMOVE: u8 = 0x15;
    pub(super) const UNMAP: u8 = 0x16;
    /// Flags of a fault.
    pub(super) const WRITE: u64 = 1;
    pub(super) const WP: u64 = 2;
}

#[derive(Debug)]
pub(super) struct Uffd(OwnedFd);

impl AsRawFd for Uffd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Uffd {
    pub(super) fn open(features: u64) -> io::Result<Self> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: a system call that takes a number.
        let uffd = Self(owned(unsafe { libc::syscall(libc::SYS_userfaultfd, flags) })?);
        let mut api = [API, features, 0];
        uffd.request(request(true, 0x3F, 24), &mut api)?;
        Ok(uffd)
    }

    pub(super) fn adopt(fd: RawFd) -> Self {
        // SAFETY: the caller owns the descriptor.
        Self(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn request<const N: usize>(&self, request: u64, words: &mut [u64; N]) -> io::Result<()> {
        // SAFETY: the request reads and writes this number of words. The addresses in them are of memory that
        // the request may read or replace.
        let done = unsafe { libc::ioctl(self.as_raw_fd(), request as _, words.as_mut_ptr()) };
        if done < 0 { Err(Error::last_os_error()) } else { Ok(()) }
    }

    /// Register a range: report missing pages and, with `protect`, writes to write-protected ones.
    pub(super) fn register(&self, start: u64, length: u64, protect: bool) -> io::Result<()> {
        let mode = REGISTER_MISSING | if protect { REGISTER_WP } else { 0 };
        self.request(request(true, 0x00, 32), &mut [start, length, mode, 0])
    }

    /// Let the threads that wait in a range retry.
    pub(super) fn wake(&self, start: u64, length: u64) {
        // An error means that the program is ending: nothing to do.
        let _ = self.request(request(false, 0x02, 16), &mut [start, length]);
    }

    /// Copy to missing pages, up to the first present one. Returns the number of bytes.
    pub(super) fn copy(
        &self,
        to: u64,
        from: *const u8,
        length: u64,
        protect: bool,
    ) -> Result<u64, Fail> {
        let mode = if protect { COPY_WP } else { 0 };
        let mut words = [to, from.addr() as u64, length, mode, 0];
        let done = self.request(request(true, 0x03, 40), &mut words);
        moved(done, length, words[4]).map_err(|error| fail(&error))
    }

    /// Move the frames of present pages. Returns the number of bytes, which may be less than `length`.
    pub(super) fn move_pages(
        &self,
        to: u64,
        from: u64,
        length: u64,
        wake: bool,
    ) -> Result<u64, Fail> {
        // `UFFDIO_MOVE_MODE_DONTWAKE` is 1.
        let mode = u64::from(!wake);
        let mut words = [to, from, length, mode, 0];
        let done = self.request(request(true, 0x05, 40), &mut words);
        moved(done, length, words[4]).map_err(|error| match error.raw_os_error() {
            // The mappings differ in their protection, or one is locked.
            Some(libc::EINVAL) => Fail::Pinned,
            _ => fail(&error),
        })
    }

    /// Write-protect a range, or let writes through.
    pub(super) fn protect(&self, start: u64, length: u64, on: bool) -> Result<(), Fail> {
        let mode = if on { WP_ON } else { 0 };
        let words = &mut [start, length, mode];
        self.request(request(true, 0x06, 24), words).map_err(|error| fail(&error))
    }

    /// Read available messages. Returns how many.
    pub(super) fn read(&self, messages: &mut [Message]) -> usize {
        let size = size_of::<Message>();
        // SAFETY: the kernel writes whole messages into the slice, for which any bytes are valid.
        let bytes = unsafe {
            libc::read(self.as_raw_fd(), messages.as_mut_ptr().cast(), size_of_val(messages))
        };
        if bytes < 0 { 0 } else { bytes as usize / size }
    }
}

/// The number of bytes that a request has copied or moved: `length`, or on an error its last word, `moved`.
fn moved(done: io::Result<()>, length: u64, moved: u64) -> io::Result<u64> {
    match done {
        Ok(()) => Ok(length),
        Err(_) if moved as i64 > 0 => Ok(moved),
        Err(error) => Err(error),
    }
}

fn fail(error: &Error) -> Fail {
    match error.raw_os_error() {
        Some(libc::EAGAIN) => Fail::Again,
        Some(libc::EBUSY) => Fail::Pinned,
        // A mapping that is not registered gives one of these errors too.
        Some(libc::ENOENT | libc::EINVAL | libc::EFAULT) => Fail::Missing,
        Some(libc::EEXIST) => Fail::Exists,
        Some(libc::ESRCH) => Fail::Ended,
        number => Fail::Other(number.unwrap_or(0)),
    }
}
