//! Linux's lists over at most eight frames, for memories that fault at a good part of all references.
//!
//! What reclaim does there depends on little: how long the lists are, whether each of their pages was
//! referenced and what it is marked with, the costs. All of that is one word. [`Lists`] reclaims once
//! from each word that is met, and what came of it is looked up from then on.
//!
//! A program that faults so often does much the same again and again: of the reclaims of two or three
//! frames all but some dozens were met before, of five nearly all, of seven nine in ten. Beyond eight
//! that pays less, and the word would be longer.

use super::{
    ACTIVE, AccessBits, BATCH, EXECUTABLE, FILE, LAZY, LIST, Lists, MARKED, REWRITTEN, Replacement,
    WORKINGSET, note_cost,
};

/// Most frames: a bit of a byte each.
pub const MAX_FRAMES: u64 = 8;
/// The most where costs do not matter: no list has more than one page to look at above priority 0,
/// and of one page no part is taken, whatever the costs.
const FREE_OF_COST: u64 = 3;

// The word of a memory. Resident pages have places, from 0: those of each list after those of the one
// before, oldest first. The lowest bytes have a bit for each place.
const REFERENCED: u32 = 0;
/// The bytes of what pages are marked with.
const MARKS: [(u32, u16); 3] = [(8, MARKED), (16, EXECUTABLE), (24, WORKINGSET)];
/// Those bytes and that of the accessed bits.
const PLACES: u64 = u32::MAX as u64;
const WORKINGSETS: u64 = 0xff << 24;
/// Lengths of lists, four bits each.
const LENGTHS: u32 = 32;
/// Costs, six bits each: they are halved beyond a quarter of the pages, and 33 is the most at a time.
const COSTS: u32 = 48;
const COST: u64 = 63;
/// Whether a page was activated at refault since the last reclaim, a bit for each type.
const REFAULTED: u32 = 60;

/// In each byte of a word: 1; all but the highest bit; the highest.
const ONES: u64 = u64::MAX / 255;
const LOW: u64 = 0x7f * ONES;
const HIGH: u64 = 0x80 * ONES;

/// log2 of the reclaims that are remembered.
const REMEMBERED: u32 = 13;

/// Pages in each list and those before, four bits each.
fn ends(word: u64) -> u64 {
    (word >> LENGTHS & 0xffff) * 0x1111
}

/// The first so many of these bytes, each from the byte that `from` says.
#[inline]
fn moved<const PLACES: u32>(bytes: u64, from: u32) -> u64 {
    (0..PLACES).fold(0, |moved, place| {
        let byte = bytes >> (8 * (from >> (4 * place) & 7)) & 0xff;
        moved | byte << (8 * place)
    })
}

/// What a reclaim comes to, in half a line of the cache. Four bits each:
#[derive(Clone, Copy, Debug, Default)]
struct Reclaim {
    /// The word before, which is not 0 for a memory with pages, and after.
    before: u64,
    after: u64,
    /// By place after it, and then of the pages evicted, oldest eviction first: the place before.
    from: u32,
    /// Of the pages evicted, by how many ticks but one the clock had advanced. There are no more than
    /// pages and accessed bits, 16.
    evicted_at: u32,
    /// Of the pages evicted, the flags that are left behind, [packed](pack).
    flags: u32,
    /// By how many ticks the clock advances.
    ticks: u32,
}

/// The flags of a page that was evicted, in four bits.
fn pack(flags: u16) -> u32 {
    u32::from(flags & (FILE | WORKINGSET) | (flags & EXECUTABLE) >> 2)
}

fn unpack(packed: u32) -> u16 {
    let flags = packed as u16;
    flags & (FILE | WORKINGSET) | (flags & EXECUTABLE >> 2) << 2
}

/// A memory of at most [`MAX_FRAMES`] frames. [`Lists`] knows of the pages that are not resident.
#[derive(Clone, Debug)]
pub struct Few {
    word: u64,
    /// What the caller calls the page in each place, below 127, and a bit of its own. Places without
    /// a page have 127.
    labels: u64,
    frames: u64,
    reclaims: Vec<Reclaim>,
    /// Where a reclaim is made; the pages are places.
    lists: Lists,
}

