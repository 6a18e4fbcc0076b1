//! What the kernel decides: page replacement, placement on memory nodes; tiering beside them.
//!
//! Nothing here knows a time: costs belong to hardware, their sum to a study.

pub mod placement;
pub mod replacement;
