//! Many memory sizes at one page size, window by window, for policies that see faults only.

use std::cell::Cell;
use std::ops::Range;

use nearfar_hardware::table::{grow, prefetch};
use nearfar_kernel::replacement::{AccessBits, Replacement, Setup, Shared};
use rustc_hash::FxHashMap;

use super::engine::{Engine, NO_PAGE, Outcome, SIZES, Thresholds, View};
use super::window::MAX_BLOCKS;

/// A page in up to [`SIZES`] memories, a bit for each: whether it is [`PRESENT`] there, [`REFERENCED`] and
/// [`DIRTY`], and then [`OF_FILE`] and [`HERE`]. One word: of many pages as few cache lines as may be.
#[derive(Clone, Copy, Debug, Default)]
struct State(u32);

/// Place of the first memory's bit.
const PRESENT: usize = 0;
const REFERENCED: usize = SIZES;
const DIRTY: usize = 2 * SIZES;
/// The page is one of a file.
const OF_FILE: u32 = 30;
/// The page is referenced in the stretch at hand.
const HERE: u32 = 31;
const _: () = assert!(3 * SIZES <= OF_FILE as usize);

impl State {
    /// The memories that have it so.
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
    fn is(self, what: u32) -> bool {
        self.0 >> what & 1 == 1
    }
}

/// Up to [`SIZES`] memories under a fault-driven policy.
///
/// A window in which some memory has every page resident cannot fault there: its pages are marked
/// and that is all. The other memories replay the window segment by segment. Between faults only
/// pages that lack a mark matter (`attention`), and pages that are clean and written (`clean`);
/// the single references of a segment are walked only if one of those pages is not resident.
///
/// Large memories first try each stretch of the window with all its faults at once ([`Self::stretch`]),
/// which is right where the policy looks at no page of the stretch itself.
pub struct Memories<P: Replacement> {
    thresholds: Thresholds,
    all: u16,
    /// Large ones, under a policy that takes many faults at once.
    large: u16,
    states: Vec<State>,
    policies: Vec<P>,
    shared: P::Shared,
    outcomes: Vec<Outcome>,
    /// Of pages that were discarded: whether they still are, and the memories in which a fault finds
    /// nothing that was swapped out.
    void: FxHashMap<u32, (bool, u16)>,
    /// Some page is one of a file.
    files: bool,
    /// What a stretch evicts from one memory.
    evicted: Vec<u32>,
}

impl<P: Replacement> Memories<P> {
    /// These memories (at most [`SIZES`]).
    pub fn new(memories: &[Setup], thresholds: Thresholds) -> Self {
        debug_assert!(memories.len() <= SIZES);
        Self {
            all: ((1u32 << memories.len()) - 1) as u16,
            large: memories.iter().zip(0..).fold(0, |large, (setup, index)| {
                large | u16::from(P::BATCHES && setup.frames >= thresholds.batch_frames) << index
            }),
            thresholds,
            evicted: Vec::new(),
            states: Vec::new(),
            policies: memories.iter().map(|&setup| P::new(setup)).collect(),
            shared: P::Shared::default(),
            outcomes: vec![Outcome::default(); memories.len()],
            void: FxHashMap::default(),
            files: false,
        }
    }

    fn state(&mut self, page: u32) -> &mut State {
        if self.states.len() <= page as usize {
            grow(&mut self.states, page as usize + 1, State::default());
        }
        &mut self.states[page as usize]
    }

    /// A fault on a page that was discarded.
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

    /// Apply the segments in `range` to the memories of `busy`, each of which takes its faults at once;
    /// answers those that could not, for which nothing has changed.
    fn stretch(&mut self, busy: u16, view: &View<'_>, range: Range<usize>) -> u16 {
        let (mut again, mut written, mut slow) = (0, 0, 0u16);
        let mut locals = [0u8; MAX_BLOCKS];
        let mut missing = [0u16; MAX_BLOCKS];
        let mut count = 0;
        for local in range.clone() {
            let segment = view.first + local;
            again |= view.chunk.again[segment];
            written |= view.chunk.again_written[segment]
                | u64::from(view.chunk.first_written[segment]) << local;
            let page = view.pages[local];
            if page == NO_PAGE {
                continue;
            }
            let state = &mut self.states[page as usize];
            (locals[count], missing[count]) = (local as u8, busy & !state.memories(PRESENT));
            count += usize::from(!state.is(HERE));
            state.0 |= 1 << HERE;
        }
        // Where an earlier stretch evicted a page that is referenced again in the midst of a segment, faults
        // are not in the order of first references.
        for local in ones(again & !(u64::MAX << range.start)) {
            let page = view.page(local);
            if page == NO_PAGE {
                continue;
            }
            let state = &mut self.states[page as usize];
            slow |= busy & !state.memories(PRESENT);
            if !state.is(HERE) {
                state.0 |= 1 << HERE;
                (locals[count], missing[count]) = (local, 0);
                count += 1;
            }
        }
        let (locals, missing) = (&locals[..count], &missing[..count]);
        for index in ones(u64::from(busy & !slow)) {
            let mut pages = [0; MAX_BLOCKS];
            let mut faults = 0;
            for (&local, &missing) in locals.iter().zip(missing) {
                pages[faults] = view.page(local);
                faults += usize::from(missing >> index & 1);
            }
            if faults > 0 && !self.fault_many(usize::from(index), &pages[..faults]) {
                slow |= 1 << index;
            }
        }
        let done = busy & !slow;
        for &local in locals {
            let state = &mut self.states[view.page(local) as usize];
            state.0 &= !(1 << HERE);
            state.set(PRESENT, done);
            state.set(REFERENCED, done);
            if view.group_of_local(local) & written != 0 {
                state.set(DIRTY, done);
            }
        }
        slow
    }

