//! The order in which a failed run is killed, as a state machine. Only tests use it, with the model of the
//! kernel in `model/`; the launcher (`supervise/`), the keeper (`preload/src/keeper.rs`) and `family.rs`
//! implement the same order on the real kernel.
//!
//! A missing page reads as zeros once the last descriptor of its userfaultfd is closed. The manager, which
//! serves the faults, and the keeper share one descriptor table. So both hold the userfaultfds of children from
//! their creation, and the keeper still does if the manager is killed; the launcher holds a copy of the
//! userfaultfd of each managed program. While the manager or the keeper exists, a reference to a missing page
//! waits. So the program's processes are killed first. The manager and the keeper follow when all of them have
//! ended: a process may run for a moment after SIGKILL. The **watcher** kills them: the launcher, or the keeper
//! if there is no launcher.
//!
//! The next step depends only on the observed state, so the keeper can take over from the launcher.

/// The process that kills a failed run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watcher {
    Launcher,
    Keeper,
}

/// The observed state of a run: which processes exist, and what the manager has reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunState {
    /// The watcher that observes it.
    pub by: Watcher,
    pub launcher: bool,
    pub manager: bool,
    pub keeper: bool,
    /// The manager has reported that only it still uses the program's memory, and that all children have all
    /// their pages.
    pub finished: bool,
    /// The manager has reported a failure, or makes no progress.
    pub failed: bool,
    /// A process exists that uses the program's memory, or descends from one that does. A killed process
    /// exists until it is a zombie.
    pub programs: bool,
}

/// The next step of a watcher. Afterwards it observes the state again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Wait,
    /// Kill the processes of the program with SIGKILL, and wait until none is left.
    KillPrograms,
    KillManager,
    KillKeeper,
    /// The run is over: the launcher closes its copies of descriptors; the keeper ends.
    Close,
}

impl RunState {
    /// Whether the run must be killed, because pages are or may be lost.
    pub fn is_lost(&self) -> bool {
        !self.finished && (self.failed || !self.manager)
    }

    pub fn next(&self) -> Step {
        let is_keeper = self.by == Watcher::Keeper;
        if self.finished && !self.manager {
            return Step::Close;
        }
        if is_keeper && self.launcher {
            // The launcher decides.
            return Step::Wait;
        }
        if !self.is_lost() {
            return Step::Wait;
        }
        if self.programs {
            Step::KillPrograms
        } else if self.manager {
            Step::KillManager
        } else if self.keeper && !is_keeper {
            Step::KillKeeper
        } else {
            Step::Close
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A program (`root`) and its child, which lacks pages until the manager has copied them.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
    struct Run {
        launcher: bool,
        manager: bool,
        keeper: bool,
        finished: bool,
        failed: bool,
        root: bool,
        child: bool,
        lacks: bool,
        /// The one failure of the run has happened.
        struck: bool,
    }

    impl Run {
        fn state(&self, by: Watcher) -> RunState {
            let Self { launcher, manager, keeper, finished, failed, root, child, .. } = *self;
            RunState { by, launcher, manager, keeper, finished, failed, programs: root || child }
        }

        /// The possible states after one step of a watcher, which kills one process at a time, in any order.
        fn watched(self, by: Watcher) -> Vec<Self> {
            let is_keeper = by == Watcher::Keeper;
            if !(if is_keeper { self.keeper } else { self.launcher }) {
                return Vec::new();
            }
            match self.state(by).next() {
                Step::Wait => Vec::new(),
                Step::KillPrograms => {
                    vec![Self { root: false, ..self }, Self { child: false, ..self }]
                }
                Step::KillManager => vec![Self { manager: false, ..self }],
                Step::KillKeeper => vec![Self { keeper: false, ..self }],
                Step::Close if is_keeper => vec![Self { keeper: false, ..self }],
                // The program ends with the launcher (PR_SET_PDEATHSIG).
                Step::Close => vec![Self { launcher: false, root: false, ..self }],
            }
        }

        /// The possible states after one step of any process.
        fn steps(self) -> Vec<Self> {
            let mut next = self.watched(Watcher::Launcher);
            next.extend(self.watched(Watcher::Keeper));
            if self.manager && !self.failed {
                if self.lacks {
                    next.push(Self { lacks: false, ..self });
                } else if self.finished {
                    next.push(Self { manager: false, ..self });
                } else if !self.root {
                    next.push(Self { finished: true, ..self });
                }
            }
            if self.root {
                next.push(Self { root: false, ..self });
            }
            if !self.lacks {
                next.push(Self { child: false, ..self });
            }
            next.retain(|run| *run != self);
            next
        }

        /// The possible states after one failure: a process is killed, or the manager fails.
        fn strikes(self) -> Vec<Self> {
            let struck = Self { struck: true, ..self };
            if self.struck {
                return Vec::new();
            }
            vec![
                Self { launcher: false, root: false, ..struck },
                Self { manager: false, ..struck },
                Self { keeper: false, ..struck },
                Self { failed: !self.finished, ..struck },
                Self { child: false, ..struck },
            ]
        }
    }

    #[test]
    fn no_process_reads_zeros_or_waits_for_ever() {
        let begin = Run {
            launcher: true,
            manager: true,
            keeper: true,
            root: true,
            child: true,
            lacks: true,
            ..Run::default()
        };
        let (mut seen, mut open) = (BTreeSet::new(), vec![begin]);
        while let Some(run) = open.pop() {
            if !seen.insert(run) {
                continue;
            }
            let held = run.manager || run.keeper;
            assert!(held || !(run.child && run.lacks), "the child reads zeros: {run:?}");
            assert!(held || run.launcher || !run.root, "the program reads zeros: {run:?}");
            let next = run.steps();
            if next.is_empty() {
                let over = !run.root && !run.child && !run.manager && !run.keeper && !run.launcher;
                assert!(over, "it makes no progress: {run:?}");
            }
            open.extend(next);
            open.extend(run.strikes());
        }
        assert!(seen.len() > 50);
    }
}
