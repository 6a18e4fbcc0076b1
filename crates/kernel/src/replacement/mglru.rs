//! Linux's multi-generational LRU under a memory limit, as in `mm/vmscan.c`, `mm/workingset.c` and
//! `include/linux/mm_inline.h` of 6.12 on x86-64 with everything enabled
//! (`/sys/kernel/mm/lru_gen/enabled` is 0x0007).
//!
//! Pages belong to up to four generations, from `min_seq` of their type (anonymous or file), the
//! oldest, to `max_seq`, the youngest, which both types share. A loaded page enters the youngest
//! generation, whether or not it was resident before. The two youngest are never evicted from.
//!
//! When memory is full, reclaim (`do_try_to_free_pages`) frees at least 32 pages
//! (`SWAP_CLUSTER_MAX`), with a priority that falls from 12 to 0. At priority `k` it scans at least
//! all pages / 2^k (`try_to_shrink_lruvec`), in batches (`evict_folios`). If old pages are few
//! (`should_run_aging`), it ages once instead: with two generations left, or with three if the
//! youngest has over a half of the pages or the oldest less than a quarter. It does not age at
//! priority 12.
//!
//! * **Aging** (`try_to_inc_max_seq`) walks the page tables, clears accessed bits, moves the
//!   referenced pages to the youngest generation and starts a new one. It skips a page table
//!   unless the previous walk (`walk_pte_range`) or an eviction since then (`lru_gen_look_around`)
//!   found at least an eighth of the pages that it examined there referenced. The kernel uses Bloom
//!   filters for this; here there are no false positives.
//! * **A batch** is up to 64 pages from the tail of the oldest generation of one type, out of at
//!   most 4096 scanned (`scan_folios`). Pages that a walk made younger go to the head of their
//!   generation. Of the others, a referenced page goes to the head of the youngest generation, with
//!   the referenced ones of the 64 pages around it in its page table (`lru_gen_look_around`). Any
//!   other page is evicted.
//! * **Type** (`isolate_folios`): the one with the older generation; if equal, file pages with
//!   swappiness 1, anonymous pages with 200, only file pages with 0. Otherwise (`get_type_to_scan`)
//!   file pages, unless their refaults per eviction times swappiness exceed those of anonymous pages
//!   times (200 - swappiness). Counts are of the oldest generation plus half of the previous counts
//!   (`reset_ctrl_pos`). If no page of one type can be evicted, the other is scanned. With swappiness
//!   0 and no file page left, the kernel kills the program; here, reclaim continues with swappiness 1.
//! * **Tiers** protect no page here, as in the kernel for pages used through page tables: each is
//!   counted in the first tier when evicted (`isolate_folio`), so no higher tier ever refaults.
//!
//! A freed page leaves its generation and its history is dropped. A discarded page (`MADV_FREE`)
//! moves to one of the two oldest file generations, unreferenced, and is evicted from there without
//! a shadow entry. If it was rewritten by then, it becomes a young anonymous page.
//!
//! Below 4096 frames (16 MiB of 4 KiB pages), batches are 1/64 of the frames, not 64, and reclaim frees
//! at least half as many, so that a batch remains a small part of memory when a small trace
//! represents a large program.
//!
//! A trace has no page tables. Walks here examine the accessed bits of resident pages, grouped into
//! tables of 512 pages, of any page size, by the address of each page's first reference. Therefore:
//!
//! * Untouched pages of a table do not count as unreferenced, and mappings do not limit the 64
//!   pages. A page that is moved, or shared by a fork, stays in its first table.
//! * The kernel walks all tables of a process that is new since the last walk, and none of a
//!   process that has not been scheduled since (`lru_gen_use_mm`). Here only the first walk covers
//!   all tables, and every process counts as scheduled. A process that never leaves its processor is
//!   hardly ever walked by the kernel, and may fault several times as often.
//! * A file page that is not mapped, or was read by a system call, has an accessed bit like others.
//!   In the kernel, the number of calls selects its tier.
//!
//! Compared with a running kernel, for anonymous pages, in `bench/cases/mglru_guest.py`. Not
//! modelled: kswapd and watermarks, concurrent reclaim, several control groups, huge pages,
//! read-ahead, `MADV_RANDOM` and `MADV_SEQUENTIAL` (such pages enter an old generation),
//! `min_ttl_ms`, write-back of files, and the delay of up to 30 pages found by
//! `lru_gen_look_around` until the next reclaim. Do not use it for aarch64 processors without
//! hardware accessed bits (the kernel does not walk there), nor for kernels after 6.13, which age
//! whenever three generations are left.

