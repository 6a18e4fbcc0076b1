//! What a page size's log comes to in memories and in a TLB: lists and loops.

use super::*;
use crate::paging::FaultKinds;
use crate::paging::tests::linux::PlainLinux;
use crate::paging::tests::mglru::PlainMglru;

/// What memories of one page size come to: faults, dirty evictions and kinds.
#[derive(Debug, Default, PartialEq)]
pub struct Came {
    pub faults: u64,
    pub dirty: u64,
    pub kinds: FaultKinds,
}

/// A memory under a policy.
pub trait PlainMemory {
    /// The first reference to a frame comes next.
    fn begin(&mut self, _frame: usize, _of: &PlainFrame) {}
    fn has(&self, frame: usize) -> bool;
    /// Reference a frame; answers those that are evicted for it.
    fn reference(&mut self, frame: usize) -> Vec<usize>;
    fn free(&mut self, frame: usize);
    fn discard(&mut self, _frame: usize) {}
    fn keep(&mut self, _frame: usize) {}
}

pub struct Ring {
    places: Vec<Option<(usize, bool)>>,
    free: Vec<usize>,
    hand: usize,
}

impl Ring {
    pub fn new(frames: usize) -> Self {
        Self { places: vec![None; frames], free: (0..frames).rev().collect(), hand: 0 }
    }
}

impl PlainMemory for Ring {
    fn has(&self, frame: usize) -> bool {
        self.places.iter().flatten().any(|place| place.0 == frame)
    }

    fn reference(&mut self, frame: usize) -> Vec<usize> {
        if let Some(place) = self.places.iter_mut().flatten().find(|place| place.0 == frame) {
            place.1 = true;
            return Vec::new();
        }
        let new = Some((frame, true));
        if let Some(free) = self.free.pop() {
            self.places[free] = new;
            return Vec::new();
        }
        loop {
            let hand = self.hand;
            self.hand = (hand + 1) % self.places.len();
            let (held, marked) = self.places[hand].as_mut().unwrap();
            if !std::mem::take(marked) {
                let held = *held;
                self.places[hand] = new;
                return vec![held];
            }
        }
    }

    fn free(&mut self, frame: usize) {
        let held = |place: &Option<(usize, bool)>| place.is_some_and(|place| place.0 == frame);
        if let Some(place) = self.places.iter().position(held) {
            self.places[place] = None;
            self.free.push(place);
        }
    }
}

pub struct Recency(pub Vec<usize>, pub usize);

impl PlainMemory for Recency {
    fn has(&self, frame: usize) -> bool {
        self.0.contains(&frame)
    }

    fn reference(&mut self, frame: usize) -> Vec<usize> {
        self.0.retain(|held| *held != frame);
        self.0.push(frame);
        if self.0.len() > self.1 { vec![self.0.remove(0)] } else { Vec::new() }
    }

    fn free(&mut self, frame: usize) {
        self.0.retain(|held| *held != frame);
    }
}

impl PlainMemory for PlainLinux {
    fn begin(&mut self, frame: usize, of: &PlainFrame) {
        let page = self.pages.entry(frame as u64).or_default();
        (page.of_file, page.executable) = (of.of_file, of.executable);
    }

    fn has(&self, frame: usize) -> bool {
        PlainLinux::has(self, frame as u64)
    }

    fn reference(&mut self, frame: usize) -> Vec<usize> {
        PlainLinux::reference(self, frame as u64, false);
        self.evicted.iter().map(|page| *page as usize).collect()
    }

    fn free(&mut self, frame: usize) {
        PlainLinux::free(self, frame as u64);
    }

    fn discard(&mut self, frame: usize) {
        PlainLinux::discard(self, frame as u64);
    }

    fn keep(&mut self, frame: usize) {
        PlainLinux::keep(self, frame as u64);
    }
}

impl PlainMemory for PlainMglru {
    fn begin(&mut self, frame: usize, of: &PlainFrame) {
        let page = self.pages.entry(frame as u64).or_default();
        (page.of_file, page.place) = (of.of_file, of.place);
    }

    fn has(&self, frame: usize) -> bool {
        PlainMglru::has(self, frame as u64)
    }

    fn reference(&mut self, frame: usize) -> Vec<usize> {
        PlainMglru::reference(self, frame as u64, false);
        self.evicted.iter().map(|page| *page as usize).collect()
    }

    fn free(&mut self, frame: usize) {
        PlainMglru::free(self, frame as u64);
    }

    fn discard(&mut self, frame: usize) {
        PlainMglru::discard(self, frame as u64);
    }

    fn keep(&mut self, frame: usize) {
        PlainMglru::keep(self, frame as u64);
    }
}

/// What a memory comes to.
pub fn replay(world: &World, memory: &mut dyn PlainMemory) -> Came {
    let mut came = Came::default();
    let mut dirty = vec![false; world.frames.len()];
    let mut seen = vec![false; world.frames.len()];
    // Whether a fault finds nothing; and whether the next reference ends that.
    let mut void = vec![(false, false); world.frames.len()];
    for log in &world.log {
        match *log {
            Log::Access { frame, write, .. } => {
                let Some(frame) = frame else { continue };
                let of_file = world.frames[frame].of_file;
                let first = !std::mem::replace(&mut seen[frame], true);
                if first {
                    memory.begin(frame, &world.frames[frame]);
                }
                if !memory.has(frame) {
                    came.faults += 1;
                    *match (of_file, first, void[frame].0) {
                        (true, true, _) => &mut came.kinds.file_reads,
                        (true, false, _) => &mut came.kinds.file_rereads,
                        (false, false, false) => &mut came.kinds.swap_ins,
                        (false, ..) => &mut came.kinds.zero_fills,
                    } += 1;
                }
                for victim in memory.reference(frame) {
                    if std::mem::take(&mut dirty[victim]) {
                        came.dirty += 1;
                        *match world.frames[victim].of_file {
                            true => &mut came.kinds.write_backs,
                            false => &mut came.kinds.swap_outs,
                        } += 1;
                    }
                }
                dirty[frame] |= write;
                if void[frame].1 {
                    void[frame] = (false, false);
                }
            }
            Log::Free(frame) => {
                memory.free(frame);
                dirty[frame] = false;
            }
            Log::Discard(frame) => {
                memory.discard(frame);
                dirty[frame] = false;
                void[frame] = (true, false);
            }
            Log::Keep(frame) => {
                memory.keep(frame);
                void[frame] =
                    if memory.has(frame) { (false, false) } else { (void[frame].0, true) };
            }
            Log::Shootdown(_) => {}
        }
    }
    came
}

/// Misses of a TLB, and which references they were.
pub fn walk(log: &[Log], entries: usize, sets: u64) -> Vec<Log> {
    let mut lists = vec![Vec::<u64>::new(); sets as usize];
    let mut missed = Vec::new();
    for step in log {
        let (page, access) = match *step {
            Log::Access { page, .. } => (page, true),
            Log::Shootdown(page) => (page, false),
            _ => continue,
        };
        let list = &mut lists[(page % sets) as usize];
        let place = list.iter().position(|held| *held == page);
        place.map(|place| list.remove(place));
        if access {
            if place.is_none() {
                missed.push(*step);
                if list.len() == entries / sets as usize {
                    list.remove(0);
                }
            }
            list.push(page);
        } else {
            missed.push(*step);
        }
    }
    missed
}
