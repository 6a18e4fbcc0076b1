// SPDX-License-Identifier: GPL-2.0-or-later
//! The writer of a stream: the ring in shared memory that one guest thread writes to.

use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use super::layout::{
    CHUNK, CHUNK_WORDS, CHUNKS, CONTROL, Event, MAX_CONTROL, RING, Slot, now, state, tag, what,
};
use super::recorder::{Recorder, futex_wait};
use super::sample;

thread_local! {
    /// [`usage`] when the thread last entered a system call.
    static CALLED: Cell<[u64; 3]> = const { Cell::new([0; 3]) };
}

/// Writes to the stream of a virtual CPU.
///
/// Without a stream, words go to a scratch chunk and are lost. The handle stays on the thread that
/// created it.
pub struct Stream {
    recorder: &'static Recorder,
    vcpu: u32,
    /// Its cursor points to a free word, which no other thread accesses. More free words follow up
    /// to the end of the chunk.
    slot: &'static Slot,
    thread: PhantomData<*const ()>,
}

impl Stream {
    /// # Safety
    /// A [`Recorder`] must be installed and `vcpu` opened. The calling thread must be that of
    /// `vcpu`, and have no other handle.
    #[inline(always)]
    pub unsafe fn of(vcpu: u32) -> Self {
        // SAFETY: installed (contract of this function).
        let recorder = unsafe { Recorder::installed().unwrap_unchecked() };
        // SAFETY: `open` stores a pointer to a slot, and slots are never freed.
        let slot = unsafe { &*recorder.slot_pointer(vcpu).load(Relaxed) };
        Self { recorder, vcpu, slot, thread: PhantomData }
    }

    /// Words written so far.
    pub fn position(&self) -> u64 {
        self.slot.position()
    }

    #[inline(always)]
    pub fn put(&mut self, word: u64) {
        let cursor = self.slot.cursor.load(Relaxed);
        // SAFETY: the cursor points to a free word.
        unsafe { pointer(cursor).write(word) };
        self.publish(cursor + 8);
    }

    /// Publish the words before `next`.
    #[inline(always)]
    fn publish(&mut self, next: u64) {
        if next.is_multiple_of(CHUNK as u64) {
            enter_chunk(self.recorder, self.slot, next);
        } else {
            self.slot.cursor.store(next, Release);
        }
    }

    /// Write a control record atomically: `tag`, then `words`.
    pub fn control(&mut self, tag: u64, words: &[u64]) {
        let vcpu = self.vcpu;
        sample::sync(self, vcpu);
        self.control_only(tag, words);
    }

    /// Like [`Self::control`], without a place record (the thread's position) before it.
    pub fn control_only(&mut self, tag: u64, words: &[u64]) {
        if !self.recorder.recording() || words.len() >= MAX_CONTROL {
            return;
        }
        let mut cursor = self.slot.cursor.load(Relaxed);
        let room = (CHUNK as u64 - cursor % CHUNK as u64) / 8;
        if room < words.len() as u64 + 1 {
            // SAFETY: the cursor points to a free word.
            unsafe { pointer(cursor).write(CONTROL | tag::PAD << 56 | (room - 1)) };
            self.publish(cursor + room * 8);
            cursor = self.slot.cursor.load(Relaxed);
        }
        // SAFETY: there is room for the control word and `words` up to the end of the chunk.
        unsafe {
            let to = pointer(cursor);
            to.write(CONTROL | tag << 56 | words.len() as u64);
            to.add(1).copy_from_nonoverlapping(words.as_ptr(), words.len());
        }
        self.publish(cursor + (words.len() as u64 + 1) * 8);
    }

