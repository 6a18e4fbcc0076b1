//! `file`: a file, accessed without the page cache if its file system allows that, through io_uring with many
//! requests in flight.
//!
//! Each process has its own file, named after its PID and unlinked after opening.
//!
//! Until a stored page is written, it is read from its buffer. Without io_uring, requests are synchronous.

use std::fs::{File, OpenOptions};
use std::os::fd::RawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use nearfar_trace::{Error, Result};

use self::queue::{Queue, Request, Use, broken, no_room, offset_of};

use super::ring::{Aligned, REQUESTS, Ring};
use super::slots::Slots;
use super::{Arrival, Far, Fault, Fetch, TierEntry, is_zero};
use crate::linux::monotonic;
use crate::{PAGE, Slot};

mod queue;

pub static TIER: TierEntry = TierEntry {
    what: "a file, read and written without the page cache, many pages at a time",
    argument: "PATH",
    is_mapped: false,
    own_time: None,
    check: |path, _| super::absolute_path(path),
    make: |path, pages| Ok(Box::new(PagesOnFile::open(Path::new(path), pages, Ring::new().ok())?)),
};

/// Maximum number of buffers with pages that are not written yet. The others are for reads.
const WRITE_BUFFERS: usize = REQUESTS / 2;

struct PagesOnFile {
    file: File,
    slots: Slots,
    /// Whether the page of each slot is in the file. A page of zeros is not.
    stored: Vec<bool>,
    nonzero_pages: u64,
    bounce_buffer: Box<Aligned>,
    /// `None` without io_uring.
    queue: Option<Queue>,
}

impl PagesOnFile {
    fn open(path: &Path, pages: u32, ring: Option<Ring>) -> Result<Self> {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}", std::process::id()));
        let path = Path::new(&name);
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
            // A file system in memory has no O_DIRECT.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => open(0),
            opened => opened,
        };
        let file = file.map_err(|error| Error::io(path, "opening", &error))?;
        std::fs::remove_file(path).map_err(|error| Error::io(path, "removing", &error))?;
        Ok(Self {
            file,
            slots: Slots::new(pages),
            stored: Vec::new(),
            nonzero_pages: 0,
            bounce_buffer: Box::new(Aligned::ZEROS),
            queue: ring.map(Queue::new),
        })
    }

    /// Take a slot. If none is free, wait for one that was freed while its request was in flight.
    fn take(&mut self) -> std::result::Result<Slot, Fault> {
        loop {
            match (self.slots.take(), &mut self.queue) {
                (Err(Fault::Full), Some(queue)) if !queue.freed.is_empty() => {
                    queue.wait(&self.file, &mut self.slots)?;
                }
                (taken, _) => return taken,
            }
        }
    }

    fn write(&mut self, slot: Slot, page: &[u8]) -> std::result::Result<(), Fault> {
        let Some(queue) = &mut self.queue else {
            self.bounce_buffer.0.copy_from_slice(page);
            let written = self.file.write_all_at(&self.bounce_buffer.0, offset_of(slot));
            return written.map_err(|error| {
                if no_room(&error) { Fault::Full } else { broken("writing", &error) }
            });
        };
        queue.reap(&self.file, &mut self.slots);
        queue.check()?;
        if queue.allocated.len() <= slot.index() {
            queue.allocated.resize(slot.index() + 1, false);
        }
        let buffer = loop {
            // While a write is refused for lack of room, only slots with allocated blocks can be written.
            let refused = queue.refused;
            if refused == WRITE_BUFFERS || refused > 0 && !queue.allocated[slot.index()] {
                return Err(Fault::Full);
            }
            let storing = queue.writing + refused;
            match if storing < WRITE_BUFFERS { queue.buffer() } else { None } {
                Some(buffer) => break buffer,
                None => queue.wait(&self.file, &mut self.slots)?,
            }
        };
        queue.writing += 1;
        queue.ring.page_mut(buffer).copy_from_slice(page);
        queue.uses[buffer.index()] = Use::Writing(slot);
        queue.buffers.insert(slot, buffer);
        queue
            .ring
            .write(buffer, &self.file, offset_of(slot))
            .map_err(|error| broken("writing", &error))
    }
}

