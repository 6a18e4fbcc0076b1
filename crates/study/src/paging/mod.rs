//! The `paging` study, after papers 000 (page-size advice) and 001 (TLB and fault models): TLB
//! misses and page faults at every page size and memory size, in one pass over the trace.

mod cell;
mod engine;
pub mod explain;
pub mod machine;
mod memory;
pub mod options;
mod page_size;
mod sample;
mod simulate;
mod source;
mod stack;
mod study;
mod table;
mod window;

pub use cell::{Cell, FaultKinds, TooFewFrames};
pub use options::{Lifetimes, MemorySize, Options, PageCache, Request, View};
pub use sample::LeftOut;
pub use simulate::{Simulated, simulate};
pub use study::Study;
pub(crate) use study::check_nested;
pub use table::{Prices, Row, rows};

#[cfg(test)]
pub(crate) mod tests;
