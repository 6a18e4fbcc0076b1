// SPDX-License-Identifier: GPL-2.0-or-later
//! A sample of the program's references (`--sample`): every reference to the sampled pages, and of
//! every other page the first load, store and fetch.
//!
//! Callbacks first test a table of the references that need not be reported ([`seen`]), which nearly
//! always suffices.
//!
//! In *bursts*, every reference of a thread is reported: the thread then tests a table in which
//! nothing has been seen. So bursts begin and end without translating code again.
//!
//! Before a reported reference, the receiver of the stream must know the thread's position in
//! instructions. In a *dense* sample ([`DENSE`]), every translation block is written as a word (8
//! bytes), which counts its instructions. In other samples, a *place record* (the thread's position
//! and counts) precedes the first reported reference of a block ([`report`]).

use std::cell::Cell;
use std::ffi::{c_uint, c_void};
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicPtr};

use crate::layout::{
    BYTES_SHIFT, COUNT_SHIFT, FETCH, PAGE_SHIFT, Place, SIZE_SHIFT, STORE, block_addr,
    burst_blocks, burst_distance, burst_start, count_only_word, is_sampled, tag,
};
use crate::recorder::{Recorder, VCPUS, map};
use crate::seen::{
    self, LIMITS, Limits, PAGE, ZEROS, flag, limit, mark_access, mark_fetch, page_of, wanted,
};
pub use crate::seen::{forget, forget_all};
use crate::stream::Stream;
use crate::{ADDR_MASK, At, OnBlock, OnReference, Recording, unpack_fast, zero};

/// Smallest share of pages, times 2^64, of a dense sample: writing every block then takes less time
/// than place records.
const DENSE: u64 = 3 << 62;

static COUNTS: AtomicPtr<Counts> = AtomicPtr::new(null_mut());
static ON: AtomicBool = AtomicBool::new(false);
/// The counts of virtual CPU 0, at a fixed address, which callbacks reach faster.
// SAFETY: zeros are valid counts.
static FIRST: First = First(unsafe { std::mem::zeroed() });

struct First(Counts);

// SAFETY: only the thread of virtual CPU 0 uses it.
unsafe impl Sync for First {}

/// What a virtual CPU has done so far.
#[repr(C, align(64))]
struct Counts {
    instructions: Cell<u64>,
    /// Blocks since the planned start of the current burst; if negative, until that of the next one.
    blocks: Cell<i64>,
    /// From this value of `blocks` on, callbacks examine every block: 0, or `i64::MIN` in a dense
    /// sample.
    examine_from: Cell<i64>,
    /// The share of pages that are sampled, times 2^64, and the seed; updated when a burst begins
    /// or ends.
    share: Cell<u64>,
    seed: Cell<u64>,
    /// Loads and stores.
    data: [Cell<u64>; 2],
    /// The table to test: [`LIMITS`], or [`ZEROS`] in a burst.
    limits: Cell<*mut Limits>,
    /// Planned first block of the current or next burst, counted from the start of the thread.
    burst: Cell<u64>,
    /// Blocks in the part of the run that contains this burst. Each part has one burst.
    distance: Cell<u64>,
    /// Instructions that the receiver knows of.
    reported: Cell<u64>,
    /// [`Counts::done`] at the last place record.
    placed: Cell<u64>,
    /// First block of the next part.
    next_part: Cell<u64>,
    /// Number of the next part.
    next_number: Cell<u64>,
}

impl Counts {
    /// Loads (`store` is 0) or stores (1) that begin below this offset in the page of `addr` need not
    /// be reported.
    #[inline(always)]
    fn limit(&self, addr: u64, store: usize) -> i16 {
        // SAFETY: both tables have limits for every page below 2^ADDR_BITS.
        unsafe { (*self.limits.get().add(page_of(addr)))[store].load(Relaxed) }
    }

    /// Instructions and references so far.
    fn done(&self) -> u64 {
        self.instructions.get() + self.data[0].get() + self.data[1].get()
    }

    /// Blocks since the start of the thread.
    fn fetches(&self) -> u64 {
        self.burst.get().wrapping_add_signed(self.blocks.get())
    }

    #[inline(always)]
    fn count_block(&self, instructions: u64) {
        add(&self.instructions, instructions);
        self.blocks.set(self.blocks.get() + 1);
    }

