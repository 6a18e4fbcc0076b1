//! What the runtime's requests take on this machine, measured.

use std::time::Instant;

use nearfar_kernel::tiering::NodeId;
use nearfar_trace::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::far::{Far, Fault, Fetch};
use crate::linux::{Linux, monotonic, wait};
use crate::setup::Setup;
use crate::{AROUND, Event, Frame, Kernel, PAGE, Slot, Va, far};

/// How long requests take, nanoseconds; each is of one page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// From a reference that faults until the manager acts, and until the program goes on.
    pub fault_ns: u64,
    /// A look for messages that finds none.
    pub read_ns: u64,
    /// A page that is copied into the program.
    pub copy_ns: u64,
    /// Each page after it, copied by the same request.
    pub copy_next_ns: u64,
    /// A frame that is taken away, or given back.
    pub take_ns: u64,
    /// Write-protecting, and letting writes through.
    pub protect_ns: u64,
    /// A frame that is given back to the system.
    pub discard_ns: u64,
    /// A page that the far tier stores, or that is copied to its memory node.
    pub store_ns: u64,
    /// A page that it loads, or that is copied from its memory node into the program.
    pub load_ns: u64,
    /// Before that, a page that it brings while others run; 0 if it is loaded at once.
    #[serde(default)]
    pub fetch_ns: u64,
}

/// Pages that everything is measured with, and how often.
const PAGES: u32 = 1024;
const PASSES: u32 = 5;

impl Costs {
    /// Measure them in memory of this process, which a thread of its own refers to. Half of each
    /// page that is stored is random, as far tiers compress.
    ///
    /// # Errors
    /// userfaultfd cannot be had; the far tier cannot be made or used.
    pub fn measure(setup: &Setup) -> Result<Self> {
        let mut costs = Self::default();
        costs.measure_far(setup)?;
        let mut linux = Linux::open(PAGES)?;
        let memory = linux.memory(PAGES.into())?;
        let from = memory.from;
        let places = || (0..PAGES).map(|page| (from.plus(page.into()), Frame::new(page)));
        // The least of some passes: what else the machine does only adds to it.
        let mut least = [u64::MAX; 6];
        for _ in 0..PASSES {
            let zeros = vec![0; PAGE];
            let copied =
                each(PAGES, || places().try_for_each(|(at, _)| linux.place(at, &zeros, false)));
            let protected = each(2 * PAGES, || {
                let mut both = [true, false].into_iter();
                both.try_for_each(|on| places().try_for_each(|(at, _)| linux.protect(at, on)))
            });
            let taken = each(2 * PAGES, || {
                places().try_for_each(|(at, to)| linux.park(at, to))?;
                places().try_for_each(|(at, from)| linux.restore(from, at))
            });
            let give_back = |linux: &mut Linux| {
                places().try_for_each(|(at, to)| linux.park(at, to))?;
                each(PAGES, || {
                    places().for_each(|(_, at)| linux.discard(at, 1));
                    Ok(())
                })
            };
            let discarded = give_back(&mut linux);
            let calls = u64::from(PAGES / AROUND as u32);
            let all = each(1, || {
                let mut at = from;
                while at < memory.to {
                    at = at.plus(linux.place_zeros(at, AROUND)?);
                }
                Ok(())
            });
            give_back(&mut linux).map_err(failed)?;
            let mut none = Vec::new();
            let read = each(PAGES, || {
                (0..PAGES).for_each(|_| linux.events(&mut none));
                Ok(())
            });
            let faulted = faults(&mut linux, from)?;
            give_back(&mut linux).map_err(failed)?;
            let around = all.map(|all| all / calls);
            let passed = [copied, protected, taken, discarded, around, read];
            for (least, passed) in least.iter_mut().zip(passed) {
                *least = passed.map_err(failed)?.min(*least);
            }
            costs.fault_ns =
                if costs.fault_ns == 0 { faulted } else { faulted.min(costs.fault_ns) };
        }
        let around;
        [costs.copy_ns, costs.protect_ns, costs.take_ns, costs.discard_ns, around, costs.read_ns] =
            least;
        costs.copy_next_ns = around.saturating_sub(costs.copy_ns) / (AROUND - 1);
        costs.fault_ns = costs.fault_ns.saturating_sub(costs.copy_ns + costs.read_ns);
        Ok(costs)
    }

