//! khugepaged: the kernel thread that merges (collapses) small pages into huge ones.
//!
//! Follows `mm/khugepaged.c` of Linux 6.18. The thread alternately sleeps and scans ranges of 2 MiB,
//! through the areas of all processes in turn (`khugepaged_scan_mm_slot`). A scanned range counts as
//! 512 pages; an area that may have no huge pages, or an end of an area too short for a range, counts as
//! one. [`Rules::merges`] says which ranges become huge (`collapse_scan_pmd`). The thread compacts
//! memory, so its allocations do not fail here.
//!
//! Not modelled: the order in which processes began (they are scanned by number); mappings of files;
//! merging into pages smaller than 2 MiB (Linux 7); accessed bits, which only reclaim clears: mapped
//! pages count as referenced.

use super::{Advice, HUGE};

/// Settings, by the names of the files in `/sys/kernel/mm/transparent_hugepage/khugepaged`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Nanoseconds between scans (`scan_sleep_millisecs`).
    pub sleep_ns: f64,
    /// Pages per scan (`pages_to_scan`).
    pub pages: u64,
    /// Pages of a range that may be empty (`max_ptes_none`).
    pub max_none: u64,
    /// Pages of a range that another process may share (`max_ptes_shared`).
    pub max_shared: u64,
    /// Pages of a range that may be in swap (`max_ptes_swap`).
    pub max_swap: u64,
}

/// The mapped pages of a range of 2 MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// Whether it is a huge page already.
    pub huge: bool,
    /// Mapped pages of private memory.
    pub mapped: u64,
    /// Mapped pages that another process shares.
    pub shared: u64,
    /// Pages in swap, which are read back for a merge.
    pub swapped: u64,
}

impl Rules {
    /// `MADV_COLLAPSE`: no limits.
    pub const FORCED: Self = Self {
        sleep_ns: 0.0,
        pages: 0,
        max_none: u64::MAX,
        max_shared: u64::MAX,
        max_swap: u64::MAX,
    };

    /// Whether the range becomes a huge page.
    pub fn merges(&self, range: Range) -> bool {
        let Range { huge, mapped, shared, swapped } = range;
        let none = (1 << HUGE) - mapped - swapped;
        // With pages in swap, half of the range must be referenced; mapped pages count as referenced.
        let referenced = swapped == 0 || mapped >= 1 << (HUGE - 1) || *self == Self::FORCED;
        // At least one page must be writable; shared pages are write-protected.
        let writable = mapped > shared;
        let within = none <= self.max_none && shared <= self.max_shared && swapped <= self.max_swap;
        !huge && writable && within && referenced
    }
}

/// The scanned memory. Pages of all processes are numbered together.
pub trait Memory {
    /// First page, last page and advice of the first area of private memory that ends at or after
    /// page `from`.
    fn area(&self, from: u64) -> Option<(u64, u64, Advice)>;
    /// Whether areas with this advice have pages of 2 MiB.
    fn has_huge(&self, advice: Advice) -> bool;
    /// Scan the range of 2 MiB that begins at this page, and merge it if the rules say so.
    fn scan(&mut self, first: u64, rules: &Rules);
}

/// Maximum scans after a long pause of the program; more would find nothing to merge.
const MAX_SCANS: f64 = 1e5;

/// The thread: its rules and position.
#[derive(Clone, Debug)]
pub struct Khugepaged {
    rules: Rules,
    wakes_ns: f64,
    /// The next page; 0 is the beginning of a pass.
    at: u64,
}

impl Khugepaged {
    /// The thread first wakes after half of a sleep: the mean for a program that starts at any time.
    pub fn new(rules: Rules) -> Self {
        Self { rules, wakes_ns: rules.sleep_ns / 2.0, at: 0 }
    }

    /// Run the thread until `now_ns`.
    pub fn run(&mut self, now_ns: f64, memory: &mut impl Memory) {
        // At least 1 ms, so that the loop ends.
        let sleep_ns = self.rules.sleep_ns.max(1e6);
        self.wakes_ns = self.wakes_ns.max(now_ns - MAX_SCANS * sleep_ns);
        while self.wakes_ns <= now_ns {
            self.wake(memory);
            self.wakes_ns += sleep_ns;
        }
    }

