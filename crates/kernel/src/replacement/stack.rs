//! Exact LRU for every memory size at once, by stack distance (Mattson, Gecsei, Slutz, Traiger,
//! IBM Systems Journal 9(2), 1970).
//!
//! The LRU stack has two parts. Its top [`FRONT`] pages are a ring in recency order: most
//! references of real programs hit there, and their distance is the position in the ring. The
//! other pages have slots, numbered in the order in which they left the ring. A bit mask marks the live
//! slots, those still in use, with counts per 512 slots, per 64 x 512 and per 64 x 64 x 512.
//!
//! A freed page leaves a *hole*, which occupies a place in the stack: a free frame in every memory
//! that is large enough to include it. A reference to a page below the topmost hole, or to a new
//! page, fills that hole: pages above the hole move down by one, those below stay. The page's old
//! place, if any, becomes a hole: memories that contained it have their free frame further down.

mod front;
mod live;

use std::collections::BTreeSet;

use front::{FRONT, Front, HOLE};
use live::{LINE, Live};
use nearfar_hardware::table::prefetch;

pub const WHAT: &str = "exact least recently used";

const NEW: u32 = u32::MAX;
const IN_FRONT: u32 = u32::MAX - 1;
const CLEAN: u32 = u32::MAX;

/// State of a page: 8 bytes, so that a reference touches one cache line.
#[derive(Clone, Copy, Debug)]
struct Page {
    /// Slot, [`NEW`] or [`IN_FRONT`].
    slot: u32,
    /// Largest distance since the last write; [`CLEAN`] if there was none.
    since_write: u32,
}

const NEVER: Page = Page { slot: NEW, since_write: CLEAN };

/// The LRU stack and the histograms of its distances. Pages are dense ids.
#[derive(Clone, Debug)]
pub struct StackDistance {
    front: Front,
    pages: Vec<Page>,
    /// Page of each slot, or [`HOLE`].
    page_in: Vec<u32>,
    live: Live,
    next_slot: usize,
    live_count: usize,
    /// References by stack distance (distinct other pages since the last reference), of unmarked
    /// and of marked pages.
    distances: [Histogram; 2],
    /// First references.
    first: [u64; 2],
    /// Writes by the largest distance until the next write.
    written: [Histogram; 2],
    /// Bit mask of marked pages; grows on demand.
    marked: Vec<u64>,
    /// Holes in the ring.
    front_holes: usize,
    /// Slots that are holes.
    holes: BTreeSet<u32>,
}

/// Counts by value. Counts of large values are prefetched and incremented some values later,
/// because they miss the cache.
#[derive(Clone, Debug, Default)]
struct Histogram {
    /// Counts of values below [`FRONT`].
    near: [u64; FRONT],
    far: Vec<u64>,
    pending: Vec<u32>,
}

impl Histogram {
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

    /// Number of values of at least `min`.
    fn at_least(&self, min: u64) -> u64 {
        let pending = self.pending.iter().filter(|value| u64::from(**value) >= min).count();
        let tail = |counts: &[u64]| {
            let min = usize::try_from(min).unwrap_or(usize::MAX).min(counts.len());
            counts[min..].iter().sum::<u64>()
        };
        tail(&self.near) + tail(&self.far) + pending as u64
    }
}

impl Default for StackDistance {
    fn default() -> Self {
        Self::new()
    }
}

