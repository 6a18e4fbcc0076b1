//! Policies of the kernel: page replacement, read-ahead, huge pages, tiering, placement on memory nodes,
//! embedded page faults.
//!
//! This crate has no times: costs belong to `nearfar-hardware`, their sums to `nearfar-study`.

pub mod epf;
pub mod exercise;
pub mod placement;
pub mod readahead;
pub mod replacement;
pub mod scheduler;
pub mod thp;
pub mod tiering;
