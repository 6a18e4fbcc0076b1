//! Threads that keep a processor busy in the place of one that waits there.
//!
//! A thread that faults sleeps in the kernel until its page is there; only then is its processor free for
//! others. To wait as a core does that is not told of the fault (`--epf none`), somebody has to keep
//! that processor busy. The other way, to have the kernel raise a signal at the fault and wait in its handler
//! (`UFFD_FEATURE_SIGBUS`), makes system calls fail that are given missing memory, those that wait for a
//! lock too, so most programs (a test in `tests.rs` asks the kernel).

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;

/// What a stand-in does: a word that both sides know.
const RESTS: u32 = 0;
const BUSY: u32 = 1;

/// One of them: what it does, and its number in the system.
#[derive(Debug, Default)]
struct StandIn {
    word: AtomicU32,
    thread: AtomicU32,
}

/// Threads that stand in for others.
#[derive(Debug)]
pub struct StandIns {
    all: Arc<[StandIn]>,
    /// For whom each stands in; 0 for nobody.
    stands_for: Vec<u32>,
}

/// Where a thread of them begins.
#[derive(Debug)]
pub struct Post(Arc<[StandIn]>, usize);

impl StandIns {
    /// So many, each of which works once a thread [takes](Post::take) its post.
    pub fn new(count: usize) -> (Self, Vec<Post>) {
        let all: Arc<[StandIn]> = (0..count).map(|_| StandIn::default()).collect();
        let posts = (0..count).map(|number| Post(Arc::clone(&all), number)).collect();
        (Self { all, stands_for: vec![0; count] }, posts)
    }

    /// Keep the processor busy that this thread ran on last; false if none is left.
    pub fn stall(&mut self, thread: u32) -> bool {
        let free = self.stands_for.iter().position(|whom| *whom == 0);
        let Some((free, processor)) = free.zip(processor_of(thread)) else { return false };
        let stand_in = &self.all[free];
        let tied = stand_in.thread.load(Ordering::Acquire);
        if tied == 0 {
            return false;
        }
        // SAFETY: a set of processors of this function; the thread is ours.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(processor, &mut set);
            libc::sched_setaffinity(tied as i32, size_of_val(&set), &raw const set);
        }
        self.stands_for[free] = thread;
        stand_in.word.store(BUSY, Ordering::Release);
        // SAFETY: the word lives as long as this.
        unsafe { libc::syscall(libc::SYS_futex, stand_in.word.as_ptr(), libc::FUTEX_WAKE, 1) };
        true
    }

    /// It need not be any more.
    pub fn go_on(&mut self, thread: u32) {
        for (stand_in, whom) in self.all.iter().zip(&mut self.stands_for) {
            if *whom == thread {
                *whom = 0;
                stand_in.word.store(RESTS, Ordering::Release);
            }
        }
    }
}

impl Post {
    /// Work here: it never returns. It uses no memory but its stack and what it was made with, and makes
    /// system calls without libc: such a thread may share its thread-local memory with another.
    pub fn take(self) -> ! {
        let own = &self.0[self.1];
        own.thread.store(rustix::thread::gettid().as_raw_pid() as u32, Ordering::Release);
        loop {
            while own.word.load(Ordering::Acquire) == BUSY {
                std::hint::spin_loop();
            }
            // Woken, interrupted, or busy again: the loop looks.
            let _ = futex::wait(&own.word, futex::Flags::empty(), RESTS, None);
        }
    }
}

/// The processor that a thread ran on last: field 39 of its `stat` (proc(5)).
fn processor_of(thread: u32) -> Option<usize> {
    let text = fs::read(format!("/proc/{thread}/task/{thread}/stat")).ok()?;
    // Its name may hold anything, also blanks.
    let rest = &text[text.iter().rposition(|byte| *byte == b')')? + 1..];
    let field = rest.split(|byte| *byte == b' ').nth(37)?;
    std::str::from_utf8(field).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Processor time of a thread of this process, in ticks: fields 14 and 15 of its `stat`.
    fn ticks(thread: u32) -> u64 {
        let text = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        let rest = text.rsplit(')').next().unwrap().split(' ').collect::<Vec<_>>();
        rest[12].parse::<u64>().unwrap() + rest[13].parse::<u64>().unwrap()
    }

    #[test]
    fn one_is_busy_while_it_stands_in_and_rests_after() {
        let (mut all, posts) = StandIns::new(2);
        for post in posts {
            std::thread::spawn(move || post.take());
        }
        // SAFETY: a system call without arguments.
        let own = unsafe { libc::gettid() } as u32;
        while all.all.iter().any(|one| one.thread.load(Ordering::Acquire) == 0) {
            std::thread::yield_now();
        }
        assert!(processor_of(own).is_some() && processor_of(u32::MAX).is_none());
        assert!(all.stall(own) && all.stall(1_000_000_000).eq(&false));
        let first = all.all[0].thread.load(Ordering::Acquire);
        let before = ticks(first);
        while ticks(first) < before + 3 {
            std::thread::yield_now();
        }
        assert!(all.stall(own) && !all.stall(own), "there are two");
        all.go_on(own);
        assert!(all.stands_for.iter().all(|whom| *whom == 0));
        // It has no more to do than to see that: what it took until then it took.
        while processor_of(first).is_none() {}
        let asleep = || fs::read_to_string(format!("/proc/self/task/{first}/stat")).unwrap();
        while !asleep().contains(") S ") {
            std::thread::yield_now();
        }
    }
}
