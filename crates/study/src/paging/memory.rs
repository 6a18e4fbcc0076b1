//! Many memory sizes at one page size, for policies that run at faults only. References come in windows of
//! at most 64 distinct blocks (pages or parts of pages), which have local numbers ([`View`]).

use nearfar_hardware::table::{grow, prefetch};
use nearfar_kernel::replacement::{AccessBits, Replacement, Setup, Shared};
use rustc_hash::FxHashMap;

use super::engine::{Engine, Outcome, SIZES, View};
use super::window::WRITE;

/// State of a page in up to [`SIZES`] memories, packed into one word: a bit mask of memories each
/// for [`PRESENT`], [`REFERENCED`] and [`DIRTY`], and the flag [`OF_FILE`].
#[derive(Clone, Copy, Debug, Default)]
struct State(u32);

// Positions in [`State`]: of the first memory's bit in each mask, and of the flag.
const PRESENT: usize = 0;
const REFERENCED: usize = SIZES;
const DIRTY: usize = 2 * SIZES;
const OF_FILE: u32 = 30;
const _: () = assert!(3 * SIZES <= OF_FILE as usize);

impl State {
    /// The memories in which `kind` holds.
    #[inline(always)]
    fn memories(self, kind: usize) -> u16 {
        (self.0 >> kind) as u16 & (u16::MAX >> (16 - SIZES))
    }

    #[inline(always)]
    fn set(&mut self, kind: usize, memories: u16) {
        self.0 |= u32::from(memories) << kind;
    }

    #[inline(always)]
    fn clear(&mut self, kind: usize, memories: u16) {
        self.0 &= !(u32::from(memories) << kind);
    }

    #[inline(always)]
    fn is_of_file(self) -> bool {
        self.0 >> OF_FILE & 1 == 1
    }
}

/// Up to [`SIZES`] memories under a fault-driven policy.
///
/// A memory in which every page of a window ([`View`]) is resident cannot fault: its pages are only marked as
/// referenced. The other memories, which are `busy`, replay the window segment by segment; a segment begins
/// with the first reference to a block. Between faults, only pages without the mark (`unmarked`) and clean
/// pages that are written (`clean`) change. A segment is replayed reference by reference only if it
/// references one of these that is not resident.
pub struct Memories<P: Replacement> {
    /// Bit mask of all memories.
    all: u16,
    states: Vec<State>,
    policies: Vec<P>,
    shared: P::Shared,
    outcomes: Vec<Outcome>,
    /// By discarded page: whether it still is discarded, and a bit mask of the memories in which its
    /// next fault is not a swap-in.
    void: FxHashMap<u32, (bool, u16)>,
}

impl<P: Replacement> Memories<P> {
    pub fn new(memories: &[Setup]) -> Self {
        debug_assert!(memories.len() <= SIZES);
        Self {
            all: ((1u32 << memories.len()) - 1) as u16,
            states: Vec::new(),
            policies: memories.iter().map(|&setup| P::new(setup)).collect(),
            shared: P::Shared::default(),
            outcomes: vec![Outcome::default(); memories.len()],
            void: FxHashMap::default(),
        }
    }

    fn state(&mut self, page: u32) -> &mut State {
        if self.states.len() <= page as usize {
            grow(&mut self.states, page as usize + 1, State::default());
        }
        &mut self.states[page as usize]
    }

    /// Count a fault on a page that was discarded.
    #[cold]
    fn fault_on_void(&mut self, page: u32, index: usize) {
        let Some((discarded, memories)) = self.void.get_mut(&page) else { return };
        let bit = 1 << index;
        self.outcomes[index].void_faults += u64::from(*memories & bit != 0);
        if !*discarded {
            *memories &= !bit;
            if *memories == 0 {
                self.void.remove(&page);
            }
        }
    }

