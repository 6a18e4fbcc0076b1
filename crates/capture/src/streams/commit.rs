//! Commits fences to the trace, each after the words that precede it.
//!
//! A fence encloses an event of one process's address space (`layout.rs`). It does not say which
//! words of *other* processes precede it: those written so far go before it, up to the next pending
//! fence of each process. The trace thus has the pages that others touched before it has the event
//! that frees memory. If a process has waited for another to end, its words follow the other's.

use std::sync::atomic::Ordering::Acquire;

use nearfar_trace::Result;

use super::{IsGone, Process, Stream, Streams};

impl Streams<'_> {
    /// Commit complete fences to the trace by ticket; those of a process up to its first incomplete
    /// one.
    pub(super) fn commit_fences(&mut self, is_gone: &mut IsGone<'_>) -> Result<()> {
        // Processes that have ended: all their words precede later words of other processes.
        let mut dead: Vec<u32> = Vec::new();
        // Later fences wait for the next turn.
        let last =
            self.processes.values().filter_map(|p| p.fences.last_key_value()).map(|f| *f.0).max();
        while !self.stopped() {
            if self.end_killed(&mut dead)? {
                continue;
            }
            // Streams opened since the turn began can have fences with lower tickets.
            if self.shared.header().opened.load(Acquire) != self.threads.len() as u64 {
                self.discover()?;
                self.scan(&[]);
            }
            let Some(next) = self.next_fence() else { return Ok(()) };
            let (ticket, pid, owner, end) = next;
            if dead.is_empty() && Some(ticket) > last {
                return Ok(());
            }
            let mut positions = Vec::new();
            if dead.is_empty() && self.processes.len() > 1 {
                positions = self.positions();
                // Find the fences that precede words below these positions.
                self.scan(&[]);
                if self.next_fence() != Some(next) {
                    continue;
                }
            }
            let fences = &self.processes[&pid].fences;
            let mut others: Vec<(u64, u64)> = (self.streams.iter())
                .filter(|(order, stream)| stream.pid == pid && **order != owner)
                .map(|(&order, _)| (order, fences[&ticket].before(order)))
                .collect();
            // The words that precede the fence can contain fences that were written since the last
            // scan; one with a lower ticket goes first.
            others.iter().for_each(|(order, before)| self.scan_stream(*order, *before));
            let Some(process) = self.processes.get_mut(&pid) else { return Ok(()) };
            if process.fences.first_key_value().is_some_and(|(first, _)| *first != ticket) {
                continue;
            }
            self.read_other_processes(pid, &positions)?;
            let Some(process) = self.processes.get_mut(&pid) else { return Ok(()) };
            process.fences.remove(&ticket);
            for (order, before) in &mut others {
                // Stop before a fence of this stream: its ticket is higher.
                let next = self.streams.get(order).and_then(|stream| stream.lookahead.next());
                *before = next.map_or(*before, |next| next.min(*before));
            }
            for (order, before) in others {
                self.read(order, before)?;
            }
            if let Some(stream) = self.streams.get_mut(&owner) {
                stream.lookahead.pop();
            }
            self.read(owner, end)?;
            for waited in std::mem::take(&mut self.recording.waited) {
                if self.processes.contains_key(&waited) && is_gone(waited, true) {
                    dead.push(waited);
                }
            }
            if self.processes.get(&pid).is_some_and(|process| process.ending) {
                self.end_closed(pid)?;
            }
        }
        Ok(())
    }

    /// The complete fence with the lowest ticket that no incomplete fence of its process precedes:
    /// ticket, pid, number of its stream by opening (`order`), and position after its last word.
    fn next_fence(&self) -> Option<(u64, u32, u64, u64)> {
        let first = |(&pid, process): (&u32, &Process)| {
            let (&ticket, fence) = process.fences.first_key_value()?;
            fence.end.map(|end| (ticket, pid, fence.owner, end))
        };
        self.processes.iter().filter_map(first).min()
    }

    /// How far each stream has been written, by order.
    pub(super) fn positions(&self) -> Vec<(u64, u64)> {
        let position =
            |(&order, stream): (&u64, &Stream<'_>)| (order, self.position(&stream.reader));
        self.streams.iter().map(position).collect()
    }

    /// Read the streams of all processes except `pid` up to these positions, or to their first
    /// pending fences.
    fn read_other_processes(&mut self, pid: u32, positions: &[(u64, u64)]) -> Result<()> {
        for &(order, position) in positions {
            let unread = |stream: &Stream<'_>| {
                let taken = stream.reader.taken();
                let at_fence = stream.lookahead.next().is_some_and(|fence| fence <= taken);
                stream.pid != pid && taken < position && !at_fence
            };
            if self.streams.get(&order).is_some_and(unread) {
                self.read(order, position.min(self.limit(order)))?;
            }
        }
        Ok(())
    }

    /// Position up to which a stream can be read: its first pending fence.
    pub(super) fn limit(&self, order: u64) -> u64 {
        let Some(stream) = self.streams.get(&order).filter(|_| !self.stopped()) else {
            return u64::MAX;
        };
        let fences = self.processes.get(&stream.pid).into_iter().flat_map(|p| p.fences.values());
        // Without an end, the fence's system call has not returned: no other thread depends on it.
        let others = fences.filter(|fence| fence.owner != order && fence.end.is_some());
        others
            .map(|fence| fence.before(order))
            .chain(stream.lookahead.next())
            .min()
            .unwrap_or(u64::MAX)
    }
}
