//! A run queue: threads by the time at which they are ready.
//!
//! First come, first served. A thread runs until it blocks or is preempted. A sleeping thread is in
//! the queue with the time of its timer. Of Linux's fair scheduler, only wake-up preemption is
//! modelled ([`Fairness`]), which matters to threads that sleep often; priorities and time slices
//! are not.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Threads that are ready, or will be at a known time.
#[derive(Debug, Default)]
pub struct RunQueue {
    /// Ready time, sequence number and thread.
    queue: BinaryHeap<Reverse<(u64, u64, u32)>>,
    queued: u64,
}

impl RunQueue {
    /// Add a thread that is ready at time `at`. Equal times are first in, first out.
    pub fn push(&mut self, thread: u32, at: u64) {
        self.queued += 1;
        self.queue.push(Reverse((at, self.queued, thread)));
    }

    /// Earliest ready time; `None` if the queue is empty.
    pub fn ready_at(&self) -> Option<u64> {
        self.queue.peek().map(|Reverse((at, _, _))| *at)
    }

    /// Earliest ready time after `now`.
    pub fn next_after(&self, now: u64) -> Option<u64> {
        self.queue.iter().map(|Reverse((at, _, _))| *at).filter(|at| *at > now).min()
    }

    /// Remove the first thread that is ready at `now` and satisfies `accept`.
    pub fn take_if(&mut self, now: u64, accept: impl Fn(u32) -> bool) -> Option<u32> {
        let ready =
            |Reverse((at, _, thread)): &&Reverse<(u64, u64, u32)>| *at <= now && accept(*thread);
        // The maximum of the reversed order is the first thread.
        let Reverse(first) = *self.queue.iter().filter(ready).max()?;
        self.queue.retain(|Reverse(other)| *other != first);
        Some(first.2)
    }

    /// Remove the first thread if it is ready at `now`.
    pub fn take(&mut self, now: u64) -> Option<u32> {
        if self.ready_at()? > now {
            return None;
        }
        self.queue.pop().map(|Reverse((_, _, thread))| thread)
    }
}

/// Run times for wake-up preemption as in CFS of Linux 2.6.38 (`wakeup_preempt_entity`,
/// `place_entity`).
#[derive(Debug, Default)]
pub struct Fairness {
    /// Run time by thread, nanoseconds. Sleep beyond [`CREDIT`] counts as run time.
    ran: Vec<u64>,
}

/// Maximum credit for sleeping, in wake-up granularities: half the target latency of 6 ms, with a
/// granularity of 1 ms.
const CREDIT: u64 = 3;

impl Fairness {
    /// Add `ns` to the run time of `thread`.
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

    /// Whether `woken` preempts `running`, whose current run of `since` nanoseconds is not added yet.
    /// `granularity`: the wake-up granularity, nanoseconds.
    pub fn preempts(&self, woken: u32, running: u32, since: u64, granularity: u64) -> bool {
        self.of(woken).saturating_add(granularity) < self.of(running) + since
    }

    /// Limit the credit of `woken` after it preempted `running`.
    pub fn limit_credit(&mut self, woken: u32, running: u32, granularity: u64) {
        let min = self.of(running).saturating_sub(granularity.saturating_mul(CREDIT));
        self.add(woken, min.saturating_sub(self.of(woken)));
    }
}

/// Wake-up time of a thread that sleeps at `now` for `time`: rounded up to a multiple of
/// `granularity` (the timer tick or timer slack); exact with 0.
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
        fn the_queue_equals_a_sorted_list(
            operations in prop::collection::vec((any::<bool>(), 0u64..50), 1..200),
        ) {
            let mut queue = RunQueue::default();
            let mut list: Vec<(u64, u32)> = Vec::new();
            for (thread, (put, at)) in operations.into_iter().enumerate() {
                if put {
                    queue.push(thread as u32, at);
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

        /// Thread 0 always runs, thread 1 sleeps.
        #[test]
        fn sleepers_preempt_while_they_have_run_less(granularity in 1u64..1000, ran in 0u64..10_000) {
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
        fn timers_fire_at_multiples_of_the_granularity_and_never_early(
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
