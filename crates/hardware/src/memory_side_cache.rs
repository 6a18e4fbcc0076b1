//! The memory-side cache of Intel's Memory Mode: DRAM in front of larger, slower far memory;
//! direct-mapped by physical address, 64 B lines, write-back, invisible to the kernel. Traffic
//! follows Hildebrand et al., A Case Against Hardware Managed DRAM Caches, ISPASS'21, table 1.

use nearfar_trace::hash::PageMap;

use crate::node::{LINE, PAGE};

const LINES: usize = (PAGE / LINE) as usize;

/// Accesses to the two memories, in lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Reads of DRAM: the tags are next to the data, so that every access reads them first.
    pub dram_reads: u64,
    /// Writes of DRAM: stores and fills.
    pub dram_writes: u64,
    /// Reads of far memory: fills.
    pub far_reads: u64,
    /// Writes of far memory: write-backs.
    pub far_writes: u64,
}

/// Outcome of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The line is in DRAM.
    Hit,
    /// The line is not in DRAM, and the line that it replaces is clean.
    CleanMiss,
    /// The line is not in DRAM, and the line that it replaces must be written back first.
    DirtyMiss,
}

impl Outcome {
    /// Traffic of an access with this outcome.
    pub fn traffic(self, write: bool) -> Traffic {
        let miss = u64::from(self != Outcome::Hit);
        Traffic {
            dram_reads: 1,
            dram_writes: miss + u64::from(write),
            far_reads: miss,
            far_writes: u64::from(self == Outcome::DirtyMiss),
        }
    }
}

/// The lines of a frame, a page of the cache: (tag + 1) x 2 each, plus 1 if dirty; 0 if empty.
type Frame = [u64; LINES];

/// A direct-mapped cache of any number of frames, of a page each. Allocates only touched frames.
pub struct MemorySideCache {
    frames: u64,
    /// Index of each touched frame in `state`.
    index: PageMap<usize>,
    state: Vec<Frame>,
    /// The last frame, and its index in `state`.
    last: Option<(u64, usize)>,
}

impl MemorySideCache {
    /// An empty cache of `bytes`, rounded down to whole pages, at least one.
    pub fn new(bytes: u64) -> Self {
        let frames = (bytes / PAGE).max(1);
        Self { frames, index: PageMap::default(), state: Vec::new(), last: None }
    }

    /// Capacity in lines.
    pub fn lines(&self) -> u64 {
        self.frames * LINES as u64
    }

    /// Load or store the line at physical byte address `address`.
    pub fn access(&mut self, address: u64, write: bool) -> Outcome {
        let page = address / PAGE;
        let (frame, tag) = (page % self.frames, page / self.frames);
        let slot = match self.last {
            Some((last, slot)) if last == frame => slot,
            _ => {
                let next = self.state.len();
                let slot = *self.index.entry(frame).or_insert(next);
                if slot == next {
                    self.state.push([0; LINES]);
                }
                self.last = Some((frame, slot));
                slot
            }
        };
        let line = &mut self.state[slot][(address / LINE) as usize % LINES];
        let entry = (tag + 1) << 1;
        if *line >> 1 == entry >> 1 {
            *line |= u64::from(write);
            return Outcome::Hit;
        }
        let dirty = *line & 1 == 1;
        *line = entry | u64::from(write);
        if dirty { Outcome::DirtyMiss } else { Outcome::CleanMiss }
    }
}

/// Closed forms of the hit rate for a working set of `load` times the cache's size.
///
/// References are uniform or cyclic. The working set is contiguous, or its pages are placed at
/// random: then the number of its lines that share a cache line is binomial, in the limit Poisson
/// with mean `load`.
pub mod closed_form {
    /// Uniform references, contiguous: `load` lines share a cache line.
    pub fn uniform_contiguous(load: f64) -> f64 {
        (1.0 / load).min(1.0)
    }

    /// Uniform references, random pages: the expected share of occupied cache lines divided by
    /// `load`.
    pub fn uniform_shuffled(load: f64) -> f64 {
        (1.0 - (-load).exp()) / load
    }

