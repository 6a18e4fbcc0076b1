//! CLOCK that loads pages with a clear accessed bit, reference by reference.
//!
//! A second reference right after a fault matters here, so windows are not exact, and the windower
//! must keep repeats. (A record that crosses a border of small pages is one reference at larger
//! page sizes.) Slower, and not the default: hardware sets the bit when it retries the access.

use nearfar_kernel::replacement::clock::Clock;
use nearfar_kernel::replacement::{AccessBits, Replacement, Setup};
use rustc_hash::FxHashSet;

use super::engine::{Engine, NO_PAGE, Outcome, SIZES, View};
use super::window::{LOCAL, SAME_RECORD, WRITE};

#[derive(Clone, Copy, Default)]
struct State {
    present: u16,
    referenced: u16,
    dirty: u16,
    /// The next fault is not a swap-in.
    void: u16,
    of_file: bool,
}

/// Memories of one page size.
pub struct Direct {
    all: u16,
    states: Vec<State>,
    clocks: Vec<Clock>,
    outcomes: Vec<Outcome>,
    /// The page of the previous reference.
    previous: u32,
    /// Discarded pages.
    discarded: FxHashSet<u32>,
}

impl Direct {
    /// At most [`SIZES`] empty memories.
    pub fn new(memories: &[Setup]) -> Self {
        debug_assert!(memories.len() <= SIZES);
        Self {
            all: ((1u32 << memories.len()) - 1) as u16,
            states: Vec::new(),
            clocks: memories.iter().map(|&setup| Clock::new(setup)).collect(),
            outcomes: vec![Outcome::default(); memories.len()],
            previous: NO_PAGE,
            discarded: FxHashSet::default(),
        }
    }

    fn state(&mut self, page: u32) -> &mut State {
        if self.states.len() <= page as usize {
            self.states.resize(page as usize + 1, State::default());
        }
        &mut self.states[page as usize]
    }

    fn reference(&mut self, page: u32, write: bool) {
        let all = self.all;
        let state = self.state(page);
        let State { void, of_file, .. } = *state;
        let mut missing = all & !state.present;
        state.referenced |= all & state.present;
        state.present = all;
        if write {
            state.dirty = all;
        }
        if void & missing != 0 && !self.discarded.contains(&page) {
            self.states[page as usize].void &= !missing;
        }
        while missing != 0 {
            let index = missing.trailing_zeros() as usize;
            let bit = 1u16 << index;
            missing &= missing - 1;
            let outcome = &mut self.outcomes[index];
            outcome.faults += 1;
            outcome.file_faults += u64::from(of_file);
            outcome.void_faults += u64::from(void & bit != 0);
            let mut bits = Bits { states: &mut self.states, bit };
            if let Some(victim) = self.clocks[index].fault(page, &(), &mut bits) {
                let victim = &mut self.states[victim as usize];
                victim.present &= !bit;
                let dirty = u64::from(victim.dirty & bit != 0);
                self.outcomes[index].dirty_evictions += dirty;
                self.outcomes[index].file_dirty_evictions += dirty & u64::from(victim.of_file);
                victim.dirty &= !bit;
            }
        }
    }
}

impl Engine for Direct {
    fn window(&mut self, view: &View<'_>) {
        for &byte in view.refs() {
            let page = view.page(byte & LOCAL);
            let is_counted = byte & SAME_RECORD != 0 && page == self.previous;
            self.previous = page;
            if page != NO_PAGE && !is_counted {
                self.reference(page, byte & WRITE != 0);
            }
        }
    }

    fn begin_file(&mut self, page: u32, _executable: bool) {
        self.state(page).of_file = true;
    }

    fn free(&mut self, page: u32) {
        let present = std::mem::take(self.state(page)).present;
        self.discarded.remove(&page);
        for (index, clock) in self.clocks.iter_mut().enumerate() {
            clock.release(page, present >> index & 1 == 1);
        }
    }

    fn discard(&mut self, page: u32) {
        let all = self.all;
        let state = self.state(page);
        (state.dirty, state.void) = (0, all);
        self.discarded.insert(page);
    }

    fn undo_discard(&mut self, page: u32) {
        let state = self.state(page);
        state.void &= !state.present;
        self.discarded.remove(&page);
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
