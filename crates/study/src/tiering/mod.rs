//! The `tiering` study: policies that move pages between fast and slow memory (selective shadow
//! paging (SSP), NOMAD and others), in a discrete-event simulation of a machine.
//!
//! [`world`] is the machine: page table, TLB, frames and costs of actions. It executes the actions of a
//! [`nearfar_kernel::tiering::Policy`]. [`engine`] runs a program's accesses, and the policy's threads
//! when they are due. [`workload`] generates accesses, [`run`](mod@run) collects result rows, and
//! [`tenants`] runs several programs on one machine.

mod copies;
pub mod counters;
pub mod engine;
mod given;
mod lives;
pub mod options;
mod rows;
pub mod run;
mod tenants;
#[cfg(test)]
mod tests;
pub mod tlb;
pub mod trace;
pub mod workload;
pub mod world;
pub mod zipf;

pub use options::Options;
pub use run::{Outcome, Point, PolicySource, Row, run};
