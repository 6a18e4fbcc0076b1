//! Reference implementation of Linux's page lists: four deques, newest first, and the kernel's names
//! (`mm/vmscan.c`).

use std::collections::{HashMap, HashSet, VecDeque};

use super::lives::{PlainFrame, PlainMemory};
use super::naive;

const INACTIVE_ANON: usize = 0;
const ACTIVE_ANON: usize = 1;
const INACTIVE_FILE: usize = 2;
const ACTIVE_FILE: usize = 3;

#[derive(Default)]
pub struct PlainLinux {
    frames: usize,
    cluster: u64,
    swappiness: u64,
    statistics_every: u64,
    pub pages: HashMap<u64, PlainPage>,
    lists: [VecDeque<u64>; 4],
    /// The processor's `lru_add` batch: new pages, oldest first, and their list.
    lru_add: Vec<(u64, usize)>,
    /// Pages in `lists` or `lru_add`.
    held: HashSet<u64>,
    /// Pages evicted by the current reference.
    evicted: Vec<u64>,
    nonresident_age: u64,
    anon_cost: u64,
    file_cost: u64,
    activated_at_refault: [u64; 2],
    seen_at_last_reclaim: [u64; 2],
    /// `memory.stat` when it was last flushed: lengths of the lists, and `activated_at_refault`.
    stat: ([u64; 4], [u64; 2]),
    faults: u64,
}

#[derive(Default, Clone)]
pub struct PlainPage {
    young: bool,
    referenced: bool,
    workingset: bool,
    pub of_file: bool,
    pub executable: bool,
    /// Discarded while resident; whether it was written since.
    lazy: Option<bool>,
    /// `nonresident_age` at eviction, and `workingset` then.
    shadow: Option<(u64, bool)>,
}

impl PlainPage {
    fn on_file_list(&self) -> bool {
        self.of_file || self.lazy.is_some()
    }
}

impl PlainLinux {
    pub fn new(frames: usize, swappiness: u64, statistics_every: u64) -> Self {
        Self {
            frames,
            cluster: (frames as u64 / 128).clamp(1, 32),
            swappiness,
            statistics_every,
            ..Self::default()
        }
    }

    fn size(&self, list: usize) -> u64 {
        self.lists[list].len() as u64
    }

    fn flush_stats(&mut self) {
        self.stat = ([0, 1, 2, 3].map(|list| self.size(list)), self.activated_at_refault);
    }

    /// A list's length, as `memory.stat` has it.
    fn page_state(&mut self, list: usize) -> u64 {
        if self.statistics_every == 1 {
            self.flush_stats();
        }
        self.stat.0[list]
    }

    fn refaults(&mut self) -> [u64; 2] {
        if self.statistics_every == 1 {
            self.flush_stats();
        }
        self.stat.1
    }

    fn lru_add_drain(&mut self) {
        for (p, list) in std::mem::take(&mut self.lru_add) {
            self.lists[list].push_front(p);
        }
    }

    fn drop_from_lists(&mut self, p: u64) {
        if self.lru_add.iter().any(|new| new.0 == p) {
            self.lru_add_drain();
        }
        self.lists.iter_mut().for_each(|list| list.retain(|page| *page != p));
    }

    fn lru_note_cost(&mut self, file: bool, io: u64, rotated: u64) {
        if io == 0 && rotated == 0 {
            return;
        }
        *if file { &mut self.file_cost } else { &mut self.anon_cost } += 32 * io + rotated;
        let lrusize: u64 = [0, 1, 2, 3].map(|list| self.page_state(list)).iter().sum();
        if self.anon_cost + self.file_cost > lrusize / 4 {
            self.anon_cost /= 2;
            self.file_cost /= 2;
        }
    }

    /// Remove pages from the tail of a list. Returns them, tail first.
    fn isolate(&mut self, list: usize, count: u64) -> Vec<u64> {
        self.lru_add_drain();
        let left = self.lists[list].len().saturating_sub(count as usize);
        self.lists[list].split_off(left).into_iter().rev().collect()
    }

    /// Scan the tail of an inactive list. Returns the number of evicted pages.
    fn shrink_inactive(&mut self, file: bool, count: u64) -> u64 {
        let isolated = self.isolate(if file { INACTIVE_FILE } else { INACTIVE_ANON }, count);
        let (mut freed, mut pageout, mut back) = (0, 0, Vec::new());
        for &p in &isolated {
            let page = self.pages.get_mut(&p).unwrap();
            let was_referenced = std::mem::take(&mut page.referenced);
            if std::mem::take(&mut page.young) {
                page.referenced = true;
                let activate = was_referenced || page.executable;
                back.push((p, file, activate));
            } else if page.lazy == Some(true) {
                page.lazy = None;
                back.push((p, false, true));
            } else {
                freed += 1;
                self.held.remove(&p);
                self.evicted.push(p);
                let mut shadow = None;
                if page.lazy.is_none() {
                    pageout += u64::from(!file);
                    shadow = Some((self.nonresident_age, page.workingset));
                    self.nonresident_age += 1;
                }
                let PlainPage { of_file, executable, .. } = *page;
                *page = PlainPage { of_file, executable, shadow, ..PlainPage::default() };
            }
        }
        for &(p, to_file, activate) in &back {
            self.nonresident_age += u64::from(activate);
            let list = match (to_file, activate) {
                (false, false) => INACTIVE_ANON,
                (false, true) => ACTIVE_ANON,
                (true, false) => INACTIVE_FILE,
                (true, true) => ACTIVE_FILE,
            };
            self.lists[list].push_front(p);
        }
        self.lru_note_cost(file, pageout, isolated.len() as u64 - freed);
        freed
    }

