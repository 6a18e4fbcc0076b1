// SPDX-License-Identifier: GPL-2.0-or-later
//! A sample of the program's references (`--sample`): every reference to the sampled pages, and of
//! every other page the first load, store and fetch.
//!
//! A table has a [`Limit`] for the loads and one for the stores of each page of the address space:
//! those that begin below it need not be reported. That test comes first and is nearly always the
//! last one. Limits are never set for sampled pages, and cleared for memory that was mapped or
//! discarded, or shared by a fork. Fetches have a bit for each page.
//!
//! In *bursts*, every reference of a thread is reported: the thread then tests a table in which no
//! limit is set. So bursts begin and end without translating code again.

use std::cell::Cell;
use std::ffi::{c_uint, c_void};
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU16};

use crate::layout::{
    ADDR_BITS, BLOCKS, BYTES_SHIFT, COUNT_SHIFT, FETCH, PAGE_SHIFT, Place, SIZE_SHIFT, STORE,
    burst, burst_distance, burst_start, is_sampled, tag,
};
use crate::recorder::{Recorder, VCPUS, map};
use crate::stream::Stream;
use crate::{ADDR_MASK, OnReference, loads_and_stores, unpack_by_api, unpack_fast};

/// Of the loads of a page, or of its stores, the offset below which they need not be reported: 0, or
/// one of [`limit`].
type Limit = AtomicU16;

mod limit {
    /// None need be: those of this page and of the next one have been seen.
    pub const ALL: u16 = 4096;
    /// Those of this page have been seen. A reference has at most 64 bytes, so others may cross.
    pub const WITHIN: u16 = ALL - 63;
}

/// Bits of a page in [`FLAGS`].
mod seen {
    pub const FETCH: u8 = 1;
    /// Touched at all. Stays set when the memory is discarded.
    pub const EVER: u8 = 2;
}

const PAGE: u64 = 1 << PAGE_SHIFT;
const PAGES: usize = 1 << (ADDR_BITS - PAGE_SHIFT);

static LIMITS: AtomicPtr<[Limit; 2]> = AtomicPtr::new(null_mut());
/// A table in which no limit is ever set.
static ZEROS: AtomicPtr<[Limit; 2]> = AtomicPtr::new(null_mut());
static FLAGS: AtomicPtr<AtomicU8> = AtomicPtr::new(null_mut());
static COUNTS: AtomicPtr<Counts> = AtomicPtr::new(null_mut());
static ON: AtomicBool = AtomicBool::new(false);
/// Whether there was a second thread. QEMU then translates all code again.
static SEVERAL: AtomicBool = AtomicBool::new(false);
/// The counts of virtual CPU 0, at a fixed address, which callbacks reach faster.
static FIRST: First = First(Counts {
    instructions: Cell::new(0),
    blocks: Cell::new(0),
    data: [const { Cell::new(0) }; 2],
    limits: Cell::new(null_mut()),
    burst: Cell::new(0),
    reported: Cell::new(0),
    part: Cell::new(0),
    number: Cell::new(0),
});

struct First(Counts);

// SAFETY: only the thread of virtual CPU 0 uses it.
unsafe impl Sync for First {}

/// What a virtual CPU has done so far.
#[repr(C, align(64))]
struct Counts {
    instructions: Cell<u64>,
    /// Blocks since the current burst was to begin, or, negative, before the next one.
    blocks: Cell<i64>,
    /// Loads and stores.
    data: [Cell<u64>; 2],
    /// The table that decides what to look at.
    limits: Cell<*mut [Limit; 2]>,
    /// Number of the block with which the current or next burst was to begin.
    burst: Cell<u64>,
    /// Instructions that the receiver knows of.
    reported: Cell<u64>,
    /// Where the part of the run begins in which the next burst is.
    part: Cell<u64>,
    /// Number of that part.
    number: Cell<u64>,
}

impl Counts {
    /// The limit of a load or store of the page of an address.
    #[inline(always)]
    fn limit(&self, addr: u64, store: usize) -> u16 {
        // SAFETY: both tables have limits for every page below 2^ADDR_BITS.
        unsafe { (*self.limits.get().add(page_of(addr)))[store].load(Relaxed) }
    }

    /// Blocks since the start of the thread.
    fn fetches(&self) -> u64 {
        self.burst.get().wrapping_add_signed(self.blocks.get())
    }

