//! Every policy in the plain memory: no lost write, every invariant, whatever the program does.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::plain::{Action, PlainMemory};
use super::toy::{PRICES, toy};
use super::*;

fn run(
    name: &str,
    settings: &Settings,
    nodes: &[usize],
    steps: &[(u32, bool)],
    huge: bool,
) -> PlainMemory {
    let mut policy = make(name, settings).unwrap();
    let pages = if huge { 4 * HUGE } else { 24 };
    let mut memory = PlainMemory::new(PRICES, nodes, pages, huge);
    memory.start(&mut *policy);
    for (step, (page, write)) in steps.iter().enumerate() {
        if step % 97 == 96 {
            memory.sleep(&mut *policy, Time::from_ps(50_000_000));
        }
        memory.access(&mut *policy, Page::new(page % pages), *write).unwrap();
        memory.check().unwrap();
    }
    memory
}

/// References with a hot set that moves, some of them writes.
fn steps() -> impl Strategy<Value = Vec<(u32, bool)>> {
    let part = (0..24u32, 1..6u32, 1..120usize, 0..=10u32).prop_flat_map(|(at, hot, n, writes)| {
        prop::collection::vec(
            (0..10u32, 0..hot, 0..24u32, 0..10u32).prop_map(move |(far, near, any, write)| {
                (if far == 0 { any } else { at + near }, write < writes)
            }),
            n,
        )
    });
    prop::collection::vec(part, 1..8).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn nothing_is_lost(steps in steps(), three: bool) {
        let nodes: &[usize] = if three { &[8, 12, 24] } else { &[10, 26] };
        for (name, _) in POLICIES {
            run(name, &toy(name).unwrap(), nodes, &steps, false);
        }
        for notice in ["write-protect", "shadow-fault"] {
            let mut settings = toy("ssp").unwrap();
            settings.values.insert("notice".into(), notice.into());
            run("ssp", &settings, nodes, &steps, false);
        }
    }

    #[test]
    fn nothing_is_lost_in_huge_pages(steps in prop::collection::vec((0..4 * HUGE, any::<bool>()), 1..200)) {
        for (name, _) in POLICIES {
            run(name, &toy(name).unwrap(), &[2 * HUGE as usize, 5 * HUGE as usize], &steps, true);
        }
    }
}

/// A hot set outside the fast node that is read and written over and over.
fn thrash(writes: u32) -> Vec<(u32, bool)> {
    // 16 pages touched once fill the fast node and part of the slow one; then 8..24 are hot.
    let first = (0..24).map(|page| (page, false));
    first.chain((0..6000u32).map(|i| (8 + i * 7 % 16, i * 13 % 10 < writes))).collect()
}

fn count(memory: &PlainMemory, what: fn(&Action) -> bool) -> usize {
    memory.actions.iter().filter(|(_, action)| what(action)).count()
}

/// A path that never runs is not tested: each policy must do what it is known for.
#[test]
fn every_path_runs() {
    let go = |name: &str, writes| run(name, &toy(name).unwrap(), &[10, 26], &thrash(writes), false);
    let up = |action: &Action| matches!(action, Action::Moved(_, NodeId::FAST));
    let down = |action: &Action| matches!(action, Action::Moved(_, NodeId(1)));
    for name in ["autonuma", "tpp", "memtis"] {
        let memory = go(name, 3);
        assert!(count(&memory, up) > 0 && count(&memory, down) > 0, "{name}");
    }
    let nomad = go("nomad", 3);
    let shadowed = |action: &Action| matches!(action, Action::Committed(_, Commit::Done, true));
    let plain = |action: &Action| matches!(action, Action::Committed(_, Commit::Done, false));
    let aborted = |action: &Action| matches!(action, Action::Committed(_, Commit::Dirtied, _));
    let written = |action: &Action| matches!(action, Action::Dropped(_, Drop::Written));
    let remapped = |action: &Action| matches!(action, Action::Remapped(_));
    for path in [shadowed, aborted, written, remapped, down] {
        assert!(count(&nomad, path) > 0);
    }
    assert_eq!(count(&nomad, plain), 0);
    let ssp = go("ssp", 3);
    assert!(count(&ssp, shadowed) > 0 && count(&ssp, plain) > 0);
    assert_eq!(count(&go("none", 3), |_| true), 0);
    // A slow node with hardly any room: shadows must give way.
    let tight = run("nomad", &toy("nomad").unwrap(), &[10, 17], &thrash(1), false);
    assert!(count(&tight, |action| matches!(action, Action::Dropped(_, Drop::Reclaimed))) > 0);
}

