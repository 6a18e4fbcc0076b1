//! Exact LRU for every memory size at once, by stack distance (Mattson, Gecsei, Slutz, Traiger,
//! IBM Systems Journal 9(2), 1970).
//!
//! The LRU stack is kept in two pieces. Its top [`FRONT`] pages are a small ring in recency order:
//! most references of a real program are found there, at a distance that is simply the place. The
//! rest lie in slots numbered by the time they left the top (a page leaves the top after every
//! page below it in the stack did), a bit a slot, with counts of the live ones of 512 slots, of 64
//! times as many and of 64 times those. Both pieces together are the whole stack: exact.
//!
//! A page that is freed leaves a *hole* in the stack, which takes up a place like a page: in a memory
//! of as many frames or more it is a free frame. A reference to a page below the topmost hole, or to
//! one that is not in the stack, fills that hole: pages above the hole move down by one, those below
//! it stay. The page's own place, if it had one, becomes a hole: in the memories that held it its
//! frame did not change, so the free frame is now further down.
//!
//! Use it for LRU alone. CLOCK and Linux's lists are not stack algorithms.

mod front;
mod live;

use std::collections::BTreeSet;

use front::{FRONT, Front, HOLE};
use live::{LINE, Live};
use nearfar_hardware::table::prefetch;
use nearfar_simd::Avx2;

/// What the policy is.
pub const WHAT: &str = "exact least recently used";

const NEW: u32 = u32::MAX;
const IN_FRONT: u32 = u32::MAX - 1;
const CLEAN: u32 = u32::MAX;

/// What is known of a page; one cache line per reference.
#[derive(Clone, Copy, Debug)]
struct Page {
    /// Its slot, or [`NEW`], or [`IN_FRONT`].
    slot: u32,
    /// Largest distance since its last write; [`CLEAN`] when it was never written.
    unwritten: u32,
}

const NEVER: Page = Page { slot: NEW, unwritten: CLEAN };

/// The LRU stack, and what its distances add up to. Pages are dense ids.
#[derive(Clone, Debug)]
pub struct StackDistance {
    front: Front,
    pages: Vec<Page>,
    page_in: Vec<u32>,
    live: Live,
    next: usize,
    below: usize,
    /// References by stack distance (distinct other pages since the last one), of pages that are not
    /// marked and of those that are.
    distances: [Histogram; 2],
    first: [u64; 2],
    written: [Histogram; 2],
    /// A bit a page that is marked; none until one is.
    marked: Vec<u64>,
    /// Holes among the top of the stack.
    front_holes: usize,
    /// Slots that are holes.
    holes: BTreeSet<u32>,
}

/// Counts by value. Those of large values lie far apart, and to count one is to wait for memory: so
/// it is first asked for, and counted some values later.
#[derive(Clone, Debug, Default)]
struct Histogram {
    /// Of values below [`FRONT`].
    near: [u64; FRONT],
    /// Of the others, by value.
    far: Vec<u64>,
    pending: Vec<u32>,
}

impl Histogram {
    /// Values that wait.
    const MAX_PENDING: usize = 32;

    #[inline]
    fn add(&mut self, value: u32) {
        match self.near.get_mut(value as usize) {
            Some(count) => *count += 1,
            None => self.add_far(value),
        }
    }

    fn add_far(&mut self, value: u32) {
        prefetch(&self.far, value as usize);
        self.pending.push(value);
        if self.pending.len() == Self::MAX_PENDING {
            for value in self.pending.drain(..) {
                let value = value as usize;
                if value >= self.far.len() {
                    self.far.resize(value + 1, 0);
                }
                self.far[value] += 1;
            }
        }
    }

    /// How many values are `least` or more.
    fn from(&self, least: u64) -> u64 {
        let pending = self.pending.iter().filter(|value| u64::from(**value) >= least).count();
        let rest = |counts: &[u64]| {
            let least = usize::try_from(least).unwrap_or(usize::MAX).min(counts.len());
            counts[least..].iter().sum::<u64>()
        };
        rest(&self.near) + rest(&self.far) + pending as u64
    }
}

impl Default for StackDistance {
    fn default() -> Self {
        Self::new()
    }
}

impl StackDistance {
    /// An empty stack.
    pub fn new() -> Self {
        let mut stack = Self {
            front: Front::new(),
            pages: Vec::new(),
            page_in: Vec::new(),
            live: Live::new(Avx2::new()),
            next: 0,
            below: 0,
            distances: Default::default(),
            first: [0; 2],
            written: Default::default(),
            marked: Vec::new(),
            front_holes: 0,
            holes: BTreeSet::new(),
        };
        stack.resize_slots(LINE * 8);
        stack
    }

