//! The manager and the threads of a program, interleaved by a scheduler in many orders.

use std::sync::atomic::{AtomicUsize, Ordering};

use nearfar_kernel::tiering::testing::settings;
use nearfar_kernel::tiering::{Made, Memory, Settings, make};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::{Config, MaxSteps, Runner, thread};

use super::{Plain, make_remote, sizes};
use crate::ends::Watcher;
use crate::manager::{AMBIGUOUS, LOST};
use crate::model::{
    ALL, Access, FIRST, Model, ModelKernel, Process, Processes, Rules, Share, end, waits, watch,
};
use crate::numbers::GROUP;
use crate::{Child, Event, Manager, Range, Turn, Va, World};

/// Number of runs that ended because the order of messages was ambiguous.
static AMBIGUOUS_RUNS: AtomicUsize = AtomicUsize::new(0);
/// Pages of the program's address space.
const PAGES: u64 = 12;

/// The error of an action by a thread whose process is dead.
struct Dead;

/// A process's view of an address space.
#[derive(Clone)]
struct Shared {
    model: Arc<Mutex<Model>>,
    /// Notified after each change of `model`.
    changed: Arc<Condvar>,
    /// The process that acts.
    process: u32,
    /// All processes. Not a mutex of the scheduler: it is never locked at a thread switch.
    processes: Arc<std::sync::Mutex<Processes>>,
    /// Rung when a process ends.
    bell: Arc<(Mutex<()>, Condvar)>,
    /// The program, and children by number.
    children: Arc<Mutex<Vec<Shared>>>,
    /// Held while memory is moved or released: the order of both in the same range must be defined.
    places: Arc<Mutex<()>>,
}

impl Share for Shared {
    fn with<R>(&self, act: impl FnOnce(&mut Model) -> R) -> R {
        let done = act(&mut self.model.lock().unwrap());
        self.changed.notify_all();
        done
    }

    fn child(&self, child: Child) -> Self {
        self.children.lock().unwrap()[child.number() as usize].clone()
    }

    fn processes<R>(&self, act: impl FnOnce(&mut Processes) -> R) -> R {
        act(&mut self.processes.lock().unwrap())
    }

    fn ring(&self) {
        drop(self.bell.0.lock().unwrap());
        self.bell.1.notify_all();
    }

    fn yield_now(&self) {
        thread::yield_now();
    }
}

impl Shared {
    fn is_alive(&self, process: Process) -> bool {
        self.processes(|processes| processes.is_alive(process))
    }

    /// An action of the program.
    fn act<R>(&self, act: impl FnOnce(&mut Model) -> R) -> Result<R, Dead> {
        self.with(|model| {
            if !self.is_alive(Process::Program(self.process)) {
                return Err(Dead);
            }
            model.current = self.process;
            Ok(act(model))
        })
    }

    fn wait_for(&self, id: u64) -> Result<(), Dead> {
        let alive = || self.is_alive(Process::Program(self.process));
        let model = self.model.lock().unwrap();
        let waits = |model: &mut Model| !model.is_over(id) && alive();
        drop(self.changed.wait_while(model, waits).unwrap());
        if alive() { Ok(()) } else { Err(Dead) }
    }

    /// Read or write a page. Returns false if nothing is mapped there.
    fn access(&self, at: Va, write: bool) -> Result<bool, Dead> {
        loop {
            match self.act(|model| model.access(at, write))? {
                Access::Done => return Ok(true),
                Access::Segv => return Ok(false),
                Access::Waits(id) => self.wait_for(id)?,
            }
        }
    }

    /// Fork. The child behaves as a program, in its own thread.
    fn fork(&self) -> Result<(), Dead> {
        let (child, message) = {
            let mut children = self.children.lock().unwrap();
            let number = children.len() as u32;
            if number == 4 {
                return Ok(());
            }
            let (process, (model, message)) = self.act(|model| {
                let process = self.processes(|processes| processes.fork(self.process, number));
                (process, model.fork(number))
            })?;
            let child = Shared {
                model: Arc::new(Mutex::new(model)),
                changed: Arc::new(Condvar::new()),
                places: Arc::new(Mutex::new(())),
                process,
                ..self.clone()
            };
            children.push(child.clone());
            (child, message)
        };
        // The child runs once the message was read.
        if let Some(id) = message {
            self.wait_for(id)?;
        }
        if self.processes(|processes| processes.finish_fork(child.process)) {
            thread::spawn(move || child.thread(|shared| shared.program(8)));
        }
        Ok(())
    }

