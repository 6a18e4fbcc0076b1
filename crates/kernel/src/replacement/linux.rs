//! Linux's lists under a memory limit, as `mm/vmscan.c`, `mm/swap.c` and `mm/workingset.c` of 5.9 to
//! 6.18 treat them without multi-generational LRU: an active and an inactive list for anonymous
//! pages, another two for pages of files.
//!
//! A new page enters at the head of its inactive list, together with others: 31 wait for each other
//! (`folio_add_lru`), or until reclaim begins to look. When no frame is left, reclaim
//! (`do_try_to_free_pages`) frees a batch of 32 pages (`SWAP_CLUSTER_MAX`). It goes over the lists
//! with a falling priority, from 12 to 0, until the batch is free. At priority `k` it looks at
//! length / 2^k pages of each list, or at a part of that ([which type](#which-type)), 32 at a time
//! from each in turn (`shrink_lruvec`):
//!
//! * **Inactive tail** (`shrink_inactive_list`, `folio_check_references`): a page referenced since
//!   it was last looked at is marked (`PG_referenced`) and goes on: to the inactive head, or to the
//!   active list if it had the mark already or is code of a file. Any other page is evicted. Pages
//!   that stay are put back when the 32 are done.
//! * **Active tail** (`shrink_active_list`), only while the inactive list of that type is low or a page
//!   of it was activated at refault since the last reclaim (`prepare_scan_control`): to the inactive
//!   head, accessed bit cleared, mark kept. Code of a file that was referenced goes to the active head.
//! * When the batch is free, the type of which less is left to look at is left alone, and the other
//!   gets as large a part of its due, at most 32 more of each list.
//! * After each priority, 32 more from the active tail of anonymous pages if their inactive list is
//!   low (`inactive_is_low`: inactive x sqrt(10 x both lists in GiB), at least x 1, < active).
//!
//! Evictions and activations, of either type, advance one clock (`nonresident_age`). An evicted page
//! leaves the time behind; if it returns before more ticks have passed than there are pages in the
//! other three lists, it enters its active list at once (`workingset_refault`).
//!
//! # Statistics
//!
//! How long the lists are, and whether a page was activated at refault, reclaim knows from the
//! statistics of the control group, which the kernel brings up to date every two seconds
//! (`FLUSH_TIME` of `mm/memcontrol.c`), or when somebody reads `memory.stat`. What it looks at is of
//! the true length (`lruvec_lru_size`). Here statistics are renewed every
//! [`statistics_every`](Setup::statistics_every) faults. While they are old, the active list may take
//! all pages. The kernel, when it finds none to look at, ends the program for lack of memory; here it
//! goes on with new statistics.
//!
//! # Which type
//!
//! `get_scan_count` decides between anonymous pages and files:
//!
//! * With swappiness 0 only files are looked at, as long as there are any. The kernel ends the
//!   program then; here anonymous pages go after all.
//! * At priority 0 all of all lists.
//! * Only files while 1 / 2^k of their inactive list is a page or more, the list is not low, and none
//!   was activated at refault since the last reclaim (`cache_trim_mode`).
//! * Otherwise of anonymous pages a part of swappiness / (cost of anonymous pages + cost of both), of
//!   files 200 - swappiness with their cost, as parts of the sum of the two
//!   (`calculate_pressure_balance`). Cost of a type (`lru_note_cost`) is 32 for a page written by
//!   reclaim and for the return of one that had been active, 1 for a page looked at that stays; both
//!   are halved when they exceed a quarter of all pages. Each anonymous page that is evicted is
//!   written, as on zram, where a page's place in swap is given up when it is read.
//!
//! A page that is freed leaves its list, and what was known of it is forgotten. One that is discarded
//! (`MADV_FREE`) goes to the head of the inactive list of files, not referenced, and is evicted from
//! there without a trace; if it was rewritten by then, it becomes an active anonymous page.
//!
//! The batch is that of the kernel from 4096 frames (16 MiB of 4 KiB pages) up; below, 1/128 of the
//! frames, so that a batch stays a small part of memory where a small trace stands for a large
//! program. The kernel itself keeps to 32 and gives up that part of a small memory.
//!
//! Left out, as a trace has no such thing: kswapd and watermarks, several reclaimers, huge pages, swap
//! read-ahead and that of files. And of files:
//!
//! * What system calls read and write counts as referenced like what is mapped. The kernel counts
//!   the call (`folio_mark_accessed`): read once, a page goes at the first look, where here it is kept
//!   once more; read twice, it is active at once, here when it is next looked at. Nor is the accessed
//!   bit made a mark when a page is unmapped.
//! * The number of mappings that reference a page: two activate it at the first look. References by
//!   mappings with `MADV_RANDOM` or `MADV_SEQUENTIAL` count here, and the neighbours of a page that
//!   faults, which the kernel maps as referenced (`fault_around_bytes`), do not.
//! * Write-back: a written page is evicted as if it were clean, where the kernel sets it aside until
//!   the flusher has written it.
//!
//! Compared with a running kernel, with anonymous pages alone, in `bench/cases/kernel_faults.py`. Do
//! not use it for multi-generational LRU kernels (`/sys/kernel/mm/lru_gen/enabled` other than 0).

