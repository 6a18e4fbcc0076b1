//! Runs the receiver on shared memory with arbitrary contents: for the fuzz target `protocol`, the
//! replay of its corpus, and a property test.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use nearfar_trace::{Batch, Columns, Reader, Result, Source, Writer, WriterOptions};

use crate::interrupt::{Action, Interrupter};
use crate::layout::{CHUNK_WORDS, CONTROL, RING_WORDS, RINGS_AT, SLOTS_AT, Slot, state};
use crate::recording::Recording;
use crate::schedule::Schedule;
use crate::shared::Shared;
use crate::streams::{Remaining, Streams};

/// Number of streams that inputs write to.
const STREAMS: usize = 4;
/// Maximum records per input.
const MAX_RECORDS: u64 = 1 << 16;
/// Calls of [`Streams::drain`] within which the receiver must finish.
const TURNS: usize = 64;

/// The unread part of an input; zeros follow its end.
pub struct Input<'a>(&'a [u8]);

impl Input<'_> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    /// The next number; small numbers take one byte.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            byte @ 0..200 => byte.into(),
            byte @ 200..240 => 1 << (byte - 200),
            240..248 => u64::MAX - u64::from(self.byte()),
            _ => (0..8).fold(0, |number, _| number << 8 | u64::from(self.byte())),
        }
    }
}

/// Clear `shared`, write to it as `bytes` say, and receive a trace into the folder `dir`. `plugin`
/// acts as the QEMU plugin, before anything else is written (`true`) and at the end (`false`).
/// Returns whether the trace has records and the receiver rejected nothing.
///
/// # Panics
/// The trace cannot be read.
pub fn protocol(
    shared: &Shared,
    dir: &Path,
    bytes: &[u8],
    plugin: &mut dyn FnMut(&mut Input<'_>, bool),
) -> bool {
    receive(shared, dir, &mut Input(bytes), plugin).unwrap_or_else(|error| panic!("{error}"))
}

fn receive(
    shared: &Shared,
    dir: &Path,
    input: &mut Input<'_>,
    plugin: &mut dyn FnMut(&mut Input<'_>, bool),
) -> Result<bool> {
    let path = dir.join("t.trace");
    let follows = input.byte() & 1 == 1;
    shared.clear(u32::from(follows));
    plugin(input, true);
    let pid = std::process::id();
    let options = WriterOptions { overwrite: true, part_records: 1000, ..<_>::default() };
    let writer = Writer::create(&path, Source::default(), options)?;
    let mut go_on = |_| Action::Continue;
    // There is no program to signal (PID 0): `go_on` never interrupts.
    let interrupter = Interrupter::new(0, None, &mut go_on);
    let fetch = input.byte() & 1 == 0;
    let recording = Recording::new(
        shared,
        writer,
        fetch,
        // Skip no records.
        (0, Some(MAX_RECORDS), Schedule::unlimited()),
        interrupter,
    );
    let resident = true;
    let mut streams = Streams::new(shared, recording, follows, resident);
    // Greater than the orders of streams that `plugin` opens.
    let mut orders = 1000;
    while !input.is_empty() {
        let slot = usize::from(input.byte()) % STREAMS;
        let at = SLOTS_AT + slot * size_of::<Slot>();
        // Write a header word or slot word, open a stream, publish words, drain, change a state, or
        // write any word.
        match input.byte() % 8 {
            0 => shared.word(usize::from(input.byte() % 8) * 8).store(input.number(), Relaxed),
            1 => shared.word(at + usize::from(input.byte() % 9) * 8).store(input.number(), Relaxed),
            2 => {
                orders += 1;
                let slot = &shared.slots()[slot];
                slot.pid.store(pid.wrapping_add(u32::from(input.byte() & 1)), Relaxed);
                slot.origin.store(u32::from(input.byte() & 3), Relaxed);
                slot.order.store(orders, Relaxed);
                for zero in [&slot.cursor, &slot.ring, &slot.entered, &slot.taken] {
                    zero.store(0, Relaxed);
                }
                slot.state.store(state::OPEN, Relaxed);
                shared.header().used.fetch_max(STREAMS as u32, Relaxed);
            }
            3 => {
                // A control record; its tag is from `tag::PAD` to `tag::PLACE`.
                let (kind, count) = (120 + u64::from(input.byte() % 7), input.byte() % 16);
                publish(shared, slot, CONTROL | kind << 56 | u64::from(count));
                (0..count).for_each(|_| publish(shared, slot, input.number()));
            }
            4 => publish(shared, slot, input.number()),
            5 => {
                let others_gone = input.byte() & 1 == 1;
                streams.drain(pid, &mut |process, _| others_gone && process != pid)?;
            }
            6 => shared.slots()[slot].state.store(u32::from(input.byte() & 3), Relaxed),
            _ => shared
                .word(input.number() as usize % RINGS_AT / 8 * 8)
                .store(input.number(), Relaxed),
        }
    }
    plugin(input, false);
    // As in `run::drive`, do not wait for forged streams to end.
    let ended = (0..TURNS).try_fold(false, |ended, _| {
        let remaining = streams.drain(pid, &mut |_, _| true)?;
        Ok(ended || remaining == Remaining::None || streams.recording.out.stop_reason.is_some())
    })?;
    assert!(ended, "the capture never ends");
    let sound = streams.recording.out.stop_reason.is_none();
    let info = streams.into_writer().finish(None)?;
    let reader = Reader::open(&path)?;
    let (mut batches, mut batch, mut read) = (reader.batches(Columns::ALL), Batch::default(), 0);
    while batches.next_into(&mut batch)? {
        read += batch.len() as u64;
    }
    assert_eq!(read, info.records);
    reader.regions().map(|_| sound && read > 0)
}

/// Append a word to a stream as its writer does.
fn publish(shared: &Shared, index: usize, value: u64) {
    let slot = &shared.slots()[index];
    let position = slot.position();
    let offset = position as usize % RING_WORDS;
    shared.word(RINGS_AT + (index * RING_WORDS + offset) * 8).store(value, Relaxed);
    let next = position.wrapping_add(1);
    if next.is_multiple_of(CHUNK_WORDS as u64) {
        slot.entered.store(next, Relaxed);
    }
    let ring = slot.ring.load(Relaxed);
    slot.cursor.store(ring.wrapping_add(next % RING_WORDS as u64 * 8), Relaxed);
}
