//! Ending a program early: the first signal reaches it once, as in a shell, and it has the time that
//! it needs; the second one kills it.

use std::fs;
use std::time::{Duration, Instant};

/// How often the user is asked.
pub(crate) const TURN: Duration = Duration::from_millis(100);

/// What the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Go on.
    Continue,
    /// End the program by this signal, by default SIGINT; asked for a second time, kill it.
    End(Option<i32>),
    /// Kill the program.
    Kill,
}

/// Asks the user what to do, and does it to the program.
pub(crate) struct Watch<'a> {
    poll: &'a mut dyn FnMut(u64) -> Request,
    /// The program's process, which nobody waits for as long as this value is used.
    pid: u32,
    witness: Option<Witness>,
    asked: Instant,
    interrupted: bool,
    killed: bool,
}

impl<'a> Watch<'a> {
    /// `poll` is called with the number of records so far.
    pub fn new(
        pid: u32,
        witness: Option<Witness>,
        poll: &'a mut dyn FnMut(u64) -> Request,
    ) -> Self {
        Self { poll, pid, witness, asked: Instant::now(), interrupted: false, killed: false }
    }

    /// Whether the program was told to end.
    pub fn interrupted(&self) -> bool {
        self.interrupted
    }

    /// Ask, if it is time to. Answers whether the program has been killed.
    pub fn look(&mut self, records: u64) -> bool {
        if self.asked.elapsed() >= TURN {
            self.ask(records);
        }
        self.killed
    }

    /// Ask now.
    pub fn ask(&mut self, records: u64) {
        self.asked = Instant::now();
        match (self.poll)(records) {
            Request::Continue => return,
            Request::End(signal) if !self.interrupted => {
                let signal = signal.unwrap_or(libc::SIGINT);
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

    /// Whether the program has had the signal that we have had: it went to our process group, as
    /// Ctrl-C at a terminal does, and the program is still in it.
    fn has_received(&self, signal: i32) -> bool {
        // SAFETY: both only ask.
        let together = unsafe { libc::getpgid(self.pid.cast_signed()) == libc::getpgrp() };
        together && self.witness.as_ref().is_some_and(|witness| witness.has_received(signal))
    }
}

/// Send a signal to a process that is not waited for, so that the number is still its own.
pub(crate) fn send(pid: u32, signal: i32) {
    // SAFETY: sends a signal.
    unsafe { libc::kill(pid.cast_signed(), signal) };
}

/// A process that does nothing: the signals that our process group gets stay pending there, those
/// that were for us alone do not get there.
pub(crate) struct Witness(libc::pid_t);

impl Witness {
    /// Start it.
    pub fn start() -> Option<Self> {
        let parent = std::process::id();
        // SAFETY: the child makes system calls only.
        match unsafe { libc::fork() } {
            -1 => None,
            // SAFETY: as above.
            0 => unsafe {
                let mut all = std::mem::zeroed();
                libc::sigfillset(&mut all);
                libc::sigprocmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                // What others wait for the end of.
                libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0);
                while libc::getppid() as u32 == parent {
                    libc::pause();
                }
                libc::_exit(0)
            },
            pid => Some(Self(pid)),
        }
    }

    fn has_received(&self, signal: i32) -> bool {
        self.shows("ShdPnd:", signal)
    }

    /// Whether the signal is in this set of `/proc/PID/status` (proc(5)).
    fn shows(&self, set: &str, signal: i32) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0)).unwrap_or_default();
        let signals = status.lines().find_map(|line| line.strip_prefix(set));
        let signals = signals.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
        (1..=64).contains(&signal) && signals.unwrap_or(0) >> (signal - 1) & 1 == 1
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        send(self.0.cast_unsigned(), libc::SIGKILL);
        // SAFETY: our child, whose status nobody wants.
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_witness_keeps_what_it_is_sent() {
        let witness = Witness::start().unwrap();
        // QEMU in user mode keeps some signals for itself.
        while ![libc::SIGINT, libc::SIGTERM].iter().all(|one| witness.shows("SigBlk:", *one)) {
            std::thread::yield_now();
        }
        assert!(!witness.has_received(libc::SIGINT));
        send(witness.0.cast_unsigned(), libc::SIGINT);
        assert!(witness.has_received(libc::SIGINT) && !witness.has_received(libc::SIGTERM));
    }
}