    /// Say that `page` is referenced soon. It changes no result; with it, references to pages that
    /// lie far apart do not wait for memory one by one.
    #[inline]
    pub fn expect(&self, page: u32) {
        prefetch(&self.pages, page as usize);
    }

    /// Reference `page`; returns its stack distance, `None` the first time.
    pub fn access(&mut self, page: u32, write: bool) -> Option<u64> {
        let index = page as usize;
        if index >= self.pages.len() {
            self.pages.resize(index + 1, NEVER);
        }
        let distance = if self.front_holes > 0 || !self.holes.is_empty() {
            self.move_up_past_holes(page)
        } else {
            self.move_up(page)
        };
        let kind = self.kind(page);
        match distance {
            Some(distance) => {
                // Distances are below the number of pages, whose ids are 32 bits.
                self.distances[kind].add(distance as u32);
                let since = &mut self.pages[index].unwritten;
                if *since != CLEAN {
                    *since = (distance as u32).max(*since);
                }
            }
            None => self.first[kind] += 1,
        }
        if write {
            let since = std::mem::replace(&mut self.pages[index].unwritten, 0);
            if since != CLEAN {
                self.written[kind].add(since);
            }
        }
        distance
    }

    /// Mark `page`, until it is freed: marked pages are counted apart.
    pub fn mark(&mut self, page: u32) {
        let word = page as usize / 64;
        if self.marked.len() <= word {
            self.marked.resize(word + 1, 0);
        }
        self.marked[word] |= 1 << (page % 64);
    }

    /// 1 for a page that is marked.
    #[inline]
    fn kind(&self, page: u32) -> usize {
        let word = self.marked.get(page as usize / 64).copied().unwrap_or(0);
        (word >> (page % 64) & 1) as usize
    }

    /// Free `page`: what it leaves is a hole, and its next reference is a first one. Only writes that
    /// were flushed before count.
    pub fn release(&mut self, page: u32) {
        let Some(distance) = self.distance(page) else { return };
        self.clean(page, distance);
        if let Some(word) = self.marked.get_mut(page as usize / 64) {
            *word &= !(1 << (page % 64));
        }
        let slot = std::mem::replace(&mut self.pages[page as usize], NEVER).slot;
        match slot {
            IN_FRONT => {
                self.front.free(distance);
                self.front_holes += 1;
            }
            slot => {
                self.page_in[slot as usize] = HOLE;
                self.holes.insert(slot);
            }
        }
    }

    /// Make `page` clean without a flush: what it holds is not wanted any more. It stays where it is.
    /// Returns its stack distance, if it has one.
    pub fn discard(&mut self, page: u32) -> Option<u64> {
        let distance = self.distance(page)?;
        self.clean(page, distance);
        Some(distance as u64)
    }

    /// Pages and holes above `page`.
    fn distance(&self, page: u32) -> Option<usize> {
        match self.pages.get(page as usize)?.slot {
            NEW => None,
            IN_FRONT => self.front.place(page),
            slot => Some(self.front.len() + self.below - self.live.up_to(slot as usize)),
        }
    }

    /// Count the flushes of the last write that came before now, when `page` is at `distance`.
    fn clean(&mut self, page: u32, distance: usize) {
        let since = std::mem::replace(&mut self.pages[page as usize].unwritten, CLEAN);
        if since != CLEAN {
            self.written[self.kind(page)].add(since.max(distance as u32));
        }
    }

    /// Pages referenced so far; one that was freed counts again.
    pub fn pages(&self) -> u64 {
        self.first.iter().sum()
    }

    /// Faults of an LRU memory of `frames` frames: first references and distances >= `frames`.
    pub fn faults(&self, frames: u64) -> u64 {
        self.faults_of(frames).iter().sum()
    }

    /// The same, of pages that are not marked and of those that are.
    pub fn faults_of(&self, frames: u64) -> [u64; 2] {
        [0, 1].map(|kind| self.first[kind] + self.distances[kind].from(frames))
    }

