//! Who runs next: a queue of threads in the order in which they became ready, or will.
//!
//! First come, first served; a thread runs until it blocks or its caller takes the core away. A
//! sleeping thread is in the queue at the time its timer fires. This is neither Linux's fair
//! scheduler nor one with priorities: with a handful of threads, of which the sleepers are meant to
//! run at once when they wake and mostly one is ready, they differ in little but who is preempted.

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

    /// Take the first thread if it is ready at `now`.
    pub fn take(&mut self, now: u64) -> Option<u32> {
        if self.ready_at()? > now {
            return None;
        }
        self.queue.pop().map(|Reverse((_, _, thread))| thread)
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
                    let place = list.partition_point(|(other, _)| *other <= at);
                    list.insert(place, (at, thread as u32));
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
