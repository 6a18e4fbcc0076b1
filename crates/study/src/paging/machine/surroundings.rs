//! The private memory around new blocks, and the reads of files that new blocks cause. A *block* is a
//! touched 4 KiB page.

use nearfar_kernel::readahead::{Access, Fetch, Readahead};
use rustc_hash::FxHashSet;

use super::{LARGE, SMALL};
use crate::lifetimes::{self, Backing, Blocks, Change};

/// log2 of the bytes of a file that one fault maps (`fault_around_bytes`).
const AROUND: u32 = 16;

/// A change of blocks and, for a new block, the first and last 4 KiB page of private memory around
/// it that could be in the same large page.
pub type Changed = (Change, (u64, u64));

#[derive(Default)]
pub struct Surroundings {
    /// Parts of files, of 2^[`AROUND`] bytes, that faults have mapped: the file, and the number of the
    /// part combined with that of the address space.
    mapped: FxHashSet<(u32, u64)>,
    files: Readahead,
    fetches: Vec<Fetch>,
}

impl Surroundings {
    /// Take the changes of blocks since the last call, each with its surroundings.
    pub fn of(&mut self, blocks: &mut Blocks) -> impl Iterator<Item = Changed> {
        let changes: Vec<Change> = blocks.changes().collect();
        for change in &changes {
            if let Change::Born { number, backing, written, .. } = *change
                && let Backing::Object { object, start, of_file: true, private, .. } = backing
            {
                // The address, combined with the number of its address space.
                let place = number << SMALL;
                let page = lifetimes::address(place).wrapping_sub(start) >> SMALL;
                // Accesses of system calls to the page cache have kernel addresses in the trace.
                let access = if place >> 63 == 1 { Access::Call } else { Access::Mapped };
                if access == Access::Call && written {
                    self.files.write(object, page);
                } else {
                    self.fetches.push(self.files.access(object, page, access));
                }
                if access == Access::Mapped && !(private && written) {
                    self.mapped.insert((object, place.wrapping_sub(start) >> AROUND));
                }
            }
        }
        let spaces = blocks.spaces();
        let around = |change: &Change| match *change {
            Change::Born { number, backing: Backing::Zeros | Backing::Unknown, .. } => {
                spaces.private_around(number, LARGE - SMALL)
            }
            _ => (0, 0),
        };
        let around: Vec<(u64, u64)> = changes.iter().map(around).collect();
        changes.into_iter().zip(around)
    }

    /// Take the reads of files since the last call.
    pub fn fetches(&mut self) -> std::vec::Drain<'_, Fetch> {
        self.fetches.drain(..)
    }

    /// Number of faults that mapped pages of the page cache.
    pub fn maps(&self) -> u64 {
        self.mapped.len() as u64
    }
}
