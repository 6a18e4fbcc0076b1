//! A real program in two tiers of memory: the runtime of `nearfar run`.
//!
//! An unmodified program keeps a part of its memory, within a budget, and the rest in a far tier
//! ([`far`]). Which pages lie where is decided by the policies of `nearfar_kernel::tiering`, the
//! same objects that the simulator runs. The kernel reports the program's faults through
//! userfaultfd ([`Kernel`]); a [`Manager`] acts on them from a process that shares the program's memory.
//!
//! The program never reads anything but what it last wrote. What that rests on is said in
//! [`Kernel`] and in `world.rs`, and tried in `model/`.

mod children;
#[cfg(test)]
mod ends;
pub mod family;
pub mod far;
mod ids;
mod kernel;
pub mod linux;
mod manager;
mod mapped;
mod memory;
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
mod stored;
pub mod supervise;
#[cfg(test)]
mod tests;
pub mod watch;
mod world;

pub use ids::{Child, Frame, PAGE, Range, Slot, Va};
pub use kernel::{Event, Fail, Found, Kernel};
pub use manager::{AROUND, Manager, Turn};
pub use nearfar_trace::Error;
pub use pace::next_look_ns;
pub use regions::Regions;
pub use world::{Counters, Sizes, World};
