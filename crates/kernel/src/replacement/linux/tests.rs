use std::collections::HashSet;

use super::*;
use crate::replacement::VecBits;

/// Pages of each type; half of all fit in memory.
const PAGES: u32 = 1024;

/// Evictions of anonymous, file data and code pages under random references.
fn evictions(swappiness: u64) -> [u64; 3] {
    let setup = Setup { frames: (3 * PAGES / 2).into(), page_bytes: 4096, swappiness, statistics_every: 1 };
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
