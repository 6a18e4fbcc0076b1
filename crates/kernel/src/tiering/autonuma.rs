//! `autonuma`: NUMA balancing in memory-tiering mode, Linux 6.3.
//!
//! Follows `kernel/sched/fair.c`, `should_numa_migrate_memory`: while the fast node has memory to spare,
//! every hint fault promotes its page; otherwise only a page that faults soon after a scan armed it (made
//! its next reference a hint fault), up to the rate limit. Soon means within the hot threshold, which
//! adapts. If less than the `high` watermark is free, the page stays and kswapd is woken (`mm/migrate.c`,
//! `numamigrate_isolate_page`); kswapd demotes until WMARK_PROMO is free (`mm/vmscan.c`, `pgdat_balanced`).
//! Scans are [those of Linux 6.12](super::scan). If accesses are spread evenly, all pages fault equally
//! soon, hot or cold.

use super::knobs::{Frames, Knobs, Settings};
use super::reclaim::{ByCopy, Reclaim, ReclaimKnobs};
use super::scan::{ScanKnobs, Scanner};
use super::{Capability, Memory, Next, NodeId, Page, Policy, PolicyEntry, Thread, Time};
use crate::knobs;

knobs! {
    /// What tiering mode adds to scanner and kswapd.
    AutonumaKnobs {
        hot_threshold: Time = "1s" (in tests "40us"), "initial hot threshold: maximum time from a page's scan to its hint fault",
            "Linux 6.3, debugfs numa_balancing/hot_threshold_ms";
        rate_limit: Frames = "65536MB" (in tests "24KiB"), "maximum memory promoted in a `rate_window`",
            "Linux 6.3, sysctl numa_balancing_promote_rate_limit_MBps";
        rate_window: Time = "1s" (in tests "50us"), "period of the rate limit", "by definition";
        adjust_period: Time = "60s" (in tests "100us"), "time between adjustments of the hot threshold",
            "Linux 6.3, sysctl numa_balancing_scan_period_max_ms";
        spare: Frames = "1GiB" (in tests "4KiB"), "free memory beyond watermark `high` above which all hint faults promote; at least node / 16",
            "Linux 6.3, pgdat_free_space_enough: the larger of 1 GiB and 1/16 of the node";
        lru_gen: bool = "false", "kswapd demotes in the order of the multi-generational LRU",
            "Linux 6.12, /sys/kernel/mm/lru_gen/enabled; off, as in Linux without CONFIG_LRU_GEN_ENABLED";
        idle_mappings: u64 = "1", "number of mappings that never fault; each takes one scan per pass over memory",
            "Linux 6.12, task_numa_work: at least the stack";
    }
}

/// `NUMA_MIGRATION_ADJUST_STEPS`: steps of the threshold from 0 to its maximum, twice its initial value.
const STEPS: u64 = 16;
/// log2 of the picoseconds of a tick, about a microsecond. Arming times are in ticks, modulo 2^32.
const TICK: u32 = 20;

/// The present time in [`TICK`]s.
fn ticks(mem: &dyn Memory) -> u32 {
    (mem.now().ps() >> TICK) as u32
}

pub static POLICY: PolicyEntry = PolicyEntry {
    what: "NUMA balancing, memory tiering mode of Linux 6.3: promotes pages that fault soon after a scan",
    follows: "Linux 6.3, should_numa_migrate_memory (kernel/sched/fair.c); scans of Linux 6.12; lists of Linux 5.13",
    leaves_out: "file pages, swap, scans of more than one task",
    not_for: "accesses spread evenly over memory: all pages fault equally soon",
    foresees: false,
    knobs: || [AutonumaKnobs::declared(), ScanKnobs::declared(), ReclaimKnobs::declared()].concat(),
    make: |settings, mem| {
        let (policy, first_scan) = Autonuma::new(settings, mem)?;
        Ok((Box::new(policy), vec![first_scan]))
    },
};

/// kswapd's knobs. `demote_scale` is 0 unless it is set: Linux has no such knob, and its kswapd stops at
/// WMARK_PROMO, as far above `high` as `high` is above `low`.
fn without_headroom(settings: &Settings) -> nearfar_trace::Result<ReclaimKnobs> {
    let mut knobs = ReclaimKnobs::read(settings)?;
    if !settings.values.contains_key("demote_scale") {
        knobs.demote_scale = 0.0;
    }
    Ok(knobs)
}

/// Frames counted since a time.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    since: Time,
    frames: u64,
}

#[derive(Debug)]
pub struct Autonuma {
    knobs: AutonumaKnobs,
    pub(super) scanner: Scanner,
    reclaim: Reclaim,
    /// When each page was armed, in [`TICK`]s.
    armed: Vec<u32>,
    threshold: Time,
    /// Hot frames in the window of the rate limit.
    window: Window,
    /// Hot frames since the last adjustment of the threshold.
    since_adjustment: Option<Window>,
}

