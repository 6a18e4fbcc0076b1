//! Measures idle time, in which no recorded thread runs because all are in system calls. QEMU does
//! not lengthen such time. Times are nanoseconds of [`now`].
//!
//! Once enough time has accumulated, an event reports the idle time and the mean number of threads
//! that ran during the rest of the time ([`Activity::resume`]). A thread in a system call does not run.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Minimum idle time plus overlap for an event, in nanoseconds. Overlap is the sum of the threads'
/// running times minus the time in which at least one runs.
const MIN_REPORT: u64 = 1_000_000;
/// A time that is not known.
const UNKNOWN: u64 = u64::MAX;

/// Activity of all threads of all recorded processes.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Activity {
    /// Number of threads that run.
    running: AtomicU32,
    /// When a thread last paused, or [`UNKNOWN`].
    idle_since: AtomicU64,
    /// When an event last reported `idle` and `busy`, plus the time since then that exceeded the limits
    /// of [`resume`](Self::resume) and so counts neither as idle nor as running time.
    reported_at: AtomicU64,
    /// Idle nanoseconds since then.
    idle: AtomicU64,
    /// Sum of the threads' running times since then, each up to its last pause.
    busy: AtomicU64,
    /// All idle time and overlap that events have reported.
    reported: AtomicU64,
}

/// Activity of one thread.
#[derive(Debug, Default)]
#[repr(C)]
pub struct ThreadActivity {
    /// 1 while it runs.
    running: AtomicU32,
    /// When it began to run.
    since: AtomicU64,
}

impl Activity {
    /// A thread begins.
    pub fn begin(&self, thread: &ThreadActivity, now: u64) {
        let _ = self.reported_at.compare_exchange(0, now, Relaxed, Relaxed);
        self.run(thread, now);
    }

    /// Mark a thread as running. Returns whether it was paused and no other thread runs.
    fn run(&self, thread: &ThreadActivity, now: u64) -> bool {
        if thread.running.swap(1, AcqRel) != 0 {
            return false;
        }
        thread.since.store(now, Relaxed);
        self.running.fetch_add(1, AcqRel) == 0
    }

    /// A thread enters a system call, or has ended.
    pub fn pause(&self, thread: &ThreadActivity, now: u64) {
        if thread.running.swap(0, AcqRel) != 0 {
            self.busy.fetch_add(now.saturating_sub(thread.since.load(Relaxed)), Relaxed);
            self.idle_since.store(now, Release);
            self.running.fetch_sub(1, AcqRel);
        }
    }

    /// The last thread of a program ends. The time that follows is not idle, because QEMU takes
    /// longer than the kernel to end or replace a program.
    pub fn end(&self, thread: &ThreadActivity, now: u64) {
        self.pause(thread, now);
        self.idle_since.store(UNKNOWN, Release);
    }

    /// An unrecorded process begins. Calls may wait for it, so it counts as running for ever.
    pub fn begin_unrecorded(&self) {
        self.running.fetch_add(1, Relaxed);
    }

    /// A thread returns from a system call that takes at most `limit` nanoseconds without QEMU.
    /// Returns what an event is to report: idle nanoseconds since the last event, and the mean
    /// number of threads that ran outside of idle time, times 1000. To keep events few, returns `None`
    /// if idle time plus overlap is below [`MIN_REPORT`], or 1/1024 of what all events have reported.
    pub fn resume(&self, thread: &ThreadActivity, now: u64, limit: u64) -> Option<[u64; 2]> {
        if !self.run(thread, now) {
            return None;
        }
        let all = now.saturating_sub(self.idle_since.load(Acquire));
        let idle = all.min(limit);
        self.reported_at.fetch_add(all - idle, Relaxed);
        let idle = self.idle.fetch_add(idle, Relaxed).saturating_add(idle);
        let ran = now.saturating_sub(self.reported_at.load(Relaxed)).saturating_sub(idle);
        let busy = self.busy.load(Relaxed);
        let idle_and_overlap = idle.saturating_add(busy.saturating_sub(ran));
        if idle_and_overlap < MIN_REPORT.max(self.reported.load(Relaxed) >> 10) {
            return None;
        }
        self.reported.fetch_add(idle_and_overlap, Relaxed);
        self.reported_at.store(now, Relaxed);
        [&self.idle, &self.busy].iter().for_each(|sum| sum.store(0, Relaxed));
        Some([idle, (busy as f64 * 1000.0 / ran as f64) as u64])
    }
}

/// Nanoseconds of the monotonic clock, which all processes share.
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes a `timespec`.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn time_is_idle_while_all_threads_are_in_calls() {
        let (all, [a, b]) = (Activity::default(), <[ThreadActivity; 2]>::default());
        all.begin(&a, MS);
        all.begin(&b, MS);
        all.pause(&a, 2 * MS);
        // B ran all the time.
        assert_eq!(all.resume(&a, 5 * MS, u64::MAX), None);
        all.pause(&a, 6 * MS);
        all.pause(&b, 7 * MS);
        // Within 6 ms, A ran for 2 ms and B for 6 ms; then none ran for 3 ms.
        assert_eq!(all.resume(&b, 10 * MS, u64::MAX), Some([3 * MS, 1333]));
        // Half a millisecond is too short to report; the next event includes it.
        all.pause(&b, 11 * MS);
        assert_eq!(all.resume(&b, 11 * MS + MS / 2, u64::MAX), None);
        all.pause(&b, 12 * MS);
        assert_eq!(all.resume(&a, 13 * MS, u64::MAX), Some([MS * 3 / 2, 1000]));
        // Only 2 of 10 ms are idle: the call takes no longer without QEMU.
        all.pause(&a, 14 * MS);
        assert_eq!(all.resume(&a, 24 * MS, 2 * MS), Some([2 * MS, 1000]));
    }

    #[test]
    fn time_is_not_idle_while_qemu_ends_a_program_or_an_unrecorded_one_runs() {
        let (all, [a, b]) = (Activity::default(), <[ThreadActivity; 2]>::default());
        all.begin(&a, MS);
        all.begin(&b, MS);
        all.pause(&a, MS);
        all.end(&b, 2 * MS);
        assert_eq!(all.resume(&a, 100 * MS, u64::MAX), None);
        // A pause of an ended thread has no effect.
        all.pause(&b, 101 * MS);
        all.pause(&a, 101 * MS);
        assert!(all.resume(&a, 111 * MS, u64::MAX).is_some_and(|[idle, _]| idle == 10 * MS));
        all.begin_unrecorded();
        all.pause(&a, 112 * MS);
        assert_eq!(all.resume(&a, 200 * MS, u64::MAX), None);
    }
}
