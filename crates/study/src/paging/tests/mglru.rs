//! Reference implementation of multi-generational LRU: deques, newest first, and the kernel's names
//! (`mm/vmscan.c`).

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use super::lives::{PlainFrame, PlainMemory};
use super::naive;

#[derive(Default)]
pub struct PlainMglru {
    frames: usize,
    min_batch: u64,
    swappiness: u64,
    pub pages: HashMap<u64, PlainPage>,
    /// Lists by type (file or not) and generation. A page may still be in the list of an older
    /// generation than its own.
    lists: HashMap<(bool, u64), VecDeque<u64>>,
    /// Number of pages by type and generation.
    nr_pages: HashMap<(bool, u64), u64>,
    held: HashSet<u64>,
    /// The latest new page at each place.
    places: BTreeMap<u64, u64>,
    /// Number of populated pages by page table, which has 512 places.
    populated: HashMap<u64, u64>,
    max_seq: u64,
    min_seq: [u64; 2],
    refaulted: [u64; 2],
    evictions: [u64; 2],
    avg_refaulted: [u64; 2],
    avg_total: [u64; 2],
    /// Page tables to walk; `None`: all.
    filter: Option<HashSet<u64>>,
    /// Pages evicted by the current reference.
    evicted: Vec<u64>,
}

#[derive(Default, Clone)]
pub struct PlainPage {
    young: bool,
    pub of_file: bool,
    pub place: u64,
    generation: u64,
    list_generation: u64,
    isolated: bool,
    referenced: bool,
    populated: bool,
    /// Discarded while resident; whether it was written since.
    lazy: Option<bool>,
    shadow: Option<u64>,
}

impl PlainPage {
    fn file(&self) -> bool {
        self.of_file || self.lazy.is_some()
    }
}

impl PlainMglru {
    pub fn new(frames: usize, swappiness: u64) -> Self {
        Self {
            frames,
            min_batch: (frames as u64 / 64).clamp(1, 64),
            swappiness,
            max_seq: 3,
            ..Self::default()
        }
    }

    fn count(&self, file: bool, seq: u64) -> u64 {
        self.nr_pages.get(&(file, seq % 4)).copied().unwrap_or(0)
    }

    /// `lruvec_add_folio` at a generation.
    fn add(&mut self, p: u64, seq: u64) {
        let page = self.pages.get_mut(&p).unwrap();
        (page.generation, page.list_generation) = (seq % 4, seq % 4);
        let key = (page.file(), seq % 4);
        self.lists.entry(key).or_default().push_front(p);
        *self.nr_pages.entry(key).or_default() += 1;
    }

    fn del(&mut self, p: u64) {
        let page = &self.pages[&p];
        let list = self.lists.get_mut(&(page.file(), page.list_generation)).unwrap();
        match list.back() == Some(&p) {
            true => drop(list.pop_back()),
            false => list.retain(|other| *other != p),
        }
        *self.nr_pages.get_mut(&(page.file(), page.generation)).unwrap() -= 1;
    }

    fn oldest_in(&self, file: bool, seq: u64) -> Option<u64> {
        self.lists.get(&(file, seq % 4)).and_then(|list| list.back().copied())
    }

    fn nr_gens(&self, file: bool) -> u64 {
        self.max_seq + 1 - self.min_seq[usize::from(file)]
    }

    fn reset_ctrl_pos(&mut self, kind: usize) {
        self.avg_refaulted[kind] = (self.avg_refaulted[kind] + self.refaulted[kind]) / 2;
        self.avg_total[kind] = (self.avg_total[kind] + self.evictions[kind]) / 2;
        (self.refaulted[kind], self.evictions[kind]) = (0, 0);
    }

    fn try_to_inc_min_seq(&mut self, can_swap: bool) -> bool {
        let mut min = self.min_seq;
        for file in [false, true] {
            if !file && !can_swap {
                continue;
            }
            let kind = usize::from(file);
            while min[kind] + 2 <= self.max_seq {
                if self.oldest_in(file, min[kind]).is_some() {
                    break;
                }
                min[kind] += 1;
            }
        }
        if can_swap {
            min[0] = u64::min(min[0], min[1]);
            min[1] = u64::max(min[0], self.min_seq[1]);
        } else {
            min[0] = self.min_seq[0];
        }
        let changed = [0, 1].map(|kind| min[kind] != self.min_seq[kind]);
        for kind in [0, 1] {
            if changed[kind] {
                self.reset_ctrl_pos(kind);
            }
        }
        self.min_seq = min;
        changed[0] || changed[1]
    }

