//! Sequential tests: the conformance suite of memories, and every policy, on the live memory.

use nearfar_kernel::tiering::testing::conformance::{Subject, suite};
use nearfar_kernel::tiering::testing::{self, PAGES, SLEEP_TIME, Step, all_settings};
use nearfar_kernel::tiering::{
    Capability, Commit, Made, Memory, NodeId, POLICIES, Page, Settings, make,
};
use nearfar_trace::Result;
use proptest::prelude::*;

use super::alone::Space;
use super::{Plain, make_remote, sizes};
use crate::model::{ALL, Access, ModelKernel, Rules};
use crate::numbers::GROUP;
use crate::world::{Counters, FAR_NODE};
use crate::{Event, Frame, Manager, Range, Sizes, Turn, Va, World};

mod changes;
mod held;

/// Default limit of page numbers.
pub(super) const NUMBERS: u32 = 1 << 11;

/// A manager, and the model of the kernel and program that it manages.
pub(super) struct Live {
    pub(super) manager: Manager<ModelKernel<Space>>,
    pub(super) model: Space,
}

impl Live {
    fn start(
        name: &str,
        settings: &Settings,
        seed: u64,
        around: u64,
        mapped: bool,
    ) -> Result<Self> {
        Self::with(seed, around, mapped, |mem| make(name, settings, mem))
    }

    fn with(
        seed: u64,
        around: u64,
        mapped: bool,
        make: impl FnOnce(&mut dyn Memory) -> Result<Made>,
    ) -> Result<Self> {
        Self::with_all(seed, around, mapped, ALL, NUMBERS, make)
    }

    /// With these rules of the kernel, and page numbers below `numbers`. One first touch maps up to `around`
    /// pages.
    pub(super) fn with_all(
        seed: u64,
        around: u64,
        mapped: bool,
        rules: Rules,
        numbers: u32,
        make: impl FnOnce(&mut dyn Memory) -> Result<Made>,
    ) -> Result<Self> {
        let model = Space::new(2 * PAGES as usize, seed, rules);
        let sizes = Sizes { pages: numbers, ..sizes(10, 26, 2, mapped) };
        let kernel = ModelKernel::new(model.clone(), sizes.parking());
        let world = World::new(kernel, Plain::of(26, seed % 2 == 1), sizes);
        let mut live = Self { manager: Manager::with(world, around, make)?, model };
        live.model.borrow_mut().map(Range::new(Va::new(0), Va::new(PAGES.into())));
        live.manager.discover();
        Ok(live)
    }

    /// A turn of the manager, and a check of all invariants.
    fn turn(&mut self) -> Turn {
        let turn = self.manager.turn().unwrap();
        self.check();
        turn
    }

    fn check(&self) {
        self.manager.world.check().unwrap();
        self.check_nodes();
    }

    /// Check that pages are on the memory nodes to which they are charged, and shadows on the far one.
    fn check_nodes(&self) {
        let world = &self.manager.world;
        let mut next = world.next_mapped_page(Page::new(0)).filter(|_| world.far_is_mapped);
        while let Some(page) = next {
            let at = world.numbers.address_of(page);
            let found = if world.pages.state(page).is_parked() {
                Some(world.kernel().node(world.pages.frame(page)))
            } else {
                self.model.borrow().node(at)
            };
            // A page that the program has just released is on no node.
            assert!(
                found.is_none_or(|node| node == world.pages.state(page).node()),
                "{at:?} is on {found:?}"
            );
            let shadow = world.pages.slot(page).map(|slot| Frame::new(slot.number()));
            assert!(shadow.is_none_or(|frame| world.kernel().node(frame) == FAR_NODE), "{at:?}");
            next = world.next_mapped_page(page.skip(1));
        }
    }

    fn settle(&mut self) {
        for _ in 0..10_000 {
            match self.turn() {
                Turn::Busy => {}
                Turn::Until(_) => return,
            }
        }
        panic!("the manager never rests");
    }

