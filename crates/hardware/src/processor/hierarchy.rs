//! The cache hierarchy of a processor: where a line is found.

use super::spec::Caches;
use crate::cache::Level;

/// Where a line was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Found {
    First,
    Second,
    Third,
    /// In the third level or memory, but prefetched.
    Streamed,
    Memory,
}

/// Age of a line at its eviction from each level, in references since its last use; `u64::MAX` until
/// the level is full. The first level is that of data. By Che's approximation (Che, Tung and Wang, 2002), a
/// line is in an LRU cache if and only if its age is lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ages(pub [u64; 3]);

impl Ages {
    /// Where a line is that was last used `ago` references ago.
    pub fn found(&self, ago: u64) -> Found {
        let [first, second, third] = self.0;
        match ago {
            ago if ago < first => Found::First,
            ago if ago < second => Found::Second,
            ago if ago < third => Found::Third,
            _ => Found::Memory,
        }
    }
}

impl Default for Ages {
    /// The ages of caches that are not full.
    fn default() -> Self {
        Self([u64::MAX; 3])
    }
}

/// Inverse weight of one eviction in the moving average of ages.
const AVERAGED: i64 = 256;

/// One cache. Each set is in LRU order, most recently used first.
#[derive(Clone, Debug)]
struct Tags {
    sets: u64,
    ways: usize,
    /// Line + 1 (0: empty), and its last use in references.
    lines: Vec<(u64, u64)>,
    eviction_age: u64,
}

impl Tags {
    fn new(Level { sets, ways }: Level) -> Self {
        Self { sets, ways, lines: vec![(0, 0); sets as usize * ways], eviction_age: u64::MAX }
    }

    /// Access a line. Returns whether it hits.
    #[inline]
    fn access(&mut self, line: u64, now: u64) -> bool {
        let sets = self.sets;
        let set = if sets.is_power_of_two() { line & (sets - 1) } else { line % sets };
        let start = set as usize * self.ways;
        let set = &mut self.lines[start..start + self.ways];
        let target = line + 1;
        if set[0].0 == target {
            set[0].1 = now;
            return true;
        }
        let found = set.iter().position(|(tag, _)| *tag == target);
        let position = found.unwrap_or(set.len() - 1);
        let (tag, used) = set[position];
        set.copy_within(0..position, 1);
        set[0] = (target, now);
        if found.is_none() && tag != 0 {
            let age = now - used;
            self.eviction_age = match self.eviction_age {
                u64::MAX => age,
                before => {
                    let step = (age as i64 - before as i64) / AVERAGED;
                    before.saturating_add_signed(step)
                }
            };
        }
        found.is_some()
    }
}

/// Number of streams that are followed at a time.
const STREAMS: usize = 32;
/// log2 of a small page, which streams do not cross.
const STREAM_SHIFT: u32 = 12;

/// A stream prefetcher: after second-level misses of two adjacent lines of a small page, the next
/// lines are prefetched.
#[derive(Clone, Debug)]
struct Streams {
    /// Small page, its last missed line, and whether that was adjacent to the previous one; most
    /// recent first.
    pages: [(u64, u64, bool); STREAMS],
    /// log2 of the lines of a small page.
    page_shift: u32,
}

impl Streams {
    /// Add a line that missed the second level. Returns whether it was prefetched.
    fn miss(&mut self, line: u64) -> bool {
        let page = line >> self.page_shift;
        let found = self.pages.iter().position(|known| known.0 == page);
        let position = found.unwrap_or(STREAMS - 1);
        let (_, last, running) = self.pages[position];
        let adjacent = found.is_some() && line.abs_diff(last) == 1;
        self.pages.copy_within(0..position, 1);
        self.pages[0] = (page, line, adjacent);
        adjacent && running
    }
}

/// The caches of one core, which runs every thread of a trace: set-associative, LRU, non-inclusive
/// and non-exclusive.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    shift: u32,
    instruction: Tags,
    data: Tags,
    second: Tags,
    third: Option<Tags>,
    streams: Streams,
    now: u64,
    /// Mask: only lines whose hash has none of these bits are simulated.
    skipped: u64,
}

/// Inverse sampling rate of [`Hierarchy::for_ages`], unless a level has fewer sets.
const ONE_OF: u64 = 64;

impl Hierarchy {
    pub fn new(caches: &Caches) -> Self {
        let shift = caches.line_bytes.ilog2();
        Self {
            shift,
            instruction: Tags::new(caches.instruction),
            data: Tags::new(caches.data),
            second: Tags::new(caches.second),
            third: caches.third.map(Tags::new),
            streams: Streams {
                pages: [(u64::MAX, 0, false); STREAMS],
                page_shift: STREAM_SHIFT.saturating_sub(shift),
            },
            now: 0,
            skipped: 0,
        }
    }

    /// Empty caches that only estimate [`Ages`], from a sample of lines in proportionally fewer sets;
    /// [`Self::access`] always returns [`Found::First`].
    pub fn for_ages(caches: &Caches) -> Self {
        let Caches { instruction, data, second, third, line_bytes } = *caches;
        let levels = [Some(instruction), Some(data), Some(second), third];
        let fewest = levels.iter().flatten().map(|level| level.sets).min().unwrap_or(1);
        let one_of = 1 << ONE_OF.min(fewest.max(1)).ilog2();
        let part = |level: Level| Level { sets: level.sets / one_of, ways: level.ways };
        let sampled = Caches {
            instruction: part(instruction),
            data: part(data),
            second: part(second),
            third: third.map(part),
            line_bytes,
        };
        Self { skipped: one_of - 1, ..Self::new(&sampled) }
    }

    #[inline]
    fn skips(&self, line: u64) -> bool {
        line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & self.skipped != 0
    }

    /// log2 of the bytes of a line.
    pub fn line_shift(&self) -> u32 {
        self.shift
    }

    /// References so far.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Access a line by an instruction fetch or a data reference. Returns where it was found.
    #[inline]
    pub fn access(&mut self, line: u64, fetch: bool) -> Found {
        self.now += 1;
        if self.skipped != 0 {
            let now = self.now;
            if !self.skips(line) && !self.first(fetch).access(line, now) {
                self.beyond_first(line);
            }
            return Found::First;
        }
        let now = self.now;
        if self.first(fetch).access(line, now) { Found::First } else { self.beyond_first(line) }
    }

    #[inline]
    fn first(&mut self, fetch: bool) -> &mut Tags {
        if fetch { &mut self.instruction } else { &mut self.data }
    }

    /// A read by a page walk, which uses the caches but not the prefetcher.
    pub fn walk(&mut self, line: u64) -> Found {
        if self.data.access(line, self.now) {
            Found::First
        } else if self.second.access(line, self.now) {
            Found::Second
        } else if self.third.as_mut().is_some_and(|third| third.access(line, self.now)) {
            Found::Third
        } else {
            Found::Memory
        }
    }

    fn beyond_first(&mut self, line: u64) -> Found {
        if self.second.access(line, self.now) {
            return Found::Second;
        }
        let third = self.third.as_mut().is_some_and(|third| third.access(line, self.now));
        match (third, self.streams.miss(line)) {
            (_, true) => Found::Streamed,
            (true, false) => Found::Third,
            (false, false) => Found::Memory,
        }
    }

    pub fn ages(&self) -> Ages {
        let third = self.third.as_ref().map_or(0, |third| third.eviction_age);
        Ages([
            self.data.eviction_age,
            self.second.eviction_age,
            // Without a third level (0), no age is in the range of [`Found::Third`].
            third.max(self.second.eviction_age),
        ])
    }
}
