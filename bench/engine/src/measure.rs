//! Seconds and peak memory of a piece of work.

use std::time::Instant;

use nearfar_trace::Result;
use serde_json::{Value, json};

/// Seconds of each round of one piece of work, and the most memory the process had meanwhile.
#[derive(Default)]
pub struct Rounds {
    seconds: Vec<f64>,
    peak_bytes: u64,
}

impl Rounds {
    /// Time `work` once more.
    pub fn time<T>(&mut self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        forget_peak();
        let began = Instant::now();
        let done = work()?;
        self.seconds.push(began.elapsed().as_secs_f64());
        self.peak_bytes = self.peak_bytes.max(peak_bytes());
        Ok(done)
    }

    /// `{"seconds": [...], "peak_bytes": n}`. The peak is of the whole process: what was there
    /// before the work is in it.
    pub fn json(&self) -> Value {
        json!({ "seconds": self.seconds, "peak_bytes": self.peak_bytes })
    }
}

/// Begin a new peak (`man 5 proc`, `clear_refs`). Where that is not allowed the peak stays that
/// of the process since its start, which is never too low.
fn forget_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// `VmHWM` of this process, 0 where there is no `/proc`.
fn peak_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse().ok());
    kib.unwrap_or(0u64) * 1024
}
