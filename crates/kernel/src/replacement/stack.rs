//! Exact LRU for every memory size at once, by stack distance (Mattson, Gecsei, Slutz, Traiger,
//! IBM Systems Journal 9(2), 1970).
//!
//! The LRU stack is kept in two pieces. Its top [`FRONT`] pages are a small array in recency order:
//! most references of a real program are found there, at a distance that is simply the place. The
//! rest lie in slots numbered by the time they left the top (a page leaves the top after every
//! page below it in the stack did), a bit a slot, with counts of the live ones of 512 slots, of 64
//! times as many and of 64 times those. Both pieces together are the whole stack: exact.
//!
//! Counts of fixed widths rather than a Fenwick tree: the live slots above one are then found by
//! sums that are always the same instructions, where the loops of a tree end differently every time
//! and a processor guesses wrong.
//!
//! Use it for LRU alone. CLOCK and Linux's lists are not stack algorithms.

use nearfar_simd::Avx2;

/// What the policy is.
pub const WHAT: &str = "exact least recently used";

/// Pages in the array at the top of the stack.
pub const FRONT: usize = 32;
/// Slots of a line, whose bits are a line of the cache.
const LINE: usize = 512;
/// Lines, or groups of lines, that are counted together.
const WIDTH: usize = 64;
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
    front: Vec<u32>,
    pages: Vec<Page>,
    page_in: Vec<u32>,
    live: Live,
    next: usize,
    below: usize,
    /// References by stack distance (distinct other pages since the last one).
    distances: Histogram,
    first: u64,
    written: Histogram,
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