    /// Count a block of this many instructions.
    #[inline(always)]
    fn count_block(&self, instructions: u64) {
        add(&self.instructions, instructions);
        self.blocks.set(self.blocks.get() + 1);
    }

    fn in_burst(&self) -> bool {
        self.limits.get() == ZEROS.load(Relaxed)
    }

    /// Choose the burst of the next part of the run.
    fn plan(&self, recorder: &Recorder, vcpu: c_uint) {
        let header = recorder.header();
        let distance = burst_distance(header.sample.load(Relaxed));
        let length = burst(header.flags.load(Relaxed));
        let (part, number) = (self.part.get(), self.number.get());
        let random = number << 32 | u64::from(vcpu);
        let start = part + burst_start(distance, length, seed(recorder), random);
        self.blocks.set(self.fetches().wrapping_sub(start).cast_signed());
        self.burst.set(start);
        self.part.set(part + distance);
        self.number.set(number + 1);
    }
}

fn page_of(addr: u64) -> usize {
    (addr << (64 - ADDR_BITS) >> (64 - ADDR_BITS + PAGE_SHIFT)) as usize
}

fn add(count: &Cell<u64>, more: u64) {
    count.set(count.get() + more);
}

/// Prepare for a sample, if the receiver asked for one. To be called before QEMU loads the program.
pub fn install(recorder: &Recorder) -> io::Result<()> {
    if recorder.header().sample.load(Relaxed) == 0 {
        return Ok(());
    }
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    LIMITS.store(map(PAGES * size_of::<[Limit; 2]>(), writable)?.as_ptr().cast(), Relaxed);
    let zeros = map(PAGES * size_of::<[Limit; 2]>(), libc::PROT_READ)?;
    ZEROS.store(zeros.as_ptr().cast(), Relaxed);
    FLAGS.store(map(PAGES, writable)?.as_ptr().cast(), Relaxed);
    COUNTS.store(map(VCPUS * size_of::<Counts>(), writable)?.as_ptr().cast(), Relaxed);
    ON.store(true, Relaxed);
    Ok(())
}

/// Whether a sample is recorded.
#[inline(always)]
pub fn is_on() -> bool {
    ON.load(Relaxed)
}

/// Whether fetches are recorded.
pub fn has_fetches(recorder: &Recorder) -> bool {
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

/// The same. `ALONE`: the process has had one thread only.
#[inline(always)]
unsafe fn counts_of<const ALONE: bool>(vcpu: c_uint) -> &'static Counts {
    // SAFETY: contract of this function.
    if ALONE { &FIRST.0 } else { unsafe { counts(vcpu) } }
}

/// What was seen of the page of an address.
///
/// # Safety
/// A sample is recorded.
#[inline(always)]
unsafe fn flags(addr: u64) -> &'static AtomicU8 {
    // SAFETY: as above; the table has a byte for every page below 2^ADDR_BITS.
    unsafe { &*FLAGS.load(Relaxed).add(page_of(addr)) }
}

/// The limits of the page of an address.
///
/// # Safety
/// As of [`flags`].
unsafe fn limits(addr: u64) -> &'static [Limit; 2] {
    // SAFETY: as above.
    unsafe { &*LIMITS.load(Relaxed).add(page_of(addr)) }
}

/// Begin to count anew: `vcpu` is that of a new thread or process.
pub fn begin_counts(recorder: &Recorder, vcpu: c_uint) {
    if is_on() {
        SEVERAL.fetch_or(vcpu != 0, Relaxed);
        // SAFETY: the sample is on, and this is the thread of `vcpu`, or before its first block.
        let counts = unsafe { counts(vcpu) };
        for count in [&counts.instructions, &counts.data[0], &counts.data[1], &counts.reported] {
            count.set(0);
        }
        for count in [&counts.burst, &counts.part, &counts.number] {
            count.set(0);
        }
        counts.blocks.set(0);
        counts.limits.set(LIMITS.load(Relaxed));
        counts.plan(recorder, vcpu);
    }
}

/// Instructions that `vcpu` has executed.
///
/// # Safety
/// A sample is recorded, and the calling thread is that of `vcpu`.
pub unsafe fn instructions(vcpu: c_uint) -> u64 {
    // SAFETY: contract of this function.
    unsafe { counts(vcpu) }.instructions.get()
}

