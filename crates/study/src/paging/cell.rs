//! What a study counts: a cell for every page size and memory size.

use super::engine::Outcome;
use super::page_size::PageSize;
use super::sample;

/// One page size x memory size.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Page size, bytes.
    pub page_bytes: u64,
    /// Memory size, bytes.
    pub memory_bytes: u64,
    /// Memory size as a part of [`super::Simulated::whole_bytes`], where it was given so.
    pub memory_fraction: Option<f64>,
    /// Frames: memory / page, at least 1.
    pub frames: u64,
    /// References at this page size: a record that lies over a border counts on both sides.
    pub references: u64,
    /// Page walks.
    pub tlb_misses: u64,
    /// First-level TLB misses that the second level held.
    pub tlb_second_hits: u64,
    /// Page faults; an estimate when sampled.
    pub faults: u64,
    /// Standard error of the faults when sampled.
    pub faults_error: Option<f64>,
    /// Evictions of written pages.
    pub dirty_evictions: u64,
    /// Distinct pages of this size: no memory can fault less.
    pub pages: u64,
    /// How many of the pages are of files.
    pub file_pages: u64,
    /// Kinds of faults and evictions; `None` for a memory of fewer than [`MIN_FRAMES`] frames.
    pub kinds: Option<FaultKinds>,
}

/// Frames below which a memory thrashes whatever the program does.
pub const MIN_FRAMES: u64 = 8;

/// Faults by what the kernel does for them, and evictions of written pages by where they are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultKinds {
    /// Pages filled with zeros, or with a copy.
    pub zero_fills: u64,
    /// First reads of pages of files.
    pub file_reads: u64,
    /// Pages read back from swap.
    pub swap_ins: u64,
    /// Pages of files read again.
    pub file_rereads: u64,
    /// Pages written to swap.
    pub swap_outs: u64,
    /// Pages written to files.
    pub write_backs: u64,
}

impl FaultKinds {
    /// Of an outcome, when `pages` were referenced, `files` of them of files. Estimates of a sample may
    /// contradict one another by their rounding.
    fn of(outcome: Outcome, pages: u64, files: u64) -> Self {
        let zero_fills = (pages - files + outcome.void_faults).min(outcome.faults);
        let file_reads = files.min(outcome.faults - zero_fills);
        let again = outcome.faults - zero_fills - file_reads;
        let file_rereads = outcome.file_faults.saturating_sub(file_reads).min(again);
        let write_backs = outcome.file_dirty_evictions.min(outcome.dirty_evictions);
        Self {
            zero_fills,
            file_reads,
            swap_ins: again - file_rereads,
            file_rereads,
            swap_outs: outcome.dirty_evictions - write_backs,
            write_backs,
        }
    }
}

/// What is simulated at one page size.
pub struct Size {
    /// One, or the TLB's and one a sampled group.
    pub jobs: Vec<PageSize>,
    /// Frames of each memory size.
    pub frames: Vec<u64>,
    /// Those that differ, in ascending order: the memories of the jobs.
    pub different: Vec<u64>,
}

impl Size {
    /// log2 of the page size.
    pub fn shift(&self) -> u32 {
        self.jobs[0].shift
    }

    /// A cell for each memory size: bytes, and the part of the whole that they were given as.
    pub fn cells(
        &self,
        memory: &[(u64, Option<f64>)],
        references: u64,
    ) -> impl Iterator<Item = Cell> {
        let (first, groups) = (&self.jobs[0], &self.jobs[1..]);
        let outcomes: Vec<Counted> = match groups {
            [] => first.outcomes().into_iter().map(|of| Counted::exact(of, first)).collect(),
            _ => sampled_outcomes(groups),
        };
        let tlb = first.tlb();
        self.frames.iter().zip(memory).map(move |(&frames, &(memory_bytes, memory_fraction))| {
            let index = self.different.binary_search(&frames).unwrap_or(0);
            let Counted { outcome, faults_error, pages, files } = outcomes[index];
            Cell {
                page_bytes: 1 << first.shift,
                memory_bytes,
                memory_fraction,
                frames,
                references,
                tlb_misses: tlb.misses,
                tlb_second_hits: tlb.second_hits,
                faults: outcome.faults,
                faults_error,
                dirty_evictions: outcome.dirty_evictions,
                pages: first.pages(),
                file_pages: first.pages_of_files(),
                kinds: (frames >= MIN_FRAMES).then(|| FaultKinds::of(outcome, pages, files)),
            }
        })
    }
}

/// What a memory came to, and of how many pages.
#[derive(Clone, Copy)]
struct Counted {
    outcome: Outcome,
    /// Standard error of the faults, of a sample.
    faults_error: Option<f64>,
    pages: u64,
    files: u64,
}

impl Counted {
    fn exact(outcome: Outcome, job: &PageSize) -> Self {
        Self { outcome, faults_error: None, pages: job.pages(), files: job.pages_of_files() }
    }
}

/// Estimates of the whole from the groups' outcomes.
fn sampled_outcomes(groups: &[PageSize]) -> Vec<Counted> {
    let outcomes: Vec<(&PageSize, Vec<Outcome>)> =
        groups.iter().map(|group| (group, group.outcomes())).collect();
    let memories = outcomes.first().map_or(0, |(_, outcomes)| outcomes.len());
    (0..memories)
        .map(|memory| {
            let estimate = |count: &dyn Fn(&PageSize, &Outcome) -> u64| {
                let scaled = |(group, outcomes): &(&PageSize, Vec<Outcome>)| {
                    count(group, &outcomes[memory]) as f64 / group.rate()
                };
                sample::estimate(&outcomes.iter().map(scaled).collect::<Vec<f64>>())
            };
            let mean = |count: fn(&Outcome) -> u64| {
                estimate(&|_, outcome| count(outcome)).0.round() as u64
            };
            let outcome = Outcome {
                faults: mean(|o| o.faults),
                dirty_evictions: mean(|o| o.dirty_evictions),
                file_faults: mean(|o| o.file_faults),
                file_dirty_evictions: mean(|o| o.file_dirty_evictions),
                void_faults: mean(|o| o.void_faults),
            };
            let (_, error) = estimate(&|_, outcome| outcome.faults);
            let pages = estimate(&|group, _| group.pages()).0.round() as u64;
            let files = estimate(&|group, _| group.pages_of_files()).0.round() as u64;
            Counted { outcome, faults_error: Some(error), pages, files: files.min(pages) }
        })
        .collect()
}
