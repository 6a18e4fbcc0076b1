//! Detection of managers (processes that serve page faults of programs) that make no progress.

use std::fs;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::POLL;
use crate::family;
use crate::linux::monotonic;
use crate::shared::Block;

/// Maximum time without a heartbeat while the manager could run. It sends at least ten heartbeats per second.
pub(super) const HANG: Duration = Duration::from_secs(2);
/// [`HANG`] while the manager waits for its policy in the launcher: a policy may compute for long, and many
/// processes may wait for one interpreter.
pub(super) const POLICY_HANG: Duration = Duration::from_secs(30);

/// The time since a manager's latest heartbeat.
#[derive(Default)]
pub(super) struct HangDetector {
    /// Time of the latest heartbeat in nanoseconds.
    heartbeat: u64,
    /// Time of the last check in nanoseconds, and the thread's processor time then.
    checked: u64,
    used: Duration,
    /// Time since the heartbeat in which the thread could have run.
    pub(super) time: Duration,
}

impl HangDetector {
    /// Check the main thread of a manager, or of a process that starts its policy. `block` is the shared
    /// state of the process. An error means that the thread hangs.
    pub(super) fn check(
        &mut self,
        thread: &ThreadStat,
        block: &Block,
    ) -> std::result::Result<(), String> {
        let (limit, hangs) = match block.waits() {
            true => (POLICY_HANG, "its policy has not answered for 30 s"),
            false => (HANG, "its manager has sent no heartbeat for 2 s"),
        };
        let heartbeat = block.heartbeat.load(Ordering::Relaxed);
        if self.hangs(thread, heartbeat, monotonic(), limit) { Err(hangs.into()) } else { Ok(()) }
    }

    /// Whether the thread hangs at the time `now`. Time without a processor or in a transfer does not count.
    fn hangs(&mut self, thread: &ThreadStat, heartbeat: u64, now: u64, limit: Duration) -> bool {
        let since = Duration::from_nanos(now.saturating_sub(self.checked));
        if heartbeat != self.heartbeat {
            *self = Self { heartbeat, checked: now, used: thread.used, time: Duration::ZERO };
        } else if since >= POLL {
            match thread.state {
                // Only its processor time counts. It is read just before `now`, so it may exceed `since`.
                'R' => self.time += thread.used.saturating_sub(self.used).min(2 * since),
                // It waits in the kernel, for a disk or a long change of mappings, or is stopped.
                'D' | 'T' | 't' => {}
                _ if thread.in_transfer => {}
                // At most two intervals: the launcher may have been without a processor as well.
                _ => self.time += since.min(2 * POLL),
            }
            (self.checked, self.used) = (now, thread.used);
        }
        self.time >= limit
    }
}

/// The unit of processor time in `/proc`.
fn tick() -> Duration {
    // SAFETY: returns a number.
    let hertz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Duration::from_secs(1) / hertz.max(1) as u32
}

/// A process's main thread, from `/proc`.
pub(super) struct ThreadStat {
    state: char,
    /// Processor time.
    used: Duration,
    /// It waits for transfers of the far tier's file.
    in_transfer: bool,
}

impl ThreadStat {
    /// `None` if it has ended.
    pub(super) fn read(pid: u32) -> Option<Self> {
        let folder = format!("/proc/{pid}/task/{pid}");
        let text = family::stat(&folder)?;
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let state = words.first()?.chars().next()?;
        let ticks = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
        let in_transfer = state == 'S' && {
            let call = fs::read_to_string(format!("{folder}/syscall")).unwrap_or_default();
            let number = call.split(' ').next().and_then(|word| word.parse().ok());
            number == Some(libc::SYS_io_uring_enter)
        };
        // `utime` and `stime` of proc_pid_stat(5); `words` begins with `state`.
        let used = tick() * (ticks(11)? + ticks(12)?) as u32;
        (!matches!(state, 'Z' | 'X')).then_some(Self { state, used, in_transfer })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_without_a_processor_or_in_a_transfer_does_not_count() {
        let steps_until = |state: char, in_transfer: bool, runs_ms: u64, last_beat: u64| {
            let (mut hang, mut used) = (HangDetector::default(), Duration::ZERO);
            (1..100).find(|step| {
                used += Duration::from_millis(runs_ms);
                let thread = ThreadStat { state, used, in_transfer };
                hang.hangs(&thread, last_beat.min(*step), step * 100_000_000, HANG)
            })
        };
        // In each step of 100 ms, the thread runs for `runs_ms`. It sends heartbeats up to step `last_beat`.
        assert_eq!(steps_until('S', false, 0, 5), Some(25));
        assert_eq!(steps_until('R', false, 100, 5), Some(25));
        assert_eq!(steps_until('R', false, 50, 5), Some(45));
        assert_eq!(steps_until('R', false, 10, 5), None);
        assert_eq!(steps_until('R', false, 0, 5), None);
        assert_eq!(steps_until('S', true, 0, 5), None);
        assert_eq!(steps_until('D', false, 0, 1), None);
        assert_eq!(steps_until('T', false, 0, 1), None);
        assert_eq!(steps_until('S', false, 0, 100), None);
    }
}