mod evict;
mod walk;

use std::iter::Copied;
use std::slice::Iter;

use nearfar_hardware::table::grow;

use super::linux::{LAZY, MAX_SWAPPINESS, REWRITTEN, mark_rewritten};
use super::page_tables::PageTables;
use super::queue::{PageInfo, Queue};
use super::{AccessBits, Replacement, Setup};

pub const WHAT: &str = "Linux's multi-generational LRU (lru_gen), as in 6.12 on x86-64";

/// `MAX_NR_GENS`.
const GENERATIONS: u64 = 4;
/// `MIN_NR_GENS`: generations that are never evicted from.
const MIN_GENERATIONS: u64 = 2;

/// `MIN_LRU_BATCH`: pages evicted together, pages around a referenced one, and the number
/// below which refaults are ignored.
const BATCH: u64 = 64;

/// `MAX_LRU_BATCH / MIN_LRU_BATCH`: scanned pages per page of a batch.
const SCANS_PER_PAGE: u64 = 64;

/// `DEF_PRIORITY`: reclaim starts with 1 / 2^12 of the pages.
const PRIORITY: u32 = 12;

/// A table is walked again if at least one in this many pages was referenced: the number of
/// page-table entries in a cache line.
const DENSITY: u32 = 8;

/// Types of pages.
const ANON: usize = 0;
const FILES: usize = 1;

/// Page flags: the generation, modulo [`GENERATIONS`].
const GENERATION: u16 = 3;
/// The generation in whose list the page is, times 4.
const LIST: u16 = 3 << 2;
/// Page flag: in a file list.
const FILE: u16 = 1 << 4;
// Bits 5 and 6 are [`LAZY`] and [`REWRITTEN`].
/// The page is being scanned, in no list.
const ISOLATED: u16 = 1 << 8;
/// `PG_referenced`: found referenced by `lru_gen_look_around` of another page.
const REFERENCED: u16 = 1 << 9;

/// What walks record for a page table.
#[derive(Clone, Copy, Debug, Default)]
struct TableState {
    /// Pages that the walk in progress found referenced.
    young: u32,
    /// The number of the walk that visits the table next.
    next_walk: u64,
}

/// Refaults and evictions of the oldest generation, and decayed counts of earlier generations.
#[derive(Clone, Copy, Debug, Default)]
struct Feedback {
    refaulted: u64,
    evicted: u64,
    past_refaulted: u64,
    past_evicted: u64,
}

impl Feedback {
    fn refaults(&self) -> u64 {
        self.past_refaulted + self.refaulted
    }

    fn evictions(&self) -> u64 {
        self.past_evicted + self.evicted
    }
}

/// The generations of one memory.
#[derive(Clone, Debug)]
pub struct Generations {
    setup: Setup,
    batch: u64,
    /// Pages that a reclaim should free.
    goal: u64,
    /// A page's time (its shadow entry) is `min_seq` at its last eviction, + 1; 0 if never evicted.
    pages: PageInfo,
    /// By generation and type. Newest page at the head.
    lists: [[Queue; 2]; GENERATIONS as usize],
    /// `nr_pages`: pages of each generation and type, in any list.
    sizes: [[u64; 2]; GENERATIONS as usize],
    max_seq: u64,
    min_seq: [u64; 2],
    feedback: [Feedback; 2],
    tables: Vec<TableState>,
    /// Walks so far. The first visits all tables.
    walks: u64,
    /// Tables in which the walk in progress found referenced pages.
    young_tables: Vec<u32>,
    isolated: Vec<u32>,
    /// Pages that the last fault evicted.
    evicted: Vec<u32>,
}

fn kind(flags: u16) -> usize {
    usize::from(flags & FILE != 0)
}

/// Index of a generation by its sequence number.
fn slot(seq: u64) -> usize {
    (seq % GENERATIONS) as usize
}

