//! Ends a program early on the user's demand. The first demand sends the program a signal, after which
//! it may take its time to end; the second one kills it.

use std::fs;
use std::time::{Duration, Instant};

/// Interval between calls of the user's `poll`.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// What the user wants done with the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Continue,
    /// End the program by this signal, by default SIGINT. The second time, kill it.
    End(Option<i32>),
    Kill,
}

/// Polls the user and ends the program on demand.
pub(crate) struct Interrupter<'a> {
    poll: &'a mut dyn FnMut(u64) -> Action,
    /// The program's process. It must not be reaped while this value exists.
    pid: u32,
    witness: Option<SignalWitness>,
    polled: Instant,
    interrupted: bool,
    /// The first signal to the program; 0 before.
    signal: i32,
    killed: bool,
}

impl<'a> Interrupter<'a> {
    /// `poll` is called with the number of records so far.
    pub fn new(
        pid: u32,
        witness: Option<SignalWitness>,
        poll: &'a mut dyn FnMut(u64) -> Action,
    ) -> Self {
        let polled = Instant::now();
        Self { poll, pid, witness, polled, interrupted: false, signal: 0, killed: false }
    }

    /// Whether the user has ended the program.
    pub fn interrupted(&self) -> bool {
        self.interrupted
    }

    /// Whether the program was ended by SIGTERM, as services are, and not killed.
    pub fn terminated(&self) -> bool {
        self.signal == libc::SIGTERM && !self.killed
    }

    /// Count the program as killed, because its remaining processes are killed.
    pub fn count_as_killed(&mut self) {
        self.killed = true;
    }

    /// Poll if [`POLL_INTERVAL`] has passed. Returns whether the program has been killed.
    pub fn poll_if_due(&mut self, records: u64) -> bool {
        if self.polled.elapsed() >= POLL_INTERVAL {
            self.poll(records);
        }
        self.killed
    }

    pub fn poll(&mut self, records: u64) {
        self.polled = Instant::now();
        match (self.poll)(records) {
            Action::Continue => return,
            Action::End(signal) if !self.interrupted => {
                let signal = signal.unwrap_or(libc::SIGINT);
                self.signal = signal;
                if !self.has_received(signal) {
                    send(self.pid, signal);
                }
            }
            _ => {
                self.killed = true;
                send(self.pid, libc::SIGKILL);
            }
        }
        self.interrupted = true;
    }

    /// Whether a signal that this process received has also reached the program: it went to our
    /// process group, as Ctrl-C at a terminal does, and the program is still in that group.
    fn has_received(&self, signal: i32) -> bool {
        // SAFETY: both only return a number.
        let same_group = unsafe { libc::getpgid(self.pid.cast_signed()) == libc::getpgrp() };
        same_group && self.witness.as_ref().is_some_and(|witness| witness.has_received(signal))
    }
}

/// Send a signal to a process that has not been reaped, so that its pid cannot have been reused.
pub(crate) fn send(pid: u32, signal: i32) {
    // SAFETY: sends a signal.
    unsafe { libc::kill(pid.cast_signed(), signal) };
}

/// An idle child process. Signals to our process group stay pending in it; signals to this process
/// alone do not reach it.
pub(crate) struct SignalWitness(libc::pid_t);

impl SignalWitness {
    pub fn start() -> Option<Self> {
        let parent = std::process::id();
        // SAFETY: the child makes system calls only.
        match unsafe { libc::fork() } {
            -1 => None,
            // SAFETY: as above.
            0 => unsafe {
                let mut every_signal = std::mem::zeroed();
                libc::sigfillset(&mut every_signal);
                libc::sigprocmask(libc::SIG_BLOCK, &every_signal, std::ptr::null_mut());
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                // Close all pipes: other processes may wait for their end.
                libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0);
                // Run under another name, or `pkill -f nearfar` would look like a signal to the
                // process group.
                for path in [c"/bin/sleep", c"/usr/bin/sleep"] {
                    let words = [c"sleep".as_ptr(), c"infinity".as_ptr(), std::ptr::null()];
                    libc::execv(path.as_ptr(), words.as_ptr());
                }
                while libc::getppid() as u32 == parent {
                    libc::pause();
                }
                libc::_exit(0)
            },
            pid => Some(Self(pid)),
        }
    }

    fn has_received(&self, signal: i32) -> bool {
        self.has_signal("ShdPnd:", signal)
    }

    /// Whether the signal is in this set of `/proc/PID/status` (proc(5)).
    fn has_signal(&self, set: &str, signal: i32) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0)).unwrap_or_default();
        let signals = status.lines().find_map(|line| line.strip_prefix(set));
        let signals = signals.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
        (1..=64).contains(&signal) && signals.unwrap_or(0) >> (signal - 1) & 1 == 1
    }
}

impl Drop for SignalWitness {
    fn drop(&mut self) {
        send(self.0.cast_unsigned(), libc::SIGKILL);
        // SAFETY: our child; its status is ignored.
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_stays_pending_in_the_witness() {
        let witness = SignalWitness::start().unwrap();
        // Wait until these signals are blocked; QEMU in user mode cannot block all.
        while ![libc::SIGINT, libc::SIGTERM].iter().all(|&s| witness.has_signal("SigBlk:", s)) {
            std::thread::yield_now();
        }
        assert!(!witness.has_received(libc::SIGINT));
        send(witness.0.cast_unsigned(), libc::SIGINT);
        assert!(witness.has_received(libc::SIGINT) && !witness.has_received(libc::SIGTERM));
    }
}
