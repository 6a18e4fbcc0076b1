//! Tests of swappiness, code pages and samples.

use std::collections::HashSet;

use super::*;
use crate::replacement::VecBits;

/// Pages each of anonymous memory, file data and code; half of all fit in memory.
const PAGES: u32 = 1024;

/// Evictions of anonymous, file data and code pages under random references.
fn evictions(swappiness: u64) -> [u64; 3] {
    let frames = (3 * PAGES / 2).into();
    let setup = Setup { frames, page_bytes: 4096, swappiness, statistics_every: 1, share: 1.0 };
    let mut lists = Lists::new(setup);
    (PAGES..3 * PAGES).for_each(|page| lists.begin_file(page, page >= 2 * PAGES));
    let mut bits = VecBits(vec![false; 3 * PAGES as usize]);
    let (mut resident, mut counts, mut draw) = (HashSet::new(), [0; 3], 1u64);
    for _ in 0..100_000 {
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let page = (draw >> 33) as u32 % (3 * PAGES);
        if resident.insert(page) {
            for victim in lists.fault(page, &(), &mut bits) {
                assert!(resident.remove(&victim));
                bits.0[victim as usize] = false;
                counts[(victim / PAGES) as usize] += 1;
            }
        }
        bits.0[page as usize] = true;
        assert_eq!(lists.resident(), resident.len() as u64);
    }
    counts
}

#[test]
fn swappiness_moves_reclaim_from_files_to_anonymous_pages() {
    let evictions = [0, 30, 60, 100, 150, 200].map(evictions);
    assert_eq!(evictions[0][0], 0, "{evictions:?}");
    for (less, more) in evictions.iter().zip(&evictions[1..]) {
        assert!(less[0] < more[0] && less[1] > more[1], "{evictions:?}");
    }
}

#[test]
fn code_stays_longer_than_file_data() {
    let [_, data, code] = evictions(60);
    assert!(code < data * 9 / 10, "{code} and {data}");
}

#[test]
fn batches_statistics_and_list_lengths_scale_with_a_sample() {
    let new = |frames, share| {
        let setup =
            Setup { frames, page_bytes: 4096, swappiness: 200, statistics_every: 100, share };
        Lists::new(setup)
    };
    for (frames, share, batch, every) in
        [(1 << 21, 1.0, 32, 100), (1 << 18, 0.125, 4, 13), (1 << 10, 0.5, 8, 50), (64, 0.001, 1, 1)]
    {
        let lists = new(frames, share);
        assert_eq!(
            (lists.batch, lists.setup.statistics_every),
            (batch, every),
            "{frames}, {share}"
        );
    }
    // 8 GiB of anonymous pages: the active list may be sqrt(80) = 8 times the inactive one.
    for share in [1.0, 1.0 / 64.0] {
        let mut lists = new((2e6 * share) as u64, share);
        let pages = |part: f64| (2_097_152.0 * share * part) as u64;
        lists.stale.lengths = [pages(0.12), pages(0.88), 0, 0];
        assert!(!lists.inactive_is_low(ANON), "{share}");
        lists.stale.lengths = [pages(0.1), pages(0.9), 0, 0];
        assert!(lists.inactive_is_low(ANON), "{share}");
    }
}

const MANY_PAGES: u32 = 1 << 17;
const PARTS: u32 = 32;

/// Faults under random references to the `sampled` pages, by page number modulo [`PARTS`].
fn faults(sampled: impl Fn(u32) -> bool, frames: u64, share: f64) -> [u64; PARTS as usize] {
    let setup = Setup { frames, page_bytes: 4096, swappiness: 200, statistics_every: 1, share };
    let mut lists = Lists::new(setup);
    let mut bits = VecBits(vec![false; MANY_PAGES as usize]);
    let mut resident = vec![false; MANY_PAGES as usize];
    let (mut draw, mut faults) = (1u64, [0; PARTS as usize]);
    for _ in 0..1_500_000 {
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let part = (draw >> 11) as f64 / (1u64 << 53) as f64;
        // References to low pages are more frequent.
        let page = (f64::from(MANY_PAGES) * part * part) as u32;
        if !sampled(page) {
            continue;
        }
        if !std::mem::replace(&mut resident[page as usize], true) {
            faults[(page % PARTS) as usize] += 1;
            for victim in lists.fault(page, &(), &mut bits) {
                resident[victim as usize] = false;
                bits.0[victim as usize] = false;
            }
        }
        bits.0[page as usize] = true;
    }
    faults
}

#[test]
fn samples_fault_as_often_as_the_whole() {
    let frames = u64::from(MANY_PAGES * 3 / 4);
    let remainders = 0..8;
    let whole: u64 = faults(|_| true, frames, 1.0)[..8].iter().sum();
    let error = |share| {
        let sample = |remainder| faults(|page| page % PARTS == remainder, frames / 32, share);
        let samples: u64 = remainders.clone().flat_map(sample).sum();
        samples as f64 / whole as f64 - 1.0
    };
    // With a share of 1, a sample counts as a whole memory.
    let (scaled, not_scaled) = (error(1.0 / 32.0), error(1.0));
    assert!(scaled.abs() < 0.005 && not_scaled > 0.01, "{scaled}, {not_scaled}");
}