    fn shrink_active(&mut self, file: bool, count: u64) {
        let (from, to) =
            if file { (ACTIVE_FILE, INACTIVE_FILE) } else { (ACTIVE_ANON, INACTIVE_ANON) };
        let mut rotated = 0;
        for p in self.isolate(from, count) {
            let page = self.pages.get_mut(&p).unwrap();
            if std::mem::take(&mut page.young) && page.executable {
                rotated += 1;
                self.lists[from].push_front(p);
            } else {
                page.workingset = true;
                self.lists[to].push_front(p);
            }
        }
        self.nonresident_age += rotated;
        self.lru_note_cost(file, 0, rotated);
    }

    /// `inactive_ratio` is 1, because the footprints of the tests are below a GiB.
    fn inactive_is_low(&mut self, file: bool) -> bool {
        match file {
            false => self.page_state(INACTIVE_ANON) < self.page_state(ACTIVE_ANON),
            true => self.page_state(INACTIVE_FILE) < self.page_state(ACTIVE_FILE),
        }
    }

    fn get_scan_count(&self, priority: u32, cache_trim_mode: bool) -> [u64; 4] {
        let mut nr = [0, 1, 2, 3].map(|list| self.size(list) >> priority);
        let no_files = self.size(INACTIVE_FILE) == 0 && self.size(ACTIVE_FILE) == 0;
        if self.swappiness == 0 && no_files {
            return nr;
        }
        if self.swappiness == 0 || (priority > 0 && cache_trim_mode) {
            (nr[INACTIVE_ANON], nr[ACTIVE_ANON]) = (0, 0);
        } else if priority > 0 {
            let total = self.anon_cost + self.file_cost;
            let (anon, file) = (total + self.anon_cost, total + self.file_cost);
            let ap = self.swappiness * (anon + file + 1) / (anon + 1);
            let fp = (200 - self.swappiness) * (anon + file + 1) / (file + 1);
            for (list, fraction) in [ap, ap, fp, fp].into_iter().enumerate() {
                nr[list] = nr[list] * fraction / (ap + fp);
            }
        }
        nr
    }

    /// `shrink_lruvec`. Returns the number of evicted pages, and `skipped_deactivate`.
    fn shrink_lruvec(&mut self, priority: u32, force_deactivate: bool) -> (u64, bool) {
        let refaults = self.refaults();
        let may_deactivate = [false, true].map(|file| {
            let kind = usize::from(file);
            force_deactivate
                || refaults[kind] != self.seen_at_last_reclaim[kind]
                || self.inactive_is_low(file)
        });
        let mut skipped_deactivate = false;
        let trim = self.page_state(INACTIVE_FILE) >> priority > 0 && !may_deactivate[1];
        let targets = self.get_scan_count(priority, trim);
        let (mut nr, mut freed) = (targets, 0);
        while nr[INACTIVE_ANON] > 0 || nr[INACTIVE_FILE] > 0 || nr[ACTIVE_FILE] > 0 {
            let now = nr.map(|count| count.min(self.cluster));
            nr = [0, 1, 2, 3].map(|list| nr[list] - now[list]);
            for file in [false, true] {
                let (inactive, active) =
                    if file { (INACTIVE_FILE, ACTIVE_FILE) } else { (INACTIVE_ANON, ACTIVE_ANON) };
                if now[inactive] > 0 {
                    freed += self.shrink_inactive(file, now[inactive]);
                }
                if now[active] > 0 && may_deactivate[usize::from(file)] {
                    self.shrink_active(file, now[active]);
                } else if now[active] > 0 {
                    skipped_deactivate = true;
                }
            }
            if freed < self.cluster {
                continue;
            }
            let nr_anon = nr[INACTIVE_ANON] + nr[ACTIVE_ANON];
            let nr_file = nr[INACTIVE_FILE] + nr[ACTIVE_FILE];
            if nr_anon == 0 || nr_file == 0 {
                break;
            }
            let (stop, rest) = if nr_file > nr_anon { (0, nr_anon) } else { (2, nr_file) };
            let percentage = rest * 100 / (targets[stop] + targets[stop + 1] + 1);
            (nr[stop], nr[stop + 1]) = (0, 0);
            for list in [2 - stop, 3 - stop] {
                let scanned = targets[list] - nr[list];
                nr[list] = (targets[list] * (100 - percentage) / 100).saturating_sub(scanned);
            }
        }
        if self.inactive_is_low(false) {
            self.shrink_active(false, self.cluster);
        }
        (freed, skipped_deactivate)
    }