/// Ask for an element that is needed soon.
#[inline(always)]
fn prefetch<T>(slice: &[T], index: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(element) = slice.get(index) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction reads nothing that the program sees.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(element).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (slice, index);
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
            front: Vec::with_capacity(FRONT + 1),
            pages: Vec::new(),
            page_in: Vec::new(),
            live: Live::new(Avx2::new()),
            next: 0,
            below: 0,
            distances: Histogram::default(),
            first: 0,
            written: Histogram::default(),
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

    /// Reference `page`; answers its stack distance, `None` the first time.
    pub fn access(&mut self, page: u32, write: bool) -> Option<u64> {
        let index = page as usize;
        if index >= self.pages.len() {
            self.pages.resize(index + 1, NEVER);
        }
        let distance = match self.pages[index].slot {
            IN_FRONT => {
                // A page marked so is in the array; 0 is never reached for want of it.
                let place = self.front.iter().position(|&p| p == page).unwrap_or(0);
                self.front.copy_within(0..place, 1);
                self.front[0] = page;
                Some(place as u64)
            }
            NEW => {
                self.push_front(page);
                None
            }
            slot => {
                let above = self.below - self.live.up_to(slot as usize);
                self.live.change(slot as usize);
                self.below -= 1;
                let distance = self.front.len() + above;
                self.push_front(page);
                Some(distance as u64)
            }
        };
        match distance {
            Some(distance) => {
                // Distances are below the number of pages, whose ids are 32 bits.
                self.distances.add(distance as u32);
                let since = &mut self.pages[index].unwritten;
                if *since != CLEAN {
                    *since = (distance as u32).max(*since);
                }
            }
            None => self.first += 1,
        }
        if write {
            let since = std::mem::replace(&mut self.pages[index].unwritten, 0);
            if since != CLEAN {
                self.written.add(since);
            }
        }
        distance
    }

    /// Pages referenced so far.
    pub fn pages(&self) -> u64 {
        self.first
    }

    /// Faults of an LRU memory of `frames` frames: first references and distances >= `frames`.
    pub fn faults(&self, frames: u64) -> u64 {
        self.first + self.distances.from(frames)
    }

    /// Evictions of dirty pages from an LRU memory of each of `frames` frames. A write is flushed
    /// if any later reference up to the next write, or the end of the trace, finds the page out.
    pub fn dirty_evictions(&self, frames: &[u64]) -> Vec<u64> {
        let mut written = self.written.clone();
        let mut depth = 0u32;
        let mut end = |page: u32, depth: u32| {
            let since = self.pages[page as usize].unwritten;
            if since != CLEAN {
                written.add(depth.max(since));
            }
        };
        for &page in &self.front {
            end(page, depth);
            depth += 1;
        }
        for slot in (0..self.next).rev() {
            if self.live.has(slot) {
                end(self.page_in[slot], depth);
                depth += 1;
            }
        }
        frames.iter().map(|&frames| written.from(frames)).collect()
    }

    fn push_front(&mut self, page: u32) {
        self.front.insert(0, page);
        self.pages[page as usize].slot = IN_FRONT;
        if self.front.len() > FRONT {
            let Some(last) = self.front.pop() else { return };
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
        for slot in 0..self.next {
            if self.live.has(slot) {
                let page = self.page_in[slot];
                self.page_in[kept] = page;
                self.pages[page as usize].slot = kept as u32;
                kept += 1;
            }
        }
        self.resize_slots((kept * 2).next_multiple_of(LINE).max(LINE * 8));
        self.next = kept;
        self.live.fill(kept);
    }
}

/// Which slots are live, and how many of them.
#[derive(Clone, Debug)]
struct Live {
    avx2: Option<Avx2>,
    /// A bit a slot.
    bits: Vec<[u64; LINE / 64]>,
    /// Live slots of each line of [`LINE`].
    lines: Vec<[u16; WIDTH]>,
    /// Of each [`WIDTH`] lines.
    groups: Vec<[u32; WIDTH]>,
    /// Of each [`WIDTH`] of those.
    tops: Vec<u32>,
}

impl Live {
    fn new(avx2: Option<Avx2>) -> Self {
        Self { avx2, bits: Vec::new(), lines: Vec::new(), groups: Vec::new(), tops: Vec::new() }
    }

    /// None of `slots` is live.
    fn clear(&mut self, slots: usize) {
        let lines = slots.div_ceil(LINE);
        let (groups, tops) = (lines.div_ceil(WIDTH), lines.div_ceil(WIDTH * WIDTH));
        self.bits.clear();
        self.bits.resize(lines, [0; LINE / 64]);
        self.lines.clear();
        self.lines.resize(groups, [0; WIDTH]);
        self.groups.clear();
        self.groups.resize(tops, [0; WIDTH]);
        self.tops.clear();
        self.tops.resize(tops, 0);
    }

    /// The first `slots`, of none so far, are live.
    fn fill(&mut self, slots: usize) {
        for (line, bits) in self.bits[..slots.div_ceil(LINE)].iter_mut().enumerate() {
            let count = LINE.min(slots - line * LINE);
            for (word, bits) in bits.iter_mut().enumerate() {
                let left = count.saturating_sub(word * 64).min(64) as u32;
                *bits = u64::MAX.checked_shr(64 - left).unwrap_or(0);
            }
            let group = line / WIDTH;
            self.lines[group][line % WIDTH] = count as u16;
            self.groups[group / WIDTH][group % WIDTH] += count as u32;
            self.tops[group / WIDTH] += count as u32;
        }
    }

    fn has(&self, slot: usize) -> bool {
        self.bits[slot / LINE][slot % LINE / 64] >> (slot % 64) & 1 == 1
    }

    /// Make `slot` live, or no longer so.
    fn change(&mut self, slot: usize) {
        let (line, bit) = (slot / LINE, 1 << (slot % 64));
        let bits = &mut self.bits[line][slot % LINE / 64];
        *bits ^= bit;
        // One more, or one less.
        let one = if *bits & bit != 0 { 1 } else { u32::MAX };
        let group = line / WIDTH;
        let count = &mut self.lines[group][line % WIDTH];
        *count = count.wrapping_add(one as u16);
        let count = &mut self.groups[group / WIDTH][group % WIDTH];
        *count = count.wrapping_add(one);
        let top = &mut self.tops[group / WIDTH];
        *top = top.wrapping_add(one);
    }

    /// Live slots up to and including `slot`.
    fn up_to(&self, slot: usize) -> usize {
        #[cfg(target_arch = "x86_64")]
        if let Some(token) = self.avx2 {
            // SAFETY: the token says that the processor has the features.
            return unsafe { self.up_to_avx2(token, slot) };
        }
        self.up_to_scalar(slot)
    }

    /// [`Self::up_to_scalar`], compiled for wider registers.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,popcnt")]
    fn up_to_avx2(&self, _: Avx2, slot: usize) -> usize {
        self.up_to_scalar(slot)
    }

    #[inline(always)]
    fn up_to_scalar(&self, slot: usize) -> usize {
        let line = slot / LINE;
        let group = line / WIDTH;
        let top = group / WIDTH;
        let (lines, groups) = (&self.lines[group], &self.groups[top]);
        let line_in_group = (line % WIDTH) as u16;
        // Of all those before, whichever they are: no loop ends early.
        let before = |counts: &[u32], end: u32| {
            let counts = (0..).zip(counts);
            counts.map(|(number, &count)| if number < end { count } else { 0 }).sum::<u32>()
        };
        let of_tops = before(&self.tops, top as u32);
        let of_groups = before(groups, (group % WIDTH) as u32);
        let mut of_lines = 0;
        for (number, &count) in (0..).zip(lines) {
            of_lines += if number < line_in_group { count } else { 0 };
        }
        let last = slot % LINE / 64;
        let mut of_bits = 0;
        for (number, &bits) in self.bits[line].iter().enumerate() {
            let whole = if number < last { bits } else { 0 };
            let part = if number == last { bits << (63 - slot % 64) } else { 0 };
            of_bits += (whole | part).count_ones();
        }
        (of_tops + of_groups + u32::from(of_lines) + of_bits) as usize
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
                prop_assert_eq!((faults, flushed), plain(&refs, *size as usize), "{} frames", size);
                // Inclusion: misses never rise with size; and every page is missed once.
                prop_assert!(faults <= last && faults >= stack.pages());
                last = faults;
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        /// Over more slots than the counts of each width hold, filled and then changed here and
        /// there, at either level.
        #[test]
        fn live_slots_are_counted(
            filled in 0usize..5_000_000,
            changes in prop::collection::vec(0usize..5_000_000, 0..300),
            asked in prop::collection::vec(0usize..5_000_000, 1..30),
        ) {
            let mut live = Live::new(None);
            live.clear(5_000_000);
            live.fill(filled);
            let mut plain = vec![false; 5_000_000];
            plain[..filled].fill(true);
            for &slot in &changes {
                live.change(slot);
                plain[slot] = !plain[slot];
            }
            let with_avx2 = Live { avx2: Avx2::for_test(), ..live.clone() };
            for slot in asked.into_iter().chain(changes).chain([0, 4_999_999]) {
                let expected = plain[..=slot].iter().filter(|live| **live).count();
                prop_assert_eq!(live.up_to(slot), expected, "slot {}", slot);
                prop_assert_eq!(with_avx2.up_to(slot), expected, "slot {}", slot);
                prop_assert_eq!(live.has(slot), plain[slot]);
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
            let flushed = stack.dirty_evictions(&[frames])[0];
            assert_eq!((stack.faults(frames), flushed), plain(&refs, frames as usize));
        }
    }
}