    /// Evictions of dirty pages from an LRU memory of each of `frames` frames, of pages that are not
    /// marked and of those that are. A write is flushed if any later reference up to the next write, or
    /// the end of the trace, finds the page out.
    pub fn dirty_evictions(&self, frames: &[u64]) -> Vec<[u64; 2]> {
        let mut written = self.written.clone();
        let mut depth = 0u32;
        let mut end = |page: u32, depth: u32| {
            let since = self.pages.get(page as usize).map_or(CLEAN, |page| page.unwritten);
            if since != CLEAN {
                written[self.kind(page)].add(depth.max(since));
            }
        };
        for page in self.front.iter() {
            end(page, depth);
            depth += 1;
        }
        for slot in (0..self.next).rev() {
            if self.live.has(slot) {
                end(self.page_in[slot], depth);
                depth += 1;
            }
        }
        frames.iter().map(|&frames| [0, 1].map(|kind| written[kind].from(frames))).collect()
    }

    /// Move `page` to the top of a stack without holes; returns its distance before.
    #[inline]
    fn move_up(&mut self, page: u32) -> Option<u64> {
        match self.pages[page as usize].slot {
            IN_FRONT => {
                // A page marked so is in the ring; 0 is never reached for want of it.
                let place = self.front.place(page).unwrap_or(0);
                self.front.raise(place, page);
                Some(place as u64)
            }
            NEW => {
                self.push_front(page);
                None
            }
            slot => {
                let above = self.below - self.live.up_to(slot as usize);
                self.take_slot(slot);
                let distance = self.front.len() + above;
                self.push_front(page);
                Some(distance as u64)
            }
        }
    }

    /// The same for a stack with holes.
    fn move_up_past_holes(&mut self, page: u32) -> Option<u64> {
        let distance = self.distance(page);
        let slot = self.pages[page as usize].slot;
        if self.front_holes > 0 {
            let hole = self.front.place(HOLE).unwrap_or(0);
            if slot == IN_FRONT && distance.is_some_and(|place| place < hole) {
                return self.move_up(page);
            }
            match (slot, distance) {
                (NEW, _) | (_, None) => self.front_holes -= 1,
                (IN_FRONT, Some(place)) => self.front.free(place),
                (slot, Some(_)) => {
                    self.front_holes -= 1;
                    self.page_in[slot as usize] = HOLE;
                    self.holes.insert(slot);
                }
            }
            self.front.raise(hole, page);
            self.pages[page as usize].slot = IN_FRONT;
        } else {
            let hole = self.holes.last().copied();
            match (slot, hole) {
                (IN_FRONT, _) | (_, None) => return self.move_up(page),
                (NEW, Some(hole)) => {
                    self.holes.remove(&hole);
                    self.take_slot(hole);
                }
                (slot, Some(hole)) if hole > slot => {
                    self.holes.remove(&hole);
                    self.take_slot(hole);
                    self.page_in[slot as usize] = HOLE;
                    self.holes.insert(slot);
                }
                (slot, Some(_)) => self.take_slot(slot),
            }
            self.push_front(page);
        }
        distance.map(|distance| distance as u64)
    }

    fn take_slot(&mut self, slot: u32) {
        self.live.change(slot as usize);
        self.below -= 1;
    }

    /// Put `page` on top of a stack without holes in the ring.
    fn push_front(&mut self, page: u32) {
        self.pages[page as usize].slot = IN_FRONT;
        if let Some(last) = self.front.push(page) {
            if self.next == self.page_in.len() {
                self.compact();
            }
            let slot = self.next;
            self.next += 1;
            self.page_in[slot] = last;
            self.pages[last as usize].slot = slot as u32;
            self.live.change(slot);
            self.below += 1;
        }
    }

    fn resize_slots(&mut self, slots: usize) {
        self.page_in.resize(slots, 0);
        self.live.clear(slots);
    }

