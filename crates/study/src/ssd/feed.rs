//! From one trace to a stream of references for each thread.
//!
//! Threads replay on their own, but the order of the trace is what is known of who waited for whom.
//! So at most `window` references are in flight: a thread that has none left has to wait until the
//! others have caught up, as it would have at the locks and pipes between them.

use std::collections::VecDeque;

use nearfar_trace::{Batch, Kind, Result};

/// One reference.
#[derive(Clone, Copy, Debug)]
pub struct Reference {
    /// Virtual address of the first byte.
    pub addr: u64,
    /// Instructions since the thread's previous one, itself included.
    pub instr: u32,
    /// Bytes.
    pub size: u16,
    /// What it does.
    pub kind: Kind,
}

/// References in a piece handed to a thread.
const PIECE: usize = 4096;

/// Where batches come from: replaces the contents of the batch; false at the end.
pub type Source<'a> = dyn FnMut(&mut Batch) -> Result<bool> + 'a;

/// The references in flight.
#[derive(Default)]
pub struct Feed {
    streams: Vec<VecDeque<Vec<Reference>>>,
    spare: Vec<Vec<Reference>>,
    batch: Batch,
    /// References read and not yet handed to a thread.
    waiting: usize,
    window: usize,
    ended: bool,
    read: u64,
}

impl Feed {
    /// Nothing read yet.
    pub fn new(window: usize) -> Self {
        Self { window, ..Self::default() }
    }

    /// Whether the trace is read to its end.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// References read so far.
    pub fn read(&self) -> u64 {
        self.read
    }

    /// Threads seen so far.
    pub fn threads(&self) -> usize {
        self.streams.len()
    }

    /// Whether the thread has references waiting.
    pub fn has(&self, thread: u32) -> bool {
        self.streams.get(thread as usize).is_some_and(|stream| !stream.is_empty())
    }

    /// Whether there is room to read on.
    pub fn room(&self) -> bool {
        !self.ended && self.waiting < self.window
    }

    /// Replace a thread's finished `piece` by its next; false when it has none now.
    pub fn next(&mut self, thread: u32, piece: &mut Vec<Reference>) -> bool {
        let Some(next) = self.streams.get_mut(thread as usize).and_then(VecDeque::pop_front) else {
            return false;
        };
        self.waiting -= next.len();
        let mut used = std::mem::replace(piece, next);
        used.clear();
        self.spare.push(used);
        true
    }

    /// Read one batch of the trace.
    pub fn fill(&mut self, source: &mut Source<'_>) -> Result<()> {
        if !source(&mut self.batch)? {
            self.ended = true;
            return Ok(());
        }
        let batch = std::mem::take(&mut self.batch);
        let mut start = 0;
        while start < batch.len() {
            let thread = batch.thread[start];
            let same = batch.thread[start..].iter().take(PIECE).take_while(|t| **t == thread);
            let end = start + same.count();
            self.append(thread as usize, &batch, start, end);
            start = end;
        }
        self.read += batch.len() as u64;
        self.waiting += batch.len();
        self.batch = batch;
        Ok(())
    }

    fn append(&mut self, thread: usize, batch: &Batch, start: usize, end: usize) {
        if thread >= self.streams.len() {
            self.streams.resize_with(thread + 1, VecDeque::new);
        }
        let stream = &mut self.streams[thread];
        if stream.back().is_none_or(|piece| piece.len() + (end - start) > PIECE) {
            stream.push_back(self.spare.pop().unwrap_or_else(|| Vec::with_capacity(PIECE)));
        }
        let Some(piece) = stream.back_mut() else { return };
        let columns = batch.addr[start..end]
            .iter()
            .zip(&batch.instr[start..end])
            .zip(batch.size[start..end].iter().zip(&batch.kind[start..end]));
        piece.extend(columns.map(|((&addr, &instr), (&size, &kind))| Reference {
            addr,
            instr,
            size,
            kind: Kind::from_u8(kind).unwrap_or(Kind::Load),
        }));
    }
}
