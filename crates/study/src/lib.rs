//! Studies: each composes trace, hardware and kernel into a table of results.

pub mod declared;
pub mod filter;
pub mod info;
pub mod jobs;
pub mod lifetimes;
pub mod numa;
pub mod paging;
mod ranges;
pub mod ssd;
pub mod tiering;

/// How much longer than with all the (fast) memory that it wants a program may take, unless one asks for
/// something else: the default of `--slowdown`.
pub const SLOWDOWN: &str = "5%";