use std::iter::Copied;
use std::slice::Iter;

use super::queue::{Pages, Queue};
use super::{AccessBits, Replacement, Setup};

/// What the policy is.
pub const WHAT: &str =
    "Linux's active and inactive lists of file and anonymous pages, with refault activation";

/// `SWAP_CLUSTER_MAX`: pages that one reclaim frees, that are looked at together, and that cost as much
/// to look at as one to write.
const BATCH: u64 = 32;

/// `DEF_PRIORITY`: reclaim begins by looking at 1 / 2^12 of each list.
const PRIORITY: u32 = 12;

/// `MAX_SWAPPINESS`: of anonymous pages alone.
pub const MAX_SWAPPINESS: u64 = 200;

/// In a page's flags: it is in an active list.
const ACTIVE: u16 = 1;
/// It is in a list of files.
const FILE: u16 = 2;
/// Both: the number of its list.
const LIST: u16 = ACTIVE | FILE;
/// `PG_referenced`: it was found referenced while inactive. Kept until a look finds it not referenced,
/// through activation and deactivation.
const MARKED: u16 = 4;
/// `PG_workingset`: it has been active. Kept when it is evicted.
const WORKINGSET: u16 = 8;
/// It is code of a file.
const EXECUTABLE: u16 = 16;
/// An anonymous page that was discarded, in a list of files.
pub(super) const LAZY: u16 = 32;
/// One that was written since.
pub(super) const REWRITTEN: u16 = 64;
/// It is in no list yet.
const WAITING: u16 = 128;

/// Types of pages: the first is [`ANON`], the second that of files; `2 * type` is its inactive list.
const TYPES: [usize; 2] = [0, 1];
const ANON: usize = 0;
const INACTIVE_ANON: usize = 0;
const INACTIVE_FILE: usize = FILE as usize;
const ACTIVE_FILE: usize = LIST as usize;

/// A page is written, which may have been discarded.
pub(super) fn rewrite(pages: &mut Pages, page: u32) {
    if (page as usize) < pages.len() && pages[page] & LAZY != 0 {
        pages[page] |= REWRITTEN;
    }
}

/// What reclaim knows of the control group.
#[derive(Clone, Copy, Debug, Default)]
struct Statistics {
    lengths: [u64; 4],
    /// Pages that were activated at refault.
    activated: [u64; 2],
}

