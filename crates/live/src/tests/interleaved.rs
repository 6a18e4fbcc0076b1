//! The manager and threads of a program, interleaved by a scheduler that tries many orders.

use std::sync::atomic::{AtomicUsize, Ordering};

use nearfar_kernel::tiering::testing::settings;
use nearfar_kernel::tiering::{Made, Memory, Settings, make};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::{Config, MaxSteps, Runner, thread};

use super::{Plain, remotely, sizes};
use crate::manager::UNCLEAR;
use crate::model::{Access, Model, ModelKernel, Rules, Share};
use crate::numbers::GROUP;
use crate::{Child, Event, Manager, Range, Turn, Va, World};

/// Runs that ended as their messages did not tell where memory was.
static UNCLEAR_RUNS: AtomicUsize = AtomicUsize::new(0);
/// Pages of the program's address space.
const PAGES: u64 = 12;

#[derive(Clone)]
struct Shared {
    model: Arc<Mutex<Model>>,
    changed: Arc<Condvar>,
    /// Threads of the program that still run.
    running: Arc<Mutex<usize>>,
    /// The program, and children by number.
    children: Arc<Mutex<Vec<Shared>>>,
    /// Held by who moves memory, or gives it back: a program that does both at once to the same place
    /// cannot know which comes first.
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

    fn yield_now(&self) {
        thread::yield_now();
    }
}

impl Shared {
    fn wait_for(&self, id: u64) {
        let model = self.model.lock().unwrap();
        drop(self.changed.wait_while(model, |model| !model.is_over(id)).unwrap());
    }

    /// A reference; false if nothing is mapped there.
    fn access(&self, at: Va, write: bool) -> bool {
        loop {
            match self.with(|model| model.access(at, write)) {
                Access::Done => return true,
                Access::Segv => return false,
                Access::Waits(id) => self.wait_for(id),
            }
        }
    }

    fn wait_if(&self, message: Option<u64>) {
        if let Some(id) = message {
            self.wait_for(id);
        }
    }

    /// Fork; the child does what a program does, in a thread of its own.
    fn fork(&self) {
        let (child, message) = {
            let mut children = self.children.lock().unwrap();
            let number = children.len() as u32;
            if number == 4 {
                return;
            }
            let (model, message) = self.with(|model| model.fork(number));
            *self.running.lock().unwrap() += 1;
            let child = Shared {
                model: Arc::new(Mutex::new(model)),
                changed: Arc::new(Condvar::new()),
                running: Arc::clone(&self.running),
                children: Arc::clone(&self.children),
                places: Arc::new(Mutex::new(())),
            };
            children.push(child.clone());
            (child, message)
        };
        // It runs when the message was read.
        self.wait_if(message);
        thread::spawn(move || child.program(8));
    }

    /// What a thread of the program does.
    fn program(&self, steps: usize) {
        let mut held = None;
        for _ in 0..steps {
            let at = Va::new(thread_rng().gen_range(0..PAGES));
            let range =
                Range::new(at, Va::new((at.number() + thread_rng().gen_range(1..4)).min(PAGES)));
            match thread_rng().gen_range(0..16) {
                0 => {
                    let _place = self.places.lock().unwrap();
                    if let Some(id) = self.with(|model| model.advise(range)) {
                        self.wait_for(id);
                        self.with(|model| model.zap(range, id));
                    }
                }
                1 => {
                    if let Some(event) = self.with(|model| model.unmap_untold(range)) {
                        let told = self.with(|model| model.tell(event));
                        self.wait_for(told);
                    }
                }
                2 => self.with(|model| model.map(range)),
                3 => {
                    let _place = self.places.lock().unwrap();
                    let to = Va::new(thread_rng().gen_range(0..PAGES));
                    let moved = self.with(|model| model.remap_untold(range, to));
                    if let Some(event) = moved.flatten() {
                        for event in [event, Event::Unmapped(range)] {
                            let told = self.with(|model| model.tell(event));
                            self.wait_for(told);
                        }
                    }
                }
                4 if held.is_none() && self.access(at, true) => {
                    held = self.with(|model| model.pin(at));
                }
                5 => {
                    if let Some(frame) = held.take() {
                        self.with(|model| model.device_writes(frame));
                    }
                }
                6 if thread_rng().gen_range(0..2) == 0 => self.fork(),
                6..=10 => {
                    self.access(at, true);
                }
                _ => {
                    self.access(at, false);
                }
            }
        }
        if let Some(frame) = held {
            self.with(|model| model.device_writes(frame));
        }
        for at in (0..PAGES).map(Va::new) {
            self.access(at, false);
        }
        *self.running.lock().unwrap() -= 1;
        // The manager waits at the first program's model.
        let first = self.children.lock().unwrap()[0].clone();
        first.with(|_| ());
    }

