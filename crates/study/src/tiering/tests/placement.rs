//! Placements that are known beforehand: parts of ranked hotness, and a known number of hot MB.

use super::*;

const SCALE: f64 = 1.0 / 64.0;
/// Parts of `ranked`, and their accesses in relation to those of part 1.
const PARTS: u64 = 8;
const ALL: u64 = PARTS * (PARTS - 1) / 2;
/// Policies that do not end with the hot MB in fast memory (docs/tiering.md says why).
const MISSES: [&str; 2] = ["none", "hybridtier"];

fn ranked(names: &[&'static str], mix: Mix, fast: f64) -> Vec<Row> {
    let workload = generated("ranked", &Shape { rounds: 3, ..shape(mix, SCALE) }).unwrap();
    let (fast, slow) = (vec![Size::Fraction(fast)], Some(Size::Bytes(24 << 30)));
    let options = Options { fast, slow, ..options(SCALE) };
    rows(names, &Arc::new(workload), &options)
}

/// The share of accesses that reach fast memory if its pages are of these ranks, in this order.
fn share(ranks: impl Iterator<Item = u64>, row: &Row) -> f64 {
    let part = (24 << 30) / 64 / PARTS / 4096;
    let mut frames = row.fast_node_bytes / 4096;
    let mut hits = 0;
    for rank in ranks {
        let held = frames.min(part);
        (hits, frames) = (hits + held * rank, frames - held);
    }
    hits as f64 / (ALL * part) as f64
}

/// The best placement, from its definition.
fn best(row: &Row) -> f64 {
    share((0..PARTS).rev(), row)
}

/// First touch, in the order of addresses; ranks move by three parts in each round.
fn untouched(row: &Row, round: u64) -> f64 {
    share((0..PARTS).map(|place| (place + PARTS * round - 3 * round) % PARTS), row)
}

#[test]
fn ranks_have_a_best_and_a_first_placement() {
    for (mix, fast) in [(Mix::Read, 0.5), (Mix::Write, 0.5), (Mix::Read, 0.3), (Mix::Read, 1.0)] {
        for rows in ranked(&["oracle", "none"], mix, fast).chunks(3) {
            for (round, row) in (0..).zip(rows) {
                let oracle = row.policy == "oracle";
                let known = if oracle { best(row) } else { untouched(row, round) };
                assert_eq!(row.fast_hit_ratio, known, "{} {fast} {}", row.policy, row.phase);
            }
        }
    }
}

/// A policy may have more hits, as TPP does: a page that it moves first is fast when it is accessed.
#[test]
fn no_policy_is_quicker_than_the_best_placement() {
    let names: Vec<_> = POLICIES.iter().map(|(name, _)| *name).collect();
    let rows = ranked(&names, Mix::Read, 0.5);
    for (row, bound) in rows.iter().zip(rows[rows.len() - 3..].iter().cycle()) {
        assert_eq!((row.phase.as_str(), bound.policy.as_str()), (bound.phase.as_str(), "oracle"));
        assert!(row.seconds >= bound.seconds, "{} {}", row.policy, row.phase);
    }
}

/// A program ends with all its hot MB in fast memory, to within 1 MB.
#[test]
fn the_hot_megabytes_end_in_fast_memory() {
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
            // Each page is accessed as often as any other.
            let missing = hot as f64 * (1.0 - last.fast_hit_ratio);
            assert_eq!(missing < 1.0, !MISSES.contains(name), "{name}: {missing} of {hot} MB");
        }
    }
}
