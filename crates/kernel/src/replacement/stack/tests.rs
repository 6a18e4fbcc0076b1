//! Tests of exact LRU. Random references write only to pages below `skew`.

use proptest::prelude::*;

use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn equals_the_reference_implementation_at_every_size(
        refs in prop::collection::vec((0u32..140, any::<bool>()), 1..2500),
        skew in 1u32..140,
    ) {
        let mut stack = StackDistance::new();
        let refs: Vec<(u32, u8)> = refs
            .iter()
            .map(|&(page, write)| (if write { page % skew } else { page }, u8::from(write)))
            .collect();
        for &(page, what) in &refs {
            stack.access(page, what == WRITE);
        }
        let sizes: Vec<u64> = (1..=145).collect();
        let flushed = stack.dirty_evictions(&sizes);
        let mut last = u64::MAX;
        for (size, flushed) in sizes.iter().zip(flushed) {
            let faults = stack.faults(*size);
            prop_assert_eq!((faults, flushed[0]), naive(&refs, *size as usize), "{} frames", size);
            // Inclusion: faults never rise with size, and every page faults once.
            prop_assert!(faults <= last && faults >= stack.pages());
            last = faults;
        }
    }
}

/// Reference implementation: LRU memory of `frames` frames. Returns faults and dirty evictions.
fn naive(steps: &[(u32, u8)], frames: usize) -> (u64, u64) {
    let (mut list, mut faults, mut flushed) = (Vec::<(u32, bool)>::new(), 0, 0);
    for &(page, what) in steps {
        let place = list.iter().position(|e| e.0 == page);
        let mut entry = (page, what == WRITE);
        match (what, place) {
            (FREE, Some(place)) => drop(list.remove(place)),
            (FREE | DISCARD, None) => {}
            (DISCARD, Some(place)) => list[place].1 = false,
            (_, Some(place)) => entry.1 |= list.remove(place).1,
            (_, None) => {
                faults += 1;
                if list.len() == frames {
                    flushed += u64::from(list.remove(0).1);
                }
            }
        }
        if what <= WRITE {
            list.push(entry);
        }
    }
    (faults, flushed)
}

const WRITE: u8 = 1;
const FREE: u8 = 2;
const DISCARD: u8 = 3;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn released_pages_leave_free_frames_at_every_size(
        steps in prop::collection::vec(
            (0u32..140, prop_oneof![6 => Just(0), 4 => Just(WRITE), 3 => Just(FREE), 1 => Just(DISCARD)]),
            1..2500,
        ),
        skew in 1u32..140,
    ) {
        let mut stack = StackDistance::new();
        let steps: Vec<(u32, u8)> = steps
            .into_iter()
            .map(|(page, what)| (if what == WRITE { page % skew } else { page }, what))
            .collect();
        for &(page, what) in &steps {
            match what {
                FREE => stack.release(page),
                DISCARD => drop(stack.discard(page)),
                _ => drop(stack.access(page, what == WRITE)),
            }
        }
        let sizes: Vec<u64> = (1..=145).collect();
        let flushed = stack.dirty_evictions(&sizes);
        for (size, flushed) in sizes.iter().zip(flushed) {
            let expected = naive(&steps, *size as usize);
            prop_assert_eq!((stack.faults(*size), flushed[0]), expected, "{} frames", size);
        }
    }
}

#[test]
fn is_exact_when_slots_are_renumbered_many_times() {
    let mut stack = StackDistance::new();
    let mut state = 7u64;
    let refs: Vec<(u32, u8)> = (0..60_000)
        .map(|i| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let page = if i < 3000 { i } else { ((state >> 33) % 3000) as u32 };
            (page, u8::from(state >> 60 == 0))
        })
        .collect();
    for &(page, what) in &refs {
        stack.access(page, what == WRITE);
    }
    for frames in [1, 31, 32, 33, 500, 2999, 3000] {
        let [flushed, _] = stack.dirty_evictions(&[frames])[0];
        assert_eq!((stack.faults(frames), flushed), naive(&refs, frames as usize));
    }
}