impl Few {
    /// Take over from `lists`: answers the pages in the order of their places, too. `None` for
    /// memories that are not for this: large ones, with old statistics, or with discarded pages.
    pub fn take(lists: &Lists) -> Option<(Self, Vec<u32>)> {
        if lists.setup.frames > MAX_FRAMES || lists.setup.statistics_every != 1 {
            return None;
        }
        let (word, pages) = lists.few()?;
        let mut copy = Lists::new(lists.setup);
        copy.pages.grow(MAX_FRAMES as u32 - 1);
        let few = Self {
            word,
            labels: LOW,
            frames: lists.setup.frames,
            reclaims: vec![Reclaim::default(); 1 << REMEMBERED],
            lists: copy,
        };
        Some((few, pages))
    }

    /// Give it back, with the pages in their places.
    pub fn put_back(&self, lists: &mut Lists, pages: &[u32]) {
        lists.set_few(self.word, pages);
    }

    /// How many pages are resident.
    pub fn resident(&self) -> usize {
        (ends(self.word) >> 12 & 15) as usize
    }

    /// The accessed bits, by place.
    pub fn referenced(&self) -> u64 {
        self.word >> REFERENCED & 0xff
    }

    /// Set accessed bits.
    #[inline]
    pub fn refer(&mut self, places: u64) {
        self.word |= places << REFERENCED;
    }

    /// Labels and the caller's bits, a byte for each place.
    #[inline]
    pub fn labels(&mut self) -> &mut u64 {
        &mut self.labels
    }

    /// The place of the page with this label.
    #[inline]
    pub fn find(&self, label: u8) -> Option<u32> {
        // The highest bit of each byte that is not the label, whatever the caller's bit.
        let other = ((self.labels ^ u64::from(label) * ONES) & LOW) + LOW;
        let found = !other & HIGH;
        (found != 0).then(|| found.trailing_zeros() / 8)
    }

    /// As [`Replacement::fault`]. The page gets this label and the accessed bit. Of each page that is
    /// evicted `evict` takes the label and whether it is one of a file, and answers the page. Answers
    /// whether `page` is one of a file.
    #[inline]
    pub fn fault(
        &mut self,
        lists: &mut Lists,
        page: u32,
        label: u8,
        mut evict: impl FnMut(u8, bool) -> u32,
    ) -> bool {
        lists.pages.grow(page);
        if self.resident() as u64 == self.frames {
            let slot = self.reclaim();
            let Reclaim { after, from, evicted_at, flags: packed, ticks, .. } = self.reclaims[slot];
            // The loops are unrolled.
            let labels = match self.frames {
                ..=4 => moved::<4>(self.labels, from),
                _ => moved::<8>(self.labels, from),
            };
            let left = ends(after) >> 12 & 15;
            for (gone, place) in (left..self.frames).enumerate() {
                let flags = unpack(packed >> (4 * gone) & 15);
                let old = evict((labels >> (8 * place)) as u8, flags & FILE != 0);
                lists.pages[old] = flags;
                let ticks = u64::from(evicted_at >> (4 * gone) & 15);
                lists.pages.set_time(old, lists.age + 1 + ticks);
            }
            let kept = (1 << (8 * left)) - 1;
            self.labels = labels & kept | LOW & !kept;
            self.word = after;
            lists.age += u64::from(ticks);
        }
        let (mut flags, evicted_at) = (lists.pages[page], lists.pages.time(page));
        if self.frames <= FREE_OF_COST {
            flags &= !WORKINGSET;
        }
        let kind = usize::from(flags & FILE != 0);
        let (ends, resident) = (ends(self.word), self.resident() as u64);
        let others = resident - (self.word >> (LENGTHS + 8 * kind as u32) & 15);
        let mut marks = flags & (FILE | EXECUTABLE);
        if evicted_at > 0 && lists.age - (evicted_at - 1) <= others {
            lists.age += 1;
            marks |= ACTIVE | flags & WORKINGSET;
            self.word |= 1 << (REFAULTED + kind as u32);
            if flags & WORKINGSET != 0 {
                let cost = [0, 6].map(|at| self.word >> (COSTS + at) & COST);
                let [anon, file] = note_cost(cost, kind, BATCH, resident);
                self.word = self.word & !(COST << COSTS | COST << (COSTS + 6))
                    | anon << COSTS
                    | file << (COSTS + 6);
            }
        }
        self.insert(marks, label, ends);
        kind == 1
    }

