//! Hint-fault scanning, as NUMA balancing does it in tiering mode.
//!
//! Follows Linux 5.13 `kernel/sched/fair.c` with the change that TPP and NOMAD make: only pages of
//! slow nodes are armed, that is, fault at the next reference.
//!
//! * `task_numa_work`: a scan takes steps, at most eight, until a step arms a page. Fast pages of
//!   that step count too, so the scan arms less than its size.
//! * `task_scan_min`, `task_scan_max`: the sysctls are times of a pass over all memory, so the time
//!   between scans is a share of them, with a floor.
//! * `update_task_scan_period`: at the first fault after a pass, the kernel doubles the period if no
//!   fault was local or shared. Here none is: fast pages do not fault, and all threads count as one task.
//!
//! A scanner [of Linux 6.12](Scanner::follow_linux_6_12) also follows rules that matter if a pass has few
//! scans:
//!
//! * `task_numa_work`: a scan ends at the end of memory. A mapping that never takes a hint fault,
//!   such as the stack, takes a separate scan in each pass, which arms nothing
//!   (`vma_is_accessed`, `vma_pids_forced`; since 6.7).
//! * `update_task_scan_period`: when the period doubles, the next scan is a new period later.
//! * `task_numa_work`: a scan takes at most 3 % of the program's time.

use super::knobs::{Frames, Knobs, Settings};
use super::{Context, Memory, Next, NodeId, Page, Refused, Request, Thread, Time};
use crate::knobs;

knobs! {
    /// How much memory is scanned for hint faults, and how often.
    ScanKnobs {
        scan_size: Frames = "256MiB" (in tests "32KiB"), "memory that one scan prepares for hint faults",
            "Linux 5.13, sysctl numa_balancing_scan_size_mb";
        scan_period_min: Time = "1s" (in tests "60us"), "minimum duration of a scanning pass over all memory",
            "Linux 5.13, sysctl numa_balancing_scan_period_min_ms";
        scan_period_max: Time = "60s" (in tests "240us"), "maximum duration of a scanning pass over all memory",
            "Linux 5.13, sysctl numa_balancing_scan_period_max_ms";
        scan_floor: Time = "100ms" (in tests "20us"), "minimum time from one scan to the next",
            "Linux 5.13, fair.c, MAX_SCAN_WINDOW: 2,560 MB/s at 256 MB a scan";
        scan_delay: Time = "1s" (in tests "10us"), "time from the program's start to the first scan",
            "Linux 5.13, sysctl numa_balancing_scan_delay_ms";
    }
}

/// Minimum time of the program between two scans, in durations of a scan (`task_numa_work`).
const OTHER_WORK: u64 = 32;

#[derive(Debug)]
pub struct Scanner {
    knobs: ScanKnobs,
    thread: Thread,
    cursor: u32,
    period: Time,
    max_period: Time,
    /// Whether a pass is complete and no page has faulted since.
    passed: bool,
    /// Whether pages of the fast node are armed too.
    all_nodes: bool,
    /// Whether the period never changes.
    fixed: bool,
    /// Scans of a pass that arm nothing; `None` without the rules of Linux 6.12.
    idle: Option<u64>,
    /// Remaining scans of this pass that arm nothing.
    idle_left: u64,
    /// With the rules of Linux 6.12: there is no scan before this time.
    due: Time,
    /// With the rules of Linux 6.12: when the current period began.
    stamp: Option<Time>,
    /// With the rules of Linux 6.12: when the last scan began, until its duration is known.
    began: Option<Time>,
    /// Buffers: the pages to arm in a step, and the results.
    requests: Vec<Request>,
    outcomes: Vec<Result<(), Refused>>,
}

