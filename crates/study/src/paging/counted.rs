//! What a study counts, before anything is priced: all at once, or some page sizes here and the others
//! elsewhere.
//!
//! A page size is counted as if it were alone: what is shared is the decoding. Prices are not so
//! ([`super::rows`] reads from storage by the smallest pages of a study), so parts are put together
//! before them.

use nearfar_hardware::processor::Processor;
use nearfar_trace::{Error, Reader, Result};
use serde::{Deserialize, Serialize};

use super::machine::{self, Time};
use super::options::Options;
use super::simulate::{Simulated, simulate};

/// What a study comes to, or a part of it. As JSON it loses nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// Of the memories and the TLB.
    pub simulated: Simulated,
    /// Times of each machine's processor, where it has one.
    pub times: Vec<Option<Vec<Time>>>,
}

impl Counted {
    /// Count the page sizes of `options`, and the times of each of `processors`.
    ///
    /// # Errors
    /// The trace cannot be read; the error of `on_progress`.
    pub fn new<'a>(
        reader: &Reader,
        options: &Options,
        processors: impl IntoIterator<Item = Option<&'a Processor>>,
        on_progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Self> {
        let simulated = simulate(reader, options, on_progress)?;
        let mut pages: Vec<u64> = simulated.cells.iter().map(|cell| cell.page_bytes).collect();
        pages.dedup();
        let options = options.clone().only(&pages);
        let mut times = Vec::new();
        for processor in processors {
            let lives = simulated.lifetimes;
            let of = |processor| match pages.is_empty() {
                true => Ok(Vec::new()),
                false => machine::times(reader, &options, processor, lives, on_progress),
            };
            times.push(processor.map(of).transpose()?);
        }
        Ok(Self { simulated, times })
    }

    /// The whole of parts that have different page sizes, in any order.
    ///
    /// # Errors
    /// There is no part, or they are of different traces.
    pub fn join(parts: impl IntoIterator<Item = Self>) -> Result<Self> {
        let wrong = |what: &str| Error::input("parts", what, "count them again");
        let mut parts = parts.into_iter();
        let mut whole = parts.next().ok_or_else(|| wrong("there are none"))?;
        for part in parts {
            let (all, own) = (&mut whole.simulated, part.simulated);
            let common = |one: &Simulated| {
                (one.records, one.footprint_bytes, one.lifetimes, one.whole_bytes)
            };
            if common(all) != common(&own) || whole.times.len() != part.times.len() {
                return Err(wrong("are of different traces"));
            }
            all.cells.extend(own.cells);
            all.left_out.extend(own.left_out);
            all.too_few_frames.extend(own.too_few_frames);
            for (all, own) in whole.times.iter_mut().zip(part.times) {
                match (all, own) {
                    (Some(all), Some(own)) => all.extend(own),
                    (None, None) => {}
                    _ => return Err(wrong("are of different machines")),
                }
            }
        }
        // Stable: the memory sizes of a page size stay in their order.
        whole.simulated.cells.sort_by_key(|cell| cell.page_bytes);
        whole.simulated.too_few_frames.sort_by_key(|cell| cell.page_bytes);
        for times in whole.times.iter_mut().flatten() {
            times.sort_by_key(|time| time.page_bytes);
        }
        Ok(whole)
    }
}