/// The lists over a fixed number of frames.
#[derive(Clone, Debug)]
pub struct Lists {
    setup: Setup,
    batch: u64,
    /// The time of a page is the age just after it was last evicted, 0 if never: the shadow entry and its
    /// own tick.
    pages: Pages,
    /// In the order of the kernel: inactive and active, anonymous, then the same of files. The newest page
    /// is the head.
    lists: [Queue; 4],
    /// Evictions and activations so far: `nonresident_age`.
    age: u64,
    /// `anon_cost` and `file_cost`.
    cost: [u64; 2],
    /// New pages, oldest first.
    waiting: Vec<u32>,
    /// Pages that were activated at refault, and how many of them the last reclaim knew of.
    activated: [u64; 2],
    activated_before: [u64; 2],
    /// As they were last renewed.
    old: Statistics,
    faults: u64,
    /// Pages looked at that stay: they are put back when the batch is done.
    kept: Vec<u32>,
    /// Pages that the last fault evicted.
    evicted: Vec<u32>,
}

/// `lru_note_cost`: the costs with more for one type, where lists have so many pages.
#[inline]
fn note_cost(mut cost: [u64; 2], kind: usize, more: u64, pages: u64) -> [u64; 2] {
    cost[kind] += more;
    if cost[0] + cost[1] > pages / 4 { cost.map(|cost| cost / 2) } else { cost }
}

impl Lists {
    /// Put a page at the head of the list that its flags say.
    #[inline]
    fn push_head(&mut self, page: u32) {
        let list = (self.pages[page] & LIST) as usize;
        self.pages.push(&mut self.lists[list], page);
    }

    /// Take a page out of its list.
    fn remove(&mut self, page: u32) {
        let list = (self.pages[page] & LIST) as usize;
        self.pages.remove(&mut self.lists[list], page);
    }

    #[inline]
    fn resident(&self) -> u64 {
        self.lengths().iter().sum::<u64>() + self.waiting.len() as u64
    }

    /// `lru_add_drain`: put new pages into their lists.
    #[inline]
    fn drain(&mut self) {
        for place in 0..self.waiting.len() {
            let page = self.waiting[place];
            self.pages[page] &= !WAITING;
            self.push_head(page);
        }
        self.waiting.clear();
    }

    #[inline]
    fn lengths(&self) -> [u64; 4] {
        let [a, b, c, d] = &self.lists;
        [a.len(), b.len(), c.len(), d.len()]
    }

    fn new_statistics(&self) -> Statistics {
        Statistics { lengths: self.lengths(), activated: self.activated }
    }

    /// Lengths as reclaim knows them.
    #[inline]
    fn known_lengths(&self) -> [u64; 4] {
        if self.setup.statistics_every == 1 { self.lengths() } else { self.old.lengths }
    }

    /// Pages activated at refault, as reclaim knows them.
    #[inline]
    fn known_activated(&self) -> [u64; 2] {
        if self.setup.statistics_every == 1 { self.activated } else { self.old.activated }
    }

    #[inline(always)]
    fn inactive_is_low(&self, kind: usize) -> bool {
        let lengths = self.known_lengths();
        let [inactive, active] = [lengths[2 * kind], lengths[2 * kind + 1]];
        // No more than the memory has bytes.
        let ratio = match (inactive + active).saturating_mul(self.setup.page_bytes) >> 30 {
            0 => 1,
            gib => (10 * gib).isqrt(),
        };
        inactive * ratio < active
    }

    fn note_cost(&mut self, kind: usize, written: u64, rotated: u64) {
        let more = written * BATCH + rotated;
        if more > 0 {
            let pages = self.known_lengths().iter().sum();
            self.cost = note_cost(self.cost, kind, more, pages);
        }
    }

    /// Move up to `count` pages from the active tail to the inactive head.
    fn shrink_active(&mut self, kind: usize, count: u64, bits: &mut impl AccessBits) {
        self.drain();
        let list = 2 * kind + 1;
        let mut rotated = 0;
        for _ in 0..count.min(self.lists[list].len()) {
            let Some(page) = self.pages.pop(&mut self.lists[list], bits) else { break };
            let referenced = bits.test(page);
            bits.clear(page);
            let flags = &mut self.pages[page];
            if referenced && *flags & EXECUTABLE != 0 {
                rotated += 1;
            } else {
                *flags = *flags & !ACTIVE | WORKINGSET;
            }
            self.push_head(page);
        }
        self.age += rotated;
        self.note_cost(kind, 0, rotated);
    }

