//! Victim policies of garbage collection, one file each.

use super::Geometry;
use crate::machine::VictimPolicy;

pub mod greedy;
pub mod random;

/// The closed blocks of one plane, by the number of their valid pages.
///
/// Blocks are numbered within the plane. A block is added when its last page is programmed, updated
/// when a page becomes invalid, and removed to be collected.
pub trait Victims: Send {
    /// Add a full block with `valid` valid pages.
    fn insert(&mut self, block: u32, valid: u32);
    /// A page of an added block became invalid; `valid` remain.
    fn invalidated(&mut self, block: u32, valid: u32);
    /// Remove the block to collect. `None` only if no block has an invalid page. Repeated calls
    /// eventually return a block with an invalid page.
    fn take(&mut self) -> Option<u32>;
}

/// The policy that the geometry names, for plane `number`.
pub fn make(geometry: &Geometry, number: u32) -> Box<dyn Victims> {
    match geometry.victim {
        VictimPolicy::Greedy => Box::new(greedy::Greedy::new(geometry.blocks, geometry.pages)),
        VictimPolicy::Random => {
            Box::new(random::Random::new(geometry.blocks, geometry.pages, u64::from(number)))
        }
    }
}
