//! Pages under policies, against tables of every page.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_trace::{RegionEvent, RegionKind, ThreadInfo};
use proptest::prelude::*;

use super::super::surroundings::Surroundings;
use super::remap::moved;
use super::*;
use crate::lifetimes::{Blocks, Spaces};

/// First byte of the memory that tests use; a few ranges of 2 MiB.
const BASE: u64 = 0x4000_0000;
const RULES: khugepaged::Rules =
    khugepaged::Rules { sleep_ns: 2e9, pages: 1500, max_none: 400, max_shared: 100 };

#[derive(Clone, Debug)]
enum Step {
    /// A reference by a process to a page.
    Touch(u32, u64, bool),
    Event(RegionEvent),
    /// A second passes.
    Second,
}

fn event(event: RegionKind, process: u32, first: u64, pages: u64) -> RegionEvent {
    RegionEvent {
        event,
        thread: process,
        addr: BASE + (first << SMALL),
        length: pages << SMALL,
        prot: "rw-p".into(),
        ..RegionEvent::default()
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Ranges of 16 pages; most begin where a range of 2 MiB does.
    let place = prop_oneof![2 => (0u64..5).prop_map(|range| range * 512), 1 => (0u64..160).prop_map(|at| at * 16)];
    let pages =
        prop_oneof![Just(512u64), Just(1024), (1u64..40).prop_map(|some| some * 16), Just(3)];
    let range = (place.clone(), pages, place);
    let touch = (0u32..2, 0u64..2560, any::<bool>());
    let near = (0u32..2, 0u64..5, 0u64..20, any::<bool>());
    prop::collection::vec(
        prop_oneof![
            6 => touch.prop_map(|(process, page, write)| Step::Touch(process, page, write)),
            6 => near.prop_map(|(process, range, page, write)| {
                Step::Touch(process, 512 * range + page, write)
            }),
            1 => Just(Step::Second),
            5 => (0u8..17, 0u32..2, range).prop_map(|(what, process, (first, pages, to))| {
                use RegionKind::*;
                let kind = match what {
                    0..=4 => Map,
                    5 => Unmap,
                    6 | 7 => DontNeed,
                    8 => Free,
                    9 => Move,
                    10 | 11 => Fork,
                    12 => Exit,
                    13 => Huge,
                    14 => NoHuge,
                    15 => Collapse,
                    _ => Brk,
                };
                let mut made = event(kind, process, first, pages);
                match kind {
                    Move => made.to = BASE + (to << SMALL),
                    Fork => (made.thread, made.to) = (0, 1),
                    Exit => made.thread = 1,
                    Map if to % 7 == 1 => (made.prot, made.inode) = ("rw-p".into(), 1),
                    Brk => made.addr = BASE,
                    _ => {}
                }
                Step::Event(made)
            }),
        ],
        1..300,
    )
}

/// The memory of a page.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PlainFolio {
    order: u32,
    zero: bool,
    first: u64,
}

/// What is mapped at a page: a folio, or other memory.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Mapped {
    folio: Option<usize>,
    shared: bool,
}

/// Every page for itself, and nothing counted twice.
#[derive(Default)]
struct Plain {
    folios: Vec<PlainFolio>,
    pages: BTreeMap<u64, Mapped>,
    touched: BTreeMap<u64, u32>,
    /// Ranges of 2 MiB with a page table or a huge page; those with a huge page; those that a fork copied.
    tables: BTreeSet<u64>,
    huge: BTreeSet<u64>,
    forked: BTreeSet<u64>,
    areas: BTreeMap<u64, Advice>,
    faults: Faults,
    events: Events,
    free: u64,
    time: f64,
    at: u64,
    wakes: f64,
}

impl Plain {
    fn uses(&self, folio: usize) -> usize {
        self.pages.values().filter(|page| page.folio == Some(folio)).count()
    }

    fn held(&self) -> u64 {
        let used: BTreeSet<usize> = self.pages.values().filter_map(|page| page.folio).collect();
        used.iter().map(|id| &self.folios[*id]).filter(|f| !f.zero).map(|f| 1 << f.order).sum()
    }

    fn mapped(&self) -> u64 {
        let private = |page: &&Mapped| page.folio.is_some_and(|id| !self.folios[id].zero);
        self.pages.values().filter(private).count() as u64
    }