    /// A few turns, with scans for new memory, while a message is in flight.
    fn look_around(&mut self, turns: usize) {
        for _ in 0..turns {
            // Not `turn`, which checks nodes at addresses that are known only after the message.
            let _ = self.manager.turn().unwrap();
            self.manager.discover();
            self.manager.world.check().unwrap();
        }
    }

    fn access(&mut self, at: Va, write: bool) {
        for _ in 0..10_000 {
            let outcome = self.model.borrow_mut().access(at, write);
            match outcome {
                Access::Done => {
                    self.model.borrow_mut().pass(500);
                    return;
                }
                Access::Segv => panic!("{at:?} is not mapped"),
                Access::Waits(id) => {
                    while !self.model.borrow().is_over(id) {
                        if let Turn::Until(due) = self.turn()
                            && due < u64::MAX
                        {
                            self.model.borrow_mut().pass_until(due);
                        }
                    }
                }
            }
        }
        panic!("{at:?} faults for ever");
    }

    fn release(&mut self, at: Va) {
        let range = Range::new(at, at.plus(1));
        let (_, message) = self.model.borrow_mut().advise(range);
        self.settle();
        if let Some(id) = message {
            assert!(self.model.borrow().is_over(id));
            self.model.borrow_mut().zap(range, id);
        }
    }

    pub(super) fn run(&mut self, steps: &[Step]) {
        for step in steps {
            match *step {
                Step::Read(page) => self.access(Va::new((page % PAGES).into()), false),
                Step::Write(page) => self.access(Va::new((page % PAGES).into()), true),
                Step::Release(page) => self.release(Va::new((page % PAGES).into())),
                Step::Zeros => {}
                Step::Sleep => self.model.borrow_mut().pass(SLEEP_TIME.ps() / 1000),
            }
            // A turn between steps, as if on another processor.
            let _ = self.turn();
        }
    }
}

impl Subject for Live {
    fn memory(&self) -> &dyn Memory {
        &self.manager.world
    }

    fn shares_nodes(&self) -> bool {
        self.manager.world.far_is_mapped
    }

    fn step(&mut self, step: Step) {
        self.run(&[step]);
        if step == Step::Sleep {
            self.settle();
        }
    }
}