    /// Write a control record that ends in a text.
    pub fn control_text(&mut self, tag: u64, fixed: &[u64], text: &[u8]) {
        let text = &text[..text.len().min(4096)];
        let mut words = fixed.to_vec();
        words.push(text.len() as u64);
        for chunk in text.chunks(8) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            words.push(u64::from_le_bytes(bytes));
        }
        self.control(tag, &words);
    }

    /// Write an event. Its fixed words beyond `fixed` are 0.
    pub fn event(&mut self, fixed: &[u64], name: &[u8]) {
        let mut words = [0; Event::Name as usize];
        words[..fixed.len()].copy_from_slice(fixed);
        self.control_text(tag::EVENT, &words, name);
    }

    /// Write an event that has only a name.
    pub fn note(&mut self, what: u64, name: &[u8]) {
        self.event(&[what], name);
    }

    /// The thread enters a system call.
    pub fn pause(&self) {
        CALLED.set(usage());
        self.recorder.header().activity.pause(&self.slot.activity, now());
    }

    /// The thread returns from a system call. Returns what is to be reported ([`what::IDLE`]).
    pub fn resume(&self) -> Option<[u64; 2]> {
        if self.is_scratch() {
            return None;
        }
        let (now_used, before) = (usage(), CALLED.get());
        let [cpu, sleeps, faults] = std::array::from_fn(|i| now_used[i].saturating_sub(before[i]));
        // If the call did not sleep, its idle time is at most its processor time, or 0 if it faulted:
        // studies model the time of page faults.
        let limit = match (sleeps, faults) {
            (0, 0) => cpu,
            (0, _) => 0,
            _ => u64::MAX,
        };
        self.recorder.header().activity.resume(&self.slot.activity, now(), limit)
    }

    /// Whether the words are dropped.
    fn is_scratch(&self) -> bool {
        std::ptr::eq(self.slot, self.recorder.scratch())
    }

    /// Begin a fence: events up to [`Self::end_fence`] follow the present words of the process's
    /// other threads, and precede their later ones.
    pub fn begin_fence(&mut self) {
        if self.recorder.recording() && !self.recorder.stopped() && !self.is_scratch() {
            let words = self.recorder.fence_words(self.slot);
            self.control(tag::FENCE, &words);
        }
    }

    pub fn end_fence(&mut self) {
        self.control(tag::FENCE_END, &[]);
    }

    /// Before a fork of kind `origin`: if children are recorded, begin a fence and reserve a stream
    /// for the child.
    pub fn before_fork(&mut self, origin: u32) {
        if self.recorder.recording()
            && self.recorder.follows_children()
            && !self.recorder.stopped()
            && !self.is_scratch()
        {
            sample::forget_all();
            self.begin_fence();
            self.recorder.reserve_for_child(origin, self.slot.order.load(Relaxed));
        }
    }

    /// After a fork, in the parent: `child` is its pid, or `None` if the fork failed.
    pub fn after_fork(&mut self, child: Option<u32>) {
        match (self.recorder.take_reserved(), child) {
            (Some(slot), Some(child)) => {
                self.event(&[what::FORKED, slot.order.load(Relaxed), u64::from(child)], b"");
            }
            (Some(slot), None) => slot.state.store(state::FREE, Release),
            (None, Some(_)) if !self.recorder.follows_children() => {
                self.recorder.header().activity.begin_unrecorded();
                self.note(what::FORK_LOST, b"");
            }
            (None, _) => {}
        }
        if self.recorder.follows_children() {
            self.end_fence();
        }
    }

    /// End the thread, and the process if `process` is true or no other thread is left.
    pub fn end(mut self, process: bool) {
        if process || !self.is_scratch() && self.recorder.is_last_stream(self.slot) {
            self.begin_fence();
            self.note(what::EXIT, b"");
            self.end_fence();
            self.recorder.header().activity.end(&self.slot.activity, now());
        }
        self.close();
    }

    /// Close the stream: the thread has executed its last instruction.
    pub fn close(mut self) {
        let vcpu = self.vcpu;
        sample::sync(&mut self, vcpu);
        self.recorder.write_to_scratch(vcpu);
        if !self.is_scratch() {
            self.pause();
            self.slot.state.store(state::CLOSED, Release);
            self.recorder.ring_bell();
        }
    }
}

/// Processor time of the calling thread, in nanoseconds, and how often it slept and faulted.
fn usage() -> [u64; 3] {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: writes a `rusage`, for which zeros are valid.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    let ns = |time: libc::timeval| time.tv_sec * 1_000_000_000 + time.tv_usec * 1000;
    let used = [ns(usage.ru_utime) + ns(usage.ru_stime), usage.ru_nvcsw, usage.ru_minflt];
    used.map(i64::cast_unsigned)
}

/// The word at a cursor.
#[inline(always)]
fn pointer(cursor: u64) -> *mut u64 {
    with_exposed_provenance_mut(cursor as usize)
}

/// Enter the next chunk, then wait for room in the one after it. The next chunk is free, because a
/// ring is at most `CHUNKS - 1` chunks full.
#[cold]
#[inline(never)]
fn enter_chunk(recorder: &Recorder, slot: &Slot, next: u64) {
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
