//! The page-mapped flash translation layer: every write goes to an erased page, and garbage
//! collection reclaims invalid pages.

use std::collections::VecDeque;

use super::Geometry;
use super::victim::{self, Victims};

/// Kinds of flash commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sense one page.
    Read,
    /// Program one page.
    Program,
    /// Erase one block.
    Erase,
}

/// One command to the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    pub op: Op,
    /// The die that executes it.
    pub die: u32,
    /// The physical page; for an erase, the first of the block.
    pub page: u32,
    /// Part of garbage collection, not of a host request.
    pub collection: bool,
    /// Takes no time in the die except its transfer: another command reads or programs the whole
    /// stripe (the pages programmed together) at once. A stripe is programmed by the command of its last page.
    pub shared: bool,
}

/// Counts since the beginning or the last [`Ftl::reset_tally`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Pages read for the host.
    pub host_reads: u64,
    /// Pages written by the host: each is one program.
    pub host_programs: u64,
    /// Pages moved by collection: each is one read and one program.
    pub moved: u64,
    /// Blocks collected: each is one erase.
    pub collections: u64,
}

impl Tally {
    pub fn reads(&self) -> u64 {
        self.host_reads + self.moved
    }

    pub fn programs(&self) -> u64 {
        self.host_programs + self.moved
    }

    /// Programs for each page that the host wrote; 1 before it wrote any.
    pub fn write_amplification(&self) -> f64 {
        match self.host_programs {
            0 => 1.0,
            host => self.programs() as f64 / host as f64,
        }
    }
}

/// How often blocks have been erased.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wear {
    /// Minimum erases of a block.
    pub least: u32,
    /// Maximum erases of a block.
    pub most: u32,
    /// Mean over all blocks.
    pub mean: f64,
}

/// Sentinel: no page, or no block.
const NONE: u32 = u32::MAX;

struct Plane {
    free: VecDeque<u32>,
    /// The block being filled (numbered within the plane) and its next page.
    open: u32,
    next: u32,
    closed: Box<dyn Victims>,
}

/// The translation layer. Each plane has one open block, which host writes and collected pages
/// share.
pub struct Ftl {
    geometry: Geometry,
    /// Physical page of each logical page.
    physical: Vec<u32>,
    /// Logical page of each valid physical page.
    logical: Vec<u32>,
    /// Valid pages of each block.
    valid: Vec<u32>,
    erases: Vec<u32>,
    planes: Vec<Plane>,
    mapped: u32,
    tally: Tally,
}

impl Ftl {
    /// A new drive: every block is erased, and no page is mapped.
    pub fn new(geometry: Geometry) -> Self {
        let blocks = geometry.planes as usize * geometry.blocks as usize;
        let planes = (0..geometry.planes)
            .map(|number| Plane {
                free: (1..geometry.blocks).collect(),
                open: 0,
                next: 0,
                closed: victim::make(&geometry, number),
            })
            .collect();
        Self {
            physical: vec![NONE; geometry.user_pages as usize],
            logical: vec![NONE; geometry.total_pages() as usize],
            valid: vec![0; blocks],
            erases: vec![0; blocks],
            planes,
            mapped: 0,
            tally: Tally::default(),
            geometry,
        }
    }

    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Physical page of logical page `page`, if it was ever written. Panics beyond the user's
    /// pages.
    pub fn place(&self, page: u32) -> Option<u32> {
        Some(self.physical[page as usize]).filter(|place| *place != NONE)
    }

    /// Read logical page `page` for the host. Returns the command, or `None` if the page was never
    /// written. Panics beyond the user's pages.
    pub fn read(&mut self, page: u32) -> Option<Command> {
        let place = self.place(page)?;
        self.tally.host_reads += 1;
        let die = self.geometry.die_of(self.geometry.plane_of(page));
        Some(Command { op: Op::Read, die, page: place, collection: false, shared: false })
    }

    /// Write logical page `page`. Passes the commands to `run` in order, beginning with garbage
    /// collection if the plane needs room. Panics beyond the user's pages.
    pub fn write(&mut self, page: u32, mut run: impl FnMut(Command)) {
        let plane = self.geometry.plane_of(page);
        if self.planes[plane as usize].next == self.geometry.pages {
            self.make_room(plane, &mut run);
        }
        let old = self.physical[page as usize];
        if old == NONE {
            self.mapped += 1;
        } else {
            self.invalidate(plane, old);
        }
        self.tally.host_programs += 1;
        self.program(plane, page, false, &mut run);
    }

    /// Mapped logical pages.
    pub fn mapped(&self) -> u32 {
        self.mapped
    }

    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Reset the tally, but not the wear.
    pub fn reset_tally(&mut self) {
        self.tally = Tally::default();
    }

    pub fn wear(&self) -> Wear {
        let sum: u64 = self.erases.iter().map(|&n| u64::from(n)).sum();
        Wear {
            least: self.erases.iter().copied().min().unwrap_or(0),
            most: self.erases.iter().copied().max().unwrap_or(0),
            mean: sum as f64 / self.erases.len() as f64,
        }
    }

