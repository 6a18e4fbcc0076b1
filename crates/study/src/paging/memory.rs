//! Many memory sizes at one page size, window by window, for policies that see faults only.

use nearfar_hardware::table::{grow, prefetch};
use nearfar_kernel::replacement::{AccessBits, Replacement, Setup};
use rustc_hash::FxHashMap;

use super::engine::{Engine, Outcome, SIZES, View};

/// A page in up to 16 memories, a bit each.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    present: u16,
    referenced: u16,
    dirty: u16,
    /// [`OF_FILE`], [`VOID`].
    kind: u8,
    /// Local number in the last window replayed that had the page.
    local: u8,
}

/// The page is one of a file.
const OF_FILE: u8 = 1;
/// What it holds, or held, may be of no worth: see [`Memories::void`].
const VOID: u8 = 2;

/// Up to [`SIZES`] memories under a fault-driven policy.
///
/// A window in which some memory has every page resident cannot fault there: its pages are marked
/// and that is all. The other memories replay the window segment by segment. Between faults only
/// pages that lack a mark matter (`attention`), and pages that are clean and written (`clean`);
/// the single references of a segment are walked only if one of those pages is not resident.
pub struct Memories<P> {
    all: u16,
    states: Vec<State>,
    policies: Vec<P>,
    outcomes: Vec<Outcome>,
    /// Of pages that were discarded: whether they still are, and the memories in which a fault finds
    /// nothing that was swapped out.
    void: FxHashMap<u32, (bool, u16)>,
    /// Some page is one of a file.
    files: bool,
}