    /// What a thread does that has memory of its own, and moves and replaces it all the time: places that
    /// one thread leaves are given to the next.
    fn mover(&self, steps: usize) {
        let mut own = self.with(|model| model.map_somewhere(2));
        for _ in 0..steps {
            let at = own.from.plus(thread_rng().gen_range(0..2));
            match thread_rng().gen_range(0..6) {
                0 => {
                    let gone = self.with(|model| model.unmap_untold(own));
                    self.say(gone);
                    own = self.with(|model| model.map_somewhere(2));
                }
                1 | 2 => {
                    let to = self.with(|model| model.map_somewhere(2));
                    // Two mappings cannot be moved at once: then it is `to` that goes.
                    let (gone, moved, place) = self.with(|model| {
                        let gone = model.unmap_untold(to);
                        match model.remap_untold(own, to.from) {
                            Some(moved) => (gone, moved, to),
                            None => (gone, None, own),
                        }
                    });
                    self.say(gone);
                    self.say(moved);
                    self.say(moved.map(|_| Event::Unmapped(own)));
                    own = place;
                }
                what => assert!(self.access(at, what == 3), "{at:?} is not mapped"),
            }
        }
        for at in own.each() {
            self.access(at, false);
        }
        *self.running.lock().unwrap() -= 1;
        self.with(|_| ());
    }

    /// Tell this, if there is anything to tell, and wait until it was read.
    fn say(&self, event: Option<Event>) {
        if let Some(event) = event {
            let told = self.with(|model| model.tell(event));
            self.wait_for(told);
        }
    }

    /// The manager, until the program ends.
    fn manage(&self, mut manager: Manager<ModelKernel<Shared>>) {
        while *self.running.lock().unwrap() > 0 {
            if thread_rng().gen_range(0..6) == 0 {
                manager.discover();
            }
            // Threads of a policy have always something to do: others must come to run, too.
            if thread_rng().gen_range(0..8) == 0 {
                thread::yield_now();
            }
            let turn = match manager.turn() {
                Ok(turn) => turn,
                Err(why) if why.starts_with(UNCLEAR) => {
                    UNCLEAR_RUNS.fetch_add(1, Ordering::Relaxed);
                    let children = self.children.lock().unwrap().clone();
                    children.iter().for_each(|process| process.with(Model::kill));
                    return;
                }
                Err(why) => panic!("{why}"),
            };
            manager.world.check().unwrap_or_else(|what| panic!("{what}"));
            match turn {
                Turn::Busy if manager.is_settled() => {}
                // Who has changed a mapping has to say so first.
                Turn::Busy => thread::yield_now(),
                Turn::Until(due)
                    if due < u64::MAX
                        && (manager.awaits_pages() || thread_rng().gen_range(0..3) > 0) =>
                {
                    self.with(|model| model.pass_until(due));
                }
                Turn::Until(_) => {
                    let model = self.model.lock().unwrap();
                    if !model.has_messages() && *self.running.lock().unwrap() > 0 {
                        drop(self.changed.wait(model).unwrap());
                    }
                }
            }
        }
    }
}

/// A program of two threads under a policy.
fn run(policy: &str, mapped: bool, rules: Rules) {
    let settings = settings(policy).unwrap();
    let make = |mem: &mut dyn Memory| make(policy, &settings, mem);
    run_under(make, mapped, rules, 2, |shared| shared.program(25));
}

