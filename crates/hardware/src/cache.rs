//! CPU caches: filters a trace to the references that reach memory.
//!
//! Models the first-level instruction and data caches and the unified second level of one core,
//! which runs all threads of a trace. They are set-associative, true LRU, write-back and
//! write-allocate. The levels are non-inclusive and non-exclusive: a line that misses everywhere is
//! placed in both, and each level evicts independently. A dirty line evicted from the first level
//! marks its copy in the second dirty, without changing its LRU position; without a copy, it is
//! inserted as the most recently used. Lines are indexed by virtual address.
//!
//! Not modelled: prefetching, coherence between the first-level caches, and third levels.

use std::fmt;
use std::ops::Range;

use nearfar_trace::{Batch, Kind, KindSet, Record, last_byte};

/// One level: `sets` of `ways` lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Line number modulo `sets` selects the set.
    pub sets: u64,
    pub ways: usize,
}

/// The caches of a core. [`Machine::caches`](crate::Machine::caches) reads them from a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// First level for instructions; if `None`, the data cache serves both.
    pub instruction: Option<Level>,
    /// First level for data.
    pub data: Level,
    /// Second level, unified, if any.
    pub second: Option<Level>,
    /// Bytes of a line in every level: a power of two, 8 to 32768.
    pub line_bytes: u64,
}

impl fmt::Display for Geometry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = if self.instruction.is_some() { "L1D" } else { "L1" };
        let levels = [("L1I", self.instruction), (first, Some(self.data)), ("L2", self.second)];
        for (name, level) in levels {
            if let Some(Level { sets, ways }) = level {
                let bytes = sets * ways as u64 * self.line_bytes;
                match bytes % 1024 {
                    0 => write!(f, "{name} {} KiB x{ways}, ", bytes / 1024)?,
                    _ => write!(f, "{name} {bytes} B x{ways}, ")?,
                }
            }
        }
        write!(f, "lines of {} B", self.line_bytes)
    }
}

/// A line in a set: (line number + 1) x 2, plus 1 if dirty; 0 if empty.
type Entry = u64;
const DIRTY: Entry = 1;

/// One cache. Each set is in LRU order, most recently used first.
#[derive(Clone, Debug)]
struct Cache {
    sets: u64,
    ways: usize,
    lines: Vec<Entry>,
}

impl Cache {
    fn new(Level { sets, ways }: Level) -> Self {
        Self { sets, ways, lines: vec![0; sets as usize * ways] }
    }

    #[inline]
    fn set(&mut self, line: u64) -> &mut [Entry] {
        // Avoid the division if possible: it takes as long as the rest of `access`.
        let sets = self.sets;
        let set = if sets.is_power_of_two() { line & (sets - 1) } else { line % sets };
        let start = set as usize * self.ways;
        &mut self.lines[start..start + self.ways]
    }

    /// Access a line; `dirty` is [`DIRTY`] for a write, otherwise 0. Returns `None` on a hit, otherwise
    /// the evicted entry (0: none).
    #[inline]
    fn access(&mut self, line: u64, dirty: Entry) -> Option<Entry> {
        let tag = (line + 1) << 1;
        let set = self.set(line);
        if set[0] & !DIRTY == tag {
            set[0] |= dirty;
            return None;
        }
        let hit = set.iter().position(|entry| entry & !DIRTY == tag);
        let position = hit.unwrap_or(set.len() - 1);
        let old = set[position];
        set.copy_within(0..position, 1);
        set[0] = tag | dirty | if hit.is_some() { old & DIRTY } else { 0 };
        if hit.is_some() { None } else { Some(old) }
    }

    /// Write back a dirty line from the level above. Returns the evicted entry (0: none).
    fn write_back(&mut self, line: u64) -> Entry {
        let tag = (line + 1) << 1;
        let set = self.set(line);
        match set.iter_mut().find(|entry| **entry & !DIRTY == tag) {
            Some(entry) => {
                *entry |= DIRTY;
                0
            }
            None => self.access(line, DIRTY).unwrap_or(0),
        }
    }
}

/// Memory traffic of a reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Lines read from memory.
    pub fills: u32,
    /// Dirty lines written to memory.
    pub write_backs: u32,
}

