// SPDX-License-Identifier: GPL-2.0-or-later
//! A sample of the program's references (`--sample`): every reference to the sampled pages, and of
//! every other page the first load, store and fetch.
//!
//! A table has one byte for each page of the address space, with a bit for each kind of access that
//! need not be reported. That test comes first and is nearly always the last one. Bits are never
//! set for sampled pages, and cleared for memory that was mapped or discarded, or shared by a fork.
//!
//! In *bursts*, every reference of a thread is reported: the thread then tests a table in which no
//! bit is set. So bursts begin and end without translating code again.

use std::cell::Cell;
use std::ffi::{c_uint, c_void};
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8};

use crate::layout::{
    ADDR_BITS, BLOCKS, BURST, BYTES_SHIFT, COUNT_SHIFT, FETCH, PAGE_SHIFT, Place, SIZE_SHIFT,
    STORE, burst_distance, burst_start, is_sampled, tag,
};
use crate::recorder::{Recorder, VCPUS, map};
use crate::stream::Stream;
use crate::{ADDR_MASK, OnReference, loads_and_stores, unpack_by_api, unpack_fast};

/// Bits of a page in the table. The first two are the plugin API's bits of an access.
mod seen {
    pub const LOAD: u8 = 1;
    pub const STORE: u8 = 2;
    pub const FETCH: u8 = 4;
    /// Touched at all. Stays set when the memory is discarded.
    pub const EVER: u8 = 8;
}

const PAGE: u64 = 1 << PAGE_SHIFT;
const PAGES: usize = 1 << (ADDR_BITS - PAGE_SHIFT);