    /// `do_try_to_free_pages`.
    fn try_to_free_pages(&mut self) -> u64 {
        let (mut force_deactivate, mut skipped_deactivate) = (false, false);
        loop {
            let mut freed = 0;
            for priority in (0..=12).rev() {
                let (more, skipped) = self.shrink_lruvec(priority, force_deactivate);
                freed += more;
                skipped_deactivate |= skipped;
                if freed >= self.cluster {
                    break;
                }
            }
            self.seen_at_last_reclaim = self.refaults();
            if freed > 0 || !skipped_deactivate {
                return freed;
            }
            (force_deactivate, skipped_deactivate) = (true, false);
        }
    }

    /// `try_charge_memcg`: reclaim until a page is free; continue where the kernel would kill the program.
    fn make_room(&mut self) {
        while self.try_to_free_pages() == 0 {
            if self.lists[INACTIVE_ANON].is_empty() && self.lists[INACTIVE_FILE].is_empty() {
                self.lru_add_drain();
                self.flush_stats();
            }
        }
    }

    fn pages_of(&mut self, lists: [usize; 3]) -> u64 {
        lists.map(|list| self.page_state(list)).iter().sum()
    }
}

impl PlainMemory for PlainLinux {
    fn begin(&mut self, frame: u64, of: &PlainFrame) {
        let page = self.pages.entry(frame).or_default();
        (page.of_file, page.executable) = (of.of_file, of.executable);
    }

    fn has(&self, p: u64) -> bool {
        self.held.contains(&p)
    }

    fn reference(&mut self, p: u64) -> Option<Vec<u64>> {
        let fault = !self.has(p);
        if fault {
            self.faults += 1;
            if self.statistics_every > 0 && self.faults.is_multiple_of(self.statistics_every) {
                self.flush_stats();
            }
            if self.held.len() == self.frames {
                self.make_room();
            }
            let mut workingset = |of_file: bool| match of_file {
                false => self.pages_of([ACTIVE_ANON, INACTIVE_FILE, ACTIVE_FILE]),
                true => self.pages_of([ACTIVE_FILE, INACTIVE_ANON, ACTIVE_ANON]),
            };
            let sizes = [workingset(false), workingset(true)];
            let page = self.pages.entry(p).or_default();
            let (file, shadow) = (page.of_file, page.shadow.take());
            let recent = |at: &(u64, bool)| self.nonresident_age - at.0 <= sizes[usize::from(file)];
            let refault = shadow.filter(recent);
            page.workingset = refault.is_some_and(|shadow| shadow.1);
            if let Some((_, workingset)) = refault {
                self.nonresident_age += 1;
                self.activated_at_refault[usize::from(file)] += 1;
                self.lru_note_cost(file, u64::from(workingset), 0);
            }
            let inactive = if file { INACTIVE_FILE } else { INACTIVE_ANON };
            self.held.insert(p);
            self.lru_add.push((p, inactive + usize::from(refault.is_some())));
            if self.lru_add.len() as u64 >= (self.cluster - 1).max(1) {
                self.lru_add_drain();
            }
        }
        self.pages.get_mut(&p).unwrap().young = true;
        fault.then(|| std::mem::take(&mut self.evicted))
    }

    fn free(&mut self, p: u64) {
        if self.held.remove(&p) {
            self.drop_from_lists(p);
        }
        self.pages.remove(&p);
    }

    fn discard(&mut self, p: u64) {
        self.lru_add_drain();
        let has = self.has(p);
        let Some(page) = self.pages.get_mut(&p) else { return };
        page.shadow = None;
        if !has {
            return;
        }
        page.young = false;
        if !page.on_file_list() {
            page.referenced = false;
            self.drop_from_lists(p);
            self.lists[INACTIVE_FILE].push_front(p);
        }
        if let Some(page) = self.pages.get_mut(&p) {
            page.lazy = (!page.of_file).then_some(false);
        }
    }

    fn keep(&mut self, p: u64) {
        if let Some(lazy) = self.pages.get_mut(&p).and_then(|page| page.lazy.as_mut()) {
            *lazy = true;
        }
    }
}

/// (faults, dirty evictions) without lifetimes.
pub fn naive_linux(refs: &[(u64, bool)], frames: usize) -> (u64, u64) {
    with_statistics(refs, frames, 1)
}

/// As [`naive_linux`], with statistics updated at every `every`th fault.
pub fn with_statistics(refs: &[(u64, bool)], frames: usize, every: u64) -> (u64, u64) {
    naive(refs, &mut PlainLinux::new(frames, 200, every))
}