    fn in_burst(&self) -> bool {
        self.limits.get() == ZEROS.load(Relaxed)
    }

    /// Whether the page of an address is sampled, by `share` and `seed`.
    #[inline(always)]
    fn samples(&self, addr: u64) -> bool {
        is_sampled((addr & ADDR_MASK) >> PAGE_SHIFT, self.seed.get(), self.share.get())
    }

    /// Copy the present share and the seed from the header.
    fn load_share(&self, recorder: &Recorder) {
        self.share.set(recorder.header().sample.load(Relaxed));
        self.seed.set(seed(recorder));
        self.examine_from.set(if self.share.get() >= DENSE { i64::MIN } else { 0 });
    }

    /// Choose the burst of the next part of the run.
    fn plan_burst(&self, recorder: &Recorder, vcpu: c_uint) {
        let header = recorder.header();
        let distance = burst_distance(header.sample.load(Relaxed));
        let length = burst_blocks(header.flags.load(Relaxed));
        let (part, number) = (self.next_part.get(), self.next_number.get());
        let random = number << 32 | u64::from(vcpu);
        let start = part + burst_start(distance, length, seed(recorder), random);
        self.blocks.set(self.fetches().wrapping_sub(start).cast_signed());
        self.burst.set(start);
        self.distance.set(distance);
        self.next_part.set(part + distance);
        self.next_number.set(number + 1);
    }
}

fn add(count: &Cell<u64>, more: u64) {
    count.set(count.get() + more);
}

/// Prepare for a sample, if the receiver requests one. To be called before QEMU loads the program.
pub fn install(recorder: &Recorder) -> io::Result<()> {
    if recorder.header().sample.load(Relaxed) == 0 {
        return Ok(());
    }
    seen::install()?;
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    COUNTS.store(map(VCPUS * size_of::<Counts>(), writable)?.as_ptr().cast(), Relaxed);
    ON.store(true, Relaxed);
    Ok(())
}

/// Whether a sample is recorded.
#[inline(always)]
pub fn is_on() -> bool {
    ON.load(Relaxed)
}

fn has_fetches(recorder: &Recorder) -> bool {
    recorder.header().flags.load(Relaxed) & FETCH != 0
}

/// # Safety
/// A sample is recorded, and the calling thread is that of `vcpu`.
#[inline(always)]
unsafe fn counts(vcpu: c_uint) -> &'static Counts {
    if vcpu == 0 {
        return &FIRST.0;
    }
    // SAFETY: mapped by `install` and never unmapped; zeros are valid.
    unsafe { &*COUNTS.load(Relaxed).add(vcpu as usize % VCPUS) }
}

/// Reset the counts of `vcpu`, which begins a new thread or process.
pub fn begin_counts(recorder: &Recorder, vcpu: c_uint) {
    if is_on() {
        // SAFETY: the sample is on, and this is the thread of `vcpu`, or before its first block.
        let counts = unsafe { counts(vcpu) };
        for count in [&counts.instructions, &counts.data[0], &counts.data[1], &counts.reported] {
            count.set(0);
        }
        for count in [&counts.placed, &counts.burst, &counts.next_part, &counts.next_number] {
            count.set(0);
        }
        counts.blocks.set(0);
        counts.load_share(recorder);
        counts.limits.set(LIMITS.load(Relaxed));
        counts.plan_burst(recorder, vcpu);
    }
}

pub struct Sample;

impl Recording for Sample {
    fn data(index: u64, count: u64) -> u64 {
        index | count
    }
    unsafe fn access(vcpu: c_uint, word: u64, at: At, data: u64) {
        // SAFETY: contract of the trait.
        let counts = unsafe { counts(vcpu) };
        add(&counts.data[usize::from(word & STORE != 0)], 1);
        touch(vcpu, word | at.addr & ADDR_MASK, data);
    }
    unsafe fn fetch(vcpu: c_uint, word: u64) {
        fetch(vcpu, word);
    }
    unsafe fn position(vcpu: c_uint) -> u64 {
        // SAFETY: contract of the trait.
        unsafe { counts(vcpu) }.instructions.get()
    }
    fn reference() -> OnReference {
        reference
    }
    fn block(recorder: &Recorder, word: u64, count: u64) -> (OnBlock, u64) {
        let (offset, bytes) = (word & (PAGE - 1), word >> BYTES_SHIFT & 0xff);
        if !has_fetches(recorder) {
            (on_block_without_fetch, count)
        } else if word >> COUNT_SHIFT & 0x7f != 0 && offset + bytes <= PAGE {
            (on_block, word)
        } else {
            (on_any_block, word)
        }
    }
    fn zeroed() -> OnBlock {
        zero::zeroed_in_sample
    }
}