    /// Minimum number of free blocks in a plane.
    pub fn least_free(&self) -> u32 {
        self.planes.iter().map(|plane| plane.free.len() as u32).min().unwrap_or(0)
    }

    /// Whether every plane must collect as soon as its open block is full.
    pub fn collecting(&self) -> bool {
        self.planes.iter().all(|plane| plane.free.len() as u32 <= self.geometry.gc_start)
    }

    /// Check the invariants: the two tables agree, and the counts of valid pages are correct. Takes
    /// time proportional to the number of pages.
    ///
    /// # Panics
    /// An invariant is violated, which is a bug.
    pub fn verify(&self) {
        let mut valid = vec![0u32; self.valid.len()];
        let mut mapped = 0;
        for (page, &place) in self.physical.iter().enumerate() {
            if place != NONE {
                mapped += 1;
                valid[(place / self.geometry.pages) as usize] += 1;
                assert_eq!(self.logical[place as usize] as usize, page, "mapping of {page}");
            }
        }
        assert_eq!(mapped, self.mapped, "mapped pages");
        assert_eq!(valid, self.valid, "valid pages of the blocks");
        let live = self.logical.iter().filter(|page| **page != NONE).count();
        assert_eq!(live, mapped as usize, "live mappings");
    }

    /// Close the full open block, collect if few blocks are free, and open another.
    fn make_room(&mut self, plane: u32, run: &mut impl FnMut(Command)) {
        let must_collect = self.planes[plane as usize].free.len() as u32 <= self.geometry.gc_start;
        self.close(plane);
        if must_collect {
            loop {
                // A victim whose pages were all valid has freed nothing.
                let moved = self.collect(plane, run);
                let free = self.planes[plane as usize].free.len() as u32;
                if moved < self.geometry.pages && free >= self.geometry.gc_stop.unwrap_or(0) {
                    break;
                }
            }
        }
        self.open(plane);
    }

    /// Add the open block, if it is full, to the candidates for collection.
    fn close(&mut self, plane: u32) {
        let state = &mut self.planes[plane as usize];
        if state.open != NONE && state.next == self.geometry.pages {
            let valid = self.valid[(plane * self.geometry.blocks + state.open) as usize];
            state.closed.insert(state.open, valid);
            state.open = NONE;
        }
    }

    /// Ensure that there is an open block with room. A block is always free: collection starts with
    /// at least one free block, needs at most one, and frees one.
    fn open(&mut self, plane: u32) {
        self.close(plane);
        let state = &mut self.planes[plane as usize];
        if state.open == NONE {
            let free = state.free.pop_front();
            assert!(free.is_some(), "plane {plane} has no free block: collection made no progress");
            state.open = free.unwrap_or(NONE);
            state.next = 0;
        }
    }

    /// Move the valid pages of one block and erase it. Returns the number of pages moved.
    fn collect(&mut self, plane: u32, run: &mut impl FnMut(Command)) -> u32 {
        let victim = self.planes[plane as usize].closed.take();
        assert!(victim.is_some(), "plane {plane} has nothing to collect");
        let Some(victim) = victim else { return 0 };
        let block = plane * self.geometry.blocks + victim;
        let die = self.geometry.die_of(plane);
        let first = block * self.geometry.pages;
        let moved = self.valid[block as usize];
        let mut stripe = NONE;
        for place in first..first + self.geometry.pages {
            let page = self.logical[place as usize];
            if page == NONE {
                continue;
            }
            let shared = stripe == place / self.geometry.stripe;
            stripe = place / self.geometry.stripe;
            run(Command { op: Op::Read, die, page: place, collection: true, shared });
            self.logical[place as usize] = NONE;
            self.valid[block as usize] -= 1;
            self.tally.moved += 1;
            self.open(plane);
            self.program(plane, page, true, run);
        }
        run(Command { op: Op::Erase, die, page: first, collection: true, shared: false });
        self.erases[block as usize] += 1;
        self.tally.collections += 1;
        self.planes[plane as usize].free.push_back(victim);
        moved
    }

    fn invalidate(&mut self, plane: u32, place: u32) {
        self.logical[place as usize] = NONE;
        let block = place / self.geometry.pages;
        self.valid[block as usize] -= 1;
        let state = &mut self.planes[plane as usize];
        let within = block - plane * self.geometry.blocks;
        if within != state.open {
            state.closed.invalidated(within, self.valid[block as usize]);
        }
    }

    /// Program the next page of the open block, which has room.
    fn program(&mut self, plane: u32, page: u32, collection: bool, run: &mut impl FnMut(Command)) {
        let state = &mut self.planes[plane as usize];
        let block = plane * self.geometry.blocks + state.open;
        let place = block * self.geometry.pages + state.next;
        state.next += 1;
        self.physical[page as usize] = place;
        self.logical[place as usize] = page;
        self.valid[block as usize] += 1;
        let die = self.geometry.die_of(plane);
        let shared = !(place + 1).is_multiple_of(self.geometry.stripe);
        run(Command { op: Op::Program, die, page: place, collection, shared });
    }
}
