//! Pointer chases: each load returns the address of the next. One chain measures latency; several
//! measure how many loads a core has in flight.

use std::hint::black_box;
use std::ptr;

use nearfar_trace::{Error, Result};

use crate::mapping::Mapping;
use crate::thread::Stopwatch;

const LINE: usize = 64;

/// Supported numbers of chains.
pub const CHAINS: [usize; 9] = [1, 4, 8, 12, 16, 24, 32, 48, 64];

/// The order of loads. The memory is divided into places of `stride` bytes, and these into windows.
/// Loads visit one window after another, and the places of a window in random order. A window within
/// the reach of the TLB avoids TLB misses.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Bytes per place, a multiple of a line. A random line of each place is loaded.
    pub stride: usize,
    /// Places per window, at least two.
    pub window: usize,
    /// Number of chains, which divide the memory among them.
    pub chains: usize,
}

/// Chains of loads through memory, each a cycle.
#[derive(Debug)]
pub struct Chase {
    /// Contains, at each place, the address of the next.
    memory: Mapping,
    /// The address that each chain loads from next.
    at: Vec<usize>,
    loads: usize,
}

impl Chase {
    /// Create the chains in `memory`.
    ///
    /// # Errors
    /// The stride is not a multiple of a line, a chain or window has fewer than two places, or the number
    /// of chains is not one of [`CHAINS`].
    pub fn new(mut memory: Mapping, layout: Layout) -> Result<Self> {
        let wrong = |what: &str| Error::input("chase", format!("{layout:?}: {what}"), "");
        let Layout { stride, window, chains } = layout;
        if stride < LINE || !stride.is_multiple_of(LINE) {
            return Err(wrong("the stride is not a multiple of 64 bytes"));
        }
        if !CHAINS.contains(&chains) {
            return Err(wrong("this number of chains is not supported"));
        }
        let places = memory.bytes() / stride / chains;
        if places < 2 || window < 2 {
            return Err(wrong("a chain or window has fewer than two places"));
        }
        let lines = stride / LINE;
        // The same line of each page would map to few sets of a cache.
        let word = |place: usize| (place * stride + mix(place as u64) as usize % lines * LINE) / 8;
        let words = memory.words_mut();
        let start = words.as_mut_ptr().expose_provenance();
        let address = |word: usize| start + word * 8;
        let mut at = Vec::with_capacity(chains);
        let mut random = Random(chains as u64 + 1);
        for chain in 0..chains {
            let (from, to) = (chain * places, (chain + 1) * places);
            let mut visits = (from..to).step_by(window).flat_map(|start| {
                let mut order: Vec<usize> = (start..to.min(start + window)).collect();
                random.shuffle(&mut order);
                order.into_iter().map(word)
            });
            let Some(first) = visits.next() else { continue };
            let mut last = first;
            for next in visits {
                words[last] = address(next) as u64;
                last = next;
            }
            words[last] = address(first) as u64;
            at.push(address(first));
        }
        Ok(Self { memory, at, loads: places * chains })
    }

    /// Loads of one pass through all chains.
    pub fn loads(&self) -> usize {
        self.loads
    }

    /// Nanoseconds per load, of `batches` of about `loads` each. Continues where the last call ended.
    pub fn times(&mut self, loads: usize, batches: usize) -> Vec<f64> {
        (0..batches).map(|_| self.time(loads)).collect()
    }

    fn time(&mut self, loads: usize) -> f64 {
        let steps = (loads / self.at.len()).max(1);
        macro_rules! by_chains {
            ($($chains:literal)+) => {
                match self.at.len() {
                    $($chains => step::<$chains>(&self.memory, &mut self.at, steps),)+
                    _ => f64::NAN,
                }
            };
        }
        by_chains!(1 4 8 12 16 24 32 48 64)
    }
}

/// Execute `steps` loads of each of `N` chains through `_memory`. Returns nanoseconds per load.
fn step<const N: usize>(_memory: &Mapping, at: &mut [usize], steps: usize) -> f64 {
    let mut now = [0; N];
    now.copy_from_slice(at);
    let began = Stopwatch::start();
    for _ in 0..steps {
        for address in &mut now {
            // SAFETY: `Chase::new` has written into each place the address of another place, nothing writes
            // to the memory since, and it is borrowed. `now` has addresses, because an index would cost one
            // more processor cycle per load.
            *address = unsafe { *ptr::with_exposed_provenance::<u64>(*address) } as usize;
        }
    }
    let time = began.each(steps * N);
    at.copy_from_slice(&black_box(now));
    time
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Deterministic random numbers.
#[derive(Debug)]
pub(crate) struct Random(pub u64);

impl Random {
    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        (u128::from(mix(self.0)) * u128::from(limit) >> 64) as u64
    }

    pub fn shuffle(&mut self, items: &mut [usize]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::mapping::Pages;

    fn chase(bytes: usize, stride: usize, window: usize, chains: usize) -> Result<Chase> {
        let memory = Mapping::new(bytes, Pages::Small, None).unwrap();
        Chase::new(memory, Layout { stride, window, chains })
    }

    #[test]
    fn a_chain_is_a_cycle_that_visits_its_places_once_by_window() {
        for (stride, window, chains) in [(64, 1 << 20, 1), (64, 16, 4), (4096, 8, 1), (4096, 99, 8)]
        {
            let mut chase = chase(1 << 20, stride, window, chains).unwrap();
            let places = (1 << 20) / stride / chains;
            assert_eq!(chase.loads(), places * chains);
            let began = chase.at.clone();
            let start = chase.memory.words().as_ptr().addr();
            for (chain, first) in began.iter().enumerate() {
                let mut seen = HashSet::new();
                let mut at = *first;
                for visit in 0..places {
                    let place = (at - start) / stride - chain * places;
                    assert_eq!(place / window, visit / window);
                    assert!(seen.insert(place));
                    at = chase.memory.words()[(at - start) / 8] as usize;
                }
                assert_eq!(at, *first);
            }
            let times = chase.times(places * chains, 3);
            assert_eq!(chase.at, began);
            assert!(times.len() == 3 && times.iter().all(|time| *time > 0.0));
        }
    }

    #[test]
    fn pages_are_read_at_different_lines() {
        let chase = chase(1 << 20, 4096, 256, 1).unwrap();
        let lines: HashSet<u64> = chase.memory.words().iter().map(|at| at % 4096 / 64).collect();
        assert!(lines.len() > 32, "{lines:?}");
    }

    #[test]
    fn invalid_layouts_are_refused() {
        for (stride, window, chains) in
            [(0, 8, 1), (65, 8, 1), (1 << 20, 8, 1), (64, 1, 1), (64, 8, 3), (1 << 18, 8, 4)]
        {
            assert!(chase(1 << 20, stride, window, chains).is_err());
        }
    }

    #[test]
    fn random_numbers_stay_below_their_limit() {
        let mut random = Random(1);
        let seen: HashSet<u64> = (0..1000).map(|_| random.below(10)).collect();
        assert_eq!(seen, (0..10).collect());
    }
}
