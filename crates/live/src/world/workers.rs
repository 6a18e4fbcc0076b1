//! The policy's threads, which the manager runs step by step in its own thread, and events.

use nearfar_kernel::tiering::{Next, Page, Thread, Time};

use super::World;
use crate::Kernel;

/// A thread of the policy.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) thread: Thread,
    /// Its next run; [`Time::NEVER`] if it is idle.
    pub(crate) due: Time,
    /// The thread does not run before this time.
    rests_until: Time,
    /// Its latest rest because of pinned pages; 0 after a step that moved a page.
    rest: Time,
}

#[derive(Debug, Default)]
pub(crate) struct Workers {
    pub(crate) all: Vec<Worker>,
    /// The index of the thread that runs now.
    pub(crate) running: Option<usize>,
}

/// What happened in the current event: a message of the kernel, or a step of a worker.
#[derive(Debug, Default)]
pub(crate) struct EventState {
    /// When it began.
    pub(crate) now: Time,
    /// A request was refused with [`Fail::Again`](crate::Fail::Again).
    pub(crate) again: bool,
    /// Number of refused moves of pinned pages.
    pub(super) pinned: u32,
    /// Number of moves that succeeded.
    pub(crate) moved: u32,
    /// Pages that were moved to the far tier's memory node.
    pub(super) demoted: Vec<Page>,
    /// Copies begun in this event, which are complete at its end, and the threads to wake.
    pub(super) begun: Vec<(Page, Thread)>,
}

/// The rest after a step in which pages were pinned and none moved: 1 ms, doubled up to 64 ms. A child, I/O
/// or a lock pins pages for longer than a step takes.
pub(super) const REST: (Time, Time) = (Time::from_ps(1_000_000_000), Time::from_ps(64_000_000_000));
/// The rest after a step that moved no page because mappings are changing: 100 us.
const CHANGING: Time = Time::from_ps(100_000_000);

impl<K: Kernel> World<K> {
    pub(crate) fn spawn_worker(&mut self, name: &'static str) -> Thread {
        let thread = Thread::new(self.workers.all.len() as u8, name);
        let (due, none) = (Time::NEVER, Time::default());
        self.workers.all.push(Worker { thread, due, rests_until: none, rest: none });
        thread
    }

    pub(super) fn wake_worker(&mut self, thread: Thread) {
        let worker = &mut self.workers.all[thread.index()];
        if worker.due == Time::NEVER {
            worker.due = self.event.now.max(worker.rests_until);
        }
    }

    pub(crate) fn begin_event(&mut self) {
        self.event.now = Time::from_ps(self.kernel.now_ns().saturating_mul(1000));
        (self.event.again, self.event.pinned, self.event.moved) = (false, 0, 0);
    }

    /// End the event: the copies begun in it are complete.
    pub(crate) fn end_event(&mut self) {
        self.restore_demoted();
        for (_, thread) in std::mem::take(&mut self.event.begun) {
            self.wake_worker(thread);
        }
    }

    /// Schedule the next run of the thread that has just run.
    pub(crate) fn reschedule(&mut self, thread: Thread, next: Next) {
        let EventState { pinned, again, moved, .. } = self.event;
        self.begin_event();
        let worker = &mut self.workers.all[thread.index()];
        if moved > 0 {
            worker.rest = Time::default();
        } else if pinned > 0 {
            worker.rest = worker.rest.plus(worker.rest).clamp(REST.0, REST.1);
            worker.rests_until = self.event.now.plus(worker.rest);
        } else if again {
            worker.rests_until = self.event.now.plus(CHANGING);
        }
        let earliest = worker.rests_until.max(Time::from_ps(self.far.busy_until() * 1000));
        worker.due = match next {
            Next::Again => self.event.now.max(earliest),
            Next::At(time) => time.max(self.event.now).max(earliest),
            Next::Idle => Time::NEVER,
        };
    }
}
