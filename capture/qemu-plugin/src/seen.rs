// SPDX-License-Identifier: GPL-2.0-or-later
//! Tracks which references need not be reported. A sample ([`crate::sample`]) reports every reference to
//! sampled pages, but of every other page only the first load, store and fetch.
//!
//! A table has a [`Limit`] for the loads and one for the stores of each page of the address space.
//! Fetches have a bit for each page, which is never set for sampled pages. Limits and bits are
//! cleared for memory that was mapped or discarded, or shared by a fork.

use std::io;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, SeqCst};
use std::sync::atomic::{AtomicI16, AtomicPtr, AtomicU8};

use crate::ADDR_MASK;
use crate::layout::{ADDR_BITS, PAGE_SHIFT, is_sampled};
use crate::recorder::{Recorder, map};
use crate::sample::{is_on, seed};

/// Loads (or stores) that begin below this offset in a page need not be reported: 0, or one of
/// [`limit`].
type Limit = AtomicI16;
/// The limits of the loads and of the stores of a page.
pub type Limits = [Limit; 2];

pub mod limit {
    /// References to this page and to the next one have been seen.
    pub const ALL: i16 = 4096;
    /// References to this page have been seen. From this offset on, a reference of 64 bytes, the
    /// maximum, crosses into the next page.
    pub const WITHIN: i16 = ALL - 63;
    /// The page has been referenced and is sampled, or was: examine every reference.
    pub const SAMPLED: i16 = -1;
}

/// Bits of a page's entry in [`FLAGS`].
pub mod flag {
    /// No fetch needs to be reported.
    pub const FETCH: u8 = 1;
    /// The page has been touched. Stays set when its memory is discarded, but not across a fork.
    pub const EVER: u8 = 2;
}

pub const PAGE: u64 = 1 << PAGE_SHIFT;
const PAGES: usize = 1 << (ADDR_BITS - PAGE_SHIFT);

pub static LIMITS: AtomicPtr<Limits> = AtomicPtr::new(null_mut());
/// A table in which no limit is ever set.
pub static ZEROS: AtomicPtr<Limits> = AtomicPtr::new(null_mut());
static FLAGS: AtomicPtr<AtomicU8> = AtomicPtr::new(null_mut());

pub fn install() -> io::Result<()> {
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    LIMITS.store(map(PAGES * size_of::<Limits>(), writable)?.as_ptr().cast(), Relaxed);
    ZEROS.store(map(PAGES * size_of::<Limits>(), libc::PROT_READ)?.as_ptr().cast(), Relaxed);
    FLAGS.store(map(PAGES, writable)?.as_ptr().cast(), Relaxed);
    Ok(())
}

pub fn page_of(addr: u64) -> usize {
    (addr << (64 - ADDR_BITS) >> (64 - ADDR_BITS + PAGE_SHIFT)) as usize
}

/// The [`flag`]s of the page of an address.
///
/// # Safety
/// A sample is recorded ([`is_on`]), so that the tables are mapped.
#[inline(always)]
pub unsafe fn flags(addr: u64) -> &'static AtomicU8 {
    // SAFETY: as above; the table has a byte for every page below 2^ADDR_BITS.
    unsafe { &*FLAGS.load(Relaxed).add(page_of(addr)) }
}

/// The limits of the page of an address.
///
/// # Safety
/// As of [`flags`].
unsafe fn limits(addr: u64) -> &'static Limits {
    // SAFETY: as above.
    unsafe { &*LIMITS.load(Relaxed).add(page_of(addr)) }
}

