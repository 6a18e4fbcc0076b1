//! The runtime of `nearfar run`: a real program in two tiers of memory.
//!
//! An unmodified program has a part of its memory in fast memory, within a budget, and the rest in a far tier
//! ([`far`]). The policies of `nearfar_kernel::tiering`, which the simulator runs too, decide where pages
//! are. The kernel reports the program's faults through userfaultfd ([`Kernel`]). A [`Manager`] serves them
//! from a process that shares the program's memory.
//!
//! The program always reads what it last wrote. [`Kernel`] and `world.rs` explain why; `model/` tests it.

mod children;
#[cfg(test)]
mod ends;
pub mod family;
pub mod far;
mod ids;
mod kernel;
pub mod linux;
mod manager;
#[cfg(test)]
mod model;
mod numbers;
pub mod options;
mod order;
mod pace;
pub mod program;
mod reaper;
mod regions;
pub mod remote;
pub mod setup;
pub mod shared;
pub mod supervise;
#[cfg(test)]
mod tests;
pub mod watch;
mod world;

pub use ids::{Child, Frame, PAGE, Range, Slot, Va};
pub use kernel::{Event, Fail, Kernel, NewRegion};
pub use manager::{AROUND, Manager, Turn};
pub use nearfar_trace::Error;
pub use pace::next_look_ns;
pub use regions::Regions;
pub use world::{Counters, Sizes, World};