    /// Look at up to `count` pages of the inactive tail.
    fn shrink_inactive(&mut self, kind: usize, count: u64, bits: &mut impl AccessBits) {
        self.drain();
        let list = 2 * kind;
        let mut written = 0;
        for _ in 0..count.min(self.lists[list].len()) {
            let Some(page) = self.pages.pop(&mut self.lists[list], bits) else { break };
            let flags = &mut self.pages[page];
            if bits.test(page) {
                bits.clear(page);
                if *flags & (MARKED | EXECUTABLE) != 0 {
                    *flags |= ACTIVE;
                }
                *flags |= MARKED;
                self.kept.push(page);
                continue;
            }
            if *flags & REWRITTEN != 0 {
                *flags = *flags & WORKINGSET | ACTIVE;
                self.kept.push(page);
                continue;
            }
            if *flags & LAZY != 0 {
                self.pages.forget(page);
            } else {
                *flags &= FILE | EXECUTABLE | WORKINGSET;
                self.age += 1;
                self.pages.set_time(page, self.age);
                written += u64::from(kind == ANON);
            }
            self.evicted.push(page);
        }
        let rotated = self.kept.len() as u64;
        for place in 0..self.kept.len() {
            let page = self.kept[place];
            self.age += u64::from(self.pages[page] & ACTIVE);
            self.push_head(page);
        }
        self.kept.clear();
        self.note_cost(kind, written, rotated);
    }

    /// `get_scan_count`: how many pages of each list to look at.
    fn scan_counts(&self, priority: u32, deactivate: [bool; 2]) -> [u64; 4] {
        let counts = self.lengths().map(|length| length >> priority);
        let swappiness = self.setup.swappiness;
        let files = self.lists[INACTIVE_FILE].len() + self.lists[ACTIVE_FILE].len();
        let trim = self.known_lengths()[INACTIVE_FILE] >> priority > 0 && !deactivate[1];
        let only_files = match swappiness {
            0 => files > 0,
            _ => priority > 0 && trim,
        };
        if only_files {
            return [0, 0, counts[2], counts[3]];
        }
        if swappiness == 0 || priority == 0 {
            return counts;
        }
        let weights = [swappiness, MAX_SWAPPINESS - swappiness];
        let costs = self.cost.map(|cost| cost + self.cost.iter().sum::<u64>());
        let part = |kind: usize| weights[kind] * (costs[0] + costs[1] + 1) / (costs[kind] + 1);
        // Below 600 each: all costs are less than three times those of one type and of both.
        let parts = TYPES.map(part);
        let of = |count: u64, part: u64| match count * part {
            // Mostly, and a division takes long.
            less if less < parts[0] + parts[1] => 0,
            more => more / (parts[0] + parts[1]),
        };
        [0, 1, 2, 3].map(|list| of(counts[list], parts[list / 2]))
    }

    /// Evict at least one page, a batch if the lists give one.
    fn reclaim(&mut self, bits: &mut impl AccessBits) {
        // Accessed bits are only cleared here, and with new statistics an empty inactive list is low:
        // pages that are looked at without end become unreferenced inactive ones, so this ends.
        loop {
            let skipped = self.free_pages(false, bits);
            if self.evicted.is_empty() && skipped {
                self.free_pages(true, bits);
            }
            if !self.evicted.is_empty() {
                return;
            }
            if self.lists[INACTIVE_ANON].len() + self.lists[INACTIVE_FILE].len() == 0 {
                self.drain();
                self.old = self.new_statistics();
            }
        }
    }