/// Called on a load or store. `data` is the index of its instruction, shifted into place, and the
/// number of instructions of its block.
extern "C" fn reference(vcpu: c_uint, info: u32, addr: u64, data: *mut c_void) {
    // SAFETY: QEMU calls this on the thread of `vcpu`; callbacks are those of a sample.
    let counts = unsafe { counts(vcpu) };
    let store = (info >> 17 & 1) as usize;
    add(&counts.data[store], 1);
    let limit = counts.limit(addr, store);
    if ((addr % PAGE) as i16) < limit {
        return;
    }
    let (word, data) = (unpack_fast(info) | addr & ADDR_MASK, data as u64);
    // The usual case of a dense sample: a sampled page, in a block that was reported.
    if limit == limit::SAMPLED
        && addr % PAGE + (1 << (word >> SIZE_SHIFT & 7)) <= PAGE
        && counts.reported.get() == counts.instructions.get()
        && counts.samples(addr)
    {
        // SAFETY: as above; this function has no other handle of the stream.
        return unsafe { Stream::of(vcpu) }.put(word | data & !ADDR_MASK);
    }
    touch(vcpu, word, data);
}

/// A load or store that may have to be reported.
#[inline(never)]
fn touch(vcpu: c_uint, word: u64, data: u64) {
    let (addr, bytes) = (word & ADDR_MASK, 1 << (word >> SIZE_SHIFT & 7));
    let store = usize::from(word & STORE != 0);
    // SAFETY: callers are on the thread of `vcpu`.
    let counts = unsafe { counts(vcpu) };
    if addr % PAGE + bytes <= PAGE && counts.limit(addr, store) > 0 {
        return;
    }
    if wanted(addr, bytes, |page| mark_access(page, store)) | counts.in_burst() {
        // SAFETY: as above; callers have no handle.
        let mut stream = unsafe { Stream::of(vcpu) };
        let end = counts.instructions.get();
        report(&mut stream, counts, end.saturating_sub(data & ADDR_MASK));
        stream.put(word | data & !ADDR_MASK);
    }
}

/// Called when a block begins that lies in one page and fits a word: `word`.
extern "C" fn on_block(vcpu: c_uint, word: *mut c_void) {
    let word = word as u64;
    // SAFETY: as in `reference`.
    let counts = unsafe { counts(vcpu) };
    // SAFETY: callbacks are those of a sample.
    let flags = unsafe { seen::flags(word) }.load(Relaxed);
    if flags & flag::FETCH == 0 || counts.blocks.get() >= counts.examine_from.get() {
        return examine_block(vcpu, word, flags);
    }
    counts.count_block(word >> COUNT_SHIFT & 0x7f);
}

/// A block within one page begins, and may have to be reported. `flags` are those of its page.
#[inline(never)]
fn examine_block(vcpu: c_uint, word: u64, flags: u8) {
    // SAFETY: as in `reference`.
    let counts = unsafe { counts(vcpu) };
    let is_seen = flags & flag::FETCH != 0;
    let is_sampled = !is_seen && flags & flag::EVER != 0 && counts.samples(word);
    // The usual cases of a dense sample.
    if counts.blocks.get() < 0 && is_seen | is_sampled {
        begin_block(vcpu, counts, is_sampled.then_some(word), word >> COUNT_SHIFT & 0x7f);
    } else {
        fetch(vcpu, word);
    }
}

/// Called when a block begins that crosses pages or does not fit a word.
extern "C" fn on_any_block(vcpu: c_uint, word: *mut c_void) {
    fetch(vcpu, word as u64);
}

/// Called when a block begins if fetches are not recorded. `count` is its number of instructions.
extern "C" fn on_block_without_fetch(vcpu: c_uint, count: *mut c_void) {
    // SAFETY: as in `reference`.
    let counts = unsafe { counts(vcpu) };
    if counts.blocks.get() >= counts.examine_from.get() {
        return begin_without_fetch(vcpu, count as u64);
    }
    counts.count_block(count as u64);
}

