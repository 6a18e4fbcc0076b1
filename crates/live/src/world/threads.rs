//! The threads of a policy, and events.

use nearfar_kernel::tiering::{Context, Next, Thread, Time};

use super::World;
use crate::Kernel;

/// A thread of the policy.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) thread: Thread,
    pub(crate) due: Time,
    /// It does not work before this, and for how long its last step in vain made it wait.
    pub(super) rests_until: Time,
    pub(super) rest: Time,
}

/// How long a thread of the policy rests after a step in which everything was refused: a child, I/O or a
/// lock holds pages for longer than a look at them takes. Twice as long after each, up to the second.
pub(crate) const REST: (Time, Time) = (Time::from_ps(1_000_000_000), Time::from_ps(64_000_000_000));
/// The same where mappings are changing, which is over soon.
const CHANGING: Time = Time::from_ps(100_000_000);

impl<K: Kernel> World<K> {
    pub(crate) fn spawn_worker(&mut self, name: &'static str, _: Context) -> Thread {
        let thread = Thread::new(self.workers.len() as u8, name);
        let (due, none) = (Time::NEVER, Time::default());
        self.workers.push(Worker { thread, due, rests_until: none, rest: none });
        thread
    }

    pub(crate) fn wake_worker(&mut self, thread: Thread) {
        let worker = &mut self.workers[thread.index()];
        if worker.due == Time::NEVER {
            worker.due = self.event.max(worker.rests_until);
        }
    }

    /// An event begins.
    pub(crate) fn begin_event(&mut self) {
        self.event = Time::from_ps(self.kernel.now_ns().saturating_mul(1000));
        (self.again, self.held, self.moved) = (false, 0, 0);
    }

    /// An event is over: the copies begun in it are complete.
    pub(crate) fn end_event(&mut self) {
        self.let_demoted_in();
        for (_, thread) in std::mem::take(&mut self.begun) {
            self.wake_worker(thread);
        }
    }

    /// When the thread that has just worked goes on.
    pub(crate) fn reschedule(&mut self, thread: Thread, next: Next) {
        let (held, again, moved) = (self.held > 0, self.again, self.moved > 0);
        self.begin_event();
        let worker = &mut self.workers[thread.index()];
        if moved {
            worker.rest = Time::default();
        } else if held {
            worker.rest = worker.rest.plus(worker.rest).clamp(REST.0, REST.1);
            worker.rests_until = self.event.plus(worker.rest);
        } else if again {
            worker.rests_until = self.event.plus(CHANGING);
        }
        let earliest = worker.rests_until.max(Time::from_ps(self.far.busy_until() * 1000));
        worker.due = match next {
            Next::Again => self.event.max(earliest),
            Next::At(time) => time.max(self.event).max(earliest),
            Next::Idle => Time::NEVER,
        };
    }
}