/// The callback for a load or store, if QEMU packs `info` as expected.
pub fn reference_callback() -> OnReference {
    if SEVERAL.load(Relaxed) { reference::<false> } else { reference::<true> }
}

/// Called on a load or store. `data` is the index of its instruction, shifted into place, and the
/// number of instructions of its block.
extern "C" fn reference<const ALONE: bool>(vcpu: c_uint, info: u32, addr: u64, data: *mut c_void) {
    // SAFETY: QEMU calls this on the thread of `vcpu`; callbacks are those of a sample.
    let counts = unsafe { counts_of::<ALONE>(vcpu) };
    let store = (info >> 17 & 1) as usize;
    add(&counts.data[store], 1);
    if addr % PAGE >= u64::from(counts.limit(addr, store)) {
        touch(vcpu, unpack_fast(info) | addr & ADDR_MASK, data as u64);
    }
}

/// The same if QEMU packs `info` in another way.
pub extern "C" fn reference_by_api(vcpu: c_uint, info: u32, addr: u64, data: *mut c_void) {
    // SAFETY: as in `reference`.
    unsafe { access(vcpu, unpack_by_api(info) | addr & ADDR_MASK, data as u64) };
}

/// The same for an instruction that loads and stores.
pub extern "C" fn atomic_reference(vcpu: c_uint, info: u32, addr: u64, data: *mut c_void) {
    let word = unpack_by_api(info) | addr & ADDR_MASK;
    // SAFETY: as in `reference`.
    unsafe {
        if loads_and_stores(info) {
            access(vcpu, word & !STORE, data as u64);
        }
        access(vcpu, word, data as u64);
    }
}

/// The same for a store exclusive.
pub extern "C" fn exclusive_store(vcpu: c_uint, info: u32, addr: u64, data: *mut c_void) {
    let word = unpack_by_api(info) | addr & ADDR_MASK;
    if word & STORE != 0 {
        // SAFETY: as in `reference`.
        unsafe { access(vcpu, word, data as u64) };
    }
}

/// Count a reference and report it if it is part of the sample. `word` lacks the index, which is in
/// `data` with the number of instructions of the block.
///
/// # Safety
/// A sample is recorded, and the calling thread is that of `vcpu` and has no [`Stream`].
pub unsafe fn access(vcpu: c_uint, word: u64, data: u64) {
    // SAFETY: contract of this function.
    let counts = unsafe { counts(vcpu) };
    add(&counts.data[usize::from(word & STORE != 0)], 1);
    touch(vcpu, word, data);
}

#[cold]
#[inline(never)]
fn touch(vcpu: c_uint, word: u64, data: u64) {
    let (addr, bytes) = (word & ADDR_MASK, 1 << (word >> SIZE_SHIFT & 7));
    let store = usize::from(word & STORE != 0);
    // SAFETY: callers are on the thread of `vcpu`.
    let counts = unsafe { counts(vcpu) };
    if addr % PAGE + bytes <= PAGE && counts.limit(addr, store) != 0 {
        return;
    }
    if wanted(addr, bytes, |page| see(page, store)) | counts.in_burst() {
        // SAFETY: as above; callers have no handle.
        let mut stream = unsafe { Stream::of(vcpu) };
        let end = counts.instructions.get();
        report(&mut stream, counts, end.saturating_sub(data & ADDR_MASK));
        stream.put(word | data & !ADDR_MASK);
    }
}

/// The callback for a block that is encoded as `word`, and its data.
pub fn block_callback(
    recorder: &Recorder,
    word: u64,
    count: u64,
) -> (extern "C" fn(c_uint, *mut c_void), u64) {
    let (offset, bytes) = (word & (PAGE - 1), word >> BYTES_SHIFT & 0xff);
    if !has_fetches(recorder) {
        (on_uncounted_block, count)
    } else if word >> COUNT_SHIFT & 0x7f != 0 && offset + bytes <= PAGE {
        (if SEVERAL.load(Relaxed) { on_block::<false> } else { on_block::<true> }, word)
    } else {
        (on_any_block, word)
    }
}

