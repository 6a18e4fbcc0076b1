//! Who runs next: a queue of threads in the order in which they became ready, or will.
//!
//! First come, first served; a thread runs until it blocks or its caller takes the core away. A
//! sleeping thread is in the queue at the time its timer fires. Of Linux's fair scheduler there is
//! what matters to threads that sleep often: one that wakes up preempts one that has run for longer
//! ([`Fairness`]). Priorities and equal shares of those that never sleep are left out.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Threads that are ready, or will be at a known time.
#[derive(Debug, Default)]
pub struct RunQueue {
    queue: BinaryHeap<Reverse<(u64, u64, u32)>>,
    queued: u64,
}

impl RunQueue {
    /// `thread` is ready from time `at` on. Among equal times, who was put first goes first.
    pub fn put(&mut self, thread: u32, at: u64) {
        self.queued += 1;
        self.queue.push(Reverse((at, self.queued, thread)));
    }

    /// When the first thread is or was ready; `None` when there is none.
    pub fn ready_at(&self) -> Option<u64> {
        self.queue.peek().map(|Reverse((at, _, _))| *at)
    }

    /// When the next thread becomes ready, of those that are not yet at `now`.
    pub fn next_after(&self, now: u64) -> Option<u64> {
        self.queue.iter().map(|Reverse((at, _, _))| *at).filter(|at| *at > now).min()
    }

    /// Take the first thread of those ready at `now` that `wanted` agrees to.
    pub fn take_if(&mut self, now: u64, wanted: impl Fn(u32) -> bool) -> Option<u32> {
        let ready =
            |Reverse((at, _, thread)): &&Reverse<(u64, u64, u32)>| *at <= now && wanted(*thread);
        // The heap's greatest is the first, as it is reversed.
        let Reverse(first) = *self.queue.iter().filter(ready).max()?;
        self.queue.retain(|Reverse(other)| *other != first);
        Some(first.2)
    }

    /// Take the first thread if it is ready at `now`.
    pub fn take(&mut self, now: u64) -> Option<u32> {
        if self.ready_at()? > now {
            return None;
        }
        self.queue.pop().map(|Reverse((_, _, thread))| thread)
    }
}

/// How long threads have run, as far as it decides who preempts whom: CFS of Linux 2.6.38
/// (`wakeup_preempt_entity`, `place_entity`).
#[derive(Debug, Default)]
pub struct Fairness {
    /// Nanoseconds by thread; a thread that slept has caught up but for [`CREDIT`].
    ran: Vec<u64>,
}

/// What a sleeper keeps of the time that it did not run, in wake-up granularities: half the latency of
/// 6 ms that the scheduler aims at, where the granularity is 1 ms.
const CREDIT: u64 = 3;

impl Fairness {
    /// `thread` has run for another `ns`.
    pub fn add(&mut self, thread: u32, ns: u64) {
        let thread = thread as usize;
        if thread >= self.ran.len() {
            self.ran.resize(thread + 1, 0);
        }
        self.ran[thread] += ns;
    }

    fn of(&self, thread: u32) -> u64 {
        self.ran.get(thread as usize).copied().unwrap_or(0)
    }

    /// Whether `woken` takes the core from `running`, which has it for `since` nanoseconds.
    pub fn preempts(&self, woken: u32, running: u32, since: u64, granularity: u64) -> bool {
        self.of(woken).saturating_add(granularity) < self.of(running) + since
    }

    /// `woken` did take it: time that it slept for longer than its credit is forgotten.
    pub fn limit_credit(&mut self, woken: u32, running: u32, granularity: u64) {
        let least = self.of(running).saturating_sub(granularity.saturating_mul(CREDIT));
        self.add(woken, least.saturating_sub(self.of(woken)));
    }
}

/// When a thread that goes to sleep at `now` for `time` wakes up: its timer fires at a whole
/// multiple of `granularity` (a timer tick, or the slack within which timers are joined), never
/// early. With 0 it fires on time.
pub fn wake_at(now: u64, time: u64, granularity: u64) -> u64 {
    let due = now.saturating_add(time);
    match granularity {
        0 => due,
        granularity => due.div_ceil(granularity).saturating_mul(granularity),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_queue_is_a_sorted_list(
            operations in prop::collection::vec((any::<bool>(), 0u64..50), 1..200),
        ) {
            let mut queue = RunQueue::default();
            let mut list: Vec<(u64, u32)> = Vec::new();
            for (thread, (put, at)) in operations.into_iter().enumerate() {
                if put {
                    queue.put(thread as u32, at);
                    let next = list.iter().map(|(ready, _)| *ready).chain([at]).filter(|t| *t > 20);
                    prop_assert_eq!(queue.next_after(20), next.min());
                    let place = list.partition_point(|(other, _)| *other <= at);
                    list.insert(place, (at, thread as u32));
                } else if at % 2 == 0 {
                    let odd = |(ready, thread): &(u64, u32)| *ready <= at && thread % 2 == 1;
                    let place = list.iter().position(odd);
                    let taken = queue.take_if(at, |thread| thread % 2 == 1);
                    prop_assert_eq!(taken, place.map(|place| list.remove(place).1));
                } else {
                    let first = list.first().filter(|(ready, _)| *ready <= at).map(|(_, t)| *t);
                    prop_assert_eq!(queue.take(at), first);
                    if first.is_some() {
                        list.remove(0);
                    }
                }
                prop_assert_eq!(queue.ready_at(), list.first().map(|(at, _)| *at));
            }
        }

        /// One that always runs and one that sleeps: the sleeper preempts until it has run as long,
        /// less the granularity, and its credit is bounded.
        #[test]
        fn sleepers_preempt_while_they_run_less(granularity in 1u64..1000, ran in 0u64..10_000) {
            let mut fairness = Fairness::default();
            fairness.add(0, ran);
            prop_assert_eq!(fairness.preempts(1, 0, 0, granularity), ran > granularity);
            prop_assert!(!fairness.preempts(0, 1, 0, granularity));
            fairness.limit_credit(1, 0, granularity);
            prop_assert_eq!(fairness.of(1), ran.saturating_sub(3 * granularity));
            fairness.add(1, 3 * granularity);
            prop_assert!(!fairness.preempts(1, 0, 0, granularity));
            prop_assert!(fairness.preempts(1, 0, 5000 * granularity, granularity));
        }

        #[test]
        fn timers_fire_on_the_grid_and_never_early(
            now in 0u64..1 << 50,
            time in 0u64..1 << 40,
            granularity in 0u64..1 << 20,
        ) {
            let at = wake_at(now, time, granularity);
            prop_assert!(at >= now + time && at < now + time + granularity.max(1));
            prop_assert!(granularity == 0 || at.is_multiple_of(granularity));
        }
    }
}
