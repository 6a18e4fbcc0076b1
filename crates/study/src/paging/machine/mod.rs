//! The machine's view (`--view machine`): time of a processor's TLBs, page walks, caches and
//! faults.
//!
//! One pass over the trace. The caches are simulated once, because they do not depend on the page
//! size ([`touches`]). The simulation of each page size processes only *touches*: references to pages
//! that are not among the thread's most recent ones ([`last`]), and misses of the first cache level. It
//! tracks which pages are large ([`pages`]), simulates TLBs and walks, and adds up the waiting time of
//! threads ([`waits`]).
//!
//! The cache lines of page tables depend on the page size, so they do not go through the simulated
//! caches. Whether a level contains such a line is estimated from its last use and the age of the
//! lines that the level evicts ([`nearfar_hardware::processor::Ages`]).
//!
//! Memory is unlimited here, unless [`crate::thp`] limits it. The paging study counts the faults of
//! smaller memories itself, and adds their cost. File pages are read with [`nearfar_kernel::readahead`], and
//! threads wait for them ([`files`]).

pub(crate) mod areas;
mod files;
mod last;
pub(crate) mod observe;
mod pages;
pub mod reference;
mod surroundings;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod touches;
pub(crate) mod waits;

pub(crate) use pages::Settings;

use nearfar_hardware::Storage;
use nearfar_hardware::processor::{Hierarchy, Processor};
use nearfar_trace::{Error, Reader, Result};
use rayon::prelude::*;

use super::options::Options;
use crate::jobs;
use observe::Observe;
use touches::{Chunk, Touches};
use waits::PageSize;

/// log2 of the smallest and of the largest page size of this view.
pub(super) const SMALL: u32 = super::super::lifetimes::PAGE_SHIFT;
const LARGE: u32 = 21;

/// Times of one page size with unlimited memory, in nanoseconds of the whole trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Time {
    pub page_bytes: u64,
    /// Execution of instructions without misses.
    pub cpu_ns: f64,
    /// Waiting for the second level of the TLB.
    pub tlb_ns: f64,
    /// Waiting for page walks.
    pub walk_ns: f64,
    /// Waiting for the second and third cache level.
    pub cache_ns: f64,
    /// Waiting for memory.
    pub dram_ns: f64,
    /// Faults that need no device.
    pub fault_ns: f64,
    /// Part of `fault_ns` that fills memory: faults that raise the peak of private memory, or map
    /// existing pages.
    pub start_ns: f64,
    /// The kernel's time for one fault that needs a device.
    pub map_ns: f64,
    /// First-level TLB misses that hit the second level.
    pub tlb_second_hits: u64,
    pub walks: u64,
    /// Peak bytes of private memory.
    pub resident_bytes: u64,
    /// Share of large pages that were read before they were written.
    pub read_first_share: f64,
    /// Storage requests for file pages that were not read before.
    pub file_requests: u64,
    /// Waiting for `file_requests`, on each storage.
    pub file_ns: Vec<f64>,
}

/// A processor, and the storages that files may be on.
pub type Host<'a> = (&'a Processor, &'a [Storage]);

/// Check that this view supports all page sizes.
pub(super) fn check(page_sizes: &[u64]) -> Result<()> {
    let supported = 1 << SMALL..=1u64 << LARGE;
    match page_sizes.iter().find(|size| !supported.contains(size)) {
        Some(size) => Err(Error::input(
            "--page-sizes",
            format!("{size} bytes is not a page size that --view machine supports"),
            "give sizes from 4K to 2M, such as --page-sizes 4K,...,2M",
        )),
        None => Ok(()),
    }
}

/// The time of each page size of `options`, in their order. Without `lives`, the trace's events are
/// ignored.
///
/// In a trace captured with `--sample`, instructions, first touches and events are exact, and so are
/// `cpu_ns`, faults and resident memory. Other waiting times are lower bounds: caches and TLBs see
/// only the recorded references, so LRU keeps lines and pages at least as long.
///
/// # Errors
/// If a page size is not supported or the trace cannot be read; errors of `on_progress`.
pub fn times(
    reader: &Reader,
    options: &Options,
    (processor, storages): Host<'_>,
    lives: bool,
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Vec<Time>> {
    check(&options.page_sizes)?;
    let hierarchy = Hierarchy::new(&processor.caches);
    let mut touches = Touches::new(reader, options, processor, hierarchy, lives)?;
    let mut sizes: Vec<PageSize> = options
        .page_sizes
        .iter()
        .map(|size| PageSize::new(size.trailing_zeros(), processor, storages))
        .collect();
    let chunk = |size: &mut PageSize, chunk: &Chunk, (): &()| size.chunk(chunk, &mut ());
    simulate(&mut touches, &mut sizes, options.threads, (&mut (), |()| (), chunk), on_progress)?;
    Ok(sizes.into_iter().map(|size| size.time(touches.totals())).collect())
}

/// Process the touches of a trace at every page size, one chunk while the next is filled.
///
/// The observer gets every reference. `take` returns its results for a chunk, `process` gets the
/// chunk and these results.
///
/// # Errors
/// If the trace cannot be read or the threads cannot be started; errors of `on_progress`.
pub fn simulate<S: Send, O: Observe + Send, T: Sync>(
    touches: &mut Touches,
    sizes: &mut [S],
    threads: usize,
    (observer, take, process): (&mut O, impl Fn(&mut O) -> T, impl Fn(&mut S, &Chunk, &T) + Sync),
    on_progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    let pool = jobs::pool(threads)?;
    let (mut current, mut next) = (Chunk::default(), Chunk::default());
    let mut has_current = touches.fill(&mut current, observer)?;
    while has_current {
        let observed = take(observer);
        let (filled, ()) = pool.install(|| {
            rayon::join(
                || touches.fill(&mut next, observer),
                || {
                    let sizes = sizes.par_iter_mut().with_max_len(1);
                    sizes.for_each(|size| process(size, &current, &observed));
                },
            )
        });
        has_current = filled?;
        std::mem::swap(&mut current, &mut next);
        on_progress(touches.records())?;
    }
    Ok(())
}