/// A block begins: count it, and report it if it is part of the sample.
fn fetch(vcpu: c_uint, word: u64) {
    let Some(recorder) = Recorder::installed() else { return };
    let (addr, bytes, count) = recorder.decode(word);
    let (addr, _) = block_addr(addr);
    // SAFETY: callers are on the thread of `vcpu`.
    let counts = unsafe { counts(vcpu) };
    toggle_burst_if_due(vcpu, counts);
    let wanted =
        has_fetches(recorder) && wanted(addr, bytes.max(1), mark_fetch) | counts.in_burst();
    begin_block(vcpu, counts, wanted.then_some(word), count);
}

/// A block of `count` instructions begins, and fetches are not recorded.
#[inline(never)]
fn begin_without_fetch(vcpu: c_uint, count: u64) {
    // SAFETY: as in `reference`.
    let counts = unsafe { counts(vcpu) };
    toggle_burst_if_due(vcpu, counts);
    begin_block(vcpu, counts, None, count);
}

/// A block of `count` instructions begins: count it, and write `word` if its fetch is part of the
/// sample.
#[inline(always)]
fn begin_block(vcpu: c_uint, counts: &Counts, word: Option<u64>, count: u64) {
    // `examine_from` is not 0 in a dense sample, which writes every block.
    if word.is_some() || counts.examine_from.get() != 0 {
        // SAFETY: callers are on the thread of `vcpu`, and have no handle.
        let mut stream = unsafe { Stream::of(vcpu) };
        report(&mut stream, counts, counts.instructions.get());
        // A block of too many instructions has no word. A place record then precedes the next
        // reference.
        if let Some(word) = word.or_else(|| count_only_word(count)) {
            stream.put(word);
            add(&counts.reported, count);
        }
    }
    counts.count_block(count);
}

/// Called before a block: begin or end a burst if it is due.
#[inline(always)]
fn toggle_burst_if_due(vcpu: c_uint, counts: &Counts) {
    if counts.blocks.get() >= 0 {
        toggle_burst(vcpu, counts);
    }
}

#[cold]
fn toggle_burst(vcpu: c_uint, counts: &Counts) {
    let Some(recorder) = Recorder::installed() else { return };
    let begins = !counts.in_burst();
    let length = burst_blocks(recorder.header().flags.load(Relaxed)).cast_signed();
    if !begins && counts.blocks.get() < length {
        return;
    }
    // SAFETY: callers are on the thread of `vcpu`, and have no handle.
    unsafe { Stream::of(vcpu) }
        .control(tag::BURST, &[if begins { counts.distance.get() } else { 0 }]);
    counts.load_share(recorder);
    if begins {
        counts.limits.set(ZEROS.load(Relaxed));
    } else {
        counts.limits.set(LIMITS.load(Relaxed));
        counts.plan_burst(recorder, vcpu);
    }
}

pub fn seed(recorder: &Recorder) -> u64 {
    recorder.header().sample_seed.load(Relaxed)
}

/// Write a place record unless the receiver knows the thread's position. `start` is the number of
/// instructions before the current block.
#[inline(always)]
fn report(stream: &mut Stream, counts: &Counts, start: u64) {
    let end = counts.instructions.get();
    if counts.reported.replace(end) != end {
        write_place(stream, counts, start);
    }
}

#[inline(never)]
fn write_place(stream: &mut Stream, counts: &Counts, start: u64) {
    let mut words = [0; Place::Words as usize];
    for (place, value) in [
        (Place::BlockStart, start),
        (Place::BlockEnd, counts.instructions.get()),
        (Place::Fetches, counts.fetches()),
        (Place::Loads, counts.data[0].get()),
        (Place::Stores, counts.data[1].get()),
    ] {
        words[place as usize] = value;
    }
    counts.placed.set(counts.done());
    stream.control_only(tag::PLACE, &words);
}

/// Write a place record before another control record of `vcpu`, unless the receiver knows the
/// counts of the thread.
pub fn sync(stream: &mut Stream, vcpu: c_uint) {
    if is_on() {
        // SAFETY: a stream's handle is on the thread of its `vcpu`.
        let counts = unsafe { counts(vcpu) };
        if counts.placed.get() != counts.done() {
            let end = counts.instructions.get();
            counts.reported.set(end);
            write_place(stream, counts, end);
        }
    }
}