impl Scanner {
    /// A scanner of the pages of `mem`, with its thread and the thread's first run.
    ///
    /// # Errors
    /// If a knob is invalid.
    pub fn new(
        mem: &mut dyn Memory,
        settings: &Settings,
    ) -> nearfar_trace::Result<(Self, (Thread, Time))> {
        let knobs = ScanKnobs::read(settings)?;
        let scans = u64::from(mem.page_limit()).div_ceil(knobs.scan_size.0).max(1);
        let share = |pass: Time| Time::from_ps(pass.ps() / scans);
        let period = share(knobs.scan_period_min).max(knobs.scan_floor);
        let thread = mem.spawn("scanner", Context::Program);
        let first = mem.now().plus(knobs.scan_delay);
        let scanner = Self {
            max_period: share(knobs.scan_period_max).max(period),
            knobs,
            thread,
            cursor: 0,
            period,
            passed: false,
            all_nodes: false,
            fixed: false,
            idle: None,
            idle_left: 0,
            due: Time::default(),
            stamp: None,
            began: None,
            requests: Vec::new(),
            outcomes: Vec::new(),
        };
        Ok((scanner, (thread, first)))
    }

    pub fn arm_all_nodes(&mut self) {
        self.all_nodes = true;
    }

    /// Keep the initial period: hint faults are not counted.
    pub fn fix_period(&mut self) {
        self.fixed = true;
    }

    /// Scan as Linux 6.12 does, with `idle` scans in each pass for mappings that do not fault
    /// (`task_numa_work`, `vma_pids_forced`).
    pub fn follow_linux_6_12(&mut self, idle: u64) {
        self.idle = Some(idle);
    }

    /// The thread that must run [`work`](Scanner::work).
    pub fn thread(&self) -> Thread {
        self.thread
    }

    /// Record a hint fault. To follow Linux 5.18 or later, call it only if the fault promoted its page
    /// (`task_numa_fault`).
    pub fn fault(&mut self, now: Time) {
        if self.passed && !self.fixed {
            self.passed = false;
            self.period = self.period.plus(self.period).min(self.max_period);
            if self.idle.is_some() {
                self.due = now.plus(self.period);
            }
        }
    }

