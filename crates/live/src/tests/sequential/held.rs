//! Pages that are pinned by I/O or `mlock`.

use super::*;

fn pages() -> impl Iterator<Item = Va> {
    (0..u64::from(PAGES)).map(Va::new)
}

/// Write and pin every page. Returns the pinned frames.
fn pin_all(live: &mut Live) -> Vec<u64> {
    pages()
        .filter_map(|at| {
            live.access(at, true);
            live.model.borrow_mut().pin(at)
        })
        .collect()
}

#[test]
fn far_pages_pinned_in_memory_are_shown_as_fast() {
    for seed in 0..8 {
        let mut live = Live::start("none", &Settings::default(), seed, 1, false).unwrap();
        let held = pin_all(&mut live);
        assert_eq!(held.len(), PAGES as usize);
        // Each fault trims the window, which tries to evict each pinned page.
        live.release(Va::new(0));
        live.access(Va::new(0), true);
        let ([fast, far], window) = live.manager.world.used();
        assert_eq!(fast + far, u64::from(PAGES));
        assert!(far == window && window <= 2, "{fast} fast, {far} far, {window} in the window");
        // The policy sees them on the node to which it moved them.
        assert_eq!(Memory::free(&live.manager.world, FAR_NODE), 26 - u64::from(PAGES - 10));
        for frame in held {
            live.model.borrow_mut().device_writes(frame);
        }
        for _ in 0..10 {
            live.model.borrow_mut().pass(10_000_000);
            live.manager.discover();
            live.check();
        }
        let ([fast, far], window) = live.manager.world.used();
        assert!(
            fast + far == u64::from(PAGES) && fast <= 11 && window <= 3,
            "{fast} fast, {window}"
        );
    }
}

#[test]
fn pinned_pages_are_retried_with_increasing_delays_and_moved_once_unpinned() {
    let policies = ["tpp", "nomad", "ssp"].into_iter();
    for (name, mapped) in policies.flat_map(|name| [(name, false), (name, true)]) {
        let mut live = Live::start(name, &testing::settings(name).unwrap(), 1, 1, mapped).unwrap();
        let held = pin_all(&mut live);
        let tried = |live: &mut Live| {
            let before = live.manager.world.counters.pinned;
            let end = live.model.borrow().now_ns() + 1_000_000_000;
            while live.model.borrow().now_ns() < end {
                if let Turn::Until(due) = live.manager.turn().unwrap() {
                    live.model.borrow_mut().pass_until(due.min(end));
                }
            }
            live.manager.world.counters.pinned - before
        };
        // In a second, each of at most 3 threads rests at most 22 times (1, 2, 4, ... 64, 64 ms). After each
        // rest it makes up to 2 attempts per page.
        tried(&mut live);
        let often = tried(&mut live);
        assert!(often > 0 && often < 22 * 2 * 3 * u64::from(PAGES), "{name}: {often}");
        let moved = |live: &Live| live.manager.world.counters.demotions_copied;
        let before = moved(&live);
        for frame in held {
            live.model.borrow_mut().device_writes(frame);
        }
        for at in pages().chain(pages()) {
            live.access(at, false);
            live.model.borrow_mut().pass(100_000_000);
            live.settle();
        }
        assert!(moved(&live) > before, "{name}");
    }
}