    fn measure_far(&mut self, setup: &Setup) -> Result<()> {
        let (_, tier, argument) = far::find(&setup.far)?;
        if tier.is_mapped {
            // Which node a thread's memory comes from is its own.
            let found = std::thread::scope(|scope| scope.spawn(|| node(argument)).join());
            let [store, load] = found.map_err(|_| failed(()))??;
            (self.store_ns, self.load_ns) = (store, load);
            return Ok(());
        }
        let mut store = (tier.make)(argument, PAGES)?;
        let mut random = 1u64;
        let mut pages = vec![0u8; PAGES as usize * PAGE];
        for page in pages.chunks_mut(PAGE) {
            for byte in page.iter_mut().take(PAGE / 2) {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (random >> 56) as u8;
            }
        }
        let (mut slots, mut loaded) = (Vec::with_capacity(PAGES as usize), vec![0; PAGE]);
        let mut least = [u64::MAX; 3];
        // Room that was used before, as it is in the course of a run.
        for _ in 0..PASSES {
            let storing = each(PAGES, || {
                pages
                    .chunks(PAGE)
                    .try_for_each(|page| store.store(page).map(|slot| slots.push(slot)))
            });
            let mut coming = 0;
            let loading = each(PAGES, || {
                slots.iter().try_for_each(|slot| {
                    coming += come(&mut *store, *slot)?;
                    store.load(*slot, &mut loaded)
                })
            });
            slots.drain(..).for_each(|slot| store.free(slot));
            let coming = coming / u64::from(PAGES);
            let loading = loading.map(|loading| loading.saturating_sub(coming));
            for (least, passed) in least.iter_mut().zip([storing, loading, Ok(coming)]) {
                let passed =
                    passed.map_err(|fault| Error::input("--far", fault.to_string(), ""))?;
                *least = passed.min(*least);
            }
        }
        [self.store_ns, self.load_ns, self.fetch_ns] = least;
        Ok(())
    }
}

/// Wait until a page has come that the far tier brings while others run; for how many nanoseconds.
fn come(far: &mut dyn Far, slot: Slot) -> std::result::Result<u64, Fault> {
    let (began, mut arrivals) = (monotonic(), Vec::new());
    loop {
        let now = monotonic();
        if far.fetch(slot, now)? == Fetch::Here {
            return Ok(if arrivals.is_empty() { 0 } else { now - began });
        }
        wait([far.descriptor()], far.due().saturating_sub(now));
        far.arrived(monotonic(), &mut arrivals);
    }
}

fn failed<E>(_: E) -> Error {
    Error::missing("userfaultfd", "does not do as it should", "try again")
}

/// Nanoseconds of a page that is copied to a memory node, and of one from there.
fn node(argument: &str) -> Result<[u64; 2]> {
    let mut linux = Linux::open(2 * PAGES)?;
    linux.use_node(argument)?;
    let memory = linux.memory(PAGES.into())?;
    let mut least = [u64::MAX; 2];
    for _ in 0..PASSES {
        let pages = || (0..PAGES).map(|page| (memory.from.plus(page.into()), Frame::new(page)));
        let far = |frame: Frame| Frame::new(PAGES + frame.number());
        let zeros = vec![0; PAGE];
        pages().try_for_each(|(at, _)| linux.place(at, &zeros, false)).map_err(failed)?;
        pages().try_for_each(|(at, to)| linux.park(at, to)).map_err(failed)?;
        let stored =
            each(PAGES, || pages().try_for_each(|(_, at)| linux.copy_to_far_node(at, far(at))));
        let loaded = each(PAGES, || {
            let mut pages = pages();
            pages.try_for_each(|(at, to)| linux.place_copy(at, far(to), false, NodeId::FAST))
        });
        linux.discard(Frame::new(0), 2 * PAGES);
        pages().try_for_each(|(at, to)| linux.park(at, to)).map_err(failed)?;
        linux.discard(Frame::new(0), PAGES);
        for (least, passed) in least.iter_mut().zip([stored, loaded]) {
            *least = passed.map_err(failed)?.min(*least);
        }
    }
    Ok(least)
}

/// Nanoseconds of each of `count` of what `act` does.
fn each<E>(
    count: u32,
    act: impl FnOnce() -> std::result::Result<(), E>,
) -> std::result::Result<u64, E> {
    let began = Instant::now();
    act()?;
    Ok(began.elapsed().as_nanos() as u64 / u64::from(count))
}

/// Nanoseconds of a fault that is served with zeros, everything included: another thread touches page
/// after page. The median: some wait for a processor that others have.
fn faults(linux: &mut Linux, from: Va) -> Result<u64> {
    let address = from.address() as usize;
    let mut taken = vec![0; PAGES as usize];
    let toucher = std::thread::spawn(move || {
        for (page, taken) in taken.iter_mut().enumerate() {
            let at = std::ptr::with_exposed_provenance::<u8>(address + page * PAGE);
            let began = Instant::now();
            // SAFETY: memory of the caller's, which waits for this thread.
            unsafe { at.read_volatile() };
            *taken = began.elapsed().as_nanos() as u64;
        }
        taken.sort_unstable();
        taken[taken.len() / 2]
    });
    let mut events = Vec::new();
    while !toucher.is_finished() {
        linux.events(&mut events);
        if events.is_empty() {
            linux.wait([None, None], 1_000_000);
        }
        for event in events.drain(..) {
            if let Event::Fault { at, .. } = event {
                let _ = linux.place_zeros(at, 1);
            }
        }
    }
    toucher.join().map_err(|_| Error::missing("userfaultfd", "does not serve faults", "try again"))
}