/// Reduces a program's references to those that reach memory: one for each line that misses, with
/// the line's address and size and the kind of the reference.
///
/// The instructions of references that hit are carried over to the thread's next record.
#[derive(Clone, Debug)]
pub struct Filter {
    shift: u32,
    line_bytes: u64,
    instruction: Option<Cache>,
    data: Cache,
    second: Option<Cache>,
    write_backs: bool,
    /// Instructions not yet in a record, by thread.
    carried: Vec<u64>,
}

impl Filter {
    /// Create empty caches. With `write_backs`, a dirty line written to memory is also a record: a
    /// store of the whole line by the thread whose miss evicted it, after that miss.
    pub fn new(geometry: &Geometry, write_backs: bool) -> Self {
        Self {
            shift: geometry.line_bytes.trailing_zeros(),
            line_bytes: geometry.line_bytes,
            instruction: geometry.instruction.map(Cache::new),
            data: Cache::new(geometry.data),
            second: geometry.second.map(Cache::new),
            write_backs,
            carried: Vec::new(),
        }
    }

    /// Simulate the records `range` of `from`, which must have all columns, and append the records that
    /// reach memory to `out`.
    pub fn records(&mut self, from: &Batch, range: Range<usize>, out: &mut Batch) {
        let threads = from.thread[range.clone()].iter().max().map_or(0, |&t| t as usize + 1);
        if self.carried.len() < threads {
            self.carried.resize(threads, 0);
        }
        for at in range {
            let (addr, kind, thread) = (from.addr[at], from.kind[at], from.thread[at]);
            let last = last_byte(addr, from.size[at]) >> self.shift;
            let mut line = addr >> self.shift;
            let (fetches, writes) = (KindSet::FETCHES.has(kind), KindSet::WRITES.has(kind));
            self.carried[thread as usize] += u64::from(from.instr[at]);
            loop {
                if let Some(old) = self.first(fetches).access(line, Entry::from(writes)) {
                    self.record_miss(line, old, kind, thread, out);
                }
                if line == last {
                    break;
                }
                line += 1;
            }
        }
    }

    /// Simulate a reference. Returns its memory traffic, and produces no record.
    #[inline]
    pub fn access(&mut self, addr: u64, size: u64, kind: Kind) -> Traffic {
        let mut line = addr >> self.shift;
        let last = last_byte(addr, size) >> self.shift;
        let mut traffic = Traffic::default();
        loop {
            let first = self.first(kind.fetches());
            if let Some(old) = first.access(line, Entry::from(kind.writes())) {
                let (missed, evicted) = self.next_level(line, old);
                traffic.fills += u32::from(missed);
                traffic.write_backs += evicted.map(|old| (old & DIRTY) as u32).iter().sum::<u32>();
            }
            if line == last {
                return traffic;
            }
            line += 1;
        }
    }

    /// Read a line through the data cache, for a page walk. Returns the level that has it (0 or 1;
    /// `None`: memory), and the number of dirty lines written to memory.
    pub fn walk(&mut self, line: u64) -> (Option<usize>, u32) {
        let Some(old) = self.data.access(line, 0) else { return (Some(0), 0) };
        let (missed, evicted) = self.next_level(line, old);
        let write_backs = evicted.map(|old| (old & DIRTY) as u32).iter().sum();
        (if missed { None } else { Some(1) }, write_backs)
    }

    /// The first level for instructions or data.
    #[inline]
    fn first(&mut self, fetches: bool) -> &mut Cache {
        match &mut self.instruction {
            Some(cache) if fetches => cache,
            _ => &mut self.data,
        }
    }

    /// The first level missed `line` and evicted `old`. Returns whether the second level misses
    /// too, and the entries evicted from the last level (0: none).
    fn next_level(&mut self, line: u64, old: Entry) -> (bool, [Entry; 2]) {
        let mut evicted = [0; 2];
        let missed = match &mut self.second {
            Some(second) => {
                let replaced = second.access(line, 0);
                evicted[0] = replaced.unwrap_or(0);
                if old & DIRTY != 0 {
                    evicted[1] = second.write_back((old >> 1) - 1);
                }
                replaced.is_some()
            }
            None => {
                evicted[0] = old;
                true
            }
        };
        (missed, evicted)
    }

