//! The `numa` study (aliusM, 004): memory of several kinds and places as system memory. The time of
//! allocating and clearing, and the nodes of the pages ([`alloc`]); latency and bandwidth of a program
//! ([`run`]); how two virtual machines slow each other down in memory mode ([`pair`]).

mod alloc;
mod clear;
pub mod options;
mod pair;
mod run;
#[cfg(test)]
mod tests;

pub use alloc::{AllocOptions, AllocRow, Allocated, Landed, alloc};
pub use clear::{PageTime, clear_page};
pub use options::{AllocRequest, PairRequest, PlanRequest, RunRequest};
pub use pair::{FRAMES, Guest, PairOptions, PairRow, pair};
pub use run::{Load, NodeUse, Ran, RunRow, Stream, run};