#[test]
fn the_live_memory_keeps_to_the_contract() {
    suite(400, |make, seed| {
        let mut live = Live::with(seed, 1 + seed % 4, seed.is_multiple_of(3), make).unwrap();
        // The suite knows a page by its number, so groups get numbers in order and keep them.
        for at in (0..PAGES).step_by(GROUP as usize) {
            live.manager.world.numbers.hold(Va::new(at.into()));
        }
        live
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Every policy, with every choice of its knobs. Some refuse the memory because of a missing capability.
    #[test]
    fn no_policy_loses_a_write_or_violates_an_invariant(
        steps in testing::steps(), seed: u64, around in 1..5u64, mapped: bool, few: bool,
    ) {
        let numbers = if few { 2 * GROUP } else { NUMBERS };
        for (name, _) in POLICIES {
            for settings in all_settings(name).unwrap() {
                let make = |mem: &mut dyn Memory| make(name, &settings, mem);
                match Live::with_all(seed, around, mapped, ALL, numbers, make) {
                    Ok(mut live) => live.run(&steps),
                    Err(error) => {
                        let text = error.to_string();
                        let lacks = Capability::ALL.iter().any(|(name, _)| text.contains(name));
                        prop_assert!(lacks && text.contains(name), "{}", text);
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn a_remote_policy_has_the_results_of_a_local_one(
        steps in testing::steps(), seed: u64, around in 1..5u64, mapped: bool,
    ) {
        for (name, _) in POLICIES {
            for settings in all_settings(name).unwrap() {
                let direct = Live::start(name, &settings, seed, around, mapped);
                let remote = Live::with(seed, around, mapped, make_remote(name, &settings));
                let (mut direct, mut remote) = match (direct, remote) {
                    (Ok(direct), Ok(remote)) => (direct, remote),
                    (Err(direct), Err(remote)) => {
                        prop_assert!(remote.to_string().contains(&direct.to_string()), "{}", remote);
                        continue;
                    }
                    _ => panic!("{name} is refused at one end only"),
                };
                direct.run(&steps);
                remote.run(&steps);
                let [direct, remote] = [&direct, &remote].map(|live| {
                    let world = &live.manager.world;
                    let counters: Vec<_> = world.counters.numbers().collect();
                    (counters, world.used(), world.far_bytes())
                });
                prop_assert_eq!(direct, remote, "{}", name);
            }
        }
    }
}

#[test]
fn thrashing_causes_every_transition_between_page_states() {
    for (name, shadows) in [("tpp", false), ("nomad", true), ("ssp", true)] {
        for (writes, mapped) in [(0, false), (3, false), (0, true), (3, true)] {
            let settings = testing::settings(name).unwrap();
            let mut seen = Counters::default();
            // The requests that the kernel refuses depend on the seed.
            for seed in 0..4 {
                let mut live = Live::start(name, &settings, seed, 1, mapped).unwrap();
                live.run(&testing::thrashing(writes));
                seen.add(&live.manager.world.counters);
            }
            // A reference that faults again under its policy counts as one hint fault.
            assert!(seen.hint_faults <= seen.faults, "{name}: {seen:?}");
            // A page whose shadow was reclaimed is watched until it is written or demoted.
            let watches = match name {
                "nomad" if mapped => seen.watch_faults > 0,
                _ => name == "ssp" || seen.shadows_reclaimed > 0,
            };
            for (what, count, expected) in [
                ("first touches", seen.first_touches, true),
                ("hint faults", seen.hint_faults, true),
                ("window faults", seen.window_faults, !mapped),
                ("promotions", seen.promotions, true),
                ("shadow copies", seen.shadow_copies, shadows),
                ("shadow faults", seen.shadow_faults, shadows && writes > 0),
                ("watch faults", seen.watch_faults, watches && writes > 0),
                ("remapped", seen.demotions_remapped, shadows),
                ("copied", seen.demotions_copied, true),
                ("released", seen.released, false),
            ] {
                let case = format!("{name}, {writes} writes, mapped {mapped}");
                assert_eq!(count > 0, expected, "{case}: {what}: {seen:?}");
            }
        }
    }
}

/// Every policy with a far tier that stores pages, and with one that stays mapped.
fn on_both_kinds() -> impl Iterator<Item = (&'static str, bool)> {
    POLICIES.iter().flat_map(|(name, _)| [false, true].map(|mapped| (*name, mapped)))
}

#[test]
fn discovered_memory_is_within_the_budget_without_a_fault() {
    let windows = (0..4).map(|seed| {
        let mut live = Live::start("none", &Settings::default(), seed, 1, false).unwrap();
        let new = Range::new(Va::new(PAGES.into()), Va::new((2 * PAGES).into()));
        live.model.borrow_mut().map(new);
        new.each().for_each(|at| live.access(at, true));
        assert!(live.manager.discover());
        live.manager.world.check().unwrap();
        let (_, window) = live.manager.world.used();
        new.each().for_each(|at| live.access(at, false));
        window
    });
    // With some seeds the kernel pins pages.
    assert_eq!(windows.min(), Some(2));
}

/// The first reference after the bit was cleared is a fault that calls no policy.
#[test]
fn a_reference_sets_a_cleared_accessed_bit() {
    let mut live = Live::start("none", &Settings::default(), 1, 1, false).unwrap();
    let at = Va::new(3);
    for write in [false, true] {
        live.access(at, write);
        let world = &mut live.manager.world;
        let page = world.page_at(at).unwrap();
        assert!(world.clear_accessed(page) && !world.accessed(page) && !world.hint_armed(page));
        assert!(!world.clear_accessed(page));
        live.access(at, write);
        assert!(live.manager.world.accessed(page));
    }
    assert_eq!(live.manager.world.counters.accessed_faults, 2);
    assert_eq!(live.manager.world.counters.hint_faults, 0);
}

#[test]
fn a_live_memory_has_only_these_capabilities() {
    for (mapped, can) in [
        (false, &[Capability::AccessedBits][..]),
        (true, &[Capability::AccessedBits, Capability::FarIsMapped]),
    ] {
        let live = Live::start("none", &Settings::default(), 0, 1, mapped).unwrap();
        let all = Capability::ALL.iter().map(|(_, capability)| *capability);
        let has: Vec<_> = all.filter(|c| Memory::has(&live.manager.world, *c)).collect();
        assert_eq!(has, can);
    }
}

#[test]
fn references_fault_on_a_stored_far_tier_but_not_on_a_mapped_one() {
    for mapped in [false, true] {
        let mut live = Live::start("none", &Settings::default(), 4, 1, mapped).unwrap();
        let pages = || (0..u64::from(PAGES)).map(Va::new);
        pages().for_each(|at| live.access(at, true));
        live.settle();
        let slow = |live: &Live| live.manager.world.used().0[1];
        // A page that could not be moved to its node is fast.
        let before = live.manager.world.counters;
        assert_eq!(slow(&live) + before.over_budget, u64::from(PAGES) - 10);
        assert!(slow(&live) > 0);
        pages().chain(pages()).for_each(|at| live.access(at, false));
        let faults = live.manager.world.counters.faults - before.faults;
        assert_eq!(faults > 0, !mapped, "{faults} faults");
        let bytes = live.manager.world.far_bytes();
        assert!(!mapped || bytes == 4096 * slow(&live), "{bytes} bytes");
    }
}

#[test]
fn a_demoted_page_is_resident_unless_armed_in_the_same_event() {
    for (armed, seed) in
        [false, true].into_iter().flat_map(|armed| (0..16).map(move |s| (armed, s)))
    {
        let mut live = Live::start("none", &Settings::default(), seed, 1, true).unwrap();
        let at = Va::new(3);
        live.access(at, true);
        let world = &mut live.manager.world;
        let page = world.page_at(at).unwrap();
        world.begin_event();
        if Memory::move_page(world, page, FAR_NODE).is_err()
            || armed && Memory::arm_hint(world, page).is_err()
        {
            continue;
        }
        world.end_event();
        // If the kernel refuses to restore the page now, the next reference restores it.
        assert!(world.pages.state(page).is_resident() || armed || world.event.again);
        let before = world.counters.hint_faults;
        live.access(at, false);
        assert_eq!(live.manager.world.counters.hint_faults - before, u64::from(armed));
        assert_eq!(live.manager.world.pages.state(page).node(), FAR_NODE);
        live.check();
    }
}

#[test]
fn a_copy_from_a_memory_node_is_aborted_only_if_the_page_is_written() {
    for (write, parked) in [(false, false), (true, false), (false, true), (true, true)] {
        for seed in 0..16 {
            let mut live = Live::start("none", &Settings::default(), seed, 1, true).unwrap();
            for at in (0..u64::from(PAGES)).map(Va::new) {
                live.access(at, true);
            }
            let at = Va::new(u64::from(PAGES) - 1);
            let world = &mut live.manager.world;
            let page = world.page_at(at).unwrap();
            world.budget.capacity[0] += 1;
            world.begin_event();
            let thread = world.spawn_worker("copier");
            if parked && world.park(page).is_err()
                || Memory::begin_copy(world, page, NodeId::FAST, thread).is_err()
            {
                continue;
            }
            world.end_event();
            live.access(at, write);
            let world = &mut live.manager.world;
            world.begin_event();
            let found = Memory::commit_copy(world, page, true).unwrap();
            world.end_event();
            let expected = if write { Commit::Dirtied } else { Commit::Done };
            assert!(found == expected || (!write && found == Commit::Pinned), "{found:?}");
            assert_eq!(Memory::shadow_of(world, page).is_some(), found == Commit::Done);
            live.check();
            live.access(at, true);
            live.access(at, false);
            live.check();
        }
    }
}
