//! The `ssd` study, after the UMD paper: a program on a machine whose memory is a DRAM-interface SSD (UMD),
//! under each policy for embedded page faults (on pages that are not, or not yet, in the device's DRAM) and
//! each size of the device's DRAM.
//!
//! A discrete-event simulation in whole nanoseconds. A reference looks up a TLB; on a miss, it walks
//! the page table and the device's mapping table, and the device loads the page into its DRAM if it is not
//! there. Then the reference accesses the CPU caches. `docs/ssd.md` has the model.

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
