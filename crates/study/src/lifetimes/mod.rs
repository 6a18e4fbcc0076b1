//! Lifetimes: the effect of a trace's events on the pages that its records touch.
//!
//! A *page* belongs to one process's address space. It begins with its first reference and ends
//! when no touched part of it is mapped any more: after `unmap`, a `map` over it, a shrinking heap,
//! `dontneed`, `remove`, `exec` or `exit`. A later reference begins a new page. A page that ends or
//! changes its frame is removed from the TLBs. The unit of tracking is a *block*: 4 KiB, or the
//! study's smallest page size if that is smaller.
//!
//! A *frame* is the content of a page, and the unit of memory:
//!
//! * Private memory is initially zero. A page that is only read has no frame: the kernel maps the
//!   shared zero page. The first write gives it a frame.
//! * A file page has the frame of its part of the file, shared by all processes and addresses that
//!   are congruent modulo the page size. The frame survives `unmap`, as in the kernel's page cache.
//!   The first write through a writable private mapping gives the page its own frame.
//! * Shared anonymous memory works like files, but its frame ends with its last page. If a large
//!   page has the frame of a shared mapping, private memory in the same page has that frame too.
//! * After a fork, the child's pages have the frames of its parent. The first write to a page, by
//!   either process, gives that process its own frame, unless the other page has ended. After
//!   `vfork`, the child runs in its parent's address space until `exec` or `exit`.
//! * A frame of private memory is freed with its last page, without write-back.
//! * `free` (`MADV_FREE`) discards a page: it becomes clean, and faults on it are zero-fills until
//!   some block of it is written, or touched for the first time. This requires that all touched
//!   blocks of the page are discarded and no other page has its frame.
//! * `move` moves a page if all its touched blocks move by a multiple of the page size. Otherwise,
//!   moved blocks stay in their page.
//! * Memory that no event maps is private memory that has a frame from the first reference. The
//!   same holds for all private memory in a filtered trace, which lacks the stores that hit CPU caches.
//!
//! Within one event, blocks end in ascending order of addresses.
//!
//! [`Spaces`] tracks mappings and [`Blocks`] the touched blocks, both independent of the page size.
//! A [`PageTable`] derives pages and frames at one page size.

mod blocks;
mod events;
mod page_table;
mod peak;
mod recent;
mod spaces;

use nearfar_trace::{Reader, RegionEvent, RegionKind, Result};

pub use blocks::{Blocks, Change};
pub use events::{Events, Next};
pub use page_table::{Action, FrameFilter, NO_FRAME, PageTable};
pub use peak::{Peak, ResidentSet, peak_resident};
pub use recent::Recent;
pub use spaces::{Backing, Spaces};

nearfar_schema::choices! {
    /// Whether the trace's events free pages.
    pub enum Lifetimes: "answer" {
        /// pages are freed as the trace records; memory sizes in % are of the peak resident set
        On = "on",
        /// pages are never freed; memory sizes in % are of the footprint
        Off = "off",
    }
}

/// Whether a trace has the events that lifetimes require.
pub fn known(reader: &Reader) -> Result<bool> {
    let maps = |event: &RegionEvent| matches!(event.event, RegionKind::Map | RegionKind::Brk);
    Ok(reader.info().has_lifetimes() && reader.regions()?.iter().any(maps))
}

/// log2 of the page size of events.
pub const PAGE_SHIFT: u32 = 12;
/// Position of the address-space number in a [`place`].
pub const SPACE_SHIFT: u32 = 48;

/// Combine an address space and an address into one number. The upper half of the address space is
/// shared by all processes.
#[inline]
pub fn place(space: u32, addr: u64) -> u64 {
    if addr >> 63 == 0 { addr | u64::from(space) << SPACE_SHIFT } else { addr }
}

/// The address of a [`place`].
#[inline]
pub fn address(place: u64) -> u64 {
    if place >> 63 == 0 { place & ((1 << SPACE_SHIFT) - 1) } else { place }
}
