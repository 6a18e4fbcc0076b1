//! `file`: a file, read and written past the page cache where its file system allows that, by io_uring
//! with many requests under way.
//!
//! Each process has a file of its own, named after it, which has no name any more once it is open: what
//! is in it is of use to nobody else, and gone with the program.
//!
//! What is stored is in a buffer until the file has it, and read from there meanwhile. Where the kernel
//! lets nobody use io_uring, requests are made one by one.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use nearfar_trace::{Error, Result};
use rustc_hash::FxHashMap;

use super::ring::{Aligned, Buffer, REQUESTS, Ring};
use super::slots::Slots;
use super::{Arrival, Far, Fault, Fetch, Named, is_zero};
use crate::linux::monotonic;
use crate::{PAGE, Slot};

/// The registry's entry.
pub static TIER: Named = Named {
    what: "a file, read and written without the page cache, many pages at a time",
    argument: "PATH",
    is_mapped: false,
    own_time: None,
    check: |path, _| super::whole_path(path),
    make: |path, pages| {
        Ok(Box::new(PagesOnFile::open(Path::new(path), pages, Ring::new().ok())?))
    },
};

/// Most buffers with pages that the file does not have yet: the others are for reads.
const STORING: usize = REQUESTS / 2;

/// Numbers of requests that are told apart by their logarithm: below twice as many as can be under way.
const DEPTHS: usize = REQUESTS.ilog2() as usize + 1;

/// What a read is predicted to take before any was made: about what flash takes.
const UNKNOWN_NS: u64 = 100_000;

struct PagesOnFile {
    file: File,
    slots: Slots,
    /// Whether the page of each slot is on the file: one of zeros is not.
    stored: Vec<bool>,
    held: u64,
    buffer: Box<Aligned>,
    queue: Option<Queue>,
}

/// Requests under way.
struct Queue {
    ring: Ring,
    uses: [Use; REQUESTS],
    /// The buffer of each slot that has one.
    buffers: FxHashMap<Slot, Buffer>,
    free: Vec<Buffer>,
    /// Buffers with pages that have come, oldest first.
    here: VecDeque<Buffer>,
    /// Reads that wait for a buffer.
    waiting: VecDeque<Asked>,
    /// Slots that were freed while a request was under way: the next page there must not overtake it.
    freed: Vec<Slot>,
    /// Slots whose place the file has had room for.
    placed: Vec<bool>,
    /// Writes under way.
    writing: usize,
    /// Pages for which the file has no room: they stay in their buffers.
    refused: usize,
    arrivals: Vec<Arrival>,
    /// What reads took of late, ns, by the logarithm of how many requests were under way.
    took: [u64; DEPTHS],
    broken: Option<Fault>,
}

/// A page that was asked for.
#[derive(Clone, Copy)]
struct Asked {
    slot: Slot,
    began: u64,
    predicted_ns: u64,
    /// Requests under way and before it, itself included.
    depth: usize,
}

/// What a buffer is used for.
#[derive(Clone, Copy)]
enum Use {
    Free,
    Reading(Asked),
    Here(Slot),
    Writing(Slot),
    Refused(Slot),
}

fn broken(doing: &str, error: &io::Error) -> Fault {
    Fault::Broken(format!("{doing} the far tier's file: {error}"))
}

/// Whether a write failed as the file cannot have more.
fn no_room(error: &io::Error) -> bool {
    let number = error.raw_os_error();
    error.kind() == io::ErrorKind::UnexpectedEof
        || matches!(number, Some(libc::ENOSPC | libc::EDQUOT))
}

fn place(slot: Slot) -> u64 {
    (slot.index() * PAGE) as u64
}

impl Queue {
    fn new(ring: Ring) -> Self {
        Self {
            ring,
            uses: [Use::Free; REQUESTS],
            buffers: FxHashMap::default(),
            free: Ring::all().rev().collect(),
            here: VecDeque::new(),
            waiting: VecDeque::new(),
            freed: Vec::new(),
            placed: Vec::new(),
            writing: 0,
            refused: 0,
            arrivals: Vec::new(),
            took: [0; DEPTHS],
            broken: None,
        }
    }

