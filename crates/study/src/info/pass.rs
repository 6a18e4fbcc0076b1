//! The pass over the trace: which pages are touched, when, and in which region.

use nearfar_trace::{Batch, Error, KindSet, Result};
use rustc_hash::FxHashSet;

use super::hot::CodeSample;
use super::names::Names;
use super::pages::{self, Pages};
use super::resident_set::ResidentTracker;
use super::{PAGE, PAGE_SHIFT, WorkingSet, last_page};

#[derive(Default)]
pub struct PageState {
    pub number: u64,
    /// Region at the last touch; valid for `epoch` and `process`.
    pub region: u32,
    epoch: u32,
    process: u32,
    /// Interval (`Pass::bin`) of the last touch; 0 before the first.
    bin: u16,
    pub kinds: u8,
    /// Data references that begin in the page.
    pub data: u64,
    /// Result of the last [`ResidentTracker::touch`] for `process`.
    mark: u32,
}

/// Records by kind (6 used; 8 so that a masked index is in range).
pub type Counts = [u64; 8];

pub struct Pass {
    pub names: Names,
    pub pages: Pages,
    pub state: Vec<PageState>,
    /// Records by region id.
    pub counts: Vec<Counts>,
    /// Number of touched pages by region id.
    pub touched_pages: Vec<u64>,
    /// (page id, region) of pages that were touched in several regions.
    multiple: FxHashSet<(u32, u32)>,
    /// Incremented at events, which may change the region of any page.
    pub epoch: u32,
    /// The current interval of the trace, from 1.
    bin: u16,
    /// Number of intervals in the window of a working set.
    window: usize,
    /// Number of pages by the interval of their last touch.
    last_in_bin: Vec<u64>,
    pub working_set: Vec<WorkingSet>,
    pub resident: Option<ResidentTracker>,
    /// Ids of pages touched in this batch, in order, without consecutive repeats.
    pub touched: Vec<u32>,
    /// Id of the last touched page.
    last: u32,
    /// Number of consecutive repeats in all batches.
    pub repeats: u64,
    pub code: CodeSample,
}

impl Pass {
    pub fn new(names: Names, resident: Option<ResidentTracker>, window: usize) -> Self {
        Self {
            names,
            pages: Pages::default(),
            state: Vec::new(),
            counts: Vec::new(),
            touched_pages: Vec::new(),
            multiple: FxHashSet::default(),
            epoch: 0,
            bin: 1,
            window,
            last_in_bin: vec![0; 2],
            working_set: Vec::new(),
            resident,
            touched: Vec::new(),
            last: u32::MAX,
            repeats: 0,
            code: CodeSample::default(),
        }
    }

    /// Count the records of `batch` in `range`.
    pub fn records(&mut self, batch: &Batch, range: std::ops::Range<usize>) -> Result<()> {
        for at in range {
            let (addr, kind, size) = (batch.addr[at], batch.kind[at], batch.size[at]);
            let thread = batch.thread.get(at).copied().unwrap_or(0);
            let first = addr >> PAGE_SHIFT;
            let region = self.touch(first, kind);
            if KindSet::FETCHES.has(kind) {
                self.code.fetch(thread, addr);
            } else {
                // `touch` has set `last` to the page of `addr`.
                self.state[self.last as usize].data += 1;
                self.code.data(thread, first, &mut self.names);
            }
            self.counts[region as usize][usize::from(kind & 7)] += 1;
            for page in first + 1..=last_page(addr, size) {
                self.touch(page, kind);
            }
        }
        if self.pages.len() >= pages::MAX_PAGES {
            return Err(Error::input(
                "trace",
                format!("touches over {} pages of 4 KiB", pages::MAX_PAGES),
                "use a shorter trace",
            ));
        }
        Ok(())
    }

    /// Touch a page; returns its region.
    #[inline]
    fn touch(&mut self, number: u64, kind: u8) -> u32 {
        let (id, new) = self.pages.intern(number);
        let (epoch, process) = (self.epoch, self.names.process);
        if new {
            let region = self.names.region(number);
            self.grow(region);
            self.touched_pages[region as usize] += 1;
            let page = PageState { number, region, epoch, process, ..PageState::default() };
            self.state.push(page);
        }
        let page = &mut self.state[id as usize];
        page.kinds |= 1 << (kind & 7);
        if page.bin != self.bin {
            if page.bin > 0 {
                self.last_in_bin[usize::from(page.bin)] -= 1;
            }
            self.last_in_bin[usize::from(self.bin)] += 1;
            page.bin = self.bin;
        }
        if let Some(resident) = &mut self.resident {
            let mark = if page.process == process { page.mark } else { 0 };
            page.mark = resident.touch(mark, number, kind);
        }
        if id == self.last {
            self.repeats += 1;
        } else {
            self.last = id;
            self.touched.push(id);
        }
        if page.epoch == epoch && page.process == process {
            page.region
        } else {
            self.update_region(id)
        }
    }

    /// Update the region of a page after an event or a switch of process.
    #[cold]
    fn update_region(&mut self, id: u32) -> u32 {
        let page = &mut self.state[id as usize];
        let region = self.names.region(page.number);
        let before = std::mem::replace(&mut page.region, region);
        (page.epoch, page.process) = (self.epoch, self.names.process);
        if region != before {
            self.multiple.insert((id, before));
            let first = self.multiple.insert((id, region));
            self.grow(region);
            self.touched_pages[region as usize] += u64::from(first);
        }
        region
    }

    fn grow(&mut self, region: u32) {
        if self.counts.len() <= region as usize {
            self.counts.resize(region as usize + 1, [0; 8]);
            self.touched_pages.resize(region as usize + 1, 0);
        }
    }

    /// End an interval at this record.
    pub fn end_of_bin(&mut self, record: u64) {
        let pages: u64 = self.last_in_bin.iter().rev().take(self.window).sum();
        let bytes = pages * PAGE;
        let footprint_bytes = self.pages.len() as u64 * PAGE;
        let resident_bytes = self.resident.as_ref().map(|resident| resident.set.peak().now_bytes());
        self.working_set.push(WorkingSet { record, bytes, footprint_bytes, resident_bytes });
        self.last_in_bin.push(0);
        self.bin += 1;
    }
}
