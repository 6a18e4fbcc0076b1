//! Reclaim of private memory under a limit: which folios are split, and which are swapped out.
//!
//! From Linux 6.18: `do_try_to_free_pages` in `mm/vmscan.c`. Priority falls from 12 to 0 until enough
//! is free. At priority `k`:
//!
//! * Folios that hold 1 / 2^k of all pages are scanned, in batches. An unreferenced folio is swapped out.
//!   Second chance in order of allocation replaces the two lists of the kernel. A folio of any size
//!   is one entry and is swapped out whole (`shrink_folio_list`), because swap has free blocks of its
//!   size. Only a partly unmapped folio is split first.
//! * The shrinker (`do_shrink_slab`, `deferred_split_scan` in `mm/huge_memory.c`) scans partly
//!   unmapped folios and new huge pages. It splits the former, and the latter if more than `max_none` of
//!   their small pages are zero ([`underused`]). It scans about 2 / 2^k of these folios, but only if
//!   that is at least 128 or all of them. It scans all at priority 1, which reclaim reaches if it has
//!   scanned about half of the pages and freed too little.
//!
//! Not modelled: fragmented swap, for which the kernel splits a huge page first; kswapd, which
//! reclaims before the limit is reached; several pages read back at once (read-ahead of swap, and
//! folios below 2 MiB from zram since 6.13).

use nearfar_hardware::list::{Links, List};

use super::HUGE;

/// `DEF_PRIORITY`.
const PRIORITY: u32 = 12;
/// `SWAP_CLUSTER_MAX`: pages scanned together, and minimum to free.
const BATCH: u64 = 32;
/// `SHRINK_BATCH`: folios that the shrinker scans together.
const SHRINK_BATCH: u64 = 128;

/// Whether a huge page with this number of zero-filled small pages is split (`thp_underused`).
/// `max_none` is `max_ptes_none`; its default of 511 splits none.
pub fn underused(zeros: u64, max_none: u64) -> bool {
    max_none < (1 << HUGE) - 1 && zeros > max_none
}

/// Pages to free to make room for `pages` in a memory of `limit` pages: at least 32, or 1/128 of `limit`
/// if that is less, as in [`linux`](crate::replacement::linux).
pub fn goal(pages: u64, limit: u64) -> u64 {
    pages.max(BATCH.min(limit / 128))
}

/// Folios, the oldest first.
#[derive(Debug, Default)]
pub struct Queue {
    links: Links,
    list: List,
    count: u64,
}

impl Queue {
    /// Add a folio, which is not in the queue.
    pub fn add(&mut self, folio: u32) {
        if self.links.len() <= folio as usize {
            self.links.resize((folio as usize + 1).next_power_of_two());
        }
        self.links.push(&mut self.list, folio);
        self.count += 1;
    }

    /// Remove a folio, which is in the queue.
    pub fn remove(&mut self, folio: u32) {
        self.links.remove(&mut self.list, folio);
        self.count -= 1;
    }

    /// Remove the oldest folio.
    pub fn pop(&mut self) -> Option<u32> {
        let folio = self.links.pop(&mut self.list)?;
        self.count -= 1;
        Some(folio)
    }

    /// Make the oldest folio the newest.
    fn rotate(&mut self) -> Option<u32> {
        let folio = self.pop()?;
        self.add(folio);
        Some(folio)
    }
}

/// The folios of a memory.
#[derive(Debug, Default)]
pub struct Lists {
    /// All folios, in the order in which they are scanned.
    pub folios: Queue,
    /// Folios that may be split (`_deferred_list`).
    pub to_split: Queue,
    /// Folios whose scan the shrinker put off (`nr_deferred`).
    deferred: u64,
}

/// The memory that is reclaimed.
pub trait Memory {
    fn lists(&mut self) -> &mut Lists;
    /// Small pages of a folio.
    fn pages(&self, folio: u32) -> u64;
    /// Small pages of all folios.
    fn held(&self) -> u64;
    /// Whether more must be freed.
    fn is_over(&self) -> bool;
    /// Whether the folio was referenced since the last call for it.
    fn take_reference(&mut self, folio: u32) -> bool;
    /// Swap out a folio, if possible.
    fn evict(&mut self, folio: u32);
    /// Take the oldest folio from [`Lists::to_split`], and split it if it is partly unmapped or
    /// [`underused`].
    fn split_next(&mut self);
}

