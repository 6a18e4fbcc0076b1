//! What the kernel decides: page replacement, tiering, placement on memory nodes, embedded page
//! faults.
//!
//! Nothing here knows a time: costs belong to hardware, their sum to a study.

pub mod epf;
pub mod exercise;
pub mod placement;
pub mod replacement;
pub mod scheduler;
pub mod tiering;