impl Far for PagesOnFile {
    fn store(&mut self, page: &[u8]) -> std::result::Result<Slot, Fault> {
        let slot = self.take()?;
        let stored = !is_zero(page);
        if stored {
            if let Err(fault) = self.write(slot, page) {
                self.slots.free(slot);
                return Err(fault);
            }
            self.nonzero_pages += 1;
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
        if let Some(queue) = &mut self.queue {
            queue.check()?;
            while let Some((buffer, used)) = queue.buffer_of(slot) {
                match used {
                    Use::Reading(_) => {
                        queue.wait(&self.file, &mut self.slots)?;
                        continue;
                    }
                    Use::Writing(_) => queue.ring.copy_written(buffer, page),
                    _ => page.copy_from_slice(queue.ring.page(buffer)),
                }
                if let Use::Loaded(_) = used {
                    queue.release(buffer);
                }
                return Ok(());
            }
        }
        self.file
            .read_exact_at(&mut self.bounce_buffer.0, offset_of(slot))
            .map_err(|error| broken("reading", &error))?;
        page.copy_from_slice(&self.bounce_buffer.0);
        Ok(())
    }

    fn free(&mut self, slot: Slot) {
        self.nonzero_pages -= u64::from(self.stored[slot.index()]);
        if let Some(queue) = &mut self.queue {
            match queue.buffer_of(slot) {
                Some((_, Use::Reading(_) | Use::Writing(_))) => return queue.freed.push(slot),
                Some((buffer, _)) => queue.release(buffer),
                None => {}
            }
            if let Some(index) = queue.waiting.iter().position(|request| request.slot == slot)
                && let Some(request) = queue.waiting.remove(index)
            {
                let Request { predicted_ns, began, .. } = request;
                let took_ns = monotonic().saturating_sub(began);
                queue.arrivals.push(Arrival { slot, predicted_ns, took_ns });
            }
        }
        self.slots.free(slot);
    }

    fn fetch(&mut self, slot: Slot, now_ns: u64) -> std::result::Result<Fetch, Fault> {
        let Some(queue) = self.queue.as_mut().filter(|_| self.stored[slot.index()]) else {
            return Ok(Fetch::Ready);
        };
        queue.check()?;
        let under_way = match queue.buffer_of(slot) {
            Some((_, Use::Reading(request))) => Some(request),
            Some(_) => return Ok(Fetch::Ready),
            None => queue.waiting.iter().find(|request| request.slot == slot).copied(),
        };
        if let Some(Request { began, predicted_ns, .. }) = under_way {
            let predicted_ns = (began + predicted_ns).saturating_sub(now_ns);
            return Ok(Fetch::Pending { predicted_ns });
        }
        let depth = queue.ring.count() + queue.waiting.len() + 1;
        let predicted_ns = queue.predicted_ns(depth);
        let request = Request { slot, began: now_ns, predicted_ns, depth };
        // An arrival of the slot's previous page may be unreported. Report one arrival for both pages.
        let was_pending = queue.arrivals.iter().any(|arrival| arrival.slot == slot);
        queue.arrivals.retain(|arrival| arrival.slot != slot);
        let Some(buffer) = queue.buffer() else {
            queue.waiting.push_back(request);
            return Ok(Fetch::Pending { predicted_ns });
        };
        queue.read(buffer, request, &self.file);
        // A file system in memory completes the read at once: then keep its arrival only in place of the
        // unreported one.
        let before = queue.arrivals.len();
        queue.reap(&self.file, &mut self.slots);
        queue.check()?;
        if let Some((_, Use::Loaded(_))) = queue.buffer_of(slot) {
            let position =
                queue.arrivals.iter().skip(before).position(|arrival| arrival.slot == slot);
            position.filter(|_| !was_pending).map(|index| queue.arrivals.remove(before + index));
            return Ok(Fetch::Ready);
        }
        Ok(Fetch::Pending { predicted_ns })
    }

    fn arrived(&mut self, _: u64, into: &mut Vec<Arrival>) -> std::result::Result<(), Fault> {
        if let Some(queue) = &mut self.queue {
            queue.reap(&self.file, &mut self.slots);
            into.append(&mut queue.arrivals);
        }
        Ok(())
    }

    fn due(&self) -> u64 {
        match &self.queue {
            Some(queue) if !queue.arrivals.is_empty() => 0,
            _ => u64::MAX,
        }
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.queue.as_ref().map(|queue| queue.ring.descriptor())
    }

    fn bytes(&self) -> u64 {
        self.nonzero_pages * PAGE as u64
    }
}

impl Drop for PagesOnFile {
    /// Complete all requests before the file is closed.
    fn drop(&mut self) {
        self.queue = None;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Slow;
    use super::super::tests::{MAX_PAGES, comes_back, work};
    use super::*;
    use crate::tests::not_run;

    /// A ring; `None` without io_uring, as under qemu-user.
    fn ring() -> Option<Ring> {
        match Ring::new() {
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                not_run("there is no io_uring");
                None
            }
            ring => Some(ring.expect("this kernel lets tests use io_uring")),
        }
    }

