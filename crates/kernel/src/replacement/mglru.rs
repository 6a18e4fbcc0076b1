//! Linux's multi-generational LRU under a memory limit, as `mm/vmscan.c`, `mm/workingset.c` and
//! `include/linux/mm_inline.h` of 6.12 have it on x86-64 with all of it enabled
//! (`/sys/kernel/mm/lru_gen/enabled` is 0x0007).
//!
//! Pages are of up to four generations: anonymous pages and pages of files from `min_seq` of their
//! type, the oldest, to `max_seq`, the youngest, which both share. A page that is loaded enters the
//! youngest, whether it was there before or not. The two youngest are never evicted from.
//!
//! When no frame is left, reclaim (`do_try_to_free_pages`) frees at least 32 pages
//! (`SWAP_CLUSTER_MAX`). It goes over the memory with a falling priority, from 12 to 0. At priority
//! `k` it looks at all pages / 2^k or more (`try_to_shrink_lruvec`), in batches (`evict_folios`), and
//! ages once in place of that where the oldest pages are few (`should_run_aging`): when only two
//! generations are left, or three of which the youngest has over a half or the oldest less than a
//! quarter. At priority 12 it does not age.
//!
//! * **Aging** (`try_to_inc_max_seq`) walks the page tables, clears accessed bits, makes their pages
//!   of the youngest generation, and begins another. It passes over page tables of which, since the
//!   walk before, neither that walk (`walk_pte_range`) nor an eviction (`lru_gen_look_around`) found an
//!   eighth of the pages it looked at referenced: the kernel's Bloom filters, here without their rare
//!   mistakes.
//! * **A batch** is up to 64 pages from the tail of the oldest generation of one type, at most 4096
//!   looked at (`scan_folios`). Those that a walk made young go to the head of their generation.
//!   Of the others, one that was referenced goes to the head of the youngest generation, and so do
//!   the pages referenced among the 64 around it in its page table (`lru_gen_look_around`). Any other
//!   is evicted.
//! * **Which type** (`isolate_folios`): the one with the older generation; else files with swappiness 1,
//!   anonymous pages with 200, only files with 0. In between (`get_type_to_scan`) files, unless of
//!   their evicted pages so many more return to the generation that they were evicted from that it
//!   outweighs 200 - swappiness : swappiness. Counts are of the oldest generation, with half of what
//!   they were for the ones before (`reset_ctrl_pos`). A type of which nothing can be had leaves it
//!   to the other. With swappiness 0 and no page of a file to be had, the kernel ends the program;
//!   here reclaim goes on with swappiness 1.
//! * **Tiers** protect nothing here, as in the kernel for what is used through page tables: every such
//!   page counts for the first tier when it is evicted (`isolate_folio`), so no tier above it is ever
//!   seen to return.
//!
//! A page that is freed leaves its generation, and what was known of it is forgotten. One that is
//! discarded (`MADV_FREE`) goes among the pages of files, not referenced, to one of the two oldest
//! generations, and is evicted from there without a trace; if it was rewritten by then, it becomes a
//! young anonymous page.
//!
//! Batches are those of the kernel from 4096 frames (16 MiB of 4 KiB pages) up; below, 1/64 of the
//! frames, and half as many are freed at least, so that they stay a small part of memory where a
//! small trace stands for a large program.
//!
//! A trace has no page tables. A walk here sees the accessed bits of resident pages, where each lay in
//! its address space when it began, in tables of 512 pages whatever their size. So
//!
//! * pages of a table that were never touched do not count as not referenced, nor do the bounds of a
//!   mapping limit the 64 pages; a page that is moved, or shared by a fork, stays where it began;
//! * the kernel walks all tables of a process that is new since the last walk, and none of one that no
//!   processor was switched to since (`lru_gen_use_mm`); here only the first walk is of all, and every
//!   process counts as switched to. One that has a processor for itself is hardly ever walked, and
//!   may fault some times as often;
//! * a page of a file that is mapped nowhere, or read by a system call, has an accessed bit like
//!   others. In the kernel the number of such calls makes its tier.
//!
//! Compared with a running kernel, with anonymous pages alone, in `bench/cases/mglru_guest.py`. Left
//! out, as a trace has no such thing: kswapd and watermarks, several reclaimers and control
//! groups, huge pages, read-ahead, `MADV_RANDOM` and `MADV_SEQUENTIAL` (pages then enter an old
//! generation), `min_ttl_ms`, write-back of files, and that up to 30 pages found around another wait
//! for the next reclaim to become young. Do not use it for aarch64 processors that do not set accessed
//! bits (the kernel does not walk there), nor for kernels after 6.13, which age whenever three
//! generations are left.