    /// The buffer of a slot, and what it is used for.
    fn of(&self, slot: Slot) -> Option<(Buffer, Use)> {
        let buffer = *self.buffers.get(&slot)?;
        Some((buffer, self.uses[buffer.index()]))
    }

    /// A buffer that nothing is lost with.
    fn buffer(&mut self) -> Option<Buffer> {
        if self.free.is_empty() {
            let oldest = *self.here.front()?;
            self.release(oldest);
        }
        self.free.pop()
    }

    fn release(&mut self, buffer: Buffer) {
        let slot = match std::mem::replace(&mut self.uses[buffer.index()], Use::Free) {
            Use::Free => return,
            Use::Here(slot) => {
                self.here.retain(|other| *other != buffer);
                slot
            }
            Use::Refused(slot) => {
                self.refused -= 1;
                slot
            }
            Use::Reading(Asked { slot, .. }) | Use::Writing(slot) => slot,
        };
        self.buffers.remove(&slot);
        self.free.push(buffer);
    }

    fn class(depth: usize) -> usize {
        (depth.ilog2() as usize).min(DEPTHS - 1)
    }

    /// What a read will take with so many requests under way: what the last ones took, or those with the
    /// next fewer or more.
    fn predicted_ns(&self, depth: usize) -> u64 {
        let (fewer, more) = self.took.split_at(Self::class(depth) + 1);
        let known = fewer.iter().rev().chain(more).find(|took| **took > 0);
        known.copied().unwrap_or(UNKNOWN_NS)
    }

    /// Deal with what is done, and begin what has waited.
    fn reap(&mut self, file: &File, slots: &mut Slots) {
        while let Some((buffer, result)) = self.ring.done() {
            match self.uses[buffer.index()] {
                Use::Reading(asked) => {
                    let freed = self.end_of(asked.slot, slots);
                    self.has_read(buffer, asked, result, freed);
                }
                Use::Writing(slot) => {
                    let freed = self.end_of(slot, slots);
                    self.has_written(buffer, slot, result, freed);
                }
                Use::Free | Use::Here(_) | Use::Refused(_) => {}
            }
        }
        // What has come is about to be loaded, unless nobody wants it any more.
        while (!self.free.is_empty() || self.ring.count() == 0)
            && let Some(asked) = self.waiting.front().copied()
            && let Some(buffer) = self.buffer()
        {
            self.waiting.pop_front();
            self.read(buffer, asked, file);
        }
    }

    /// A slot's request is done: whether the slot was freed under it. Then it is free from now on.
    fn end_of(&mut self, slot: Slot, slots: &mut Slots) -> bool {
        let place = self.freed.iter().position(|freed| *freed == slot);
        if let Some(place) = place {
            self.freed.swap_remove(place);
            slots.free(slot);
        }
        place.is_some()
    }

    fn has_read(&mut self, buffer: Buffer, asked: Asked, result: io::Result<()>, freed: bool) {
        let took_ns = monotonic().saturating_sub(asked.began);
        let of_late = &mut self.took[Self::class(asked.depth)];
        *of_late = if *of_late == 0 { took_ns.max(1) } else { (7 * *of_late + took_ns).div_ceil(8) };
        let Asked { slot, predicted_ns, .. } = asked;
        self.arrivals.push(Arrival { slot, predicted_ns, took_ns });
        match result {
            Ok(()) if !freed => {
                self.uses[buffer.index()] = Use::Here(slot);
                self.here.push_back(buffer);
                return;
            }
            Err(error) if !freed => self.broken = Some(broken("reading", &error)),
            _ => {}
        }
        self.release(buffer);
    }

    fn has_written(&mut self, buffer: Buffer, slot: Slot, result: io::Result<()>, freed: bool) {
        self.writing -= 1;
        match result {
            Ok(()) => self.placed[slot.index()] = true,
            Err(error) if !freed && no_room(&error) => {
                self.uses[buffer.index()] = Use::Refused(slot);
                self.refused += 1;
                return;
            }
            Err(error) if !freed => self.broken = Some(broken("writing", &error)),
            Err(_) => {}
        }
        self.release(buffer);
    }

