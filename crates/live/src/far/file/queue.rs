//! Requests to the far tier's file, and the pages in their buffers. A slot is a page's place in the file.

use std::collections::VecDeque;
use std::fs::File;
use std::io;

use rustc_hash::FxHashMap;

use super::super::ring::{Buffer, REQUESTS, Ring};
use super::super::slots::Slots;
use super::super::{Arrival, Fault};
use crate::linux::monotonic;
use crate::{PAGE, Slot};

/// Number of bins of queue depths, by binary logarithm. The last is for depths of at least [`REQUESTS`].
const DEPTHS: usize = REQUESTS.ilog2() as usize + 1;

/// Predicted read time before the first read: about that of flash.
const INITIAL_READ_NS: u64 = 100_000;

pub(super) struct Queue {
    pub(super) ring: Ring,
    pub(super) uses: [Use; REQUESTS],
    pub(super) buffers: FxHashMap<Slot, Buffer>,
    pub(super) free: Vec<Buffer>,
    /// Buffers with pages that have been read, oldest first.
    pub(super) loaded: VecDeque<Buffer>,
    /// Reads that wait for a buffer.
    pub(super) waiting: VecDeque<Request>,
    /// Slots that were freed while their request was in flight, to be reused after its completion.
    pub(super) freed: Vec<Slot>,
    /// Slots whose blocks the file system has allocated.
    pub(super) allocated: Vec<bool>,
    /// Number of writes in flight.
    pub(super) writing: usize,
    /// Number of pages that the file system has no room for. They stay in their buffers.
    pub(super) refused: usize,
    pub(super) arrivals: Vec<Arrival>,
    /// Exponential moving averages of read times by bin of queue depths; 0 for a bin without reads.
    pub(super) read_ns: [u64; DEPTHS],
    pub(super) broken: Option<Fault>,
}

/// A page to read.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub(super) slot: Slot,
    pub(super) began: u64,
    pub(super) predicted_ns: u64,
    /// Requests in flight or queued before it, plus one.
    pub(super) depth: usize,
}

/// What a buffer is used for.
#[derive(Clone, Copy)]
pub(super) enum Use {
    Free,
    Reading(Request),
    Loaded(Slot),
    Writing(Slot),
    Refused(Slot),
}

pub(super) fn broken(doing: &str, error: &io::Error) -> Fault {
    Fault::Broken(format!("{doing} the far tier's file: {error}"))
}

/// Whether a write failed because the file system is full.
pub(super) fn no_room(error: &io::Error) -> bool {
    // `Ring::done` reports a short write as `UnexpectedEof`.
    let number = error.raw_os_error();
    error.kind() == io::ErrorKind::UnexpectedEof
        || matches!(number, Some(libc::ENOSPC | libc::EDQUOT))
}

pub(super) fn offset_of(slot: Slot) -> u64 {
    (slot.index() * PAGE) as u64
}

impl Queue {
    pub(super) fn new(ring: Ring) -> Self {
        Self {
            ring,
            uses: [Use::Free; REQUESTS],
            buffers: FxHashMap::default(),
            free: Ring::all().rev().collect(),
            loaded: VecDeque::new(),
            waiting: VecDeque::new(),
            freed: Vec::new(),
            allocated: Vec::new(),
            writing: 0,
            refused: 0,
            arrivals: Vec::new(),
            read_ns: [0; DEPTHS],
            broken: None,
        }
    }

    pub(super) fn buffer_of(&self, slot: Slot) -> Option<(Buffer, Use)> {
        let buffer = *self.buffers.get(&slot)?;
        Some((buffer, self.uses[buffer.index()]))
    }

    /// Take a free buffer, or else that of the oldest loaded page.
    pub(super) fn buffer(&mut self) -> Option<Buffer> {
        if self.free.is_empty() {
            let oldest = *self.loaded.front()?;
            self.release(oldest);
        }
        self.free.pop()
    }