    /// `do_try_to_free_pages`, with or without `force_deactivate`; answers whether an active list was
    /// left alone.
    fn free_pages(&mut self, force: bool, bits: &mut impl AccessBits) -> bool {
        let (mut skipped, mut priority) = (false, PRIORITY);
        loop {
            // Above this priority no list has a page to look at.
            let first = self.lengths().into_iter().fold(1, u64::max).ilog2();
            if !self.inactive_is_low(ANON) {
                priority = priority.min(first);
            }
            if priority <= first {
                skipped |= self.shrink(priority, force, bits);
            } else {
                self.shrink_active(ANON, self.batch, bits);
            }
            if self.evicted.len() as u64 >= self.batch || priority == 0 {
                break;
            }
            priority -= 1;
        }
        self.activated_before = self.known_activated();
        skipped
    }

    /// `shrink_lruvec`: go over the lists at one priority; answers whether an active list was left
    /// alone.
    fn shrink(&mut self, priority: u32, force: bool, bits: &mut impl AccessBits) -> bool {
        let skipped = self.looks_at_some(priority) && self.shrink_lists(priority, force, bits);
        if self.inactive_is_low(ANON) {
            self.shrink_active(ANON, self.batch, bits);
        }
        skipped
    }

    /// Whether [`Lists::scan_counts`] may be other than 0: of one page no part is taken.
    #[inline]
    fn looks_at_some(&self, priority: u32) -> bool {
        priority == 0
            || self.lengths().iter().any(|length| length >> priority > 1)
            || self.known_lengths()[INACTIVE_FILE] >> priority > 0
            || !(1..MAX_SWAPPINESS).contains(&self.setup.swappiness)
    }

    /// [`Lists::shrink`] without what comes after.
    fn shrink_lists(&mut self, priority: u32, force: bool, bits: &mut impl AccessBits) -> bool {
        let activated = self.known_activated();
        let refaulted = TYPES.map(|kind| activated[kind] != self.activated_before[kind]);
        let deactivate =
            TYPES.map(|kind| force || refaulted[kind] || self.inactive_is_low(kind));
        let mut skipped = false;
        let targets = self.scan_counts(priority, deactivate);
        let mut left = targets;
        let before = self.evicted.len() as u64;
        while left[INACTIVE_ANON] + left[INACTIVE_FILE] + left[ACTIVE_FILE] > 0 {
            for (list, left) in left.iter_mut().enumerate() {
                let (kind, count) = (list / 2, self.batch.min(*left));
                *left -= count;
                if count == 0 {
                    continue;
                }
                if list % 2 == 0 {
                    self.shrink_inactive(kind, count, bits);
                } else if deactivate[kind] {
                    self.shrink_active(kind, count, bits);
                } else {
                    skipped = true;
                }
            }
            if (self.evicted.len() as u64) - before < self.batch {
                continue;
            }
            let sum = |lists: &[u64; 4], kind: usize| lists[2 * kind] + lists[2 * kind + 1];
            let rest = TYPES.map(|kind| sum(&left, kind));
            if rest.contains(&0) {
                break;
            }
            let fewer = usize::from(rest[1] <= rest[0]);
            let percent = rest[fewer] * 100 / (sum(&targets, fewer) + 1);
            for list in 0..4 {
                let due = targets[list] * (100 - percent) / 100;
                let done = targets[list] - left[list];
                left[list] = if list / 2 == fewer { 0 } else { due.saturating_sub(done) };
            }
        }
        skipped
    }
}

impl Replacement for Lists {
    type Shared = ();
    type Evicted<'a> = Copied<Iter<'a, u32>>;

    fn new(setup: Setup) -> Self {
        let frames = setup.frames.max(1);
        Self {
            setup: Setup { frames, ..setup },
            batch: (frames / 128).clamp(1, BATCH),
            pages: Pages::default(),
            lists: Default::default(),
            age: 0,
            cost: [0; 2],
            waiting: Vec::new(),
            activated: [0; 2],
            activated_before: [0; 2],
            old: Statistics::default(),
            faults: 0,
            kept: Vec::new(),
            evicted: Vec::new(),
        }
    }

