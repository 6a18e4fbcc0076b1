//! What a run will come to, before it runs: the manager, the policy and their memory as they are under a
//! real program, on a kernel that is only counted.
//!
//! The [`Predictor`] is told what a program refers to, in order. What its requests do to pages is
//! what userfaultfd does; how long they take is what they take on this machine ([`Costs`]). So the
//! counts are those of the runtime's own code, window and parking included, and only their timing is
//! a model: the program and the manager have a clock each, or one where they share a processor.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nearfar_kernel::tiering::{Made, Memory, Time, make};
use nearfar_trace::{Error, Result};
use serde::Serialize;

use self::kernel::{CountedFar, CountedKernel};
use crate::far::{self, Far, Slow};
use crate::manager::AROUND;
use crate::setup::Setup;
use crate::{Counters, Event, Manager, Turn, Va, World};

mod costs;
mod kernel;

pub use costs::Costs;

/// Faults of one reference after which a prediction ends: a policy that never lets it through.
const FAULTS: u32 = 10_000;

/// What a run is predicted to come to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Predicted {
    /// What happens.
    pub counters: Counters,
    /// From start to end, seconds.
    pub seconds: f64,
    /// References of the program to memory that is managed.
    pub references: u64,
    /// Most pages in use, looked at after each fault: fast, far, in the window.
    pub peak: [u64; 3],
    /// What it rests on.
    pub costs: Costs,
}

/// A run that is predicted.
pub struct Predictor {
    manager: Manager<CountedKernel>,
    /// The manager's clock, nanoseconds: requests let it run.
    clock: Arc<AtomicU64>,
    /// The program's, picoseconds.
    program: Time,
    reference: Time,
    /// When a thread of the policy works next, if nothing happens before.
    due: Time,
    shared_processor: bool,
    references: u64,
    peak: [u64; 3],
    costs: Costs,
}

impl Predictor {
    /// Of a program with page numbers below `pages`, each reference of which takes `reference`.
    ///
    /// # Errors
    /// As when such a run begins: a policy that cannot live, a knob out of place.
    pub fn new(
        setup: &Setup,
        pages: u32,
        costs: Costs,
        reference: Time,
        shared_processor: bool,
    ) -> Result<Self> {
        Self::with(setup, pages, costs, reference, shared_processor, |mem| {
            make(&setup.policy, &setup.settings(), mem)
        })
    }

    /// The same under the policy that `make` makes.
    ///
    /// # Errors
    /// As above; those of `make`.
    pub fn with(
        setup: &Setup,
        pages: u32,
        costs: Costs,
        reference: Time,
        shared_processor: bool,
        make: impl FnOnce(&mut dyn Memory) -> Result<Made>,
    ) -> Result<Self> {
        let clock = Arc::new(AtomicU64::new(0));
        let mut sizes = setup.sizes();
        sizes.pages = sizes.pages.max(pages.saturating_add(1));
        let (name, tier, _) = far::find(&setup.far)?;
        if let Some(why) = tier.own_time.filter(|_| !tier.is_mapped) {
            let what = format!("no run can be predicted with {name}, {why}");
            return Err(Error::input("--far", what, "choose another, or run it"));
        }
        let mut store: Box<dyn Far> = Box::new(CountedFar::new(sizes.far, costs, clock.clone()));
        let far_ns = setup.far_latency_ns.max(costs.fetch_ns);
        if far_ns > 0 {
            store = Box::new(Slow::new(store, far_ns));
        }
        let kernel = CountedKernel::new(pages, costs, sizes.mapped, clock.clone());
        let world = World::new(kernel, store, sizes);
        let mut manager = Manager::with(world, AROUND, make)?;
        manager.discover();
        Ok(Self {
            manager,
            clock,
            program: Time::default(),
            reference,
            due: Time::default(),
            shared_processor,
            references: 0,
            peak: [0; 3],
            costs,
        })
    }

    /// The program refers to a page.
    ///
    /// # Errors
    /// Why the run would be ended.
    pub fn reference(&mut self, page: u32, write: bool) -> Result<()> {
        self.let_work(self.program)?;
        let at = Va::new(page.into());
        if !self.manager.world.kernel().lets(at, write) {
            self.fault(at, write)?;
        }
        self.references += 1;
        self.elsewhere(1);
        Ok(())
    }

    /// The program makes so many references to memory that is not managed.
    pub fn elsewhere(&mut self, references: u64) {
        self.program = self.program.plus(Time::from_ps(self.reference.ps() * references));
    }

    /// The program gives these pages back.
    ///
    /// # Errors
    /// As [`reference`](Predictor::reference).
    pub fn release(&mut self, page: u32, pages: u32) -> Result<()> {
        let range = crate::Range::new(Va::new(page.into()), Va::new((page + pages).into()));
        self.tell(Event::Removed(range))?;
        self.manager.world.kernel_mut().release(range);
        Ok(())
    }

    /// The program sleeps.
    ///
    /// # Errors
    /// As [`reference`](Predictor::reference).
    pub fn sleep(&mut self, time: Time) -> Result<()> {
        self.program = self.program.plus(time);
        self.let_work(self.program)
    }

    /// What it has come to.
    pub fn predicted(&self) -> Predicted {
        Predicted {
            counters: self.manager.world.counters,
            seconds: self.program.ps() as f64 / 1e12,
            references: self.references,
            peak: self.peak,
            costs: self.costs,
        }
    }

    fn now(&self) -> Time {
        Time::from_ps(self.clock.load(Ordering::Relaxed) * 1000)
    }

    /// The manager's clock is not before this.
    fn not_before(&self, time: Time) {
        self.clock.fetch_max(time.ps().div_ceil(1000), Ordering::Relaxed);
    }

    /// Threads of the policy work until this moment.
    fn let_work(&mut self, until: Time) -> Result<()> {
        let mut until = until;
        while self.due <= until {
            self.not_before(self.due);
            self.turn()?;
            if self.shared_processor {
                self.program = self.program.max(self.now());
                until = until.max(self.program);
            }
        }
        Ok(())
    }

    fn turn(&mut self) -> Result<()> {
        let turn = self.manager.turn();
        self.due = match turn.map_err(|why| Error::input("nearfar run", why, ""))? {
            Turn::Busy => self.now(),
            Turn::Until(due) => Time::from_ps(due.saturating_mul(1000)).max(self.now()),
        };
        Ok(())
    }

    /// A message to the manager, which acts on it at once if it has nothing else to do.
    fn tell(&mut self, event: Event) -> Result<()> {
        self.not_before(self.program);
        self.manager.world.kernel_mut().tell(event);
        self.turn()
    }

    fn fault(&mut self, at: Va, write: bool) -> Result<()> {
        for _ in 0..FAULTS {
            if self.manager.world.kernel().lets(at, write) {
                return Ok(());
            }
            let protected = self.manager.world.kernel().is_there(at);
            self.not_before(self.program);
            self.clock.fetch_add(self.costs.fault_ns, Ordering::Relaxed);
            self.tell(Event::Fault { at, write, protected, thread: 0 })?;
            // Its page is on its way.
            while !self.manager.world.kernel().lets(at, write) && self.manager.awaits_pages() {
                self.not_before(self.due);
                self.turn()?;
            }
            self.program = self.program.max(self.now());
            let ([fast, far], window) = self.manager.world.used();
            for (peak, now) in self.peak.iter_mut().zip([fast, far, window]) {
                *peak = now.max(*peak);
            }
        }
        let number = at.number();
        Err(Error::input("nearfar run", format!("the policy never lets page {number} go"), ""))
    }
}

#[cfg(test)]
mod tests;