/// Called when a block begins that lies in one page and fits a word: `word`.
extern "C" fn on_block<const ALONE: bool>(vcpu: c_uint, word: *mut c_void) {
    let word = word as u64;
    // SAFETY: as in `reference`.
    let counts = unsafe { counts_of::<ALONE>(vcpu) };
    // SAFETY: callbacks are those of a sample.
    let flags = unsafe { flags(word) }.load(Relaxed);
    if flags & seen::FETCH == 0 || counts.blocks.get() >= 0 {
        return fetch(vcpu, word);
    }
    counts.count_block(word >> COUNT_SHIFT & 0x7f);
}

/// The same for any other block.
pub extern "C" fn on_any_block(vcpu: c_uint, word: *mut c_void) {
    fetch(vcpu, word as u64);
}

/// Called when a block begins if fetches are not recorded. `count` is its number of instructions.
pub extern "C" fn on_uncounted_block(vcpu: c_uint, count: *mut c_void) {
    // SAFETY: as in `reference`.
    let counts = unsafe { counts(vcpu) };
    if counts.blocks.get() >= 0 {
        turn(vcpu, counts);
    }
    counts.count_block(count as u64);
}

/// A block begins: count it, and report it if it is part of the sample.
pub fn fetch(vcpu: c_uint, word: u64) {
    let Some(recorder) = Recorder::installed() else { return };
    let (mut addr, mut bytes) = (word & ADDR_MASK, word >> BYTES_SHIFT & 0xff);
    let mut count = word >> COUNT_SHIFT & 0x7f;
    if count == 0 {
        let (start, shape) = recorder.block(word as usize % BLOCKS);
        (addr, bytes, count) = (start, shape & u64::from(u32::MAX), shape >> 32);
    }
    // SAFETY: callers are on the thread of `vcpu`.
    let counts = unsafe { counts(vcpu) };
    if counts.blocks.get() >= 0 {
        turn(vcpu, counts);
    }
    if has_fetches(recorder) && wanted(addr, bytes.max(1), see_fetch) | counts.in_burst() {
        // SAFETY: callers have no handle.
        let mut stream = unsafe { Stream::of(vcpu) };
        report(&mut stream, counts, counts.instructions.get());
        stream.put(word);
        add(&counts.reported, count);
    }
    counts.count_block(count);
}

/// Begin or end a burst if it is time, when a block begins.
#[cold]
fn turn(vcpu: c_uint, counts: &Counts) {
    let Some(recorder) = Recorder::installed() else { return };
    let begins = !counts.in_burst();
    let length = burst(recorder.header().flags.load(Relaxed)).cast_signed();
    if !begins && counts.blocks.get() < length {
        return;
    }
    // SAFETY: callers are on the thread of `vcpu`, and have no handle.
    unsafe { Stream::of(vcpu) }.control(tag::BURST, &[begins.into()]);
    if begins {
        counts.limits.set(ZEROS.load(Relaxed));
    } else {
        counts.limits.set(LIMITS.load(Relaxed));
        counts.plan(recorder, vcpu);
    }
}

/// Whether an access is part of the sample: whether one of its pages is, or has its first access of
/// this kind, which `see` tells and notes.
fn wanted(addr: u64, bytes: u64, see: impl Fn(Page) -> bool) -> bool {
    let Some(recorder) = Recorder::installed() else { return false };
    let last = addr + bytes - 1;
    let mut wanted = false;
    for number in addr >> PAGE_SHIFT..=last >> PAGE_SHIFT {
        let limit = recorder.header().sample.load(Relaxed);
        let sampled = is_sampled(number & (ADDR_MASK >> PAGE_SHIFT), seed(recorder), limit);
        let addr = number << PAGE_SHIFT;
        if see(Page { addr, sampled }) {
            wanted = true;
            // SAFETY: only called if a sample is recorded.
            let flags = unsafe { flags(addr) };
            if flags.load(Relaxed) & seen::EVER == 0
                && flags.fetch_or(seen::EVER, AcqRel) & seen::EVER == 0
            {
                new_page(recorder, limit);
            }
        }
    }
    wanted
}

/// A page that is accessed.
struct Page {
    addr: u64,
    sampled: bool,
}

/// Whether a fetch is to be reported.
fn see_fetch(page: Page) -> bool {
    // SAFETY: only called if a sample is recorded.
    let flags = unsafe { flags(page.addr) };
    let unseen = flags.load(Relaxed) & seen::FETCH == 0;
    if unseen && !page.sampled {
        flags.fetch_or(seen::FETCH, AcqRel);
    }
    unseen
}

