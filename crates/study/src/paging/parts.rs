//! A study in parts: some page sizes in each, simulated in different processes and joined.
//!
//! Page sizes are simulated independently and share only the decoding. Rows are not independent
//! ([`super::rows`] reads from storage by the smallest pages of a study), so parts are joined
//! first.

use nearfar_trace::{Error, Reader, Result};
use serde::{Deserialize, Serialize};

use super::machine::{self, Host, Time};
use super::options::Options;
use super::simulate::{Simulated, simulate};

/// The simulation of all or some page sizes of a study. Conversion to JSON is lossless.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StudyPart {
    /// Counts of the memories and the TLB.
    pub simulated: Simulated,
    /// Times of each machine's processor, if it has one.
    pub times: Vec<Option<Vec<Time>>>,
}

impl StudyPart {
    /// Simulate the page sizes of `options`, with the times of each of `hosts`.
    ///
    /// # Errors
    /// If the trace cannot be read; errors of `on_progress`.
    pub fn new<'a>(
        reader: &Reader,
        options: &Options,
        hosts: impl IntoIterator<Item = Option<Host<'a>>>,
        on_progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Self> {
        let simulated = simulate(reader, options, on_progress)?;
        let mut pages: Vec<u64> = simulated.cells.iter().map(|cell| cell.page_bytes).collect();
        pages.dedup();
        let options = options.clone().only(&pages);
        let mut times = Vec::new();
        for host in hosts {
            let lives = simulated.lifetimes;
            let times_of = |host| match pages.is_empty() {
                true => Ok(Vec::new()),
                false => machine::times(reader, &options, host, lives, on_progress),
            };
            times.push(host.map(times_of).transpose()?);
        }
        Ok(Self { simulated, times })
    }

    /// Join parts that have different page sizes, in any order.
    ///
    /// # Errors
    /// If there is no part, or the parts are of different traces or machines.
    pub fn join(parts: impl IntoIterator<Item = Self>) -> Result<Self> {
        let wrong = |what: &str| Error::input("parts", what, "count them again");
        let mut parts = parts.into_iter();
        let mut whole = parts.next().ok_or_else(|| wrong("there are none"))?;
        for part in parts {
            let (joined, part_simulated) = (&mut whole.simulated, part.simulated);
            let trace = |simulated: &Simulated| {
                (
                    simulated.records,
                    simulated.footprint_bytes,
                    simulated.lifetimes,
                    simulated.whole_bytes,
                )
            };
            if trace(joined) != trace(&part_simulated) || whole.times.len() != part.times.len() {
                return Err(wrong("are of different traces"));
            }
            joined.cells.extend(part_simulated.cells);
            joined.left_out.extend(part_simulated.left_out);
            joined.too_few_frames.extend(part_simulated.too_few_frames);
            for times in whole.times.iter_mut().zip(part.times) {
                match times {
                    (Some(joined), Some(part)) => joined.extend(part),
                    (None, None) => {}
                    _ => return Err(wrong("are of different machines")),
                }
            }
        }
        // A stable sort keeps the order of memory sizes.
        whole.simulated.cells.sort_by_key(|cell| cell.page_bytes);
        whole.simulated.too_few_frames.sort_by_key(|cell| cell.page_bytes);
        for times in whole.times.iter_mut().flatten() {
            times.sort_by_key(|time| time.page_bytes);
        }
        Ok(whole)
    }
}
