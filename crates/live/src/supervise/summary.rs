//! The summary of a run.

use std::fs;
use std::sync::atomic::Ordering;

use serde::Serialize;

use crate::shared::Block;
use crate::{Counters, PAGE};

/// The result of a run, or of the run so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// All processes' counters.
    pub counters: Counters,
    /// Number of managed process images.
    pub images: u64,
    /// Sampled peak of the pages in use by all processes: fast, far, in the window (far pages in memory).
    pub peak: [u64; 3],
    /// Peak bytes of the far tier.
    pub far_bytes: u64,
    /// The latest sample: pages as in `peak`, and bytes of the far tier.
    pub now: [u64; 4],
    /// Processor time of the managers: the processes that serve the program's page faults.
    pub manager_seconds: f64,
    /// Resident memory at its peak.
    #[serde(flatten)]
    pub resident: Resident,
    /// Seconds from start to end.
    pub seconds: f64,
    /// Processor time of the program and of its managers, user and system.
    pub cpu_seconds: [f64; 2],
    /// The program's exit code, or 128 and the signal.
    pub exit_code: i32,
    /// The program has left a core file, in which far pages are missing.
    pub core_dumped: bool,
    /// Why the run was killed, if it was.
    pub why: Option<String>,
}

/// Resident private memory of all managed processes, and the parts of it that are not counted as fast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Resident {
    /// Resident private memory, without the managers' own.
    pub resident_bytes: u64,
    /// Number of processes.
    pub resident_processes: u64,
    /// In unmanaged mappings: those from before the program's `main`.
    pub unmanaged_bytes: u64,
    /// Far pages that are pinned in memory: locked, shared with a child, or used for I/O.
    pub held_bytes: u64,
}

impl Resident {
    pub(super) fn add(&mut self, block: &Block) {
        // A manager shares the program's memory, so its `statm` covers both.
        let Some(bytes) = anonymous_bytes(block.manager.load(Ordering::Relaxed)) else { return };
        let manager_bytes = block.own_bytes.load(Ordering::Relaxed);
        let [fast, _, window, _] = block.used();
        let bytes = bytes.saturating_sub(manager_bytes);
        self.resident_bytes += bytes;
        self.resident_processes += 1;
        self.unmanaged_bytes += bytes.saturating_sub((fast + window) * PAGE as u64);
        self.held_bytes += block.held_pages.load(Ordering::Relaxed) * PAGE as u64;
    }
}

/// Resident private memory of a process in bytes.
fn anonymous_bytes(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    // In pages: size, resident, shared (file-backed and shmem), ...
    let mut pages = text.split(' ').skip(1).map_while(|word| word.parse::<u64>().ok());
    let (resident, shared) = (pages.next()?, pages.next()?);
    Some(resident.saturating_sub(shared) * PAGE as u64)
}
