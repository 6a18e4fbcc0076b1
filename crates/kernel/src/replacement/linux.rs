//! Linux's active and inactive lists under a memory limit, as in `mm/vmscan.c`, `mm/swap.c` and
//! `mm/workingset.c` of 5.9 to 6.18 without multi-generational LRU: one active and one inactive
//! list for anonymous pages, two more for file pages.
//!
//! A new page enters the head of its inactive list in a batch of 31 (`folio_add_lru`), or earlier
//! if reclaim starts. When memory is full, reclaim (`do_try_to_free_pages`) frees a batch of 32
//! pages (`SWAP_CLUSTER_MAX`). It scans the lists with a priority that falls from 12 to 0, until
//! the batch is free. At priority `k` it scans length / 2^k pages of each list, or a share of that
//! (see [below](#anonymous-or-file-pages)), 32 at a time from each list in turn (`shrink_lruvec`):
//!
//! * **Inactive tail** (`shrink_inactive_list`, `folio_check_references`): a page referenced since
//!   the last scan is marked (`PG_referenced`) and stays: at the inactive head, or in the active
//!   list if it was already marked or is executable. Any other page is evicted. Pages that stay
//!   return to the lists after each batch of 32.
//! * **Active tail** (`shrink_active_list`), only if the inactive list of that type is low or a
//!   page of that type was activated at refault since the last reclaim (`prepare_scan_control`):
//!   pages move to the inactive head; their accessed bits are cleared, their marks stay. Referenced
//!   executable pages go to the active head instead.
//! * When the batch is free, the type with fewer pages left to scan is skipped, and the other type
//!   is scanned up to the share of its target that the skipped type reached, but at most 32 more
//!   pages of each list.
//! * After each priority, 32 more pages of the anonymous active tail are scanned if the anonymous
//!   inactive list is low (`inactive_is_low`: inactive x max(1, sqrt(10 x both lists in GiB)) < active).
//!
//! Each eviction and activation of either type is a tick of one clock (`nonresident_age`). An evicted
//! page records the time. If it is loaded again within as many ticks as all lists but its own inactive
//! one have pages, it enters its active list directly (`workingset_refault`).
//!
//! # Statistics
//!
//! Reclaim reads list lengths and activations at refault from the statistics of the control group.
//! The kernel updates them every two seconds (`FLUSH_TIME` in `mm/memcontrol.c`), or when
//! `memory.stat` is read. Scan targets use the exact length (`lruvec_lru_size`). Here, statistics
//! are updated every [`statistics_every`](Setup::statistics_every) faults. While they are stale,
//! the active list may grow to all pages. If the kernel then finds nothing to scan, it kills the
//! program; here, reclaim updates the statistics and continues.
//!
//! # Anonymous or file pages
//!
//! `get_scan_count` decides between the two types:
//!
//! * With swappiness 0, only file pages are scanned. If there are none, the kernel kills the
//!   program; here, anonymous pages are scanned.
//! * At priority 0, all lists are scanned whole.
//! * Only file pages are scanned if 1 / 2^k of their inactive list is at least one page, the list is
//!   not low, and no file page was activated at refault since the last reclaim (`cache_trim_mode`).
//! * Otherwise anonymous pages have weight swappiness / (anonymous cost + total cost), file pages
//!   (200 - swappiness) / (file cost + total cost) (`calculate_pressure_balance`). The cost of a
//!   type (`lru_note_cost`) is 32 for each page that reclaim writes and each refault of a formerly
//!   active page, 1 for each scanned page that stays. Both costs are halved when their sum exceeds
//!   a quarter of all pages. Every evicted anonymous page is written, as on zram, where swapping in
//!   frees the slot.
//!
//! A freed page leaves its list and its history is dropped. A discarded page (`MADV_FREE`) moves to
//! the head of the inactive file list, unreferenced, and is evicted from there without a shadow
//! entry. If it was rewritten by then, it becomes an active anonymous page.
//!
//! Below 4096 frames (16 MiB of 4 KiB pages), batches are 1/128 of the frames, not 32, so that a batch
//! remains a small part of memory when a small trace represents a large program.
//!
//! In a [sample](Setup::share) of a memory, batches and faults between updates of the statistics are
//! scaled by the share, to at least 1; list lengths in GiB are those of the whole memory. If the
//! statistics are updated at least once per batch of the whole memory, reclaim considers activations of
//! the sample's last faults, as many as this batch: between two reclaims the whole memory has that many
//! faults (32), the sample perhaps one.
//!
//! Not modelled: kswapd and watermarks, concurrent reclaim, huge pages, read-ahead of swap and files.
//! Differences for files:
//!
//! * System calls count as references, like accesses to mapped pages. The kernel counts calls
//!   (`folio_mark_accessed`): a page read once is evicted at the first scan, here at the second; a
//!   page read twice is activated at once, here at the next scan. Unmapping a page does not turn
//!   its accessed bit into a mark.
//! * The number of mappings that referenced a page is ignored; in the kernel, two activate it at
//!   the first scan. References through `MADV_RANDOM` or `MADV_SEQUENTIAL` mappings count, and the
//!   neighbours that the kernel maps as referenced on a fault (`fault_around_bytes`) do not.
//! * Write-back: a dirty page is evicted as if it were clean. The kernel sets it aside until the
//!   flusher has written it.
//!
//! Compared with a running kernel, for anonymous pages, in `bench/cases/kernel_faults.py`. Do not
//! use it for kernels with multi-generational LRU (`/sys/kernel/mm/lru_gen/enabled` other than 0).

