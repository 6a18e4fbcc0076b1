//! The `paging` study (page-size advice, 000; TLB and fault models, 001): TLB misses and page
//! faults at every page size and memory size, in one pass over the trace.

mod cell;
mod clock;
mod counted;
mod direct;
mod engine;
pub mod explain;
#[cfg(target_arch = "x86_64")]
mod lanes;
pub mod machine;
mod memory;
pub mod options;
mod own;
mod page_size;
mod repeats;
mod resident;
mod runs;
mod sample;
mod simulate;
mod source;
mod stack;
mod table;
mod window;

pub use cell::{Cell, FaultKinds, TooFewFrames};
pub use counted::Counted;
pub use options::{Asked, ClockInsert, Lifetimes, MemorySize, Options, PageCache, View};
pub use sample::LeftOut;
pub use simulate::{Simulated, simulate};
pub use table::{Prices, Row, rows};

#[cfg(test)]
pub(crate) mod tests;
