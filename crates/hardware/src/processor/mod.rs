//! Time of references on a processor: caches, TLBs, page walks, and their overlap.
//!
//! [`Hierarchy`] models where a line is found, [`Translation`] the look-up of a page and the lines
//! of the page table that its walk reads, and [`Overlap`] how long a thread waits for both.
//! Latencies are whole picoseconds, so that sums do not depend on their order.

mod hierarchy;
mod overlap;
mod spec;
#[cfg(test)]
mod tests;
mod translation;

pub use hierarchy::{Ages, Found, Hierarchy};
pub use overlap::Overlap;
pub use spec::{Caches, Latencies, Processor, Tlbs};
pub use translation::{Answer, Entry, Line, Translation, Walker, mapping_line, small_lines};