    /// Free a block of 2 MiB with each huge folio that nothing maps any more.
    fn change(&mut self, what: impl FnOnce(&mut Self)) {
        let live = |plain: &Self| {
            let ids: BTreeSet<usize> = plain.pages.values().filter_map(|page| page.folio).collect();
            ids.into_iter()
                .filter(|id| plain.folios[*id].order == HUGE && !plain.folios[*id].zero)
                .collect::<BTreeSet<usize>>()
        };
        let before = live(self);
        what(self);
        self.free += before.difference(&live(self)).count() as u64;
    }

    fn allocate(&mut self, order: u32, first: u64, zero: bool) {
        self.folios.push(PlainFolio { order, zero, first });
        let folio = Some(self.folios.len() - 1);
        self.tables.insert(first >> HUGE);
        for page in first..first + (1 << order) {
            self.pages.insert(page, Mapped { folio, shared: false });
        }
        if order == HUGE {
            self.huge.insert(first >> HUGE);
            self.forked.remove(&(first >> HUGE));
        }
    }

    fn small(&mut self, page: u64) {
        self.faults.pages[0] += 1;
        self.allocate(0, page, false);
    }

    fn replace_zero(&mut self, page: u64) {
        self.faults.pages[HUGE as usize] += 1;
        self.allocate(HUGE, page >> HUGE << HUGE, false);
    }

    fn split(&mut self, range: u64) {
        if !self.huge.remove(&range) {
            return;
        }
        let pages: Vec<u64> = (range << HUGE..(range + 1) << HUGE).collect();
        let first = self.pages[&pages[0]].folio.unwrap();
        if self.folios[first].zero {
            for page in pages {
                match self.touched.contains_key(&page) {
                    true => self.pages.insert(page, Mapped { folio: None, shared: false }),
                    false => self.pages.remove(&page),
                };
            }
        } else {
            self.events.splits += 1;
        }
    }

    fn order(&self, page: u64) -> usize {
        if self.huge.contains(&(page >> HUGE)) {
            return HUGE as usize;
        }
        let Some(folio) = self.pages[&page].folio.map(|id| self.folios[id]) else { return 0 };
        let at_its_place = folio.first % 512 == (page >> folio.order << folio.order) % 512;
        if folio.order < HUGE && at_its_place { folio.order as usize } else { 0 }
    }

