//! What sees every reference of the pass over a trace.

use super::touches::Chunk;

/// Observes the references of a trace.
pub trait Observe {
    /// Repeated references to a page in one line of it are shown by [`Observe::repeated`] and
    /// [`Observe::repeats`] alone. Needs a hierarchy that finds every line in the first level.
    const SKIPS: bool = false;
    /// A record before which nothing changes but by references, and a number that changes if
    /// references before may have an effect again.
    fn stable(&self) -> (u64, u64) {
        (0, 0)
    }
    /// A thread references the page of its last reference of this kind again.
    fn repeated(&mut self, _thread: usize, _addr: u64, _fetch: bool) {}
    /// A block was referenced again, this number of times.
    fn repeats(&mut self, _block: u32, _references: u64) {}
    /// An event happened, so pages may have changed.
    fn event(&mut self) {}
    /// Record number `at` begins.
    fn record(&mut self, _at: u64, _thread: usize, _addr: u64, _fetch: bool) {}
    /// It references a line. Returns whether the same reference has no effect now.
    fn access(&mut self, _page: Access) -> bool {
        false
    }
    /// The chunk has touches for this reference to page `number`; `maps` faults mapped pages of the
    /// page cache so far.
    fn touched(&mut self, _chunk: &Chunk, _number: u64, _maps: u64) {}
}

impl Observe for () {}

/// A reference to a line.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// As of [`Touch`](super::touches::Touch).
    pub number: u64,
    /// As of [`Touch`](super::touches::Touch).
    pub block: u32,
    /// A write.
    pub write: bool,
    /// The page may change by it.
    pub changes: bool,
    /// The first line of the record.
    pub first: bool,
    /// The address of the line.
    pub addr: u64,
}
