//! Tests of caches, translation and overlap.

use proptest::prelude::*;

use super::*;
use crate::cache::Level;

fn level(sets: u64, ways: usize) -> Level {
    Level { sets, ways }
}

fn caches(third: bool) -> Caches {
    Caches {
        instruction: level(2, 1),
        data: level(2, 2),
        second: level(4, 2),
        third: third.then_some(level(3, 4)),
        line_bytes: 64,
    }
}

fn tlbs() -> Tlbs {
    Tlbs {
        instruction: (1, None),
        data: (2, Some(1)),
        second: Some((level(2, 2), None)),
        second_ps: 2_000,
        coalesced: 14,
        directories: 2,
        upper_directories: 1,
    }
}

/// LRU sets as lists, the most recent line last.
#[derive(Default)]
struct Plain(std::collections::HashMap<u64, Vec<u64>>);

impl Plain {
    fn access(&mut self, level: Level, line: u64) -> bool {
        let set = self.0.entry(line % level.sets).or_default();
        let place = set.iter().position(|other| *other == line);
        place.map(|place| set.remove(place));
        set.push(line);
        if set.len() > level.ways {
            set.remove(0);
        }
        place.is_some()
    }
}

proptest! {
    #[test]
    fn lines_are_found_in_the_level_of_the_reference(
        refs in prop::collection::vec((0u64..40, any::<bool>()), 1..600),
        third in any::<bool>(),
    ) {
        let caches = caches(third);
        let mut hierarchy = Hierarchy::new(&caches);
        let mut plain: [Plain; 4] = Default::default();
        let mut misses: Vec<u64> = Vec::new();
        for (line, fetch) in refs {
            // Each line is in another small page, so that there are no streams.
            let line = line << 6;
            let [instruction, data, second, last] = &mut plain;
            let expected = if fetch {
                instruction.access(caches.instruction, line)
            } else {
                data.access(caches.data, line)
            };
            let expected = if expected {
                Found::First
            } else if second.access(caches.second, line) {
                Found::Second
            } else if caches.third.is_some_and(|level| last.access(level, line)) {
                Found::Third
            } else {
                misses.push(line);
                Found::Memory
            };
            prop_assert_eq!(hierarchy.access(line, fetch), expected);
        }
    }

    /// Ages predict the level of at least 80 % of rarely used page-table lines.
    #[test]
    fn ages_predict_the_level_of_lines(seed in 1u64..1000, spread in 300u64..3000) {
        let caches = Caches {
            instruction: level(8, 8),
            data: level(8, 8),
            second: level(64, 8),
            third: Some(level(128, 16)),
            line_bytes: 64,
        };
        let (mut simulated, mut hierarchy) = (Hierarchy::new(&caches), Hierarchy::new(&caches));
        let (mut state, mut alike, mut all) = (seed, 0, 0);
        let mut used = std::collections::HashMap::new();
        let mut draw = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % most
        };
        for turn in 0..60_000 {
            // Few lines are used often.
            let most = 1 + draw(2 * spread);
            let line = draw(most) << 6;
            simulated.access(line, false);
            hierarchy.access(line, false);
            if turn % 40 == 0 {
                let (line, now) = (1 << 62 | draw(30) << 6, hierarchy.now());
                let expected = simulated.walk(line);
                let before = used.insert(line, now);
                let found = before.map_or(Found::Memory, |before| hierarchy.ages().found(now - before));
                if turn > 20_000 {
                    all += 1;
                    alike += u32::from(found == expected);
                }
            }
        }
        prop_assert!(alike * 20 >= all * 16, "{alike} of {all}");
    }
}

#[test]
fn a_sample_of_lines_estimates_the_ages_at_eviction() {
    let caches = Caches {
        instruction: level(64, 8),
        data: level(64, 8),
        second: level(512, 8),
        third: Some(level(1024, 16)),
        line_bytes: 64,
    };
    let (mut all, mut sample) = (Hierarchy::new(&caches), Hierarchy::for_ages(&caches));
    let mut state = 1u64;
    let mut draw = |most: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % most
    };
    for _ in 0..2_000_000 {
        // Few lines are used often.
        let most = 1 + draw(60_000);
        let line = draw(most);
        all.access(line, false);
        assert_eq!(sample.access(line, false), Found::First);
    }
    assert_eq!(all.now(), sample.now());
    for (age, estimate) in all.ages().0.into_iter().zip(sample.ages().0) {
        let ratio = estimate as f64 / age as f64;
        assert!((0.6..1.6).contains(&ratio), "{estimate} for {age}");
    }
}

#[test]
fn sequential_lines_are_prefetched() {
    let mut hierarchy = Hierarchy::new(&caches(true));
    let found: Vec<Found> = (0..64).map(|line| hierarchy.access(line, false)).collect();
    assert_eq!(found[..2], [Found::Memory; 2]);
    assert_eq!(found[2..], [Found::Streamed; 62]);
    // The next page starts a new stream, and so does another direction.
    assert_eq!(hierarchy.access(64, false), Found::Memory);
    assert_eq!(hierarchy.access(70, false), Found::Memory);
    assert_eq!(hierarchy.access(69, false), Found::Memory);
    assert_eq!(hierarchy.access(68, false), Found::Streamed);
}

const GIB: u64 = 1 << 30;

