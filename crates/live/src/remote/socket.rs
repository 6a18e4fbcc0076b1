//! The socket between a program and its launcher. Messages are sent and received whole.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Maximum length of a message in bytes.
pub(super) const MAX_MESSAGE: usize = 1 << 16;

/// One end of the socket.
#[derive(Debug)]
pub struct Socket(OwnedFd);

impl From<OwnedFd> for Socket {
    fn from(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

impl Socket {
    /// Both ends of a new socket.
    pub fn pair() -> io::Result<(Self, Self)> {
        let mut ends = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: writes two descriptors.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: new descriptors.
        Ok(unsafe { (Self(OwnedFd::from_raw_fd(ends[0])), Self(OwnedFd::from_raw_fd(ends[1]))) })
    }

    /// A second descriptor of this end.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Shut down both ends. Threads that wait for messages return.
    pub fn shut_down(&self) {
        // SAFETY: a system call that takes numbers.
        unsafe { libc::shutdown(self.as_raw_fd(), libc::SHUT_RDWR) };
    }

    /// Send a message. Returns false if the other end is closed.
    pub(super) fn send(&self, message: &[u8]) -> bool {
        debug_assert!(message.len() <= MAX_MESSAGE, "a message of {} bytes", message.len());
        until_done(|| {
            // SAFETY: reads the caller's bytes.
            unsafe {
                libc::send(
                    self.as_raw_fd(),
                    message.as_ptr().cast(),
                    message.len(),
                    libc::MSG_NOSIGNAL,
                )
            }
        }) == Some(message.len())
    }

    /// Wait for a message. `None` if the other end is closed.
    pub(super) fn receive<'a>(&self, into: &'a mut [u8]) -> Option<&'a [u8]> {
        self.receive_until(into, || false)
    }

    /// [`Self::receive`], or `None` once `is_over` is true. It is checked at the start and after each timeout
    /// ([`Self::set_receive_timeout`]).
    pub(super) fn receive_until<'a>(
        &self,
        into: &'a mut [u8],
        mut is_over: impl FnMut() -> bool,
    ) -> Option<&'a [u8]> {
        let length = until_done(|| {
            if is_over() {
                return 0;
            }
            // SAFETY: writes the caller's bytes.
            unsafe { libc::recv(self.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), 0) }
        })?;
        // No message is empty: 0 bytes mean a closed end, or `is_over`.
        Some(&into[..length]).filter(|message| !message.is_empty())
    }

    /// Set the timeout of [`Self::receive_until`].
    pub(super) fn set_receive_timeout(&self, time: Duration) {
        let time = libc::timeval {
            tv_sec: time.as_secs() as libc::time_t,
            tv_usec: libc::suseconds_t::from(time.subsec_micros() as i32),
        };
        let size = size_of::<libc::timeval>() as libc::socklen_t;
        // SAFETY: reads the variable of this function.
        let done = unsafe {
            let from = (&raw const time).cast();
            libc::setsockopt(self.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVTIMEO, from, size)
        };
        debug_assert_eq!(done, 0, "setting SO_RCVTIMEO");
    }
}

/// Repeat a call that a signal or a timeout interrupts; `None` if it fails otherwise.
fn until_done(mut call: impl FnMut() -> isize) -> Option<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(length) => return Some(length),
            Err(_) => match io::Error::last_os_error().kind() {
                io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => {}
                _ => return None,
            },
        }
    }
}