mod reclaim;

use std::iter::Copied;
use std::slice::Iter;

use super::queue::{PageInfo, Queue};
use super::{AccessBits, Replacement, Setup};

pub const WHAT: &str =
    "Linux's active and inactive lists of file and anonymous pages, with refault activation";

/// `SWAP_CLUSTER_MAX`: pages freed by one reclaim, pages scanned together, and the cost of a
/// written page.
const BATCH: u64 = 32;

/// `DEF_PRIORITY`: reclaim starts with 1 / 2^12 of each list.
const PRIORITY: u32 = 12;

/// `MAX_SWAPPINESS`: reclaims anonymous pages only.
pub const MAX_SWAPPINESS: u64 = 200;

/// Page flag: in an active list.
const ACTIVE: u16 = 1;
/// Page flag: in a file list.
const FILE: u16 = 2;
/// Mask of the index of the page's list.
const LIST: u16 = ACTIVE | FILE;
/// `PG_referenced`: a scan found the page referenced while it was inactive. Cleared when a scan
/// finds it unreferenced, not by activation or deactivation.
const MARKED: u16 = 4;
/// `PG_workingset`: the page has been active. Survives eviction.
const WORKINGSET: u16 = 8;
/// The page is executable code of a file.
const EXECUTABLE: u16 = 16;
/// A discarded anonymous page, in a file list.
pub(super) const LAZY: u16 = 32;
/// A discarded page that was written again.
pub(super) const REWRITTEN: u16 = 64;
/// The page waits in [`Lists::pending`].
const PENDING: u16 = 128;

/// Types of pages; the inactive list of a type is `2 * type`.
const TYPES: [usize; 2] = [0, 1];
const ANON: usize = 0;
const INACTIVE_ANON: usize = 0;
const INACTIVE_FILE: usize = FILE as usize;
const ACTIVE_FILE: usize = LIST as usize;

/// Record a write to a page that may have been discarded.
pub(super) fn mark_rewritten(pages: &mut PageInfo, page: u32) {
    if (page as usize) < pages.len() && pages[page] & LAZY != 0 {
        pages[page] |= REWRITTEN;
    }
}

/// The control group's statistics.
#[derive(Clone, Copy, Debug, Default)]
struct Statistics {
    lengths: [u64; 4],
    /// Pages activated at refault, by type.
    activated: [u64; 2],
}

/// The lists of one memory.
#[derive(Clone, Debug)]
pub struct Lists {
    setup: Setup,
    batch: u64,
    /// Bytes of the whole memory that a page represents.
    bytes_per_page: u64,
    /// A page's time (its shadow entry) is `age` including its last eviction; 0 if never evicted.
    pages: PageInfo,
    /// In kernel order: inactive anonymous, active anonymous, inactive file, active file. Newest
    /// page at the head.
    lists: [Queue; 4],
    /// `nonresident_age`: evictions and activations so far.
    age: u64,
    /// `anon_cost` and `file_cost`.
    cost: [u64; 2],
    /// New pages that are not in a list yet, oldest first.
    pending: Vec<u32>,
    /// Pages activated at refault, by type.
    activated: [u64; 2],
    /// `activated` as the last reclaim saw it.
    activated_before: [u64; 2],
    /// `faults` at the last activation at refault, by type.
    activated_at: [u64; 2],
    /// Number of last faults whose activations reclaim considers; 0: those since the last reclaim.
    recent_faults: u64,
    /// Statistics as of the last update.
    stale: Statistics,
    faults: u64,
    /// Scanned pages that stay; they return to the lists after the batch.
    survivors: Vec<u32>,
    /// Pages that the last fault evicted.
    evicted: Vec<u32>,
}

impl Lists {
    /// Put a page at the head of the list that its flags select.
    #[inline]
    fn push_head(&mut self, page: u32) {
        let list = (self.pages[page] & LIST) as usize;
        self.pages.push(&mut self.lists[list], page);
    }

    fn remove(&mut self, page: u32) {
        let list = (self.pages[page] & LIST) as usize;
        self.pages.remove(&mut self.lists[list], page);
    }

