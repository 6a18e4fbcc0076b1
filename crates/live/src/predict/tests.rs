//! The predictor beside lists and loops.

use std::collections::VecDeque;

use nearfar_kernel::tiering::Time;
use proptest::prelude::*;

use super::{Costs, Predicted, Predictor};
use crate::setup::Setup;

const COSTS: Costs = Costs {
    fault_ns: 10_000,
    read_ns: 200,
    copy_ns: 1000,
    copy_next_ns: 600,
    take_ns: 800,
    protect_ns: 600,
    discard_ns: 1000,
    store_ns: 2000,
    load_ns: 500,
    fetch_ns: 0,
};
const REFERENCE: Time = Time::from_ps(1000);

fn setup(policy: &str, fast: u64) -> Setup {
    let far = (policy.to_owned(), "shm".to_owned());
    Setup { fast, far_size: 16 * fast, policy: far.0, far: far.1, ..Setup::default() }
}

fn run(setup: &Setup, pages: u32, references: &[(u32, bool)]) -> Predicted {
    let mut predictor = Predictor::new(setup, pages, COSTS, REFERENCE, true).unwrap();
    for (page, write) in references {
        predictor.reference(*page, *write).unwrap();
    }
    predictor.predicted()
}

/// The first fault brings its page, each after it sixteen; nothing else happens.
#[test]
fn where_all_fits_there_are_first_touches_only() {
    let references: Vec<_> = (0..3).flat_map(|_| (0..128).map(|page| (page, true))).collect();
    let found = run(&setup("none", 4 << 20), 128, &references);
    assert_eq!(found.counters.first_touches, 1 + 128 / 16);
    assert_eq!(found.counters.faults, 1 + 128 / 16);
    assert_eq!(found.counters.numbers().sum::<u64>(), 2 * (1 + 128 / 16));
    assert_eq!(found.references, references.len() as u64);
    let (faults, rest) = (9, 128 - 9);
    let least = (faults * (10_000 + 1000) + rest * 600 + references.len() as u64) as f64 / 1e9;
    assert!(found.seconds >= least && found.seconds < 1.2 * least, "{found:?}");
}

/// Who touches a page here and there gets no others; who goes on gets the next ones.
#[test]
fn a_first_touch_brings_more_where_it_goes_on() {
    let touched = |pages: &[u32]| {
        let references: Vec<_> = pages.iter().map(|page| (*page, true)).collect();
        run(&setup("none", 4 << 20), 128, &references).peak[0]
    };
    assert_eq!(touched(&[0, 50, 100, 30]), 4);
    assert_eq!(touched(&[0, 1]), 1 + 16);
    assert_eq!(touched(&[0, 1, 17, 120]), 1 + 16 + 16 + 1);
    assert_eq!(touched(&[5, 0, 1]), 1 + 1 + 4);
}

#[test]
fn what_is_given_back_is_touched_anew() {
    let mut predictor =
        Predictor::new(&setup("none", 4 << 20), 64, COSTS, REFERENCE, true).unwrap();
    for _ in 0..5 {
        for page in 0..64 {
            predictor.reference(page, true).unwrap();
        }
        predictor.release(0, 64).unwrap();
    }
    let counters = predictor.predicted().counters;
    assert_eq!((counters.first_touches, counters.released), (5 * 5, 5 * 64));
}

#[test]
fn a_processor_for_each_takes_less_time() {
    let references: Vec<_> = (0..40_000u32).map(|n| (n.wrapping_mul(769) % 3000, true)).collect();
    let seconds = |shared| {
        let mut predictor =
            Predictor::new(&setup("nomad", 4 << 20), 3000, COSTS, REFERENCE, shared).unwrap();
        references.iter().for_each(|(page, write)| predictor.reference(*page, *write).unwrap());
        predictor.predicted().seconds
    };
    assert!(seconds(false) < seconds(true));
}

/// `none` leaves pages where they are first touched, so far ones go through the window: a list of the
/// latest that is left first by those that came first.
fn through_the_window(setup: &Setup, pages: u32, references: &[(u32, bool)]) -> (u64, u64, u64) {
    let sizes = setup.sizes();
    let mut there = vec![None; pages as usize];
    let mut clean = vec![false; pages as usize];
    let (mut fast, mut window) = (0, VecDeque::new());
    let (mut touches, mut loads, mut stores) = (0, 0, 0);
    for (page, write) in references {
        let at = *page as usize;
        // A first touch may bring more than the window holds: then the page itself leaves at once.
        loop {
            match there[at] {
                None => {
                    touches += 1;
                    // More than the page itself where the one before it is known.
                    let goes_on = at > 0 && there[at - 1].is_some();
                    let most = if goes_on { 16 } else { 1 };
                    let free =
                        (at..(at + most).min(pages as usize)).take_while(|at| there[*at].is_none());
                    for next in free.collect::<Vec<_>>() {
                        let is_fast = fast < sizes.fast;
                        fast += u64::from(is_fast);
                        there[next] = Some((is_fast, true));
                        if !is_fast {
                            window.push_back(next);
                        }
                    }
                }
                Some((false, false)) => {
                    loads += 1;
                    clean[at] = !*write;
                    there[at] = Some((false, true));
                    window.push_back(at);
                }
                Some((is_fast, true)) => {
                    clean[at] &= is_fast || !*write;
                    break;
                }
                Some((true, false)) => unreachable!("fast pages stay"),
            }
            while window.len() as u64 > sizes.window {
                let Some(old) = window.pop_front() else { break };
                stores += u64::from(!clean[old]);
                (clean[old], there[old]) = (true, Some((false, false)));
            }
        }
    }
    (touches, loads, stores)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn without_a_policy_it_is_a_window(
        references in prop::collection::vec((0u32..700, any::<bool>()), 0..3000),
    ) {
        let setup = setup("none", 1 << 20);
        let found = run(&setup, 700, &references).counters;
        let expected = through_the_window(&setup, 700, &references);
        prop_assert_eq!((found.first_touches, found.far_loads, found.far_stores), expected);
    }

    /// Every policy: what is counted adds up, and the same comes twice.
    #[test]
    fn counts_add_up(
        references in prop::collection::vec((0u32..700, any::<bool>()), 1..3000),
        policy in prop::sample::select(vec!["none", "autonuma", "tpp", "nomad", "ssp"]),
        mapped: bool,
    ) {
        let mut setup = setup(policy, 1 << 20);
        if mapped {
            setup.far = "node:1".into();
        }
        let (found, again) = (run(&setup, 700, &references), run(&setup, 700, &references));
        prop_assert_eq!(found, again);
        let seen = found.counters;
        prop_assert!(seen.shadow_copies <= seen.promotions);
        prop_assert!(seen.shadow_faults + seen.demotions_remapped <= seen.shadow_copies);
        prop_assert!(found.peak[0] <= setup.sizes().fast + seen.over_budget);
        if mapped {
            // References to slow pages go through; each page that moves is copied.
            prop_assert_eq!((seen.window_faults, found.peak[2]), (0, 0));
            prop_assert_eq!(seen.far_loads, seen.promotions);
            prop_assert!(seen.far_stores + seen.shadows_reclaimed >= seen.demotions_copied);
        }
    }
}
