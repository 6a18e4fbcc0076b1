//! Where a processor finds a line.

use super::spec::Caches;
use crate::cache::Level;

/// Where a line was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Found {
    /// In the first level.
    First,
    /// In the second level.
    Second,
    /// In the third level.
    Third,
    /// In memory, but asked for ahead.
    Streamed,
    /// In memory.
    Memory,
}

/// How long ago, in references, the line was last used that each level evicts at the moment;
/// `u64::MAX` until a level is full. By Che's approximation (Che, Tung and Wang, 2002) a line that is
/// used now and then is in a cache of LRU exactly if its last use is less long ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ages(pub [u64; 3]);

impl Ages {
    /// Where a line is that was last used so many references ago.
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
    /// Of caches that are not full.
    fn default() -> Self {
        Self([u64::MAX; 3])
    }
}

/// Evictions over which an age is averaged.
const AVERAGED: i64 = 256;

/// One cache: by set, the line used last first.
#[derive(Clone, Debug)]
struct Tags {
    sets: u64,
    ways: usize,
    /// Line + 1 and when it was last used; 0 for none.
    lines: Vec<(u64, u64)>,
    age: u64,
}

impl Tags {
    fn new(Level { sets, ways }: Level) -> Self {
        Self { sets, ways, lines: vec![(0, 0); sets as usize * ways], age: u64::MAX }
    }

    /// Use a line; answers whether it was there.
    #[inline]
    fn access(&mut self, line: u64, now: u64) -> bool {
        let sets = self.sets;
        let set = if sets.is_power_of_two() { line & (sets - 1) } else { line % sets };
        let start = set as usize * self.ways;
        let set = &mut self.lines[start..start + self.ways];
        let wanted = line + 1;
        if set[0].0 == wanted {
            set[0].1 = now;
            return true;
        }
        let found = set.iter().position(|(tag, _)| *tag == wanted);
        let place = found.unwrap_or(set.len() - 1);
        let (tag, used) = set[place];
        set.copy_within(0..place, 1);
        set[0] = (wanted, now);
        if found.is_none() && tag != 0 {
            let age = now - used;
            self.age = match self.age {
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

/// Streams that are followed at once.
const STREAMS: usize = 32;
/// log2 of the bytes that no stream crosses: a small page.
const STREAM_SHIFT: u32 = 12;

/// Reads in order: who missed two neighbouring lines of a small page is given the next ones.
#[derive(Clone, Debug)]
struct Streams {
    /// Small page, last line missed in it, and whether that was the neighbour of the one before;
    /// the one used last first.
    pages: [(u64, u64, bool); STREAMS],
    lines: u32,
}

impl Streams {
    /// A line that no cache had; answers whether it was asked for ahead.
    fn miss(&mut self, line: u64) -> bool {
        let page = line >> self.lines;
        let found = self.pages.iter().position(|known| known.0 == page);
        let place = found.unwrap_or(STREAMS - 1);
        let (_, last, running) = self.pages[place];
        let next = found.is_some() && line.abs_diff(last) == 1;
        self.pages.copy_within(0..place, 1);
        self.pages[0] = (page, line, next);
        next && running
    }
}

/// The data caches of one core, set-associative, LRU; levels neither include nor exclude each other.
/// Every thread of a trace runs on that core.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    shift: u32,
    instruction: Tags,
    data: Tags,
    second: Tags,
    third: Option<Tags>,
    streams: Streams,
    now: u64,
}

impl Hierarchy {
    /// Empty caches.
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
                lines: STREAM_SHIFT.saturating_sub(shift),
            },
            now: 0,
        }
    }

    /// log2 of the bytes of a line.
    pub fn line_shift(&self) -> u32 {
        self.shift
    }

    /// References so far.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// A reference to a line.
    #[inline]
    pub fn access(&mut self, line: u64, fetch: bool) -> Found {
        self.now += 1;
        let first = if fetch { &mut self.instruction } else { &mut self.data };
        if first.access(line, self.now) { Found::First } else { self.beyond(line) }
    }

    /// A read by a page walk, which the caches serve, but do not ask ahead for.
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

    fn beyond(&mut self, line: u64) -> Found {
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

    /// What the levels evict at the moment.
    pub fn ages(&self) -> Ages {
        let third = self.third.as_ref().map_or(0, |third| third.age);
        Ages([self.data.age, self.second.age, third.max(self.second.age)])
    }
}
