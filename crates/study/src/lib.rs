//! Studies: each combines a trace, hardware and a kernel into a table of results.

pub mod declared;
pub mod filter;
pub mod info;
pub mod jobs;
pub mod lifetimes;
pub mod numa;
pub mod paging;
mod ranges;
pub mod ssd;
pub mod thp;
pub mod tiering;

/// Default of `--slowdown`: accepted slowdown relative to unlimited (fast) memory.
pub const SLOWDOWN: &str = "5%";