impl<P: Replacement> Memories<P> {
    /// These memories (at most [`SIZES`]).
    pub fn new(memories: &[Setup]) -> Self {
        debug_assert!(memories.len() <= SIZES);
        Self {
            all: ((1u32 << memories.len()) - 1) as u16,
            states: Vec::new(),
            policies: memories.iter().map(|&setup| P::new(setup)).collect(),
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
                self.states[page as usize].kind &= !VOID;
            }
        }
    }

    /// What memory `index` came to so far.
    pub fn outcome(&self, index: usize) -> Outcome {
        self.outcomes[index]
    }

    /// The policy of memory `index`.
    pub fn policy(&self, index: usize) -> &P {
        &self.policies[index]
    }

    /// The policy of memory `index`.
    pub fn policy_mut(&mut self, index: usize) -> &mut P {
        &mut self.policies[index]
    }

    /// Whether any page is one of a file.
    pub fn has_files(&self) -> bool {
        self.files
    }

    /// Whether a page is one of a file.
    pub fn is_of_file(&self, page: u32) -> bool {
        self.states.get(page as usize).is_some_and(|state| state.kind & OF_FILE != 0)
    }

    /// Whether what some page holds may be of no worth.
    pub fn has_void(&self) -> bool {
        !self.void.is_empty()
    }

    /// Put memory `index` back in: what it came to meanwhile, its `pages` and their accessed and dirty
    /// bits.
    pub fn put_back(
        &mut self,
        index: usize,
        more: Outcome,
        pages: &[u32],
        referenced: u64,
        dirty: u64,
    ) {
        let bit = 1u16 << index;
        self.all |= bit;
        self.outcomes[index].add(more);
        for (place, &page) in pages.iter().enumerate() {
            let state = self.state(page);
            state.present |= bit;
            state.referenced |= bit * (referenced >> place & 1) as u16;
            state.dirty |= bit * (dirty >> place & 1) as u16;
        }
    }

    /// Take memory `index` out; answers the accessed and dirty bits of `pages` (at most 64).
    pub fn take(&mut self, index: usize, pages: &[u32]) -> (u64, u64) {
        let bit = 1u16 << index;
        self.all &= !bit;
        let word = |test: fn(&State) -> u16| {
            let set = |page: &u32| u64::from(test(&self.states[*page as usize]) & bit != 0);
            pages.iter().enumerate().map(|(place, page)| set(page) << place).sum()
        };
        let bits = (word(|state| state.referenced), word(|state| state.dirty));
        for &page in pages {
            let state = &mut self.states[page as usize];
            state.present &= !bit;
            state.referenced &= !bit;
            state.dirty &= !bit;
        }
        bits
    }

    fn replay(&mut self, busy: u16, view: &View<'_>) {
        let mut run = Replay { attention: 0, clean: 0, busy, view };
        for &local in view.distinct {
            let state = &mut self.states[view.page(local) as usize];
            state.local = local;
            let group = view.group[usize::from(local)];
            if state.referenced & busy != busy {
                run.attention |= group;
            }
            if group & view.written != 0 && state.dirty & busy != busy {
                run.clean |= group;
            }
        }
        for j in 0..view.pages.len() {
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
                resident &= self.states[view.page(local) as usize].present;
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
        let mut missing = run.busy & !self.states[page as usize].present;
        while missing != 0 {
            let index = missing.trailing_zeros() as usize;
            let bit = 1u16 << index;
            missing &= missing - 1;
            self.outcomes[index].faults += 1;
            let kind = self.states[page as usize].kind;
            self.outcomes[index].file_faults += u64::from(kind & OF_FILE);
            if kind & VOID != 0 {
                self.fault_on_void(page, index);
            }
            let mut bits = Bits { states: &mut self.states, bit, run };
            for victim in self.policies[index].fault(page, &mut bits) {
                let state = &mut self.states[victim as usize];
                let group = run.group_of(victim, *state);
                run.attention |= group;
                state.present &= !bit;
                state.referenced &= !bit;
                if state.dirty & bit != 0 {
                    state.dirty &= !bit;
                    self.outcomes[index].dirty_evictions += 1;
                    self.outcomes[index].file_dirty_evictions += u64::from(state.kind & OF_FILE);
                    run.clean |= group;
                }
            }
            self.states[page as usize].present |= bit;
        }
        self.mark(run, local, write);
    }

    fn mark(&mut self, run: &mut Replay<'_, '_>, local: u8, write: bool) {
        let state = &mut self.states[run.view.page(local) as usize];
        let group = run.view.group_of_local(local);
        state.referenced |= run.busy;
        run.attention &= !group;
        if write {
            state.dirty |= run.busy;
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
    fn group_of(&self, page: u32, State { local, .. }: State) -> u64 {
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
        self.states[page as usize].referenced & self.bit != 0
    }

    #[inline]
    fn clear(&mut self, page: u32) {
        let state = &mut self.states[page as usize];
        state.referenced &= !self.bit;
        self.run.attention |= self.run.group_of(page, *state);
    }

    #[inline]
    fn expect(&self, page: u32) {
        prefetch(self.states, page as usize);
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
            present &= state.present;
            unchanged &= state.referenced;
            if view.group[usize::from(local)] & view.written != 0 {
                unchanged &= state.dirty;
            }
        }
        if unchanged == self.all {
            return;
        }
        if present != 0 {
            for &local in view.distinct {
                let state = &mut self.states[view.page(local) as usize];
                state.referenced |= present;
                if view.group[usize::from(local)] & view.written != 0 {
                    state.dirty |= present;
                }
            }
        }
        let busy = self.all & !present;
        if busy != 0 {
            self.replay(busy, view);
        }
    }

    fn begin(&mut self, page: u32, number: u64) {
        self.policies.iter_mut().for_each(|policy| policy.begin(page, number));
    }

    fn begin_file(&mut self, page: u32, executable: bool) {
        self.state(page).kind = OF_FILE;
        self.files = true;
        self.policies.iter_mut().for_each(|policy| policy.begin_file(page, executable));
    }

    fn free(&mut self, page: u32) {
        let present = std::mem::take(self.state(page)).present;
        self.void.remove(&page);
        for (index, policy) in self.policies.iter_mut().enumerate() {
            policy.release(page, present >> index & 1 == 1);
        }
    }

    fn discard(&mut self, page: u32) {
        let all = self.all;
        self.void.insert(page, (true, all));
        let State { present, mut referenced, kind, local, .. } = *self.state(page);
        for (index, policy) in self.policies.iter_mut().enumerate() {
            let bit = 1 << index;
            if policy.discard(page, present & bit != 0) {
                referenced &= !bit;
            }
        }
        *self.state(page) = State { present, referenced, dirty: 0, kind: kind | VOID, local };
    }

    fn keep(&mut self, page: u32) {
        let present = self.state(page).present;
        self.policies.iter_mut().for_each(|policy| policy.keep(page));
        if let Some((discarded, memories)) = self.void.get_mut(&page) {
            *discarded = false;
            *memories &= !present;
            if *memories == 0 {
                self.void.remove(&page);
                self.states[page as usize].kind &= !VOID;
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