    fn copy(&mut self, page: u64) {
        let range = page >> HUGE;
        let folio = self.pages[&page].folio.unwrap();
        let own = (range << HUGE..(range + 1) << HUGE)
            .filter(|page| self.pages.get(page).is_some_and(|page| page.folio == Some(folio)))
            .count();
        if self.uses(folio) == own {
            self.faults.maps += 1;
            if self.huge.contains(&range) {
                self.forked.remove(&range);
                for page in range << HUGE..(range + 1) << HUGE {
                    self.pages.get_mut(&page).unwrap().shared = false;
                }
            }
            return;
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
        if !zeros && written {
            self.small(page);
        } else if !zeros {
            let of_file = matches!(backing, Backing::Object { of_file: true, .. });
            self.faults.maps += u64::from(!of_file);
            self.pages.insert(page, Mapped { folio: None, shared: false });
        } else if let Some(Mapped { folio: Some(id), .. }) = mapped {
            if written && self.folios[id].zero {
                self.replace_zero(page);
            } else if written && self.forked.contains(&(page >> HUGE)) {
                self.touched.insert(page, block);
                self.copy(page);
            }
        } else {
            self.first(policy, page, reads, around);
        }
        self.touched.insert(page, block);
    }

    fn first(&mut self, policy: &Policy, page: u64, reads: bool, (low, high): (u64, u64)) {
        let advice = self.areas.get(&page).copied().unwrap_or_default();
        let table = (page >> HUGE << HUGE..(page >> HUGE << HUGE) + 512)
            .any(|p| self.pages.contains_key(&p));
        // `born` made one.
        let empty = !table && !self.kept(page >> HUGE);
        let range =
            |order: u32| (page >> order << order, (page >> order << order) + (1 << order) - 1);
        let allowed = |order: u32| {
            policy.allows(order, advice) && low <= range(order).0 && range(order).1 <= high
        };
        if allowed(HUGE) && empty {
            let compacts = policy.compacts && advice == Advice::Huge;
            if reads {
                self.faults.maps += 1;
                return self.allocate(HUGE, range(HUGE).0, true);
            }
            if self.free > 0 || compacts {
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
            self.pages.insert(page, Mapped { folio: None, shared: false });
            return;
        }
        for order in (1..HUGE).rev() {
            let (first, last) = range(order);
            if allowed(order) && self.pages.range(first..=last).next().is_none() {
                self.faults.pages[order as usize] += 1;
                return self.allocate(order, first, false);
            }
        }
        self.small(page);
    }

    /// Page tables that stayed when all of their pages were given back.
    fn kept(&self, range: u64) -> bool {
        self.forked.contains(&(range | 1 << 60))
    }

    fn apply(&mut self, policy: &Policy, (change, around): &Changed) {
        match change {
            Change::Born { .. } => self.born(policy, change, *around),
            Change::Written(block) => {
                let page = *self.touched.iter().find(|(_, other)| *other == block).unwrap().0;
                match self.pages[&page] {
                    Mapped { folio: None, .. } => self.small(page),
                    Mapped { folio: Some(id), .. } if self.folios[id].zero => {
                        self.replace_zero(page);
                    }
                    Mapped { shared: true, .. } => self.copy(page),
                    _ => {}
                }
                self.pages.get_mut(&page).unwrap().shared = false;
            }
            Change::Ended { range: (first, last), kept, .. } => self.end(*first, *last, *kept),
            Change::Freed(blocks) => {
                let ranges: BTreeSet<u64> = (self.touched.iter())
                    .filter(|(_, block)| blocks.contains(block))
                    .map(|(page, _)| page >> HUGE)
                    .collect();
                for range in ranges {
                    let mut touched = self.touched.range(range << HUGE..(range + 1) << HUGE);
                    if touched.any(|(_, block)| !blocks.contains(block)) {
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
                let rules = khugepaged::Rules { max_none: 512, max_shared: 512, ..RULES };
                let ranges: Vec<u64> =
                    self.tables.range(first >> HUGE..=last >> HUGE).copied().collect();
                for range in ranges {
                    let pages = range << HUGE..(range + 1) << HUGE;
                    let advice = self.areas.get(&pages.start).copied();
                    let inside = *first <= pages.start && pages.end - 1 <= *last;
                    let one_area = advice.is_some_and(|advice| advice != Advice::NoHuge)
                        && pages.clone().all(|page| self.areas.get(&page).copied() == advice);
                    if inside && one_area {
                        self.merge(range, &rules);
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
                self.pages.remove(&page);
                self.touched.remove(&page);
            }
            if whole || !kept && self.pages.range(pages.clone()).next().is_none() {
                self.tables.remove(&range);
                self.huge.remove(&range);
                self.forked.remove(&range);
                self.forked.remove(&(range | 1 << 60));
            } else {
                self.note_kept(range);
            }
        }
    }

    /// A table without pages stays: see [`Plain::kept`].
    fn note_kept(&mut self, range: u64) {
        if self.tables.contains(&range) {
            self.forked.insert(range | 1 << 60);
        }
    }

    fn fork(&mut self, blocks: &[(u32, u32, u64)]) {
        let mut copied = BTreeSet::new();
        for &(block, copy, number) in blocks {
            let page = *self.touched.iter().find(|(_, other)| **other == block).unwrap().0;
            let (from, to) = (page >> HUGE, number >> HUGE);
            if copied.insert(to) {
                let parent: Vec<(u64, Mapped)> =
                    (self.pages.range(from << HUGE..(from + 1) << HUGE))
                        .filter(|(_, mapped)| mapped.folio.is_some())
                        .map(|(page, mapped)| (page - (from << HUGE) + (to << HUGE), *mapped))
                        .collect();
                self.pages.extend(parent);
                self.tables.insert(to);
                self.note_kept(to);
                self.forked.extend([from, to]);
                if self.huge.contains(&from) {
                    self.huge.insert(to);
                }
            }
            self.touched.insert(number, copy);
            let folio = self.pages[&page].folio;
            let shared = folio.is_some_and(|id| !self.folios[id].zero);
            self.pages.get_mut(&page).unwrap().shared = shared;
            self.pages.insert(number, Mapped { folio, shared });
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
                }
                if let Some(block) = self.touched.remove(&page) {
                    self.touched.insert(to, block);
                }
            }
            if keeps {
                let to = moved(pages.start, by) >> HUGE;
                for set in [&mut self.huge, &mut self.forked, &mut self.tables] {
                    if set.remove(&range) {
                        set.insert(to);
                    }
                }
                self.forked.remove(&(range | 1 << 60));
                self.note_kept(to);
            } else if self.pages.range(pages).next().is_none() {
                self.tables.remove(&range);
                self.forked.remove(&range);
                self.forked.remove(&(range | 1 << 60));
            }
        }
    }

    fn merge(&mut self, range: u64, rules: &khugepaged::Rules) {
        let (mut mapped, mut shared) = (0, 0);
        for page in range << HUGE..(range + 1) << HUGE {
            let Some(Mapped { folio: Some(id), .. }) = self.pages.get(&page) else { continue };
            let folio = self.folios[*id];
            if !folio.zero {
                mapped += 1;
                let others = self.uses(*id) > 1 << folio.order;
                shared += u64::from(others && self.forked.contains(&range));
            }
        }
        let huge = self.huge.contains(&range);
        if rules.merges(khugepaged::Range { huge, mapped, shared }) {
            self.events.merges += 1;
            self.allocate(HUGE, range << HUGE, false);
        }
    }

    /// khugepaged until the time, area by area.
    fn tick(&mut self, policy: &Policy) {
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
                // An area in which it is began before.
                let first = page.max(self.at).next_multiple_of(512);
                if first + 512 <= end && policy.allows(HUGE, advice) {
                    if self.tables.contains(&(first >> HUGE)) {
                        self.change(|plain| plain.merge(first >> HUGE, &RULES));
                    }
                    (self.at, progress) = (first + 512, progress + 512);
                } else {
                    (self.at, progress) = (end, progress + 1);
                }
            }
        }
    }
}

fn check(steps: &[Step], policy: &str, free: u64) -> Result<(), TestCaseError> {
    let policy = Policy::parse(policy).unwrap();
    let settings = Settings { policy: policy.clone(), khugepaged: Some(RULES), free };
    let threads = [0, 1].map(|index| ThreadInfo { index, process: index, ..ThreadInfo::default() });
    let mut blocks = Blocks::new(SMALL, SMALL + HUGE, Spaces::new(&threads));
    blocks.watch_areas();
    let (mut around, mut pages) = (Surroundings::default(), Pages::new(&settings));
    let mut plain = Plain { free, wakes: RULES.sleep_ns / 2.0, ..Plain::default() };
    for step in steps {
        match step {
            Step::Touch(process, page, write) => {
                let space = blocks.spaces().of_thread(*process);
                let place = crate::lifetimes::place(space, BASE + (page << SMALL));
                blocks.reference(place >> SMALL, *write);
            }
            Step::Event(event) => blocks.apply(event),
            Step::Second => {
                plain.time += 1e9;
                pages.tick(plain.time);
                plain.tick(&policy);
            }
        }
        for change in around.of(&mut blocks) {
            pages.apply(&change);
            plain.change(|plain| plain.apply(&policy, &change));
        }
        prop_assert_eq!(pages.faults, plain.faults, "{:?}", step);
        prop_assert_eq!(pages.events, plain.events, "{:?}", step);
        prop_assert_eq!(pages.resident(), plain.held(), "{:?}", step);
        prop_assert_eq!(pages.mapped()[0], plain.mapped(), "{:?}", step);
        prop_assert_eq!(pages.free, plain.free, "{:?}", step);
        for (&page, &block) in &plain.touched {
            prop_assert_eq!(pages.order(block), plain.order(page), "{:?} {:x}", step, page);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn pages_are_those_of_tables_of_every_page(
        steps in steps(),
        policy in prop::sample::select(vec![
            "never", "always", "madvise", "defer", "64K=always+2M=madvise", "16K=always+256K=always",
        ]),
        free in 0u64..6,
    ) {
        check(&steps, policy, free)?;
    }
}