    /// The first level missed `line` and evicted `old`: append the records of memory accesses.
    fn record_miss(&mut self, line: u64, old: Entry, kind: u8, thread: u32, out: &mut Batch) {
        let (missed, evicted) = self.next_level(line, old);
        if missed {
            self.push(line, Kind::from_u8(kind).unwrap_or(Kind::Load), thread, out);
        }
        for old in evicted {
            if self.write_backs && old & DIRTY != 0 {
                self.push((old >> 1) - 1, Kind::Store, thread, out);
            }
        }
    }

    fn push(&mut self, line: u64, kind: Kind, thread: u32, out: &mut Batch) {
        let carried = &mut self.carried[thread as usize];
        let instr = (*carried).min(u64::from(u32::MAX)) as u32;
        *carried -= u64::from(instr);
        let size = self.line_bytes as u16;
        out.push(Record { addr: line << self.shift, kind, size, thread, instr });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// For each set, a list of (line, dirty), oldest first.
    #[derive(Default)]
    struct NaiveCache(HashMap<u64, Vec<(u64, bool)>>);

    impl NaiveCache {
        fn holds(&self, level: Level, line: u64) -> bool {
            self.0.get(&(line % level.sets)).is_some_and(|set| set.iter().any(|l| l.0 == line))
        }

        /// Make `line` the newest. Returns the evicted line if it is dirty.
        fn newest(&mut self, level: Level, line: u64, dirty: bool) -> Option<u64> {
            let set = self.0.entry(line % level.sets).or_default();
            let was = set.iter().position(|l| l.0 == line).map(|at| set.remove(at).1);
            set.push((line, dirty || was.unwrap_or(false)));
            if set.len() > level.ways {
                let (old, dirty) = set.remove(0);
                return dirty.then_some(old);
            }
            None
        }
    }

    fn reference(records: &[Record], geometry: &Geometry, write_backs: bool) -> Vec<Record> {
        let mut caches: [NaiveCache; 3] = Default::default();
        let mut carried: HashMap<u32, u64> = HashMap::new();
        let mut out: Vec<Record> = Vec::new();
        for r in records {
            *carried.entry(r.thread).or_default() += u64::from(r.instr);
            let end = u128::from(r.addr) + u128::from(r.size.max(1));
            let lines = (r.addr / geometry.line_bytes)
                ..=(((end - 1) / u128::from(geometry.line_bytes)) as u64)
                    .min(u64::MAX / geometry.line_bytes);
            for line in lines {
                let (which, level) = match geometry.instruction {
                    Some(level) if r.kind.fetches() => (0, level),
                    _ => (1, geometry.data),
                };
                let hit = caches[which].holds(level, line);
                let evicted = caches[which].newest(level, line, r.kind.writes());
                if hit {
                    continue;
                }
                let mut memory = Vec::new();
                let missed = geometry.second.is_none_or(|level| !caches[2].holds(level, line));
                if missed {
                    memory.push((line, r.kind));
                }
                match geometry.second {
                    None => memory.extend(evicted.map(|old| (old, Kind::Store))),
                    Some(level) => {
                        let old = caches[2].newest(level, line, false);
                        memory.extend(old.map(|old| (old, Kind::Store)));
                        if let Some(evicted) = evicted {
                            if caches[2].holds(level, evicted) {
                                let set = caches[2].0.get_mut(&(evicted % level.sets)).unwrap();
                                set.iter_mut().find(|l| l.0 == evicted).unwrap().1 = true;
                            } else {
                                let old = caches[2].newest(level, evicted, true);
                                memory.extend(old.map(|old| (old, Kind::Store)));
                            }
                        }
                    }
                }
                if !write_backs {
                    memory.truncate(usize::from(missed));
                }
                for (line, kind) in memory {
                    let instr = carried.insert(r.thread, 0).unwrap_or(0) as u32;
                    let addr = line * geometry.line_bytes;
                    let size = geometry.line_bytes as u16;
                    out.push(Record { addr, kind, size, thread: r.thread, instr });
                }
            }
        }
        out
    }

    fn level() -> impl Strategy<Value = Level> {
        (1u64..9, 1usize..5).prop_map(|(sets, ways)| Level { sets, ways })
    }

    fn geometry() -> impl Strategy<Value = Geometry> {
        (proptest::option::of(level()), level(), proptest::option::of(level()), 3u32..8).prop_map(
            |(instruction, data, second, shift)| Geometry {
                instruction,
                data,
                second,
                line_bytes: 1 << shift,
            },
        )
    }

    fn records() -> impl Strategy<Value = Vec<Record>> {
        let addr = prop_oneof![9 => 0u64..4000, 1 => (u64::MAX - 500)..=u64::MAX];
        let one = (addr, 0u8..5, prop_oneof![1u16..20, 1u16..700], 0u32..3, 0u32..9).prop_map(
            |(addr, kind, size, thread, instr)| Record {
                addr,
                kind: Kind::from_u8(kind).unwrap(),
                size,
                thread,
                instr,
            },
        );
        prop::collection::vec(one, 1..400)
    }

    fn batch(records: &[Record]) -> Batch {
        let mut batch = Batch::default();
        records.iter().for_each(|record| batch.push(*record));
        batch
    }

    /// Filter `records` in two calls, divided at `cut`.
    fn filtered(records: &[Record], geometry: &Geometry, write_backs: bool, cut: usize) -> Batch {
        let mut filter = Filter::new(geometry, write_backs);
        let (from, mut out) = (batch(records), Batch::default());
        let cut = cut.min(from.len());
        filter.records(&from, 0..cut, &mut out);
        filter.records(&from, cut..from.len(), &mut out);
        out
    }

    proptest! {
        #[test]
        fn records_equal_those_of_the_reference_implementation(
            records in records(),
            geometry in geometry(),
            write_backs: bool,
            cut in 0usize..400,
        ) {
            let found: Vec<Record> =
                filtered(&records, &geometry, write_backs, cut).iter().collect();
            prop_assert_eq!(found, reference(&records, &geometry, write_backs));
        }

        #[test]
        fn traffic_equals_the_number_of_records(records in records(), geometry in geometry()) {
            let found = filtered(&records, &geometry, true, 0).len() as u32;
            let mut caches = Filter::new(&geometry, false);
            let traffic: Vec<Traffic> = records
                .iter()
                .map(|r| caches.access(r.addr, u64::from(r.size), r.kind))
                .collect();
            let fills = filtered(&records, &geometry, false, 0).len() as u32;
            prop_assert_eq!(traffic.iter().map(|t| t.fills).sum::<u32>(), fills);
            prop_assert_eq!(traffic.iter().map(|t| t.fills + t.write_backs).sum::<u32>(), found);
        }

        /// Inclusion property of LRU, for one level with the same number of sets.
        #[test]
        fn more_ways_never_miss_more(records in records(), level in level(), more in 1usize..4) {
            let misses = |ways| {
                let data = Level { ways, ..level };
                let geometry = Geometry { instruction: None, data, second: None, line_bytes: 64 };
                filtered(&records, &geometry, false, 0).len()
            };
            prop_assert!(misses(level.ways + more) <= misses(level.ways));
        }

        #[test]
        fn exactly_the_touched_lines_are_filled(records in records(), geometry in geometry()) {
            let touched = reference(&records, &Geometry {
                instruction: None,
                data: Level { sets: 1, ways: 1 },
                second: None,
                ..geometry
            }, false);
            let lines = |all: &mut dyn Iterator<Item = Record>| {
                let mut lines: Vec<u64> = all.map(|r| r.addr).collect();
                lines.sort_unstable();
                lines.dedup();
                lines
            };
            let found = filtered(&records, &geometry, false, 0);
            prop_assert_eq!(lines(&mut found.iter()), lines(&mut touched.into_iter()));
        }
    }

    #[test]
    fn instructions_beyond_32_bits_are_carried_to_the_next_record() {
        let geometry = Geometry {
            instruction: None,
            data: Level { sets: 1, ways: 1 },
            second: None,
            line_bytes: 64,
        };
        let record = |addr| Record { addr, kind: Kind::Load, size: 1, thread: 0, instr: u32::MAX };
        let found = filtered(&[record(0), record(1), record(64), record(0)], &geometry, false, 0);
        assert_eq!(found.instr, [u32::MAX; 3]);
    }
}
