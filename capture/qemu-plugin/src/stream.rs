// SPDX-License-Identifier: GPL-2.0-or-later
//! The writing end of a stream: the ring in shared memory that one guest thread writes to.

use std::marker::PhantomData;
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use super::layout::{
    CHUNK, CHUNK_WORDS, CHUNKS, CONTROL, MAX_CONTROL, RING, Slot, state, tag, what,
};
use super::recorder::{Recorder, futex_wait};

/// The writing end of the stream of a virtual processor.
///
/// Whatever is written while nobody records goes to a chunk of its own, which is written over and
/// over. The handle stays on the thread that made it.
pub struct Stream {
    recorder: &'static Recorder,
    vcpu: u32,
    /// Its cursor points to a free word that nobody else writes or reads, and more such words follow
    /// up to the end of the chunk.
    slot: &'static Slot,
    thread: PhantomData<*const ()>,
}

impl Stream {
    /// # Safety
    /// A [`Recorder`] is installed; `vcpu` has been opened; the calling thread is the one of `vcpu`,
    /// and there is no other handle for it.
    #[inline(always)]
    pub unsafe fn of(vcpu: u32) -> Self {
        // SAFETY: installed, says the caller.
        let recorder = unsafe { Recorder::installed().unwrap_unchecked() };
        // SAFETY: opening puts a slot there, and no slot ever goes away.
        let slot = unsafe { &*recorder.place(vcpu).load(Relaxed) };
        Self { recorder, vcpu, slot, thread: PhantomData }
    }

    /// Write one word.
    #[inline(always)]
    pub fn put(&mut self, word: u64) {
        let cursor = self.slot.cursor.load(Relaxed);
        // SAFETY: the cursor points to a free word of ours.
        unsafe { pointer(cursor).write(word) };
        self.publish(cursor + 8);
    }

    /// The words before `next` are written.
    #[inline(always)]
    fn publish(&mut self, next: u64) {
        if next.is_multiple_of(CHUNK as u64) {
            enter(self.recorder, self.slot, next);
        } else {
            self.slot.cursor.store(next, Release);
        }
    }

    /// Write a control record: `tag`, then `words`, all or nothing.
    pub fn control(&mut self, kind: u64, words: &[u64]) {
        if !self.recorder.recording() || words.len() >= MAX_CONTROL {
            return;
        }
        let mut cursor = self.slot.cursor.load(Relaxed);
        let room = (CHUNK as u64 - cursor % CHUNK as u64) / 8;
        if room < words.len() as u64 + 1 {
            // SAFETY: the cursor points to a free word of ours.
            unsafe { pointer(cursor).write(CONTROL | tag::PAD << 56 | (room - 1)) };
            self.publish(cursor + room * 8);
            cursor = self.slot.cursor.load(Relaxed);
        }
        // SAFETY: there is room for the control word and `words` up to the end of the chunk.
        unsafe {
            let to = pointer(cursor);
            to.write(CONTROL | kind << 56 | words.len() as u64);
            to.add(1).copy_from_nonoverlapping(words.as_ptr(), words.len());
        }
        self.publish(cursor + (words.len() as u64 + 1) * 8);
    }

    /// Write a control record that ends in text.
    pub fn control_text(&mut self, kind: u64, fixed: &[u64], text: &[u8]) {
        let text = &text[..text.len().min(4096)];
        let mut words = fixed.to_vec();
        words.push(text.len() as u64);
        for piece in text.chunks(8) {
            let mut bytes = [0; 8];
            bytes[..piece.len()].copy_from_slice(piece);
            words.push(u64::from_le_bytes(bytes));
        }
        self.control(kind, &words);
    }

    /// An event without a range.
    pub fn note(&mut self, what: u64, name: &[u8]) {
        self.control_text(tag::EVENT, &[what, 0, 0, 0, 0], name);
    }

    /// In the parent of a fork: the child runs unrecorded, if it does.
    pub fn forked(&mut self) {
        if !self.recorder.follows() {
            self.note(what::FORK_LOST, b"");
        }
    }

    /// The thread has executed its last instruction.
    pub fn close(self) {
        let scratch = self.recorder.scratch();
        self.recorder.place(self.vcpu).store(std::ptr::from_ref(scratch).cast_mut(), Relaxed);
        if !std::ptr::eq(self.slot, scratch) {
            self.slot.state.store(state::CLOSED, Release);
            self.recorder.ring_bell();
        }
    }
}

/// The word at a cursor.
#[inline(always)]
fn pointer(cursor: u64) -> *mut u64 {
    with_exposed_provenance_mut(cursor as usize)
}

/// The writer has come to the end of a chunk: wait until there is room in the next ones. The chunk
/// after this one is free already, as a ring is never more than `CHUNKS - 1` chunks full.
#[cold]
#[inline(never)]
fn enter(recorder: &Recorder, slot: &Slot, next: u64) {
    let ring = slot.ring.load(Relaxed);
    if std::ptr::eq(slot, recorder.scratch()) {
        slot.cursor.store(ring, Relaxed);
        return;
    }
    let next = if next == ring + RING as u64 { ring } else { next };
    let entered = slot.entered.load(Relaxed) + CHUNK_WORDS as u64;
    slot.entered.store(entered, Relaxed);
    slot.cursor.store(next, Release);
    if !recorder.recording() {
        return;
    }
    recorder.ring_bell();
    let limit = ((CHUNKS - 2) * CHUNK_WORDS) as u64;
    let mut tries = 0;
    while entered - slot.taken.load(Acquire) > limit {
        if recorder.stopped() {
            return;
        }
        let room = slot.room.load(Acquire);
        slot.waiting.store(1, SeqCst);
        if entered - slot.taken.load(SeqCst) > limit {
            futex_wait(&slot.room, room, 100);
            tries += 1;
            // The receiver may be slow, or it may have been killed: then nobody will ever read.
            if tries % 5 == 0 && recorder.receiver_gone() {
                recorder.turn_off();
                return;
            }
        }
        slot.waiting.store(0, Relaxed);
    }
}
