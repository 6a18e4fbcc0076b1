//! Threads that keep processors busy for threads that wait for a page.
//!
//! A faulting thread sleeps in the kernel until its page arrives, and frees its processor. To emulate a core
//! that waits for the far tier instead (`--epf none`), another thread keeps the processor busy. A signal
//! handler that busy-waits (`UFFD_FEATURE_SIGBUS`) would break most programs: system calls that access a
//! missing page would fail, including those that wait for a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{CpuSet, Pid, futex, sched_setaffinity};

use crate::family::stat;

/// States of a stand-in.
const IDLE: u32 = 0;
const BUSY: u32 = 1;

/// A stand-in: its state, and its thread ID.
#[derive(Debug, Default)]
struct StandIn {
    state: AtomicU32,
    thread: AtomicU32,
}

#[derive(Debug)]
pub struct StandIns {
    all: Arc<[StandIn]>,
    /// For each stand-in, the thread for which it is busy; 0 for none.
    busy_for: Vec<u32>,
}

/// The entry point of a stand-in's thread.
#[derive(Debug)]
pub struct StandInThread(Arc<[StandIn]>, usize);

impl StandIns {
    /// `count` stand-ins. Each is usable once a thread [runs](StandInThread::run) its entry point.
    pub fn new(count: usize) -> (Self, Vec<StandInThread>) {
        let all: Arc<[StandIn]> = (0..count).map(|_| StandIn::default()).collect();
        let threads = (0..count).map(|number| StandInThread(Arc::clone(&all), number)).collect();
        (Self { all, busy_for: vec![0; count] }, threads)
    }

    /// Keep the processor busy on which `thread` ran last. Returns false if that is not possible.
    pub fn stall(&mut self, thread: u32) -> bool {
        let free = self.busy_for.iter().position(|thread| *thread == 0);
        let Some((free, processor)) = free.zip(processor_of(thread)) else { return false };
        let stand_in = &self.all[free];
        let stand_in_thread = stand_in.thread.load(Ordering::Acquire);
        if stand_in_thread == 0 {
            return false;
        }
        let mut set = CpuSet::new();
        set.set(processor);
        let _ = sched_setaffinity(Pid::from_raw(stand_in_thread as i32), &set);
        self.busy_for[free] = thread;
        stand_in.state.store(BUSY, Ordering::Release);
        let _ = futex::wake(&stand_in.state, futex::Flags::empty(), 1);
        true
    }

    /// Stop keeping a processor busy for `thread`.
    pub fn resume(&mut self, thread: u32) {
        for (stand_in, busy_for) in self.all.iter().zip(&mut self.busy_for) {
            if *busy_for == thread {
                *busy_for = 0;
                stand_in.state.store(IDLE, Ordering::Release);
            }
        }
    }
}

impl StandInThread {
    /// Run the stand-in. It does not allocate, and makes system calls without libc, because its thread may
    /// share its thread-local memory with another.
    pub fn run(self) -> ! {
        let stand_in = &self.0[self.1];
        stand_in.thread.store(rustix::thread::gettid().as_raw_pid() as u32, Ordering::Release);
        loop {
            while stand_in.state.load(Ordering::Acquire) == BUSY {
                std::hint::spin_loop();
            }
            // On any return, check the state again.
            let _ = futex::wait(&stand_in.state, futex::Flags::empty(), IDLE, None);
        }
    }
}

/// The processor on which a thread ran last: field 39 of its `stat` (proc(5)).
fn processor_of(thread: u32) -> Option<usize> {
    let fields = stat(&format!("/proc/{thread}/task/{thread}"))?;
    // The first is field 3.
    fields.split_ascii_whitespace().nth(36)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Processor time of a thread of this process, in ticks: fields 14 and 15 of its `stat`.
    fn ticks(thread: u32) -> u64 {
        let text = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        let rest = text.rsplit(')').next().unwrap().split(' ').collect::<Vec<_>>();
        rest[12].parse::<u64>().unwrap() + rest[13].parse::<u64>().unwrap()
    }

    #[test]
    fn a_stand_in_is_busy_and_then_sleeps() {
        let (mut all, threads) = StandIns::new(2);
        for thread in threads {
            std::thread::spawn(move || thread.run());
        }
        // SAFETY: a system call without arguments.
        let own = unsafe { libc::gettid() } as u32;
        while all.all.iter().any(|one| one.thread.load(Ordering::Acquire) == 0) {
            std::thread::yield_now();
        }
        assert!(processor_of(own).is_some() && processor_of(u32::MAX).is_none());
        assert!(all.stall(own) && !all.stall(1_000_000_000));
        let first = all.all[0].thread.load(Ordering::Acquire);
        let before = ticks(first);
        while ticks(first) < before + 3 {
            std::thread::yield_now();
        }
        assert!(all.stall(own) && !all.stall(own), "there are two");
        all.resume(own);
        assert!(all.busy_for.iter().all(|thread| *thread == 0));
        while processor_of(first).is_none() {}
        let asleep = || fs::read_to_string(format!("/proc/self/task/{first}/stat")).unwrap();
        while !asleep().contains(") S ") {
            std::thread::yield_now();
        }
    }
}
