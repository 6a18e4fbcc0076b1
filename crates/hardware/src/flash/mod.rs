//! The flash array of a solid-state drive: geometry, page-mapped translation with garbage
//! collection, and the dies and channels that carry out its commands.
//!
//! What happens ([`Ftl`]) and how long it takes ([`Array`]) are apart: a write returns the commands
//! it causes, in order, and the array runs them. Nothing here reads a clock; times are whole
//! nanoseconds and the same calls give the same results.

pub mod array;
pub mod condition;
pub mod ftl;
pub mod geometry;
#[cfg(test)]
mod tests;
pub mod victim;

pub use array::{Array, Late, Step, Times};
pub use condition::{Conditioned, Overwrite, Precondition};
pub use ftl::{Command, Ftl, Op, Tally, Wear};
pub use geometry::Geometry;
