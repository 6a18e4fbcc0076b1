//! Sequential tests in which processes of a run end or fork between any two requests of the manager.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;

use nearfar_kernel::tiering::testing::{self, PAGES, Step};
use nearfar_kernel::tiering::{Memory, make};
use proptest::prelude::*;

use super::sequential::{Live, NUMBERS};
use crate::ends::Watcher;
use crate::far::Node;
use crate::model::{ALL, Access, FIRST, Model, Process, Processes, Rules, Share, end, watch};
use crate::{Child, Range, Turn, Va};

/// An address space, and the state that all address spaces share.
#[derive(Clone)]
pub(super) struct Space {
    model: Rc<RefCell<Model>>,
    shared: Rc<SharedState>,
}

struct SharedState {
    spaces: RefCell<Vec<Space>>,
    processes: RefCell<Processes>,
    /// Acts, each with the number of the request before which it happens.
    due: RefCell<Vec<(u64, Act)>>,
    /// Whether an act has happened. The watchers run from then on.
    has_acted: Cell<bool>,
    forks: RefCell<Vec<Fork>>,
    /// Running processes, with their address spaces.
    running: RefCell<Vec<(u32, u32)>>,
}

/// An unfinished fork: the child's address space, the parent's, the unread message, the child process.
type Fork = (u32, u32, Option<u64>, u32);

#[derive(Clone, Copy, Debug)]
enum Act {
    End(Process),
    /// This process forks.
    Fork(u32),
    /// A thread of the program moves pages, and is preempted before its message.
    Move,
}

impl Space {
    /// The address space of a program with this number of pages.
    pub(super) fn new(pages: usize, seed: u64, rules: Rules) -> Self {
        let shared = Rc::new(SharedState {
            spaces: RefCell::default(),
            processes: RefCell::new(Processes::new(rules, 1)),
            due: RefCell::default(),
            has_acted: Cell::new(false),
            forks: RefCell::default(),
            running: RefCell::new(vec![(0, FIRST)]),
        });
        let first = Self { model: Rc::new(RefCell::new(Model::new(pages, seed, rules))), shared };
        first.shared.spaces.borrow_mut().push(first.clone());
        first
    }

    fn space(&self, number: u32) -> Self {
        self.shared.spaces.borrow()[number as usize].clone()
    }

    fn is_alive(&self, process: Process) -> bool {
        self.processes(|processes| processes.is_alive(process))
    }

    /// Fork `process`, which then waits until its message is read.
    fn fork(&self, process: u32) {
        let running =
            self.shared.running.borrow().iter().find(|(number, _)| *number == process).copied();
        let Some((_, parent)) = running.filter(|_| self.is_alive(Process::Program(process))) else {
            return;
        };
        let space = self.shared.spaces.borrow().len() as u32;
        let (model, message) = self.space(parent).with(|model| {
            model.current = process;
            model.fork(space)
        });
        let child = self.processes(|processes| processes.fork(process, space));
        let model = Rc::new(RefCell::new(model));
        self.shared.spaces.borrow_mut().push(Self { model, shared: Rc::clone(&self.shared) });
        self.shared.forks.borrow_mut().push((space, parent, message, child));
    }

    /// Start the children of finished forks. Then every process reads all pages for which it need not wait.
    fn read_all(&self) {
        let over = |(_, parent, message, _): &mut Fork| {
            message.is_none_or(|id| self.space(*parent).borrow().is_over(id))
        };
        let begun: Vec<_> = self.shared.forks.borrow_mut().extract_if(.., over).collect();
        for (space, _, _, child) in begun {
            if self.processes(|processes| processes.finish_fork(child)) {
                self.shared.running.borrow_mut().push((child, space));
            }
        }
        for (process, space) in self.shared.running.borrow().clone() {
            for at in (0..u64::from(2 * PAGES)).map(Va::new) {
                let waits = self.space(space).borrow().would_wait(at);
                if !waits && self.is_alive(Process::Program(process)) {
                    self.access(process, space, at);
                }
            }
        }
    }

    /// Read a page. Returns the fault for which the process waits, if it does.
    fn access(&self, process: u32, space: u32, at: Va) -> Option<u64> {
        self.space(space).with(|model| {
            model.current = process;
            match model.access(at, false) {
                Access::Waits(id) => Some(id),
                Access::Done | Access::Segv => None,
            }
        })
    }

    /// One step of launcher and keeper.
    fn watch(&self) {
        watch(self, Watcher::Launcher);
        watch(self, Watcher::Keeper);
    }
}

impl Deref for Space {
    type Target = RefCell<Model>;

    fn deref(&self) -> &RefCell<Model> {
        &self.model
    }
}

impl Share for Space {
    fn with<R>(&self, act: impl FnOnce(&mut Model) -> R) -> R {
        act(&mut self.model.borrow_mut())
    }

    fn child(&self, child: Child) -> Self {
        self.space(child.number())
    }

