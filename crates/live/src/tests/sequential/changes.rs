//! Memory that is moved and unmapped, with messages in any order.

use super::*;

/// Every policy that runs live, on both kinds of far tier, after a program that thrashes.
fn after_thrashing() -> impl Iterator<Item = Live> {
    on_both_kinds().filter_map(|(name, mapped)| {
        let settings = testing::settings(name).unwrap();
        let mut live = Live::start(name, &settings, 5, 2, mapped).ok()?;
        live.run(&testing::thrashing(4));
        Some(live)
    })
}

/// Eight pages.
fn part(number: u64) -> Range {
    Range::new(Va::new(8 * number), Va::new(8 * (number + 1)))
}

#[test]
fn moved_pages_keep_their_content() {
    for mut live in after_thrashing() {
        let range = Range::new(Va::new(0), Va::new(PAGES.into()));
        let message = live.model.borrow_mut().remap(range, range.to);
        live.look_around(1);
        live.model.borrow_mut().send(Event::Unmapped(range));
        live.settle();
        assert!(message.flatten().is_some_and(|id| live.model.borrow().is_over(id)));
        for at in Range::new(range.to, range.to.plus(PAGES.into())).each() {
            live.access(at, at.number() % 2 == 0);
        }
        let message =
            live.model.borrow_mut().unmap(Range::new(range.to, range.to.plus(PAGES.into())));
        live.settle();
        assert!(message.is_some());
        assert_eq!(live.manager.world.used(), ([0, 0], 0));
        assert_eq!(live.manager.world.far_bytes(), 0);
    }
}

/// Moved pages without a number are placed in the program's memory, over the budget.
#[test]
fn pages_moved_when_numbers_run_out_keep_their_content() {
    let mut loaded = 0;
    for (name, mapped) in on_both_kinds() {
        for (groups, seed) in (1..4).flat_map(|groups| (0..8).map(move |seed| (groups, seed))) {
            let settings = testing::settings(name).unwrap();
            let make = |mem: &mut dyn Memory| make(name, &settings, mem);
            let Ok(mut live) = Live::with_all(seed, 2, mapped, ALL, groups * GROUP, make) else {
                continue;
            };
            live.run(&testing::thrashing(4));
            let before = live.manager.world.counters.over_budget;
            assert!(before > 0 || groups >= PAGES.div_ceil(GROUP));
            let end = 2 * u64::from(PAGES);
            live.model.borrow_mut().unmap(Range::new(Va::new(16), Va::new(u64::from(PAGES))));
            live.settle();
            // The destinations are not aligned to groups, so that two groups become three.
            let mut range = Range::new(Va::new(0), Va::new(16));
            for to in [27, 1, 30].map(Va::new) {
                let message = live.model.borrow_mut().remap(range, to);
                live.look_around(1);
                let loads = live.manager.world.counters.far_loads;
                live.model.borrow_mut().send(Event::Unmapped(range));
                live.settle();
                // Under "none", no other page is loaded meanwhile.
                if name == "none" {
                    loaded += live.manager.world.counters.far_loads - loads;
                }
                assert!(message.flatten().is_some_and(|id| live.model.borrow().is_over(id)));
                range = Range::new(to, to.plus(16));
                for at in range.each() {
                    live.access(at, at.number() % 2 == 0);
                }
                assert!(live.manager.world.unnumbered.is_empty());
            }
            live.model.borrow_mut().unmap(Range::new(Va::new(0), Va::new(end)));
            live.settle();
            assert_eq!(live.manager.world.used(), ([0, 0], 0));
            assert_eq!(live.manager.world.far_bytes(), 0);
        }
    }
    assert!(loaded > 0, "no page was far");
}

#[test]
fn a_late_unmap_message_releases_no_page_moved_there_since() {
    for mut live in after_thrashing() {
        let (one, two, free) = (part(0), part(1), Va::new(PAGES.into()));
        // One thread unmaps `one`; another moves `two` there, and its message arrives first.
        let late = live.model.borrow_mut().unmap_unsent(one).unwrap();
        live.model.borrow_mut().remap(two, one.from).unwrap().unwrap();
        live.look_around(4);
        live.model.borrow_mut().send(late);
        live.look_around(4);
        // The message that `two` was unmapped arrives after a third thread has moved memory there.
        live.model.borrow_mut().remap(part(2), two.from).unwrap().unwrap();
        live.look_around(4);
        live.model.borrow_mut().send(Event::Unmapped(two));
        live.look_around(4);
        live.model.borrow_mut().send(Event::Unmapped(part(2)));
        live.settle();
        for at in one.each().chain(two.each()) {
            live.access(at, false);
            live.access(at, true);
        }
        let message = live.model.borrow_mut().unmap(Range::new(Va::new(0), free));
        live.settle();
        assert!(message.is_some() && live.manager.world.used() == ([0, 0], 0));
    }
}

/// One thread moves part 1 away and is preempted; another moves part 0 there, and its message arrives first.
#[test]
fn a_move_whose_message_arrives_last_is_applied_first() {
    for mut live in after_thrashing() {
        let free = Range::new(Va::new(PAGES.into()), Va::new(u64::from(PAGES) + 8));
        let late = live.model.borrow_mut().remap_unsent(part(1), free.from).unwrap().unwrap();
        live.model.borrow_mut().remap(part(0), part(1).from).unwrap().unwrap();
        live.look_around(4);
        live.model.borrow_mut().send(Event::Unmapped(part(0)));
        live.look_around(4);
        live.model.borrow_mut().send(late);
        live.look_around(4);
        live.model.borrow_mut().send(Event::Unmapped(part(1)));
        live.settle();
        for at in part(1).each().chain(free.each()) {
            live.access(at, false);
            live.access(at, true);
        }
    }
}
