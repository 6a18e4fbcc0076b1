//! Reclaim of private memory under a limit: what is split, and what is swapped out.
//!
//! From Linux 6.18. First the shrinker (`deferred_split_scan` in `mm/huge_memory.c`) splits the
//! folios of which a part was unmapped, and the huge pages of which most is zero ([`underused`]):
//! their empty parts are freed. The kernel asks it in each round of reclaim for a part of its queue
//! that grows as reclaim gets harder (`do_shrink_slab`); here it is asked first, for all of it.
//!
//! Then folios are swapped out, those that were not referenced first: second chance in the order of
//! allocation ([`Queue`]), for the two lists of the kernel. A folio is one entry, whatever its size,
//! and leaves whole (`shrink_folio_list`), because swap has free blocks of its size.
//!
//! Not modelled: swap without such blocks, where the kernel splits a huge page first; kswapd, which
//! reclaims before the limit is reached; several pages read back at once (read-ahead of swap, and
//! folios below 2 MiB from zram since 6.13).

use nearfar_hardware::list::{Links, List};

use super::HUGE;

/// Whether a huge page of which so many small pages are zero is split (`thp_underused`).
pub fn underused(zeros: u64, max_none: u64) -> bool {
    max_none < (1 << HUGE) - 1 && zeros > max_none
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

/// The memory that is reclaimed.
pub trait Memory {
    /// Its folios, in the order in which they are considered.
    fn folios(&mut self) -> &mut Queue;
    /// Whether more must be freed.
    fn is_over(&self) -> bool;
    /// Whether the folio was referenced since the last call for it.
    fn take_reference(&mut self, folio: u32) -> bool;
    /// Swap out a folio, if possible.
    fn evict(&mut self, folio: u32);
}

/// Swap out folios until enough is free, or none is left that can be.
pub fn reclaim(memory: &mut impl Memory) {
    // In the second round none is referenced.
    let mut left = 2 * memory.folios().count;
    while left > 0 && memory.is_over() {
        left -= 1;
        let Some(folio) = memory.folios().rotate() else { return };
        if !memory.take_reference(folio) {
            memory.evict(folio);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_huge_page_is_underused_above_the_limit() {
        assert!(underused(410, 409) && !underused(409, 409) && underused(1, 0));
        // The kernel's default switches it off.
        assert!(!underused(512, 511));
    }

    /// Folios of different sizes: pages, and whether they were referenced.
    struct Sizes {
        queue: Queue,
        folios: Vec<(u64, bool)>,
        over: u64,
    }

    impl Memory for Sizes {
        fn folios(&mut self) -> &mut Queue {
            &mut self.queue
        }
        fn is_over(&self) -> bool {
            self.over > 0
        }
        fn take_reference(&mut self, folio: u32) -> bool {
            std::mem::take(&mut self.folios[folio as usize].1)
        }
        fn evict(&mut self, folio: u32) {
            self.queue.remove(folio);
            self.over = self.over.saturating_sub(self.folios[folio as usize].0);
        }
    }

    #[test]
    fn folios_get_a_second_chance() {
        let folios = vec![(1, true), (512, false), (1, false), (1, true)];
        let mut sizes = Sizes { queue: Queue::default(), folios, over: 513 };
        (0..4).for_each(|folio| sizes.queue.add(folio));
        reclaim(&mut sizes);
        // Folios 1 and 2 went; 3 is next.
        assert_eq!((sizes.queue.count, sizes.over), (2, 0));
        assert_eq!(sizes.queue.rotate(), Some(3));
        // More than there is: all go.
        sizes.over = 100;
        reclaim(&mut sizes);
        assert_eq!((sizes.queue.count, sizes.over), (0, 98));
    }
}