    /// Put a page, which was referenced, at the head of the list that its word says.
    #[inline]
    fn insert(&mut self, marks: u16, label: u8, ends: u64) {
        let list = u32::from(marks & LIST);
        let place = ends >> (4 * list) & 15;
        // As many of the bits of each byte are before it.
        let before = ((1 << place) - 1) * (ONES & PLACES);
        let bits = self.word & PLACES;
        let mut own = 1 << REFERENCED;
        for (at, mark) in MARKS {
            own |= u64::from(marks & mark) << (at - mark.ilog2());
        }
        self.word = self.word & !PLACES | bits & before | (bits & !before) << 1 | own << place;
        self.word += 1 << (LENGTHS + 4 * list);
        let before = (1 << (8 * place)) - 1;
        self.labels = self.labels & before
            | u64::from(label) << (8 * place)
            | (self.labels & !before) << 8;
    }

    /// Bits that change nothing: whether an active page is referenced, unless it is code, and whether
    /// it was active before, which it is marked with when it is not any more; whether code is marked.
    #[inline]
    fn idle(&self) -> u64 {
        let ends = ends(self.word);
        let below = |list: u32| (1 << (ends >> (4 * list) & 15)) - 1;
        let active = below(0) ^ below(1) ^ below(2) ^ below(3);
        let code = self.word >> 16 & 0xff;
        active & !code | code << 8 | active << 24
    }

    /// Where it is remembered what a reclaim comes to.
    #[inline]
    fn reclaim(&mut self) -> usize {
        self.word &= !self.idle();
        let slot = self.word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - REMEMBERED);
        if self.reclaims[slot as usize].before != self.word {
            self.learn(slot as usize);
        }
        slot as usize
    }

    /// Have it done by [`Lists`].
    #[cold]
    fn learn(&mut self, slot: usize) {
        let lists = &mut self.lists;
        lists.age = 0;
        lists.set_few(self.word, &[0, 1, 2, 3, 4, 5, 6, 7]);
        let mut bits = Bits(self.word >> REFERENCED);
        lists.evicted.clear();
        lists.reclaim(&mut bits);
        let evicted = &lists.evicted;
        // No page here was ever discarded.
        let (mut after, mut from) = lists.few().unwrap_or_default();
        for (place, &page) in from.iter().enumerate() {
            after |= u64::from(bits.test(page)) << (REFERENCED + place as u32);
        }
        let fours = |of: &dyn Fn(u32) -> u32, pages: &[u32]| {
            pages.iter().rev().fold(0, |fours, &page| fours << 4 | of(page))
        };
        from.extend(evicted);
        self.reclaims[slot] = Reclaim {
            before: self.word,
            after,
            from: fours(&|page| page, &from),
            evicted_at: fours(&|page| lists.pages.time(page) as u32 - 1, evicted),
            flags: fours(&|page| pack(lists.pages[page]), evicted),
            ticks: lists.age as u32,
        };
    }
}

struct Bits(u64);

impl AccessBits for Bits {
    fn test(&self, page: u32) -> bool {
        self.0 >> page & 1 == 1
    }

    fn clear(&mut self, page: u32) {
        self.0 &= !(1 << page);
    }
}

impl Lists {
    /// The word of a memory of few frames, without accessed bits, and its pages in their places; none
    /// if there was a discarded page.
    fn few(&self) -> Option<(u64, Vec<u32>)> {
        let (mut word, mut pages) = (0, Vec::new());
        for (held, list) in self.lists.iter().zip(0..) {
            word |= held.len() << (LENGTHS + 4 * list);
            for page in held.iter() {
                let marks = self.pages[page];
                if marks & (LAZY | REWRITTEN) != 0 {
                    return None;
                }
                for (at, mark) in MARKS {
                    word |= u64::from(marks & mark != 0) << (at + pages.len() as u32);
                }
                pages.push(page);
            }
        }
        let [anon, file] = self.cost;
        word |= anon << COSTS | file << (COSTS + 6);
        if self.setup.frames <= FREE_OF_COST {
            word &= !(WORKINGSETS | COST << COSTS | COST << (COSTS + 6));
        }
        for kind in 0..2 {
            let refaulted = self.activated[kind] != self.activated_before[kind];
            word |= u64::from(refaulted) << (REFAULTED + kind as u32);
        }
        Some((word, pages))
    }