    fn should_run_aging(&self, can_swap: bool) -> (bool, u64) {
        let min = self.min_seq[usize::from(!can_swap)];
        if min + 2 > self.max_seq {
            return (true, 0);
        }
        let of = |seq: u64| {
            let anon = can_swap && seq >= self.min_seq[0];
            let file = seq >= self.min_seq[1];
            u64::from(anon) * self.count(false, seq) + u64::from(file) * self.count(true, seq)
        };
        let total: u64 = (self.min_seq[0].min(self.min_seq[1])..=self.max_seq).map(of).sum();
        let (young, old) = (of(self.max_seq), of(self.max_seq - 2));
        (min + 2 == self.max_seq && (2 * young > total || 4 * old < total), total)
    }

    fn try_to_inc_max_seq(&mut self, can_swap: bool) {
        let mut young_in: HashMap<u64, u64> = HashMap::new();
        for p in &self.held {
            let page = self.pages.get_mut(p).unwrap();
            let table = page.place / 512;
            if !page.young || (!page.file() && !can_swap) {
                continue;
            }
            if self.filter.as_ref().is_some_and(|filter| !filter.contains(&table)) {
                continue;
            }
            page.young = false;
            *young_in.entry(table).or_default() += 1;
            *self.nr_pages.get_mut(&(page.file(), page.generation)).unwrap() -= 1;
            page.generation = self.max_seq % 4;
            *self.nr_pages.entry((page.file(), page.generation)).or_default() += 1;
        }
        let suitable =
            young_in.iter().filter(|(table, young)| **young * 8 >= self.populated[*table]);
        self.filter = Some(suitable.map(|(table, _)| *table).collect());
        if self.nr_gens(false) == 4 {
            self.reset_ctrl_pos(0);
            self.min_seq[0] += 1;
        }
        self.max_seq += 1;
    }

    fn look_around(&mut self, p: u64) {
        let page = self.pages.get_mut(&p).unwrap();
        page.young = false;
        let (place, can_swap) = (page.place, !page.file());
        let (first, last) = (place / 512 * 512, place / 512 * 512 + 511);
        let (from, to) = if place - first < 32 {
            (first, first + 63)
        } else if last + 1 - place < 32 {
            (last - 63, last)
        } else {
            (place - 32, place + 31)
        };
        let mut young = 1;
        let around: Vec<u64> = self.places.range(from..=to).map(|(_, near)| *near).collect();
        for &near in &around {
            let page = self.pages.get_mut(&near).unwrap();
            if !page.young || (!page.file() && !can_swap) {
                continue;
            }
            page.young = false;
            young += 1;
            if page.isolated {
                page.referenced = true;
            } else if page.generation != self.max_seq % 4 {
                self.del(near);
                self.add(near, self.max_seq);
            }
        }
        if let Some(filter) = &mut self.filter
            && young * 8 >= around.len()
        {
            filter.insert(place / 512);
        }
    }

    /// Isolate pages of a type. Returns them, and the number of scanned pages.
    fn scan_folios(&mut self, file: bool) -> (Vec<u64>, u64) {
        let mut isolated = Vec::new();
        if self.nr_gens(file) == 2 {
            return (isolated, 0);
        }
        let seq = self.min_seq[usize::from(file)];
        let mut scanned = 0;
        while let Some(p) = self.oldest_in(file, seq) {
            self.del(p);
            scanned += 1;
            let page = self.pages.get_mut(&p).unwrap();
            if page.generation == seq % 4 {
                page.isolated = true;
                isolated.push(p);
            } else {
                let now = page.generation;
                self.add(p, now);
            }
            if scanned == 64 * self.min_batch || isolated.len() as u64 == self.min_batch {
                return (isolated, scanned);
            }
        }
        if isolated.is_empty() {
            scanned = 0;
        }
        (isolated, scanned)
    }

    fn file_first(&self, swappiness: u64) -> bool {
        let refaulted = [0, 1].map(|kind| self.avg_refaulted[kind] + self.refaulted[kind]);
        let total = [0, 1].map(|kind| self.avg_total[kind] + self.evictions[kind]);
        if refaulted[1] < self.min_batch {
            return true;
        }
        let pv = refaulted[1] * (total[0] + self.min_batch) * swappiness;
        let sp = (refaulted[0] + 1) * total[1] * (200 - swappiness);
        pv <= sp
    }

