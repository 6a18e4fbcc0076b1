//! Replays the [`Log`] of a page size in naive memories and in a naive TLB.

use super::*;
use crate::paging::FaultKinds;

#[derive(Debug, Default, PartialEq)]
pub struct Counts {
    pub faults: u64,
    pub dirty: u64,
    pub kinds: FaultKinds,
}

pub trait PlainMemory {
    /// The next reference to a frame is its first.
    fn begin(&mut self, _frame: u64, _of: &PlainFrame) {}
    fn has(&self, frame: u64) -> bool;
    /// Reference a frame. Returns the frames that are evicted for it; `None`: it was in memory.
    fn reference(&mut self, frame: u64) -> Option<Vec<u64>>;
    fn free(&mut self, frame: u64);
    fn discard(&mut self, _frame: u64) {}
    /// A discarded frame is in use again.
    fn keep(&mut self, _frame: u64) {}
}

pub struct PlainClock {
    places: Vec<Option<(u64, bool)>>,
    free: Vec<usize>,
    hand: usize,
}

impl PlainClock {
    pub fn new(frames: usize) -> Self {
        Self { places: vec![None; frames], free: (0..frames).rev().collect(), hand: 0 }
    }
}

impl PlainMemory for PlainClock {
    fn has(&self, frame: u64) -> bool {
        self.places.iter().flatten().any(|place| place.0 == frame)
    }

    fn reference(&mut self, frame: u64) -> Option<Vec<u64>> {
        if let Some(place) = self.places.iter_mut().flatten().find(|place| place.0 == frame) {
            place.1 = true;
            return None;
        }
        let new = Some((frame, true));
        if let Some(free) = self.free.pop() {
            self.places[free] = new;
            return Some(Vec::new());
        }
        loop {
            let hand = self.hand;
            self.hand = (hand + 1) % self.places.len();
            let (held, marked) = self.places[hand].as_mut().unwrap();
            if !std::mem::take(marked) {
                let held = *held;
                self.places[hand] = new;
                return Some(vec![held]);
            }
        }
    }

    fn free(&mut self, frame: u64) {
        let held = |place: &Option<(u64, bool)>| place.is_some_and(|place| place.0 == frame);
        if let Some(place) = self.places.iter().position(held) {
            self.places[place] = None;
            self.free.push(place);
        }
    }
}

/// Frames by last reference, oldest first, and the maximum number of frames.
pub struct PlainLru(pub Vec<u64>, pub usize);

impl PlainMemory for PlainLru {
    fn has(&self, frame: u64) -> bool {
        self.0.contains(&frame)
    }

    fn reference(&mut self, frame: u64) -> Option<Vec<u64>> {
        let place = self.0.iter().position(|held| *held == frame);
        place.map(|place| self.0.remove(place));
        let full = self.0.len() == self.1;
        let victims = if full { vec![self.0.remove(0)] } else { Vec::new() };
        self.0.push(frame);
        place.is_none().then_some(victims)
    }

    fn free(&mut self, frame: u64) {
        self.0.retain(|held| *held != frame);
    }
}

pub fn replay(world: &World, memory: &mut dyn PlainMemory) -> Counts {
    let mut counts = Counts::default();
    let mut dirty = vec![false; world.frames.len()];
    let mut seen = vec![false; world.frames.len()];
    // By frame: whether its content is discarded, so that a fault is not a swap-in; and whether the next
    // reference ends this state.
    let mut void = vec![(false, false); world.frames.len()];
    for log in &world.log {
        match *log {
            Log::Access { frame, write, .. } => {
                let Some(frame) = frame else { continue };
                let id = frame as u64;
                let of_file = world.frames[frame].of_file;
                let first = !std::mem::replace(&mut seen[frame], true);
                if first {
                    memory.begin(id, &world.frames[frame]);
                }
                if let Some(victims) = memory.reference(id) {
                    counts.faults += 1;
                    *match (of_file, first, void[frame].0) {
                        (true, true, _) => &mut counts.kinds.file_reads,
                        (true, false, _) => &mut counts.kinds.file_rereads,
                        (false, false, false) => &mut counts.kinds.swap_ins,
                        (false, ..) => &mut counts.kinds.zero_fills,
                    } += 1;
                    for victim in victims.into_iter().map(|victim| victim as usize) {
                        if std::mem::take(&mut dirty[victim]) {
                            counts.dirty += 1;
                            *match world.frames[victim].of_file {
                                true => &mut counts.kinds.write_backs,
                                false => &mut counts.kinds.swap_outs,
                            } += 1;
                        }
                    }
                }
                dirty[frame] |= write;
                if void[frame].1 {
                    void[frame] = (false, false);
                }
            }
            Log::Free(frame) => {
                memory.free(frame as u64);
                dirty[frame] = false;
            }
            Log::Discard(frame) => {
                memory.discard(frame as u64);
                dirty[frame] = false;
                void[frame] = (true, false);
            }
            Log::Keep(frame) => {
                memory.keep(frame as u64);
                void[frame] =
                    if memory.has(frame as u64) { (false, false) } else { (void[frame].0, true) };
            }
            Log::Shootdown(_) => {}
        }
    }
    counts
}

/// The references that miss in a TLB level, and the shootdowns, for the next level.
pub fn tlb_misses(log: &[Log], entries: usize, sets: u64) -> Vec<Log> {
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