    #[inline]
    fn resident(&self) -> u64 {
        self.lengths().iter().sum::<u64>() + self.pending.len() as u64
    }

    /// `lru_add_drain`: move pending pages to their lists.
    #[inline]
    fn drain(&mut self) {
        for index in 0..self.pending.len() {
            let page = self.pending[index];
            self.pages[page] &= !PENDING;
            self.push_head(page);
        }
        self.pending.clear();
    }

    #[inline]
    fn lengths(&self) -> [u64; 4] {
        let [a, b, c, d] = &self.lists;
        [a.len(), b.len(), c.len(), d.len()]
    }

    fn update_statistics(&mut self) {
        self.stale = Statistics { lengths: self.lengths(), activated: self.activated };
    }

    /// List lengths according to the statistics.
    #[inline]
    fn seen_lengths(&self) -> [u64; 4] {
        if self.setup.statistics_every == 1 { self.lengths() } else { self.stale.lengths }
    }

    /// Pages activated at refault according to the statistics.
    #[inline]
    fn seen_activated(&self) -> [u64; 2] {
        if self.setup.statistics_every == 1 { self.activated } else { self.stale.activated }
    }
}

impl Replacement for Lists {
    type Shared = ();
    type Evicted<'a> = Copied<Iter<'a, u32>>;

    fn new(setup: Setup) -> Self {
        let frames = setup.frames.max(1);
        let whole_batch = (setup.whole_frames() / 128).clamp(1, BATCH);
        let statistics_every = match setup.statistics_every {
            0 => 0,
            every => setup.share_of(every),
        };
        let updates_each_batch = (1..=whole_batch).contains(&setup.statistics_every);
        let recent_faults = if setup.share < 1.0 && updates_each_batch { whole_batch } else { 0 };
        Self {
            setup: Setup { frames, statistics_every, ..setup },
            batch: setup.share_of(whole_batch),
            bytes_per_page: (setup.page_bytes as f64 / setup.share) as u64,
            pages: PageInfo::default(),
            lists: Default::default(),
            age: 0,
            cost: [0; 2],
            pending: Vec::new(),
            activated: [0; 2],
            activated_before: [0; 2],
            activated_at: [0; 2],
            recent_faults,
            stale: Statistics::default(),
            faults: 0,
            survivors: Vec::new(),
            evicted: Vec::new(),
        }
    }

    fn begin_file(&mut self, page: u32, executable: bool) {
        self.pages.grow(page);
        self.pages[page] = if executable { FILE | EXECUTABLE } else { FILE };
    }

    fn fault(&mut self, page: u32, (): &(), bits: &mut impl AccessBits) -> Self::Evicted<'_> {
        self.pages.grow(page);
        self.faults += 1;
        if self.setup.statistics_every > 1
            && self.faults.is_multiple_of(self.setup.statistics_every)
        {
            self.update_statistics();
        }
        self.evicted.clear();
        if self.resident() == self.setup.frames {
            self.reclaim(bits);
        }
        let flags = self.pages[page];
        let kind = usize::from(flags & FILE != 0);
        let evicted_at = self.pages.time(page);
        let lengths = self.seen_lengths();
        let others = lengths.iter().sum::<u64>() - lengths[2 * kind];
        // The time includes the tick of the page's own eviction.
        let refault = evicted_at > 0 && self.age - (evicted_at - 1) <= others;
        self.pages[page] = flags & (FILE | EXECUTABLE) | PENDING;
        if refault {
            self.age += 1;
            self.activated[kind] += 1;
            self.activated_at[kind] = self.faults;
            self.pages[page] |= ACTIVE | flags & WORKINGSET;
            self.note_cost(kind, u64::from(flags & WORKINGSET != 0), 0);
        }
        self.pending.push(page);
        // 31 pages (`PAGEVEC_SIZE`) for the full batch of 32.
        if self.pending.len() as u64 + 1 >= self.batch {
            self.drain();
        }
        self.evicted.iter().copied()
    }

    fn release(&mut self, page: u32, resident: bool) {
        if resident {
            if self.pages[page] & PENDING != 0 {
                self.drain();
            }
            self.remove(page);
        }
        self.pages.forget(page);
    }

    fn discard(&mut self, page: u32, resident: bool) -> bool {
        self.drain();
        if !resident && (page as usize) < self.pages.len() {
            self.pages.set_time(page, 0);
        }
        if resident && self.pages[page] & FILE == 0 {
            self.remove(page);
            self.pages[page] = self.pages[page] & WORKINGSET | FILE | LAZY;
            self.push_head(page);
        } else if resident {
            self.pages[page] &= !REWRITTEN;
        }
        resident
    }

    fn undo_discard(&mut self, page: u32) {
        mark_rewritten(&mut self.pages, page);
    }
}

#[cfg(test)]
mod tests;
