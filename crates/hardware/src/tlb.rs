//! Translation look-aside buffers: LRU, fully or set-associative, one level or two.
//!
//! Two levels behave as in usual CPUs: a first-level miss looks in the second level. A hit there,
//! or a page walk, fills the first level; a walk also fills the second.

use std::fmt;
use std::str::FromStr;

use crate::table::{grow, prefetch};

/// Maximum entries of a level: far beyond any hardware, but small enough to allocate.
pub const MAX_ENTRIES: u32 = 1 << 20;

/// One level: `entries` in sets of `ways`; fully associative if `ways` is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    pub entries: u32,
    pub ways: Option<u32>,
}

/// A TLB as written on the command line: `64`, `64x4` (ways), `64+1536x12` (two levels).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlbSpec {
    pub first: Level,
    pub second: Option<Level>,
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let number = |part: &str| match part.parse::<u32>() {
            Ok(n) if (1..=MAX_ENTRIES).contains(&n) => Ok(n),
            _ => Err(format!("{part:?} is not a number from 1 to {MAX_ENTRIES}")),
        };
        let (entries, ways) = match text.split_once('x') {
            Some((entries, ways)) => (number(entries)?, Some(number(ways)?)),
            None => (number(text)?, None),
        };
        if let Some(ways) = ways
            && entries % ways != 0
        {
            return Err(format!("{entries} entries do not divide into sets of {ways} ways"));
        }
        Ok(Level { entries, ways })
    }
}

impl FromStr for TlbSpec {
    /// The error and the correct notation.
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong = |why: String| {
            let fix = "write entries (64), entries x ways (64x4) or two levels (64+1536x12)";
            format!("{text:?}: {why}; {fix}")
        };
        let mut levels = text.split('+');
        let first = levels.next().unwrap_or_default().parse().map_err(wrong)?;
        let second = levels.next().map(|level| level.parse().map_err(wrong)).transpose()?;
        match levels.next() {
            Some(_) => Err(wrong("more than two levels".to_owned())),
            None => Ok(TlbSpec { first, second }),
        }
    }
}

impl nearfar_schema::Value for TlbSpec {
    const METAVAR: &'static str = "ENTRIES";
    fn python() -> String {
        "str | int".into()
    }
    fn read(given: &nearfar_schema::Given) -> std::result::Result<Self, String> {
        given.to_string().parse()
    }
    fn plain(&self) -> serde_json::Value {
        self.to_string().into()
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ways {
            Some(ways) => write!(f, "{}x{ways}", self.entries),
            None => write!(f, "{}", self.entries),
        }
    }
}

impl fmt::Display for TlbSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.second {
            Some(second) => write!(f, "{}+{second}", self.first),
            None => write!(f, "{}", self.first),
        }
    }
}

/// Sentinel: no page.
const NONE: u32 = u32::MAX;

/// A fully associative LRU buffer over pages with dense ids.
///
/// [`touch`](FullLru::touch) and [`release`](FullLru::release) split a reference in two, for a
/// caller that knows the distinct pages of a window of references (no more than the capacity):
/// touch each page at its first reference, and release the pages in the order of their last
/// references. Pages of the window are newer than all others and never victims within it, so that
/// hits and misses are exactly those of the single references.
#[derive(Clone, Debug)]
pub struct FullLru {
    capacity: u32,
    /// For each page, its last position in `order`. It is valid if `order` has the page there.
    positions: Positions,
    /// Pages in the order of their releases, or [`NONE`] as a tombstone. It has room for twice the
    /// capacity, so that compaction is rare.
    order: Vec<u32>,
    /// There are no pages before this position.
    oldest: usize,
    /// There are no pages from this position on.
    next: usize,
    /// Entries in use, pinned ones included.
    used: u32,
}

impl FullLru {
    /// An empty buffer of `capacity` entries.
    pub fn new(capacity: u32) -> Self {
        let order = vec![NONE; 2 * capacity as usize];
        Self {
            capacity,
            positions: Positions::new(order.len()),
            order,
            oldest: 0,
            next: 0,
            used: 0,
        }
    }

    /// A complete reference. Returns whether it hits.
    pub fn access(&mut self, page: u32) -> bool {
        let hit = self.touch(page);
        self.release(page);
        hit
    }

    /// Whether `page` is in the buffer, and not pinned.
    pub fn contains(&self, page: u32) -> bool {
        self.order[self.positions.get(page)] == page
    }