    /// Run `act` as a thread of the program. The last thread ends the program, unless it was killed.
    fn thread(&self, act: impl FnOnce(&Shared) -> Result<(), Dead>) {
        let done = act(self);
        if self.processes(|processes| processes.thread_ends(self.process)) && done.is_ok() {
            end(self, Process::Program(self.process));
        }
    }

    /// The behaviour of a thread of the program.
    fn program(&self, steps: usize) -> Result<(), Dead> {
        let alone = self.processes(|processes| processes.is_alone(self.process));
        let mut held = None;
        for _ in 0..steps {
            let at = Va::new(thread_rng().gen_range(0..PAGES));
            let range =
                Range::new(at, Va::new((at.number() + thread_rng().gen_range(1..4)).min(PAGES)));
            match thread_rng().gen_range(0..16) {
                0 => {
                    let _place = self.places.lock().unwrap();
                    let mut rest = range;
                    while rest.pages() > 0 {
                        let (part, message) = self.act(|model| model.advise(rest))?;
                        rest = Range::new(part.to, rest.to);
                        let Some(id) = message else { continue };
                        // The kernel removes the pages even if the thread is killed meanwhile.
                        let waited = self.wait_for(id);
                        self.with(|model| match model.is_read(id) {
                            true => model.zap(part, id),
                            false => model.zap_unsent(part),
                        });
                        waited?;
                    }
                }
                // A process that is killed between a change and its message must be the only one that uses
                // the memory.
                1 if alone => {
                    let gone = self.act(|model| model.unmap_unsent(range))?;
                    self.send_and_wait(gone)?;
                }
                2 => self.act(|model| model.map(range))?,
                3 if alone => {
                    let _place = self.places.lock().unwrap();
                    let to = Va::new(thread_rng().gen_range(0..PAGES));
                    let moved = self.act(|model| model.remap_unsent(range, to))?.flatten();
                    self.send_and_wait(moved)?;
                    self.send_and_wait(moved.map(|_| Event::Unmapped(range)))?;
                }
                4 if held.is_none() && self.access(at, true)? => {
                    held = self.act(|model| model.pin(at))?;
                }
                5 => {
                    if let Some(frame) = held.take() {
                        self.with(|model| model.device_writes(frame));
                    }
                }
                6 if thread_rng().gen_range(0..2) == 0 => self.fork()?,
                6..=10 => {
                    self.access(at, true)?;
                }
                _ => {
                    self.access(at, false)?;
                }
            }
        }
        if let Some(frame) = held {
            self.with(|model| model.device_writes(frame));
        }
        for at in (0..PAGES).map(Va::new) {
            self.access(at, false)?;
        }
        Ok(())
    }

    /// The behaviour of a thread that moves and replaces its own memory continually. Other threads reuse the
    /// ranges that it leaves.
    fn mover(&self, steps: usize) -> Result<(), Dead> {
        let mut own = self.act(|model| model.map_somewhere(2))?;
        for _ in 0..steps {
            let at = own.from.plus(thread_rng().gen_range(0..2));
            match thread_rng().gen_range(0..6) {
                0 => {
                    let gone = self.act(|model| model.unmap_unsent(own))?;
                    self.send_and_wait(gone)?;
                    own = self.act(|model| model.map_somewhere(2))?;
                }
                1 | 2 => {
                    let to = self.act(|model| model.map_somewhere(2))?;
                    // If `own` is two mappings, it cannot be moved at once, and stays.
                    let (gone, moved, place) = self.act(|model| {
                        let gone = model.unmap_unsent(to);
                        match model.remap_unsent(own, to.from) {
                            Some(moved) => (gone, moved, to),
                            None => (gone, None, own),
                        }
                    })?;
                    self.send_and_wait(gone)?;
                    self.send_and_wait(moved)?;
                    self.send_and_wait(moved.map(|_| Event::Unmapped(own)))?;
                    own = place;
                }
                what => assert!(self.access(at, what == 3)?, "{at:?} is not mapped"),
            }
        }
        for at in own.each() {
            self.access(at, false)?;
        }
        Ok(())
    }

    /// Send `event`, if there is one, and wait until it was read.
    fn send_and_wait(&self, event: Option<Event>) -> Result<(), Dead> {
        let Some(event) = event else { return Ok(()) };
        let id = self.act(|model| model.send(event))?;
        self.wait_for(id)
    }

    /// The behaviour of launcher or keeper until they end.
    fn watch(&self, by: Watcher) {
        loop {
            let guard = self.bell.0.lock().unwrap();
            drop(self.bell.1.wait_while(guard, |()| waits(self, by)).unwrap());
            if !watch(self, by) {
                return;
            }
        }
    }

