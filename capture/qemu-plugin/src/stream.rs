// SPDX-License-Identifier: GPL-2.0-or-later
//! The writing end of a stream: the ring in shared memory that one guest thread writes to.

use std::marker::PhantomData;
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use super::layout::{
    CHUNK, CHUNK_WORDS, CHUNKS, CONTROL, Event, MAX_CONTROL, RING, Slot, state, tag, what,
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

    /// How far it is.
    pub fn position(&self) -> u64 {
        self.slot.position()
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

    /// An event: the words before its name, or the first of them, and its name.
    pub fn event(&mut self, fixed: &[u64], name: &[u8]) {
        let mut words = [0; Event::Name as usize];
        words[..fixed.len()].copy_from_slice(fixed);
        self.control_text(tag::EVENT, &words, name);
    }

    /// An event without a range.
    pub fn note(&mut self, what: u64, name: &[u8]) {
        self.event(&[what], name);
    }

    /// Whether nobody reads what is written here.
    fn unread(&self) -> bool {
        std::ptr::eq(self.slot, self.recorder.scratch())
    }

    /// Begin a moment: events up to [`Self::done`] happen after what other threads of this process
    /// have written now, and before what they write later.
    pub fn moment(&mut self) {
        if self.recorder.recording() && !self.recorder.stopped() && !self.unread() {
            let words = self.recorder.moment(self.slot);
            self.control(tag::MOMENT, &words);
        }
    }

    /// End the moment that was begun.
    pub fn done(&mut self) {
        self.control(tag::DONE, &[]);
    }

    /// Before a fork, of `origin`: begin its moment and keep a stream for the child, if children are
    /// recorded.
    pub fn forks(&mut self, origin: u32) {
        if self.recorder.recording()
            && self.recorder.follows()
            && !self.recorder.stopped()
            && !self.unread()
        {
            self.moment();
            self.recorder.keep_for_child(origin, self.slot.order.load(Relaxed));
        }
    }

    /// After it, in the parent: `child` is the process, if one began.
    pub fn forked(&mut self, child: Option<u32>) {
        match (self.recorder.kept_for_child(), child) {
            (Some(slot), Some(child)) => {
                self.event(&[what::FORKED, slot.order.load(Relaxed), u64::from(child)], b"");
            }
            (Some(slot), None) => slot.state.store(state::FREE, Release),
            (None, Some(_)) if !self.recorder.follows() => self.note(what::FORK_LOST, b""),
            (None, _) => {}
        }
        if self.recorder.follows() {
            self.done();
        }
    }

    /// The thread ends, and with it the process if that is what it asks for or it is the last one.
    pub fn ends(mut self, process: bool) {
        if process || !self.unread() && self.recorder.alone(self.slot) {
            self.moment();
            self.note(what::EXIT, b"");
            self.done();
        }
        self.close();
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
    while entered - slot.taken.load(Acquire) > limit {
        if recorder.stopped() {
            return;
        }
        let room = slot.room.load(Acquire);
        slot.waiting.store(1, SeqCst);
        if entered - slot.taken.load(SeqCst) > limit {
            futex_wait(&slot.room, room, 100);
            recorder.end_with_receiver();
        }
        slot.waiting.store(0, Relaxed);
    }
}