fn access(translation: &mut Translation, place: u64, entry: Entry) -> Answer {
    let answer = translation.enter(place, entry, false);
    translation.leave(place, entry, false);
    answer
}

/// Lines that a look-up read; 0 for a second-level hit, `None` for a first-level hit.
fn lines(answer: Answer) -> Option<usize> {
    match answer {
        Answer::First => None,
        Answer::Second => Some(0),
        Answer::Walk(count, _) => Some(count),
    }
}

#[test]
fn directory_caches_shorten_walks() {
    let tlbs = tlbs();
    let mut translation = Translation::new(&tlbs, None);
    let small = Translation::entry(&tlbs, None, 12);
    let mut look_up = |place, entry| lines(access(&mut translation, place, entry));
    assert_eq!(look_up(GIB, small), Some(3));
    assert_eq!(look_up(GIB, small), None);
    // Pages in the same directory, in another one, and in another GiB.
    assert_eq!(look_up(GIB + 4096, small), Some(1));
    assert_eq!(look_up(GIB + (2 << 20), small), Some(2));
    assert_eq!(look_up(3 * GIB, small), Some(3));
    // Evicted from the first level, which has two entries, but not from the second, which has four.
    assert_eq!(look_up(GIB + 4096, small), Some(0));
    let large = Translation::entry(&tlbs, None, 21);
    assert_eq!(look_up(3 * GIB + (8 << 20), large), Some(1));
    assert_eq!(look_up(5 * GIB, large), Some(2));
}

#[test]
fn an_entry_covers_the_range_that_guest_and_host_map_contiguously() {
    let tlbs = tlbs();
    let entry = |host, shift| Translation::entry(&tlbs, host, shift).shift;
    assert_eq!([12, 13, 14, 16, 20, 21].map(|shift| entry(None, shift)), [12, 13, 14, 14, 14, 21]);
    assert_eq!(
        [12, 13, 14, 16, 20, 21].map(|shift| entry(Some(21), shift)),
        [12, 13, 14, 14, 14, 21]
    );
    // Adjacent small pages of the host may share an entry.
    assert_eq!([12, 16, 21].map(|shift| entry(Some(12), shift)), [12, 14, 14]);
    let plain = Tlbs { coalesced: 0, ..tlbs };
    assert_eq!([12, 16, 21].map(|s| Translation::entry(&plain, None, s).shift), [12, 12, 21]);
}

proptest! {
    /// The `last` most recent pages are pinned, and unpinned in the order of their last uses.
    #[test]
    fn pinned_pages_hit_and_miss_as_with_single_uses(
        uses in prop::collection::vec(0u64..60, 1..600),
        last in 1usize..6,
        shift in prop::sample::select(vec![12u32, 14]),
    ) {
        let tlbs = Tlbs { data: (6, Some(6)), ..tlbs() };
        let entry = Translation::entry(&tlbs, None, shift);
        let [mut single, mut pinned] = [0; 2].map(|_| Translation::new(&tlbs, None));
        let mut window: Vec<u64> = Vec::new();
        for page in uses {
            let expected = access(&mut single, page << 12, entry);
            if let Some(place) = window.iter().position(|other| *other == page) {
                window.remove(place);
                prop_assert_eq!(expected, Answer::First);
            } else {
                if window.len() == last {
                    pinned.leave(window.remove(0) << 12, entry, false);
                }
                prop_assert_eq!(pinned.enter(page << 12, entry, false), expected);
            }
            window.push(page);
        }
    }
}

#[test]
fn nested_walks_read_lines_of_the_hosts_table() {
    let tlbs = tlbs();
    let small = Translation::entry(&tlbs, Some(12), 12);
    for (host, first, next) in [(None, 3, 1), (Some(12), 6, 2), (Some(21), 5, 2)] {
        let mut translation = Translation::new(&tlbs, host);
        assert_eq!(lines(access(&mut translation, GIB, small)), Some(first));
        assert_eq!(lines(access(&mut translation, GIB + 4096, small)), Some(next));
    }
}

#[test]
fn removed_translations_are_walked_again() {
    let tlbs = tlbs();
    let mut translation = Translation::new(&tlbs, None);
    for shift in [12, 16, 21] {
        let entry = Translation::entry(&tlbs, None, shift);
        let place = GIB * u64::from(shift);
        access(&mut translation, place, entry);
        assert_eq!(access(&mut translation, place, entry), Answer::First);
        translation.remove(place, entry);
        assert!(matches!(access(&mut translation, place, entry), Answer::Walk(..)));
    }
}

#[test]
fn misses_within_a_window_overlap() {
    let mut overlap = Overlap::default();
    for (instructions, ps) in [(10, 5_000), (20, 100_000), (30, 20_000), (200, 100_000)] {
        overlap.miss(instructions, ps, 100);
    }
    assert_eq!(overlap.ns(0.0), 200.0);
    assert_eq!(overlap.ns(1.0), 225.0);
    assert_eq!(overlap.ns(0.4), 210.0);
}

#[test]
fn missing_keys_are_named() {
    let text = include_str!("../../../../machines/laptop.toml");
    let machine = crate::Machine::parse("laptop", text).unwrap();
    let error = machine.processor(None).unwrap_err().to_string();
    assert!(error.contains("cpu.reorder_window") && error.contains("--view paper"), "{error}");
    assert!(machine.processor(Some(4097)).unwrap_err().to_string().contains("--nested"));
}