    fn read(&mut self, buffer: Buffer, asked: Asked, file: &File) {
        self.uses[buffer.index()] = Use::Reading(asked);
        self.buffers.insert(asked.slot, buffer);
        if let Err(error) = self.ring.read(buffer, file, place(asked.slot)) {
            self.broken = Some(broken("reading", &error));
        }
    }

    /// Wait until a request is done.
    fn wait(&mut self, file: &File, slots: &mut Slots) -> std::result::Result<(), Fault> {
        self.ring.wait().map_err(|error| broken("waiting for", &error))?;
        self.reap(file, slots);
        self.check()
    }

    fn check(&self) -> std::result::Result<(), Fault> {
        self.broken.clone().map_or(Ok(()), Err)
    }
}

impl PagesOnFile {
    fn open(path: &Path, pages: u32, ring: Option<Ring>) -> Result<Self> {
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
            buffer: Box::new(Aligned::ZEROS),
            queue: ring.map(Queue::new),
        })
    }

    /// A slot. Those that were freed under a request are waited for if there is no other.
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
            self.buffer.0.copy_from_slice(page);
            let written = self.file.write_all_at(&self.buffer.0, place(slot));
            return written.map_err(|error| {
                if no_room(&error) { Fault::Full } else { broken("writing", &error) }
            });
        };
        queue.reap(&self.file, &mut self.slots);
        queue.check()?;
        if queue.placed.len() <= slot.index() {
            queue.placed.resize(slot.index() + 1, false);
        }
        let buffer = loop {
            let refused = queue.refused;
            if refused == STORING || refused > 0 && !queue.placed[slot.index()] {
                return Err(Fault::Full);
            }
            let storing = queue.writing + refused;
            match if storing < STORING { queue.buffer() } else { None } {
                Some(buffer) => break buffer,
                None => queue.wait(&self.file, &mut self.slots)?,
            }
        };
        queue.writing += 1;
        queue.ring.page_mut(buffer).copy_from_slice(page);
        queue.uses[buffer.index()] = Use::Writing(slot);
        queue.buffers.insert(slot, buffer);
        queue.ring.write(buffer, &self.file, place(slot)).map_err(|error| broken("writing", &error))
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
        if let Some(queue) = &mut self.queue {
            queue.check()?;
            while let Some((buffer, used)) = queue.of(slot) {
                match used {
                    Use::Reading(_) => {
                        queue.wait(&self.file, &mut self.slots)?;
                        continue;
                    }
                    Use::Writing(_) => queue.ring.copy_written(buffer, page),
                    _ => page.copy_from_slice(queue.ring.page(buffer)),
                }
                if let Use::Here(_) = used {
                    queue.release(buffer);
                }
                return Ok(());
            }
        }
        self.file
            .read_exact_at(&mut self.buffer.0, place(slot))
            .map_err(|error| broken("reading", &error))?;
        page.copy_from_slice(&self.buffer.0);
        Ok(())
    }

    fn free(&mut self, slot: Slot) {
        self.held -= u64::from(self.stored[slot.index()]);
        if let Some(queue) = &mut self.queue {
            match queue.of(slot) {
                Some((_, Use::Reading(_) | Use::Writing(_))) => return queue.freed.push(slot),
                Some((buffer, _)) => queue.release(buffer),
                None => {}
            }
            if let Some(index) = queue.waiting.iter().position(|asked| asked.slot == slot)
                && let Some(asked) = queue.waiting.remove(index)
            {
                let Asked { predicted_ns, began, .. } = asked;
                let took_ns = monotonic().saturating_sub(began);
                queue.arrivals.push(Arrival { slot, predicted_ns, took_ns });
            }
        }
        self.slots.free(slot);
    }

    fn fetch(&mut self, slot: Slot, now_ns: u64) -> std::result::Result<Fetch, Fault> {
        let Some(queue) = self.queue.as_mut().filter(|_| self.stored[slot.index()]) else {
            return Ok(Fetch::Here);
        };
        queue.check()?;
        let under_way = match queue.of(slot) {
            Some((_, Use::Reading(asked))) => Some(asked),
            Some(_) => return Ok(Fetch::Here),
            None => queue.waiting.iter().find(|asked| asked.slot == slot).copied(),
        };
        if let Some(Asked { began, predicted_ns, .. }) = under_way {
            let predicted_ns = (began + predicted_ns).saturating_sub(now_ns);
            return Ok(Fetch::Coming { predicted_ns });
        }
        let depth = queue.ring.count() + queue.waiting.len() + 1;
        let predicted_ns = queue.predicted_ns(depth);
        let asked = Asked { slot, began: now_ns, predicted_ns, depth };
        // The slot's previous page may have arrived after it was freed. One arrival stands for both.
        let was_pending = queue.arrivals.iter().any(|arrival| arrival.slot == slot);
        queue.arrivals.retain(|arrival| arrival.slot != slot);
        let Some(buffer) = queue.buffer() else {
            queue.waiting.push_back(asked);
            return Ok(Fetch::Coming { predicted_ns });
        };
        queue.read(buffer, asked, &self.file);
        // A file system in memory has it at once.
        let before = queue.arrivals.len();
        queue.reap(&self.file, &mut self.slots);
        queue.check()?;
        if let Some((_, Use::Here(_))) = queue.of(slot) {
            let told = queue.arrivals.iter().skip(before).position(|arrival| arrival.slot == slot);
            told.filter(|_| !was_pending).map(|index| queue.arrivals.remove(before + index));
            return Ok(Fetch::Here);
        }
        Ok(Fetch::Coming { predicted_ns })
    }

    fn arrived(&mut self, _: u64, into: &mut Vec<Arrival>) {
        if let Some(queue) = &mut self.queue {
            queue.reap(&self.file, &mut self.slots);
            into.append(&mut queue.arrivals);
        }
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
        self.held * PAGE as u64
    }
}

