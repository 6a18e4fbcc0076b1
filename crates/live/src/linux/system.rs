//! Descriptors, the clock and signals.

use std::os::fd::RawFd;

/// Wait until one of these descriptors is readable, or for this time. Returns which are readable.
pub fn wait<const N: usize>(descriptors: [Option<RawFd>; N], nanoseconds: u64) -> [bool; N] {
    // `poll` ignores negative descriptors.
    let mut polls = descriptors.map(|fd| libc::pollfd {
        fd: fd.unwrap_or(-1),
        events: libc::POLLIN,
        revents: 0,
    });
    const SECOND: u64 = 1_000_000_000;
    let time = libc::timespec {
        tv_sec: (nanoseconds / SECOND) as i64,
        tv_nsec: (nanoseconds % SECOND) as i64,
    };
    // SAFETY: variables of this function.
    unsafe { libc::ppoll(polls.as_mut_ptr(), N as u64, &raw const time, std::ptr::null()) };
    polls.map(|poll| poll.revents != 0)
}

/// Nanoseconds of CLOCK_MONOTONIC.
pub(crate) fn monotonic() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// Processor time of this process in nanoseconds.
pub fn processor_time() -> u64 {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn clock(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to the variable of this function.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Block all signals of this thread, including those that libc reserves.
pub fn block_all_signals() {
    let (all, none) = (u64::MAX, std::ptr::null_mut::<u64>());
    // SAFETY: reads the variable of this function.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const all, none, 8) };
}