    /// Arm the wanted pages of the next step that has any, and call `armed` for each.
    pub fn work(&mut self, mem: &mut dyn Memory, mut armed: impl FnMut(Page)) -> Next {
        let now = mem.now();
        if let Some(began) = self.began.take() {
            let spent = now.since(began).ps();
            self.stamp = Some(began.plus(Time::from_ps(OTHER_WORK * spent)));
        }
        let next = self.stamp.map_or(self.due, |stamp| stamp.plus(self.period).max(self.due));
        if now < next {
            return Next::At(next);
        }
        if self.idle_left > 0 {
            self.idle_left -= 1;
            self.passed |= self.idle_left == 0;
            self.stamp = Some(now);
            return Next::At(now.plus(self.period));
        }
        let limit = mem.page_limit();
        let step = self.knobs.scan_size.0;
        let mut budget = step.saturating_mul(8).min(u64::from(limit));
        loop {
            // One armed page uses up the step that it is in (`nr_pte_updates`).
            let mut left = step.min(budget);
            budget -= left;
            self.requests.clear();
            while left > 0 {
                let at = Page::new(self.cursor);
                let page = mem.next_mapped(at).unwrap_or(Page::new(limit));
                let hole = page.number() - at.number();
                let seen = if hole > 0 { left.min(hole.into()) as u32 } else { mem.span(page) };
                let wanted = self.all_nodes || mem.node_of(page) != NodeId::FAST;
                if hole == 0 && wanted && !mem.hint_armed(page) {
                    self.requests.push(Request::ArmHint(page));
                }
                left = left.saturating_sub(seen.into());
                self.cursor = at.skip(seen).number();
                if self.cursor >= limit {
                    self.cursor = 0;
                    self.idle_left = self.idle.unwrap_or(0);
                    self.passed |= self.idle_left == 0;
                    if self.idle.is_some() {
                        (left, budget) = (0, 0);
                    }
                }
            }
            mem.batch(&self.requests, &mut self.outcomes);
            let mut any = false;
            for (request, outcome) in self.requests.iter().zip(&self.outcomes) {
                if let (Request::ArmHint(page), Ok(())) = (request, outcome) {
                    armed(*page);
                    any = true;
                }
            }
            if any || budget == 0 {
                break;
            }
        }
        if self.idle.is_some() {
            self.began = Some(now);
            // The next call sees how long the scan took.
            return Next::Again;
        }
        Next::At(now.plus(self.period))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{COSTS, ReferenceMemory, settings};
    use super::*;

    fn us(us: u64) -> Time {
        Time::from_ps(us * 1_000_000)
    }

    /// 24 pages, the first four fast. A scan has eight pages, so a pass has three scans.
    fn scanner_and_memory() -> (Scanner, ReferenceMemory) {
        let mut memory = ReferenceMemory::new(COSTS, &[4, 24], 24, /* huge: */ false);
        let mut none = memory.start("none", &Settings::default()).unwrap();
        for page in 0..24 {
            memory.access(&mut *none, Page::new(page), /* write: */ false).unwrap();
        }
        let mut settings = settings("tpp").unwrap();
        settings.values.retain(|name, _| name.starts_with("scan_"));
        let (scanner, (thread, first)) = Scanner::new(&mut memory, &settings).unwrap();
        assert_eq!((thread.name(), first), ("scanner", memory.now().plus(us(10))));
        (scanner, memory)
    }

    /// The pages that a scan arms, and the time until the next.
    fn scan(scanner: &mut Scanner, memory: &mut ReferenceMemory) -> (Vec<u32>, Time) {
        let mut armed = Vec::new();
        let mut next = scanner.work(memory, |page| armed.push(page.number()));
        if next == Next::Again {
            next = scanner.work(memory, |_| panic!("no time has passed"));
        }
        let Next::At(next) = next else { panic!("a scan is followed by another") };
        (armed, next.since(memory.now()))
    }

    #[test]
    fn scans_arm_slow_pages_and_slow_down_after_passes_with_faults() {
        let (mut scanner, mut memory) = scanner_and_memory();
        assert_eq!(scan(&mut scanner, &mut memory), ((4..8).collect(), us(20)));
        assert_eq!(scan(&mut scanner, &mut memory), ((8..16).collect(), us(20)));
        scanner.fault(memory.now());
        assert_eq!(scan(&mut scanner, &mut memory), ((16..24).collect(), us(20)));
        // A pass is over: the next fault doubles the period, others do not, up to the longest.
        for (faults, period) in [(2, 40), (0, 40), (1, 80), (1, 80)] {
            for _ in 0..faults {
                scanner.fault(memory.now());
            }
            // Everything is armed: a scan looks at all 24 pages and arms none.
            assert_eq!(scan(&mut scanner, &mut memory), (vec![], us(period)));
        }
    }

    #[test]
    fn a_fixed_period_stays() {
        let (mut scanner, mut memory) = scanner_and_memory();
        scanner.fix_period();
        for _ in 0..6 {
            assert_eq!(scan(&mut scanner, &mut memory).1, us(20));
            scanner.fault(memory.now());
        }
    }

    /// A scan ends at the end of memory, and a mapping that never faults takes another scan.
    #[test]
    fn passes_of_linux_6_12_have_more_scans() {
        let (mut scanner, mut memory) = scanner_and_memory();
        scanner.follow_linux_6_12(1);
        scanner.cursor = 12;
        assert_eq!(scan(&mut scanner, &mut memory), ((12..20).collect(), us(20)));
        // The period has not passed yet.
        assert_eq!(scan(&mut scanner, &mut memory), (vec![], us(20)));
        scanner.stamp = None;
        assert_eq!(scan(&mut scanner, &mut memory), ((20..24).collect(), us(20)));
        scanner.stamp = None;
        // The pass is not over yet.
        scanner.fault(memory.now());
        assert_eq!(scan(&mut scanner, &mut memory), (vec![], us(20)));
        scanner.stamp = None;
        scanner.fault(memory.now());
        assert_eq!(scan(&mut scanner, &mut memory), (vec![], us(40)));
        // A scan that has taken a microsecond.
        scanner.began = Some(Time::from_ps(memory.now().ps() - us(1).ps()));
        assert_eq!(scan(&mut scanner, &mut memory), (vec![], us(OTHER_WORK + 40 - 1)));
        assert_eq!(scanner.cursor, 0);
    }
}
