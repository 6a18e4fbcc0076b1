//! For how long no recorded thread runs, because all are in system calls: such time is as long as
//! without QEMU. Times are those of [`now`].
//!
//! Once that time is long enough, an event reports it ([`Activity::resume`]) with the number of
//! threads that run at a time: a thread that waits for another one does not run, and time that no two
//! threads have together is the sum of theirs.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Nanoseconds that are worth an event.
const MIN_NEWS: u64 = 1_000_000;
/// A time that is not known.
const UNKNOWN: u64 = u64::MAX;

/// Of all threads of all recorded processes.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Activity {
    /// Threads that run.
    running: AtomicU32,
    /// When the last of them paused, or [`UNKNOWN`].
    idle_since: AtomicU64,
    /// When an event last reported the two sums that follow.
    reported_at: AtomicU64,
    /// Nanoseconds in which no thread ran.
    idle: AtomicU64,
    /// Nanoseconds in which each thread ran, up to its last pause.
    busy: AtomicU64,
    /// All that events have reported.
    reported: AtomicU64,
}

/// Of one thread.
#[derive(Debug, Default)]
#[repr(C)]
pub struct ThreadActivity {
    /// 1 while it runs.
    running: AtomicU32,
    /// Since when.
    since: AtomicU64,
}

impl Activity {
    /// A thread begins.
    pub fn begin(&self, thread: &ThreadActivity, now: u64) {
        let _ = self.reported_at.compare_exchange(0, now, Relaxed, Relaxed);
        self.run(thread, now);
    }

    /// Returns whether no other thread runs.
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

    /// The same, for the last thread of a program, which takes QEMU longer to end, or to replace.
    pub fn end(&self, thread: &ThreadActivity, now: u64) {
        self.pause(thread, now);
        self.idle_since.store(UNKNOWN, Release);
    }

    /// A process begins that is not recorded, for which calls may wait: it runs for ever.
    pub fn begin_unrecorded(&self) {
        self.running.fetch_add(1, Relaxed);
    }

    /// A thread returns from a system call that took at most `limit` without QEMU. Returns
    /// nanoseconds in which no thread ran since the last event, and threads that ran at a time
    /// otherwise, in thousandths, if that is news of at least a thousandth of what was reported
    /// before: so there are few events.
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
        let news = idle.saturating_add(busy.saturating_sub(ran));
        if news < MIN_NEWS.max(self.reported.load(Relaxed) >> 10) {
            return None;
        }
        self.reported.fetch_add(news, Relaxed);
        self.reported_at.store(now, Relaxed);
        [&self.idle, &self.busy].iter().for_each(|sum| sum.store(0, Relaxed));
        Some([idle, (busy as f64 * 1000.0 / ran as f64) as u64])
    }
}

/// Nanoseconds of a clock that all processes have.
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
    fn idle_is_when_all_threads_are_in_calls() {
        let (all, [a, b]) = (Activity::default(), <[ThreadActivity; 2]>::default());
        all.begin(&a, MS);
        all.begin(&b, MS);
        all.pause(&a, 2 * MS);
        // B ran all the time.
        assert_eq!(all.resume(&a, 5 * MS, u64::MAX), None);
        all.pause(&a, 6 * MS);
        all.pause(&b, 7 * MS);
        // Threads ran for 2 + 6 ms, of which 6 ms were not together; then 3 ms without any.
        assert_eq!(all.resume(&b, 10 * MS, u64::MAX), Some([3 * MS, 1333]));
        // Too short to report, then reported together.
        all.pause(&b, 11 * MS);
        assert_eq!(all.resume(&b, 11 * MS + MS / 2, u64::MAX), None);
        all.pause(&b, 12 * MS);
        assert_eq!(all.resume(&a, 13 * MS, u64::MAX), Some([MS * 3 / 2, 1000]));
        // Of a call that did not sleep, only the kernel's time counts.
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
        // Ended twice is ended once.
        all.pause(&b, 101 * MS);
        all.pause(&a, 101 * MS);
        assert!(all.resume(&a, 111 * MS, u64::MAX).is_some_and(|[idle, _]| idle == 10 * MS));
        all.begin_unrecorded();
        all.pause(&a, 112 * MS);
        assert_eq!(all.resume(&a, 200 * MS, u64::MAX), None);
    }
}