    fn replay(&mut self, busy: u16, view: &View<'_>) {
        let mut run = Replay { unmarked: 0, clean: 0, busy, view };
        for &local in view.distinct {
            let state = self.states[view.page(local) as usize];
            let group = view.group[usize::from(local)];
            if state.memories(REFERENCED) & busy != busy {
                run.unmarked |= group;
            }
            if group & view.written != 0 && state.memories(DIRTY) & busy != busy {
                run.clean |= group;
            }
        }
        for j in 0..view.pages.len() {
            let local = j as u8;
            let segment = view.first + j;
            let write = view.chunk.first_written[segment];
            if run.may_change(local, write) {
                self.touch(&mut run, local, write);
            }
            let again = view.chunk.again[segment];
            let written = view.chunk.again_written[segment];
            let pending = again & run.unmarked | written & run.clean;
            if pending == 0 {
                continue;
            }
            let mut resident = busy;
            for local in set_bits(pending) {
                resident &= self.states[view.page(local) as usize].memories(PRESENT);
            }
            if resident == busy {
                for local in set_bits(pending) {
                    self.mark(&mut run, local, written >> local & 1 == 1);
                }
                continue;
            }
            let from = view.chunk.segment[segment] as usize + 1;
            let to = view.chunk.segment[segment + 1] as usize;
            for &byte in &view.chunk.refs[from..to] {
                let (local, write) = (byte & !WRITE, byte & WRITE != 0);
                if run.may_change(local, write) {
                    self.touch(&mut run, local, write);
                }
            }
        }
    }

    /// Apply one reference that may fault.
    fn touch(&mut self, run: &mut Replay<'_, '_>, local: u8, write: bool) {
        let page = run.view.page(local);
        let mut missing = run.busy & !self.states[page as usize].memories(PRESENT);
        let everywhere = missing == run.busy;
        while missing != 0 {
            let index = missing.trailing_zeros() as usize;
            let bit = 1u16 << index;
            missing &= missing - 1;
            self.outcomes[index].faults += 1;
            let of_file = self.states[page as usize].is_of_file();
            self.outcomes[index].file_faults += u64::from(of_file);
            if !self.void.is_empty() {
                self.fault_on_void(page, index);
            }
            let mut bits = Bits { states: &mut self.states, bit, run };
            for victim in self.policies[index].fault(page, &self.shared, &mut bits) {
                let state = &mut self.states[victim as usize];
                let group = run.group_of(victim);
                run.unmarked |= group;
                state.clear(PRESENT, bit);
                state.clear(REFERENCED, bit);
                if state.memories(DIRTY) & bit != 0 {
                    state.clear(DIRTY, bit);
                    self.outcomes[index].dirty_evictions += 1;
                    self.outcomes[index].file_dirty_evictions += u64::from(state.is_of_file());
                    run.clean |= group;
                }
            }
            self.states[page as usize].set(PRESENT, bit);
        }
        // A page's first load misses in all memories; `load` ignores later ones.
        if everywhere {
            self.shared.load(page);
        }
        self.mark(run, local, write);
    }

    fn mark(&mut self, run: &mut Replay<'_, '_>, local: u8, write: bool) {
        let state = &mut self.states[run.view.page(local) as usize];
        let group = run.view.group_of_local(local);
        state.set(REFERENCED, run.busy);
        run.unmarked &= !group;
        if write {
            state.set(DIRTY, run.busy);
            run.clean &= !group;
        }
    }
}

struct Replay<'a, 'v> {
    /// Local numbers of pages whose accessed bit is clear in some busy memory.
    unmarked: u64,
    /// Local numbers of pages written in this window that are clean in some busy memory.
    clean: u64,
    busy: u16,
    view: &'a View<'v>,
}

impl Replay<'_, '_> {
    /// Whether a reference may change the state of a busy memory.
    #[inline]
    fn may_change(&self, local: u8, write: bool) -> bool {
        (self.unmarked | if write { self.clean } else { 0 }) >> local & 1 == 1
    }

