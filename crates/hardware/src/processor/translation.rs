//! Address translation: TLB look-ups, and the lines of the page table that walks read. Addresses are
//! virtual byte addresses, in which callers may add an address-space number from bit 48 on.

use nearfar_trace::hash::PageMap;

use super::spec::Tlbs;
use crate::cache::Level;
use crate::list::{Links, List};
use crate::tlb::{FullLru, SetLru};

/// log2 of the bytes of a small page, and of a large page, which a directory entry maps.
const SMALL: u32 = 12;
const LARGE: u32 = 21;
/// log2 of the bytes that an entry of the upper directory maps.
const UPPER: u32 = 30;
/// log2 of the page-table entries in a cache line.
const LINE: u32 = 3;

/// The number of a cache line of a page table. The top bit is set, unlike in lines of the program.
pub type Line = u64;

/// The line of the entry for the 2^`shift` bytes at `addr`, of the guest's or the host's table.
fn line(addr: u64, shift: u32, host: bool) -> Line {
    // The level is 1 for 4 KiB, 2 for 2 MiB, 3 for 1 GiB.
    let table = u64::from(shift / 9) << 1 | u64::from(host);
    1 << 63 | table << 58 | (addr >> shift >> LINE) & ((1 << 58) - 1)
}

/// The lines of the entries for the 4 KiB page at `addr`, of the guest's and the host's table.
pub fn small_lines(addr: u64) -> [Line; 2] {
    [false, true].map(|host| line(addr, SMALL, host))
}

/// The line of the entry for `page` in a device's own mapping table: one level, 8 bytes per page.
pub fn mapping_line(page: u32) -> Line {
    // Level 0, which no page table has.
    1 << 63 | 1 << 58 | u64::from(page) >> LINE
}

/// A TLB entry for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// log2 of the bytes that the entry covers.
    pub shift: u32,
    /// Whether the guest's page is large, even if the host limits `shift`.
    pub large: bool,
}

impl Entry {
    fn tag(self, addr: u64) -> u64 {
        // The low bits select the set; the size distinguishes pages of different sizes.
        addr >> self.shift | u64::from(self.shift) << 56
    }

    /// Whether the entry goes to the buffer for large pages.
    fn is_large(self) -> bool {
        self.large && self.shift >= LARGE
    }
}

/// Result of a look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// First-level hit.
    First,
    /// Second-level hit.
    Second,
    /// A walk: the number of lines read in sequence, and an array that starts with them.
    Walk(usize, [Line; 6]),
}

/// A fully associative LRU first level in which callers pin the most recently used pages: pinned pages
/// are not evicted.
#[derive(Clone, Debug)]
struct First {
    slot_of: PageMap<u32>,
    /// By slot: the tag of the entry, and the number of pages that pin it.
    held: Vec<(u64, u32)>,
    slots: Links,
    unpinned: List,
    unused: Vec<u32>,
}

impl First {
    fn new(entries: usize) -> Self {
        Self {
            slot_of: PageMap::default(),
            held: vec![(0, 0); entries],
            slots: Links::new(entries),
            unpinned: List::default(),
            unused: (0..entries as u32).rev().collect(),
        }
    }

    /// Pin an entry. Returns whether it hits.
    fn enter(&mut self, tag: u64) -> bool {
        if let Some(&slot) = self.slot_of.get(&tag) {
            let held = &mut self.held[slot as usize].1;
            if *held == 0 {
                self.slots.remove(&mut self.unpinned, slot);
            }
            *held += 1;
            return true;
        }
        let slot = self.unused.pop().or_else(|| {
            let oldest = self.slots.pop(&mut self.unpinned)?;
            self.slot_of.remove(&self.held[oldest as usize].0);
            Some(oldest)
        });
        if let Some(slot) = slot {
            self.held[slot as usize] = (tag, 1);
            self.slot_of.insert(tag, slot);
        }
        false
    }

    /// Unpin an entry once. Unpinned, it becomes the newest in `unpinned`.
    fn leave(&mut self, tag: u64) {
        let Some(&slot) = self.slot_of.get(&tag) else { return };
        let held = &mut self.held[slot as usize].1;
        *held -= 1;
        if *held == 0 {
            self.slots.push(&mut self.unpinned, slot);
        }
    }

    fn remove(&mut self, tag: u64) {
        let Some(slot) = self.slot_of.remove(&tag) else { return };
        if self.held[slot as usize].1 == 0 {
            self.slots.remove(&mut self.unpinned, slot);
        }
        self.unused.push(slot);
    }
}

/// Buffers of one level: for small pages, and for large ones if separate.
#[derive(Clone, Debug)]
struct BySize<T> {
    small: T,
    large: Option<T>,
}

impl<T> BySize<T> {
    fn new<S>((small, large): (S, Option<S>), make: impl Fn(S) -> T) -> Self {
        Self { small: make(small), large: large.map(make) }
    }

    fn of(&mut self, large: bool) -> &mut T {
        match &mut self.large {
            Some(separate) if large => separate,
            _ => &mut self.small,
        }
    }
}

/// A fully associative cache of directories, with a hash map because it may have more than a
/// thousand entries.
#[derive(Clone, Debug)]
struct Directories {
    /// A dense id for each directory that was ever looked up.
    ids: PageMap<u32>,
    cached: FullLru,
}

impl Directories {
    fn new(entries: usize) -> Self {
        Self { ids: PageMap::default(), cached: FullLru::new(entries as u32) }
    }

    /// Look up a directory. Returns whether it hits.
    fn access(&mut self, number: u64) -> bool {
        let next = self.ids.len() as u32;
        let id = *self.ids.entry(number).or_insert(next);
        self.cached.access(id)
    }
}