    /// Let memory `index` fault on `pages`, unless it must do so one by one.
    fn fault_many(&mut self, index: usize, pages: &[u32]) -> bool {
        let Self { states, outcomes, evicted, .. } = self;
        let bit = 1u16 << index;
        evicted.clear();
        let mut bits = Looked { states, bit, seen: Cell::new(0) };
        if !self.policies[index].fault_many(pages, &mut bits, evicted) {
            return false;
        }
        let outcome = &mut outcomes[index];
        outcome.faults += pages.len() as u64;
        if self.files {
            let of_file = |page: &u32| u64::from(states[*page as usize].is(OF_FILE));
            outcome.file_faults += pages.iter().map(of_file).sum::<u64>();
        }
        for &victim in &*evicted {
            let state = &mut states[victim as usize];
            let dirty = u64::from(state.memories(DIRTY) >> index & 1);
            outcome.dirty_evictions += dirty;
            outcome.file_dirty_evictions += dirty & u64::from(state.is(OF_FILE));
            state.clear(PRESENT, bit);
            state.clear(DIRTY, bit);
        }
        true
    }

    /// Apply the segments in `range` to the memories of `busy`.
    fn replay(&mut self, busy: u16, view: &View<'_>, range: Range<usize>) {
        let mut run = Replay { attention: 0, clean: 0, busy, view };
        for &local in view.distinct {
            let state = self.states[view.page(local) as usize];
            let group = view.group[usize::from(local)];
            if state.memories(REFERENCED) & busy != busy {
                run.attention |= group;
            }
            if group & view.written != 0 && state.memories(DIRTY) & busy != busy {
                run.clean |= group;
            }
        }
        for j in range {
            let local = j as u8;
            let segment = view.first + j;
            let write = view.chunk.first_written[segment];
            if run.wants(local, write) {
                self.touch(&mut run, local, write);
            }
            let again = view.chunk.again[segment];
            let written = view.chunk.again_written[segment];
            let open = again & run.attention | written & run.clean;
            if open == 0 {
                continue;
            }
            let mut resident = busy;
            for local in ones(open) {
                resident &= self.states[view.page(local) as usize].memories(PRESENT);
            }
            if resident == busy {
                for local in ones(open) {
                    self.mark(&mut run, local, written >> local & 1 == 1);
                }
                continue;
            }
            let from = view.chunk.segment[segment] as usize + 1;
            let to = view.chunk.segment[segment + 1] as usize;
            for &byte in &view.chunk.refs[from..to] {
                let (local, write) = (byte & !super::window::WRITE, byte >> 7 == 1);
                if run.wants(local, write) {
                    self.touch(&mut run, local, write);
                }
            }
        }
    }

    /// One reference that may fault.
    fn touch(&mut self, run: &mut Replay<'_, '_>, local: u8, write: bool) {
        let page = run.view.page(local);
        let mut missing = run.busy & !self.states[page as usize].memories(PRESENT);
        let everywhere = missing == run.busy;
        while missing != 0 {
            let index = missing.trailing_zeros() as usize;
            let bit = 1u16 << index;
            missing &= missing - 1;
            self.outcomes[index].faults += 1;
            let of_file = self.states[page as usize].is(OF_FILE);
            self.outcomes[index].file_faults += u64::from(of_file);
            if !self.void.is_empty() {
                self.fault_on_void(page, index);
            }
            let mut bits = Bits { states: &mut self.states, bit, run };
            for victim in self.policies[index].fault(page, &self.shared, &mut bits) {
                let state = &mut self.states[victim as usize];
                let group = run.group_of(victim);
                run.attention |= group;
                state.clear(PRESENT, bit);
                state.clear(REFERENCED, bit);
                if state.memories(DIRTY) & bit != 0 {
                    state.clear(DIRTY, bit);
                    self.outcomes[index].dirty_evictions += 1;
                    self.outcomes[index].file_dirty_evictions += u64::from(state.is(OF_FILE));
                    run.clean |= group;
                }
            }
            self.states[page as usize].set(PRESENT, bit);
        }
        if everywhere {
            self.shared.load(page);
        }
        self.mark(run, local, write);
    }

