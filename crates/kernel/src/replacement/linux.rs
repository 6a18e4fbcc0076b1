//! Linux's two lists for anonymous memory under a memory limit, as `mm/vmscan.c` and
//! `mm/workingset.c` of 5.9 to 6.18 treat them without multi-generational LRU.
//!
//! A new page enters at the head of the inactive list. When no frame is left, reclaim
//! (`do_try_to_free_pages`) frees a batch of 32 pages (`SWAP_CLUSTER_MAX`). It goes over the lists
//! with a falling priority, from 12 to 0, until the batch is free; at priority `k` it looks at
//! length / 2^k pages of each list (`get_scan_count`), 32 at a time:
//!
//! * **Inactive tail** (`shrink_inactive_list`, `folio_check_references`): a page referenced since
//!   it was last looked at is marked (`PG_referenced`) and goes on: to the inactive head, or to the
//!   active list if it had the mark already. Any other page is evicted. Pages that stay are put back
//!   when the 32 are done.
//! * **Active tail** (`shrink_active_list`), only while the inactive list is low or a page was
//!   activated at refault since the last reclaim (`prepare_scan_control`): to the inactive head,
//!   accessed bit cleared, mark kept.
//! * After each priority, 32 more from the active tail if the inactive list is low
//!   (`inactive_is_low`: inactive x sqrt(10 x memory in GiB), at least x 1, < active).
//!
//! Evictions and activations advance a clock (`nonresident_age`). An evicted page leaves the time
//! behind; if it returns before more ticks have passed than the active list has pages, it enters the
//! active list at once (`workingset_refault`).
//!
//! A page that is freed leaves its list, and what was known of it is forgotten.
//!
//! The batch is that of the kernel from 4096 frames (16 MiB of 4 KiB pages) up; below, 1/128 of the
//! frames, so that a batch stays a small part of memory where a small trace stands for a large
//! program. The kernel itself keeps to 32 and gives up that part of a small memory.
//!
//! Left out, as a trace has no such thing or the question is about anonymous memory alone: file
//! pages, kswapd and watermarks, several reclaimers, huge pages, swap read-ahead, and the kernel's
//! statistics of a memory cgroup, which may be seconds old when it compares the lists. Compared with
//! a running kernel in `bench/cases/kernel_faults.py`. Do not use it for multi-generational LRU
//! kernels (`/sys/kernel/mm/lru_gen/enabled` other than 0).

use nearfar_hardware::list::{Links, List};

use super::{AccessBits, Replacement};

/// What the policy is.
pub const WHAT: &str = "Linux's active and inactive lists with refault activation";

/// `SWAP_CLUSTER_MAX`: pages that one reclaim frees, and that are looked at together.
const BATCH: u64 = 32;

/// `DEF_PRIORITY`: reclaim begins by looking at 1 / 2^12 of each list.
const PRIORITY: u32 = 12;

/// `PG_referenced`, in a page's word: it was found referenced while inactive. Kept until a look finds
/// it not referenced, through activation and deactivation.
const MARKED: u32 = 1;
/// In a page's word: it is in the active list.
const ACTIVE: u32 = 2;

/// A list and its length; its newest page is the head.
#[derive(Clone, Debug, Default)]
struct Pages {
    list: List,
    length: u64,
}

/// The active and inactive lists over a fixed number of frames.
#[derive(Clone, Debug)]
pub struct TwoList {
    frames: u64,
    batch: u64,
    links: Links,
    /// Age just after a page was last evicted, 0 if never: the shadow entry and its own tick.
    evicted_at: Vec<u64>,
    inactive: Pages,
    active: Pages,
    /// Evictions and activations so far: `nonresident_age`.
    age: u64,
    /// Whether a page was activated at refault since the last reclaim.
    refaulted: bool,
    ratio: u64,
    /// Pages looked at that stay, and whether they become active: they are put back when the batch is
    /// done.
    kept: Vec<(u32, bool)>,
}

impl TwoList {
    fn push_head(&mut self, page: u32, active: bool) {
        let pages = if active { &mut self.active } else { &mut self.inactive };
        self.links.push(&mut pages.list, page);
        pages.length += 1;
        let word = &mut self.links[page];
        *word = *word & MARKED | if active { ACTIVE } else { 0 };
    }

