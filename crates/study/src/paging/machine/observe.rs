//! The interface of observers of a pass over a trace.

use nearfar_trace::Batch;

use super::touches::Chunk;

pub trait Observe {
    /// Whether records that change no page's state are first passed to [`Observe::repeats`]. If so, the
    /// simulated caches must be `Hierarchy::for_ages`, which finds every line in the first level.
    const SKIPS: bool = false;
    /// Only the thread's records with numbers below the result may be passed to [`Observe::repeats`].
    fn stable_until(&self, _thread: usize) -> u64 {
        0
    }
    /// A record references a block (see [`crate::lifetimes`]) and changes no page's state. Returns whether
    /// it was counted; if not, it is passed to [`Observe::record`] and [`Observe::access`].
    fn repeats(&mut self, _block: u32) -> bool {
        false
    }
    /// [`Observe::repeats`] has counted records with instruction fetches, the last of them at `addr`.
    fn fetched(&mut self, _thread: usize, _addr: u64) {}
    fn batch(&mut self, _batch: &Batch) {}
    /// An event of the trace, such as `unmap`, was applied: pages may have changed.
    fn event(&mut self) {}
    /// Record number `at` begins.
    fn record(&mut self, _at: u64, _thread: usize, _addr: u64, _kind: u8) {}
    /// The current record references a line.
    fn access(&mut self, _access: Access) {}
    /// The last access, to page `number`, added touches ([`super::touches`]) to the chunk. `maps`: number
    /// of faults so far that mapped pages of the page cache.
    fn touched(&mut self, _chunk: &Chunk, _number: u64, _maps: u64) {}
}

impl Observe for () {}

/// A reference to a line.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// As in [`Touch`](super::touches::Touch).
    pub number: u64,
    /// As in [`Touch`](super::touches::Touch).
    pub block: u32,
    pub write: bool,
    /// The reference may change the state of the page.
    pub changes: bool,
    /// The first line of the record.
    pub first: bool,
    pub addr: u64,
}