    fn processes<R>(&self, act: impl FnOnce(&mut Processes) -> R) -> R {
        act(&mut self.shared.processes.borrow_mut())
    }

    fn before(&self, requests: u64) {
        if self.shared.due.borrow().is_empty() && !self.shared.has_acted.get() {
            return;
        }
        let due = self
            .shared
            .due
            .borrow_mut()
            .extract_if(.., |(at, _)| *at <= requests)
            .collect::<Vec<_>>();
        for (_, act) in due {
            match act {
                Act::End(process) => end(self, process),
                Act::Fork(process) => self.fork(process),
                Act::Move if self.is_alive(Process::Program(0)) => {
                    let pages = u64::from(PAGES);
                    let range = Range::new(Va::new(pages - 8), Va::new(pages));
                    self.space(FIRST).with(|model| {
                        model.current = 0;
                        model.remap_unsent(range, Va::new(PAGES.into()))
                    });
                }
                Act::Move => {}
            }
            self.shared.has_acted.set(true);
            self.read_all();
        }
        if self.shared.has_acted.get() {
            self.watch();
            if requests.is_multiple_of(8) {
                self.read_all();
            }
        }
    }
}

/// A program that forks after `steps`. The numbers of requests in `acts` count from the fork.
#[derive(Clone, Debug)]
struct Case {
    policy: &'static str,
    mapped: bool,
    seed: u64,
    rules: Rules,
    steps: Vec<Step>,
    acts: Vec<(u64, Act)>,
    /// Every store to and load from the far tier fails from the fork on.
    far_fails: bool,
}

impl Case {
    /// Run until the program has ended and every remaining child has read all its pages. A read that does not
    /// return the last write panics. Returns the number of processes that launcher and keeper have killed,
    /// and whether the manager has failed.
    fn run(&self) -> (u32, bool) {
        let settings = testing::settings(self.policy).unwrap();
        let make = |mem: &mut dyn Memory| make(self.policy, &settings, mem);
        let (seed, mapped, rules) = (self.seed, self.mapped, self.rules);
        let mut live = Live::with_all(seed, 1, mapped, rules, NUMBERS, make).unwrap();
        live.run(&self.steps);
        if self.far_fails {
            live.manager.world.far = Box::new(Node);
        }
        let all = live.model.clone();
        let begin = all.processes(|processes| processes.requests);
        let acts = self.acts.iter().map(|(at, act)| (begin + at, *act));
        all.shared.due.borrow_mut().extend(acts);
        all.fork(0);
        let mut idle = 0;
        while idle < 64 {
            idle += 1;
            let alive = all.is_alive(Process::Manager);
            if alive && !all.processes(|processes| processes.has_failed()) {
                if !all.processes(|processes| processes.uses(FIRST)) && live.manager.is_settled() {
                    all.processes(Processes::finish);
                    end(&all, Process::Manager);
                } else {
                    match live.manager.turn() {
                        Ok(Turn::Busy) => idle = idle.min(32),
                        Ok(Turn::Until(due)) if due < u64::MAX => {
                            all.borrow_mut().pass_until(due);
                        }
                        Ok(Turn::Until(_)) => {}
                        Err(_) => {
                            all.processes(Processes::fail);
                            all.read_all();
                        }
                    }
                }
            }
            all.watch();
            if idle % 8 == 0 {
                all.read_all();
            }
            if idle == 32 {
                // Perform the remaining acts.
                all.before(u64::MAX);
                end(&all, Process::Program(0));
            }
        }
        // Every remaining process reads all pages without a wait.
        let alive = |process| all.is_alive(Process::Program(process));
        for (process, space) in
            all.shared.running.borrow().iter().filter(|(process, _)| alive(*process))
        {
            for at in (0..u64::from(2 * PAGES)).map(Va::new) {
                assert_eq!(all.access(*process, *space, at), None, "{process} waits at {at:?}");
            }
        }
        assert!(all.shared.forks.borrow().iter().all(|(.., child)| !alive(*child)), "a fork hangs");
        assert!(!all.is_alive(Process::Manager) && !all.is_alive(Process::Keeper));
        let failed = all.processes(|processes| processes.has_failed());
        (all.processes(|processes| processes.killed), failed)
    }
}

fn process(number: u32) -> Process {
    match number {
        0 => Process::Launcher,
        1 => Process::Manager,
        2 => Process::Keeper,
        number => Process::Program(number - 3),
    }
}

/// Number of requests until the pages of a child and a grandchild are copied.
const REQUESTS: u64 = 120;

/// End each process before each request, while pages are copied to a child and a grandchild.
fn all_ends(rules: Rules) {
    for (policy, mapped) in [("none", false), ("ssp", false), ("none", true), ("ssp", true)] {
        for (who, at) in (0..6).flat_map(|who| (0..REQUESTS).map(move |at| (who, at))) {
            let acts = vec![(12, Act::Fork(1)), (30, Act::Fork(2)), (at, Act::End(process(who)))];
            let (seed, steps) = (at % 7, (0..PAGES).map(Step::Write).collect());
            let (killed, _) =
                Case { policy, mapped, seed, rules, steps, acts, far_fails: false }.run();
            // If the program or a child ends, no other process is killed.
            assert!(who < 3 || killed == 0, "{policy}, {:?} before {at}: {killed}", process(who));
        }
    }
}

