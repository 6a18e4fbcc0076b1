//! The `numa` study (aliusM, 004): memory of several kinds and places as system memory. How long
//! allocating and clearing takes and where pages land ([`alloc`]), what a program then sees
//! ([`run`]), and how two virtual machines hurt each other in memory mode ([`pair`]).

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
