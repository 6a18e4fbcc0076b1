//! The head of the shared memory: the state of the run as a whole.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::text::Text;
use super::{COUNTERS, read_counters};
use crate::Counters;
use crate::setup::Setup;

/// The launcher and the reaper write the head; any process may write `top`. A process image (from its
/// start to its exec or end) has its own [block](super::Block).
#[derive(Debug)]
#[repr(C, align(8192))]
pub struct Head {
    pub(super) magic: AtomicU64,
    /// PID of the launcher.
    pub launcher: AtomicU32,
    /// PID of the reaper, the process between the launcher and the program.
    pub reaper: AtomicU32,
    /// The exit status of the program's first process, with bit 32 set once it has ended.
    root_status: AtomicU64,
    is_over: AtomicU32,
    exit_code: AtomicU32,
    /// Start time, in nanoseconds of CLOCK_MONOTONIC.
    pub began: AtomicU64,
    /// Maximum sampled sums of [`Block::used`](super::Block::used) over all processes.
    pub peak: [AtomicU64; 4],
    /// Blocks in use have indices below this.
    pub(super) top: AtomicU32,
    /// Number of process images that have ended and whose blocks were freed.
    pub(super) past_images: AtomicU64,
    /// Sums of the counters of these process images.
    pub(super) past: [AtomicU64; COUNTERS],
    pub(super) past_manager_ns: AtomicU64,
    pub(super) setup: Text<1600>,
    /// Why the program was killed; empty if it was not.
    why: Text<64>,
}

impl Head {
    /// The run's setup, without the knobs.
    pub fn setup(&self) -> Setup {
        Setup::from_text(&self.setup.get()).unwrap_or_default()
    }

    /// Record that the program's first process has ended, with its wait status.
    pub(crate) fn end_root(&self, status: i32) {
        self.root_status.store(1 << 32 | u64::from(status as u32), Ordering::Release);
    }

    /// The exit status of the program's first process, if it has ended.
    pub fn root_ended(&self) -> Option<ExitStatus> {
        let status = self.root_status.load(Ordering::Acquire);
        (status >> 32 != 0).then(|| ExitStatus::from_raw(status as u32 as i32))
    }

    /// Record that the run is over: the exit code, and why the program was killed if it was.
    pub fn end(&self, exit_code: i32, why: Option<&str>) {
        self.exit_code.store(exit_code as u32, Ordering::Relaxed);
        self.why.set(why.unwrap_or_default());
        self.is_over.store(1, Ordering::Release);
    }

    /// The number of process images that have ended, their counters, and their managers' processor time in
    /// nanoseconds.
    pub fn past(&self) -> (u64, Counters, u64) {
        (
            self.past_images.load(Ordering::Relaxed),
            read_counters(&self.past),
            self.past_manager_ns.load(Ordering::Relaxed),
        )
    }

    /// The arguments of [`end`](Self::end), if the run is over.
    pub fn ended(&self) -> Option<(i32, Option<String>)> {
        let is_over = self.is_over.load(Ordering::Acquire) != 0;
        let why = Some(self.why.get()).filter(|why| !why.is_empty());
        is_over.then(|| (self.exit_code.load(Ordering::Relaxed) as i32, why))
    }
}
