//! A block: the shared state of one process image.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::text::Text;
use super::{COUNTERS, read_counters};
use crate::Counters;
use crate::linux::monotonic;

/// A PID that no process has: Linux PIDs are below 2^22.
pub(crate) const NOBODY: u32 = i32::MAX as u32;

/// The state of a process image: in turn `Ready`, `Held`, `Running` and `Ended`. If the policy runs in the
/// launcher, `Connecting` and `Connected` come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// The block is free.
    Free = 0,
    /// The process waits until the launcher holds a copy of its userfaultfd.
    Ready = 1,
    /// The launcher holds a copy of the userfaultfd.
    Held = 2,
    /// The manager runs.
    Running = 3,
    /// The manager has failed or is gone, so the run must be killed. The block has the reason.
    Failed = 4,
    /// The program has ended, and the manager has finished.
    Ended = 5,
    /// The process waits until the launcher has copied the descriptor [`socket`](Block::socket).
    Connecting = 6,
    /// The policy in the launcher is connected, and is being started.
    Connected = 7,
}

impl State {
    fn of(number: u32) -> Self {
        use State::{Connected, Connecting, Ended, Failed, Free, Held, Ready, Running};
        [Free, Ready, Held, Running, Failed, Connecting, Connected]
            .into_iter()
            .find(|s| *s as u32 == number)
            .unwrap_or(Ended)
    }
}

/// One process image, from its start to its exec or end.
#[derive(Debug)]
#[repr(C, align(1024))]
pub struct Block {
    state: AtomicU32,
    /// PID of the process; 0 for none.
    pub pid: AtomicU32,
    /// PID of the manager; 0 for none.
    pub manager: AtomicU32,
    /// PID of the keeper, which holds the userfaultfds open if the manager is killed; 0 for none.
    pub keeper: AtomicU32,
    /// The process's descriptor of its userfaultfd, for the launcher to copy.
    pub descriptor: AtomicU32,
    /// Bytes of the manager's own memory and of spare frames.
    pub own_bytes: AtomicU64,
    /// Pages that should have left the program's memory but are pinned there.
    pub held_pages: AtomicU64,
    /// The process's descriptor of the launcher's end of the socket to the policy, for the launcher to copy.
    pub socket: AtomicU32,
    /// Whether the manager waits for the policy in the launcher.
    pub(super) waits: AtomicU32,
    /// When the manager last made progress, in nanoseconds of CLOCK_MONOTONIC.
    pub heartbeat: AtomicU64,
    /// In use: fast pages, far pages including shadows (far copies of fast pages), pages in the window (far
    /// pages that are mapped without a promotion), bytes of the far tier.
    pub used: [AtomicU64; 4],
    /// Maximum of the launcher's samples of `used`. Written by the launcher.
    pub peak: [AtomicU64; 4],
    /// Processor time of the manager, nanoseconds.
    pub manager_ns: AtomicU64,
    pub(super) counters: [AtomicU64; COUNTERS],
    /// Why the manager has failed; at most 256 bytes.
    why: Text<64>,
}

impl Block {
    pub fn state(&self) -> State {
        State::of(self.state.load(Ordering::Acquire))
    }

    pub fn set_state(&self, state: State) {
        self.state.store(state as u32, Ordering::Release);
    }

    /// Make `manager` the manager of `program`. Returns false if the launcher has freed the block or
    /// given it up.
    pub fn take(&self, program: u32, manager: u32) -> bool {
        self.pid.load(Ordering::Acquire) == program && self.set_manager(manager)
    }

    /// Prevent a manager from taking the block. Returns false if one has taken it.
    pub fn give_up(&self) -> bool {
        self.set_manager(NOBODY)
    }

    /// Set the manager. Returns false if one is set.
    fn set_manager(&self, pid: u32) -> bool {
        self.manager.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Set the state to `to` if it is `from`. Returns whether it was.
    pub fn change_state(&self, from: State, to: State) -> bool {
        let (from, to) = (from as u32, to as u32);
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Record a failure. The first reason stays.
    pub fn fail(&self, why: &str) {
        if self.state() != State::Failed {
            self.why.set(why);
            self.set_state(State::Failed);
        }
    }

    pub fn why(&self) -> String {
        self.why.get()
    }

    /// Record that the manager makes progress.
    pub fn beat(&self) {
        self.heartbeat.store(monotonic(), Ordering::Relaxed);
    }

    /// Record a heartbeat, and whether the manager waits for its policy.
    pub fn set_waits(&self, waits: bool) {
        self.beat();
        self.waits.store(waits.into(), Ordering::Relaxed);
    }

    pub fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed) != 0
    }

    pub fn publish(&self, counters: &Counters) {
        for (word, number) in self.counters.iter().zip(counters.numbers()) {
            word.store(number, Ordering::Relaxed);
        }
    }

    pub fn used(&self) -> [u64; 4] {
        std::array::from_fn(|i| self.used[i].load(Ordering::Relaxed))
    }

    pub fn counters(&self) -> Counters {
        read_counters(&self.counters)
    }
}
