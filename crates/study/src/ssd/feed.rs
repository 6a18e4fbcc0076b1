//! Splits a trace into streams of references by thread.
//!
//! Threads replay independently, but the order of the trace approximates their synchronisation at
//! locks and pipes. So at most `window` instructions are in flight; a thread without references waits
//! until the others have caught up. Filtered traces lack references, so the unit is instructions.

use std::collections::VecDeque;

use nearfar_trace::{Batch, Kind, Result};

#[derive(Clone, Copy, Debug)]
pub struct Reference {
    /// Virtual address of the first byte.
    pub addr: u64,
    /// Instructions since the thread's previous reference, this one included.
    pub instr: u32,
    pub size: u16,
    pub kind: Kind,
}

/// Maximum references per chunk.
const MAX_CHUNK: usize = 4096;

/// Fills a batch; returns false at the end of the trace.
pub type Source<'a> = dyn FnMut(&mut Batch) -> Result<bool> + 'a;

/// References handed to a thread at once.
#[derive(Debug, Default)]
pub struct Chunk {
    /// In trace order.
    pub references: Vec<Reference>,
    /// Sum of their [`window_instructions`].
    instr: u64,
}

/// Instructions that a reference adds to the window: at least 1, to bound the references in flight.
fn window_instructions(instr: u32) -> u64 {
    u64::from(instr.max(1))
}

/// The references in flight.
#[derive(Default)]
pub struct Feed {
    streams: Vec<VecDeque<Chunk>>,
    spare: Vec<Vec<Reference>>,
    batch: Batch,
    /// Index in the batch of the next reference.
    at: usize,
    /// Instructions of references read but not completed.
    in_flight: u64,
    window: u64,
    ended: bool,
    read: u64,
}

impl Feed {
    pub fn new(window: u64) -> Self {
        Self { window, ..Self::default() }
    }

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

    pub fn has(&self, thread: u32) -> bool {
        self.streams.get(thread as usize).is_some_and(|stream| !stream.is_empty())
    }

    pub fn room(&self) -> bool {
        !self.ended && self.in_flight < self.window
    }

    /// Complete a thread's chunk and recycle it.
    pub fn done(&mut self, chunk: &mut Chunk) {
        self.in_flight -= std::mem::take(&mut chunk.instr);
        let mut references = std::mem::take(&mut chunk.references);
        references.clear();
        if references.capacity() > 0 {
            self.spare.push(references);
        }
    }

    /// The thread's next chunk, if it has one now.
    pub fn next(&mut self, thread: u32) -> Option<Chunk> {
        self.streams.get_mut(thread as usize)?.pop_front()
    }

    /// Move the next run of references of one thread from the trace into its stream. There must be
    /// [`room`](Self::room).
    pub fn fill(&mut self, source: &mut Source<'_>) -> Result<()> {
        if self.at == self.batch.len() {
            self.at = 0;
            if !source(&mut self.batch)? {
                self.batch.clear();
                self.ended = true;
                return Ok(());
            }
        }
        let batch = std::mem::take(&mut self.batch);
        let (start, room) = (self.at, (self.window - self.in_flight).min(self.max_instr()));
        let mut instr = 0u64;
        while let Some(&thread) = batch.thread.get(self.at)
            && thread == batch.thread[start]
            && self.at - start < MAX_CHUNK
            && instr < room
        {
            instr += window_instructions(batch.instr[self.at]);
            self.at += 1;
        }
        if self.at > start {
            self.append(batch.thread[start], &batch, start, instr);
        }
        self.read += (self.at - start) as u64;
        self.in_flight += instr;
        self.batch = batch;
        Ok(())
    }

    /// Maximum instructions per chunk; only the last reference may exceed it. Chunks complete as a
    /// whole, so small chunks let other threads continue earlier.
    fn max_instr(&self) -> u64 {
        (self.window / 8).max(1)
    }

    fn append(&mut self, thread: u32, batch: &Batch, start: usize, instr: u64) {
        let end = self.at;
        let max_instr = self.max_instr();
        let stream = crate::slot(&mut self.streams, thread);
        let fits = |chunk: &Chunk| {
            chunk.references.len() + (end - start) <= MAX_CHUNK && chunk.instr + instr <= max_instr
        };
        if !stream.back().is_some_and(fits) {
            let references = self.spare.pop().unwrap_or_default();
            stream.push_back(Chunk { references, instr: 0 });
        }
        let Some(chunk) = stream.back_mut() else { return };
        chunk.instr += instr;
        let columns = batch.addr[start..end]
            .iter()
            .zip(&batch.instr[start..end])
            .zip(batch.size[start..end].iter().zip(&batch.kind[start..end]));
        chunk.references.extend(columns.map(|((&addr, &instr), (&size, &kind))| Reference {
            addr,
            instr,
            size,
            kind: Kind::from_u8(kind).unwrap_or(Kind::Load),
        }));
    }
}
