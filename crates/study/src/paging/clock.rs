//! The loop of small memories under CLOCK that fault at a good part of all references.
//!
//! [`Clock`] is the policy, for any number of frames, which `direct.rs` and `nearfar explain` run as
//! well. [`BitClock`] makes the same decisions on one word of accessed bits.

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

/// One memory of at most 64 frames, all taken, and what it came to since.
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
        let files = Files::of(view, &self.pages, shared);
        self.replay(runs, &mut frame_of, &mut local_in, files);
        for (frame, page) in self.pages.iter_mut().enumerate() {
            if local_in[frame] != before[frame] {
                *page = view.page(local_in[frame]);
            }
        }
    }
}

impl Small {
    fn replay(
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
