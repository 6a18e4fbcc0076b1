//! What the machine that this runs on says of itself, and what can be timed on it. Each function
//! times one thing and gives every single time; what they mean together is for the caller.
//!
//! Nothing here changes the machine: memory is this process's own, and files are the caller's.

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
