//! Hint-fault scanning, as NUMA balancing does it in tiering mode.
//!
//! Follows Linux 5.13 `task_numa_work` with the change that TPP and NOMAD make: only pages of slow
//! nodes are armed. A scan arms so many bytes of pages or passes over eight times as many
//! addresses, whichever comes first. The kernel looks at its period once a pass over all addresses and
//! lets it follow the share of local faults; as only slow pages fault here, it is the shortest after
//! a pass with faults and doubles, up to the longest, after one without.

use super::knobs::{Frames, Knobs, Settings};
use super::{Memory, Next, NodeId, Page, Time};
use crate::knobs;

knobs! {
    /// How hint faults are spread.
    ScanKnobs {
        scan_size: Frames = "256MiB", "memory armed by a scan",
            "Linux 5.13, sysctl numa_balancing_scan_size_mb";
        scan_period_min: Time = "1s", "time from one scan to the next while there are hint faults",
            "Linux 5.13, sysctl numa_balancing_scan_period_min_ms";
        scan_period_max: Time = "60s", "longest time from one scan to the next",
            "Linux 5.13, sysctl numa_balancing_scan_period_max_ms";
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
    faults: u64,
}

impl Scanner {
    /// A scanner with these settings.
    ///
    /// # Errors
    /// A knob out of place.
    pub fn new(settings: &Settings) -> nearfar_trace::Result<Self> {
        let knobs = ScanKnobs::read(settings)?;
        Ok(Self { period: knobs.scan_period_min, knobs, cursor: 0, faults: 0 })
    }

    /// When the first scan is due.
    pub fn begin(&self, mem: &dyn Memory) -> Time {
        mem.now().plus(self.knobs.scan_delay)
    }

    /// There was a hint fault.
    pub fn fault(&mut self) {
        self.faults += 1;
    }

    /// Arm the next stretch of slow pages; `armed` is told each.
    pub fn work(&mut self, mem: &mut dyn Memory, mut armed: impl FnMut(Page)) -> Next {
        let pages = mem.pages();
        let mut arm = self.knobs.scan_size.0;
        let mut pass = (arm * 8).min(u64::from(pages));
        while arm > 0 && pass > 0 {
            let page = Page::new(self.cursor);
            let span = if mem.mapped(page) { mem.span(page) } else { 1 };
            if mem.mapped(page) && mem.node_of(page) != NodeId::FAST && !mem.hint_armed(page) {
                mem.arm_hint(page);
                armed(page);
                arm = arm.saturating_sub(u64::from(span));
            }
            pass = pass.saturating_sub(u64::from(span));
            self.cursor = self.cursor.saturating_add(span);
            if self.cursor >= pages {
                self.cursor = 0;
                let (least, most) = (self.knobs.scan_period_min, self.knobs.scan_period_max);
                self.period = match self.faults {
                    0 => self.period.plus(self.period).min(most).max(least),
                    _ => least,
                };
                self.faults = 0;
            }
        }
        Next::At(mem.now().plus(self.period))
    }
}