static TABLE: AtomicPtr<AtomicU8> = AtomicPtr::new(null_mut());
/// A table in which no bit is ever set.
static ZEROS: AtomicPtr<AtomicU8> = AtomicPtr::new(null_mut());
static COUNTS: AtomicPtr<Counts> = AtomicPtr::new(null_mut());
static ON: AtomicBool = AtomicBool::new(false);
/// Whether there was a second thread. QEMU then translates all code again.
static SEVERAL: AtomicBool = AtomicBool::new(false);
/// The counts of virtual CPU 0, at a fixed address, which callbacks reach faster.
static FIRST: First = First(Counts {
    instructions: Cell::new(0),
    fetches: Cell::new(0),
    data: [const { Cell::new(0) }; 2],
    reported: Cell::new(0),
    table: Cell::new(null_mut()),
    next: Cell::new(0),
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
    fetches: Cell<u64>,
    /// Loads and stores.
    data: [Cell<u64>; 2],
    /// Instructions that the receiver knows of.
    reported: Cell<u64>,
    /// The table that decides what to look at.
    table: Cell<*mut AtomicU8>,
    /// Blocks at which a burst begins or ends.
    next: Cell<u64>,
    /// Where the part of the run begins in which the next burst is.
    part: Cell<u64>,
    /// Number of that part.
    number: Cell<u64>,
}

impl Counts {
    /// The bits of the page of an address.
    #[inline(always)]
    fn bits(&self, addr: u64) -> u8 {
        // SAFETY: both tables have a byte for every page below 2^ADDR_BITS.
        unsafe { (*self.table.get().add(page_of(addr))).load(Relaxed) }
    }

    fn in_burst(&self) -> bool {
        self.table.get() == ZEROS.load(Relaxed)
    }

    /// Choose the burst of the next part of the run.
    fn plan(&self, recorder: &Recorder, vcpu: c_uint) {
        let distance = burst_distance(recorder.header().sample.load(Relaxed));
        let (part, number) = (self.part.get(), self.number.get());
        let random = number << 32 | u64::from(vcpu);
        self.next.set(part + burst_start(distance, seed(recorder), random));
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
    TABLE.store(map(PAGES, writable)?.as_ptr().cast(), Relaxed);
    ZEROS.store(map(PAGES, libc::PROT_READ)?.as_ptr().cast(), Relaxed);
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
unsafe fn bits(addr: u64) -> &'static AtomicU8 {
    // SAFETY: as above; the table has a byte for every page below 2^ADDR_BITS.
    unsafe { &*TABLE.load(Relaxed).add(page_of(addr)) }
}

/// Begin to count anew: `vcpu` is that of a new thread or process.
pub fn begin_counts(recorder: &Recorder, vcpu: c_uint) {
    if is_on() {
        SEVERAL.fetch_or(vcpu != 0, Relaxed);
        // SAFETY: the sample is on, and this is the thread of `vcpu`, or before its first block.
        let counts = unsafe { counts(vcpu) };
        for count in [&counts.instructions, &counts.fetches, &counts.data[0], &counts.data[1]] {
            count.set(0);
        }
        for count in [&counts.reported, &counts.part, &counts.number] {
            count.set(0);
        }
        counts.table.set(TABLE.load(Relaxed));
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
    // A reference to the last 64 bytes of a page can cross into the next one.
    let near_end = addr & (PAGE - 1) > PAGE - 64;
    if counts.bits(addr) >> store & 1 == 0 || near_end {
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
    let bit = if word & STORE == 0 { seen::LOAD } else { seen::STORE };
    let bytes = 1 << (word >> SIZE_SHIFT & 7);
    // SAFETY: callers are on the thread of `vcpu`.
    let counts = unsafe { counts(vcpu) };
    if wanted(word & ADDR_MASK, bytes, bit) | counts.in_burst() {
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
    let bits = counts.bits(word);
    let count = word >> COUNT_SHIFT & 0x7f;
    if bits & seen::FETCH == 0 || counts.fetches.get() >= counts.next.get() {
        return fetch(vcpu, word);
    }
    add(&counts.instructions, count);
    add(&counts.fetches, 1);
}

/// The same for any other block.
pub extern "C" fn on_any_block(vcpu: c_uint, word: *mut c_void) {
    fetch(vcpu, word as u64);
}

/// Called when a block begins if fetches are not recorded. `count` is its number of instructions.
pub extern "C" fn on_uncounted_block(vcpu: c_uint, count: *mut c_void) {
    // SAFETY: as in `reference`.
    let counts = unsafe { counts(vcpu) };
    if counts.fetches.get() >= counts.next.get() {
        turn(vcpu, counts);
    }
    add(&counts.instructions, count as u64);
    add(&counts.fetches, 1);
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
    if counts.fetches.get() >= counts.next.get() {
        turn(vcpu, counts);
    }
    if has_fetches(recorder) && wanted(addr, bytes.max(1), seen::FETCH) | counts.in_burst() {
        // SAFETY: callers have no handle.
        let mut stream = unsafe { Stream::of(vcpu) };
        report(&mut stream, counts, counts.instructions.get());
        stream.put(word);
        add(&counts.reported, count);
    }
    add(&counts.instructions, count);
    add(&counts.fetches, 1);
}

/// Begin or end a burst.
#[cold]
fn turn(vcpu: c_uint, counts: &Counts) {
    let Some(recorder) = Recorder::installed() else { return };
    let begins = !counts.in_burst();
    // SAFETY: callers are on the thread of `vcpu`, and have no handle.
    unsafe { Stream::of(vcpu) }.control(tag::BURST, &[begins.into()]);
    if begins {
        counts.table.set(ZEROS.load(Relaxed));
        counts.next.set(counts.next.get() + BURST);
    } else {
        counts.table.set(TABLE.load(Relaxed));
        counts.plan(recorder, vcpu);
    }
}

/// Whether an access is part of the sample: whether one of its pages is, or has its first access of
/// this kind.
fn wanted(addr: u64, bytes: u64, bit: u8) -> bool {
    let Some(recorder) = Recorder::installed() else { return false };
    let header = recorder.header();
    let last = addr + bytes - 1;
    let mut wanted = false;
    for page in addr >> PAGE_SHIFT..=last >> PAGE_SHIFT {
        // SAFETY: only called if a sample is recorded.
        let bits = unsafe { bits(page << PAGE_SHIFT) };
        let before = bits.load(Relaxed);
        if before & bit != 0 {
            continue;
        }
        wanted = true;
        let limit = header.sample.load(Relaxed);
        let new = if is_sampled(page & (ADDR_MASK >> PAGE_SHIFT), seed(recorder), limit) {
            seen::EVER
        } else {
            seen::EVER | bit
        };
        if before & new != new && bits.fetch_or(new, AcqRel) & seen::EVER == 0 {
            new_page(recorder, limit);
        }
    }
    wanted
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
            (Place::Fetches, counts.fetches.get()),
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
    let pages = |addr: u64| (addr >> PAGE_SHIFT) as usize;
    for page in pages(addr)..pages(end.next_multiple_of(PAGE)) {
        // SAFETY: a sample is recorded; below 2^ADDR_BITS.
        let bits = unsafe { bits((page as u64) << PAGE_SHIFT) };
        if bits.load(Relaxed) & !seen::EVER != 0 {
            bits.fetch_and(seen::EVER, AcqRel);
        }
    }
}

/// The memory of the whole process is shared with another one from now on.
pub fn forget_all() {
    if !is_on() {
        return;
    }
    let table = TABLE.load(Relaxed);
    // SAFETY: the whole mapping, which is private: it becomes zero.
    unsafe { libc::madvise(table.cast(), PAGES, libc::MADV_DONTNEED) };
}