    /// Bit mask of the local numbers of `page`; 0 if the window does not touch it.
    #[inline]
    fn group_of(&self, page: u32) -> u64 {
        let local = self.view.local_of[page as usize];
        match self.view.pages.get(usize::from(local)) {
            Some(&known) if known == page => self.view.group[usize::from(local)],
            _ => 0,
        }
    }
}

/// The accessed bits of one memory.
struct Bits<'s, 'r, 'a, 'v> {
    states: &'s mut [State],
    bit: u16,
    run: &'r mut Replay<'a, 'v>,
}

impl AccessBits for Bits<'_, '_, '_, '_> {
    #[inline]
    fn test(&self, page: u32) -> bool {
        self.states[page as usize].memories(REFERENCED) & self.bit != 0
    }

    #[inline]
    fn clear(&mut self, page: u32) {
        self.states[page as usize].clear(REFERENCED, self.bit);
        self.run.unmarked |= self.run.group_of(page);
    }

    #[inline]
    fn prefetch(&self, page: u32) {
        prefetch(self.states, page as usize);
    }
}

impl<P: Replacement> Engine for Memories<P> {
    fn prefetch(&self, page: u32) {
        prefetch(&self.states, page as usize);
    }

    fn window(&mut self, view: &View<'_>) {
        grow(&mut self.states, view.local_of.len(), State::default());
        let (mut present, mut unchanged) = (self.all, self.all);
        for &local in view.distinct {
            let state = self.states[view.page(local) as usize];
            present &= state.memories(PRESENT);
            unchanged &= state.memories(REFERENCED);
            if view.group[usize::from(local)] & view.written != 0 {
                unchanged &= state.memories(DIRTY);
            }
        }
        if unchanged == self.all {
            return;
        }
        if present != 0 {
            for &local in view.distinct {
                let state = &mut self.states[view.page(local) as usize];
                state.set(REFERENCED, present);
                if view.group[usize::from(local)] & view.written != 0 {
                    state.set(DIRTY, present);
                }
            }
        }
        let busy = self.all & !present;
        if busy != 0 {
            self.replay(busy, view);
        }
    }

    fn begin(&mut self, page: u32, number: u64) {
        self.shared.begin(page, number);
    }

    fn begin_file(&mut self, page: u32, executable: bool) {
        self.state(page).0 |= 1 << OF_FILE;
        self.policies.iter_mut().for_each(|policy| policy.begin_file(page, executable));
    }

    fn free(&mut self, page: u32) {
        let present = std::mem::take(self.state(page)).memories(PRESENT);
        self.void.remove(&page);
        for (index, policy) in self.policies.iter_mut().enumerate() {
            policy.release(page, present >> index & 1 == 1);
        }
        self.shared.end(page);
    }

    fn discard(&mut self, page: u32) {
        let all = self.all;
        self.void.insert(page, (true, all));
        let state = self.state(page);
        state.clear(DIRTY, all);
        let mut state = *state;
        let present = state.memories(PRESENT);
        for (index, policy) in self.policies.iter_mut().enumerate() {
            let bit = 1 << index;
            if policy.discard(page, present & bit != 0) {
                state.clear(REFERENCED, bit);
            }
        }
        *self.state(page) = state;
    }

    fn undo_discard(&mut self, page: u32) {
        let present = self.state(page).memories(PRESENT);
        self.policies.iter_mut().for_each(|policy| policy.undo_discard(page));
        if let Some((discarded, memories)) = self.void.get_mut(&page) {
            *discarded = false;
            *memories &= !present;
            if *memories == 0 {
                self.void.remove(&page);
            }
        }
    }

    fn outcomes(&self) -> Vec<Outcome> {
        self.outcomes.clone()
    }
}

fn set_bits(mut mask: u64) -> impl Iterator<Item = u8> {
    std::iter::from_fn(move || {
        (mask != 0).then(|| {
            let bit = mask.trailing_zeros() as u8;
            mask &= mask - 1;
            bit
        })
    })
}