    pub(super) fn release(&mut self, buffer: Buffer) {
        let slot = match std::mem::replace(&mut self.uses[buffer.index()], Use::Free) {
            Use::Free => return,
            Use::Loaded(slot) => {
                self.loaded.retain(|other| *other != buffer);
                slot
            }
            Use::Refused(slot) => {
                self.refused -= 1;
                slot
            }
            Use::Reading(Request { slot, .. }) | Use::Writing(slot) => slot,
        };
        self.buffers.remove(&slot);
        self.free.push(buffer);
    }

    fn bin(depth: usize) -> usize {
        (depth.ilog2() as usize).min(DEPTHS - 1)
    }

    /// Predicted time of a read at this queue depth: the average of the nearest lower bin with reads, or else
    /// of the nearest higher one.
    pub(super) fn predicted_ns(&self, depth: usize) -> u64 {
        let (lower, higher) = self.read_ns.split_at(Self::bin(depth) + 1);
        let known = lower.iter().rev().chain(higher).find(|read_ns| **read_ns > 0);
        known.copied().unwrap_or(INITIAL_READ_NS)
    }

    /// Handle completed requests, and start waiting ones.
    pub(super) fn reap(&mut self, file: &File, slots: &mut Slots) {
        while let Some((buffer, result)) = self.ring.done() {
            match self.uses[buffer.index()] {
                Use::Reading(request) => {
                    let freed = self.finish(request.slot, slots);
                    self.finish_read(buffer, request, result, freed);
                }
                Use::Writing(slot) => {
                    let freed = self.finish(slot, slots);
                    self.finish_write(buffer, slot, result, freed);
                }
                Use::Free | Use::Loaded(_) | Use::Refused(_) => {}
            }
        }
        // Loaded pages are about to be used: discard one only if no request is in flight.
        while (!self.free.is_empty() || self.ring.count() == 0)
            && let Some(request) = self.waiting.front().copied()
            && let Some(buffer) = self.buffer()
        {
            self.waiting.pop_front();
            self.read(buffer, request, file);
        }
    }

    /// A slot's request is complete. If the slot was freed meanwhile, free it now and return true.
    fn finish(&mut self, slot: Slot, slots: &mut Slots) -> bool {
        let index = self.freed.iter().position(|freed| *freed == slot);
        if let Some(index) = index {
            self.freed.swap_remove(index);
            slots.free(slot);
        }
        index.is_some()
    }

    fn finish_read(
        &mut self,
        buffer: Buffer,
        request: Request,
        result: io::Result<()>,
        freed: bool,
    ) {
        let took_ns = monotonic().saturating_sub(request.began);
        let average = &mut self.read_ns[Self::bin(request.depth)];
        *average =
            if *average == 0 { took_ns.max(1) } else { (7 * *average + took_ns).div_ceil(8) };
        let Request { slot, predicted_ns, .. } = request;
        self.arrivals.push(Arrival { slot, predicted_ns, took_ns });
        match result {
            Ok(()) if !freed => {
                self.uses[buffer.index()] = Use::Loaded(slot);
                self.loaded.push_back(buffer);
                return;
            }
            Err(error) if !freed => self.broken = Some(broken("reading", &error)),
            _ => {}
        }
        self.release(buffer);
    }

    fn finish_write(&mut self, buffer: Buffer, slot: Slot, result: io::Result<()>, freed: bool) {
        self.writing -= 1;
        match result {
            Ok(()) => self.allocated[slot.index()] = true,
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

    pub(super) fn read(&mut self, buffer: Buffer, request: Request, file: &File) {
        self.uses[buffer.index()] = Use::Reading(request);
        self.buffers.insert(request.slot, buffer);
        if let Err(error) = self.ring.read(buffer, file, offset_of(request.slot)) {
            self.broken = Some(broken("reading", &error));
        }
    }

    /// Wait until a request is complete.
    pub(super) fn wait(
        &mut self,
        file: &File,
        slots: &mut Slots,
    ) -> std::result::Result<(), Fault> {
        self.ring.wait().map_err(|error| broken("waiting for", &error))?;
        self.reap(file, slots);
        self.check()
    }

    pub(super) fn check(&self) -> std::result::Result<(), Fault> {
        self.broken.clone().map_or(Ok(()), Err)
    }
}
