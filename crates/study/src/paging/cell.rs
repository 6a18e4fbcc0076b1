//! The counts of a study: a cell for each page size and memory size.

use serde::Serialize;

use super::engine::Outcome;
use super::page_size::PageSize;

/// Counts of one page size and memory size.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    pub page_bytes: u64,
    pub memory_bytes: u64,
    /// Memory size as a fraction of [`super::Simulated::whole_bytes`], if it was given as one.
    pub memory_fraction: Option<f64>,
    /// Frames: memory / page.
    pub frames: u64,
    /// References; a record that crosses a page border counts on both sides.
    pub references: u64,
    /// Page walks; an estimate when sampled.
    pub tlb_misses: u64,
    /// First-level TLB misses that hit the second level.
    pub tlb_second_hits: u64,
    /// 95 % interval of the page walks when sampled.
    pub tlb_interval: Option<(f64, f64)>,
    /// Page faults; an estimate when sampled.
    pub faults: u64,
    /// Error of the faults when sampled: standard error and extrapolated bias.
    pub faults_error: Option<f64>,
    /// 95 % interval of the faults when sampled.
    pub faults_interval: Option<(f64, f64)>,
    /// Evictions of written pages.
    pub dirty_evictions: u64,
    /// Distinct pages of this size: the minimum number of faults.
    pub pages: u64,
    /// File pages among `pages`.
    pub file_pages: u64,
    pub kinds: FaultKinds,
}

/// Memories with fewer frames are not simulated, because every program thrashes in them.
pub const MIN_FRAMES: u64 = 8;

/// A memory at a page size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    pub bytes: u64,
    /// Size as a fraction of [`super::Simulated::whole_bytes`], if it was given as one.
    pub fraction: Option<f64>,
    pub frames: u64,
}

/// A cell that was not simulated, because its memory has fewer than [`MIN_FRAMES`] frames.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TooFewFrames {
    pub page_bytes: u64,
    pub memory_bytes: u64,
    /// Memory size as a fraction of [`super::Simulated::whole_bytes`], if it was given as one.
    pub memory_fraction: Option<f64>,
}

/// Faults by how the kernel resolves them, and evictions of dirty pages by where they are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultKinds {
    /// Zero-filled or copied pages.
    pub zero_fills: u64,
    /// First reads of file pages.
    pub file_reads: u64,
    /// Reads from swap.
    pub swap_ins: u64,
    /// Repeated reads of file pages.
    pub file_rereads: u64,
    /// Pages written to swap.
    pub swap_outs: u64,
    /// Pages written to files.
    pub write_backs: u64,
}

impl FaultKinds {
    /// Classify an outcome for `pages` referenced pages, `files` of them file pages. Saturates,
    /// because rounded estimates of a sample may be inconsistent.
    pub fn of(outcome: Outcome, pages: u64, files: u64) -> Self {
        let zero_fills = (pages.saturating_sub(files) + outcome.void_faults).min(outcome.faults);
        let file_reads = files.min(outcome.faults - zero_fills);
        let repeated = outcome.faults - zero_fills - file_reads;
        let file_rereads = outcome.file_faults.saturating_sub(file_reads).min(repeated);
        let write_backs = outcome.file_dirty_evictions.min(outcome.dirty_evictions);
        Self {
            zero_fills,
            file_reads,
            swap_ins: repeated - file_rereads,
            file_rereads,
            swap_outs: outcome.dirty_evictions - write_backs,
            write_backs,
        }
    }
}

/// The simulation of one page size.
pub struct Size {
    /// The TLB and the memories.
    pub job: PageSize,
    pub memories: Vec<Memory>,
    /// Distinct numbers of frames, ascending, each simulated once by `job`.
    pub frames: Vec<u64>,
}

impl Size {
    /// A cell for each memory size.
    pub fn cells(&self, references: u64) -> impl Iterator<Item = Cell> {
        let (outcomes, tlb) = (self.job.outcomes(), self.job.tlb());
        let (pages, file_pages) = (self.job.pages(), self.job.file_pages());
        self.memories.iter().map(move |&Memory { bytes, fraction, frames }| {
            // Found, because `frames` has the number of every memory.
            let index = self.frames.binary_search(&frames).unwrap_or(0);
            let outcome = outcomes[index];
            Cell {
                page_bytes: 1 << self.job.shift,
                memory_bytes: bytes,
                memory_fraction: fraction,
                frames,
                references,
                tlb_misses: tlb.misses,
                tlb_second_hits: tlb.second_hits,
                tlb_interval: None,
                faults: outcome.faults,
                faults_error: None,
                faults_interval: None,
                dirty_evictions: outcome.dirty_evictions,
                pages,
                file_pages,
                kinds: FaultKinds::of(outcome, pages, file_pages),
            }
        })
    }
}