    /// End one process at a random time.
    fn strike(&self) {
        // In half of the cases while a child's pages are copied, if there is one.
        let (delay, in_copy) = (thread_rng().gen_range(0..150), thread_rng().gen_range(0..2) == 0);
        for step in 0..600 {
            let serves = self.processes(|processes| processes.serves_a_child());
            let is_due = if in_copy { serves } else { step >= delay };
            if is_due {
                break;
            }
            thread::yield_now();
        }
        let keeps = self.processes(|processes| processes.is_alive(Process::Keeper));
        let who = match thread_rng().gen_range(0..7) {
            // Without a keeper, everything depends on the manager.
            _ if !keeps => Process::Manager,
            0 => Process::Launcher,
            1 => Process::Manager,
            2 => Process::Keeper,
            _ => {
                let alive = self.processes(|processes| processes.programs());
                if alive.is_empty() {
                    return;
                }
                Process::Program(alive[thread_rng().gen_range(0..alive.len())])
            }
        };
        end(self, who);
    }

    /// Run the manager until no other process uses the program's memory and all children have their pages.
    fn manage(&self, mut manager: Manager<ModelKernel<Shared>>) {
        loop {
            let in_use = self.processes(|processes| processes.uses(FIRST));
            if !in_use && manager.is_settled() {
                self.processes(Processes::finish);
                return end(self, Process::Manager);
            }
            if thread_rng().gen_range(0..6) == 0 {
                manager.discover();
            }
            // Threads of a policy always have work, so let other threads run.
            if thread_rng().gen_range(0..8) == 0 {
                thread::yield_now();
            }
            let turn = match manager.turn() {
                Ok(turn) => turn,
                Err(why) if why.starts_with(AMBIGUOUS) || why.starts_with(LOST) => {
                    AMBIGUOUS_RUNS.fetch_add(1, Ordering::Relaxed);
                    self.processes(Processes::fail);
                    return self.ring();
                }
                Err(why) => panic!("{why}"),
            };
            if !self.is_alive(Process::Manager) {
                return;
            }
            manager.world.check().unwrap_or_else(|what| panic!("{what}"));
            match turn {
                Turn::Busy if manager.is_settled() => {}
                // A thread that has changed a mapping must send the message first.
                Turn::Busy => thread::yield_now(),
                Turn::Until(due)
                    if due < u64::MAX
                        && (manager.awaits_pages() || thread_rng().gen_range(0..3) > 0) =>
                {
                    self.with(|model| model.pass_until(due));
                }
                Turn::Until(_) => {
                    let waits = |model: &Model| {
                        let (alive, in_use) = self.processes(|processes| {
                            (processes.is_alive(Process::Manager), processes.uses(FIRST))
                        });
                        alive && in_use && manager.is_settled() && !model.has_messages()
                    };
                    let model = self.model.lock().unwrap();
                    if waits(&model) {
                        drop(self.changed.wait(model).unwrap());
                    }
                }
            }
        }
    }
}

/// Run a program of two threads under a policy.
fn run(policy: &str, mapped: bool, rules: Rules, struck: bool) {
    let settings = settings(policy).unwrap();
    let make = |mem: &mut dyn Memory| make(policy, &settings, mem);
    run_under(make, mapped, rules, 2, struck, |shared| shared.program(25));
}

/// [`run`] with the policy at the other end of a socket.
fn run_remotely(policy: &str) {
    let settings = settings(policy).unwrap();
    let act = |shared: &Shared| shared.program(25);
    run_under(make_remote(policy, &settings), false, ALL, 2, false, act);
}

