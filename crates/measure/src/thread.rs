//! Processor time of a thread or process; faults of this thread, and pinning it to a processor.

use std::io;
use std::mem;

use nearfar_trace::{Error, Result};

/// Processor time, which advances only while the thread or process runs.
pub(crate) struct Stopwatch {
    clock: libc::clockid_t,
    began: i64,
}

impl Stopwatch {
    /// Start measuring time of this thread.
    pub fn start() -> Self {
        Self::of(libc::CLOCK_THREAD_CPUTIME_ID)
    }

    /// Start measuring time of all threads of this process.
    pub fn of_process() -> Self {
        Self::of(libc::CLOCK_PROCESS_CPUTIME_ID)
    }

    /// Nanoseconds since the start, divided by `count`.
    pub fn each(&self, count: usize) -> f64 {
        (Self::now(self.clock) - self.began) as f64 / count as f64
    }

    fn of(clock: libc::clockid_t) -> Self {
        Self { clock, began: Self::now(clock) }
    }

    fn now(clock: libc::clockid_t) -> i64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: room for two numbers; every kernel has these clocks.
        unsafe { libc::clock_gettime(clock, &mut time) };
        time.tv_sec * 1_000_000_000 + time.tv_nsec
    }
}

/// Minor and major faults of this thread so far.
pub(crate) fn faults() -> (u64, u64) {
    // SAFETY: plain numbers, which the kernel fills in.
    let usage = unsafe {
        let mut usage: libc::rusage = mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage
    };
    (usage.ru_minflt as u64, usage.ru_majflt as u64)
}

/// Pin this thread to one processor.
///
/// # Errors
/// This process may not use the processor.
pub(crate) fn pin(cpu: usize) -> Result<()> {
    let refused = |why: String| Error::input(format!("processor {cpu}"), why, "choose another");
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(refused("there is no such processor".into()));
    }
    // SAFETY: a set of plain bits, and the number is within it.
    let done = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, mem::size_of_val(&set), &set)
    };
    if done == 0 { Ok(()) } else { Err(refused(io::Error::last_os_error().to_string())) }
}
