//! Tests of Memtis: thresholds, counts and splits.

use super::super::testing::{COSTS, ReferenceMemory, Step, drive, run, settings};
use super::super::{Action, HUGE};
use super::*;

#[test]
fn splits_skewed_huge_pages() {
    // One base page of each huge page is hot: half of the huge pages fit, all hot base pages
    // would.
    let all = (0..4).map(|huge| Step::Read(huge * HUGE));
    let steps: Vec<_> = all.chain((0..20_000).map(|i| Step::Read(i % 4 * HUGE + 7))).collect();
    let nodes = [2 * HUGE as usize, 5 * HUGE as usize];
    let memory = run("memtis", &settings("memtis").unwrap(), &nodes, &steps, true);
    assert!(memory.actions.iter().any(|(_, action)| matches!(action, Action::Split(_))));
}

#[test]
fn everything_from_the_lowest_hot_bin_up_fits() {
    let mut bins = [0; BINS];
    (bins[2], bins[5], bins[9]) = (100, 20, 10);
    assert_eq!(fitting(&bins, 130), (0, 130));
    assert_eq!(fitting(&bins, 129), (3, 30));
    assert_eq!(fitting(&bins, 29), (6, 10));
    bins[BINS - 1] = 50;
    assert_eq!(fitting(&bins, 40), (BINS - 1, 0));
}

#[test]
fn the_histogram_has_each_sampled_or_halved_mapping_once() {
    let mut memory = ReferenceMemory::new(COSTS, &[10, 26], 24, false);
    let settings = settings("memtis").unwrap();
    let mut memtis = Memtis::new(MemtisKnobs::read(&settings).unwrap(), &mut memory);
    for round in 0..400u32 {
        let step =
            if round % 7 == 0 { Step::Release(round % 24) } else { Step::Read(round * 5 % 24) };
        drive(&mut memory, &mut memtis, &[step]);
        let counted = memtis.counts.flags.iter().filter(|flags| **flags & COUNTED != 0).count();
        assert_eq!(memtis.counts.bins.iter().sum::<u64>(), counted as u64);
    }
    assert!(memtis.samples > 60);
}

#[test]
fn the_count_of_a_new_page_is_halved_from_the_second_halving_on() {
    let mut memory = ReferenceMemory::new(COSTS, &[10, 26], 24, false);
    let knobs = MemtisKnobs::read(&settings("memtis").unwrap()).unwrap();
    let mut memtis =
        Memtis::new(MemtisKnobs { load_period: 0, store_period: 0, ..knobs }, &mut memory);
    drive(&mut memory, &mut memtis, &[Step::Read(3)]);
    let mut counts = vec![];
    for _ in 0..3 {
        counts.push(memtis.counts.of[3]);
        memtis.cool(&memory);
    }
    assert_eq!(counts, [4, 4, 2]);
}
