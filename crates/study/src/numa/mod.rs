//! The `numa` study, after paper 004 (aliusM): DRAM, persistent and CXL memory of several sockets as
//! system memory.
//!
//! * [`alloc`]: duration of an allocation with clearing, and the nodes of its pages
//! * [`run`]: latency and bandwidth of a program
//! * [`pair`]: slowdown of two virtual machines that share memory mode's cache

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