    /// Renumber the live slots from 0, with room for as many again.
    fn compact(&mut self) {
        let mut kept = 0;
        self.holes.clear();
        self.live.each(|slot| {
            let page = self.page_in[slot];
            self.page_in[kept] = page;
            match self.pages.get_mut(page as usize) {
                Some(page) => page.slot = kept as u32,
                None => drop(self.holes.insert(kept as u32)),
            }
            kept += 1;
        });
        self.resize_slots((kept * 2).next_multiple_of(LINE).max(LINE * 8));
        self.next = kept;
        self.live.fill(kept);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A list and a loop: LRU memory of `frames` frames.
    fn plain(refs: &[(u32, bool)], frames: usize) -> (u64, u64) {
        let (mut list, mut faults, mut flushed) = (Vec::<(u32, bool)>::new(), 0, 0);
        for &(page, write) in refs {
            let mut entry = (page, write);
            match list.iter().position(|e| e.0 == page) {
                Some(place) => entry.1 |= list.remove(place).1,
                None => {
                    faults += 1;
                    if list.len() == frames {
                        flushed += u64::from(list.remove(0).1);
                    }
                }
            }
            list.push(entry);
        }
        (faults, flushed)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn equals_the_list_at_every_size(
            refs in prop::collection::vec((0u32..140, any::<bool>()), 1..2500),
            skew in 1u32..140,
        ) {
            let mut stack = StackDistance::new();
            let mut next = 0;
            let mut ids = std::collections::HashMap::new();
            let refs: Vec<(u32, bool)> = refs
                .iter()
                .map(|&(page, write)| {
                    let page = if write { page % skew } else { page };
                    (*ids.entry(page).or_insert_with(|| { next += 1; next - 1 }), write)
                })
                .collect();
            for &(page, write) in &refs {
                stack.access(page, write);
            }
            let sizes: Vec<u64> = (1..=145).collect();
            let flushed = stack.dirty_evictions(&sizes);
            let mut last = u64::MAX;
            for (size, flushed) in sizes.iter().zip(flushed) {
                let faults = stack.faults(*size);
                prop_assert_eq!((faults, flushed[0]), plain(&refs, *size as usize), "{} frames", size);
                // Inclusion: misses never rise with size; and every page is missed once.
                prop_assert!(faults <= last && faults >= stack.pages());
                last = faults;
            }
        }
    }

    /// A list and a loop with pages that end: (faults, flushed).
    fn plain_with_ends(steps: &[(u32, u8)], frames: usize) -> (u64, u64) {
        let (mut list, mut faults, mut flushed) = (Vec::<(u32, bool)>::new(), 0, 0);
        for &(page, what) in steps {
            let place = list.iter().position(|e| e.0 == page);
            let mut entry = (page, what == WRITE);
            match (what, place) {
                (END, Some(place)) => drop(list.remove(place)),
                (END | DISCARD, None) => {}
                (DISCARD, Some(place)) => list[place].1 = false,
                (_, Some(place)) => entry.1 |= list.remove(place).1,
                (_, None) => {
                    faults += 1;
                    if list.len() == frames {
                        flushed += u64::from(list.remove(0).1);
                    }
                }
            }
            if what <= WRITE {
                list.push(entry);
            }
        }
        (faults, flushed)
    }

    const WRITE: u8 = 1;
    const END: u8 = 2;
    const DISCARD: u8 = 3;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        /// Pages end, and come again, and the stack is right for every size.
        #[test]
        fn holes_are_free_frames_at_every_size(
            steps in prop::collection::vec(
                (0u32..140, prop_oneof![6 => Just(0), 4 => Just(WRITE), 3 => Just(END), 1 => Just(DISCARD)]),
                1..2500,
            ),
            skew in 1u32..140,
        ) {
            let mut stack = StackDistance::new();
            let steps: Vec<(u32, u8)> = steps
                .into_iter()
                .map(|(page, what)| (if what == WRITE { page % skew } else { page }, what))
                .collect();
            for &(page, what) in &steps {
                match what {
                    END => stack.release(page),
                    DISCARD => drop(stack.discard(page)),
                    _ => drop(stack.access(page, what == WRITE)),
                }
            }
            let sizes: Vec<u64> = (1..=145).collect();
            let flushed = stack.dirty_evictions(&sizes);
            for (size, flushed) in sizes.iter().zip(flushed) {
                let plain = plain_with_ends(&steps, *size as usize);
                prop_assert_eq!((stack.faults(*size), flushed[0]), plain, "{} frames", size);
            }
        }
    }

    /// Slots are renumbered many times.
    #[test]
    fn survives_renumbering() {
        let mut stack = StackDistance::new();
        let mut state = 7u64;
        let refs: Vec<(u32, bool)> = (0..60_000)
            .map(|i| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let page = if i < 3000 { i } else { ((state >> 33) % 3000) as u32 };
                (page, state >> 60 == 0)
            })
            .collect();
        for &(page, write) in &refs {
            stack.access(page, write);
        }
        for frames in [1, 31, 32, 33, 500, 2999, 3000] {
            let [flushed, _] = stack.dirty_evictions(&[frames])[0];
            assert_eq!((stack.faults(frames), flushed), plain(&refs, frames as usize));
        }
    }
}
