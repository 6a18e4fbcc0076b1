//! Runs several threads of the program, interleaved by their clocks.

use nearfar_kernel::tiering::Time;
use nearfar_trace::{Error, Result};

use super::{Access, Block, Engine, MAX_FAULTS, PROGRAM_RUNS, Stop};

/// Bandwidth use is measured after this many accesses per thread, or after a millisecond.
const METER_ACCESSES: u64 = 64;

/// The next accesses of a thread.
#[derive(Debug, Default)]
pub struct Queue {
    /// Accesses, and between them the ends of pages and of translations.
    block: Block,
    /// Index of the next access.
    at: usize,
    /// Number of the block's ends that were applied.
    ended: usize,
    /// Faults of the next access so far.
    faults: u32,
}

/// The error of a policy that never lets an access complete.
pub(super) fn endless_faults(access: Option<Access>) -> Error {
    let page = access.map_or(0, |access| access.page().number());
    Error::input(
        "tiering",
        format!("the policy lets page {page} fault for ever"),
        "hint_fault must eventually disarm the page, and write_fault unprotect it",
    )
}

impl Engine {
    /// Run the accesses of several threads, always of the one with the earliest clock. `refill` replaces a
    /// thread's block; an empty block ends the thread. Returns the number of accesses done, at least `count`
    /// unless all threads of a tenant end.
    ///
    /// # Errors
    /// As [`run`](Engine::run); errors of `refill`.
    pub fn run_threads(
        &mut self,
        queues: &mut [Queue],
        count: u64,
        refill: &mut dyn FnMut(usize, &mut Block) -> Result<()>,
    ) -> Result<u64> {
        let (mut total, mut measured) = (0, 0);
        while total < count {
            if total - measured >= METER_ACCESSES * queues.len() as u64 {
                measured = total;
                self.world.meter();
            }
            let Some(horizon) = self.world.switch() else { break };
            self.run_due(self.world.clock, PROGRAM_RUNS);
            if self.world.clock > horizon {
                continue;
            }
            let Some(queue) = queues.get_mut(self.world.current) else { break };
            let ends = queue.block.ends.get(queue.ended..).unwrap_or_default();
            let due = ends.iter().take_while(|(at, _)| *at <= queue.at).count();
            if due > 0 {
                self.apply_ends(&ends[..due]);
                queue.ended += due;
                continue;
            }
            if queue.at >= queue.block.accesses.len() {
                (queue.at, queue.ended) = (0, 0);
                refill(self.world.current, &mut queue.block)?;
                if queue.block.accesses.is_empty() && queue.block.ends.is_empty() {
                    let tenant = self.world.running_tenant();
                    self.world.end_thread();
                    if self.world.ended(tenant).is_some() {
                        break;
                    }
                }
                continue;
            }
            let until = ends.first().map_or(queue.block.accesses.len(), |(at, _)| *at);
            let rest = queue.block.accesses.get(queue.at..until).unwrap_or_default();
            let (mut done, mut stop) = self.run_fast_path(rest, horizon);
            let next = rest.get(done..=done).unwrap_or_default();
            if let (Stop::Fault, [access]) = (&stop, next)
                && access.page() == Access::ZEROS
            {
                self.read_zeros(*access);
                // Not `Stop::Sample`: `read_zeros` has taken the sample.
                (done, stop) = (done + 1, Stop::Due);
            } else if let (Stop::Fault, [access]) = (&stop, next) {
                self.fault_once(*access)?;
                // Run the access at once, so that no kernel thread unmaps its page first. The horizon does
                // not matter for one access.
                let (more, then) = self.run_fast_path(next, Time::default());
                (done, stop) = (done + more, then);
            }
            let last = rest.get(done.wrapping_sub(1)).copied();
            queue.at += done;
            total += done as u64;
            queue.faults = if done > 0 { 0 } else { queue.faults + 1 };
            if queue.faults > MAX_FAULTS {
                return Err(endless_faults(rest.first().copied()));
            }
            if let (Stop::Sample, Some(access)) = (stop, last) {
                self.sample(access);
            }
        }
        Ok(total)
    }
}