/// The same where the policy is at the other end of a socket.
fn run_remotely(policy: &str) {
    let settings = settings(policy).unwrap();
    run_under(remotely(policy, &settings), false, ALL, 2, |shared| shared.program(25));
}

/// A program of so many threads under a policy, each of which does this; `mapped`: the far tier is a
/// memory node.
fn run_under(
    make: impl FnOnce(&mut dyn Memory) -> nearfar_trace::Result<Made>,
    mapped: bool,
    rules: Rules,
    count: usize,
    act: fn(&Shared),
) {
    let seed = thread_rng().r#gen();
    let shared = Shared {
        model: Arc::new(Mutex::new(Model::new(PAGES as usize, seed, rules))),
        changed: Arc::new(Condvar::new()),
        running: Arc::new(Mutex::new(count)),
        children: Arc::new(Mutex::new(Vec::new())),
        places: Arc::new(Mutex::new(())),
    };
    shared.children.lock().unwrap().push(shared.clone());
    if count == 2 {
        shared.with(|model| model.map(Range::new(Va::new(0), Va::new(PAGES - 3))));
    }
    let mut sizes = sizes(4, 20, 1, mapped);
    if thread_rng().gen_range(0..3) == 0 {
        // Numbers run out.
        sizes.pages = GROUP;
    }
    let kernel = ModelKernel::new(shared.clone(), sizes.lot());
    let slow = thread_rng().gen_range(0..2) == 0;
    let world = World::new(kernel, Plain::of(20, slow), sizes);
    let around = thread_rng().gen_range(1..4);
    let manager = Manager::with(world, around, make).unwrap();
    let threads: Vec<_> = (0..count)
        .map(|_| {
            let shared = shared.clone();
            thread::spawn(move || act(&shared))
        })
        .collect();
    shared.manage(manager);
    for thread in threads {
        thread.join().unwrap();
    }
}

const ALL: Rules = Rules { guard: true, pins: true };

/// A run that one thread holds up for very long shows nothing: then there is the next.
fn patient() -> Config {
    let mut config = Config::default();
    config.max_steps = MaxSteps::ContinueAfter(1_000_000);
    config
}

fn orders(policy: &'static str, mapped: bool, rules: Rules, count: usize) {
    Runner::new(RandomScheduler::new(count), patient()).run(move || run(policy, mapped, rules));
}

#[test]
fn no_order_loses_a_write() {
    for mapped in [false, true] {
        for policy in ["none", "autonuma", "tpp", "nomad", "ssp"] {
            orders(policy, mapped, ALL, 300);
            let scheduler = PctScheduler::new(3, 100);
            Runner::new(scheduler, patient()).run(move || run(policy, mapped, ALL));
        }
    }
}

/// What is at the other end runs outside of the scheduler, and always answers.
#[test]
fn no_order_loses_a_write_under_a_remote_policy() {
    for policy in ["tpp", "ssp"] {
        Runner::new(RandomScheduler::new(60), patient()).run(move || run_remotely(policy));
    }
}

/// Places that are moved from are moved to at once, by another thread, which is heard of first.
#[test]
fn no_order_of_moves_loses_a_write() {
    let moves = |mapped| {
        let none = |mem: &mut dyn Memory| make("none", &Settings::default(), mem);
        run_under(none, mapped, ALL, 3, |shared| shared.mover(12));
    };
    shuttle::check_random(move || moves(false), 2000);
    shuttle::check_pct(move || moves(false), 4000, 5);
    shuttle::check_random(move || moves(true), 500);
    shuttle::check_pct(move || moves(true), 1000, 5);
    // The orders are the worst that there are: of some thousands a few tell too little.
    let unclear = UNCLEAR_RUNS.load(Ordering::Relaxed);
    assert!(unclear < 100, "{unclear} runs");
}

/// With a kernel that lacks a rule that the runtime rests on, the same tests fail.
#[test]
fn the_rules_are_needed() {
    for rules in [Rules { guard: false, ..ALL }, Rules { pins: false, ..ALL }] {
        for mapped in [false, true] {
            let found = std::panic::catch_unwind(|| orders("ssp", mapped, rules, 3000));
            assert!(found.is_err(), "{rules:?}, mapped {mapped}");
        }
    }
}