/// Whether an access must be reported. `mark` marks the access to one of its pages as seen, and
/// returns whether it must be reported because of that page.
pub fn wanted(addr: u64, bytes: u64, mark: impl Fn(Page) -> bool) -> bool {
    let Some(recorder) = Recorder::installed() else { return false };
    let last = addr + bytes - 1;
    let mut wanted = false;
    for number in addr >> PAGE_SHIFT..=last >> PAGE_SHIFT {
        let share = recorder.header().sample.load(Relaxed);
        let sampled = is_sampled(number & (ADDR_MASK >> PAGE_SHIFT), seed(recorder), share);
        let addr = number << PAGE_SHIFT;
        if mark(Page { addr, sampled }) {
            wanted = true;
            // SAFETY: only called if a sample is recorded.
            let flags = unsafe { flags(addr) };
            if flags.load(Relaxed) & flag::EVER == 0
                && flags.fetch_or(flag::EVER, AcqRel) & flag::EVER == 0
            {
                new_page(recorder, share);
            }
        }
    }
    wanted
}

pub struct Page {
    addr: u64,
    sampled: bool,
}

/// Mark a fetch as seen. Returns whether it must be reported.
pub fn mark_fetch(page: Page) -> bool {
    // SAFETY: only called if a sample is recorded.
    let flags = unsafe { flags(page.addr) };
    let unseen = flags.load(Relaxed) & flag::FETCH == 0;
    if unseen && !page.sampled {
        flags.fetch_or(flag::FETCH, AcqRel);
    }
    unseen
}

/// Mark a load or store as seen. Returns whether it must be reported.
pub fn mark_access(page: Page, store: usize) -> bool {
    // SAFETY: only called if a sample is recorded.
    let limit = |addr| unsafe { &limits(addr)[store] };
    let unseen = limit(page.addr).load(Relaxed) <= 0;
    if unseen && page.sampled {
        limit(page.addr).store(limit::SAMPLED, SeqCst);
    } else if unseen {
        limit(page.addr).store(limit::WITHIN, SeqCst);
        // Raise the limit of this page and of the previous one if their next page has been seen.
        for (addr, next) in
            [(page.addr, page.addr + PAGE), (page.addr.wrapping_sub(PAGE), page.addr)]
        {
            let change = |from, to| limit(addr).compare_exchange(from, to, SeqCst, Relaxed).is_ok();
            if limit(next).load(SeqCst) > 0
                && change(limit::WITHIN, limit::ALL)
                // Another thread may have cleared the next page's limit meanwhile.
                && limit(next).load(SeqCst) <= 0
            {
                change(limit::ALL, limit::WITHIN);
            }
        }
    }
    unseen
}

/// Count a page of the footprint. If the sample has become too large, halve its `share` of pages; the
/// pages that stay in it have been recorded from the start.
fn new_page(recorder: &Recorder, share: u64) {
    let header = recorder.header();
    let touched = header.touched.fetch_add(1, Relaxed) + 1;
    let max = header.sample_pages.load(Relaxed);
    let expected = ((u128::from(touched) * u128::from(share)) >> 64) as u64;
    if max != 0 && expected >= max {
        let _ = header.sample.compare_exchange(share, share.div_ceil(2), Relaxed, Relaxed);
    }
}

/// The memory of a range is new or about to be: report its first accesses again.
pub fn forget(addr: u64, bytes: u64) {
    if !is_on() || bytes == 0 {
        return;
    }
    let end = addr.saturating_add(bytes).min(1 << ADDR_BITS);
    for page in addr >> PAGE_SHIFT..end.next_multiple_of(PAGE) >> PAGE_SHIFT {
        // SAFETY: a sample is recorded; the page is below 2^ADDR_BITS.
        let (flags, limits) = unsafe { (flags(page << PAGE_SHIFT), limits(page << PAGE_SHIFT)) };
        if flags.load(Relaxed) & flag::FETCH != 0 {
            flags.fetch_and(!flag::FETCH, AcqRel);
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

/// A fork is about to share all memory with another process: report all first accesses again.
pub fn forget_all() {
    if !is_on() {
        return;
    }
    // SAFETY: the whole mappings, which are private: they become zero.
    unsafe {
        let limits = PAGES * size_of::<Limits>();
        libc::madvise(LIMITS.load(Relaxed).cast(), limits, libc::MADV_DONTNEED);
        libc::madvise(FLAGS.load(Relaxed).cast(), PAGES, libc::MADV_DONTNEED);
    }
}
