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

use nearfar_hardware::list::{Links, List};
use nearfar_trace::hash::PageMap;

use super::linux::{LAZY, MAX_SWAPPINESS, REWRITTEN, rewrite};
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

/// log2 of the pages of a page table.
const TABLE: u32 = 9;
/// The same of a part of one that is kept as a whole.
const PART: u32 = 6;

/// A table is walked again if one page of so many was referenced: as many entries as a cache line has.
const SPARSE: u32 = 8;

/// Types of pages.
const ANON: usize = 0;
const FILES: usize = 1;

/// In a page's word: the generation that it is of, by its number modulo [`GENERATIONS`].
const GENERATION: u32 = 3;
/// The one in whose list it is, times 4.
const LIST: u32 = 3 << 2;
/// It is in a list of files.
const FILE: u32 = 1 << 4;
// Bits 5 and 6 are [`LAZY`] and [`REWRITTEN`].
/// Its place is known to the page tables.
const PLACED: u32 = 1 << 7;
/// It is being looked at, in no list.
const ISOLATED: u32 = 1 << 8;
/// It was found referenced while another was looked at: `PG_referenced`.
const REFERENCED: u32 = 1 << 9;

/// A page table with a page that began.
#[derive(Clone, Debug, Default)]
struct Table {
    /// Pages in it that were ever loaded.
    placed: u32,
    /// Of them, those that the walk in progress found referenced.
    young: u32,
    /// The walk that looks into it, by how many there were before.
    next_walk: u64,
    /// Its parts, each an index + 1; 0 where no page of the part was loaded.
    parts: [u32; 1 << (TABLE - PART)],
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
    links: Links,
    /// By generation and type; the newest page is the head.
    lists: [[List; 2]; GENERATIONS as usize],
    /// Pages that are of it, in whichever list: `nr_pages`.
    sizes: [[u64; 2]; GENERATIONS as usize],
    max_seq: u64,
    min_seq: [u64; 2],
    feedback: [Feedback; 2],
    /// The oldest generation when a page was last evicted, + 1; 0 if never: the shadow entry.
    evicted_from: Vec<u64>,
    /// Where each page is: the index of its table, times 2^[`TABLE`], and its place there.
    places: Vec<u64>,
    table_at: PageMap<u32>,
    tables: Vec<Table>,
    /// Pages at the places of parts of tables, each + 1; 0 where none was loaded.
    parts: Vec<[u32; 1 << PART]>,
    /// Walks so far; the first looks into all tables.
    walks: u64,
    /// Tables in which a walk found pages referenced.
    found: Vec<u32>,
    isolated: Vec<u32>,
    /// Pages that the last fault evicted.
    evicted: Vec<u32>,
}

/// The type of the list that a page with this word is in.
fn kind(word: u32) -> usize {
    usize::from(word & FILE != 0)
}

fn of(seq: u64) -> usize {
    (seq % GENERATIONS) as usize
}

impl Generations {
    /// Put a page that is in no list at the head of a generation.
    fn push(&mut self, page: u32, generation: usize) {
        let word = &mut self.links[page];
        *word = *word & !(GENERATION | LIST) | (generation | generation << 2) as u32;
        let kind = kind(*word);
        self.links.push(&mut self.lists[generation][kind], page);
        self.sizes[generation][kind] += 1;
    }

    /// Take a page out of its list and its generation.
    fn remove(&mut self, page: u32) {
        let word = self.links[page];
        let list = ((word & LIST) >> 2) as usize;
        self.links.remove(&mut self.lists[list][kind(word)], page);
        self.sizes[(word & GENERATION) as usize][kind(word)] -= 1;
    }

