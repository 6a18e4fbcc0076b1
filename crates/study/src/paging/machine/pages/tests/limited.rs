//! The memory limit of the reference implementation, with the constants of `mm/vmscan.c`.

use nearfar_kernel::thp::reclaim::underused;

use super::plain::{Mapped, Plain, PlainFolio};
use super::*;

/// Mask of a 2 MiB range number without its address space.
const ADDRESS: u64 = (1 << 27) - 1;

impl Plain {
    pub fn has_room(&mut self, pages: u64, reclaims: bool) -> bool {
        if reclaims {
            self.make_room(pages)
        } else {
            self.limit.is_none_or(|limit| self.held() + pages <= limit)
        }
    }

    pub fn make_room(&mut self, pages: u64) -> bool {
        let Some(limit) = self.limit else { return true };
        if self.held() + pages > limit && pages <= limit {
            self.now += 1;
            let goal = pages.max(32.min(limit / 128));
            let mut priority = 13;
            while priority > 0 && self.held() + goal > limit {
                priority -= 1;
                let mut scan = self.held() >> priority;
                while scan > 0 {
                    let batch = scan.min(32);
                    let mut considered = 0;
                    while considered < batch && self.held() + goal > limit {
                        let Some(&id) = self.order_of_reclaim.first() else { break };
                        considered += 1 << self.folios[id].order;
                        self.consider(id);
                    }
                    scan -= batch;
                }
                self.shrink(priority);
            }
        }
        self.held() + pages <= limit
    }

    /// Consider the oldest folio for reclaim.
    fn consider(&mut self, id: usize) {
        self.order_of_reclaim.rotate_left(1);
        let referenced = self.mappings(id).iter().any(|page| {
            let touched = self.touched.get(page);
            touched.is_some_and(|touched| touched.used >= self.folios[id].cleared)
        });
        if referenced || !self.is_mapped_only_at_home(id) {
            self.folios[id].cleared = self.now;
        } else {
            self.evict(id);
        }
    }

    /// Split queued folios (`do_shrink_slab`).
    fn shrink(&mut self, priority: u32) {
        let queued = self.to_split.len() as u64;
        if queued == 0 {
            return;
        }
        let more = 2 * (queued >> priority);
        let mut scan = ((self.nr_deferred >> priority) + more).min(2 * queued);
        self.nr_deferred += more;
        // A batch has 128 folios, or the whole queue if it is shorter.
        while scan >= 128 || scan >= queued {
            for _ in 0..scan.min(128) {
                if !self.to_split.is_empty() {
                    let id = self.to_split.remove(0);
                    self.maybe_split(id);
                }
            }
            self.nr_deferred = self.nr_deferred.saturating_sub(scan.min(128));
            scan -= scan.min(128);
        }
        self.nr_deferred = self.nr_deferred.min(2 * queued);
    }

    fn mappings(&self, id: usize) -> Vec<u64> {
        let folio = |mapped: &Mapped| matches!(mapped, Mapped::Folio(other, _) if *other == id);
        self.pages.iter().filter(|(_, mapped)| folio(mapped)).map(|(page, _)| *page).collect()
    }

    /// Reclaim finds only mappings at the home address.
    fn is_mapped_only_at_home(&self, id: usize) -> bool {
        let home = self.folios[id].home & ADDRESS;
        self.mappings(id).iter().all(|page| page >> HUGE & ADDRESS == home)
    }

    fn is_written(&self, page: u64) -> bool {
        self.touched.get(&page).is_some_and(|touched| touched.written)
    }

    fn maybe_split(&mut self, id: usize) {
        let PlainFolio { order, .. } = self.folios[id];
        let pages = self.mappings(id);
        if !self.is_unshared(id) {
            return;
        }
        let written = pages.iter().filter(|page| self.is_written(**page)).count();
        let zeros = (pages.len() - written) as u64;
        let is_partial = pages.len() < 1 << order;
        if is_partial || order == HUGE && underused(zeros, MAX_NONE) {
            self.split_folio(id, &pages);
        }
    }

    fn is_unshared(&self, id: usize) -> bool {
        let PlainFolio { order, home, .. } = self.folios[id];
        order > 0 && self.mappings(id).iter().all(|page| page >> HUGE == home)
    }

    fn split_folio(&mut self, id: usize, pages: &[u64]) {
        let PlainFolio { home, cleared, .. } = self.folios[id];
        self.split(home);
        self.events.shrunk += 1;
        let (free, before) = (self.free, self.folios.len());
        for &page in pages {
            if self.is_written(page) {
                let shared = matches!(self.pages[&page], Mapped::Folio(_, true));
                self.allocate(0, page, false);
                self.folios.last_mut().unwrap().cleared = cleared;
                self.pages.insert(page, Mapped::Folio(self.folios.len() - 1, shared));
            } else {
                self.set(page, Some(Mapped::Other));
            }
        }
        // The block of 2 MiB is not free: a part of it is still in use.
        if self.folios.len() > before {
            self.free = free;
        }
    }

    fn evict(&mut self, id: usize) {
        let pages = self.mappings(id);
        if self.is_unshared(id) && pages.len() < 1 << self.folios[id].order {
            let before = self.folios.len();
            self.split_folio(id, &pages);
            (before..self.folios.len()).for_each(|small| self.evict(small));
            return;
        }
        let touched: Vec<_> = pages.iter().filter_map(|page| self.touched.get(page)).collect();
        let freed = !touched.is_empty() && touched.iter().all(|touched| touched.lazy);
        if !freed {
            self.events.swap_outs += 1 << self.folios[id].order;
        }
        for page in pages {
            self.split(page >> HUGE);
            let is_touched = self.touched.contains_key(&page);
            if freed && is_touched {
                self.touched.get_mut(&page).unwrap().written = false;
            }
            self.set(
                page,
                match (freed, is_touched) {
                    (false, _) => Some(Mapped::Swapped),
                    (true, true) => Some(Mapped::Dropped),
                    (true, false) => None,
                },
            );
        }
    }

    pub fn swap_in(&mut self, page: u64) {
        match self.pages[&page] {
            Mapped::Swapped => {
                self.faults.swap_ins += 1;
                self.make_room(1);
                self.allocate(0, page, false);
            }
            Mapped::Dropped => {
                self.faults.maps += 1;
                self.set(page, Some(Mapped::Other));
            }
            _ => {}
        }
    }

    pub fn reference(&mut self, page: u64) {
        self.touched.get_mut(&page).unwrap().used = self.now;
        self.swap_in(page);
    }
}