/// Run a program with `count` threads under a policy. Each behaves as `act`. `mapped`: the far tier is a
/// memory node. `struck`: a process is ended at a random time.
fn run_under(
    make: impl FnOnce(&mut dyn Memory) -> nearfar_trace::Result<Made>,
    mapped: bool,
    rules: Rules,
    count: u32,
    struck: bool,
    act: fn(&Shared) -> Result<(), Dead>,
) {
    let seed = thread_rng().r#gen();
    let shared = Shared {
        model: Arc::new(Mutex::new(Model::new(PAGES as usize, seed, rules))),
        changed: Arc::new(Condvar::new()),
        process: 0,
        processes: Arc::new(std::sync::Mutex::new(Processes::new(rules, count))),
        bell: Arc::new((Mutex::new(()), Condvar::new())),
        children: Arc::new(Mutex::new(Vec::new())),
        places: Arc::new(Mutex::new(())),
    };
    shared.children.lock().unwrap().push(shared.clone());
    if count == 2 {
        shared.with(|model| model.map(Range::new(Va::new(0), Va::new(PAGES - 3))));
    }
    let mut sizes = sizes(4, 20, 1, mapped);
    if thread_rng().gen_range(0..3) == 0 {
        // Fewer numbers than pages.
        sizes.pages = GROUP;
    }
    let kernel = ModelKernel::new(shared.clone(), sizes.parking());
    let slow = thread_rng().gen_range(0..2) == 0;
    let world = World::new(kernel, Plain::of(20, slow), sizes);
    let around = thread_rng().gen_range(1..4);
    let manager = Manager::with(world, around, make).unwrap();
    // The second thread may be a separate process that shares the memory.
    let splits = struck && thread_rng().gen_range(0..4) == 0;
    let second = if splits { shared.processes(|processes| processes.share(0)) } else { 0 };
    for number in 0..count {
        let process = if number == 1 { second } else { 0 };
        let shared = Shared { process, ..shared.clone() };
        thread::spawn(move || shared.thread(act));
    }
    let watchers = [Watcher::Launcher, Watcher::Keeper].map(|by| {
        let shared = shared.clone();
        thread::spawn(move || shared.watch(by))
    });
    if struck {
        let shared = shared.clone();
        thread::spawn(move || shared.strike());
    }
    shared.manage(manager);
    for watcher in watchers {
        watcher.join().unwrap();
    }
}

/// Runs with too many steps are abandoned, and do not fail the test.
fn patient() -> Config {
    let mut config = Config::default();
    config.max_steps = MaxSteps::ContinueAfter(1_000_000);
    config
}

/// Run a program in `count` random orders.
fn orders(policy: &'static str, mapped: bool, rules: Rules, struck: bool, count: usize) {
    let run = move || run(policy, mapped, rules, struck);
    Runner::new(RandomScheduler::new(count), patient()).run(run);
}

#[test]
fn no_order_loses_a_write() {
    for mapped in [false, true] {
        for policy in ["none", "autonuma", "tpp", "nomad", "ssp"] {
            orders(policy, mapped, ALL, false, 300);
            let scheduler = PctScheduler::new(3, 100);
            Runner::new(scheduler, patient()).run(move || run(policy, mapped, ALL, false));
        }
    }
}

/// The policy runs outside the scheduler, and always replies.
#[test]
fn no_order_loses_a_write_under_a_remote_policy() {
    for policy in ["tpp", "ssp"] {
        Runner::new(RandomScheduler::new(60), patient()).run(move || run_remotely(policy));
    }
}

/// The source of a move is soon the destination of another thread's move, whose message may arrive first.
#[test]
fn no_order_of_moves_loses_a_write() {
    let moves = |mapped| {
        let none = |mem: &mut dyn Memory| make("none", &Settings::default(), mem);
        run_under(none, mapped, ALL, 3, false, |shared| shared.mover(12));
    };
    shuttle::check_random(move || moves(false), 2000);
    shuttle::check_pct(move || moves(false), 4000, 5);
    shuttle::check_random(move || moves(true), 500);
    shuttle::check_pct(move || moves(true), 1000, 5);
    // A few of thousands of orders are ambiguous.
    let ambiguous = AMBIGUOUS_RUNS.load(Ordering::Relaxed);
    assert!(ambiguous < 100, "{ambiguous} runs");
}

#[test]
fn without_a_rule_of_the_kernel_some_order_fails() {
    for rules in [Rules { guard: false, ..ALL }, Rules { pins: false, ..ALL }] {
        for mapped in [false, true] {
            let found = std::panic::catch_unwind(|| orders("ssp", mapped, rules, false, 3000));
            assert!(found.is_err(), "{rules:?}, mapped {mapped}");
        }
    }
}

/// One process ends at a random time: the program, a child, launcher, manager or keeper.
#[test]
fn no_order_of_ends_loses_a_write() {
    for mapped in [false, true] {
        for policy in ["none", "nomad", "ssp"] {
            orders(policy, mapped, ALL, true, 400);
            let scheduler = PctScheduler::new(3, 100);
            Runner::new(scheduler, patient()).run(move || run(policy, mapped, ALL, true));
        }
    }
}

/// Without a keeper, the manager alone holds the userfaultfds of children.
#[test]
fn without_a_keeper_or_a_manager_that_survives_children_read_zeros() {
    for rules in [Rules { outlives: false, ..ALL }, Rules { keeper: false, ..ALL }] {
        for mapped in [false, true] {
            let found = std::panic::catch_unwind(|| orders("ssp", mapped, rules, true, 20_000));
            assert!(found.is_err(), "{rules:?}, mapped {mapped}");
        }
    }
}
