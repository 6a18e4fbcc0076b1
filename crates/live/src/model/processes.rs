//! The model of processes, and of the holders of userfaultfds.
//!
//! The **manager** runs in the program's address space. It shares its table of file descriptors with the
//! **keeper**, which has its own memory. When the manager reads the message of a fork, the kernel puts the
//! child's userfaultfd into that table. The **launcher** has a copy of the program's userfaultfd. When the
//! last descriptor of a userfaultfd is closed, waiting threads are woken, and missing pages read as zeros
//! from then on. Launcher and keeper are **watchers**: they kill a failed run (`ends.rs`).

use std::collections::BTreeSet;

use super::{Model, Rules};
use crate::Child;
use crate::ends::{RunState, Step, Watcher};

/// The number of the program's address space. Children have higher numbers.
pub(crate) const FIRST: u32 = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Process {
    Launcher,
    Manager,
    Keeper,
    /// The program (0), or a process that it has created.
    Program(u32),
}

impl Process {
    fn of(watcher: Watcher) -> Self {
        match watcher {
            Watcher::Launcher => Self::Launcher,
            Watcher::Keeper => Self::Keeper,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Program {
    space: u32,
    alive: bool,
    /// Number of running threads.
    threads: u32,
    /// The process that is creating it by an unfinished fork.
    made_by: Option<u32>,
}

/// All processes of a run.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    rules: Rules,
    launcher: bool,
    manager: bool,
    keeper: bool,
    /// The manager has reported that it has finished, or failed.
    finished: bool,
    failed: bool,
    programs: Vec<Program>,
    /// Address spaces whose userfaultfd is in the descriptor table of manager and keeper.
    table: BTreeSet<u32>,
    /// Address spaces whose userfaultfd is open.
    held: BTreeSet<u32>,
    /// Number of requests of the manager.
    pub(crate) requests: u64,
    /// Number of processes that the launcher or the keeper has killed.
    pub(crate) killed: u32,
}

/// The effects of the end of a process.
struct Ended {
    /// Processes of the program that are dead, with their address spaces.
    programs: Vec<(u32, u32)>,
    /// Address spaces whose userfaultfd was closed.
    released: Vec<u32>,
}

impl Processes {
    /// A managed program: one process with this many threads.
    pub(crate) fn new(rules: Rules, threads: u32) -> Self {
        let first = Program { space: FIRST, alive: true, threads, made_by: None };
        Self {
            rules,
            launcher: true,
            manager: true,
            keeper: rules.keeper,
            programs: vec![first],
            table: BTreeSet::from([FIRST]),
            held: BTreeSet::from([FIRST]),
            ..Self::default()
        }
    }

    pub(crate) fn is_alive(&self, process: Process) -> bool {
        match process {
            Process::Launcher => self.launcher,
            Process::Manager => self.manager,
            Process::Keeper => self.keeper,
            Process::Program(number) => {
                self.programs.get(number as usize).is_some_and(|program| program.alive)
            }
        }
    }

    /// The live processes of the program.
    pub(crate) fn programs(&self) -> Vec<u32> {
        (0..self.programs.len() as u32).filter(|n| self.programs[*n as usize].alive).collect()
    }

    /// Replace a thread by a process that uses the same memory (`clone` with `CLONE_VM`).
    pub(crate) fn share(&mut self, with: u32) -> u32 {
        let program = &mut self.programs[with as usize];
        program.threads -= 1;
        let new = Program { threads: 1, ..*program };
        self.programs.push(new);
        self.programs.len() as u32 - 1
    }

    /// Begin a fork whose child has this address space.
    pub(crate) fn fork(&mut self, parent: u32, space: u32) -> u32 {
        self.programs.push(Program { space, alive: true, threads: 1, made_by: Some(parent) });
        self.programs.len() as u32 - 1
    }

    /// Finish a fork. Returns whether the child runs: not if its parent was killed meanwhile.
    pub(crate) fn finish_fork(&mut self, child: u32) -> bool {
        let child = &mut self.programs[child as usize];
        child.made_by = None;
        child.alive
    }

    /// End a thread. Returns whether its process ends with it.
    pub(crate) fn thread_ends(&mut self, process: u32) -> bool {
        let program = &mut self.programs[process as usize];
        program.threads -= 1;
        program.threads == 0
    }

    /// Whether no other process, dead or alive, has this address space.
    pub(crate) fn is_alone(&self, process: u32) -> bool {
        let space = self.programs[process as usize].space;
        self.programs.iter().filter(|program| program.space == space).count() == 1
    }

    /// Whether a process of the program uses this address space.
    pub(crate) fn uses(&self, space: u32) -> bool {
        self.programs.iter().any(|program| program.alive && program.space == space)
    }

    /// The message of a fork was read: the child's userfaultfd is in the reader's table.
    pub(super) fn adopt(&mut self, child: Child) {
        self.table.insert(child.number());
        self.held.insert(child.number());
    }

    /// Whether a child's pages are being copied.
    pub(crate) fn serves_a_child(&self) -> bool {
        self.table.len() > 1
    }

    /// Close a child's userfaultfd. Returns whether it was the last descriptor.
    pub(super) fn close(&mut self, child: Child) -> bool {
        self.table.remove(&child.number());
        self.held.remove(&child.number())
    }

    pub(crate) fn finish(&mut self) {
        self.finished = true;
    }

    pub(crate) fn fail(&mut self) {
        self.failed = true;
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// The state that a watcher observes.
    pub(crate) fn state(&self, by: Watcher) -> RunState {
        RunState {
            by,
            launcher: self.launcher,
            manager: self.manager,
            // A run that never had a keeper is not killed for lack of one.
            keeper: if self.rules.keeper { self.keeper } else { self.manager },
            finished: self.finished,
            failed: self.failed,
            programs: self.programs.iter().any(|program| program.alive),
        }
    }

    fn end(&mut self, process: Process) -> Ended {
        let before = self.programs();
        match process {
            Process::Launcher => {
                self.launcher = false;
                // PR_SET_PDEATHSIG: the program's first process dies with the launcher.
                self.end_program(0);
            }
            Process::Manager => self.manager = false,
            Process::Keeper => self.keeper = false,
            Process::Program(number) => self.end_program(number),
        }
        if !self.rules.outlives && !self.programs[0].alive && self.manager {
            // A manager that is a thread of the program ends with it, without a failure.
            (self.manager, self.finished) = (false, true);
        }
        let now = self.programs();
        let dead = before.into_iter().filter(|number| !now.contains(number));
        let open = self.manager || self.keeper;
        let (launcher, table) = (self.launcher, &self.table);
        let is_held = |space: u32| (open && table.contains(&space)) || (space == FIRST && launcher);
        let released: Vec<u32> =
            self.held.iter().copied().filter(|space| !is_held(*space)).collect();
        self.held.retain(|space| is_held(*space));
        Ended {
            programs: dead.map(|number| (number, self.programs[number as usize].space)).collect(),
            released,
        }
    }

    fn end_program(&mut self, number: u32) {
        let Some(program) = self.programs.get_mut(number as usize) else { return };
        program.alive = false;
        // A fork fails if its thread has a fatal signal.
        for program in &mut self.programs {
            program.alive &= program.made_by != Some(number);
        }
    }
}

/// Shared access to the model.
pub(crate) trait Share {
    /// Access the model exclusively.
    fn with<R>(&self, act: impl FnOnce(&mut Model) -> R) -> R;
    /// Access to the address space of a child; 0 is the program.
    fn child(&self, child: Child) -> Self;
    /// Access the processes exclusively.
    fn processes<R>(&self, act: impl FnOnce(&mut Processes) -> R) -> R;
    /// Called when processes have changed.
    fn ring(&self) {}
    /// Called before a request of the manager, with the number of earlier ones.
    fn before(&self, _requests: u64) {}
    /// Let other threads run.
    fn yield_now(&self) {}
}

/// One step of a watcher, which kills at most one process. Returns false if the watcher has ended.
pub(crate) fn watch<S: Share>(share: &S, by: Watcher) -> bool {
    let watcher = Process::of(by);
    if !share.processes(|processes| processes.is_alive(watcher)) {
        return false;
    }
    match share.processes(|processes| processes.state(by).next()) {
        Step::Wait => {}
        Step::KillPrograms => {
            let first = share.processes(|processes| {
                let first = processes.programs().first().copied();
                processes.killed += u32::from(first.is_some());
                first
            });
            if let Some(first) = first {
                end(share, Process::Program(first));
            }
        }
        Step::KillManager => end(share, Process::Manager),
        Step::KillKeeper => end(share, Process::Keeper),
        Step::Close => end(share, watcher),
    }
    true
}

/// Whether a watcher has nothing to do now.
pub(crate) fn waits<S: Share>(share: &S, by: Watcher) -> bool {
    share.processes(|processes| {
        processes.is_alive(Process::of(by)) && processes.state(by).next() == Step::Wait
    })
}

/// End a process as the kernel does: close its descriptors, and stop its waits.
pub(crate) fn end<S: Share>(share: &S, process: Process) {
    let ended = share.processes(|processes| processes.end(process));
    for (number, space) in ended.programs {
        share.child(Child::new(space)).with(|model| model.abort(number));
    }
    for space in ended.released {
        release(&share.child(Child::new(space)));
    }
    // `with` wakes the manager, which may wait for messages.
    share.child(Child::new(FIRST)).with(|_| ());
    share.ring();
}

/// Close a userfaultfd, and with it those of children whose messages were not read.
pub(super) fn release<S: Share>(share: &S) {
    for child in share.with(Model::unregister) {
        release(&share.child(child));
    }
}