    /// One scan, which begins at most one pass (`khugepaged_do_scan`).
    fn wake(&mut self, memory: &mut impl Memory) {
        let mut progress = 0;
        let mut begun = self.at == 0;
        while progress < self.rules.pages {
            let Some((first, last, advice)) = memory.area(self.at) else {
                self.at = 0;
                if std::mem::replace(&mut begun, true) {
                    return;
                }
                continue;
            };
            let from = first.max(self.at).next_multiple_of(1 << HUGE);
            let fits = from + (1 << HUGE) - 1 <= last;
            if !fits || !memory.has_huge(advice) {
                progress += 1;
                self.at = last + 1;
                continue;
            }
            memory.scan(from, &self.rules);
            progress += 1 << HUGE;
            self.at = from + (1 << HUGE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two areas, of three ranges and of two; the second has no huge pages.
    #[derive(Default)]
    struct TwoAreas {
        scanned: Vec<u64>,
    }

    const AREAS: [(u64, u64, Advice); 2] =
        [(512, 4 * 512 - 1, Advice::Huge), (8 * 512, 10 * 512 - 1, Advice::None)];

    impl Memory for TwoAreas {
        fn area(&self, from: u64) -> Option<(u64, u64, Advice)> {
            AREAS.into_iter().find(|(_, last, _)| *last >= from)
        }
        fn has_huge(&self, advice: Advice) -> bool {
            advice == Advice::Huge
        }
        fn scan(&mut self, first: u64, _: &Rules) {
            self.scanned.push(first / 512);
        }
    }

    const RULES: Rules =
        Rules { sleep_ns: 1e9, pages: 1024, max_none: 511, max_shared: 256, max_swap: 64 };

    #[test]
    fn scans_continue_where_the_last_one_ended() {
        let (mut memory, mut daemon) = (TwoAreas::default(), Khugepaged::new(RULES));
        daemon.run(0.4e9, &mut memory);
        assert!(memory.scanned.is_empty());
        daemon.run(0.5e9, &mut memory);
        assert_eq!(memory.scanned, [1, 2]);
        // The third range, then the other area (one page), then from the beginning.
        daemon.run(1.5e9, &mut memory);
        assert_eq!(memory.scanned, [1, 2, 3, 1]);
        // A scan of all pages: the rest of this pass and one whole pass.
        let mut all = Khugepaged { rules: Rules { pages: 1 << 20, ..RULES }, ..daemon };
        memory.scanned.clear();
        all.run(2.5e9, &mut memory);
        assert_eq!(memory.scanned, [2, 3, 1, 2, 3]);
    }

    #[test]
    fn the_number_of_scans_after_a_long_pause_is_limited() {
        let (mut memory, mut daemon) = (TwoAreas::default(), Khugepaged::new(RULES));
        daemon.run(1e19, &mut memory);
        assert!(memory.scanned.len() < 4 * MAX_SCANS as usize);
    }

    #[test]
    fn a_range_is_merged_within_the_limits() {
        let range = |mapped, shared| Range { mapped, shared, ..Range::default() };
        assert!(RULES.merges(range(1, 0)) && !RULES.merges(range(0, 0)));
        assert!(!RULES.merges(range(300, 257)) && !RULES.merges(range(3, 3)));
        assert!(!RULES.merges(Range { huge: true, ..range(512, 0) }));
        let swapped = |mapped, swapped| Range { swapped, ..range(mapped, 0) };
        assert!(RULES.merges(swapped(256, 64)) && !RULES.merges(swapped(256, 65)));
        assert!(!RULES.merges(swapped(255, 1)) && Rules::FORCED.merges(swapped(1, 511)));
        let full = Rules { max_none: 0, ..RULES };
        assert!(full.merges(range(512, 0)) && !full.merges(range(511, 0)));
    }
}