use std::iter::Copied;
use std::slice::Iter;

use nearfar_hardware::table::grow;

use super::linux::{LAZY, MAX_SWAPPINESS, REWRITTEN, rewrite};
use super::queue::{Pages, Queue};
use super::tables::{AROUND, PageTables};
use super::{AccessBits, Replacement, Setup};

/// What the policy is.
pub const WHAT: &str = "Linux's multi-generational LRU (lru_gen), as in 6.12 on x86-64";

/// `MAX_NR_GENS` and `MIN_NR_GENS`.
const GENERATIONS: u64 = 4;
const KEPT_GENERATIONS: u64 = 2;

/// `MIN_LRU_BATCH`: pages evicted together, looked around, and returned before that counts.
const BATCH: u64 = 64;

/// `MAX_LRU_BATCH / MIN_LRU_BATCH`: a batch looks at so many times as many pages.
const LOOKS: u64 = 64;

/// `DEF_PRIORITY`: reclaim begins by looking at 1 / 2^12 of the pages.
const PRIORITY: u32 = 12;

/// A table is walked again if one page of so many was referenced: as many entries as a cache line has.
const SPARSE: u32 = 8;

/// Types of pages.
const ANON: usize = 0;
const FILES: usize = 1;

/// In a page's flags: the generation that it is of, by its number modulo [`GENERATIONS`].
const GENERATION: u16 = 3;
/// The one in whose list it is, times 4.
const LIST: u16 = 3 << 2;
/// It is in a list of files.
const FILE: u16 = 1 << 4;
// Bits 5 and 6 are [`LAZY`] and [`REWRITTEN`].
/// It is being looked at, in no list.
const ISOLATED: u16 = 1 << 8;
/// It was found referenced while another was looked at: `PG_referenced`.
const REFERENCED: u16 = 1 << 9;

/// What walks know of a page table.
#[derive(Clone, Copy, Debug, Default)]
struct Walked {
    /// Pages that the walk in progress found referenced.
    young: u32,
    /// The walk that looks into it, by how many there were before.
    next: u64,
}

/// What came of evictions from the oldest generation, and the average of those before.
#[derive(Clone, Copy, Debug, Default)]
struct Feedback {
    refaulted: u64,
    evicted: u64,
    past_refaulted: u64,
    past_evicted: u64,
}

/// The generations over a fixed number of frames.
#[derive(Clone, Debug)]
pub struct Generations {
    setup: Setup,
    batch: u64,
    goal: u64,
    /// The time of a page is the oldest generation when it was last evicted, + 1; 0 if never: the shadow entry.
    pages: Pages,
    /// By generation and type; the newest page is the head.
    lists: [[Queue; 2]; GENERATIONS as usize],
    /// Pages that are of it, in whichever list: `nr_pages`.
    sizes: [[u64; 2]; GENERATIONS as usize],
    max_seq: u64,
    min_seq: [u64; 2],
    feedback: [Feedback; 2],
    /// By page table.
    tables: Vec<Walked>,
    /// Walks so far; the first looks into all tables.
    walks: u64,
    /// Tables in which a walk found pages referenced.
    found: Vec<u32>,
    isolated: Vec<u32>,
    /// Pages that the last fault evicted.
    evicted: Vec<u32>,
}

