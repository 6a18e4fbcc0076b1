//! CLOCK that loads pages with the accessed bit clear, reference by reference.
//!
//! Here a second reference to a page right after its fault matters, so neither windows nor dropping
//! repeats is exact (and a record that lies over a border of small pages is one reference at large
//! ones). Slower than the windows, and not the default: hardware sets the bit on the retry.

use nearfar_kernel::replacement::clock::Clock;
use nearfar_kernel::replacement::{AccessBits, Replacement};
use nearfar_trace::hash::PageMap;
use nearfar_trace::{Batch, KindSet, last_byte};

use super::engine::{Engine, Outcome, SIZES, View};

#[derive(Clone, Copy, Default)]
struct State {
    present: u16,
    referenced: u16,
    dirty: u16,
}

/// Memories of one page size, at most [`SIZES`] of them.
pub struct Direct {
    shift: u32,
    kinds: KindSet,
    all: u16,
    ids: PageMap<u32>,
    states: Vec<State>,
    clocks: Vec<Clock>,
    outcomes: Vec<Outcome>,
}

impl Direct {
    /// Memories of `frames` frames of `page_bytes` (a power of two) each.
    pub fn new(frames: &[u64], page_bytes: u64, kinds: KindSet) -> Self {
        debug_assert!(frames.len() <= SIZES);
        Self {
            shift: page_bytes.trailing_zeros(),
            kinds,
            all: ((1u32 << frames.len()) - 1) as u16,
            ids: PageMap::default(),
            states: Vec::new(),
            clocks: frames.iter().map(|&frames| Clock::new(frames, page_bytes)).collect(),
            outcomes: vec![Outcome::default(); frames.len()],
        }
    }

    fn reference(&mut self, number: u64, write: bool) {
        let next = self.states.len() as u32;
        let page = *self.ids.entry(number).or_insert(next);
        if page == next {
            self.states.push(State::default());
        }
        let state = &mut self.states[page as usize];
        let mut missing = self.all & !state.present;
        state.referenced |= self.all & state.present;
        state.present = self.all;
        if write {
            state.dirty = self.all;
        }
        while missing != 0 {
            let index = missing.trailing_zeros() as usize;
            let bit = 1u16 << index;
            missing &= missing - 1;
            self.outcomes[index].faults += 1;
            let mut bits = Bits { states: &mut self.states, bit };
            if let Some(victim) = self.clocks[index].fault(page, &mut bits) {
                let victim = &mut self.states[victim as usize];
                victim.present &= !bit;
                self.outcomes[index].dirty_evictions += u64::from(victim.dirty & bit != 0);
                victim.dirty &= !bit;
            }
        }
    }
}

impl Engine for Direct {
    fn window(&mut self, _view: &View<'_>) {}

    fn records(&mut self, batch: &Batch) {
        for ((&addr, &kind), &size) in batch.addr.iter().zip(&batch.kind).zip(&batch.size) {
            if self.kinds.0 >> kind & 1 == 1 {
                let last = last_byte(addr, size);
                for number in addr >> self.shift..=last >> self.shift {
                    self.reference(number, KindSet::WRITES.0 >> kind & 1 == 1);
                }
            }
        }
    }

    fn outcomes(&self) -> Vec<Outcome> {
        self.outcomes.clone()
    }
}

struct Bits<'a> {
    states: &'a mut [State],
    bit: u16,
}

impl AccessBits for Bits<'_> {
    fn test(&self, page: u32) -> bool {
        self.states[page as usize].referenced & self.bit != 0
    }

    fn clear(&mut self, page: u32) {
        self.states[page as usize].referenced &= !self.bit;
    }
}