impl Autonuma {
    /// The policy, with its scanner's thread and the thread's first run.
    pub(super) fn new(
        settings: &Settings,
        mem: &mut dyn Memory,
    ) -> nearfar_trace::Result<(Self, (Thread, Time))> {
        let knobs = AutonumaKnobs::read(settings)?;
        let mut reclaim = Reclaim::new(mem, &without_headroom(settings)?);
        if knobs.lru_gen {
            reclaim = reclaim.with_generations(mem);
        }
        let (mut scanner, first_scan) = Scanner::new(mem, settings)?;
        scanner.follow_linux_6_12(knobs.idle_mappings);
        let policy = Self {
            threshold: knobs.hot_threshold,
            knobs,
            scanner,
            reclaim,
            armed: vec![0; mem.page_limit() as usize],
            window: Window::default(),
            since_adjustment: None,
        };
        Ok((policy, first_scan))
    }

    /// Reset the threshold if there is memory to spare, otherwise adjust it. Returns whether there is
    /// memory to spare.
    pub(super) fn update_threshold(&mut self, mem: &dyn Memory) -> bool {
        let high = self.reclaim.marks(NodeId::FAST).high;
        let spare = self.knobs.spare.0.max(mem.capacity(NodeId::FAST) / 16);
        let enough = mem.free(NodeId::FAST) > high + spare;
        if enough {
            self.threshold = self.knobs.hot_threshold;
        } else {
            self.adjust(mem.now());
        }
        enough
    }

    /// Whether a page that faulted now was armed so recently that it is hot.
    pub(super) fn is_recent(&self, mem: &dyn Memory, page: Page) -> bool {
        let (now, then) = (ticks(mem), self.armed[page.index()]);
        u64::from(now.wrapping_sub(then)) << TICK < self.threshold.ps()
    }

    /// Whether a page that faulted now is worth promoting.
    fn is_hot(&mut self, mem: &dyn Memory, page: Page) -> bool {
        if self.update_threshold(mem) {
            return true;
        }
        if !self.is_recent(mem, page) {
            return false;
        }
        let (now, span) = (mem.now(), u64::from(mem.span(page)));
        if let Some(adjusted) = &mut self.since_adjustment {
            adjusted.frames += span;
        }
        if now.since(self.window.since) >= self.knobs.rate_window {
            self.window = Window { since: now, frames: 0 };
        }
        self.window.frames += span;
        self.window.frames <= self.knobs.rate_limit.0
    }

    /// Move a page that faulted, if the node has room. Returns whether it was moved.
    pub(super) fn migrate(&mut self, mem: &mut dyn Memory, page: Page, to: NodeId) -> bool {
        // A hint fault does not activate its page.
        let active = self.reclaim.is_active(page);
        let moved = self.reclaim.has_room(mem, to, page) && mem.move_page(page, to).is_ok();
        if moved {
            self.reclaim.moved(mem, page, active);
        }
        self.reclaim.wake_if_short(mem);
        moved
    }

    /// Move the threshold so that the rate of hot pages approaches the rate limit.
    fn adjust(&mut self, now: Time) {
        // The first adjustment is due at once: the kernel's `nbp_th_start` is initially long past.
        let period = self.knobs.adjust_period;
        let elapsed = self.since_adjustment.map_or(period, |window| now.since(window.since));
        if elapsed < period {
            return;
        }
        let windows = elapsed.ps() as f64 / self.knobs.rate_window.ps().max(1) as f64;
        let wanted = self.knobs.rate_limit.0 as f64 * windows;
        let step = self.knobs.hot_threshold.ps() * 2 / STEPS;
        let hot_frames = self.since_adjustment.map_or(0.0, |window| window.frames as f64);
        let threshold = self.threshold.ps();
        if hot_frames > wanted * 1.1 {
            self.threshold = Time::from_ps(threshold.saturating_sub(step).max(step));
        } else if hot_frames < wanted * 0.9 {
            let max = self.knobs.hot_threshold.ps() * 2;
            self.threshold = Time::from_ps((threshold + step).min(max));
        }
        self.since_adjustment = Some(Window { since: now, frames: 0 });
    }
}

impl Policy for Autonuma {
    fn place(&mut self, mem: &dyn Memory, _: Page, frames: u32) -> NodeId {
        self.reclaim.place(mem, frames)
    }

    fn allocated(&mut self, mem: &mut dyn Memory, page: Page) {
        self.reclaim.allocated(mem, page);
    }

    fn released(&mut self, _: &mut dyn Memory, page: Page, span: u32) {
        self.reclaim.released(page, span);
    }

    fn hint_fault(&mut self, mem: &mut dyn Memory, page: Page, _: bool) {
        let (now, slow) = (mem.now(), mem.node_of(page) != NodeId::FAST);
        if slow && self.is_hot(mem, page) && self.migrate(mem, page, NodeId::FAST) {
            self.scanner.fault(now);
        }
        if !mem.has(Capability::FarIsMapped) {
            // If slow nodes are not mapped, `disarm_hint` allows one reference and arms the page again.
            self.armed[page.index()] = ticks(mem);
        }
        mem.disarm_hint(page);
    }

    fn work(&mut self, mem: &mut dyn Memory, thread: Thread) -> Next {
        if thread == self.scanner.thread() {
            let now = ticks(mem);
            let armed = &mut self.armed;
            return self.scanner.work(mem, |page| armed[page.index()] = now);
        }
        self.reclaim.kswapd(mem, &mut ByCopy { arm: false })
    }
}
