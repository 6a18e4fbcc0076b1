//! Encodes and writes row groups in the caller's thread and in a few others.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::sink::{Encoded, Sink};
use crate::column::{Encoder, Group};
use crate::error::{Error, Result};

/// Writes row groups by number, regardless of the order in which they arrive.
pub(super) struct OrderedSink {
    pub(super) sink: Sink,
    next: u64,
    /// Groups that arrived before their predecessors.
    early: BTreeMap<u64, Encoded>,
    /// Writing a group failed; later groups are dropped, because a gap would precede them.
    failed: bool,
}

impl OrderedSink {
    fn take(&mut self, number: u64, encoded: Encoded) -> Result<()> {
        self.early.insert(number, encoded);
        while let Some(encoded) = self.early.remove(&self.next) {
            self.next += 1;
            if !self.failed {
                // Stays set if `append` fails or panics.
                self.failed = true;
                self.sink.append(encoded)?;
                self.failed = false;
            }
        }
        Ok(())
    }
}

/// Lock `output`, even if a thread panicked: a panic leaves it in the same state as an error.
fn lock(output: &Mutex<OrderedSink>) -> MutexGuard<'_, OrderedSink> {
    output.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A cleared group for reuse, and the result of writing it and the later groups that waited for it.
type Completion = (Group, Result<()>);

/// Encode group `number` and pass it to `output`.
fn append(
    encoder: &mut Encoder,
    output: &Mutex<OrderedSink>,
    number: u64,
    mut group: Group,
) -> Completion {
    let encoded = encoder.encode(&mut group);
    let taken = lock(output).take(number, encoded);
    group.clear();
    (group, taken)
}

/// Maximum number of queued row groups. If the queue is full, the caller's thread encodes the next
/// one instead of waiting: with two processors, one would otherwise be idle.
const QUEUED: usize = 2;

/// Encodes and appends row groups, in order.
pub(super) struct Pool {
    /// The encoder of the caller's thread.
    encoder: Encoder,
    work: Option<SyncSender<(u64, Group)>>,
    /// Groups that no worker has taken yet.
    queue: Arc<Mutex<Receiver<(u64, Group)>>>,
    done: Receiver<Completion>,
    workers: Vec<JoinHandle<()>>,
    submitted: u64,
    completed: u64,
    spare: Vec<Group>,
    output: Arc<Mutex<OrderedSink>>,
}

impl Pool {
    /// Create a pool of `threads` workers, perhaps none.
    pub(super) fn new(threads: usize, sink: Sink) -> Result<Self> {
        let encoders = (0..=threads).map(|_| Encoder::new()).collect::<std::result::Result<_, _>>();
        let mut encoders: Vec<Encoder> = encoders.map_err(|error| sink.write_error(error))?;
        let (work, queue) = sync_channel::<(u64, Group)>(QUEUED);
        let (completions, done) = sync_channel(threads + QUEUED);
        let queue = Arc::new(Mutex::new(queue));
        let output = OrderedSink { sink, next: 0, early: BTreeMap::new(), failed: false };
        let output = Arc::new(Mutex::new(output));
        let encoder = encoders.swap_remove(0);
        // If the system cannot create more threads, there are fewer, or none.
        let workers = encoders.into_iter().map_while(|mut encoder| {
            let (queue, completions, output) = (queue.clone(), completions.clone(), output.clone());
            let spawned = std::thread::Builder::new().spawn(move || {
                loop {
                    let next = queue.lock().ok().and_then(|queue| queue.recv().ok());
                    let Some((number, group)) = next else { break };
                    if completions.send(append(&mut encoder, &output, number, group)).is_err() {
                        break;
                    }
                }
            });
            spawned.ok()
        });
        let workers = workers.collect();
        Ok(Self {
            encoder,
            work: Some(work),
            queue,
            done,
            workers,
            submitted: 0,
            completed: 0,
            spare: Vec::new(),
            output,
        })
    }

    pub(super) fn output(&mut self) -> MutexGuard<'_, OrderedSink> {
        lock(&self.output)
    }

    /// Encode and append `group`, now or later. An error may be that of an earlier group.
    pub(super) fn encode(&mut self, group: Group) -> Result<()> {
        self.check()?;
        while let Ok(completion) = self.done.try_recv() {
            self.complete(completion)?;
        }
        let number = self.submitted;
        self.submitted += 1;
        let max_pending = if self.workers.is_empty() { 0 } else { self.workers.len() + QUEUED };
        if let Some(work) = &self.work
            && number - self.completed < max_pending as u64
        {
            // `self.queue` keeps the receiver, so that the send cannot fail.
            let _ = work.send((number, group));
            return Ok(());
        }
        self.encode_here(number, group)
    }

    fn encode_here(&mut self, number: u64, group: Group) -> Result<()> {
        let completion = append(&mut self.encoder, &self.output, number, group);
        self.complete(completion)
    }

    /// An empty group. Reuses the memory of a completed one if possible: the kernel must zero new
    /// memory.
    pub(super) fn group(&mut self) -> Group {
        self.spare.pop().unwrap_or_default()
    }

    fn complete(&mut self, (group, result): Completion) -> Result<()> {
        self.completed += 1;
        self.spare.push(group);
        result
    }

    /// Wait until everything is appended, and help to encode.
    pub(super) fn drain(&mut self) -> Result<()> {
        while self.completed < self.submitted {
            // If the lock is taken, a worker waits for groups, and the queue is empty.
            let queued = self.queue.try_lock().ok().and_then(|queue| queue.try_recv().ok());
            if let Some((number, group)) = queued {
                self.encode_here(number, group)?;
                continue;
            }
            match self.done.recv_timeout(Duration::from_millis(100)) {
                Ok(completion) => self.complete(completion)?,
                Err(_) => self.check()?,
            }
        }
        Ok(())
    }

    /// Return an error if a worker has ended, which only happens when it panics: its group is lost.
    fn check(&self) -> Result<()> {
        if self.workers.iter().any(JoinHandle::is_finished) {
            return Err(Error::input("writer", "an encoding thread ended", "report this"));
        }
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.work = None;
        // Unread completions must not block a worker.
        while self.done.try_recv().is_ok() {}
        let (_, closed) = sync_channel(0);
        self.done = closed;
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}
