//! Who is there, and who holds which userfaultfd: what the model says of the ends of processes.
//!
//! The **manager** shares the program's address space, and has a table of files that it shares with the
//! **keeper**, which has memory of its own. The kernel puts a child's userfaultfd into that table when
//! the message of the fork is read. The **launcher** has a copy of the program's own. A userfaultfd that
//! nobody holds any more is released: who waits is woken, and missing pages read as zeros from then on.

use std::collections::BTreeSet;

use super::{Model, Rules};
use crate::Child;
use crate::ends::{Seen, Watcher};

/// The program's address space, by number; the others are its children's.
pub(crate) const FIRST: u32 = 0;

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Process {
    /// Starts the program, and has a copy of its userfaultfd.
    Launcher,
    Manager,
    Keeper,
    /// The program (0), or one that it made.
    Program(u32),
}

#[derive(Clone, Copy, Debug)]
struct Program {
    space: u32,
    alive: bool,
    /// Threads that still run.
    threads: u32,
    /// Who is making it by a fork that is not over.
    made_by: Option<u32>,
}

/// All processes of a run.
#[derive(Debug)]
pub(crate) struct Processes {
    rules: Rules,
    launcher: bool,
    manager: bool,
    keeper: bool,
    /// The manager has said that it has nothing left to do, or that it cannot go on.
    finished: bool,
    failed: bool,
    programs: Vec<Program>,
    /// Address spaces whose userfaultfd is in the files table of manager and keeper.
    table: BTreeSet<u32>,
    /// Those whose userfaultfd somebody holds.
    held: BTreeSet<u32>,
    /// Requests that the manager has made.
    pub(crate) requests: u64,
    /// Processes that were ended by the launcher or the keeper.
    pub(crate) killed: u32,
}

/// What the end of a process leads to.
struct Ended {
    /// Processes of the program that are dead, with their address spaces.
    programs: Vec<(u32, u32)>,
    /// Address spaces whose userfaultfd nobody holds any more.
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
            finished: false,
            failed: false,
            programs: vec![first],
            table: BTreeSet::from([FIRST]),
            held: BTreeSet::from([FIRST]),
            requests: 0,
            killed: 0,
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

    /// The program's processes that are alive.
    pub(crate) fn programs(&self) -> Vec<u32> {
        (0..self.programs.len() as u32).filter(|n| self.programs[*n as usize].alive).collect()
    }

    /// A process that uses the same memory (`clone` with `CLONE_VM`), for one of the threads that there
    /// were.
    pub(crate) fn share(&mut self, with: u32) -> u32 {
        let program = &mut self.programs[with as usize];
        program.threads -= 1;
        let new = Program { threads: 1, ..*program };
        self.programs.push(new);
        self.programs.len() as u32 - 1
    }

    /// A fork begins, of which this address space is the child's.
    pub(crate) fn fork(&mut self, parent: u32, space: u32) -> u32 {
        self.programs.push(Program { space, alive: true, threads: 1, made_by: Some(parent) });
        self.programs.len() as u32 - 1
    }

    /// The fork is over: the child runs, unless its parent was killed meanwhile.
    pub(crate) fn begins(&mut self, child: u32) -> bool {
        let child = &mut self.programs[child as usize];
        child.made_by = None;
        child.alive
    }

    /// A thread ends; whether its process ends with it.
    pub(crate) fn thread_ends(&mut self, process: u32) -> bool {
        let program = &mut self.programs[process as usize];
        program.threads -= 1;
        program.threads == 0
    }

    /// Whether no other process uses its memory.
    pub(crate) fn is_alone(&self, process: u32) -> bool {
        let space = self.programs[process as usize].space;
        self.programs.iter().filter(|program| program.space == space).count() == 1
    }

    /// Whether a process of the program uses this address space.
    pub(crate) fn uses(&self, space: u32) -> bool {
        self.programs.iter().any(|program| program.alive && program.space == space)
    }

    /// A message of a fork is read: the child's userfaultfd is in the reader's table.
    pub(super) fn adopt(&mut self, child: Child) {
        self.table.insert(child.number());
        self.held.insert(child.number());
    }

    /// Whether a child is being given its pages.
    pub(crate) fn serves_a_child(&self) -> bool {
        self.table.len() > 1
    }

    /// A child's userfaultfd is closed; whether that was the last.
    pub(super) fn close(&mut self, child: Child) -> bool {
        self.table.remove(&child.number());
        self.held.remove(&child.number())
    }

    /// The manager has nothing left to do, and ends.
    pub(crate) fn finish(&mut self) {
        self.finished = true;
    }

    /// The manager cannot go on.
    pub(crate) fn fail(&mut self) {
        self.failed = true;
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// What launcher and keeper go by.
    pub(crate) fn seen(&self, by: Watcher) -> Seen {
        Seen {
            by,
            launcher: self.launcher,
            manager: self.manager,
            // Without one, nobody misses it.
            keeper: if self.rules.keeper { self.keeper } else { self.manager },
            finished: self.finished,
            failed: self.failed,
            root: self.programs[0].alive,
            programs: self.programs.iter().any(|program| program.alive),
        }
    }

    fn end(&mut self, process: Process) -> Ended {
        let before = self.programs();
        match process {
            Process::Launcher => {
                self.launcher = false;
                // PR_SET_PDEATHSIG.
                self.end_program(0);
            }
            Process::Manager => self.manager = false,
            Process::Keeper => self.keeper = false,
            Process::Program(number) => self.end_program(number),
        }
        if !self.rules.outlives && !self.programs[0].alive && self.manager {
            // A thread of the program: that it ends with it is no fault.
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
        // A fork whose thread has a fatal signal makes no child.
        for program in &mut self.programs {
            program.alive &= program.made_by != Some(number);
        }
    }
}

/// Who shares the model, and how.
pub(crate) trait Share {
    /// Do something while nobody else does.
    fn with<R>(&self, act: impl FnOnce(&mut Model) -> R) -> R;
    /// The child of this number; 0 is the program.
    fn child(&self, child: Child) -> Self;
    /// Look at the processes, or change them. Nothing else may be done meanwhile.
    fn processes<R>(&self, act: impl FnOnce(&mut Processes) -> R) -> R;
    /// Processes have changed.
    fn ring(&self) {}
    /// A request is made of the kernel, after this many others.
    fn before(&self, _requests: u64) {}
    /// Let others do something.
    fn yield_now(&self) {}
}

/// End a process, with what the kernel does then: its descriptors are closed, and what it waits for is
/// given up.
pub(crate) fn end<S: Share>(share: &S, process: Process) {
    let ended = share.processes(|processes| processes.end(process));
    for (number, space) in ended.programs {
        share.child(Child::new(space)).with(|model| model.abort(number));
    }
    for space in ended.released {
        release(&share.child(Child::new(space)));
    }
    // The manager may wait for messages.
    share.child(Child::new(FIRST)).with(|_| ());
    share.ring();
}

/// A userfaultfd is closed by its last holder: with it go those of children that nobody has heard of.
pub(super) fn release<S: Share>(share: &S) {
    for child in share.with(Model::unregister) {
        release(&share.child(child));
    }
}