impl StackDistance {
    pub fn new() -> Self {
        let mut stack = Self {
            front: Front::new(),
            pages: Vec::new(),
            page_in: Vec::new(),
            live: Live::new(),
            next_slot: 0,
            live_count: 0,
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

    #[inline]
    pub fn prefetch(&self, page: u32) {
        prefetch(&self.pages, page as usize);
    }

    /// Reference `page`; returns its stack distance, `None` for a first reference.
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
                // Fits: distances are below the number of pages, which have 32-bit ids.
                self.distances[kind].add(distance as u32);
                let since = &mut self.pages[index].since_write;
                if *since != CLEAN {
                    *since = (distance as u32).max(*since);
                }
            }
            None => self.first[kind] += 1,
        }
        if write {
            let since = std::mem::replace(&mut self.pages[index].since_write, 0);
            if since != CLEAN {
                self.written[kind].add(since);
            }
        }
        distance
    }

    /// Mark `page` until it is freed. Marked pages have their own counts.
    pub fn mark(&mut self, page: u32) {
        let word = page as usize / 64;
        if self.marked.len() <= word {
            self.marked.resize(word + 1, 0);
        }
        self.marked[word] |= 1 << (page % 64);
    }

    /// 1 for a marked page, else 0.
    #[inline]
    fn kind(&self, page: u32) -> usize {
        let word = self.marked.get(page as usize / 64).copied().unwrap_or(0);
        (word >> (page % 64) & 1) as usize
    }

    /// Free `page`: it leaves a hole, and its next reference is a first one. Its last write counts
    /// only in memories that have evicted the page since.
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

    /// Make `page` clean without a flush; it keeps its place. Returns its stack distance, `None`
    /// for a page that is not in the stack.
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
            slot => Some(self.front.len() + self.live_count - self.live.rank(slot as usize)),
        }
    }

    /// Count the last write of `page`, which is at `distance`, and make the page clean.
    fn clean(&mut self, page: u32, distance: usize) {
        let since = std::mem::replace(&mut self.pages[page as usize].since_write, CLEAN);
        if since != CLEAN {
            self.written[self.kind(page)].add(since.max(distance as u32));
        }
    }

    /// First references: a page that was freed counts again.
    pub fn pages(&self) -> u64 {
        self.first.iter().sum()
    }

    /// Faults of an LRU memory of `frames` frames: first references and distances >= `frames`.
    pub fn faults(&self, frames: u64) -> u64 {
        self.faults_by_mark(frames).iter().sum()
    }

    /// [`Self::faults`] on unmarked and on marked pages.
    pub fn faults_by_mark(&self, frames: u64) -> [u64; 2] {
        [0, 1].map(|kind| self.first[kind] + self.distances[kind].at_least(frames))
    }

    /// Evictions of dirty unmarked and marked pages from LRU memories of these numbers of frames. A
    /// write is flushed if the page is evicted before the next write or the end of the trace.
    pub fn dirty_evictions(&self, frames: &[u64]) -> Vec<[u64; 2]> {
        let mut written = self.written.clone();
        let mut depth = 0u32;
        let mut flush = |page: u32, depth: u32| {
            let since = self.pages.get(page as usize).map_or(CLEAN, |page| page.since_write);
            if since != CLEAN {
                written[self.kind(page)].add(depth.max(since));
            }
        };
        for page in self.front.iter() {
            flush(page, depth);
            depth += 1;
        }
        for slot in (0..self.next_slot).rev() {
            if self.live.has(slot) {
                flush(self.page_in[slot], depth);
                depth += 1;
            }
        }
        frames.iter().map(|&frames| [0, 1].map(|kind| written[kind].at_least(frames))).collect()
    }

    /// Move `page` to the top of a stack without holes. Returns its previous distance.
    #[inline]
    fn move_up(&mut self, page: u32) -> Option<u64> {
        match self.pages[page as usize].slot {
            IN_FRONT => {
                // The slot guarantees that the ring has the page.
                let place = self.front.place(page).unwrap_or(0);
                self.front.raise(place, page);
                Some(place as u64)
            }
            NEW => {
                self.push_front(page);
                None
            }
            slot => {
                let above = self.live_count - self.live.rank(slot as usize);
                self.remove_slot(slot);
                let distance = self.front.len() + above;
                self.push_front(page);
                Some(distance as u64)
            }
        }
    }

    /// [`Self::move_up`] for a stack with holes.
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
                    self.remove_slot(hole);
                }
                (slot, Some(hole)) if hole > slot => {
                    self.holes.remove(&hole);
                    self.remove_slot(hole);
                    self.page_in[slot as usize] = HOLE;
                    self.holes.insert(slot);
                }
                (slot, Some(_)) => self.remove_slot(slot),
            }
            self.push_front(page);
        }
        distance.map(|distance| distance as u64)
    }

    fn remove_slot(&mut self, slot: u32) {
        self.live.toggle(slot as usize);
        self.live_count -= 1;
    }

    /// Push `page` onto a stack whose ring has no holes.
    fn push_front(&mut self, page: u32) {
        self.pages[page as usize].slot = IN_FRONT;
        if let Some(last) = self.front.push(page) {
            if self.next_slot == self.page_in.len() {
                self.compact();
            }
            let slot = self.next_slot;
            self.next_slot += 1;
            self.page_in[slot] = last;
            self.pages[last as usize].slot = slot as u32;
            self.live.toggle(slot);
            self.live_count += 1;
        }
    }

    fn resize_slots(&mut self, slots: usize) {
        self.page_in.resize(slots, 0);
        self.live.clear(slots);
    }

    /// Renumber the live slots from 0, and leave room for the same number of new ones.
    fn compact(&mut self) {
        let mut live = 0;
        self.holes.clear();
        self.live.each(|slot| {
            let page = self.page_in[slot];
            self.page_in[live] = page;
            match self.pages.get_mut(page as usize) {
                Some(page) => page.slot = live as u32,
                // `HOLE`, which is no page's id.
                None => drop(self.holes.insert(live as u32)),
            }
            live += 1;
        });
        self.resize_slots((live * 2).next_multiple_of(LINE).max(LINE * 8));
        self.next_slot = live;
        self.live.fill(live);
    }
}

#[cfg(test)]
mod tests;
