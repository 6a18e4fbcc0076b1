//! The flash array of a solid-state drive: geometry, page-mapped translation with garbage
//! collection, and the dies and channels that carry out its commands.
//!
//! The effect of a command ([`Ftl`]) is separate from its timing ([`Array`]): a write returns the
//! commands that it causes, in order, and the array runs them. Times are whole nanoseconds of
//! simulated time, and results are deterministic.

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
