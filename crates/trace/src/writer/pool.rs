//! Row groups are encoded and written in the caller's thread or in a few others.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::sink::{Encoded, Sink};
use crate::column::{Encoder, Group};
use crate::error::{Error, Result};

/// Where row groups go, in the order of their numbers whatever order they come in.
struct Output {
    sink: Sink,
    next: u64,
    early: BTreeMap<u64, Encoded>,
    /// Writing failed: nothing is appended behind a gap.
    failed: bool,
}

impl Output {
    fn take(&mut self, number: u64, encoded: Encoded) -> Result<()> {
        self.early.insert(number, encoded);
        while let Some(encoded) = self.early.remove(&self.next) {
            self.next += 1;
            if !self.failed {
                self.sink.append(encoded).inspect_err(|_| self.failed = true)?;
            }
        }
        Ok(())
    }
}

/// Lock `output`. A thread that panicked left it as it is after an error.
fn lock(output: &Mutex<Output>) -> MutexGuard<'_, Output> {
    output.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A group that is done with, empty, and what came of it or of those that waited for it.
type Answer = (Group, Result<()>);

/// Encode group `number` and hand it to `output`.
fn append(encoder: &mut Encoder, output: &Mutex<Output>, number: u64, mut group: Group) -> Answer {
    let encoded = encoder.encode(&mut group);
    let taken = lock(output).take(number, encoded);
    group.clear();
    (group, taken)
}

/// Row groups that wait for a thread, at most. While as many wait, the caller's thread encodes the
/// next one: it would otherwise wait itself, and with two processors one of them would idle.
const QUEUED: usize = 2;

/// Encodes and appends row groups, in the order they are given.
pub(super) struct Pool {
    /// Of the caller's thread.
    own: Encoder,
    work: Option<SyncSender<(u64, Group)>>,
    /// What no worker has taken yet.
    queue: Arc<Mutex<Receiver<(u64, Group)>>>,
    done: Receiver<Answer>,
    workers: Vec<JoinHandle<()>>,
    asked: u64,
    answered: u64,
    spare: Vec<Group>,
    /// Behind the workers: what they hold of it goes first.
    output: Arc<Mutex<Output>>,
}

impl Pool {
    /// With `threads` of its own; without any, in the caller's.
    pub(super) fn new(threads: usize, sink: Sink) -> Result<Self> {
        let encoders = (0..=threads).map(|_| Encoder::new()).collect::<std::result::Result<_, _>>();
        let mut encoders: Vec<Encoder> = encoders.map_err(|error| sink.failed(error))?;
        let (work, queue) = sync_channel::<(u64, Group)>(QUEUED);
        let (answers, done) = sync_channel(threads + QUEUED);
        let queue = Arc::new(Mutex::new(queue));
        let output = Output { sink, next: 0, early: BTreeMap::new(), failed: false };
        let output = Arc::new(Mutex::new(output));
        let own = encoders.swap_remove(0);
        // Where the system gives no more threads, there are fewer, or none.
        let workers = encoders.into_iter().map_while(|mut encoder| {
            let (queue, answers, output) = (queue.clone(), answers.clone(), output.clone());
            let spawned = std::thread::Builder::new().spawn(move || {
                loop {
                    let next = queue.lock().ok().and_then(|queue| queue.recv().ok());
                    let Some((number, group)) = next else { break };
                    if answers.send(append(&mut encoder, &output, number, group)).is_err() {
                        break;
                    }
                }
            });
            spawned.ok()
        });
        let workers = workers.collect();
        Ok(Self {
            own,
            work: Some(work),
            queue,
            done,
            workers,
            asked: 0,
            answered: 0,
            spare: Vec::new(),
            output,
        })
    }

    /// What has been written so far.
    pub(super) fn sink(&mut self) -> impl DerefMut<Target = Sink> {
        Opened(lock(&self.output))
    }

    /// Encode and append `group`, now or soon; an error may be that of an earlier one.
    pub(super) fn encode(&mut self, group: Group) -> Result<()> {
        self.check()?;
        while let Ok(answer) = self.done.try_recv() {
            self.answered(answer)?;
        }
        let number = self.asked;
        self.asked += 1;
        let most = if self.workers.is_empty() { 0 } else { self.workers.len() + QUEUED };
        if let Some(work) = &self.work
            && number - self.answered < most as u64
        {
            // A worker only ends when this sender goes: the send cannot fail before that.
            let _ = work.send((number, group));
            return Ok(());
        }
        self.encode_here(number, group)
    }

    fn encode_here(&mut self, number: u64, group: Group) -> Result<()> {
        let answer = append(&mut self.own, &self.output, number, group);
        self.answered(answer)
    }

    /// An empty group, with the memory of one that is done if there is one: the kernel zeroes fresh
    /// memory, at some cost.
    pub(super) fn group(&mut self) -> Group {
        self.spare.pop().unwrap_or_default()
    }

    fn answered(&mut self, (group, taken): Answer) -> Result<()> {
        self.answered += 1;
        self.spare.push(group);
        taken
    }

    /// Wait until everything is appended, and help with it.
    pub(super) fn drain(&mut self) -> Result<()> {
        while self.answered < self.asked {
            // A worker that waits for groups holds the lock; then there is none.
            let queued = self.queue.try_lock().ok().and_then(|queue| queue.try_recv().ok());
            if let Some((number, group)) = queued {
                self.encode_here(number, group)?;
                continue;
            }
            match self.done.recv_timeout(Duration::from_millis(100)) {
                Ok(answer) => self.answered(answer)?,
                Err(_) => self.check()?,
            }
        }
        Ok(())
    }

    /// An error when a worker has ended, which it only does when it panicked: what it had will never
    /// come.
    fn check(&self) -> Result<()> {
        if self.workers.iter().any(JoinHandle::is_finished) {
            return Err(Error::input("writer", "an encoding thread ended", "report this"));
        }
        Ok(())
    }
}

/// The sink of a locked output.
struct Opened<'a>(MutexGuard<'a, Output>);

impl Deref for Opened<'_> {
    type Target = Sink;

    fn deref(&self) -> &Sink {
        &self.0.sink
    }
}

impl DerefMut for Opened<'_> {
    fn deref_mut(&mut self) -> &mut Sink {
        &mut self.0.sink
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.work = None;
        // Answers that nobody reads must not keep a worker waiting.
        while self.done.try_recv().is_ok() {}
        let (_, closed) = sync_channel(0);
        self.done = closed;
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}