/// The caches of the upper levels of one page table. Entries that cover more than 1 GiB always hit.
#[derive(Clone, Debug)]
struct WalkCaches {
    directories: Directories,
    /// Searched linearly, newest first: the first entries nearly always hit.
    upper: SetLru,
}

impl WalkCaches {
    fn new(directories: usize, upper: usize) -> Self {
        let upper = upper as u32;
        Self { directories: Directories::new(directories), upper: SetLru::new(upper, upper) }
    }

    /// Pass the lines that a walk to the page at `addr` reads to `read`, in order.
    fn walk(&mut self, addr: u64, large: bool, host: bool, mut read: impl FnMut(Line)) {
        let upper = self.upper.access(addr >> UPPER);
        if large || !self.directories.access(addr >> LARGE) {
            if !upper {
                read(line(addr, UPPER, host));
            }
            read(line(addr, LARGE, host));
        }
        if !large {
            read(line(addr, SMALL, host));
        }
    }
}

/// Page walks, and the directory caches that let them skip upper levels.
#[derive(Clone, Debug)]
pub struct Walker {
    guest: WalkCaches,
    /// log2 of the host's page size, and the caches of its table.
    host: Option<(u32, WalkCaches)>,
}

impl Walker {
    /// Create empty caches of `directories` entries (2 MiB each) and `upper` entries (1 GiB each). With
    /// `host_shift`, walks are two-dimensional: see [`Translation::new`].
    pub fn new(directories: usize, upper: usize, host_shift: Option<u32>) -> Self {
        let caches = || WalkCaches::new(directories, upper);
        Self { guest: caches(), host: host_shift.map(|shift| (shift, caches())) }
    }

    /// Walk to the page at `addr`. Returns the number of lines read in sequence, and an array that
    /// starts with them.
    pub fn walk(&mut self, addr: u64, large: bool) -> (usize, [Line; 6]) {
        let (mut lines, mut count) = ([0; 6], 0);
        let mut read = |line: Line| {
            lines[count] = line;
            count += 1;
        };
        self.guest.walk(addr, large, false, &mut read);
        if let Some((shift, caches)) = &mut self.host {
            caches.walk(addr, *shift >= LARGE, true, &mut read);
        }
        (count, lines)
    }
}

/// The TLBs of a thread.
#[derive(Clone, Debug)]
pub struct Translation {
    instruction: BySize<First>,
    data: BySize<First>,
    second: Option<BySize<SetLru>>,
    walker: Walker,
}

impl Translation {
    /// Create empty TLBs. With `host_shift`, walks are two-dimensional: the host backs the
    /// machine's memory by pages of 2^`host_shift` bytes, and each walk continues in the host's
    /// page table, at the same address. The host's translations of the guest's page table always hit.
    pub fn new(tlbs: &Tlbs, host_shift: Option<u32>) -> Self {
        let second =
            |Level { sets, ways }: Level| SetLru::new((sets * ways as u64) as u32, ways as u32);
        Self {
            instruction: BySize::new(tlbs.instruction, First::new),
            data: BySize::new(tlbs.data, First::new),
            second: tlbs.second.map(|levels| BySize::new(levels, second)),
            walker: Walker::new(tlbs.directories, tlbs.upper_directories, host_shift),
        }
    }

    /// The entry for a page of 2^`shift` bytes. Smaller pages of the host limit the entry's range. But small
    /// pages of the host are assumed to be contiguous: up to [`Tlbs::coalesced`] they share an entry.
    pub fn entry(tlbs: &Tlbs, host_shift: Option<u32>, shift: u32) -> Entry {
        let large = shift >= LARGE;
        let range = if large { LARGE } else { shift.min(tlbs.coalesced).max(SMALL) };
        let host = host_shift.map_or(range, |host| host.max(tlbs.coalesced.max(SMALL)));
        Entry { shift: range.min(host), large }
    }

    fn first(&mut self, entry: Entry, fetch: bool) -> &mut First {
        let first = if fetch { &mut self.instruction } else { &mut self.data };
        first.of(entry.is_large())
    }

    /// Look up the page at `addr`, and pin it until [`Translation::leave`]. Callers unpin pages in the
    /// order of their last uses, and never pin more pages than there are entries.
    pub fn enter(&mut self, addr: u64, entry: Entry, fetch: bool) -> Answer {
        let tag = entry.tag(addr);
        if self.first(entry, fetch).enter(tag) {
            return Answer::First;
        }
        let second = self.second.as_mut().map(|second| second.of(entry.is_large()));
        if second.is_some_and(|second| second.access(tag)) {
            return Answer::Second;
        }
        let (count, lines) = self.walker.walk(addr, entry.large);
        Answer::Walk(count, lines)
    }

    /// Unpin a page once.
    pub fn leave(&mut self, addr: u64, entry: Entry, fetch: bool) {
        self.first(entry, fetch).leave(entry.tag(addr));
    }

    /// Invalidate the translation of a page, which must not be pinned.
    pub fn remove(&mut self, addr: u64, entry: Entry) {
        let (tag, large) = (entry.tag(addr), entry.is_large());
        self.instruction.of(large).remove(tag);
        self.data.of(large).remove(tag);
        if let Some(second) = &mut self.second {
            second.of(large).remove(tag);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn directories_equal_a_single_lru_set(numbers in prop::collection::vec(0u64..60, 1..800), entries in 1u32..50) {
            let (mut directories, mut set) =
                (Directories::new(entries as usize), SetLru::new(entries, entries));
            for number in numbers {
                prop_assert_eq!(directories.access(number << 40), set.access(number << 40));
            }
        }
    }
}
