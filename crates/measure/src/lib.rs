//! Measurements of this machine. Each function measures one quantity and returns every sample;
//! callers interpret the samples.
//!
//! Nothing here changes the machine: memory belongs to this process, and files to the caller.

mod bandwidth;
mod chase;
mod clock;
pub mod cpuid;
mod device;
mod mapping;
mod switch;
mod thread;
mod work;

pub use bandwidth::{Access, bandwidth};
pub use chase::{CHAINS, Chase, Layout};
pub use clock::cycle_times;
pub use device::request_times;
pub use mapping::{Mapping, Pages, Touched};
pub use switch::switch_times;
pub use work::Work;
