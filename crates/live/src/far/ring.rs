//! Requests of whole pages to a file, many at a time, through io_uring.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use io_uring::{IoUring, opcode, types};

use crate::PAGE;

/// Most requests under way, and buffers.
pub(super) const REQUESTS: usize = 128;

/// What O_DIRECT reads and writes.
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

/// Buffers of a page, and requests that the kernel reads into them or writes from them. While a
/// request is under way its buffer is the kernel's: it cannot be reached here.
pub(super) struct Ring {
    ring: IoUring,
    buffers: Box<[Aligned]>,
    under_way: [bool; REQUESTS],
    count: usize,
}

impl Ring {
    /// # Errors
    /// The kernel has no io_uring, or does not let this process use it.
    pub(super) fn new() -> io::Result<Self> {
        let mut builder = IoUring::builder();
        // Who waits for what has come polls; nobody needs to be interrupted for it.
        builder.dontfork().setup_coop_taskrun();
        let ring = builder.build(REQUESTS as u32)?;
        let buffers = vec![Aligned::ZEROS; REQUESTS].into_boxed_slice();
        Ok(Self { ring, buffers, under_way: [false; REQUESTS], count: 0 })
    }

    /// All buffers.
    pub(super) fn all() -> impl DoubleEndedIterator<Item = Buffer> {
        (0..REQUESTS as u16).map(Buffer)
    }

    /// Readable when a request is done.
    pub(super) fn descriptor(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    /// Requests under way.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn page(&self, buffer: Buffer) -> &[u8; PAGE] {
        assert!(!self.under_way[buffer.index()], "a buffer of the kernel's");
        &self.buffers[buffer.index()].0
    }

    pub(super) fn page_mut(&mut self, buffer: Buffer) -> &mut [u8; PAGE] {
        assert!(!self.under_way[buffer.index()], "a buffer of the kernel's");
        &mut self.buffers[buffer.index()].0
    }

    /// Copy the page of a buffer that is being written.
    pub(super) fn copy_written(&self, buffer: Buffer, into: &mut [u8]) {
        // The kernel only reads it, too.
        into.copy_from_slice(&self.buffers[buffer.index()].0);
    }

    /// Begin to read the page at this place of the file into the buffer. The file stays open until that is
    /// done.
    ///
    /// # Errors
    /// The kernel takes no requests: it is of no use any more.
    pub(super) fn read(&mut self, buffer: Buffer, file: &File, at: u64) -> io::Result<()> {
        let into = self.page_mut(buffer).as_mut_ptr();
        let read = opcode::Read::new(types::Fd(file.as_raw_fd()), into, PAGE as u32);
        self.submit(buffer, &read.offset(at).build())
    }

    /// Begin to write the buffer to this place of the file.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(super) fn write(&mut self, buffer: Buffer, file: &File, at: u64) -> io::Result<()> {
        let from = self.page(buffer).as_ptr();
        let write = opcode::Write::new(types::Fd(file.as_raw_fd()), from, PAGE as u32);
        self.submit(buffer, &write.offset(at).build())
    }

    fn submit(&mut self, buffer: Buffer, entry: &io_uring::squeue::Entry) -> io::Result<()> {
        let entry = entry.clone().user_data(buffer.0.into());
        // SAFETY: the buffer lives as long as the ring, which is dropped when nothing is under way,
        // and is not touched until the request is done.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        // In the queue it stays, whatever the kernel says.
        self.under_way[buffer.index()] = true;
        self.count += 1;
        uninterrupted(|| self.ring.submit())
    }

    /// A request that is done, and how it went: all of the page or an error.
    pub(super) fn done(&mut self) -> Option<(Buffer, io::Result<()>)> {
        let entry = self.ring.completion().next()?;
        let buffer = Buffer(entry.user_data() as u16);
        self.under_way[buffer.index()] = false;
        self.count -= 1;
        let result = match entry.result() {
            bytes if bytes == PAGE as i32 => Ok(()),
            bytes if bytes < 0 => Err(io::Error::from_raw_os_error(-bytes)),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        };
        Some((buffer, result))
    }

    /// Wait until a request that is under way is done.
    ///
    /// # Errors
    /// The kernel cannot be asked.
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
    /// The kernel reads and writes buffers until its requests are done.
    fn drop(&mut self) {
        while self.count > 0 {
            if self.done().is_none() && self.wait().is_err() {
                // Better lost than written by the kernel when it is somebody else's.
                std::mem::forget(std::mem::take(&mut self.buffers));
                return;
            }
        }
    }
}