/// Whether a load or store is to be reported.
fn see(page: Page, store: usize) -> bool {
    // SAFETY: only called if a sample is recorded.
    let limit = |addr| unsafe { &limits(addr)[store] };
    let unseen = limit(page.addr).load(Relaxed) == 0;
    if unseen && !page.sampled {
        limit(page.addr).store(limit::WITHIN, SeqCst);
        for (addr, next) in
            [(page.addr, page.addr + PAGE), (page.addr.wrapping_sub(PAGE), page.addr)]
        {
            let change = |from, to| limit(addr).compare_exchange(from, to, SeqCst, Relaxed).is_ok();
            if limit(next).load(SeqCst) != 0
                && change(limit::WITHIN, limit::ALL)
                // Another thread may have forgotten the next page meanwhile.
                && limit(next).load(SeqCst) == 0
            {
                change(limit::ALL, limit::WITHIN);
            }
        }
    }
    unseen
}

fn seed(recorder: &Recorder) -> u64 {
    recorder.header().sample_seed.load(Relaxed)
}

/// Count a page of the footprint. If the sample has become too large, halve it: the pages that stay
/// have been recorded from the start.
fn new_page(recorder: &Recorder, limit: u64) {
    let header = recorder.header();
    let touched = header.touched.fetch_add(1, Relaxed) + 1;
    let most = header.sample_pages.load(Relaxed);
    let expected = ((u128::from(touched) * u128::from(limit)) >> 64) as u64;
    if most != 0 && expected >= most {
        let _ = header.sample.compare_exchange(limit, limit.div_ceil(2), Relaxed, Relaxed);
    }
}

/// Report where the thread is, unless the receiver knows. `start` is the number of instructions
/// before the current block.
fn report(stream: &mut Stream, counts: &Counts, start: u64) {
    let end = counts.instructions.get();
    if counts.reported.replace(end) != end {
        let mut words = [0; Place::Words as usize];
        for (place, value) in [
            (Place::BlockStart, start),
            (Place::BlockEnd, end),
            (Place::Fetches, counts.fetches()),
            (Place::Loads, counts.data[0].get()),
            (Place::Stores, counts.data[1].get()),
        ] {
            words[place as usize] = value;
        }
        stream.control_only(tag::PLACE, &words);
    }
}

/// Before another control record of `vcpu`: report where the thread is.
pub fn sync(stream: &mut Stream, vcpu: c_uint) {
    if is_on() {
        // SAFETY: a stream's handle is on the thread of its `vcpu`.
        let counts = unsafe { counts(vcpu) };
        report(stream, counts, counts.instructions.get());
    }
}

/// The memory of a range is new, or will be: report the first accesses again.
pub fn forget(addr: u64, bytes: u64) {
    if !is_on() || bytes == 0 {
        return;
    }
    let end = addr.saturating_add(bytes).min(1 << ADDR_BITS);
    for page in addr >> PAGE_SHIFT..end.next_multiple_of(PAGE) >> PAGE_SHIFT {
        // SAFETY: a sample is recorded; below 2^ADDR_BITS.
        let (flags, limits) = unsafe { (flags(page << PAGE_SHIFT), limits(page << PAGE_SHIFT)) };
        if flags.load(Relaxed) & seen::FETCH != 0 {
            flags.fetch_and(!seen::FETCH, AcqRel);
        }
        for limit in limits.iter().filter(|limit| limit.load(Relaxed) != 0) {
            limit.store(0, SeqCst);
        }
    }
    // SAFETY: as above.
    for limit in unsafe { limits((addr & ADDR_MASK).wrapping_sub(PAGE)) } {
        let _ = limit.compare_exchange(limit::ALL, limit::WITHIN, SeqCst, Relaxed);
    }
}

/// The memory of the whole process is shared with another one from now on.
pub fn forget_all() {
    if !is_on() {
        return;
    }
    // SAFETY: the whole mappings, which are private: they become zero.
    unsafe {
        let limits = PAGES * size_of::<[Limit; 2]>();
        libc::madvise(LIMITS.load(Relaxed).cast(), limits, libc::MADV_DONTNEED);
        libc::madvise(FLAGS.load(Relaxed).cast(), PAGES, libc::MADV_DONTNEED);
    }
}
