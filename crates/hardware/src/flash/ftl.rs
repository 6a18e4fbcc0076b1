//! Page-mapped translation: every write goes to a new place, and collection makes places new again.

use std::collections::VecDeque;

use super::Geometry;
use super::victim::{self, Victims};

/// What a flash command does.
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
    /// What is done.
    pub op: Op,
    /// The die that does it.
    pub die: u32,
    /// The physical page; for an erase, the first of the block.
    pub page: u32,
    /// Done for collection, not for the host. A collected page is read, then programmed.
    pub collection: bool,
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
    /// Reads of the array.
    pub fn reads(&self) -> u64 {
        self.host_reads + self.moved
    }

    /// Programs of the array.
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
    /// Erases of the block erased least.
    pub least: u32,
    /// Erases of the block erased most.
    pub most: u32,
    /// Mean over all blocks.
    pub mean: f64,
}

const NONE: u32 = u32::MAX;

struct Plane {
    free: VecDeque<u32>,
    /// The block being filled (numbered within the plane) and its next page.
    open: u32,
    next: u32,
    closed: Box<dyn Victims>,
}

/// The translation layer. One block a plane is open; host writes and collected pages share it.
pub struct Ftl {
    geometry: Geometry,
    /// Physical page of each logical one.
    physical: Vec<u32>,
    /// Logical page of each physical one that is valid.
    logical: Vec<u32>,
    /// Valid pages of each block.
    valid: Vec<u32>,
    erases: Vec<u32>,
    planes: Vec<Plane>,
    mapped: u32,
    tally: Tally,
}

impl Ftl {
    /// A drive fresh from the factory: every block erased, nothing mapped.
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

    /// The array it is for.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Where logical page `page` is, if it was ever written. Panics beyond the user's pages.
    pub fn place(&self, page: u32) -> Option<u32> {
        Some(self.physical[page as usize]).filter(|place| *place != NONE)
    }

    /// Read logical page `page` for the host: its command, or `None` where it was never written.
    /// Panics beyond the user's pages.
    pub fn read(&mut self, page: u32) -> Option<Command> {
        let place = self.place(page)?;
        self.tally.host_reads += 1;
        let die = self.geometry.die_of(self.geometry.plane_of(page));
        Some(Command { op: Op::Read, die, page: place, collection: false })
    }

    /// Write logical page `page`; `run` is handed the commands in order, collection first where the
    /// plane has to make room. Panics beyond the user's pages.
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

    /// Logical pages that have a place.
    pub fn mapped(&self) -> u32 {
        self.mapped
    }

    /// Counts so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Count from zero again, as after preconditioning. Wear stays.
    pub fn reset_tally(&mut self) {
        self.tally = Tally::default();
    }

    /// How often blocks were erased.
    pub fn wear(&self) -> Wear {
        let sum: u64 = self.erases.iter().map(|&n| u64::from(n)).sum();
        Wear {
            least: self.erases.iter().copied().min().unwrap_or(0),
            most: self.erases.iter().copied().max().unwrap_or(0),
            mean: sum as f64 / self.erases.len() as f64,
        }
    }

    /// Free blocks of the plane that has fewest.
    pub fn least_free(&self) -> u32 {
        self.planes.iter().map(|plane| plane.free.len() as u32).min().unwrap_or(0)
    }

    /// Whether collection is due in every plane as soon as its open block is full.
    pub fn collecting(&self) -> bool {
        self.planes.iter().all(|plane| plane.free.len() as u32 <= self.geometry.gc_start)
    }

    /// That the two tables agree, and valid pages are counted right.
    ///
    /// # Panics
    /// Where they do not: a fault of this program, never of its input. It looks at every page.
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

    /// The open block is full: close it, collect where few blocks are free, and open another.
    fn make_room(&mut self, plane: u32, run: &mut impl FnMut(Command)) {
        let few = self.planes[plane as usize].free.len() as u32 <= self.geometry.gc_start;
        self.close(plane);
        if few {
            loop {
                let moved = self.collect(plane, run);
                let free = self.planes[plane as usize].free.len() as u32;
                if moved < self.geometry.pages && free >= self.geometry.gc_stop.unwrap_or(0) {
                    break;
                }
            }
        }
        self.open(plane);
    }

    /// Hand the open block, if it is full, to the victims.
    fn close(&mut self, plane: u32) {
        let state = &mut self.planes[plane as usize];
        if state.open != NONE && state.next == self.geometry.pages {
            let valid = self.valid[(plane * self.geometry.blocks + state.open) as usize];
            state.closed.insert(state.open, valid);
            state.open = NONE;
        }
    }

    /// See that there is an open block with room. One is always free: collection starts with at
    /// least one free block, needs at most one, and gives one back.
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

    /// Move the valid pages of one block and erase it; returns how many they were.
    fn collect(&mut self, plane: u32, run: &mut impl FnMut(Command)) -> u32 {
        let victim = self.planes[plane as usize].closed.take();
        assert!(victim.is_some(), "plane {plane} has nothing to collect");
        let Some(victim) = victim else { return 0 };
        let block = plane * self.geometry.blocks + victim;
        let die = self.geometry.die_of(plane);
        let first = block * self.geometry.pages;
        let moved = self.valid[block as usize];
        for place in first..first + self.geometry.pages {
            let page = self.logical[place as usize];
            if page == NONE {
                continue;
            }
            run(Command { op: Op::Read, die, page: place, collection: true });
            self.logical[place as usize] = NONE;
            self.valid[block as usize] -= 1;
            self.tally.moved += 1;
            self.open(plane);
            self.program(plane, page, true, run);
        }
        run(Command { op: Op::Erase, die, page: first, collection: true });
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
        run(Command { op: Op::Program, die, page: place, collection });
    }
}