    fn evict_folios(&mut self, swappiness: u64) -> u64 {
        let file = if swappiness == 0 {
            true
        } else if self.min_seq[0] < self.min_seq[1] {
            false
        } else if swappiness == 1 || swappiness == 200 {
            swappiness == 1
        } else {
            self.file_first(swappiness)
        };
        let (mut list, mut scanned) = self.scan_folios(file);
        if scanned == 0 && swappiness != 0 {
            (list, scanned) = self.scan_folios(!file);
        }
        if self.try_to_inc_min_seq(swappiness != 0) {
            scanned += 1;
        }
        if self.nr_gens(swappiness == 0) == 2 {
            scanned = 0;
        }
        let mut back = Vec::new();
        for p in list {
            let page = self.pages[&p].clone();
            if page.referenced {
                back.push(p);
            } else if page.young {
                self.look_around(p);
                back.push(p);
            } else if page.lazy == Some(true) {
                self.pages.get_mut(&p).unwrap().lazy = None;
                back.push(p);
            } else {
                self.held.remove(&p);
                self.evicted.push(p);
                let mut shadow = None;
                if page.lazy.is_none() {
                    let kind = usize::from(page.of_file);
                    self.evictions[kind] += 1;
                    shadow = Some(self.min_seq[kind]);
                }
                let PlainPage { of_file, place, populated, .. } = page;
                let gone = PlainPage { of_file, place, populated, shadow, ..PlainPage::default() };
                self.pages.insert(p, gone);
            }
        }
        for p in back {
            let page = self.pages.get_mut(&p).unwrap();
            (page.isolated, page.referenced) = (false, false);
            self.add(p, self.max_seq);
        }
        scanned
    }

    fn shrink_lruvec(&mut self, priority: u32, swappiness: u64) {
        let mut scanned = 0;
        loop {
            let (aging, total) = self.should_run_aging(swappiness != 0);
            if aging && priority != 12 {
                self.try_to_inc_max_seq(swappiness != 0);
                return;
            }
            let nr_to_scan = total >> priority;
            if nr_to_scan == 0 {
                return;
            }
            match self.evict_folios(swappiness) {
                0 => return,
                delta => scanned += delta,
            }
            if scanned >= nr_to_scan {
                return;
            }
        }
    }

    fn try_to_free_pages(&mut self) {
        let files = self.held.iter().any(|p| self.pages[p].file());
        let mut swappiness = if files { self.swappiness } else { self.swappiness.max(1) };
        while self.evicted.is_empty() {
            for priority in (0..=12).rev() {
                self.shrink_lruvec(priority, swappiness);
                if 2 * self.evicted.len() as u64 >= self.min_batch {
                    break;
                }
            }
            swappiness = swappiness.max(1);
        }
    }
}

impl PlainMemory for PlainMglru {
    fn begin(&mut self, frame: u64, of: &PlainFrame) {
        let page = self.pages.entry(frame).or_default();
        (page.of_file, page.place) = (of.of_file, of.place);
    }

    fn has(&self, p: u64) -> bool {
        self.held.contains(&p)
    }

    fn reference(&mut self, p: u64) -> Option<Vec<u64>> {
        let fault = !self.has(p);
        if fault {
            if self.held.len() == self.frames {
                self.try_to_free_pages();
            }
            let page = self.pages.entry(p).or_default();
            let kind = usize::from(page.of_file);
            if page.shadow.take() == Some(self.min_seq[kind]) {
                self.refaulted[kind] += 1;
            }
            if !std::mem::replace(&mut page.populated, true) {
                self.places.insert(page.place, p);
                *self.populated.entry(page.place / 512).or_default() += 1;
            }
            self.held.insert(p);
            self.add(p, self.max_seq);
        }
        self.pages.get_mut(&p).unwrap().young = true;
        fault.then(|| std::mem::take(&mut self.evicted))
    }

    fn free(&mut self, p: u64) {
        if self.held.remove(&p) {
            self.del(p);
        }
        let Some(page) = self.pages.remove(&p) else { return };
        if page.populated {
            *self.populated.get_mut(&(page.place / 512)).unwrap() -= 1;
            if self.places.get(&page.place) == Some(&p) {
                self.places.remove(&page.place);
            }
        }
    }

    fn discard(&mut self, p: u64) {
        let held = self.has(p);
        let Some(page) = self.pages.get_mut(&p) else { return };
        page.shadow = None;
        if !held {
            return;
        }
        page.young = false;
        if page.of_file {
            return;
        }
        if page.lazy.is_some() {
            page.lazy = Some(false);
            return;
        }
        self.del(p);
        self.pages.get_mut(&p).unwrap().lazy = Some(false);
        let oldest = self.min_seq[1];
        self.add(p, if oldest + 2 >= self.max_seq { oldest } else { oldest + 1 });
    }

    fn keep(&mut self, p: u64) {
        if let Some(lazy) = self.pages.get_mut(&p).and_then(|page| page.lazy.as_mut()) {
            *lazy = true;
        }
    }
}

/// (faults, dirty evictions) without lifetimes.
pub fn naive_mglru(refs: &[(u64, bool)], frames: usize) -> (u64, u64) {
    let mut lists = PlainMglru::new(frames, 200);
    for &(place, _) in refs {
        lists.pages.entry(place).or_default().place = place;
    }
    naive(refs, &mut lists)
}