    fn open(folder: &Path, ring: Option<Ring>) -> Box<dyn Far> {
        Box::new(PagesOnFile::open(&folder.join("far"), MAX_PAGES, ring).unwrap())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]

        /// With and without io_uring, and with a latency; on a disk and in memory.
        #[test]
        fn requested_pages_come_back(work in work()) {
            for folder in [tempfile::tempdir_in("."), tempfile::tempdir_in("/dev/shm")] {
                let folder = folder.unwrap();
                comes_back(open(folder.path(), ring()), &work, |_| {});
                comes_back(open(folder.path(), None), &work, |_| {});
                let slow = Slow::new(open(folder.path(), ring()), 50_000);
                comes_back(Box::new(slow), &work, |arrival| assert!(arrival.took_ns >= 50_000));
            }
        }
    }

    /// A file system with room for 16 pages, in a mount namespace of this thread.
    fn small() -> Option<tempfile::TempDir> {
        let folder = tempfile::tempdir().unwrap();
        let path = std::ffi::CString::new(folder.path().to_str()?).ok()?;
        let (none, kind, size) = (std::ptr::null(), c"tmpfs", c"size=64k");
        // SAFETY: strings that end in zero; other threads keep their mounts.
        let mounted = unsafe {
            libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(
                    none,
                    c"/".as_ptr(),
                    none,
                    libc::MS_REC | libc::MS_PRIVATE,
                    none.cast(),
                ) == 0
                && libc::mount(kind.as_ptr(), path.as_ptr(), kind.as_ptr(), 0, size.as_ptr().cast())
                    == 0
        };
        mounted.then_some(folder)
    }

    /// A page without room is refused or stays in its buffer, and freed pages make room.
    #[test]
    fn a_full_file_system_loses_nothing() {
        for with_ring in [true, false] {
            let test = std::thread::spawn(move || {
                let Some(folder) = small() else { return println!("skipped: needs root") };
                let mut far = open(folder.path(), with_ring.then(ring).flatten());
                let page = |number| vec![number; PAGE];
                let mut held = Vec::new();
                for round in 1..4u8 {
                    while let Ok(slot) = far.store(&page(round)) {
                        held.push((slot, page(round)));
                        assert!(held.len() <= 16 + WRITE_BUFFERS, "more pages than fit");
                    }
                    assert_eq!(far.store(&page(round)), Err(Fault::Full));
                    assert!(held.len() >= 16);
                    let mut loaded = page(0);
                    for (slot, page) in &held {
                        far.load(*slot, &mut loaded).unwrap();
                        assert_eq!(&loaded, page);
                    }
                    held.drain(..8).for_each(|(slot, _)| far.free(slot));
                }
            });
            test.join().unwrap();
        }
    }
}
