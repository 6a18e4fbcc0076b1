//! Policies of the kernel: page replacement, read-ahead, huge pages, tiering, placement on memory nodes,
//! embedded page faults.
//!
//! Costs in time are in `nearfar-hardware`; `nearfar-study` sums them.

pub mod epf;
pub mod exercise;
pub mod placement;
pub mod readahead;
pub mod replacement;
pub mod scheduler;
pub mod thp;
pub mod tiering;
