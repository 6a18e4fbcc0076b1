//! How often the manager scans for memory that the program has newly mapped.

/// Minimum and maximum nanoseconds between two scans, if a scan is cheap.
const INTERVAL_NS: (u64, u64) = (20_000_000, 40_000_000);
/// Scans take at most 1/SHARE of the time.
const SHARE: u64 = 50;

/// Nanoseconds from the end of a scan to the next. `last_ns` is the previous result. The scan has `found` new
/// memory or not, and took `took_ns` of processor time: it reads all mappings, perhaps tens of thousands.
#[must_use]
pub fn next_look_ns(last_ns: u64, found: bool, took_ns: u64) -> u64 {
    let (shortest, longest) = INTERVAL_NS;
    let wanted = if found { shortest } else { last_ns.saturating_mul(2).clamp(shortest, longest) };
    wanted.max(took_ns.saturating_mul(SHARE - 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn cheap_scans_are_frequent() {
        assert_eq!(next_look_ns(0, false, 0), 20_000_000);
        assert_eq!(next_look_ns(20_000_000, false, 100_000), 40_000_000);
        assert_eq!(next_look_ns(40_000_000, true, 100_000), 20_000_000);
        // A scan of 40 ms, then a cheap one.
        assert_eq!(next_look_ns(20_000_000, true, 40_000_000), 49 * 40_000_000);
        assert_eq!(next_look_ns(1_960_000_000, false, 100_000), 40_000_000);
    }

    proptest! {
        #[test]
        fn scans_take_at_most_a_fiftieth_of_the_time(last: u64, found: bool, took in 0..1u64 << 50) {
            let next = next_look_ns(last, found, took);
            prop_assert!(u128::from(took) * 50 <= u128::from(took) + u128::from(next));
            prop_assert!(next >= INTERVAL_NS.0);
            // 0.8 ms is a fiftieth of the maximum interval.
            prop_assert!(took > 800_000 || next <= INTERVAL_NS.1);
        }
    }
}
