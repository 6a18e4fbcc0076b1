//! Tests of every policy in the reference implementation: no write is lost and all invariants hold,
//! whatever the program does and whatever the memory refuses or lacks.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::testing::conformance::{Subject, suite};
use super::testing::{
    COSTS, PAGES, ReferenceMemory, all_settings, drive, huge_steps, is_demotion, is_promotion,
    steps, thrash, thrashing,
};
use super::*;

const HUGE_NODES: [usize; 2] = [2 * HUGE as usize, 5 * HUGE as usize];

fn nodes(three: bool) -> &'static [usize] {
    if three { &[8, 12, 24] } else { &[10, 26] }
}

/// Run every policy, with every choice of its knobs, in a memory changed by `prepare`. Returns the
/// policies that refuse this memory; their errors must name `lacks`.
fn run_all(
    nodes: &[usize],
    steps: &[testing::Step],
    huge: bool,
    lacks: Option<&str>,
    prepare: impl Fn(ReferenceMemory) -> ReferenceMemory,
) -> BTreeSet<&'static str> {
    let mut refused = BTreeSet::new();
    for (name, _) in POLICIES {
        for settings in all_settings(name).unwrap() {
            let pages = if huge { 4 * HUGE } else { PAGES };
            let mut memory = prepare(ReferenceMemory::new(COSTS, nodes, pages, huge));
            match memory.start(name, &settings) {
                Ok(mut policy) => drive(&mut memory, &mut *policy, steps),
                Err(error) => {
                    let text = error.to_string();
                    let known = lacks.is_some_and(|lacks| text.contains(lacks));
                    assert!(known && text.contains(name) && !text.contains('\n'), "{text}");
                    refused.insert(*name);
                }
            }
        }
    }
    refused
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn no_write_is_lost(steps in steps(), three: bool) {
        run_all(nodes(three), &steps, false, None, |memory| memory);
    }

    #[test]
    fn no_write_is_lost_if_pages_are_pinned(steps in steps(), three: bool, seed: u64, us in 1..200u64) {
        let period = Time::from_ps(us * 1_000_000);
        run_all(nodes(three), &steps, false, None, |memory| memory.pinning(seed, period));
    }

    #[test]
    fn no_write_is_lost_during_background_copies(steps in steps(), three: bool, ns in 0..20_000u64) {
        let delay = Time::from_ps(ns * 1000);
        run_all(nodes(three), &steps, false, None, |memory| memory.copying_for(delay));
    }

    #[test]
    fn no_write_is_lost_without_one_capability(steps in steps(), three: bool, lacking in 0..4usize) {
        let (name, capability) = Capability::ALL[lacking];
        run_all(nodes(three), &steps, false, Some(name), |memory| memory.lacking(capability));
    }
}

proptest! {
    // A case takes a hundred times as long as one of small pages.
    #![proptest_config(ProptestConfig::with_cases(4))]

    #[test]
    fn no_write_is_lost_in_huge_pages(steps in huge_steps()) {
        run_all(&HUGE_NODES, &steps, true, None, |memory| memory);
    }

    #[test]
    fn no_write_is_lost_in_pinned_huge_pages(steps in huge_steps(), seed: u64) {
        let period = Time::from_ps(20_000_000);
        run_all(&HUGE_NODES, &steps, true, None, |memory| memory.pinning(seed, period));
    }
}

/// The reference implementation in the suite that every world runs.
struct Reference(ReferenceMemory, Box<dyn Policy>);

impl Subject for Reference {
    fn memory(&self) -> &dyn Memory {
        &self.0
    }
    fn step(&mut self, step: testing::Step) {
        drive(&mut self.0, &mut *self.1, &[step]);
    }
}

#[test]
fn the_reference_keeps_to_the_contract() {
    suite(400, |make, seed| {
        let mut memory = ReferenceMemory::new(COSTS, nodes(seed.is_multiple_of(2)), PAGES, false);
        if let Some((_, capability)) = Capability::ALL.get((seed / 2 % 5) as usize) {
            memory = memory.lacking(*capability);
        }
        if seed.is_multiple_of(3) {
            memory = memory.pinning(seed, Time::from_ps(20_000_000));
        }
        memory = memory.copying_for(Time::from_ps(seed % 20_000_000));
        let policy = memory.start_made(make).unwrap();
        Reference(memory, policy)
    });
}

