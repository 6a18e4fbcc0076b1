//! The `ssd` study, after the UMD paper: a program on a machine whose memory is a DRAM-interface SSD, under
//! each policy for embedded page faults and each size of the device's DRAM.
//!
//! A discrete-event simulation in whole nanoseconds. Each thread replays its references. A reference
//! passes, in order: a TLB, the page-table walk and the device's mapping table, the device's DRAM or
//! a service by its flash, the CPU caches. `docs/ssd.md` has the model.

pub mod accounts;
pub mod cell;
pub mod core;
pub mod device;
pub mod disk;
pub mod faults;
pub mod feed;
pub mod histogram;
pub mod host;
pub mod options;
pub mod scheduler;
pub mod simulate;
pub mod timeline;

pub use cell::Cell;
pub use options::{Bus, FileData, FirstTouch, L2p, Options, Replay, Request, Setting};
pub use simulate::simulate;

#[cfg(test)]
mod tests;
