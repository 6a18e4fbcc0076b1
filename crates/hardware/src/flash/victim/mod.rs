//! Which block a plane collects: a file per policy.

use super::Geometry;
use crate::machine::VictimPolicy;

pub mod greedy;
pub mod random;

/// The closed blocks of one plane, by the number of their valid pages.
///
/// Blocks are numbered within the plane. A block is given in when its last page is programmed,
/// notified of each page that becomes invalid, and taken out to be collected.
pub trait Victims: Send {
    /// A block was filled; `valid` of its pages are still valid.
    fn insert(&mut self, block: u32, valid: u32);
    /// A page of a closed block became invalid; `valid` are left.
    fn invalidated(&mut self, block: u32, valid: u32);
    /// Take out the block to collect. `None` only where no block has an invalid page. Calls in a
    /// row come to a block with one in the end.
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
