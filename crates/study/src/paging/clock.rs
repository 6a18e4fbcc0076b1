//! The loop of small memories under CLOCK that fault at a good part of all references.
//!
//! CLOCK is written down in four places. [`Clock`] is the policy, for any number of frames, which
//! `direct.rs` and `nearfar explain` run as well. [`BitClock`] makes the same decisions on one word of
//! accessed bits. With one frame there is nothing to decide ([`Small::single`]): every run is a fault.
//! With two ([`Small::pair`]) it evicts the page loaded first: without that loop the default study takes
//! a tenth longer (EPYC, `bench/run.py --only paging`).

use std::hint::select_unpredictable;

use nearfar_kernel::replacement::clock::{BitClock, Clock};

use super::engine::{Outcome, View};
use super::memory::Memories;
use super::own::{Own, Runs};
use super::window::{MAX_BLOCKS, WRITE};

/// A memory that faults at more than one in this many references gets its own loop.
const THRASHING: u64 = 12;
/// The same for one of at most [`SMALL_FRAMES`] frames: windows seldom touch its pages alone.
const SMALL_THRASHING: u64 = 48;
const SMALL_FRAMES: u64 = 8;
const ABSENT: u8 = u8::MAX;

/// One memory of at most 64 frames, all taken, and what it came to since. With one or two frames it
/// does not know which faults and evictions are of files.
pub struct Small {
    clock: BitClock,
    pages: Vec<u32>,
    dirty: u64,
    outcome: Outcome,
}

impl Own for Small {
    type Policy = Clock;

    fn pays(frames: u64, faults: u64, references: u64) -> bool {
        let one_in = if frames <= SMALL_FRAMES { SMALL_THRASHING } else { THRASHING };
        frames <= BitClock::MAX_FRAMES && faults * one_in > references
    }

    /// When it is full.
    fn take(index: usize, shared: &mut Memories<Clock>) -> Option<Self> {
        let (pages, hand) = shared.policy(index).ring()?;
        let (referenced, dirty) = shared.take(index, &pages);
        let clock = BitClock::new(pages.len() as u32, hand as u32, referenced);
        Some(Self { clock, pages, dirty, outcome: Outcome::default() })
    }

    fn put_back(&self, index: usize, shared: &mut Memories<Clock>) {
        let Self { clock, pages, dirty, outcome } = self;
        shared.put_back(index, *outcome, pages, clock.referenced, *dirty);
        shared.policy_mut(index).resume(pages.clone(), clock.hand() as usize);
    }

    fn pages(&self) -> &[u32] {
        &self.pages
    }

    fn outcome(&self) -> Outcome {
        self.outcome
    }

    fn window(
        &mut self,
        _index: usize,
        view: &View<'_>,
        runs: &mut Runs,
        shared: &mut Memories<Clock>,
    ) {
        // One more entry: the place of frames whose page this window does not touch.
        let mut frame_of = [ABSENT; MAX_BLOCKS + 1];
        let mut local_in = [MAX_BLOCKS as u8; 64];
        for (frame, &page) in self.pages.iter().enumerate() {
            let local = view.local_of[page as usize];
            if view.pages.get(usize::from(local)) == Some(&page) {
                frame_of[usize::from(local)] = frame as u8;
                local_in[frame] = local;
            }
        }
        if view.distinct.iter().all(|&local| frame_of[usize::from(local)] != ABSENT) {
            for &local in view.distinct {
                let bit = 1 << frame_of[usize::from(local)];
                self.clock.referenced |= bit;
                if view.group[usize::from(local)] & view.written != 0 {
                    self.dirty |= bit;
                }
            }
            return;
        }
        let runs = runs.of(view, self.pages.len());
        let before = local_in;
        match self.pages.len() {
            1 => self.single(runs, &mut local_in),
            2 => self.pair(runs, &mut local_in),
            _ => {
                let files = Files::of(view, &self.pages, shared);
                self.several(runs, &mut frame_of, &mut local_in, files);
            }
        }
        for (frame, page) in self.pages.iter_mut().enumerate() {
            if local_in[frame] != before[frame] {
                *page = view.page(local_in[frame]);
            }
        }
    }
}

