//! The order in which a run is killed if a manager cannot go on, as a state machine for the model: what the
//! launcher (`supervise.rs`), the keeper (`preload/src/keeper.rs`) and `family.rs` do on the real kernel.
//!
//! A page that is missing in a process of the program reads as zeros as soon as nobody holds the process's
//! userfaultfd. The manager and the keeper share one table of descriptors, so both hold those of children from
//! the moment at which the kernel makes them; the launcher holds copies of the programs' own. While the manager
//! or the keeper is there, whoever touches a missing page waits. So the processes that might do so are killed
//! first and waited for, as a process that was sent a signal may run on for a moment. Then the holders are
//! killed. The **watcher** does this: the launcher, and where that is gone, the keeper.
//!
//! The next step follows from what is seen alone, so a watcher that takes over from another goes on where that
//! one was killed.

/// Who looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watcher {
    /// The launcher.
    Launcher,
    /// The keeper.
    Keeper,
}

/// What is seen of a program, its manager and its keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Who sees it.
    pub by: Watcher,
    /// The launcher is there.
    pub launcher: bool,
    /// The manager is there.
    pub manager: bool,
    /// The keeper is there.
    pub keeper: bool,
    /// The manager has said that it has nothing left to do: nobody but itself uses the program's memory, and
    /// all children have all their pages. It says so before it ends.
    pub finished: bool,
    /// The manager has said that it cannot go on, or has not been heard of for too long.
    pub failed: bool,
    /// The process that the launcher has started is there.
    pub root: bool,
    /// Processes that use the program's memory, or come from one that does, are there. One that was killed
    /// is there until it is a zombie.
    pub programs: bool,
}

/// What a watcher does next; after it, it looks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing is to be done.
    Wait,
    /// Kill the processes of the program with SIGKILL, and wait until none is left.
    KillPrograms,
    /// Kill the manager.
    KillManager,
    /// Kill the keeper.
    KillKeeper,
    /// Close what the watcher holds itself: the launcher its copies; the keeper ends.
    Close,
}

impl Seen {
    /// Whether the run must be ended, as pages are lost or may be.
    pub fn is_lost(&self) -> bool {
        !self.finished && (self.failed || !self.manager)
    }

    /// What to do next.
    pub fn next(&self) -> Step {
        let is_keeper = self.by == Watcher::Keeper;
        if self.finished && !self.manager {
            return Step::Close;
        }
        if is_keeper && self.launcher {
            // The launcher does it.
            return Step::Wait;
        }
        if !self.is_lost() {
            // The manager finishes what it has begun, and the keeper looks after it.
            return if is_keeper || self.root { Step::Wait } else { Step::Close };
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

    /// A program (`root`) and its child, which lacks pages until the manager has given it them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Run {
        launcher: bool,
        manager: bool,
        keeper: bool,
        finished: bool,
        failed: bool,
        root: bool,
        child: bool,
        lacks: bool,
        /// Something has ended or failed that must not.
        struck: bool,
    }

    impl Run {
        fn seen(&self, by: Watcher) -> Seen {
            let Self { launcher, manager, keeper, finished, failed, root, child, .. } = *self;
            Seen { by, launcher, manager, keeper, finished, failed, root, programs: root || child }
        }

        /// What one step of a watcher leads to: a process at a time, in any order.
        fn watched(self, by: Watcher) -> Vec<Self> {
            let is_keeper = by == Watcher::Keeper;
            if !(if is_keeper { self.keeper } else { self.launcher }) {
                return Vec::new();
            }
            match self.seen(by).next() {
                Step::Wait => Vec::new(),
                Step::KillPrograms => {
                    vec![Self { root: false, ..self }, Self { child: false, ..self }]
                }
                Step::KillManager => vec![Self { manager: false, ..self }],
                Step::KillKeeper => vec![Self { keeper: false, ..self }],
                Step::Close if is_keeper => vec![Self { keeper: false, ..self }],
                // What ends is the program, if it is there, as its parent has.
                Step::Close => vec![Self { launcher: false, root: false, ..self }],
            }
        }

        /// What happens by itself or by a watcher.
        fn goes_on(self) -> Vec<Self> {
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

        /// One process is killed, or the manager cannot go on.
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
    fn nobody_reads_zeros_and_nobody_waits_for_ever() {
        let begin = Run {
            launcher: true,
            manager: true,
            keeper: true,
            finished: false,
            failed: false,
            root: true,
            child: true,
            lacks: true,
            struck: false,
        };
        let (mut seen, mut open) = (BTreeSet::new(), vec![begin]);
        while let Some(run) = open.pop() {
            if !seen.insert(run) {
                continue;
            }
            let held = run.manager || run.keeper;
            assert!(held || !(run.child && run.lacks), "the child reads zeros: {run:?}");
            assert!(held || run.launcher || !run.root, "the program reads zeros: {run:?}");
            let next = run.goes_on();
            if next.is_empty() {
                let over = !run.root && !run.child && !run.manager && !run.keeper && !run.launcher;
                assert!(over, "it goes no further: {run:?}");
            }
            open.extend(next);
            open.extend(run.strikes());
        }
        assert!(seen.len() > 50);
    }
}
