//! Time as a machine spends it (`--view machine`): TLBs, page walks, caches and faults of a processor.
//!
//! One pass over the trace. References go through the data caches once, whatever the page size
//! ([`touches`]); what is left for each page size are the touches: references to another page than the
//! thread's last ([`last`]), and those that the first level of cache does not have. Each page size then follows
//! which of its pages are large ([`pages`]), asks the TLBs, walks, and adds up what a thread waits for
//! ([`waits`]).
//!
//! The lines that a walk reads do not go through the caches, as they differ with the page size. Whether
//! a level holds such a line follows from when it was last used and from how old the lines are that the
//! level evicts ([`nearfar_hardware::processor::Ages`]).
//!
//! All memory is there: what a smaller one costs is added from the faults of the study.

mod last;
mod pages;
pub mod reference;
#[cfg(test)]
pub(crate) mod tests;
mod touches;
mod waits;

use nearfar_hardware::processor::Processor;
use nearfar_trace::{Error, Reader, Result};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::options::Options;
use touches::{Chunk, Touches};
use waits::PageSize;
pub use waits::SoFar;

/// log2 of the smallest and of the largest page that this view has.
pub(super) const SMALL: u32 = super::super::lifetimes::PAGE;
const LARGE: u32 = 21;

/// What one page size comes to, with all memory there. Times are in nanoseconds, of the whole trace.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Time {
    /// Page size, bytes.
    pub page_bytes: u64,
    /// Instructions when nothing misses.
    pub cpu_ns: f64,
    /// Waiting for the second level of the TLB.
    pub tlb_ns: f64,
    /// Waiting for page walks.
    pub walk_ns: f64,
    /// Waiting for the second and the third level of cache.
    pub cache_ns: f64,
    /// Waiting for memory.
    pub dram_ns: f64,
    /// Faults that need no device.
    pub fault_ns: f64,
    /// The kernel's part of one that does.
    pub map_ns: f64,
    /// Misses of the first level of the TLB that the second held.
    pub tlb_second_hits: u64,
    /// Page walks.
    pub walks: u64,
    /// Most bytes of private memory at once.
    pub resident_bytes: u64,
}

/// Page sizes that this view has no time for.
///
/// # Errors
/// An input error that says which there are.
pub(super) fn check(page_sizes: &[u64]) -> Result<()> {
    let known = 1 << SMALL..=1u64 << LARGE;
    match page_sizes.iter().find(|size| !known.contains(size)) {
        Some(size) => Err(Error::input(
            "--page-sizes",
            format!("{size} bytes are no page of the processor, as --view machine needs"),
            "give sizes from 4K to 2M, such as --page-sizes 4K,...,2M",
        )),
        None => Ok(()),
    }
}

/// The time of each page size of `options`, in their order.
///
/// # Errors
/// Sizes that are not of the processor; the trace cannot be read; the error of `on_progress`.
pub fn times(
    reader: &Reader,
    options: &Options,
    processor: &Processor,
    lives: bool,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Vec<Time>> {
    check(&options.page_sizes)?;
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(options.threads)
        .build()
        .map_err(|e| Error::input("--threads", e.to_string(), "ask for fewer threads"))?;
    let mut touches = Touches::new(reader, options, processor, lives)?;
    let mut sizes: Vec<PageSize> = options
        .page_sizes
        .iter()
        .map(|size| PageSize::new(size.trailing_zeros(), processor))
        .collect();
    let (mut current, mut next) = (Chunk::default(), Chunk::default());
    let mut more = touches.fill(&mut current)?;
    while more {
        let (filled, ()) = pool.install(|| {
            rayon::join(
                || touches.fill(&mut next),
                || sizes.par_iter_mut().with_max_len(1).for_each(|size| size.chunk(&current)),
            )
        });
        more = filled?;
        std::mem::swap(&mut current, &mut next);
        on_progress(touches.records())?;
    }
    Ok(sizes.into_iter().map(|size| size.time(touches.totals())).collect())
}
