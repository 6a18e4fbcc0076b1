//! [`Memories`] for all, and a tighter loop for the few small ones that fault at a good part of all
//! references (a handful of large frames under a whole program).

use nearfar_kernel::replacement::{Replacement, Setup};
use nearfar_simd::Avx512;

use super::engine::{Engine, Outcome, View};
use super::memory::Memories;
use super::repeats::{FRAMES, drop_repeats};
use super::runs::collapse;

/// References to see before promoting; tests must get past the trial on short traces.
const TRIAL: u64 = if cfg!(test) { 50 } else { 1 << 16 };

/// A memory with a loop of its own, out of the [`Memories`] of its policy.
pub trait Own: Sized + Send {
    /// The policy, whose pages that are not resident it goes on to know.
    type Policy: Replacement;
    /// Whether a memory of so many frames, with so many faults in so many references, is better off.
    fn pays(frames: u64, faults: u64, references: u64) -> bool;
    /// Take memory `index` out, if it is in a state for this.
    fn take(index: usize, shared: &mut Memories<Self::Policy>) -> Option<Self>;
    /// Put it back.
    fn put_back(&self, index: usize, shared: &mut Memories<Self::Policy>);
    /// The resident pages.
    fn pages(&self) -> &[u32];
    /// What it came to since it was taken out.
    fn outcome(&self) -> Outcome;
    /// Apply a window.
    fn window(
        &mut self,
        index: usize,
        view: &View<'_>,
        runs: &mut Runs,
        shared: &mut Memories<Self::Policy>,
    );
}

/// A window's references for memories with their own loops, made when one needs them.
pub struct Runs {
    avx512: Option<Avx512>,
    /// Consecutive references to a page made one: a byte each, local number and
    /// [`WRITE`](super::window::WRITE).
    all: Vec<u8>,
    /// Without those that change no memory of [`FRAMES`] frames or more.
    left: Vec<u8>,
}

impl Runs {
    fn clear(&mut self) {
        self.all.clear();
        self.left.clear();
    }

    /// All of them.
    pub fn all(&mut self, view: &View<'_>) -> &[u8] {
        if self.all.is_empty() {
            collapse(self.avx512, view.refs(), view.stand_in, &mut self.all);
        }
        &self.all
    }

    /// Those that a memory of `frames` frames must see under CLOCK.
    pub fn of(&mut self, view: &View<'_>, frames: usize) -> &[u8] {
        self.all(view);
        let Self { avx512, all, left } = self;
        let dropped = frames >= FRAMES && (!left.is_empty() || drop_repeats(*avx512, all, left));
        if dropped { left } else { all }
    }
}

/// Memories at one page size, some of which have loops of their own.
pub struct Thrashing<O: Own> {
    frames: Vec<u64>,
    shared: Memories<O::Policy>,
    own: Vec<(usize, O)>,
    seen: u64,
    faults_at_trial: Vec<u64>,
    runs: Runs,
}

impl<O: Own> Thrashing<O> {
    /// These memories (at most [`super::engine::SIZES`]).
    pub fn new(memories: &[Setup]) -> Self {
        Self {
            frames: memories.iter().map(|setup| setup.frames).collect(),
            shared: Memories::new(memories),
            own: Vec::new(),
            seen: 0,
            faults_at_trial: vec![0; memories.len()],
            runs: Runs { avx512: Avx512::new(), all: Vec::new(), left: Vec::new() },
        }
    }

    /// Move memories that thrashed since the last trial into loops of their own.
    fn promote_thrashing(&mut self) {
        for (index, &frames) in self.frames.iter().enumerate() {
            let faults = self.shared.outcome(index).faults;
            let recent = faults - std::mem::replace(&mut self.faults_at_trial[index], faults);
            if O::pays(frames, recent, self.seen)
                && self.own.iter().all(|(own, _)| *own != index)
                && !self.shared.has_void()
                && let Some(own) = O::take(index, &mut self.shared)
            {
                self.own.push((index, own));
            }
        }
        self.seen = 0;
    }

    /// Give up the loops of memories that hold `page`, or of all.
    fn step_back(&mut self, page: Option<u32>) {
        let shared = &mut self.shared;
        self.own.retain(|(index, own)| {
            let stays = page.is_some_and(|page| !own.pages().contains(&page));
            if !stays {
                own.put_back(*index, shared);
            }
            stays
        });
    }
}

impl<O: Own> Engine for Thrashing<O> {
    fn expect(&self, page: u32) {
        self.shared.expect(page);
    }

    fn window(&mut self, view: &View<'_>) {
        self.shared.window(view);
        self.runs.clear();
        for (index, own) in &mut self.own {
            own.window(*index, view, &mut self.runs, &mut self.shared);
        }
        self.seen += view.refs().len() as u64;
        if self.seen >= TRIAL {
            self.promote_thrashing();
        }
    }

    fn begin(&mut self, page: u32, number: u64) {
        self.shared.begin(page, number);
    }

    fn begin_file(&mut self, page: u32, executable: bool) {
        self.shared.begin_file(page, executable);
    }

    fn free(&mut self, page: u32) {
        self.step_back(Some(page));
        self.shared.free(page);
    }

    fn discard(&mut self, page: u32) {
        self.step_back(None);
        self.shared.discard(page);
    }

    fn keep(&mut self, page: u32) {
        self.shared.keep(page);
    }

    fn outcomes(&self) -> Vec<Outcome> {
        let mut outcomes = self.shared.outcomes();
        for (index, own) in &self.own {
            outcomes[*index].add(own.outcome());
        }
        outcomes
    }
}