    /// Remove `page`, as a shootdown does. Returns whether it was cached.
    pub fn remove(&mut self, page: u32) -> bool {
        let cached = self.contains(page);
        if cached {
            self.order[self.positions.get(page)] = NONE;
            self.used -= 1;
        }
        cached
    }

    /// Prefetch the metadata of `page`.
    #[inline]
    pub fn prefetch(&self, page: u32) {
        self.positions.prefetch(page);
    }

    /// The first reference to `page` in a window. Returns whether it hits. Pins the page until it
    /// is released.
    #[inline]
    pub fn touch(&mut self, page: u32) -> bool {
        let entry = &mut self.order[self.positions.get(page)];
        if *entry == page {
            *entry = NONE;
            return true;
        }
        if self.used == self.capacity {
            self.evict();
        } else {
            self.used += 1;
        }
        false
    }

    /// Evict the least recently used page that is not pinned.
    #[inline]
    fn evict(&mut self) {
        // An unpinned page exists: callers pin at most `capacity` pages, including the one to insert.
        while std::mem::replace(&mut self.order[self.oldest], NONE) == NONE {
            self.oldest += 1;
        }
        self.oldest += 1;
    }

    /// The last reference to `page` in a window: it becomes the newest.
    #[inline]
    pub fn release(&mut self, page: u32) {
        if self.next == self.order.len() {
            self.compact();
        }
        self.order[self.next] = page;
        self.positions.set(page, self.next);
        self.next += 1;
    }

    fn compact(&mut self) {
        let mut next = 0;
        for position in self.oldest..self.next {
            let page = std::mem::replace(&mut self.order[position], NONE);
            if page != NONE {
                self.order[next] = page;
                self.positions.set(page, next);
                next += 1;
            }
        }
        (self.oldest, self.next) = (0, next);
    }
}

/// A position for each page, initially 0. Uses bytes if all positions fit: a quarter of the memory.
#[derive(Clone, Debug)]
enum Positions {
    Bytes(Vec<u8>),
    Words(Vec<u32>),
}

impl Positions {
    /// Create a table for positions below `count`.
    fn new(count: usize) -> Self {
        if count <= 1 << u8::BITS { Self::Bytes(Vec::new()) } else { Self::Words(Vec::new()) }
    }

    #[inline]
    fn get(&self, page: u32) -> usize {
        match self {
            Self::Bytes(positions) => {
                positions.get(page as usize).map_or(0, |&position| position.into())
            }
            Self::Words(positions) => {
                positions.get(page as usize).map_or(0, |&position| position as usize)
            }
        }
    }

    #[inline]
    fn set(&mut self, page: u32, position: usize) {
        let (page, length) = (page as usize, page as usize + 1);
        match self {
            Self::Bytes(positions) => {
                grow(positions, length, 0);
                positions[page] = position as u8;
            }
            Self::Words(positions) => {
                grow(positions, length, 0);
                positions[page] = position as u32;
            }
        }
    }

    #[inline]
    fn prefetch(&self, page: u32) {
        match self {
            Self::Bytes(positions) => prefetch(positions, page as usize),
            Self::Words(positions) => prefetch(positions, page as usize),
        }
    }
}

/// A set-associative LRU buffer over page numbers; the set is the page number modulo the sets.
#[derive(Clone, Debug)]
pub struct SetLru {
    sets: u64,
    ways: usize,
    /// Page numbers + 1 by set, newest first; 0 is empty.
    tags: Vec<u64>,
}

impl SetLru {
    pub fn new(entries: u32, ways: u32) -> Self {
        Self {
            sets: u64::from(entries / ways),
            ways: ways as usize,
            tags: vec![0; entries as usize],
        }
    }

    /// A reference. Returns whether it hits.
    #[inline]
    pub fn access(&mut self, page_number: u64) -> bool {
        // A page number is never 2^64 - 1: pages have at least two bytes.
        let tag = page_number + 1;
        let start = (page_number % self.sets) as usize * self.ways;
        let set = &mut self.tags[start..start + self.ways];
        // Search and shift in one loop: most hits are near the front.
        let mut before = tag;
        for entry in set {
            std::mem::swap(entry, &mut before);
            if before == tag {
                return true;
            }
        }
        false
    }