/// The type of the list that a page with these flags is in.
fn kind(flags: u16) -> usize {
    usize::from(flags & FILE != 0)
}

fn of(seq: u64) -> usize {
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

    /// `folio_update_gen`: it stays in its list until that is looked at.
    fn rejuvenate(&mut self, page: u32) {
        let (flags, youngest) = (&mut self.pages[page], of(self.max_seq));
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

    /// `reset_ctrl_pos` and a new oldest generation.
    fn set_min_seq(&mut self, kind: usize, seq: u64) {
        let known = &mut self.feedback[kind];
        *known = Feedback {
            past_refaulted: (known.past_refaulted + known.refaulted) / 2,
            past_evicted: (known.past_evicted + known.evicted) / 2,
            ..Feedback::default()
        };
        self.min_seq[kind] = seq;
    }

    /// `try_to_inc_min_seq`.
    fn drop_empty(&mut self, swappiness: u64) -> bool {
        let first = usize::from(swappiness == 0);
        let mut seqs = self.min_seq;
        for (kind, seq) in seqs.iter_mut().enumerate().skip(first) {
            while *seq + KEPT_GENERATIONS <= self.max_seq
                && self.lists[of(*seq)][kind].is_empty()
            {
                *seq += 1;
            }
        }
        if swappiness > 0 {
            seqs[ANON] = seqs[ANON].min(seqs[FILES]);
            seqs[FILES] = seqs[ANON].max(self.min_seq[FILES]);
        }
        let mut dropped = false;
        for (kind, &seq) in seqs.iter().enumerate() {
            if seq != self.min_seq[kind] {
                self.set_min_seq(kind, seq);
                dropped = true;
            }
        }
        dropped
    }

    /// `should_run_aging`, and how many pages there are to look at.
    fn is_short_of_old(&self, swappiness: u64) -> (bool, u64) {
        let first = usize::from(swappiness == 0);
        let oldest = self.min_seq[first];
        if oldest + KEPT_GENERATIONS > self.max_seq {
            return (true, 0);
        }
        let (mut old, mut young, mut total) = (0, 0, 0);
        for kind in first..2 {
            let size = |seq: u64| self.sizes[of(seq)][kind];
            total += (self.min_seq[kind]..=self.max_seq).map(size).sum::<u64>();
            young += size(self.max_seq);
            if self.min_seq[kind] + KEPT_GENERATIONS <= self.max_seq {
                old += size(self.max_seq - KEPT_GENERATIONS);
            }
        }
        let uneven = young * KEPT_GENERATIONS > total || old * (KEPT_GENERATIONS + 2) < total;
        (oldest + KEPT_GENERATIONS == self.max_seq && uneven, total)
    }

    /// `walk_pte_range`, for one page, which is referenced.
    #[inline]
    fn walk(&mut self, page: u32, tables: &PageTables, bits: &mut impl AccessBits) {
        let index = tables.table(page);
        let table = &mut self.tables[index as usize];
        if self.walks == 0 || table.next == self.walks {
            if table.young == 0 {
                self.found.push(index);
            }
            table.young += 1;
            bits.clear(page);
            self.rejuvenate(page);
        }
    }

    /// `try_to_inc_max_seq`: walk the page tables and begin a generation.
    fn age(&mut self, swappiness: u64, tables: &PageTables, bits: &mut impl AccessBits) {
        let first = usize::from(swappiness == 0);
        for generation in 0..GENERATIONS as usize {
            for kind in first..2 {
                for place in 0..self.lists[generation][kind].places() {
                    let list = &self.lists[generation][kind];
                    if let Some(page) = self.pages.expect_after(list, place, bits) {
                        tables.expect(page);
                    }
                    if let Some(page) = list.at(place).filter(|&page| bits.test(page)) {
                        self.walk(page, tables, bits);
                    }
                }
            }
        }
        self.walks += 1;
        for index in self.found.drain(..) {
            let table = &mut self.tables[index as usize];
            if std::mem::take(&mut table.young) * SPARSE >= tables.loaded(index) {
                table.next = self.walks;
            }
        }
        if self.generations(ANON) == GENERATIONS {
            // Only where they are left alone: what is oldest becomes youngest.
            self.set_min_seq(ANON, self.min_seq[ANON] + 1);
        }
        self.max_seq += 1;
    }

    /// `lru_gen_look_around`.
    fn look_around(&mut self, page: u32, tables: &PageTables, bits: &mut impl AccessBits) {
        bits.clear(page);
        let of_file = self.pages[page] & FILE != 0;
        let (mut around, mut referenced) = ([0; AROUND], [0; AROUND]);
        let total = tables.around(page, &mut around);
        // No branch depends on a bit, and all are asked for before anything depends on one: neighbours here
        // are far apart elsewhere.
        let mut count = 0;
        for &near in &around[..total] {
            referenced[count] = near;
            count += usize::from(bits.test(near));
        }
        let referenced = &referenced[..count];
        referenced.iter().for_each(|&near| self.pages.prefetch(near));
        let mut young = 1;
        for &near in referenced {
            let flags = self.pages[near];
            if of_file && flags & FILE == 0 {
                continue;
            }
            bits.clear(near);
            young += 1;
            if flags & ISOLATED != 0 {
                self.pages[near] |= REFERENCED;
            } else if (flags & GENERATION) as usize != of(self.max_seq) {
                self.remove(near);
                self.push(near, of(self.max_seq));
            }
        }
        if young * SPARSE as usize >= total {
            self.tables[tables.table(page) as usize].next = self.walks;
        }
    }

    /// `scan_folios`: take up to a batch of the oldest pages; answers how many were looked at.
    fn isolate(&mut self, kind: usize, bits: &impl AccessBits) -> u64 {
        if self.generations(kind) == KEPT_GENERATIONS {
            return 0;
        }
        let (oldest, most) = (of(self.min_seq[kind]), self.batch * LOOKS);
        let mut scanned = 0;
        while let Some(page) = self.pages.pop(&mut self.lists[oldest][kind], bits) {
            scanned += 1;
            let generation = (self.pages[page] & GENERATION) as usize;
            self.sizes[generation][kind] -= 1;
            if generation == oldest {
                self.pages[page] |= ISOLATED;
                self.isolated.push(page);
            } else {
                self.push(page, generation);
            }
            if scanned == most || self.isolated.len() as u64 == self.batch {
                break;
            }
        }
        if self.isolated.is_empty() && scanned < most { 0 } else { scanned }
    }

    /// `get_type_to_scan`: the first tiers of the two types.
    fn type_to_scan(&self, swappiness: u64) -> usize {
        let [anon, files] = self.feedback.map(|known| {
            (known.past_refaulted + known.refaulted, known.past_evicted + known.evicted)
        });
        let returned = u128::from(files.0 * swappiness) * u128::from(anon.1 + self.batch);
        let allowed = u128::from((anon.0 + 1) * (MAX_SWAPPINESS - swappiness)) * u128::from(files.1);
        usize::from(files.0 < self.batch || returned <= allowed)
    }

    /// `evict_folios`: answers how many pages were looked at, 0 if that gets no further.
    fn evict(&mut self, swappiness: u64, tables: &PageTables, bits: &mut impl AccessBits) -> u64 {
        let kind = match swappiness {
            0 => FILES,
            _ if self.min_seq[ANON] < self.min_seq[FILES] => ANON,
            1 => FILES,
            MAX_SWAPPINESS => ANON,
            _ => self.type_to_scan(swappiness),
        };
        let mut scanned = self.isolate(kind, bits);
        if scanned == 0 && swappiness > 0 {
            scanned = self.isolate(1 - kind, bits);
        }
        scanned += u64::from(self.drop_empty(swappiness));
        if self.generations(usize::from(swappiness == 0)) == KEPT_GENERATIONS {
            scanned = 0;
        }
        let mut isolated = std::mem::take(&mut self.isolated);
        isolated.retain(|&page| !self.shrink(page, tables, bits));
        for &page in &isolated {
            self.pages[page] &= !(ISOLATED | REFERENCED);
            self.push(page, of(self.max_seq));
        }
        isolated.clear();
        self.isolated = isolated;
        scanned
    }

    /// `shrink_folio_list` for one page; answers whether it is evicted.
    fn shrink(&mut self, page: u32, tables: &PageTables, bits: &mut impl AccessBits) -> bool {
        let flags = self.pages[page];
        if flags & REFERENCED != 0 {
            return false;
        }
        if bits.test(page) {
            self.look_around(page, tables, bits);
            return false;
        }
        if flags & REWRITTEN != 0 {
            self.pages[page] &= !(FILE | LAZY | REWRITTEN);
            return false;
        }
        if flags & LAZY != 0 {
            self.pages.forget(page);
        } else {
            self.pages[page] &= FILE;
            let kind = kind(flags);
            self.feedback[kind].evicted += 1;
            self.pages.set_time(page, self.min_seq[kind] + 1);
        }
        self.evicted.push(page);
        true
    }

    /// Evict at least one page, half a batch if the generations give it.
    fn reclaim(&mut self, tables: &PageTables, bits: &mut impl AccessBits) {
        let files: u64 = self.sizes.iter().map(|sizes| sizes[FILES]).sum();
        let least = u64::from(files == 0);
        let mut swappiness = self.setup.swappiness.max(least);
        // Accessed bits are only cleared here, and each round ages until pages are old: it ends.
        loop {
            let mut priority = PRIORITY;
            loop {
                let most = self.shrink_all(priority, swappiness, tables, bits);
                if self.evicted.len() as u64 >= self.goal || priority == 0 {
                    break;
                }
                priority = most.min(priority - 1);
            }
            if !self.evicted.is_empty() {
                return;
            }
            swappiness = swappiness.max(1);
        }
    }

    /// `try_to_shrink_lruvec` at one priority; answers the highest at which the next does anything.
    fn shrink_all(&mut self, priority: u32, swappiness: u64, tables: &PageTables, bits: &mut impl AccessBits) -> u32 {
        let mut scanned = 0;
        loop {
            let (short, total) = self.is_short_of_old(swappiness);
            if short && priority < PRIORITY {
                self.age(swappiness, tables, bits);
                return PRIORITY;
            }
            let due = total >> priority;
            if due == 0 {
                return if short { PRIORITY } else { total.max(1).ilog2() };
            }
            let now = self.evict(swappiness, tables, bits);
            scanned += now;
            if now == 0 || scanned >= due {
                return PRIORITY;
            }
        }
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
            pages: Pages::default(),
            lists: Default::default(),
            sizes: Default::default(),
            max_seq: KEPT_GENERATIONS + 1,
            min_seq: [0; 2],
            feedback: Default::default(),
            tables: Vec::new(),
            walks: 0,
            found: Vec::new(),
            isolated: Vec::new(),
            evicted: Vec::new(),
        }
    }

    fn begin_file(&mut self, page: u32, _executable: bool) {
        self.pages.grow(page);
        self.pages[page] = FILE;
    }

    const EXPECTS: bool = true;

    fn expect(&self, page: u32) {
        self.pages.prefetch(page);
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
            grow(&mut self.tables, tables.count(), Walked::default());
            self.reclaim(tables, bits);
        }
        let kind = kind(self.pages[page]);
        if self.pages.time(page) == self.min_seq[kind] + 1 {
            self.feedback[kind].refaulted += 1;
        }
        self.push(page, of(self.max_seq));
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
            let spare = oldest + KEPT_GENERATIONS < self.max_seq;
            self.push(page, of(oldest + u64::from(spare)));
        } else if resident {
            self.pages[page] &= !REWRITTEN;
        }
        resident
    }

    fn keep(&mut self, page: u32) {
        rewrite(&mut self.pages, page);
    }
}
