//! The `tiering` study (SSP, 003, and what it builds on): policies that move pages between fast
//! and slow memory, in a simulated machine on an event clock.
//!
//! [`world`] is the machine: page table, TLB, frames, the costs of actions; it carries out what a
//! [`nearfar_kernel::tiering::Policy`] asks for. [`engine`] runs a program's accesses through it
//! and lets the policy's threads run when they are due. [`workload`] is where accesses come from,
//! [`run`](mod@run) makes rows of it all; [`tenants`]
//! lets several programs run on one machine.

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
