//! The loop of small memories under Linux's lists that fault at a good part of all references.

use nearfar_kernel::replacement::linux::Lists;
use nearfar_kernel::replacement::linux::few::{Few, MAX_FRAMES};

use super::engine::{Outcome, View};
use super::memory::Memories;
use super::own::{Own, Runs};
use super::window::{MAX_BLOCKS, WRITE};

/// A memory that faults at more than one in this many references gets its own loop: windows seldom
/// touch its pages alone.
const THRASHING: u64 = 48;

/// One memory and what it came to since. A page's label is its local number in the window, or
/// [`MAX_BLOCKS`] and more for others; the bit beside it says that it is dirty.
pub struct Small {
    few: Few,
    /// By place.
    pages: Vec<u32>,
    dirty: u64,
    outcome: Outcome,
}

impl Own for Small {
    type Policy = Lists;

    fn pays(frames: u64, faults: u64, references: u64) -> bool {
        frames <= MAX_FRAMES && faults * THRASHING > references
    }

    fn take(index: usize, shared: &mut Memories<Lists>) -> Option<Self> {
        let (mut few, pages) = Few::take(shared.policy(index))?;
        let (referenced, dirty) = shared.take(index, &pages);
        few.refer(referenced);
        Some(Self { few, pages, dirty, outcome: Outcome::default() })
    }

    fn put_back(&self, index: usize, shared: &mut Memories<Lists>) {
        let Self { few, pages, dirty, outcome } = self;
        shared.put_back(index, *outcome, pages, few.referenced(), *dirty);
        few.put_back(shared.policy_mut(index), pages);
    }

    fn pages(&self) -> &[u32] {
        &self.pages
    }

    fn outcome(&self) -> Outcome {
        self.outcome
    }

    fn window(
        &mut self,
        index: usize,
        view: &View<'_>,
        runs: &mut Runs,
        shared: &mut Memories<Lists>,
    ) {
        let Self { few, pages, dirty, outcome } = self;
        // The places of pages of the window, and those of them that are written.
        let (mut here, mut written, mut found) = (0u64, 0u64, 0);
        let labels = few.labels();
        *labels = u64::MAX / 255 * 0x7f;
        for (place, &page) in pages.iter().enumerate() {
            let local = view.local_of[page as usize];
            let mut label = (MAX_BLOCKS + place) as u8;
            if view.pages.get(usize::from(local)) == Some(&page) {
                label = local;
                here |= 1 << place;
                found += 1;
                let group = view.group[usize::from(local)];
                written |= u64::from(group & view.written != 0) << place;
            }
            label |= ((*dirty >> place & 1) as u8) << 7;
            *labels ^= u64::from(label ^ 0x7f) << (8 * place);
        }
        if found == view.distinct.len() {
            few.refer(here);
            *dirty |= written;
            return;
        }
        let lists = shared.policy_mut(index);
        let Outcome { faults, dirty_evictions, file_faults, file_dirty_evictions, .. } = outcome;
        let mut before = [0; MAX_FRAMES as usize];
        before[..pages.len()].copy_from_slice(pages);
        let page_of = |label: u8| match usize::from(label & !WRITE) {
            local if local < MAX_BLOCKS => view.page(local as u8),
            place => before[place % MAX_FRAMES as usize],
        };
        for &run in runs.all(view) {
            let local = run & !WRITE;
            if let Some(place) = few.find(local) {
                few.refer(1 << place);
                *few.labels() |= u64::from(run & WRITE) << (8 * place);
                continue;
            }
            *faults += 1;
            *file_faults += u64::from(few.fault(lists, view.page(local), run, |label, of_file| {
                let dirty = u64::from(label >> 7);
                *dirty_evictions += dirty;
                *file_dirty_evictions += dirty & u64::from(of_file);
                page_of(label)
            }));
        }
        let labels = *few.labels();
        let label = |place: usize| (labels >> (8 * place)) as u8;
        let resident = few.resident();
        *dirty = (0..resident).map(|place| u64::from(label(place) >> 7) << place).sum();
        pages.clear();
        pages.extend((0..resident).map(|place| page_of(label(place))));
    }
}
