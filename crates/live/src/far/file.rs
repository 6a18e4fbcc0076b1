//! `file`: a file, read and written past the page cache where its file system allows that.
//!
//! Each process has a file of its own, named after it, which has no name any more once it is open: what
//! is in it is of use to nobody else, and gone with the program.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use nearfar_trace::{Error, Result};

use super::slots::Slots;
use super::{Far, Fault, Named, is_zero};
use crate::{PAGE, Slot};

/// The registry's entry.
pub static TIER: Named = Named {
    what: "a file, read and written without the page cache",
    argument: "PATH",
    check: |path, _| super::whole_path(path),
    make: |path, pages| Ok(Box::new(PagesOnFile::open(Path::new(path), pages)?)),
};

struct PagesOnFile {
    file: File,
    slots: Slots,
    /// Whether the page of each slot is on the file: one of zeros is not.
    stored: Vec<bool>,
    held: u64,
    buffer: Aligned,
}

/// What O_DIRECT reads and writes.
#[repr(C, align(4096))]
struct Aligned([u8; PAGE]);

impl PagesOnFile {
    fn open(path: &Path, pages: u32) -> Result<Self> {
        let mut own = path.as_os_str().to_owned();
        own.push(format!(".{}", std::process::id()));
        let path = Path::new(&own);
        let open = |flags| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(0o600)
                .custom_flags(flags | libc::O_CLOEXEC)
                .open(path)
        };
        let file = match open(libc::O_DIRECT) {
            // A file system in memory has no page cache to go past.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => open(0),
            opened => opened,
        };
        let file = file.map_err(|error| Error::io(path, "opening", &error))?;
        std::fs::remove_file(path).map_err(|error| Error::io(path, "removing", &error))?;
        Ok(Self {
            file,
            slots: Slots::new(pages),
            stored: Vec::new(),
            held: 0,
            buffer: Aligned([0; PAGE]),
        })
    }
}

fn broken(doing: &str, error: &std::io::Error) -> Fault {
    Fault::Broken(format!("{doing} the far tier's file: {error}"))
}

impl Far for PagesOnFile {
    fn store(&mut self, page: &[u8]) -> std::result::Result<Slot, Fault> {
        let slot = self.slots.take()?;
        let stored = !is_zero(page);
        if stored {
            self.buffer.0.copy_from_slice(page);
            let at = (slot.index() * PAGE) as u64;
            if let Err(error) = self.file.write_all_at(&self.buffer.0, at) {
                self.slots.free(slot);
                return Err(match error.raw_os_error() {
                    Some(libc::ENOSPC | libc::EDQUOT) => Fault::Full,
                    _ => broken("writing", &error),
                });
            }
            self.held += 1;
        }
        if self.stored.len() <= slot.index() {
            self.stored.resize(slot.index() + 1, false);
        }
        self.stored[slot.index()] = stored;
        Ok(slot)
    }

    fn load(&mut self, slot: Slot, page: &mut [u8]) -> std::result::Result<(), Fault> {
        if !self.stored[slot.index()] {
            page.fill(0);
            return Ok(());
        }
        let at = (slot.index() * PAGE) as u64;
        self.file
            .read_exact_at(&mut self.buffer.0, at)
            .map_err(|error| broken("reading", &error))?;
        page.copy_from_slice(&self.buffer.0);
        Ok(())
    }

    fn free(&mut self, slot: Slot) {
        self.held -= u64::from(self.stored[slot.index()]);
        self.slots.free(slot);
    }

    fn bytes(&self) -> u64 {
        self.held * PAGE as u64
    }
}
