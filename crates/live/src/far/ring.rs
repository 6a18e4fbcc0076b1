//! Reads and writes of whole pages of a file, through io_uring.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use io_uring::{IoUring, opcode, types};

use crate::PAGE;

/// Number of buffers, and maximum number of requests in flight.
pub(super) const REQUESTS: usize = 128;

/// A page with the alignment that O_DIRECT needs.
#[repr(C, align(4096))]
#[derive(Clone, Copy)]
pub(super) struct Aligned(pub(super) [u8; PAGE]);

impl Aligned {
    pub(super) const ZEROS: Self = Self([0; PAGE]);
}

/// A buffer of a [`Ring`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Buffer(u16);

impl Buffer {
    pub(super) fn index(self) -> usize {
        self.0.into()
    }
}

/// Buffers of one page, and requests that read into them or write from them. While a request is in flight,
/// only the kernel accesses its buffer.
pub(super) struct Ring {
    ring: IoUring,
    buffers: Box<[Aligned]>,
    in_flight: [bool; REQUESTS],
    count: usize,
}

impl Ring {
    /// Fails if the kernel has no io_uring, or this process may not use it.
    pub(super) fn new() -> io::Result<Self> {
        let mut builder = IoUring::builder();
        // Completions are polled, so they need no interrupt.
        builder.dontfork().setup_coop_taskrun();
        let ring = builder.build(REQUESTS as u32)?;
        let buffers = vec![Aligned::ZEROS; REQUESTS].into_boxed_slice();
        Ok(Self { ring, buffers, in_flight: [false; REQUESTS], count: 0 })
    }

    pub(super) fn all() -> impl DoubleEndedIterator<Item = Buffer> {
        (0..REQUESTS as u16).map(Buffer)
    }

    /// Readable when a request is complete.
    pub(super) fn descriptor(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    /// Number of requests in flight.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn page(&self, buffer: Buffer) -> &[u8; PAGE] {
        assert!(!self.in_flight[buffer.index()], "the kernel uses the buffer");
        &self.buffers[buffer.index()].0
    }

    pub(super) fn page_mut(&mut self, buffer: Buffer) -> &mut [u8; PAGE] {
        assert!(!self.in_flight[buffer.index()], "the kernel uses the buffer");
        &mut self.buffers[buffer.index()].0
    }

    /// Copy the page of a buffer that is being written.
    pub(super) fn copy_written(&self, buffer: Buffer, into: &mut [u8]) {
        // No check: the kernel, too, only reads the buffer.
        into.copy_from_slice(&self.buffers[buffer.index()].0);
    }

    /// Start to read the page at this offset of the file into the buffer. The file must stay open until the
    /// request is complete. On an error, the ring is unusable.
    pub(super) fn read(&mut self, buffer: Buffer, file: &File, at: u64) -> io::Result<()> {
        let into = self.page_mut(buffer).as_mut_ptr();
        let read = opcode::Read::new(types::Fd(file.as_raw_fd()), into, PAGE as u32);
        self.submit(buffer, &read.offset(at).build())
    }

    /// Start to write the buffer to this offset of the file.
    pub(super) fn write(&mut self, buffer: Buffer, file: &File, at: u64) -> io::Result<()> {
        let from = self.page(buffer).as_ptr();
        let write = opcode::Write::new(types::Fd(file.as_raw_fd()), from, PAGE as u32);
        self.submit(buffer, &write.offset(at).build())
    }

    fn submit(&mut self, buffer: Buffer, entry: &io_uring::squeue::Entry) -> io::Result<()> {
        let entry = entry.clone().user_data(buffer.0.into());
        // SAFETY: the buffer lives as long as the ring, which is dropped when no request is in flight, and is
        // not accessed until the request is complete.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        // The request stays in the queue even if submitting fails.
        self.in_flight[buffer.index()] = true;
        self.count += 1;
        uninterrupted(|| self.ring.submit())
    }

    /// A completed request, with an error unless it transferred the whole page.
    pub(super) fn done(&mut self) -> Option<(Buffer, io::Result<()>)> {
        let entry = self.ring.completion().next()?;
        let buffer = Buffer(entry.user_data() as u16);
        self.in_flight[buffer.index()] = false;
        self.count -= 1;
        let result = match entry.result() {
            bytes if bytes == PAGE as i32 => Ok(()),
            bytes if bytes < 0 => Err(io::Error::from_raw_os_error(-bytes)),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        };
        Some((buffer, result))
    }

    /// Wait until a request is complete.
    pub(super) fn wait(&self) -> io::Result<()> {
        uninterrupted(|| self.ring.submit_and_wait(1))
    }
}

fn uninterrupted(call: impl Fn() -> io::Result<usize>) -> io::Result<()> {
    while let Err(error) = call() {
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(())
}

impl Drop for Ring {
    /// Wait for all requests: until then, the kernel accesses the buffers.
    fn drop(&mut self) {
        while self.count > 0 {
            if self.done().is_none() && self.wait().is_err() {
                // Leak the buffers: the kernel may still write to them.
                std::mem::forget(std::mem::take(&mut self.buffers));
                return;
            }
        }
    }
}