    fn take_tail(&mut self, active: bool) -> Option<u32> {
        let pages = if active { &mut self.active } else { &mut self.inactive };
        let page = self.links.pop(&mut pages.list)?;
        pages.length -= 1;
        Some(page)
    }

    fn inactive_is_low(&self) -> bool {
        self.inactive.length * self.ratio < self.active.length
    }

    /// Move up to `count` pages from the active tail to the inactive head.
    fn shrink_active(&mut self, count: u64, bits: &mut impl AccessBits) {
        for _ in 0..count.min(self.active.length) {
            let Some(page) = self.take_tail(true) else { return };
            bits.clear(page);
            self.push_head(page, false);
        }
    }

    /// Look at up to `count` pages of the inactive tail.
    fn shrink_inactive(&mut self, count: u64, bits: &mut impl AccessBits, evicted: &mut Vec<u32>) {
        for _ in 0..count.min(self.inactive.length) {
            let Some(page) = self.take_tail(false) else { break };
            let word = &mut self.links[page];
            if bits.test(page) {
                bits.clear(page);
                self.kept.push((page, *word == MARKED));
                *word = MARKED;
            } else {
                *word = 0;
                self.age += 1;
                self.evicted_at[page as usize] = self.age;
                evicted.push(page);
            }
        }
        let kept = std::mem::take(&mut self.kept);
        for &(page, active) in &kept {
            self.age += u64::from(active);
            self.push_head(page, active);
        }
        self.kept = kept;
        self.kept.clear();
    }

    /// Evict at least one page, a batch if the lists give one.
    fn reclaim(&mut self, bits: &mut impl AccessBits) -> Vec<u32> {
        let mut evicted = Vec::with_capacity(2 * self.batch as usize);
        let wanted = self.batch as usize;
        // Accessed bits are only cleared here, and an empty inactive list is low: pages that are
        // looked at without end become unreferenced inactive ones, so this ends.
        while evicted.is_empty() {
            for priority in (0..=PRIORITY).rev() {
                let deactivate = self.refaulted || self.inactive_is_low();
                let mut inactive = self.inactive.length >> priority;
                let mut active = if deactivate { self.active.length >> priority } else { 0 };
                while inactive > 0 && evicted.len() < wanted {
                    let count = inactive.min(self.batch);
                    inactive -= count;
                    self.shrink_inactive(count, bits, &mut evicted);
                    let count = active.min(self.batch);
                    active -= count;
                    self.shrink_active(count, bits);
                }
                if self.inactive_is_low() {
                    self.shrink_active(self.batch, bits);
                }
                if evicted.len() >= wanted {
                    break;
                }
            }
            self.refaulted = false;
        }
        evicted
    }
}

impl Replacement for TwoList {
    type Evicted = Vec<u32>;

    fn new(frames: u64, page_bytes: u64) -> Self {
        let frames = frames.max(1);
        let gib = (u128::from(frames) * u128::from(page_bytes) >> 30) as u64;
        Self {
            frames,
            batch: (frames / 128).clamp(1, BATCH),
            links: Links::default(),
            evicted_at: Vec::new(),
            inactive: Pages::default(),
            active: Pages::default(),
            age: 0,
            refaulted: false,
            ratio: if gib == 0 { 1 } else { (10 * gib).isqrt() },
            kept: Vec::new(),
        }
    }

    fn fault(&mut self, page: u32, bits: &mut impl AccessBits) -> Vec<u32> {
        if self.links.len() <= page as usize {
            self.links.resize(page as usize + 1);
            self.evicted_at.resize(page as usize + 1, 0);
        }
        let full = self.inactive.length + self.active.length == self.frames;
        let evicted = if full { self.reclaim(bits) } else { Vec::new() };
        let evicted_at = self.evicted_at[page as usize];
        // The page's own eviction is one of the ticks since.
        let refault = evicted_at > 0 && self.age - (evicted_at - 1) <= self.active.length;
        if refault {
            self.age += 1;
            self.refaulted = true;
        }
        self.push_head(page, refault);
        evicted
    }
    fn release(&mut self, page: u32, resident: bool) {
        let index = page as usize;
        if resident {
            let active = self.links[page] & ACTIVE != 0;
            let pages = if active { &mut self.active } else { &mut self.inactive };
            self.links.remove(&mut pages.list, page);
            pages.length -= 1;
        }
        if index < self.evicted_at.len() {
            self.links[page] = 0;
            self.evicted_at[index] = 0;
        }
    }
}
