//! What references take on a processor: caches, TLBs and page walks, and how much of it overlaps.
//!
//! [`Hierarchy`] says where a line is found, [`Translation`] what a look-up of a page takes and which
//! lines of the page table its walk reads, [`Overlap`] how long a thread waits for both. Latencies are
//! whole picoseconds, so that sums are the same in any order.

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