    fn begin_file(&mut self, page: u32, executable: bool) {
        self.pages.grow(page);
        self.pages[page] = if executable { FILE | EXECUTABLE } else { FILE };
    }

    const EXPECTS: bool = true;

    fn expect(&self, page: u32) {
        self.pages.prefetch(page);
    }

    fn fault(&mut self, page: u32, (): &(), bits: &mut impl AccessBits) -> Self::Evicted<'_> {
        self.pages.grow(page);
        self.faults += 1;
        if self.setup.statistics_every > 1 && self.faults.is_multiple_of(self.setup.statistics_every) {
            self.old = self.new_statistics();
        }
        self.evicted.clear();
        if self.resident() == self.setup.frames {
            self.reclaim(bits);
        }
        let flags = self.pages[page];
        let kind = usize::from(flags & FILE != 0);
        let evicted_at = self.pages.time(page);
        let lengths = self.known_lengths();
        let others = lengths.iter().sum::<u64>() - lengths[2 * kind];
        // The page's own eviction is one of the ticks since.
        let refault = evicted_at > 0 && self.age - (evicted_at - 1) <= others;
        self.pages[page] = flags & (FILE | EXECUTABLE) | WAITING;
        if refault {
            self.age += 1;
            self.activated[kind] += 1;
            self.pages[page] |= ACTIVE | flags & WORKINGSET;
            self.note_cost(kind, u64::from(flags & WORKINGSET != 0), 0);
        }
        self.waiting.push(page);
        if self.waiting.len() as u64 + 1 >= self.batch {
            self.drain();
        }
        self.evicted.iter().copied()
    }

    fn release(&mut self, page: u32, resident: bool) {
        if resident {
            if self.pages[page] & WAITING != 0 {
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

    fn keep(&mut self, page: u32) {
        rewrite(&mut self.pages, page);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    struct Bits(Vec<bool>);

    impl AccessBits for Bits {
        fn test(&self, page: u32) -> bool {
            self.0[page as usize]
        }
        fn clear(&mut self, page: u32) {
            self.0[page as usize] = false;
        }
    }

    /// Pages of each kind; there are frames for half of all.
    const PAGES: u32 = 1024;

    /// Evictions of each third of the pages, referenced at random: anonymous, of files, and code.
    fn evictions(swappiness: u64) -> [u64; 3] {
        let setup = Setup { frames: (3 * PAGES / 2).into(), page_bytes: 4096, swappiness, statistics_every: 1 };
        let mut lists = Lists::new(setup);
        (PAGES..3 * PAGES).for_each(|page| lists.begin_file(page, page >= 2 * PAGES));
        let mut bits = Bits(vec![false; 3 * PAGES as usize]);
        let (mut resident, mut counts, mut draw) = (HashSet::new(), [0; 3], 1u64);
        for _ in 0..100_000 {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let page = (draw >> 33) as u32 % (3 * PAGES);
            if resident.insert(page) {
                for victim in lists.fault(page, &(), &mut bits) {
                    assert!(resident.remove(&victim));
                    bits.0[victim as usize] = false;
                    counts[(victim / PAGES) as usize] += 1;
                }
            }
            bits.0[page as usize] = true;
            assert_eq!(lists.resident(), resident.len() as u64);
        }
        counts
    }

    #[test]
    fn swappiness_moves_reclaim_from_files_to_memory() {
        let found = [0, 30, 60, 100, 150, 200].map(evictions);
        assert_eq!(found[0][0], 0, "{found:?}");
        for (less, more) in found.iter().zip(&found[1..]) {
            assert!(less[0] < more[0] && less[1] > more[1], "{found:?}");
        }
    }

    #[test]
    fn code_stays_longer_than_other_pages_of_files() {
        let [_, data, code] = evictions(60);
        assert!(code < data * 9 / 10, "{code} and {data}");
    }
}
