//! Pages live and die: what the events of a trace mean for the pages that its records touch.
//!
//! A *page* is a page of one process's address space. It begins with the first reference to it and
//! ends when nothing that was touched in it is mapped any more: by `unmap`, by a `map` over it, by a
//! heap that shrinks, by `dontneed`, `remove`, `exec` or `exit`. What is touched and mapped is known by
//! *block*: 4 KiB, or the study's smallest page size where that is smaller. A later reference begins a
//! new page. When a page ends, or comes to stand for another frame, it leaves the TLBs.
//!
//! A *frame* is what the page holds, and what memories have resident:
//!
//! * Private memory begins as zeros. As long as it is only read it has no frame: the kernel maps the
//!   one page of zeros. The first write to a page gives it a frame.
//! * A page of a file has the frame of that part of the file, which other pages may have as well, of
//!   whatever process, and whatever address, if the two are congruent modulo the page size. It stays
//!   when it is unmapped, as the kernel's page cache does. The first write to a private mapping that
//!   may be written gives the page a frame of its own.
//! * Shared memory without a file is the same, but ends with its last page. Where a large page has
//!   the frame of a shared mapping, private memory beside it in the page has that frame too.
//! * After a fork, pages of the child have the frames of its parent's. The first write of either to a
//!   page gives that one a frame of its own, unless the other is gone by then. After a `vfork` the
//!   child runs in its parent's address space until it ends or runs a program.
//! * A frame of private memory ends with its last page; it is then free, and nothing is written back.
//! * `free` (`MADV_FREE`) lets a page go: it is not dirty any more, and until something in it is
//!   written again, or touched for the first time, each fault on it is one on a page of zeros. It goes
//!   when all in it that was touched is free to go, if no other page has its frame.
//! * `move` takes pages to their new addresses where all that was touched in a page moves, by a
//!   multiple of the page size; otherwise what moves stays in the page that it is in.
//! * Where no event says what is mapped, a page is private memory that has a frame from its first
//!   reference on. So is all private memory in a trace from behind a filter, which lacks the stores
//!   that CPU caches held.
//!
//! Within one event, blocks end in ascending order of addresses.
//!
//! [`Spaces`] follows what is mapped, [`Blocks`] what was touched of it; both are the same for every
//! page size. A [`PageTable`] makes pages and frames of it at one page size.

mod blocks;
mod events;
mod option;
mod page_table;
mod peak;
mod recent;
mod spaces;

use nearfar_trace::{Reader, RegionEvent, RegionKind, Result};

pub use blocks::{Blocks, Change};
pub use events::{Events, Next};
pub use option::Lifetimes;
pub use page_table::{Action, NO_FRAME, PageTable, Taken};
pub use peak::{Peak, ResidentSet, peak_resident};
pub use recent::Recent;
pub use spaces::{Backing, Spaces};

/// Whether the events of a trace say when pages begin and end.
///
/// # Errors
/// The events cannot be read.
pub fn known(reader: &Reader) -> Result<bool> {
    let maps = |event: &RegionEvent| matches!(event.event, RegionKind::Map | RegionKind::Brk);
    Ok(reader.info().has_lifetimes() && reader.regions()?.iter().any(maps))
}

/// log2 of the bytes of the pages that events speak of.
pub const PAGE: u32 = 12;
/// Above these bits of an address stands the number of its address space.
pub const SPACE_SHIFT: u32 = 48;

/// An address of a space as one number: every process has addresses of its own, but the upper half
/// belongs to all.
#[inline]
pub fn place(space: u32, addr: u64) -> u64 {
    if addr >> 63 == 0 { addr | u64::from(space) << SPACE_SHIFT } else { addr }
}

/// The address of such a number.
#[inline]
pub fn address(place: u64) -> u64 {
    if place >> 63 == 0 { place & ((1 << SPACE_SHIFT) - 1) } else { place }
}
