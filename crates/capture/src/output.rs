//! Writes the records of a capture that `--skip-refs`, `--max-refs` and the schedule select.

use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use nearfar_trace::sample::Burst;
use nearfar_trace::{Batch, Clock, NarrowBatch, Result, Writer};

use crate::expand::Sink;
use crate::interrupt::Interrupter;
use crate::schedule::Schedule;
use crate::shared::Shared;

/// Writes the selected records. A thread's first written record keeps its gap (instructions since the
/// previous record) to the skipped record before it.
pub(crate) struct Output<'a> {
    pub shared: &'a Shared,
    pub writer: Writer,
    /// Records still to skip (`--skip-refs`).
    pub skip: u64,
    /// Records to write at most.
    pub max: u64,
    pub schedule: Schedule,
    /// Recording is over: for `stop_reason`, or because a limit was reached, the guest ended it, or the user
    /// killed the program.
    pub stopped: bool,
    pub stop_reason: Option<StopReason>,
    pub interrupter: Interrupter<'a>,
    /// When the first record was written.
    pub began: Option<Instant>,
    /// Times of later records, relative to `began`.
    pub clock: Clock,
    /// All fetches, loads and stores of the program, if a sample is recorded.
    pub references: [u64; 3],
    /// Finished bursts of a sample.
    pub bursts: Vec<Burst>,
}

/// Why the rest of the program could not be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// The program wrote to the shared memory.
    Forged,
    /// The limit of events in a trace was reached.
    TooManyEvents,
}

impl Output<'_> {
    pub fn stop(&mut self, reason: Option<StopReason>) {
        if !self.stopped {
            (self.stopped, self.stop_reason) = (true, reason);
        }
        self.shared.header().stop.store(1, SeqCst);
    }

    /// Note the time, and check whether the user ends the program. Called after each write, because a
    /// few words of a stream can make many records.
    fn after_write(&mut self) {
        let records = self.writer.records();
        if records > 0 {
            let began = self.began.get_or_insert_with(Instant::now);
            self.clock.note(began.elapsed().as_millis() as u64, records);
        }
        if self.interrupter.poll_if_due(records) {
            self.stop(None);
        }
    }

    /// Write records that do not count towards `max`.
    pub fn write_uncounted(&mut self, records: &mut Batch) -> Result<()> {
        if !self.stopped && self.has_begun() {
            self.max = self.max.saturating_add(records.len() as u64);
            self.writer.push_batch(records)?;
            self.after_write();
        }
        records.clear();
        Ok(())
    }

    /// Whether the part to record has begun.
    pub fn has_begun(&self) -> bool {
        self.skip == 0 && self.schedule.waits_for().is_none()
    }

    /// Which of the next `records` records to write.
    fn select(&mut self, records: usize) -> Range<usize> {
        if self.schedule.waits_for().is_some() {
            return 0..0;
        }
        let start = self.skip.min(records as u64);
        self.skip -= start;
        let (records, left) = (records as u64 - start, self.max - self.writer.records());
        if records >= left {
            self.stop(None);
        }
        start as usize..(start + left.min(records)) as usize
    }
}

impl Sink for Output<'_> {
    fn narrow(&mut self, records: NarrowBatch<'_>) -> Result<()> {
        let selected = self.select(records.len());
        self.writer.push_narrow(records.part(selected))?;
        self.after_write();
        Ok(())
    }

    fn wide(&mut self, records: &mut Batch) -> Result<()> {
        records.keep(self.select(records.len()));
        let pushed = self.writer.push_batch(records);
        records.clear();
        self.after_write();
        pushed
    }
}