    fn mark(&mut self, run: &mut Replay<'_, '_>, local: u8, write: bool) {
        let state = &mut self.states[run.view.page(local) as usize];
        let group = run.view.group_of_local(local);
        state.set(REFERENCED, run.busy);
        run.attention &= !group;
        if write {
            state.set(DIRTY, run.busy);
            run.clean &= !group;
        }
    }
}

/// The state of one window's replay.
struct Replay<'a, 'v> {
    /// Local numbers of pages that lack the mark in some busy memory.
    attention: u64,
    /// Local numbers of pages written in this window that are clean in some busy memory.
    clean: u64,
    busy: u16,
    view: &'a View<'v>,
}

impl Replay<'_, '_> {
    #[inline]
    fn wants(&self, local: u8, write: bool) -> bool {
        (self.attention | if write { self.clean } else { 0 }) >> local & 1 == 1
    }

    /// Local numbers of `page`, none when this window does not touch it.
    #[inline]
    fn group_of(&self, page: u32) -> u64 {
        let local = self.view.local_of[page as usize];
        match self.view.pages.get(usize::from(local)) {
            Some(&known) if known == page => self.view.group[usize::from(local)],
            _ => 0,
        }
    }
}

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
        self.run.attention |= self.run.group_of(page);
    }

    #[inline]
    fn expect(&self, page: u32) {
        prefetch(self.states, page as usize);
    }
}

/// Bits that are looked at for many faults at once.
struct Looked<'s> {
    states: &'s mut [State],
    bit: u16,
    /// What is so of any page looked at.
    seen: Cell<u32>,
}

impl AccessBits for Looked<'_> {
    #[inline]
    fn test(&self, page: u32) -> bool {
        let state = self.states[page as usize];
        self.seen.set(self.seen.get() | state.0);
        state.memories(REFERENCED) & self.bit != 0
    }

    #[inline]
    fn clear(&mut self, page: u32) {
        self.states[page as usize].clear(REFERENCED, self.bit);
    }

    #[inline]
    fn expect(&self, page: u32) {
        prefetch(self.states, page as usize);
    }

    #[inline]
    fn doubtful(&self) -> bool {
        State(self.seen.get()).is(HERE)
    }
}

impl<P: Replacement> Engine for Memories<P> {
    fn expect(&self, page: u32) {
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
        if P::EXPECTS && self.states.len() >= self.thresholds.prefetch_policy_pages {
            for &local in view.distinct {
                let page = view.page(local);
                let missing = busy & !self.states[page as usize].memories(PRESENT);
                ones(u64::from(missing))
                    .for_each(|index| self.policies[usize::from(index)].expect(page));
            }
        }
        let large = if !self.void.is_empty() { 0 } else { busy & self.large };
        let (small, whole) = (busy & !large, view.pages.len());
        if small != 0 {
            self.replay(small, view, 0..whole);
        }
        if large != 0 {
            let Thresholds { window_batch_pages, batch_blocks, .. } = self.thresholds;
            let most =
                if self.states.len() >= window_batch_pages { MAX_BLOCKS } else { batch_blocks };
            for start in (0..whole).step_by(most) {
                let range = start..whole.min(start + most);
                let slow = self.stretch(large, view, range.clone());
                if slow != 0 {
                    self.replay(slow, view, range);
                }
            }
        }
    }

    fn begin(&mut self, page: u32, number: u64) {
        self.shared.begin(page, number);
    }

    fn begin_file(&mut self, page: u32, executable: bool) {
        self.state(page).0 |= 1 << OF_FILE;
        self.files = true;
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

    fn keep(&mut self, page: u32) {
        let present = self.state(page).memories(PRESENT);
        self.policies.iter_mut().for_each(|policy| policy.keep(page));
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

/// Positions of the ones of `mask`, lowest first.
fn ones(mut mask: u64) -> impl Iterator<Item = u8> {
    std::iter::from_fn(move || {
        (mask != 0).then(|| {
            let place = mask.trailing_zeros() as u8;
            mask &= mask - 1;
            place
        })
    })
}
