//! Ends streams (one per thread) and processes, and begins the programs that replace others
//! (`execve`). A stream is identified by its *order*, the serial number of its opening.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use nearfar_trace::Result;

use super::{IsGone, Stream, Streams, is_earlier, is_occupied};
use crate::layout::{now, origin, state};

impl Streams<'_> {
    /// End programs that `execve` has replaced, and begin their successors. Returns whether a stream
    /// began.
    pub(super) fn begin_successors(&mut self) -> Result<bool> {
        let slots = self.shared.slots().iter();
        let earlier: Vec<_> = (self.successors())
            .flat_map(|(pid, order)| slots.clone().filter(move |slot| is_earlier(slot, pid, order)))
            .collect();
        let mut complete = Vec::new();
        for slot in earlier {
            let order = slot.order.load(Relaxed);
            self.read(order, self.limit(order))?;
            let reader = self.streams.get(&order).map(|stream| &stream.reader);
            if reader.is_some_and(|reader| reader.taken() == self.position(reader)) {
                complete.push(order);
            }
        }
        self.end_streams(complete)?;
        let before = self.streams.len();
        self.discover()?;
        Ok(self.streams.len() > before)
    }

    /// End the closed streams of a process that is about to end if they are read completely, and with
    /// the last one the process: in the trace, it ends before what a process that waits for it does next.
    pub(super) fn end_closed(&mut self, pid: u32) -> Result<()> {
        let complete = |(&order, stream): (&u64, &Stream<'_>)| {
            let closed =
                stream.pid == pid && stream.reader.slot().state.load(Acquire) == state::CLOSED;
            (closed && stream.reader.taken() == self.position(&stream.reader)).then_some(order)
        };
        let complete = self.streams.iter().filter_map(complete).collect();
        self.end_streams(complete)?;
        self.end_processes(&mut |_, _| false)
    }

    /// End one process of `dead` whose next fence (`layout.rs`), if any, is incomplete, and begin the
    /// program that replaced it, if any; the process stays in `dead` in that case. Returns false if
    /// `dead` has no such process.
    pub(super) fn end_killed(&mut self, dead: &mut Vec<u32>) -> Result<bool> {
        let processes = &self.processes;
        dead.retain(|pid| processes.contains_key(pid));
        let no_complete_fence = |pid: &u32| {
            let first = processes[pid].fences.first_key_value();
            first.is_none_or(|(_, fence)| fence.end.is_none())
        };
        let Some(pid) = dead.iter().copied().find(no_complete_fence) else { return Ok(false) };
        if let Some(process) = self.processes.get_mut(&pid) {
            process.fences.clear();
        }
        let streams = self.streams.iter().filter(|(_, stream)| stream.pid == pid);
        let orders: Vec<u64> = streams.map(|(&order, _)| order).collect();
        orders.iter().try_for_each(|order| self.read(*order, u64::MAX))?;
        self.end_streams(orders)?;
        self.end_processes(&mut |process, _| process == pid)?;
        if self.begin_successors()? {
            self.scan(&[]);
        } else {
            dead.retain(|other| *other != pid);
        }
        Ok(true)
    }

    /// End streams that are complete.
    pub(super) fn end_streams(&mut self, mut complete: Vec<u64>) -> Result<()> {
        // The stream that called `execve` goes last: its end is that of the previous program.
        complete.sort_by_key(|order| {
            self.threads.get(order).is_some_and(|thread| self.recording.has_called_exec(*thread))
        });
        for (index, &order) in complete.iter().enumerate() {
            let Some(stream) = self.streams.get(&order) else { continue };
            let (pid, thread) = (stream.pid, stream.position.thread);
            let Some(process) = self.processes.get_mut(&pid) else { continue };
            if self.recording.has_called_exec(thread) && process.streams > 1 {
                // Of several threads in `execve`, one went on. Which one is not known: take the last.
                let is_in_exec = |other: &Stream<'_>| {
                    other.pid == pid && self.recording.has_called_exec(other.position.thread)
                };
                let mut later = complete[index + 1..].iter();
                if !later.any(|order| self.streams.get(order).is_some_and(is_in_exec)) {
                    continue;
                }
                self.recording.forget_exec(thread);
            }
            process.streams -= 1;
            let Some(stream) = self.streams.remove(&order) else { continue };
            if stream.reader.is_forged() {
                self.recording.stop_forged();
            }
            self.slots.iter_mut().filter(|slot| **slot == Some(order)).for_each(|s| *s = None);
            // A killed thread has not paused.
            let activity = &stream.reader.slot().activity;
            self.shared.header().activity.pause(activity, now());
            stream.reader.free_slot();
            self.recording.end_thread(&stream.position)?;
        }
        Ok(())
    }

    /// End the processes that have no streams left and are gone.
    pub(super) fn end_processes(&mut self, is_gone: &mut IsGone<'_>) -> Result<()> {
        let ended: Vec<u32> = (self.processes.iter())
            .filter(|(pid, process)| {
                process.streams == 0 && (process.ending || is_gone(**pid, true))
            })
            .map(|(&pid, _)| pid)
            // Checked last: all streams opened before the end are visible by then.
            .filter(|pid| !self.has_successor(*pid))
            .collect();
        for pid in ended {
            if let Some(process) = self.processes.remove(&pid) {
                self.recording.end_process(process.last_thread)?;
            }
        }
        Ok(())
    }

    /// The first streams of programs that are not read yet: pid and order.
    fn successors(&self) -> impl Iterator<Item = (u32, u64)> {
        let used = self.shared.header().used.load(Acquire) as usize;
        let slots = self.shared.slots().iter().take(used).enumerate();
        slots
            .filter(|(index, slot)| {
                let begun = self.slots.get(*index).is_some_and(Option::is_some);
                !begun && is_occupied(slot) && slot.origin.load(Relaxed) == origin::PROGRAM
            })
            .map(|(_, slot)| (slot.pid.load(Relaxed), slot.order.load(Relaxed)))
    }

    /// Whether another program of process `pid`, which has no streams left, can begin.
    fn has_successor(&self, pid: u32) -> bool {
        let next = |(of, order)| {
            of == pid && !self.shared.slots().iter().any(|slot| is_earlier(slot, pid, order))
        };
        !self.stopped() && self.successors().any(next)
    }
}