/// Free memory until [`Memory::is_over`] is false or priority 0 is done.
pub fn reclaim(memory: &mut impl Memory) {
    for priority in (0..=PRIORITY).rev() {
        let mut scan = memory.held() >> priority;
        while scan > 0 && memory.is_over() {
            let mut batch = scan.min(BATCH);
            scan -= batch;
            while batch > 0 && memory.is_over() {
                let Some(folio) = memory.lists().folios.rotate() else { return };
                batch = batch.saturating_sub(memory.pages(folio));
                if !memory.take_reference(folio) {
                    memory.evict(folio);
                }
            }
        }
        shrink(memory, priority);
        if !memory.is_over() {
            return;
        }
    }
}

/// The shrinker at a priority (`do_shrink_slab`).
fn shrink(memory: &mut impl Memory, priority: u32) {
    let freeable = memory.lists().to_split.count;
    if freeable == 0 {
        return;
    }
    let deferred = memory.lists().deferred;
    let delta = (freeable >> priority) * 2;
    let total = ((deferred >> priority) + delta).min(2 * freeable);
    let mut scan = total;
    while scan >= SHRINK_BATCH || scan >= freeable {
        let batch = scan.min(SHRINK_BATCH);
        (0..batch).for_each(|_| memory.split_next());
        scan -= batch;
    }
    let next_deferred = (deferred + delta).saturating_sub(total - scan);
    memory.lists().deferred = next_deferred.min(2 * freeable);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_huge_page_is_underused_above_the_limit() {
        assert!(underused(410, 409) && !underused(409, 409) && underused(1, 0));
        // With the kernel's default of 511, no page is split.
        assert!(!underused(512, 511));
    }

    /// Folios of different sizes: pages, and whether they were referenced.
    #[derive(Default)]
    struct Sizes {
        lists: Lists,
        folios: Vec<(u64, bool)>,
        over: u64,
        split: u32,
    }

    impl Sizes {
        fn new(folios: Vec<(u64, bool)>, over: u64) -> Self {
            let mut sizes = Self { folios, over, ..Self::default() };
            (0..sizes.folios.len() as u32).for_each(|folio| sizes.lists.folios.add(folio));
            sizes
        }
    }

    impl Memory for Sizes {
        fn lists(&mut self) -> &mut Lists {
            &mut self.lists
        }
        fn pages(&self, folio: u32) -> u64 {
            self.folios[folio as usize].0
        }
        fn held(&self) -> u64 {
            self.folios.iter().map(|(pages, _)| pages).sum()
        }
        fn is_over(&self) -> bool {
            self.over > 0
        }
        fn take_reference(&mut self, folio: u32) -> bool {
            std::mem::take(&mut self.folios[folio as usize].1)
        }
        fn evict(&mut self, folio: u32) {
            self.lists.folios.remove(folio);
            self.over = self.over.saturating_sub(self.folios[folio as usize].0);
        }
        fn split_next(&mut self) {
            self.split += u32::from(self.lists.to_split.pop().is_some());
        }
    }

    #[test]
    fn folios_get_a_second_chance() {
        let mut sizes = Sizes::new(vec![(1, true), (512, false), (1, false), (1, true)], 513);
        reclaim(&mut sizes);
        // Folios 1 and 2 were evicted; 3 is next.
        assert_eq!((sizes.lists.folios.count, sizes.over), (2, 0));
        assert_eq!(sizes.lists.folios.rotate(), Some(3));
        // A goal beyond all pages evicts every folio.
        sizes.over = 100;
        reclaim(&mut sizes);
        assert_eq!((sizes.lists.folios.count, sizes.over), (0, 98));
    }

    #[test]
    fn the_shrinker_splits_folios_if_reclaim_finds_no_unreferenced_page() {
        // 6000 small folios, of which the first `referenced` are referenced; eight may be split.
        let split = |referenced: usize| {
            let pages = (0..6000).map(|page| (1, page < referenced)).collect();
            let mut sizes = Sizes::new(pages, 32);
            (0..8).for_each(|folio| sizes.lists.to_split.add(folio));
            reclaim(&mut sizes);
            sizes.split
        };
        // Priorities 12 to 2 scan 2993 pages.
        assert_eq!((split(2900), split(3100), split(6000)), (0, 8, 8));
        // Of many folios, each priority splits a part.
        let mut sizes = Sizes::new(vec![(1, true); 100_000], 32);
        (0..3000).for_each(|folio| sizes.lists.to_split.add(folio));
        (0..=PRIORITY).rev().take(9).for_each(|priority| shrink(&mut sizes, priority));
        // 2 x 93 and deferred folios at priority 5, 2 x 187 at priority 4.
        assert!((256..=640).contains(&sizes.split), "{}", sizes.split);
    }
}