impl Generations {
    /// Put a page that is in no list at the head of a generation.
    fn push(&mut self, page: u32, generation: usize) {
        let flags = &mut self.pages[page];
        *flags = *flags & !(GENERATION | LIST) | (generation | generation << 2) as u16;
        let kind = kind(*flags);
        self.pages.push(&mut self.lists[generation][kind], page);
        self.sizes[generation][kind] += 1;
    }

    /// Take a page out of its list and its generation.
    fn remove(&mut self, page: u32) {
        let flags = self.pages[page];
        let list = ((flags & LIST) >> 2) as usize;
        self.pages.remove(&mut self.lists[list][kind(flags)], page);
        self.sizes[(flags & GENERATION) as usize][kind(flags)] -= 1;
    }

    /// `folio_update_gen`: the page stays in its list until the next scan.
    fn rejuvenate(&mut self, page: u32) {
        let (flags, youngest) = (&mut self.pages[page], slot(self.max_seq));
        self.sizes[(*flags & GENERATION) as usize][kind(*flags)] -= 1;
        *flags = *flags & !GENERATION | youngest as u16;
        self.sizes[youngest][kind(*flags)] += 1;
    }

    fn resident(&self) -> u64 {
        self.sizes.as_flattened().iter().sum()
    }

    fn generations(&self, kind: usize) -> u64 {
        self.max_seq - self.min_seq[kind] + 1
    }

    /// Change the oldest generation, and decay the counts (`reset_ctrl_pos`).
    fn set_min_seq(&mut self, kind: usize, seq: u64) {
        let feedback = &mut self.feedback[kind];
        *feedback = Feedback {
            past_refaulted: feedback.refaults() / 2,
            past_evicted: feedback.evictions() / 2,
            ..Feedback::default()
        };
        self.min_seq[kind] = seq;
    }
}

impl Replacement for Generations {
    type Shared = PageTables;
    type Evicted<'a> = Copied<Iter<'a, u32>>;

    fn new(setup: Setup) -> Self {
        let frames = setup.frames.max(1);
        let batch = (frames / 64).clamp(1, BATCH);
        Self {
            setup: Setup { frames, ..setup },
            batch,
            goal: batch.div_ceil(2),
            pages: PageInfo::default(),
            lists: Default::default(),
            sizes: Default::default(),
            max_seq: MIN_GENERATIONS + 1,
            min_seq: [0; 2],
            feedback: Default::default(),
            tables: Vec::new(),
            walks: 0,
            young_tables: Vec::new(),
            isolated: Vec::new(),
            evicted: Vec::new(),
        }
    }

    fn begin_file(&mut self, page: u32, _executable: bool) {
        self.pages.grow(page);
        self.pages[page] = FILE;
    }

    fn fault(
        &mut self,
        page: u32,
        tables: &PageTables,
        bits: &mut impl AccessBits,
    ) -> Self::Evicted<'_> {
        self.pages.grow(page);
        self.evicted.clear();
        if self.resident() == self.setup.frames {
            grow(&mut self.tables, tables.count(), TableState::default());
            self.reclaim(tables, bits);
        }
        let kind = kind(self.pages[page]);
        if self.pages.time(page) == self.min_seq[kind] + 1 {
            self.feedback[kind].refaulted += 1;
        }
        self.push(page, slot(self.max_seq));
        self.evicted.iter().copied()
    }

    fn release(&mut self, page: u32, resident: bool) {
        if resident {
            self.remove(page);
        }
        self.pages.forget(page);
    }

    fn discard(&mut self, page: u32, resident: bool) -> bool {
        if !resident && (page as usize) < self.pages.len() {
            self.pages.set_time(page, 0);
        }
        if resident && self.pages[page] & FILE == 0 {
            self.remove(page);
            self.pages[page] |= FILE | LAZY;
            let oldest = self.min_seq[FILES];
            let has_second_oldest = oldest + MIN_GENERATIONS < self.max_seq;
            self.push(page, slot(oldest + u64::from(has_second_oldest)));
        } else if resident {
            self.pages[page] &= !REWRITTEN;
        }
        resident
    }

    fn undo_discard(&mut self, page: u32) {
        mark_rewritten(&mut self.pages, page);
    }
}