impl Drop for PagesOnFile {
    /// Requests are done before the file is closed.
    fn drop(&mut self) {
        self.queue = None;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Slow;
    use super::super::tests::{WORK, comes_back, work};
    use super::*;
    use crate::tests::not_run;

    /// A ring; none where there is no io_uring, as under QEMU in user mode.
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
        Box::new(PagesOnFile::open(&folder.join("far"), WORK.1, ring).unwrap())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]

        /// With many requests under way, with one by one, and in a tier that is slower still; on a disk
        /// and in memory.
        #[test]
        fn what_is_on_its_way_comes_back(work in work()) {
            for folder in [tempfile::tempdir_in("."), tempfile::tempdir_in("/dev/shm")] {
                let folder = folder.unwrap();
                comes_back(open(folder.path(), ring()), &work, |_| {});
                comes_back(open(folder.path(), None), &work, |_| {});
                let slow = Slow::new(open(folder.path(), ring()), 50_000);
                comes_back(Box::new(slow), &work, |arrival| assert!(arrival.took_ns >= 50_000));
            }
        }
    }

    /// A file system with room for 16 pages, in a namespace of this thread's own.
    fn small() -> Option<tempfile::TempDir> {
        let folder = tempfile::tempdir().unwrap();
        let path = std::ffi::CString::new(folder.path().to_str()?).ok()?;
        let (none, kind, size) = (std::ptr::null(), c"tmpfs", c"size=64k");
        // SAFETY: strings that end in zero; other threads keep their mounts.
        let mounted = unsafe {
            libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, none.cast()) == 0
                && libc::mount(kind.as_ptr(), path.as_ptr(), kind.as_ptr(), 0, size.as_ptr().cast()) == 0
        };
        mounted.then_some(folder)
    }

    /// What the file has no room for is refused or kept, and there is room again when pages are freed.
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
                        assert!(held.len() <= 16 + STORING, "there is no room for so many");
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
