//! The options of `nearfar capture`.

use nearfar_schema::{Command as Declared, Count, Options as _, none};
use nearfar_trace::{Error, Result};

use crate::program::Arch;
use crate::sample::Rate;
use crate::schedule::{Signal, Start, Stop, TimeSpan};

nearfar_schema::options! {
    /// The options of `nearfar capture`, as given.
    pub struct Request {
        /// Record instruction fetches, one for each block of straight-line code.
        fetch: bool = true,
        /// Start recording this long after the program starts. Earlier mappings are known, but not
        /// which of their pages were touched.
        start_after: Option<TimeSpan> = none("at program start"),
        /// Start recording when nearfar receives this signal.
        start_on: Option<Signal> = none("at program start"),
        /// Stop recording after this time, or after this many records; the program keeps running.
        stop_after: Option<Stop> = none("at program exit"),
        /// Skip this many records first.
        skip_refs: Count<0, { 1 << 63 }> = 0,
        /// Stop recording after this many records; the program keeps running.
        max_refs: Option<Count<1>> = none("no limit"),
        /// Architecture of the program.
        arch: Arch = "auto",
        /// Record child processes as well.
        follow_forks: bool = false,
        /// Record only this share of the program's pages, such as 1%, which is several times as
        /// fast. Memory curves then have 95 % intervals (`nearfar paging`); other studies need a
        /// whole trace. `auto` lowers the share as the program grows.
        sample: Option<Rate> = none("every page"),
        /// Seed of the sample: another one selects other pages.
        sample_seed: Count = 0,
    }
}

impl Request {
    /// What recording waits for, how long it lasts, and its maximum number of records.
    ///
    /// # Errors
    /// Two options set the same limit.
    pub fn limits(&self) -> Result<(Option<Start>, Option<TimeSpan>, Option<u64>)> {
        let start = match (&self.start_after, self.start_on) {
            (Some(_), Some(_)) => return Err(conflict("--start-on", "--start-after")),
            (Some(wait), None) => Some(Start::After(wait.clone())),
            (None, signal) => signal.map(Start::On),
        };
        let max = self.max_refs.map(|count| count.0);
        match (&self.stop_after, max) {
            (Some(Stop::Records(_)), Some(_)) => Err(conflict("--stop-after", "--max-refs")),
            (Some(Stop::Records(records)), None) => Ok((start, None, Some(*records))),
            (Some(Stop::Time(wait)), _) => Ok((start, Some(wait.clone()), max)),
            (None, _) => Ok((start, None, max)),
        }
    }
}

fn conflict(option: &str, other: &str) -> Error {
    Error::input(option, format!("conflicts with {other}"), "give only one of them")
}

/// The declaration of the command.
pub const COMMAND: Declared = Declared { name: "capture", options: Request::specs, rows: &[] };