#[test]
fn no_end_of_a_process_loses_a_page() {
    all_ends(ALL);
}

#[test]
fn without_a_keeper_or_a_manager_that_survives_children_read_zeros() {
    for rules in [Rules { outlives: false, ..ALL }, Rules { keeper: false, ..ALL }] {
        let found = std::panic::catch_unwind(|| all_ends(rules));
        let found = found.expect_err("nothing is lost");
        let text = found.downcast_ref::<String>().map_or("", |text| text);
        assert!(text.contains("holds 0, and was last written"), "{rules:?}: {text}");
    }
}

/// A thread has moved memory, and the program is killed before the move's message. The child that another
/// thread has forked has the memory at an unknown address, and is killed too.
#[test]
fn a_child_with_pages_at_an_unknown_address_is_killed() {
    let mut failures = 0;
    for (mapped, at) in
        [false, true].into_iter().flat_map(|mapped| (0..24).map(move |at| (mapped, at)))
    {
        let (policy, seed, rules) = ("ssp", at, ALL);
        let acts = vec![(0, Act::Move), (0, Act::Fork(0)), (at, Act::End(Process::Program(0)))];
        let steps = (0..PAGES).map(Step::Write).collect();
        failures +=
            u32::from(Case { policy, mapped, seed, rules, steps, acts, far_fails: false }.run().1);
    }
    assert!(failures > 0);
}

/// A known exception: a process that shares memory without being a thread is killed while it unmaps. The
/// manager gets no message, and evicts pages that the other process has mapped there since.
#[test]
fn a_process_killed_in_munmap_can_lose_memory_of_one_that_shares_it() {
    let settings = testing::settings("ssp").unwrap();
    let make = |mem: &mut dyn Memory| make("ssp", &settings, mem);
    let mut live = Live::with_all(1, 1, false, ALL, NUMBERS, make).unwrap();
    let all = live.model.clone();
    let other = all.processes(|processes| processes.share(0));
    live.run(&(0..PAGES).map(Step::Write).collect::<Vec<_>>());
    let rest = PAGES - 8;
    let range = Range::new(Va::new(rest.into()), Va::new(PAGES.into()));
    all.with(|model| {
        model.current = other;
        model.unmap_unsent(range)
    });
    end(&all, Process::Program(other));
    all.with(|model| {
        model.current = 0;
        model.map(range);
    });
    let reads = std::panic::AssertUnwindSafe(|| {
        live.run(&(rest..PAGES).map(Step::Write).collect::<Vec<_>>());
        // References to the other pages evict these.
        for page in (0..8).flat_map(|_| 0..rest) {
            live.run(&[Step::Write(page), Step::Read(page), Step::Sleep]);
        }
        live.run(&(rest..PAGES).map(Step::Read).collect::<Vec<_>>());
    });
    let found = std::panic::catch_unwind(reads).expect_err("nothing is lost");
    let text = found.downcast_ref::<String>().map_or("", |text| text);
    assert!(text.contains("holds 0, and was last written"), "{text}");
}

/// If a page cannot be read from the far tier, no child reads zeros instead.
#[test]
fn a_far_tier_that_fails_ends_the_program_and_its_children() {
    for seed in 0..8 {
        let (steps, acts) = ((0..PAGES).map(Step::Write).collect(), Vec::new());
        let case =
            Case { policy: "none", mapped: false, seed, rules: ALL, steps, acts, far_fails: true };
        let (killed, failed) = case.run();
        assert!(killed > 0 && failed);
    }
}

fn acts() -> impl Strategy<Value = Vec<(u64, Act)>> {
    let act = prop_oneof![
        3 => (0..6u32).prop_map(|who| Act::End(process(who))),
        3 => (0..4u32).prop_map(Act::Fork),
        1 => Just(Act::Move),
    ];
    // At most one of launcher, manager and keeper is ended.
    proptest::collection::vec((0..REQUESTS, act), 0..5).prop_map(|mut acts| {
        acts.sort_by_key(|(at, _)| *at);
        let mut ours = 0;
        acts.retain(|(_, act)| {
            let is_ours =
                matches!(act, Act::End(process) if !matches!(process, Process::Program(_)));
            ours += u32::from(is_ours);
            !is_ours || ours == 1
        });
        acts
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn forks_and_ends_lose_nothing(steps in testing::steps(), acts in acts(), seed: u64, mapped: bool) {
        for policy in ["none", "ssp"] {
            let (steps, acts) = (steps.clone(), acts.clone());
            // Acts of processes that do not exist have no effect.
            Case { policy, mapped, seed, rules: ALL, steps, acts, far_fails: false }.run();
        }
    }
}