/// Without writes in the fast node SSP is NOMAD.
#[test]
fn ssp_of_reads_is_nomad() {
    let nomad = run("nomad", &toy("nomad").unwrap(), &[10, 26], &thrash(0), false);
    for notice in ["dirty-bit", "write-protect", "shadow-fault"] {
        let mut settings = toy("ssp").unwrap();
        settings.values.insert("notice".into(), notice.into());
        let ssp = run("ssp", &settings, &[10, 26], &thrash(0), false);
        assert_eq!(nomad.actions, ssp.actions);
    }
}

#[test]
fn memtis_splits_skewed_huge_pages() {
    // One base page of each huge page is hot: half of the huge pages fit, all hot base pages would.
    let all = (0..4).map(|huge| (huge * HUGE, false));
    let steps: Vec<_> = all.chain((0..4000u32).map(|i| (i % 4 * HUGE + 7, false))).collect();
    let memory = run(
        "memtis",
        &toy("memtis").unwrap(),
        &[2 * HUGE as usize, 5 * HUGE as usize],
        &steps,
        true,
    );
    assert!(count(&memory, |action| matches!(action, Action::Split(_))) > 0);
}

#[test]
fn oracle_puts_the_most_referenced_into_the_fast_node() {
    let mut policy = make("oracle", &Settings::default()).unwrap();
    let mut memory = PlainMemory::new(PRICES, &[4, 12], 12, false);
    memory.start(&mut *policy);
    for page in 0..12 {
        memory.access(&mut *policy, Page::new(page), false).unwrap();
    }
    let counts: Vec<u32> = (0..12).map(|page| page * 7 % 12).collect();
    policy.foresee(&mut memory, &counts);
    memory.check().unwrap();
    let mut fast: Vec<u32> = (0..12u32)
        .filter(|page| memory.node_of(Page::new(*page)) == NodeId::FAST)
        .map(|page| counts[page as usize])
        .collect();
    fast.sort_unstable();
    assert_eq!(fast, [8, 9, 10, 11]);
}

#[test]
fn knobs_are_checked() {
    for (name, policy) in POLICIES {
        make(name, &Settings::default()).unwrap();
        let knobs = (policy.knobs)();
        let names: BTreeSet<_> = knobs.iter().map(|knob| knob.name).collect();
        assert_eq!(names.len(), knobs.len(), "{name} declares a knob twice");
        assert!(knobs.iter().all(|knob| !knob.source.is_empty() && !knob.what.is_empty()));
    }
    let with = |key: &str, value: &str| Settings {
        values: [(key.to_owned(), value.to_owned())].into(),
        scale: 1.0,
    };
    let say = |name, settings: &Settings| make(name, settings).err().map(|e| e.to_string());
    let said = say("nomad", &with("mqp_size", "3")).unwrap();
    assert!(said.contains("knob nomad.mqp_size") && said.contains("`mpq_size`"), "{said}");
    assert!(say("none", &with("x", "1")).unwrap().contains("no knobs"));
    for (key, value) in [("scan_size", "3"), ("pagevec", "-1"), ("arm_demoted", "yes")] {
        assert!(say("nomad", &with(key, value)).unwrap().contains(key));
    }
    assert!(say("ssp", &with("notice", "psychic")).unwrap().contains("dirty-bit"));
    assert!(find("nomat").unwrap_err().to_string().contains("`nomad`"));
    let quarter = Settings { scale: 0.25, ..Settings::default() };
    let scan = scan::ScanKnobs::read(&quarter).unwrap();
    assert_eq!(scan.scan_size.0, 16384);
    assert_eq!(scan.scan_period_min, Time::from_ps(250_000_000_000));
}
