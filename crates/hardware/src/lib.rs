//! Models of hardware: machine descriptions, memory and storage timing, TLBs, CPU caches.
//!
//! This crate contains no policies and knows nothing of kernels or studies.

pub mod cache;
pub mod flash;
pub mod list;
pub mod load;
pub mod machine;
pub mod memory_side_cache;
pub mod node;
pub mod processor;
pub mod storage;
pub mod table;
pub mod tlb;
pub mod topology;
pub mod umd;

pub use machine::{AccessTimes, Machine};
pub use nearfar_schema::units;
pub use storage::Storage;
pub use topology::Topology;