    /// Remove a page, as a shootdown does. Returns whether it was cached.
    pub fn remove(&mut self, page_number: u64) -> bool {
        let start = (page_number % self.sets) as usize * self.ways;
        let set = &mut self.tags[start..start + self.ways];
        let Some(place) = set.iter().position(|&tag| tag == page_number + 1) else { return false };
        set.copy_within(place + 1.., place);
        set[self.ways - 1] = 0;
        true
    }
}

/// One level of either kind, over pages that have both a dense id and a number.
#[derive(Clone, Debug)]
pub enum Buffer {
    Full(FullLru),
    Sets(SetLru),
}

impl Buffer {
    pub fn new(level: Level) -> Self {
        match level.ways {
            Some(ways) if ways < level.entries => Buffer::Sets(SetLru::new(level.entries, ways)),
            _ => Buffer::Full(FullLru::new(level.entries)),
        }
    }

    /// A reference. Returns whether it hits.
    #[inline]
    pub fn access(&mut self, page: u32, page_number: u64) -> bool {
        match self {
            Buffer::Full(buffer) => buffer.access(page),
            Buffer::Sets(buffer) => buffer.access(page_number),
        }
    }

    /// Remove a page, as a shootdown does. Returns whether it was cached.
    pub fn remove(&mut self, page: u32, page_number: u64) -> bool {
        match self {
            Buffer::Full(buffer) => buffer.remove(page),
            Buffer::Sets(buffer) => buffer.remove(page_number),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn buffers_equal_one_lru_list_per_set(
            refs in prop::collection::vec((0u64..100, 0u8..8), 1..800),
            sets in prop_oneof![Just(1), 1u32..20],
            ways in prop_oneof![1u32..9, 1u32..50],
        ) {
            let mut tlb = Buffer::new(Level { entries: sets * ways, ways: Some(ways) });
            let mut lists = vec![Vec::<u64>::new(); sets as usize];
            for (page, action) in refs {
                let list = &mut lists[(page % u64::from(sets)) as usize];
                let place = list.iter().position(|&p| p == page);
                if let Buffer::Full(full) = &tlb {
                    prop_assert_eq!(full.contains(page as u32), place.is_some());
                }
                place.map(|place| list.remove(place));
                if action == 0 {
                    prop_assert_eq!(tlb.remove(page as u32, page), place.is_some());
                } else {
                    prop_assert_eq!(tlb.access(page as u32, page), place.is_some());
                    list.push(page);
                    if list.len() > ways as usize { list.remove(0); }
                }
            }
        }

        /// Windows have at most `max_distinct` distinct pages, which are pinned.
        #[test]
        fn windows_miss_as_single_references(
            refs in prop::collection::vec(0u64..40, 1..800),
            entries in 1u32..24,
            max_distinct in 1usize..24,
        ) {
            let max_distinct = max_distinct.min(entries as usize);
            let (mut single, mut pinned) = (FullLru::new(entries), FullLru::new(entries));
            let (mut missed, mut missed_pinned) = (Vec::<u64>::new(), Vec::<u64>::new());
            let mut start = 0;
            while start < refs.len() {
                let mut distinct: Vec<u64> = Vec::new();
                let mut end = start;
                while end < refs.len() {
                    if !distinct.contains(&refs[end]) {
                        if distinct.len() == max_distinct { break; }
                        distinct.push(refs[end]);
                    }
                    end += 1;
                }
                let window = &refs[start..end];
                missed.extend(window.iter().filter(|p| !single.access(**p as u32)));
                missed_pinned.extend(distinct.iter().filter(|p| !pinned.touch(**p as u32)));
                distinct.sort_by_key(|page| window.iter().rposition(|p| p == page));
                distinct.iter().for_each(|&p| pinned.release(p as u32));
                start = end;
            }
            prop_assert_eq!(missed, missed_pinned);
        }
    }

    #[test]
    fn invalid_specs_are_refused() {
        let spec: TlbSpec = "64+1536x12".parse().unwrap();
        assert_eq!(spec.to_string(), "64+1536x12");
        assert_eq!(spec.second, Some(Level { entries: 1536, ways: Some(12) }));
        for bad in ["", "0", "64x0", "64x5", "-1", "64+", "1+2+3", "99999999999", "64x4x2", "6e4"] {
            assert!(bad.parse::<TlbSpec>().is_err(), "{bad}");
        }
    }
}
