//! Measures seconds and peak memory of a piece of work.

use std::time::Instant;

use nearfar_trace::Result;
use serde_json::{Value, json};

/// Seconds of each round of one piece of work, and the peak memory of the process in any round.
#[derive(Default)]
pub struct Rounds {
    seconds: Vec<f64>,
    cpu_seconds: Vec<f64>,
    peak_bytes: u64,
}

impl Rounds {
    /// Run and time one round of `work`.
    pub fn time<T>(&mut self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        reset_peak();
        let (began, cpu) = (Instant::now(), cpu_seconds());
        let done = work()?;
        self.cpu_seconds.push(cpu_seconds() - cpu);
        self.seconds.push(began.elapsed().as_secs_f64());
        self.peak_bytes = self.peak_bytes.max(peak_bytes());
        Ok(done)
    }

    /// Peak memory of the process in any round.
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// `{"seconds": [...], "cpu_seconds": [...], "peak_bytes": n}`. Processor time is that of the
    /// calling thread only; the peak is that of the whole process.
    pub fn json(&self) -> Value {
        json!({
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "peak_bytes": self.peak_bytes,
        })
    }
}

/// Processor time of this thread (`man 5 proc`, `schedstat`); 0 if not available.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}

/// Reset `VmHWM` (`man 5 proc`, `clear_refs`). If that is not allowed, it stays the peak since the
/// start of the process, which is never too low.
fn reset_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// `VmHWM` of this process; 0 without `/proc`.
fn peak_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse().ok());
    kib.unwrap_or(0u64) * 1024
}