    /// `folio_update_gen`: it stays in its list until that is looked at.
    fn rejuvenate(&mut self, page: u32) {
        let (word, youngest) = (&mut self.links[page], of(self.max_seq));
        self.sizes[(*word & GENERATION) as usize][kind(*word)] -= 1;
        *word = *word & !GENERATION | youngest as u32;
        self.sizes[youngest][kind(*word)] += 1;
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
                && self.lists[of(*seq)][kind].oldest().is_none()
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
            for seq in self.min_seq[kind]..=self.max_seq {
                let size = self.sizes[of(seq)][kind];
                total += size;
                if seq == self.max_seq {
                    young += size;
                } else if seq + KEPT_GENERATIONS == self.max_seq {
                    old += size;
                }
            }
        }
        let uneven = young * KEPT_GENERATIONS > total || old * (KEPT_GENERATIONS + 2) < total;
        (oldest + KEPT_GENERATIONS == self.max_seq && uneven, total)
    }

    /// `try_to_inc_max_seq`: walk the page tables and begin a generation.
    fn age(&mut self, swappiness: u64, bits: &mut impl AccessBits) {
        let first = usize::from(swappiness == 0);
        for lists in self.lists {
            for list in &lists[first..] {
                let mut next = list.oldest();
                while let Some(page) = next {
                    next = self.links.newer(page);
                    if !bits.test(page) {
                        continue;
                    }
                    let index = (self.places[page as usize] >> TABLE) as u32;
                    let table = &mut self.tables[index as usize];
                    if self.walks == 0 || table.next_walk == self.walks {
                        if table.young == 0 {
                            self.found.push(index);
                        }
                        table.young += 1;
                        bits.clear(page);
                        self.rejuvenate(page);
                    }
                }
            }
        }
        self.walks += 1;
        for index in self.found.drain(..) {
            let table = &mut self.tables[index as usize];
            if std::mem::take(&mut table.young) * SPARSE >= table.placed {
                table.next_walk = self.walks;
            }
        }
        if self.generations(ANON) == GENERATIONS {
            // Only where they are left alone: what is oldest becomes youngest.
            self.set_min_seq(ANON, self.min_seq[ANON] + 1);
        }
        self.max_seq += 1;
    }

    /// `lru_gen_look_around`.
    fn look_around(&mut self, page: u32, bits: &mut impl AccessBits) {
        bits.clear(page);
        let place = self.places[page as usize];
        let (table, within) = ((place >> TABLE) as usize, place % (1 << TABLE));
        let from = within.saturating_sub(BATCH / 2).min((1 << TABLE) - BATCH);
        let of_file = self.links[page] & FILE != 0;
        let (mut young, mut total) = (1, 0);
        for place in from..from + BATCH {
            let part = self.tables[table].parts[(place >> PART) as usize];
            let Some(part) = part.checked_sub(1) else { continue };
            let near = self.parts[part as usize][(place % (1 << PART)) as usize];
            let Some(near) = near.checked_sub(1) else { continue };
            total += 1;
            if !bits.test(near) {
                continue;
            }
            let word = self.links[near];
            if of_file && word & FILE == 0 {
                continue;
            }
            bits.clear(near);
            young += 1;
            if word & ISOLATED != 0 {
                self.links[near] |= REFERENCED;
            } else if (word & GENERATION) as usize != of(self.max_seq) {
                self.remove(near);
                self.push(near, of(self.max_seq));
            }
        }
        if young * SPARSE >= total {
            self.tables[table].next_walk = self.walks;
        }
    }

    /// `scan_folios`: take up to a batch of the oldest pages; answers how many were looked at.
    fn isolate(&mut self, kind: usize) -> u64 {
        if self.generations(kind) == KEPT_GENERATIONS {
            return 0;
        }
        let (oldest, most) = (of(self.min_seq[kind]), self.batch * LOOKS);
        let mut scanned = 0;
        while let Some(page) = self.lists[oldest][kind].oldest() {
            scanned += 1;
            self.remove(page);
            let generation = (self.links[page] & GENERATION) as usize;
            if generation == oldest {
                self.links[page] |= ISOLATED;
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
    fn evict(&mut self, swappiness: u64, bits: &mut impl AccessBits) -> u64 {
        let kind = match swappiness {
            0 => FILES,
            _ if self.min_seq[ANON] < self.min_seq[FILES] => ANON,
            1 => FILES,
            MAX_SWAPPINESS => ANON,
            _ => self.type_to_scan(swappiness),
        };
        let mut scanned = self.isolate(kind);
        if scanned == 0 && swappiness > 0 {
            scanned = self.isolate(1 - kind);
        }
        scanned += u64::from(self.drop_empty(swappiness));
        if self.generations(usize::from(swappiness == 0)) == KEPT_GENERATIONS {
            scanned = 0;
        }
        let mut isolated = std::mem::take(&mut self.isolated);
        isolated.retain(|&page| !self.shrink(page, bits));
        for &page in &isolated {
            self.links[page] &= !(ISOLATED | REFERENCED);
            self.push(page, of(self.max_seq));
        }
        isolated.clear();
        self.isolated = isolated;
        scanned
    }

    /// `shrink_folio_list` for one page; answers whether it is evicted.
    fn shrink(&mut self, page: u32, bits: &mut impl AccessBits) -> bool {
        let word = self.links[page];
        if word & REFERENCED != 0 {
            return false;
        }
        if bits.test(page) {
            self.look_around(page, bits);
            return false;
        }
        if word & REWRITTEN != 0 {
            self.links[page] &= !(FILE | LAZY | REWRITTEN);
            return false;
        }
        if word & LAZY != 0 {
            self.links[page] = PLACED;
        } else {
            self.links[page] &= FILE | PLACED;
            let kind = kind(word);
            self.feedback[kind].evicted += 1;
            self.evicted_from[page as usize] = self.min_seq[kind] + 1;
        }
        self.evicted.push(page);
        true
    }

    /// Evict at least one page, half a batch if the generations give it.
    fn reclaim(&mut self, bits: &mut impl AccessBits) {
        let files: u64 = self.sizes.iter().map(|sizes| sizes[FILES]).sum();
        let least = u64::from(files == 0);
        let mut swappiness = self.setup.swappiness.max(least);
        // Accessed bits are only cleared here, and each round ages until pages are old: it ends.
        loop {
            let mut priority = PRIORITY;
            loop {
                let most = self.shrink_all(priority, swappiness, bits);
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
    fn shrink_all(&mut self, priority: u32, swappiness: u64, bits: &mut impl AccessBits) -> u32 {
        let mut scanned = 0;
        loop {
            let (short, total) = self.is_short_of_old(swappiness);
            if short && priority < PRIORITY {
                self.age(swappiness, bits);
                return PRIORITY;
            }
            let due = total >> priority;
            if due == 0 {
                return if short { PRIORITY } else { total.max(1).ilog2() };
            }
            let now = self.evict(swappiness, bits);
            scanned += now;
            if now == 0 || scanned >= due {
                return PRIORITY;
            }
        }
    }

    /// A page's table, and the entry of its place there.
    fn place(&mut self, page: u32) -> (&mut Table, &mut u32) {
        let place = self.places[page as usize];
        let table = &mut self.tables[(place >> TABLE) as usize];
        let part = &mut table.parts[(place % (1 << TABLE) >> PART) as usize];
        if *part == 0 {
            self.parts.push([0; 1 << PART]);
            *part = self.parts.len() as u32;
        }
        let entry = &mut self.parts[*part as usize - 1][(place % (1 << PART)) as usize];
        (table, entry)
    }

    fn grow(&mut self, page: u32) {
        if self.links.len() <= page as usize {
            self.links.resize(page as usize + 1);
            self.evicted_from.resize(page as usize + 1, 0);
            self.places.resize(page as usize + 1, 0);
        }
    }
}

impl Replacement for Generations {
    type Evicted<'a> = Copied<Iter<'a, u32>>;

    fn new(setup: Setup) -> Self {
        let frames = setup.frames.max(1);
        let batch = (frames / 64).clamp(1, BATCH);
        Self {
            setup: Setup { frames, ..setup },
            batch,
            goal: batch.div_ceil(2),
            links: Links::default(),
            lists: Default::default(),
            sizes: Default::default(),
            max_seq: KEPT_GENERATIONS + 1,
            min_seq: [0; 2],
            feedback: Default::default(),
            evicted_from: Vec::new(),
            places: Vec::new(),
            table_at: PageMap::default(),
            tables: Vec::new(),
            parts: Vec::new(),
            walks: 0,
            found: Vec::new(),
            isolated: Vec::new(),
            evicted: Vec::new(),
        }
    }

    fn begin(&mut self, page: u32, number: u64) {
        self.grow(page);
        let next = self.tables.len() as u32;
        let table = *self.table_at.entry(number >> TABLE).or_insert(next);
        if table == next {
            self.tables.push(Table::default());
        }
        self.places[page as usize] = u64::from(table) << TABLE | number % (1 << TABLE);
    }

    fn begin_file(&mut self, page: u32, _executable: bool) {
        self.links[page] = FILE;
    }

    fn fault(&mut self, page: u32, bits: &mut impl AccessBits) -> Self::Evicted<'_> {
        self.evicted.clear();
        if self.resident() == self.setup.frames {
            self.reclaim(bits);
        }
        let kind = kind(self.links[page]);
        if self.evicted_from[page as usize] == self.min_seq[kind] + 1 {
            self.feedback[kind].refaulted += 1;
        }
        if self.links[page] & PLACED == 0 {
            self.links[page] |= PLACED;
            let (table, place) = self.place(page);
            table.placed += 1;
            *place = page + 1;
        }
        self.push(page, of(self.max_seq));
        self.evicted.iter().copied()
    }

    fn release(&mut self, page: u32, resident: bool) {
        if resident {
            self.remove(page);
        }
        if self.places.len() <= page as usize {
            return;
        }
        if self.links[page] & PLACED != 0 {
            let (table, place) = self.place(page);
            table.placed -= 1;
            if *place == page + 1 {
                *place = 0;
            }
        }
        self.links[page] = 0;
        self.evicted_from[page as usize] = 0;
    }

    fn discard(&mut self, page: u32, resident: bool) -> bool {
        if let Some(shadow) = self.evicted_from.get_mut(page as usize) {
            *shadow = 0;
        }
        if resident && self.links[page] & FILE == 0 {
            self.remove(page);
            self.links[page] |= FILE | LAZY;
            let oldest = self.min_seq[FILES];
            let spare = oldest + KEPT_GENERATIONS < self.max_seq;
            self.push(page, of(oldest + u64::from(spare)));
        } else if resident {
            self.links[page] &= !REWRITTEN;
        }
        resident
    }

    fn keep(&mut self, page: u32) {
        rewrite(&mut self.links, page);
    }
}
