//! Hint-fault scanning, as NUMA balancing does it in tiering mode.
//!
//! Follows Linux 5.13 `kernel/sched/fair.c` with the change that TPP and NOMAD make: only pages of
//! slow nodes are armed.
//!
//! * `task_numa_work`: a scan goes on stretch by stretch until one had a page to arm, over eight
//!   stretches at most; where fast and slow pages lie mixed, it arms less than its size.
//! * `task_scan_min`, `task_scan_max`: the sysctls are times of a pass over all memory, so the time
//!   between scans is a share of them, and not below a floor.
//! * `update_task_scan_period`: at the first fault after a pass the period doubles, as no fault was
//!   local and none shared: fast pages do not fault, and all threads count as one task here.
//!
//! Left out: the limit of 3 % of the program's time (a scan of 256 MiB takes less).

use super::knobs::{Frames, Knobs, Settings};
use super::{Memory, Next, NodeId, Page, Time};
use crate::knobs;

knobs! {
    /// How hint faults are spread.
    ScanKnobs {
        scan_size: Frames = "256MiB", "memory armed by a scan",
            "Linux 5.13, sysctl numa_balancing_scan_size_mb";
        scan_period_min: Time = "1s", "shortest time of a pass over all memory",
            "Linux 5.13, sysctl numa_balancing_scan_period_min_ms";
        scan_period_max: Time = "60s", "longest time of a pass over all memory",
            "Linux 5.13, sysctl numa_balancing_scan_period_max_ms";
        scan_floor: Time = "100ms", "shortest time from one scan to the next",
            "Linux 5.13, fair.c, MAX_SCAN_WINDOW: 2,560 MB/s at 256 MB a scan";
        scan_delay: Time = "1s", "time of the first scan",
            "Linux 5.13, sysctl numa_balancing_scan_delay_ms";
    }
}

/// The scanner.
#[derive(Debug)]
pub struct Scanner {
    knobs: ScanKnobs,
    cursor: u32,
    period: Time,
    longest: Time,
    /// A pass is over and no page has faulted since.
    passed: bool,
}

impl Scanner {
    /// A scanner with these settings.
    ///
    /// # Errors
    /// A knob out of place.
    pub fn new(settings: &Settings) -> nearfar_trace::Result<Self> {
        let knobs = ScanKnobs::read(settings)?;
        let (period, longest) = (knobs.scan_period_min, knobs.scan_period_max);
        Ok(Self { knobs, cursor: 0, period, longest, passed: false })
    }

    /// When the first scan is due.
    pub fn begin(&mut self, mem: &dyn Memory) -> Time {
        let scans = u64::from(mem.pages()).div_ceil(self.knobs.scan_size.0).max(1);
        let share = |pass: Time| Time::from_ps(pass.ps() / scans);
        self.period = share(self.knobs.scan_period_min).max(self.knobs.scan_floor);
        self.longest = share(self.knobs.scan_period_max).max(self.period);
        mem.now().plus(self.knobs.scan_delay)
    }

    /// There was a hint fault.
    pub fn fault(&mut self) {
        if self.passed {
            self.passed = false;
            self.period = self.period.plus(self.period).min(self.longest);
        }
    }

    /// Arm the slow pages of the next stretch that has any; `armed` is told each.
    pub fn work(&mut self, mem: &mut dyn Memory, mut armed: impl FnMut(Page)) -> Next {
        let pages = mem.pages();
        let stretch = self.knobs.scan_size.0;
        let mut pass = stretch.saturating_mul(8).min(u64::from(pages));
        loop {
            // One armed page uses up the stretch that it is in (`nr_pte_updates`).
            let (mut left, mut any) = (stretch.min(pass), false);
            pass -= left;
            while left > 0 {
                let page = Page::new(self.cursor);
                let span = if mem.mapped(page) { mem.span(page) } else { 1 };
                if mem.mapped(page) && mem.node_of(page) != NodeId::FAST && !mem.hint_armed(page) {
                    mem.arm_hint(page);
                    armed(page);
                    any = true;
                }
                left = left.saturating_sub(u64::from(span));
                self.cursor = self.cursor.saturating_add(span);
                if self.cursor >= pages {
                    self.cursor = 0;
                    self.passed = true;
                }
            }
            if any || pass == 0 {
                break;
            }
        }
        Next::At(mem.now().plus(self.period))
    }
}

#[cfg(test)]
mod tests {
    use super::super::make;
    use super::super::plain::PlainMemory;
    use super::super::toy::{PRICES, toy};
    use super::*;

    /// 24 pages, the first four fast; a scan is eight pages, so a pass three scans.
    #[test]
    fn arms_stretches_and_slows_down_after_passes_with_faults() {
        let settings = toy("tpp").unwrap();
        let mut none = make("none", &Settings::default()).unwrap();
        let mut memory = PlainMemory::new(PRICES, &[4, 24], 24, false);
        memory.start(&mut *none);
        for page in 0..24 {
            memory.access(&mut *none, Page::new(page), false).unwrap();
        }
        let mut own = settings.clone();
        own.values.retain(|name, _| name.starts_with("scan_"));
        let mut scanner = Scanner::new(&own).unwrap();
        let us = |us: u64| Time::from_ps(us * 1_000_000);
        assert_eq!(scanner.begin(&memory), memory.now().plus(us(10)));
        let scan = |scanner: &mut Scanner, memory: &mut PlainMemory| {
            let mut armed = Vec::new();
            let Next::At(next) = scanner.work(memory, |page| armed.push(page.number())) else {
                panic!("a scan is followed by another")
            };
            (armed, next.since(memory.now()))
        };
        assert_eq!(scan(&mut scanner, &mut memory), ((4..8).collect(), us(20)));
        assert_eq!(scan(&mut scanner, &mut memory), ((8..16).collect(), us(20)));
        scanner.fault();
        assert_eq!(scan(&mut scanner, &mut memory), ((16..24).collect(), us(20)));
        // A pass is over: the next fault doubles the period, others do not, up to the longest.
        for (faults, period) in [(2, 40), (0, 40), (1, 80), (1, 80)] {
            for _ in 0..faults {
                scanner.fault();
            }
            // Everything is armed: a scan looks at all 24 pages in vain.
            assert_eq!(scan(&mut scanner, &mut memory), (vec![], us(period)));
        }
    }
}
