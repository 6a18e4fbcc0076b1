//! The `paging` study (papers 000 and 001): TLB misses and page faults at every page size and
//! memory size, in one pass over the trace.

pub mod clock;
pub mod direct;
pub mod explain;
pub mod memory;
pub mod options;
pub mod page_size;
mod pair;
mod repeats;
mod runs;
pub mod sample;
pub mod simulate;
pub mod table;
pub mod window;

pub use options::{Asked, ClockInsert, MemorySize, Options};
pub use simulate::{Cell, Simulated, simulate};
pub use table::{Row, rows};

#[cfg(test)]
mod tests;