    /// Cyclic references, contiguous: only cache lines with a single line hit.
    pub fn cyclic_contiguous(load: f64) -> f64 {
        ((2.0 - load) / load).clamp(0.0, 1.0)
    }

    /// Cyclic references, random pages: a line hits if no other shares its cache line.
    pub fn cyclic_shuffled(load: f64) -> f64 {
        (-load).exp()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The reference implementation: an entry (tag, dirty) per line.
    struct Naive {
        tags: Vec<Option<(u64, bool)>>,
    }

    impl Naive {
        fn access(&mut self, address: u64, write: bool) -> Outcome {
            let line = address / LINE;
            let sets = self.tags.len() as u64;
            let entry = &mut self.tags[(line % sets) as usize];
            let tag = line / sets;
            match entry {
                Some((held, dirty)) if *held == tag => {
                    *dirty |= write;
                    Outcome::Hit
                }
                _ => {
                    let dirty = entry.is_some_and(|(_, dirty)| dirty);
                    *entry = Some((tag, write));
                    if dirty { Outcome::DirtyMiss } else { Outcome::CleanMiss }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_reference(
            pages in 1u64..9,
            accesses in prop::collection::vec((0u64..200_000, any::<bool>()), 0..2000),
        ) {
            let mut cache = MemorySideCache::new(pages * PAGE + 17);
            let mut naive = Naive { tags: vec![None; cache.lines() as usize] };
            for (address, write) in accesses {
                prop_assert_eq!(cache.access(address, write), naive.access(address, write));
            }
        }
    }

    #[test]
    fn a_store_that_misses_on_a_dirty_line_costs_five_accesses() {
        let traffic = Outcome::DirtyMiss.traffic(true);
        let sum = |t: Traffic| t.dram_reads + t.dram_writes + t.far_reads + t.far_writes;
        assert_eq!(sum(traffic), 5);
        assert_eq!(sum(Outcome::Hit.traffic(false)), 1);
        assert_eq!(sum(Outcome::CleanMiss.traffic(false)), 3);
    }

    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ mixed >> 27
    }

    /// Steady-state hit rate. `place` maps pages of the working set to physical pages.
    fn measure(pages: u64, cache_pages: u64, place: &[u64], uniform: bool) -> f64 {
        let mut cache = MemorySideCache::new(cache_pages * PAGE);
        let lines = pages * LINES as u64;
        let (mut seed, mut hits, rounds) = (7, 0u64, 6);
        for round in 0..rounds {
            for step in 0..lines {
                let line = if uniform { random(&mut seed) % lines } else { step };
                let page = place[(line / LINES as u64) as usize];
                let address = page * PAGE + line % LINES as u64 * LINE;
                let hit = cache.access(address, false) == Outcome::Hit;
                hits += u64::from(hit && round >= 3);
            }
        }
        hits as f64 / (lines * (rounds - 3)) as f64
    }

    #[test]
    fn measured_hit_rates_agree_with_the_closed_forms() {
        let cache_pages = 10_000u64;
        for load in [0.5, 1.0, 1.5, 3.0] {
            let pages = (cache_pages as f64 * load) as u64;
            let contiguous: Vec<u64> = (0..pages).collect();
            // Drawn without repetition from a memory 64 times the cache.
            let mut shuffled: Vec<u64> = (0..64 * cache_pages).collect();
            let mut seed = 1;
            for index in 0..pages as usize {
                let other = index + (random(&mut seed) % (shuffled.len() - index) as u64) as usize;
                shuffled.swap(index, other);
            }
            for (place, uniform, form) in [
                (&contiguous, true, closed_form::uniform_contiguous(load)),
                (&shuffled, true, closed_form::uniform_shuffled(load)),
                (&contiguous, false, closed_form::cyclic_contiguous(load)),
                (&shuffled, false, closed_form::cyclic_shuffled(load)),
            ] {
                let found = measure(pages, cache_pages, place, uniform);
                assert!((found - form).abs() < 0.02, "{load} {uniform}: {found} for {form}");
            }
        }
    }
}