impl Small {
    /// One frame: every run is a fault, but the first if its page is there.
    fn single(&mut self, runs: &[u8], local_in: &mut [u8; 64]) {
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return };
        let stays = first & !WRITE == local_in[0];
        // Few enough at a time for their sum to be a byte, which is added up many at once.
        let writes = |few: &[u8]| u64::from(few.iter().map(|run| run >> 7).sum::<u8>());
        let written: u64 = runs.chunks(usize::from(u8::MAX)).map(writes).sum();
        let (first_written, last_written) = (u64::from(first >> 7), u64::from(last >> 7));
        // Every run but the last ends in an eviction, and so does what was there before.
        let mut flushed = written - last_written;
        let mut dirty = last_written;
        if stays {
            if runs.len() == 1 {
                dirty |= self.dirty;
            } else {
                flushed += self.dirty & !first_written;
            }
        } else {
            flushed += self.dirty;
        }
        self.outcome.faults += runs.len() as u64 - u64::from(stays);
        self.outcome.dirty_evictions += flushed;
        self.dirty = dirty;
        self.clock.referenced = 1;
        local_in[0] = last & !WRITE;
    }

    /// Two frames: a fault evicts the page loaded first, whatever the accessed bits. That of the
    /// page loaded last is set, and cleared only on the way round to the other one. So no accessed
    /// bit is kept, and no branch depends on the program.
    fn pair(&mut self, runs: &[u8], local_in: &mut [u8; 64]) {
        let hand = self.clock.hand() as usize;
        let held = |frame: usize| local_in[frame] | ((self.dirty >> frame & 1) as u8) << 7;
        let (mut older, mut newer) = (held(hand), held(1 - hand));
        let (mut faults, mut dirty_evictions) = (0, 0);
        for &run in runs {
            let in_older = (run ^ older) & !WRITE == 0;
            let in_newer = (run ^ newer) & !WRITE == 0;
            let fault = !(in_older | in_newer);
            faults += u64::from(fault);
            dirty_evictions += u64::from(older >> 7) & u64::from(fault);
            let kept_older = older | select_unpredictable(in_older, run & WRITE, 0);
            let kept_newer = newer | select_unpredictable(in_newer, run & WRITE, 0);
            older = select_unpredictable(fault, newer, kept_older);
            newer = select_unpredictable(fault, run, kept_newer);
        }
        self.outcome.faults += faults;
        self.outcome.dirty_evictions += dirty_evictions;
        // Each fault moves the hand to the other frame.
        let hand = hand ^ (faults & 1) as usize;
        for (frame, page) in [(hand, older), (1 - hand, newer)] {
            local_in[frame] = page & !WRITE;
            self.dirty = self.dirty & !(1 << frame) | u64::from(page >> 7) << frame;
        }
        self.clock = BitClock::new(2, hand as u32, 0b11);
    }

    fn several(
        &mut self,
        runs: &[u8],
        frame_of: &mut [u8; MAX_BLOCKS + 1],
        local_in: &mut [u8; 64],
        files: Files,
    ) {
        let mut clock = self.clock.clone();
        let mut dirty = self.dirty;
        let Files { of_window, mut of_frames } = files;
        let Outcome {
            mut faults,
            mut dirty_evictions,
            mut file_faults,
            mut file_dirty_evictions,
            ..
        } = self.outcome;
        for &run in runs {
            let (local, write) = (usize::from(run & !WRITE), u64::from(run >> 7));
            let frame = frame_of[local];
            let frame = if frame != ABSENT {
                u32::from(frame)
            } else {
                let frame = clock.fault();
                let victim = std::mem::replace(&mut local_in[frame as usize & 63], local as u8);
                frame_of[usize::from(victim)] = ABSENT;
                frame_of[local] = frame as u8;
                faults += 1;
                dirty_evictions += dirty >> frame & 1;
                let of_file = of_window >> local & 1;
                file_faults += of_file;
                file_dirty_evictions += (dirty & of_frames) >> frame & 1;
                of_frames = of_frames & !(1 << frame) | of_file << frame;
                dirty &= !(1 << frame);
                frame
            };
            clock.referenced |= 1 << frame;
            dirty |= write << frame;
        }
        self.clock = clock;
        self.dirty = dirty;
        self.outcome =
            Outcome { faults, dirty_evictions, file_faults, file_dirty_evictions, ..self.outcome };
    }
}

/// Which pages are of files, a bit each.
#[derive(Clone, Copy, Default)]
struct Files {
    /// By local number.
    of_window: u64,
    /// By frame.
    of_frames: u64,
}

impl Files {
    fn of(view: &View<'_>, pages: &[u32], shared: &Memories<Clock>) -> Self {
        if !shared.has_files() {
            return Self::default();
        }
        let bit = |page: u32, place: usize| u64::from(shared.is_of_file(page)) << place;
        let locals = view.distinct.iter().flat_map(|&local| {
            let of_file = shared.is_of_file(view.page(local));
            of_file.then_some(view.group[usize::from(local)])
        });
        let of_frames = pages.iter().enumerate().map(|(frame, &page)| bit(page, frame)).sum();
        Self { of_window: locals.sum(), of_frames }
    }
}