    /// Have the pages of a word, in their places; accessed bits are the caller's.
    fn set_few(&mut self, word: u64, pages: &[u32]) {
        self.lists = Default::default();
        let mut places = 0..;
        for list in 0..=LIST {
            for _ in 0..word >> (LENGTHS + 4 * u32::from(list)) & 15 {
                let Some(place) = places.next() else { return };
                let page = pages[place];
                self.pages[page] = list;
                for (at, mark) in MARKS {
                    let set = word >> (at as usize + place) & 1 == 1;
                    self.pages[page] |= if set { mark } else { 0 };
                }
                self.push_head(page);
            }
        }
        for kind in 0..2 {
            self.cost[kind] = word >> (COSTS + 6 * kind as u32) & COST;
            self.activated[kind] =
                self.activated_before[kind] + (word >> (REFAULTED + kind as u32) & 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::replacement::Setup;

    const PAGES: u32 = 24;

    /// Lists, and in their place now and then a few; labels are pages.
    struct Memory {
        lists: Lists,
        few: Option<Few>,
        resident: Vec<u32>,
        referenced: Bits,
    }

    impl Memory {
        fn toggle(&mut self) {
            match self.few.take() {
                Some(mut few) => {
                    let labels = *few.labels();
                    let page = |place: usize| (labels >> (8 * place) & 0x7f) as u32;
                    let pages: Vec<u32> = (0..few.resident()).map(page).collect();
                    let set = |(place, page): (usize, &u32)| (few.referenced() >> place & 1) << page;
                    self.referenced = Bits(pages.iter().enumerate().map(set).sum());
                    few.put_back(&mut self.lists, &pages);
                }
                None => {
                    let (mut few, pages) = Few::take(&self.lists).unwrap();
                    for (place, &page) in pages.iter().enumerate() {
                        *few.labels() ^= u64::from(page ^ 0x7f) << (8 * place);
                        few.refer(u64::from(self.referenced.test(page)) << place);
                    }
                    self.few = Some(few);
                }
            }
        }

        /// Answers what is evicted.
        fn refer(&mut self, page: u32) -> Vec<u32> {
            let mut evicted = Vec::new();
            if let Some(few) = &mut self.few {
                match few.find(page as u8) {
                    Some(place) => few.refer(1 << place),
                    None => {
                        few.fault(&mut self.lists, page, page as u8 | 0x80, |label, of_file| {
                            evicted.push(u32::from(label & 0x7f));
                            assert_eq!(of_file, label & 0x7f >= 8);
                            u32::from(label & 0x7f)
                        });
                    }
                }
            } else {
                if !self.resident.contains(&page) {
                    evicted.extend(self.lists.fault(page, &(), &mut self.referenced));
                }
                self.referenced.0 |= 1 << page;
            }
            if !self.resident.contains(&page) {
                self.resident.push(page);
            }
            self.resident.retain(|page| !evicted.contains(page));
            evicted
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        /// The same evictions, fault by fault, whatever is taken over and given back.
        #[test]
        fn a_few_frames_are_lists(
            frames in 1..=MAX_FRAMES,
            page_bytes in prop::sample::select(vec![4096u64, 1 << 28, 1 << 33]),
            swappiness in prop::sample::select(vec![0u64, 1, 60, 100, 199, 200]),
            pages in 1..=PAGES,
            steps in prop::collection::vec((0..PAGES, 0..PAGES, 0u8..100), 1..1500),
        ) {
            let setup = Setup { frames, page_bytes, swappiness, statistics_every: 1 };
            let memory = || {
                let mut lists = Lists::new(setup);
                lists.pages.grow(PAGES - 1);
                // The first are anonymous; of the others, half are code.
                (8..PAGES).for_each(|page| lists.begin_file(page, page % 2 == 0));
                Memory { lists, few: None, resident: Vec::new(), referenced: Bits(0) }
            };
            let (mut plain, mut other) = (memory(), memory());
            for (page, skewed, what) in steps {
                // Some pages are referenced more than others.
                let page = page.min(skewed) % pages;
                match what {
                    0..3 => other.toggle(),
                    3 => {
                        if other.few.is_some() {
                            other.toggle();
                        }
                        for memory in [&mut plain, &mut other] {
                            let resident = memory.resident.contains(&page);
                            memory.lists.release(page, resident);
                            memory.resident.retain(|other| *other != page);
                            memory.referenced.clear(page);
                            if page >= 8 {
                                memory.lists.begin_file(page, page % 2 == 0);
                            }
                        }
                    }
                    _ => prop_assert_eq!(plain.refer(page), other.refer(page)),
                }
                prop_assert_eq!(plain.lists.age, other.lists.age);
            }
        }
    }
}