/// While the program thrashes, the first page in each state in turn is released.
#[test]
fn pages_can_be_released_in_every_state() {
    type Kind = (&'static str, fn(&ReferenceMemory, Page) -> bool);
    let kinds: [Kind; 7] = [
        ("copied", |memory, page| memory.copying() == Some(page)),
        ("shadowed", |memory, page| memory.shadow_of(page).is_some()),
        ("armed", |memory, page| memory.hint_armed(page)),
        ("protected", |memory, page| memory.write_protected(page)),
        ("dirty", |memory, page| memory.dirty(page)),
        ("fast", |memory, page| memory.node_of(page) == NodeId::FAST),
        ("slow", |memory, page| memory.node_of(page) != NodeId::FAST),
    ];
    for pinned in [false, true] {
        let mut released = BTreeSet::new();
        for (name, _) in POLICIES {
            for settings in all_settings(name).unwrap() {
                let mut memory = ReferenceMemory::new(COSTS, &[10, 26], PAGES, false);
                if pinned {
                    memory = memory.pinning(7, Time::from_ps(30_000_000));
                }
                let delay = Time::from_ps(2_000_000);
                memory = memory.copying_for(delay);
                let mut policy = memory.start(name, &settings).unwrap();
                for (part, (kind, is)) in thrashing(3).chunks(11).zip(kinds.iter().cycle()) {
                    drive(&mut memory, &mut *policy, part);
                    let page = (0..PAGES)
                        .map(Page::new)
                        .find(|page| memory.mapped(*page) && is(&memory, *page));
                    if let Some(page) = page {
                        released.insert((*name, *kind));
                        drive(&mut memory, &mut *policy, &[testing::Step::Release(page.number())]);
                        assert!(!memory.mapped(page));
                    }
                }
            }
        }
        for (kind, _) in kinds {
            assert!(released.contains(&("ssp", kind)), "{kind}, pinned: {pinned}");
        }
        for (name, _) in POLICIES {
            assert!(
                released.contains(&(name, "fast")) && released.contains(&(name, "slow")),
                "{name}"
            );
        }
    }
}

#[test]
fn policies_that_move_pages_promote_and_demote() {
    for name in ["autonuma", "colloid", "tpp", "memtis", "hybridtier", "damon"] {
        let actions = thrash(name, 3);
        assert!(actions.iter().any(is_promotion) && actions.iter().any(is_demotion), "{name}");
    }
}

#[test]
fn policies_refuse_memories_without_their_required_capabilities() {
    let refusing = |name| {
        let capability = Capability::ALL.iter().find(|(known, _)| *known == name).unwrap().1;
        run_all(&[10, 26], &[], false, Some(name), |memory| memory.lacking(capability))
    };
    assert_eq!(refusing("accessed-bits"), ["damon"].into());
    assert_eq!(refusing("samples"), ["colloid", "memtis", "hybridtier"].into());
    assert_eq!(refusing("far-is-mapped"), ["memtis", "hybridtier", "damon"].into());
    assert!(!refusing("dirty-bits").is_empty());
}

#[test]
fn knobs_are_complete_and_their_values_are_checked() {
    for (name, policy) in POLICIES {
        check(name, &Settings::default()).unwrap();
        let knobs = policy.all_knobs();
        let names: BTreeSet<_> = knobs.iter().map(|knob| knob.name).collect();
        assert_eq!(names.len(), knobs.len(), "{name} declares a knob twice");
        assert!(knobs.iter().all(|knob| !knob.source.is_empty() && !knob.what.is_empty()));
        assert!(!policy.what.is_empty() && !policy.not_for.is_empty(), "{name}");
        for knob in knobs {
            for text in knob.choices.iter().chain(&knob.in_tests).chain([&knob.default]) {
                (knob.check)(text, 1.0).unwrap();
            }
        }
    }
    let with = |key: &str, value: &str| Settings {
        values: [(key.to_owned(), value.to_owned())].into(),
        scale: 1.0,
    };
    let error = |name, settings: &Settings| check(name, settings).unwrap_err().to_string();
    let message = error("nomad", &with("mqp_size", "3"));
    assert!(message.contains("knob nomad.mqp_size") && message.contains("`mpq_size`"), "{message}");
    assert!(error("none", &with("x", "1")).contains("no knobs"));
    for (key, value) in [("scan_size", "3"), ("pagevec", "-1"), ("arm_demoted", "yes")] {
        assert!(error("nomad", &with(key, value)).contains(&format!("nomad.{key}")));
    }
    assert!(error("ssp", &with("notice", "psychic")).contains("dirty-bit"));
    assert!(find("nomat").unwrap_err().to_string().contains("`nomad`"));
    let quarter = Settings { scale: 0.25, ..Settings::default() };
    let scan = scan::ScanKnobs::read(&quarter).unwrap();
    assert_eq!(scan.scan_size.0, 16384);
    assert_eq!(scan.scan_period_min, Time::from_ps(250_000_000_000));
}
