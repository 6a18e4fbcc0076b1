//! Reference implementation of huge pages.

use std::collections::{BTreeMap, BTreeSet};

use super::super::remap::moved;
use super::*;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlainFolio {
    pub order: u32,
    pub zero: bool,
    pub first: u64,
    /// Number of the 2 MiB range in which the process that allocated it maps it.
    pub home: u64,
    /// Number of pages that map it.
    pub uses: usize,
    /// Number of the last reclaim that found it referenced.
    pub cleared: u32,
}

/// What is mapped at a page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mapped {
    /// A folio, and whether a write may have to copy it.
    Folio(usize, bool),
    /// A file or the zero page.
    Other,
    /// Nothing: the page is in swap.
    Swapped,
    /// Nothing: reclaim dropped the page after `MADV_FREE`.
    Dropped,
}

impl Mapped {
    fn folio(self) -> Option<usize> {
        if let Self::Folio(id, _) = self { Some(id) } else { None }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Touched {
    pub block: u32,
    pub written: bool,
    /// Freed with `MADV_FREE`.
    pub lazy: bool,
    /// Number of reclaims before its last reference.
    pub used: u32,
}

/// Huge pages in tables with an entry for every 4 KiB page.
#[derive(Default)]
pub struct Plain {
    pub folios: Vec<PlainFolio>,
    pub pages: BTreeMap<u64, Mapped>,
    pub touched: BTreeMap<u64, Touched>,
    /// Ranges of 2 MiB with a page table or a huge page.
    tables: BTreeSet<u64>,
    /// Ranges of 2 MiB with a huge page.
    pub huge: BTreeSet<u64>,
    /// Ranges of 2 MiB that a fork copied.
    forked: BTreeSet<u64>,
    /// Ranges whose page table stays allocated without mapped pages.
    kept: BTreeSet<u64>,
    areas: BTreeMap<u64, Advice>,
    pub faults: Faults,
    pub events: Events,
    pub free: u64,
    pub time: f64,
    /// Next page that khugepaged scans.
    at: u64,
    /// Time of khugepaged's next scan.
    wakes: f64,
    /// In pages of 4 KiB.
    pub limit: Option<u64>,
    /// Number of reclaims so far.
    pub now: u32,
    pub order_of_reclaim: Vec<usize>,
    /// Folios that reclaim may split.
    pub to_split: Vec<usize>,
    pub nr_deferred: u64,
}

impl Plain {
    pub fn new(free: u64, limit: Option<u64>) -> Self {
        Self { free, limit, wakes: RULES.sleep_ns / 2.0, ..Self::default() }
    }

    pub fn held(&self) -> u64 {
        let used: BTreeSet<usize> = self.pages.values().filter_map(|page| page.folio()).collect();
        used.iter().map(|id| &self.folios[*id]).filter(|f| !f.zero).map(|f| 1 << f.order).sum()
    }

    pub fn mapped(&self) -> u64 {
        let private = |page: &&Mapped| page.folio().is_some_and(|id| !self.folios[id].zero);
        self.pages.values().filter(private).count() as u64
    }

    pub fn set(&mut self, page: u64, mapped: Option<Mapped>) {
        let before = match mapped {
            Some(mapped) => self.pages.insert(page, mapped),
            None => self.pages.remove(&page),
        };
        if let Some(new) = mapped.and_then(Mapped::folio) {
            self.folios[new].uses += 1;
        }
        let Some(id) = before.and_then(Mapped::folio) else { return };
        self.folios[id].uses -= 1;
        let PlainFolio { order, zero, uses, .. } = self.folios[id];
        if uses == 0 {
            self.order_of_reclaim.retain(|other| *other != id);
            self.to_split.retain(|other| *other != id);
            self.free += u64::from(order == HUGE && !zero);
        } else if !zero && uses < 1 << order && !self.to_split.contains(&id) {
            self.to_split.push(id);
        }
    }

    pub fn allocate(&mut self, order: u32, first: u64, zero: bool) {
        let home = first >> HUGE;
        self.folios.push(PlainFolio { order, zero, first, home, uses: 0, cleared: 0 });
        let id = self.folios.len() - 1;
        if !zero {
            self.order_of_reclaim.push(id);
            if order == HUGE {
                self.to_split.push(id);
            }
        }
        self.tables.insert(home);
        for page in first..first + (1 << order) {
            self.set(page, Some(Mapped::Folio(id, false)));
        }
        if order == HUGE {
            self.huge.insert(home);
            self.forked.remove(&home);
        }
    }

    pub fn small(&mut self, page: u64) {
        self.faults.pages[0] += 1;
        self.make_room(1);
        self.allocate(0, page, false);
    }

    fn replace_zero(&mut self, page: u64, policy: &Policy) {
        if policy.splits_zero {
            self.split(page >> HUGE);
            return self.small(page);
        }
        let advice = self.areas.get(&page).copied().unwrap_or_default();
        if !self.has_room(512, policy.compacts && advice == Advice::Huge) {
            self.events.fallbacks += 1;
            self.split(page >> HUGE);
            return self.small(page);
        }
        self.faults.pages[HUGE as usize] += 1;
        self.allocate(HUGE, page >> HUGE << HUGE, false);
    }

    pub fn split(&mut self, range: u64) {
        if !self.huge.remove(&range) {
            return;
        }
        let pages: Vec<u64> = (range << HUGE..(range + 1) << HUGE).collect();
        // A file may be mapped over a part of the huge page.
        let folio = pages.iter().find_map(|page| self.pages.get(page)?.folio());
        if folio.is_some_and(|id| self.folios[id].zero) {
            for page in pages {
                self.set(page, self.touched.get(&page).map(|_| Mapped::Other));
            }
        }
        self.events.splits += 1;
    }

    pub fn order(&self, page: u64) -> usize {
        if self.huge.contains(&(page >> HUGE)) {
            return HUGE as usize;
        }
        let Some(folio) = self.pages[&page].folio().map(|id| self.folios[id]) else { return 0 };
        let is_aligned = folio.first % 512 == (page >> folio.order << folio.order) % 512;
        if folio.order < HUGE && is_aligned { folio.order as usize } else { 0 }
    }

    fn copy(&mut self, page: u64) {
        let range = page >> HUGE;
        // A page without a folio is a zero page.
        if let Some(folio) = self.pages[&page].folio() {
            let own =
                |page: &u64| self.pages.get(page).and_then(|mapped| mapped.folio()) == Some(folio);
            let own = (range << HUGE..(range + 1) << HUGE).filter(own).count();
            if self.folios[folio].uses == own {
                self.faults.maps += 1;
                if self.huge.contains(&range) {
                    self.forked.remove(&range);
                    for page in range << HUGE..(range + 1) << HUGE {
                        if let Some(Mapped::Folio(_, shared)) = self.pages.get_mut(&page) {
                            *shared = false;
                        }
                    }
                }
                return;
            }
        }
        self.split(range);
        self.small(page);
    }

    fn born(&mut self, policy: &Policy, change: &Change, around: (u64, u64)) {
        let &Change::Born { block, number: page, backing, written } = change else { panic!() };
        self.tables.insert(page >> HUGE);
        let mapped = self.pages.get(&page).copied();
        let zeros = matches!(backing, Backing::Zeros | Backing::Unknown);
        let reads = backing == Backing::Zeros && !written;
        let touched = Touched { block, written, lazy: false, used: self.now };
        if !zeros && written {
            self.small(page);
        } else if !zeros {
            let of_file = matches!(backing, Backing::Object { of_file: true, .. });
            self.faults.maps += u64::from(!of_file);
            self.set(page, Some(Mapped::Other));
        } else {
            match mapped {
                None => self.first_fault(policy, page, reads, around),
                Some(Mapped::Swapped) => self.swap_in(page),
                Some(Mapped::Folio(id, _)) if written && self.folios[id].zero => {
                    self.replace_zero(page, policy);
                }
                Some(Mapped::Folio(..)) if written && self.forked.contains(&(page >> HUGE)) => {
                    self.touched.insert(page, touched);
                    self.copy(page);
                }
                Some(Mapped::Other) if written => self.small(page),
                _ => {}
            }
        }
        self.touched.insert(page, touched);
    }

    fn first_fault(&mut self, policy: &Policy, page: u64, reads: bool, (low, high): (u64, u64)) {
        let advice = self.areas.get(&page).copied().unwrap_or_default();
        let table = (page >> HUGE << HUGE..(page >> HUGE << HUGE) + 512)
            .any(|p| self.pages.contains_key(&p));
        // `tables` always has the range here: `born` has added it.
        let empty = !table && !self.kept.contains(&(page >> HUGE));
        let range =
            |order: u32| (page >> order << order, (page >> order << order) + (1 << order) - 1);
        let allowed = |order: u32| {
            policy.allows(order, advice) && low <= range(order).0 && range(order).1 <= high
        };
        let compacts = policy.compacts && advice == Advice::Huge;
        if allowed(HUGE) && empty {
            if reads {
                self.faults.maps += 1;
                return self.allocate(HUGE, range(HUGE).0, true);
            }
            if (self.free > 0 || compacts) && self.has_room(512, compacts) {
                if self.free == 0 {
                    self.events.compactions += 1;
                } else {
                    self.free -= 1;
                }
                self.faults.pages[HUGE as usize] += 1;
                return self.allocate(HUGE, range(HUGE).0, false);
            }
            self.events.fallbacks += 1;
        }
        if reads {
            self.faults.maps += 1;
            return self.set(page, Some(Mapped::Other));
        }
        for order in (1..HUGE).rev() {
            let (first, last) = range(order);
            if allowed(order)
                && self.pages.range(first..=last).next().is_none()
                && self.has_room(1 << order, compacts)
            {
                self.faults.pages[order as usize] += 1;
                return self.allocate(order, first, false);
            }
        }
        self.small(page);
    }

    pub fn apply(&mut self, policy: &Policy, (change, around): &Changed) {
        match change {
            Change::Born { .. } => self.born(policy, change, *around),
            Change::Written(block) => {
                let found = self.touched.iter().find(|(_, other)| other.block == *block);
                let page = *found.unwrap().0;
                match self.pages[&page] {
                    Mapped::Other | Mapped::Dropped => self.small(page),
                    Mapped::Swapped => self.swap_in(page),
                    Mapped::Folio(id, _) if self.folios[id].zero => {
                        self.replace_zero(page, policy);
                    }
                    Mapped::Folio(_, true) => self.copy(page),
                    Mapped::Folio(..) => {}
                }
                if let Some(Mapped::Folio(_, shared)) = self.pages.get_mut(&page) {
                    *shared = false;
                }
                let touched = self.touched.get_mut(&page).unwrap();
                (touched.written, touched.lazy) = (true, false);
            }
            Change::Ended { range: (first, last), kept, .. } => self.end(*first, *last, *kept),
            Change::Discarded(blocks) => {
                let mut ranges = BTreeSet::new();
                for (page, touched) in &mut self.touched {
                    if blocks.contains(&touched.block) {
                        touched.lazy = true;
                        ranges.insert(page >> HUGE);
                    }
                }
                for range in ranges {
                    let mut touched = self.touched.range(range << HUGE..(range + 1) << HUGE);
                    if touched.any(|(_, touched)| !blocks.contains(&touched.block)) {
                        self.split(range);
                    }
                }
            }
            Change::Forked(blocks) => self.fork(blocks),
            Change::Moved { range, by, .. } => self.shift(*range, by >> SMALL),
            Change::Area { first, last, advice } => {
                self.areas.retain(|page, _| page < first || page > last);
                if let Some(advice) = advice {
                    self.areas.extend((*first..=*last).map(|page| (page, *advice)));
                }
            }
            Change::Collapse { first, last } => {
                let ranges: Vec<u64> =
                    self.tables.range(first >> HUGE..=last >> HUGE).copied().collect();
                for range in ranges {
                    let pages = range << HUGE..(range + 1) << HUGE;
                    let advice = self.areas.get(&pages.start).copied();
                    let inside = *first <= pages.start && pages.end - 1 <= *last;
                    let one_area = advice.is_some_and(|advice| advice != Advice::NoHuge)
                        && pages.clone().all(|page| self.areas.get(&page).copied() == advice);
                    if inside && one_area {
                        self.merge(range, &khugepaged::Rules::FORCED);
                    }
                }
            }
        }
    }

    fn end(&mut self, first: u64, last: u64, kept: bool) {
        let ranges: Vec<u64> = self.tables.range(first >> HUGE..=last >> HUGE).copied().collect();
        for range in ranges {
            let pages = range << HUGE..(range + 1) << HUGE;
            let whole = first <= pages.start && pages.end - 1 <= last;
            if !whole {
                self.split(range);
            }
            for page in pages.start.max(first)..pages.end.min(last.saturating_add(1)) {
                self.set(page, None);
                self.touched.remove(&page);
            }
            if whole || !kept && self.pages.range(pages.clone()).next().is_none() {
                self.tables.remove(&range);
                self.huge.remove(&range);
                self.forked.remove(&range);
                self.kept.remove(&range);
            } else {
                self.note_kept(range);
            }
        }
    }

    fn note_kept(&mut self, range: u64) {
        if self.tables.contains(&range) {
            self.kept.insert(range);
        }
    }

    fn fork(&mut self, blocks: &[(u32, u32, u64)]) {
        let mut copied = BTreeSet::new();
        for &(block, copy, number) in blocks {
            let found = self.touched.iter().find(|(_, other)| other.block == block);
            let (page, touched) = found.map(|(page, touched)| (*page, *touched)).unwrap();
            let (from, to) = (page >> HUGE, number >> HUGE);
            if copied.insert(to) {
                let parent: Vec<(u64, Mapped)> =
                    (self.pages.range(from << HUGE..(from + 1) << HUGE))
                        .filter(|(_, mapped)| **mapped != Mapped::Other)
                        .map(|(page, mapped)| (page - (from << HUGE) + (to << HUGE), *mapped))
                        .collect();
                for (page, mapped) in parent {
                    self.set(page, Some(mapped));
                }
                self.tables.insert(to);
                self.note_kept(to);
                self.forked.extend([from, to]);
                if self.huge.contains(&from) {
                    self.huge.insert(to);
                }
            }
            self.touched.insert(number, Touched { block: copy, ..touched });
            match self.pages[&page] {
                Mapped::Folio(id, _) => {
                    let shared = !self.folios[id].zero;
                    self.pages.insert(page, Mapped::Folio(id, shared));
                    self.pages.insert(number, Mapped::Folio(id, shared));
                }
                Mapped::Other => self.set(number, Some(Mapped::Other)),
                Mapped::Swapped | Mapped::Dropped => {}
            }
        }
    }

    fn shift(&mut self, (first, last): (u64, u64), by: u64) {
        let ranges: Vec<u64> = self.tables.range(first >> HUGE..=last >> HUGE).copied().collect();
        for range in ranges {
            let pages = range << HUGE..(range + 1) << HUGE;
            let whole = first <= pages.start && pages.end - 1 <= last;
            let keeps = whole && by.is_multiple_of(512);
            if !keeps {
                self.split(range);
            }
            for page in pages.start.max(first)..pages.end.min(last + 1) {
                let to = moved(page, by);
                if let Some(mapped) = self.pages.remove(&page) {
                    self.pages.insert(to, mapped);
                    self.tables.insert(to >> HUGE);
                    self.note_kept(to >> HUGE);
                    let folio = mapped.folio().map(|id| &mut self.folios[id]);
                    if let Some(folio) = folio.filter(|folio| folio.home == range) {
                        folio.home = to >> HUGE;
                    }
                }
                if let Some(touched) = self.touched.remove(&page) {
                    self.touched.insert(to, touched);
                }
            }
            if keeps {
                let to = moved(pages.start, by) >> HUGE;
                for set in [&mut self.huge, &mut self.forked, &mut self.tables] {
                    if set.remove(&range) {
                        set.insert(to);
                    }
                }
                self.kept.remove(&range);
                self.note_kept(to);
            } else if self.pages.range(pages).next().is_none() {
                self.tables.remove(&range);
                self.forked.remove(&range);
                self.kept.remove(&range);
            }
        }
    }

    fn khugepaged_range(&self, range: u64) -> khugepaged::Range {
        let huge = self.huge.contains(&range);
        let mut found = khugepaged::Range { huge, ..khugepaged::Range::default() };
        for page in range << HUGE..(range + 1) << HUGE {
            found.swapped += u64::from(self.pages.get(&page) == Some(&Mapped::Swapped));
            let Some(Mapped::Folio(id, _)) = self.pages.get(&page) else { continue };
            let folio = self.folios[*id];
            if !folio.zero {
                found.mapped += 1;
                let others = folio.uses > 1 << folio.order;
                found.shared += u64::from(others && self.forked.contains(&range));
            }
        }
        found
    }

    fn merge(&mut self, range: u64, rules: &khugepaged::Rules) {
        if rules.merges(self.khugepaged_range(range))
            && self.make_room(512)
            && rules.merges(self.khugepaged_range(range))
        {
            self.events.merges += 1;
            self.events.merge_swap_ins += self.khugepaged_range(range).swapped;
            self.allocate(HUGE, range << HUGE, false);
        }
    }

    /// Run khugepaged until `time`, area by area.
    pub fn tick(&mut self, policy: &Policy) {
        while self.wakes <= self.time {
            self.wakes += RULES.sleep_ns;
            let (mut progress, mut passes) = (0, u32::from(self.at == 0));
            while progress < RULES.pages {
                let Some((&page, &advice)) = self.areas.range(self.at..).next() else {
                    (self.at, passes) = (0, passes + 1);
                    if passes == 2 {
                        break;
                    }
                    continue;
                };
                let end = (page..).find(|page| self.areas.get(page) != Some(&advice)).unwrap();
                // The scan may continue inside an area.
                let first = page.max(self.at).next_multiple_of(512);
                if first + 512 <= end && policy.allows(HUGE, advice) {
                    if self.tables.contains(&(first >> HUGE)) {
                        self.merge(first >> HUGE, &RULES);
                    }
                    (self.at, progress) = (first + 512, progress + 512);
                } else {
                    (self.at, progress) = (end, progress + 1);
                }
            }
        }
    }
}
