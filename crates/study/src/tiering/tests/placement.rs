//! Tests of workloads whose best placement is known: `ranked` and `hot-cold`.

use super::*;

const SCALE: f64 = 1.0 / 64.0;
/// Parts of `ranked`; part r has r times the accesses of part 1.
const PARTS: u64 = 8;
/// Accesses to all parts, relative to part 1.
const ACCESSES: u64 = PARTS * (PARTS - 1) / 2;
/// Policies that do not end with the hot MB in fast memory (docs/tiering.md says why).
const MISSES: [&str; 2] = ["none", "hybridtier"];

fn ranked(names: &[&'static str], mix: Mix, fast: f64) -> Vec<Row> {
    let workload = generated("ranked", &Shape { rounds: 3, ..shape(mix, SCALE) }).unwrap();
    let (fast, slow) = (vec![Size::Fraction(fast)], Some(Size::Bytes(24 << 30)));
    let options = Options { fast, slow, ..options(SCALE) };
    rows(names, &Arc::new(workload), &options)
}

/// The fast hit ratio if fast memory is filled with the parts of these ranks, in this order.
fn hit_ratio(ranks: impl Iterator<Item = u64>, row: &Row) -> f64 {
    // 24 GiB at `SCALE`.
    let part_pages = (24 << 30) / 64 / PARTS / 4096;
    let mut frames = row.fast_node_bytes / 4096;
    let mut hits = 0;
    for rank in ranks {
        let held = frames.min(part_pages);
        (hits, frames) = (hits + held * rank, frames - held);
    }
    hits as f64 / (ACCESSES * part_pages) as f64
}

/// The hit ratio of the best placement: the hottest parts.
fn best(row: &Row) -> f64 {
    hit_ratio((0..PARTS).rev(), row)
}

/// The hit ratio of first touch, in address order; ranks move by three parts in each round.
fn first_touch(row: &Row, round: u64) -> f64 {
    hit_ratio((0..PARTS).map(|place| (place + PARTS * round - 3 * round) % PARTS), row)
}

#[test]
fn hit_ratios_of_the_oracle_and_of_first_touch_are_exact() {
    for (mix, fast) in [(Mix::Read, 0.5), (Mix::Write, 0.5), (Mix::Read, 0.3), (Mix::Read, 1.0)] {
        // Three rounds per policy.
        for rows in ranked(&["oracle", "none"], mix, fast).chunks(3) {
            for (round, row) in (0..).zip(rows) {
                let oracle = row.policy == "oracle";
                let known = if oracle { best(row) } else { first_touch(row, round) };
                assert_eq!(row.fast_hit_ratio, known, "{} {fast} {}", row.policy, row.phase);
            }
        }
    }
}

/// Times, not hit ratios: TPP promotes a page before the access that faulted, which is then a hit.
#[test]
fn no_policy_is_faster_than_the_oracle() {
    let names: Vec<_> = POLICIES.iter().map(|(name, _)| *name).collect();
    let rows = ranked(&names, Mix::Read, 0.5);
    // The last policy is the oracle.
    for (row, bound) in rows.iter().zip(rows[rows.len() - 3..].iter().cycle()) {
        assert_eq!((row.phase.as_str(), bound.policy.as_str()), (bound.phase.as_str(), "oracle"));
        assert!(row.seconds >= bound.seconds, "{} {}", row.policy, row.phase);
    }
}

/// At the end, all hot MB but at most one are in fast memory, except under [`MISSES`].
#[test]
fn hot_pages_end_in_fast_memory() {
    for hot in [16u64, 32] {
        let wss_gib = Some(hot as f64 / 1024.0 / SCALE);
        let shape = Shape { wss_gib, ..shape(Mix::Read, SCALE) };
        let workload = Arc::new(generated("hot-cold", &shape).unwrap());
        let sources: Vec<_> = POLICIES.iter().map(|(name, _)| source(name, SCALE)).collect();
        let found =
            run(&options(SCALE), std::slice::from_ref(&workload), &sources, &[1], &mut |_| Ok(()))
                .unwrap();
        for (name, _) in POLICIES {
            let last = found.series.iter().rfind(|point| point.policy == *name).unwrap();
            // All hot pages have the same number of accesses.
            let missing = hot as f64 * (1.0 - last.fast_hit_ratio);
            assert_eq!(missing < 1.0, !MISSES.contains(name), "{name}: {missing} of {hot} MB");
        }
    }
}
